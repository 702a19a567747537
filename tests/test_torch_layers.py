"""torch modules of our own against torch's, in a process of their own: what is quicker must not be something else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = """
import json
import warnings
import torch
from torch import nn
from pipeline.models import Shapes
from pipeline.models.mnist_cnn import MnistCnn
from pipeline.runs.fit import Observation
from pipeline.backends.torch.observer import Observer, multiplied_in_tf32
from pipeline.backends.torch.bare import ways_to_multiply
from pipeline.backends.torch.products import kind_of, products
from pipeline.models import torch_quick
from pipeline.models.torch_quick import Conv2d, Dropout, Linear

torch_quick.onednn_is_quicker = lambda: True  # whichever processor this is
found = {}
for rate in (0.25, 0.3, 0.999999):
    torch.manual_seed(0)
    layer, x = Dropout(rate), torch.ones(1000, 500, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    torch.manual_seed(0)
    found[rate] = {
        "dropped": (y == 0).double().mean().item(),
        "values": y.detach().unique().tolist(),
        "gradient": torch.equal(x.grad, y.detach()),
        "same again": torch.equal(layer(x), y),
        "neighbours": (y[:, 1:] * y[:, :-1] > 0).double().mean().item(),
        "evaluating": torch.equal(layer.eval()(x), x),
    }
half = Dropout(0.5)(torch.ones(3, 5, 7, dtype=torch.bfloat16))
found["half"] = [str(half.dtype), list(half.shape), half.unique().tolist()]

def trained(net, order):
    torch.manual_seed(1)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=1.0)
    loss = nn.functional.cross_entropy(nn.Sequential(*(net[i] for i in order))(images), torch.arange(8))
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in net.parameters())]

def beside_torchs(kind, theirs, shape, **options):
    # Result and gradients of the same layer, ours and torch's: their distance from float64's by its size.
    torch.manual_seed(2)
    ours = kind(**options)
    x = torch.randn(shape).to(memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format)
    def outputs_of(layer, dtype):
        at = x.detach().to(dtype).requires_grad_()
        layer = layer.to(dtype)
        layer.zero_grad()
        y = layer(at)
        torch.sin(y).sum().backward()
        return [t.detach().double().clone() for t in (y, at.grad, layer.weight.grad, layer.bias.grad)]
    plain = theirs(**options)
    plain.load_state_dict(ours.state_dict())
    both = outputs_of(ours, torch.float32), outputs_of(plain, torch.float32)
    exact = outputs_of(plain, torch.float64)
    return [[float((a - b).norm() / b.norm()) for a, b in zip(some, exact)] for some in both]

found["convolution"] = beside_torchs(Conv2d, nn.Conv2d, (8, 5, 14, 14), in_channels=5, out_channels=7, kernel_size=3)
found["same"] = beside_torchs(
    Conv2d, nn.Conv2d, (8, 5, 14, 14), in_channels=5, out_channels=7, kernel_size=5, padding="same")
found["dense"] = beside_torchs(Linear, nn.Linear, (256, 512), in_features=512, out_features=256)

def operations(layer, x, **entered):
    observation = Observation("here")
    with Observer(observation), torch.autocast("cpu", **entered):
        layer(x).sum().backward()
    return {name: [str(dtype), n] for (name, _, dtype), n in observation.operations.items()}, observation.matmuls

