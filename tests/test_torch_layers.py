"""torch modules of our own against torch's, in a process of their own: what is quicker must not be something else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json
import torch
from torch import nn
from pipeline.models import Shapes
from pipeline.models.mnist_cnn import MnistCnn
from pipeline.models.torch_layers import Dropout

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

images = torch.randn(8, 12, 12, 1)
for activation in ("relu", "gelu"):
    model = MnistCnn(filters=(3, 4), units=6, activation=activation, dropout_features=0, dropout_units=0)
    net = model.torch(Shapes((12, 12, 1), 8))
    pool = next(i for i, layer in enumerate(net) if isinstance(layer, nn.MaxPool2d))
    first = pool if activation != "gelu" else pool - 1
    swapped = [*range(first), first + 1, first, *range(first + 2, len(net))]
    same = zip(trained(net, range(len(net))), trained(model.torch(Shapes((12, 12, 1), 8)), swapped))
    found[activation] = [pool, all(torch.equal(a, b) for a, b in same)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("rate", [0.25, 0.3, 0.999999])
def test_a_dropout_drops_its_share_and_scales_the_rest(found: dict[str, Any], rate: float) -> None:
    told, n = found[str(rate)], 500_000
    within = 5 * (rate * (1 - rate) / n) ** 0.5 + 2**-16
    assert told["dropped"] == pytest.approx(rate, abs=within)
    assert told["values"] == pytest.approx([0, 2**16 / max(round(2**16 * (1 - rate)), 1)])
    assert told["gradient"] and told["same again"] and told["evaluating"]
    if rate < 0.9:  # elements of one draw must not go together
        assert told["neighbours"] == pytest.approx((1 - rate) ** 2, abs=0.005)


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