large, small = torch.randn(256, 512, requires_grad=True), torch.randn(8, 512, requires_grad=True)
layer = Linear(512, 256)
found["large"] = operations(layer, large, enabled=False)
found["small"] = operations(layer, small, enabled=False)
torch_quick.onednn_is_quicker = lambda: False
found["mkl"] = operations(layer, large, enabled=False)
torch_quick.onednn_is_quicker = lambda: True
found["autocast"] = operations(layer, large, dtype=torch.bfloat16)
found["half autocast convolution"] = operations(Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8), dtype=torch.bfloat16)
bilinear, wide = nn.Bilinear(6, 5, 4, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
found["bilinear"] = operations(lambda x: bilinear(x, x[:, :5]), wide, enabled=False)[1]
found["vector"] = operations(lambda x: x @ torch.ones(6, dtype=torch.float64), wide, enabled=False)[1]
def recurrent(kind, dtype, narrow=False):
    layer, x = kind(6, 4, dtype=dtype), torch.randn(5, 3, 6, dtype=dtype, requires_grad=True)
    try:
        return operations(lambda x: layer(x)[0].float(), x, dtype=torch.bfloat16, enabled=narrow)[1]
    except RuntimeError as error:  # oneDNN has no LSTM of float32 weights in bfloat16 for AVX2
        if "could not create a primitive" not in str(error):
            raise
        return None
found["recurrent"] = [
    [recurrent(kind, torch.float32), recurrent(kind, torch.bfloat16), recurrent(kind, torch.float32, narrow=True)]
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
]
grouped = [torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((16, 32), (2, 32, 16))]
ends = torch.tensor([8, 16], dtype=torch.int32)
found["grouped"] = operations(lambda x: 2 * torch._grouped_mm(x, grouped[1], offs=ends), grouped[0], enabled=False)[1]
eighth = torch.ones(16, 16).to(torch.float8_e4m3fn)
one = torch.ones(())
scaled = lambda x: x * torch._scaled_mm(eighth, eighth.t(), one, one, out_dtype=torch.bfloat16).float()
found["scaled"] = operations(scaled, torch.ones(16, 16, requires_grad=True), enabled=False)[1]
sparse = torch.eye(5).to_sparse()
ones = torch.ones(5, 4, requires_grad=True)
found["sparse"] = operations(lambda x: torch.sparse.mm(sparse, x), ones, enabled=False)[1]
in_place = lambda x: torch.zeros(5, 5).addmm_(x.detach(), x.detach().t()).sum() * x
found["in place"] = operations(in_place, ones, enabled=False)[1]
with torch.profiler.profile(record_shapes=True) as seen:
    nn.LSTM(64, 256)(torch.randn(50, 32, 64))[0].sum().backward()
found["kinds"] = {e.name: kind_of(e) for e in seen.events() if "rnn_layer" in e.name}
with torch.no_grad():
    found["compiled"] = float((torch.compile(layer, backend="eager")(large) - layer(large)).norm())

class Several(nn.ModuleList):
    def forward(self, x):
        return tuple(torch_quick.at_once(self, x))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for one, shape in ((layer, (256, 512)), (Several([layer, layer]), (256, 512)), (Conv2d(3, 4, 3), (2, 3, 8, 8))):
        torch.jit.trace(one, torch.zeros(shape), check_trace=False)
found["warned"] = [str(one.message) for one in warned if issubclass(one.category, torch.jit.TracerWarning)]

with torch.profiler.profile(record_shapes=True) as seen:
    layer(large).sum().backward()
found["products"] = sorted([p.m, p.n, p.k, p.calls] for p in products(seen.events(), (8, 8, 1), 1, gpu=False))
a, b = torch.randn(32, 48), torch.randn(48, 16)
found["ways"] = [float((way() - a @ b).norm() / (a @ b).norm()) for way in ways_to_multiply(a, b)]

aten, found["tf32"] = torch.ops.aten, {}
def truncated(t):
    return (t.view(torch.int32) & ~0x1FFF).view(torch.float32)
def nearest(t):
    return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
def images(*shape):
    return (torch.rand(*shape) * 255).round() / 255  # all positive: the errors cancel most
for name, func, args in (
    ("mm", aten.mm.default, (torch.randn(200, 300), torch.randn(300, 400))),
    ("addmm", aten.addmm.default, (torch.randn(400), images(200, 784), torch.randn(784, 400))),
    ("positive", aten.addmm.default, (torch.rand(200, 400), images(200, 784), torch.rand(784, 400))),
    ("bmm", aten.bmm.default, (torch.randn(5, 80, 90), torch.randn(5, 90, 300))),
    ("convolution", aten.convolution.default,
     (images(8, 3, 12, 12), torch.randn(5, 3, 3, 3), torch.randn(5), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
):
    found["tf32"][name] = []
    for change in (lambda t: t, truncated, nearest):
        left = 1 if name in ("addmm", "positive") else 0
        changed = [change(a) if i in (left, left + 1) else a for i, a in enumerate(args)]
        found["tf32"][name].append(multiplied_in_tf32(func, args, {}, func(*changed)))
eye = (torch.eye(64), torch.eye(64))
found["tf32"]["few bits"] = multiplied_in_tf32(aten.mm.default, eye, {}, eye[0])
half = [torch.randn(8, 8).half()] * 2
found["tf32"]["half"] = multiplied_in_tf32(aten.mm.default, half, {}, half[0])

images = torch.randn(8, 12, 12, 1)
for activation in ("relu", "gelu"):
    model = MnistCnn(filters=(3, 4), units=6, activation=activation, dropout_features=0, dropout_units=0)
    net = model.torch(Shapes((12, 12, 1), (8,)))
    pool = next(i for i, layer in enumerate(net) if isinstance(layer, nn.MaxPool2d))
    first = pool if activation != "gelu" else pool - 1
    swapped = [*range(first), first + 1, first, *range(first + 2, len(net))]
    same = zip(trained(net, range(len(net))), trained(model.torch(Shapes((12, 12, 1), (8,))), swapped))
    found[activation] = [pool, all(torch.equal(a, b) for a, b in same)]
print(json.dumps(found))
"""

CONVOLUTIONS = """
import json
import torch
from torch import nn
from pipeline.backends.torch.products import operations, products, shares

found, gradients, shown = {}, [], []
for name, layer, shape in (
    ("1-D", nn.Conv1d(3, 8, 5), (2, 3, 20)),
    ("1-D, dilated", nn.Conv1d(3, 8, 5, dilation=2), (2, 3, 20)),
    ("1-D, grouped", nn.Conv1d(4, 8, 5, groups=2), (2, 4, 20)),
    ("2-D", nn.Conv2d(3, 8, 3, stride=2), (2, 3, 9, 7)),
    ("2-D, grouped", nn.Conv2d(4, 8, 3, groups=2), (2, 4, 9, 7)),
    ("3-D", nn.Conv3d(3, 8, 3), (2, 3, 6, 5, 7)),
    ("1-D, transposed", nn.ConvTranspose1d(3, 8, 5, stride=2), (2, 3, 20)),
    ("2-D, transposed", nn.ConvTranspose2d(3, 8, 3, stride=2), (2, 3, 9, 7)),
    ("2-D, transposed, grouped", nn.ConvTranspose2d(4, 8, 3, stride=2, groups=2), (2, 4, 9, 7)),
    ("3-D, transposed", nn.ConvTranspose3d(3, 8, 3, stride=2), (2, 3, 6, 5, 7)),
):
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        with torch.profiler.profile(record_shapes=True) as seen:
            layer.to(dtype)(x).sum().backward()
        flop = {"convolution": 0, "convolution's gradients": 0}
        for one in products(seen.events(), (9,), 1, gpu=False):
            flop[one.name] += one.FLOP
        found[f"{name}, {dtype}"] = list(flop.values())
        called = {one.name for one in operations(seen.events(), 1, gpu=False) if one.kind == "products"}
        gradients += sorted(one for one in called if one.startswith("aten::_slow_conv2d_backward"))
        timed = sum(one.seconds for one in products(seen.events(), (9,), 1, gpu=False))
        shown.append(timed / shares(seen.events(), 1.0, gpu=False)["products"])
print(json.dumps([found, gradients, shown]))
"""
# Of a forward pass: examples, places, filters, and the inputs that each place of a filter sees.
FLOP = {
    "1-D": 2 * 2 * 16 * 8 * (3 * 5),
    "1-D, dilated": 2 * 2 * 12 * 8 * (3 * 5),
    "1-D, grouped": 2 * 2 * 16 * 8 * (2 * 5),
    "2-D": 2 * 2 * (4 * 3) * 8 * (3 * 3 * 3),
    "2-D, grouped": 2 * 2 * (7 * 5) * 8 * (2 * 3 * 3),
    "3-D": 2 * 2 * (4 * 3 * 5) * 8 * (3 * 3 * 3 * 3),
    # Of one that is transposed: examples, places, inputs, and the filters' numbers that each input goes to.
    "1-D, transposed": 2 * 2 * 20 * 3 * (8 * 5),
    "2-D, transposed": 2 * 2 * (9 * 7) * 3 * (8 * 3 * 3),
    "2-D, transposed, grouped": 2 * 2 * (9 * 7) * 4 * (4 * 3 * 3),
    "3-D, transposed": 2 * 2 * (6 * 5 * 7) * 3 * (8 * 3 * 3 * 3),
}


@pytest.mark.wide
def test_convolutions_of_any_dimension_have_their_flop() -> None:
    """The forward pass, and as much for each of two gradients, whichever operations torch calls for a dtype.

    The time of float64's gradients was counted as other work, and their products had next to none. So was that of a
    transposed convolution's forward pass, and a stride counted in the FLOP of its gradients.
    """
    done = subprocess.run(
        [sys.executable, "-c", CONVOLUTIONS], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found, gradients, shown = json.loads(done.stdout)
    assert gradients == ["aten::_slow_conv2d_backward"] * 4  # of one and two dimensions; others have no such operation
    assert shown == pytest.approx([1.0] * 2 * len(FLOP))
    assert found == {
        f"{name}, torch.{dtype}": [flop, 2 * flop] for name, flop in FLOP.items() for dtype in ("float32", "float64")
    }


BOTH = """
import json
import torch
from torch.profiler import profile
from pipeline.backends.torch.products import products

down, up = torch.nn.Conv2d(8, 8, 2, stride=2), torch.nn.ConvTranspose2d(8, 8, 2, stride=2)
x = torch.randn(4, 8, 16, 16, requires_grad=True)
with profile(record_shapes=True) as seen:
    (up(x).sum() + down(x).sum()).backward()
print(json.dumps(sorted([one.FLOP for one in products(seen.events(), (8, 16, 16), 1, gpu=False)])))
"""


@pytest.mark.wide
def test_convolutions_that_halve_and_double_have_their_flop_beside_each_other() -> None:
    """With images and filters of the same sizes one had the places of the other."""
    done = subprocess.run([sys.executable, "-c", BOTH], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    halves, doubles = 2 * 4 * 64 * 8 * (8 * 2 * 2), 2 * 4 * 256 * 8 * (8 * 2 * 2)
    assert sum(json.loads(done.stdout)) == 3 * (halves + doubles)


OTHERS = """
import json
import torch
from torch.profiler import profile
from pipeline.backends.torch.products import products

a, v, c = torch.randn(32, 48), torch.randn(48), torch.randn(8, 24, 24)
found = {}
for name, call in {
    "mv": lambda: torch.mv(a, v),
    "addmv": lambda: torch.addmv(torch.randn(32), a, v),
    "addmm_": lambda: torch.zeros(32, 32).addmm_(a, a.T),
    "baddbmm_": lambda: torch.zeros(8, 24, 24).baddbmm_(c, c),
    "addbmm": lambda: torch.addbmm(torch.zeros(24, 24), c, c),
    "conv_tbc": lambda: torch.conv_tbc(torch.randn(20, 4, 8), torch.randn(3, 8, 16), torch.zeros(16)),
    "with an activation": lambda: torch._addmm_activation(torch.zeros(32), a, a.T),
}.items():
    with profile(record_shapes=True) as seen:
        call()
    found[name] = sum(one.FLOP for one in products(seen.events(), (9,), 1, gpu=False))
print(json.dumps(found))
"""


@pytest.mark.wide
def test_products_with_vectors_in_place_and_over_time_have_their_flop() -> None:
    """Their dtypes were in the receipt, and their time counted as other work."""
    done = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "mv": 2 * 32 * 48,
        "addmv": 2 * 32 * 48,
        "addmm_": 2 * 32 * 32 * 48,
        "baddbmm_": 8 * 2 * 24**3,
        "addbmm": 8 * 2 * 24**3,
        "conv_tbc": 2 * 18 * 4 * 16 * (3 * 8),
        "with an activation": 2 * 32 * 32 * 48,
    }


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("product", ["mm", "addmm", "positive", "bmm", "convolution"])
def test_the_numbers_of_a_product_show_whether_it_was_in_tf32(found: dict[str, Any], product: str) -> None:
    """As it is, and of operands cut to ten bits, by truncating and to the nearest: a GPU's units may do either."""
    assert found["tf32"][product] == [False, True, True]


def test_numbers_that_cannot_show_tf32_show_nothing(found: dict[str, Any]) -> None:
    assert found["tf32"]["few bits"] is None
    assert found["tf32"]["half"] is None


def test_products_of_a_bilinear_layer_and_of_vectors_are_seen(found: dict[str, Any]) -> None:
    """A net with nothing else in float64 was called one of float32."""
    assert set(found["bilinear"]) == set(found["vector"]) == {"float64"}


@pytest.mark.parametrize("layer", [0, 1, 2], ids=["LSTM", "GRU", "RNN"])
def test_products_of_a_recurrent_layer_are_seen(found: dict[str, Any], layer: int) -> None:
    """In float32, in bfloat16, and in float32 under autocast. On a CPU an LSTM is one operation for each direction."""
    plain, narrow, cast = found["recurrent"][layer]
    assert set(plain) == {"float32"}
    if None in (narrow, cast):
        pytest.skip("oneDNN has no LSTM under autocast to bfloat16 for this processor")
    assert (set(narrow), set(cast)) == ({"bfloat16"}, {"bfloat16"})


def test_an_lstms_time_is_one_of_products(found: dict[str, Any]) -> None:
    assert found["kinds"] == dict.fromkeys(("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"), "products")


def test_attention_is_one_of_products_by_whichever_library() -> None:
    """By torch's own list of operations: on a GPU each library's kernels run in an operation inside the one called."""
    import torch

    from pipeline.backends.torch.observer import ATTENTION
    from pipeline.backends.torch.products import kind_of

    every = {name.split(".")[0].removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()}
    fused = {name for name in every if re.match(r"_scaled_dot_product_|_[a-z]+_attention_(for|back)ward$", name)}
    assert fused >= {f"_{library}_attention_forward" for library in ("flash", "efficient", "cudnn")}
    events = [SimpleNamespace(name=f"aten::{name}", cpu_parent=None) for name in fused]
    assert {event.name for event in events if kind_of(event) != "products"} == set()
    assert {name for name in fused if not ATTENTION.fullmatch(name)} == set()


def test_products_of_groups_of_few_bits_of_sparse_matrices_and_in_place_are_seen(found: dict[str, Any]) -> None:
    """Forward and backward."""
    assert found["grouped"] == {"bfloat16": 3}
    assert found["scaled"] == {"float8_e4m3fn": 1}
    assert found["sparse"] == {"float32": 2}
    assert found["in place"] == {"float32": 1}


@pytest.mark.parametrize("rate", [0.25, 0.3, 0.999999])
def test_a_dropout_drops_its_share_and_scales_the_rest(found: dict[str, Any], rate: float) -> None:
    result, n = found[str(rate)], 500_000
    within = 5 * (rate * (1 - rate) / n) ** 0.5 + 2**-16
    assert result["dropped"] == pytest.approx(rate, abs=within)
    assert result["values"] == pytest.approx([0, 2**16 / max(round(2**16 * (1 - rate)), 1)])
    assert result["gradient"] and result["same again"] and result["evaluating"]
    if rate < 0.9:  # elements of one draw must not go together
        assert result["neighbours"] == pytest.approx((1 - rate) ** 2, abs=0.005)


def test_a_dropout_keeps_dtype_and_shape(found: dict[str, Any]) -> None:
    assert found["half"] == ["torch.bfloat16", [3, 5, 7], [0.0, 2.0]]


def test_the_pool_before_a_relu_changes_no_bit(found: dict[str, Any]) -> None:
    """Loss and every gradient, against the order of the source."""
    pool, same = found["relu"]
    assert pool == 4  # after ChannelsFirst, a convolution, its activation and the second convolution
    assert same


def test_a_pool_stays_behind_another_activation(found: dict[str, Any]) -> None:
    """The largest of some values has not the largest GELU."""
    pool, same = found["gelu"]
    assert pool == 5
    assert not same  # the test above can fail


@pytest.mark.parametrize("layer", ["convolution", "same", "dense"])
def test_a_layer_computes_what_torchs_own_does(found: dict[str, Any], layer: str) -> None:
    """Result and gradients by input, kernel and bias are as near to float64's as torch's own are."""
    ours, torchs = found[layer]
    assert len(ours) == 4
    assert all(0 < mine < max(2 * its, 3e-7) for mine, its in zip(ours, torchs, strict=True)), (ours, torchs)


def test_a_large_product_is_onednns_and_the_receipt_says_float32(found: dict[str, Any]) -> None:
    operations, products = found["large"]
    assert operations["_linear_pointwise"] == ["float32", 3]  # forward, and the gradients of input and kernel
    assert not {"addmm", "mm"} & operations.keys()
    assert products == {"float32": 3}


@pytest.mark.parametrize(("case", "dtype"), [("small", "float32"), ("mkl", "float32"), ("autocast", "bfloat16")])
def test_products_that_onednn_does_not_speed_up_stay_torchs(found: dict[str, Any], case: str, dtype: str) -> None:
    operations, products = found[case]
    assert "addmm" in operations and "_linear_pointwise" not in operations
    assert products == {dtype: 3}


def test_a_convolution_under_autocast_is_in_bfloat16(found: dict[str, Any]) -> None:
    operations, products = found["half autocast convolution"]
    assert products == {"bfloat16": 2}
    assert "add_" not in operations  # the bias is within


def test_a_compiler_is_left_to_do_its_own(found: dict[str, Any]) -> None:
    assert 0 < found["compiled"] < 1e-3  # MKL, not oneDNN: other roundings of 65,536 numbers


def test_a_trace_of_the_graph_warns_of_nothing(found: dict[str, Any]) -> None:
    """TensorBoard's graph is one: whoever profiled saw torch warn of our choice by a size."""
    assert found["warned"] == []


def test_onednns_products_have_their_sizes(found: dict[str, Any]) -> None:
    """(256, 512) by (512, 256): forward, the gradient by the input, the gradient by the kernel."""
    assert found["products"] == [[256, 256, 512, 1], [256, 512, 256, 2]]


def test_every_way_to_multiply_multiplies(found: dict[str, Any]) -> None:
    assert len(found["ways"]) == 2
    assert max(found["ways"]) < 1e-6
