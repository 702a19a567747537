"""The parts of a transformer: torch's against the NumPy reference, and the properties of attention."""

from __future__ import annotations

import math
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.models import Shapes, built, weights
from pipeline.models.gpt import Gpt
from pipeline.models.transformer import Block, positions, reference
from pipeline.models.transformer.torch_parts import Attention
from pipeline.report import attention
from pipeline.report.canvas import canvas

VOCABULARY, LENGTH, WIDTH = 19, 12, 32
SHAPES = Shapes((LENGTH,), (LENGTH, VOCABULARY), vocabulary=VOCABULARY)
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (3, LENGTH))
KINDS: dict[str, dict[str, Any]] = {
    "as it ships": {},
    "Llama's": {"positions": "rotary", "key_heads": 2, "norm": "rms", "activation": "swiglu", "tied": True},
    "speed-run": {"positions": "rotary", "activation": "relu2", "normed_heads": True, "soft_cap": 3.0, "norm": "rms"},
    "of 2017": {"positions": "sinusoidal", "norm_place": "after", "bias": True},
    "linear": {"positions": "linear", "norm_place": "after", "norm": "rms"},
    "none": {"positions": "none"},
}


@pytest.fixture(autouse=True)
def _float64() -> Any:
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # sizes are tiny
    yield
    torch.set_default_dtype(before)
    torch.set_num_threads(threads)


def net_of(seed: int = 1, **settings: Any) -> tuple[torch.nn.Module, dict[str, np.ndarray], Gpt]:
    """A small GPT with random weights, which are larger than those of a start."""
    model = Gpt(layers=2, heads=4, width=WIDTH, **settings)
    net = model.torch(SHAPES).eval()
    generator = np.random.default_rng(seed)
    values = {name: generator.normal(0, 0.3, array.shape) for name, array in weights.from_torch(net).items()}
    weights.to_torch(net, values, "test")
    return net, values, model


def logits_of(net: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
    """(B, T, V)."""
    with torch.no_grad():
        return np.asarray(net(torch.from_numpy(tokens)).numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_torch_computes_the_formulas(kind: str) -> None:
    net, values, model = net_of(**KINDS[kind])
    expected = reference.gpt(TOKENS, values, model.decoder())
    np.testing.assert_allclose(logits_of(net, TOKENS), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_token_changes_nothing_before_it(kind: str) -> None:
    net, _, _ = net_of(**KINDS[kind])
    other = TOKENS.copy()
    other[:, 7:] = (other[:, 7:] + 1) % VOCABULARY
    before, after = logits_of(net, TOKENS), logits_of(net, other)
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert np.abs(before[:, 7:] - after[:, 7:]).max() > 1e-3


def test_without_positions_attention_does_not_know_the_order() -> None:
    """The last position sees a set: its logits stay when the tokens before it change places; with positions not."""
    order = np.r_[np.random.default_rng(0).permutation(LENGTH - 1), LENGTH - 1]
    for kind in ("none", "linear", "sinusoidal", "learned", "rotary"):
        net, _, _ = net_of(positions=kind)
        one_block = net.blocks[:1]  # type: ignore[index]
        net.blocks = one_block
        change = np.abs(logits_of(net, TOKENS)[:, -1] - logits_of(net, TOKENS[:, order])[:, -1]).max()
        assert (change < 1e-12) == (kind == "none"), kind


def test_a_position_that_attends_to_none_gets_zeros_and_finite_gradients() -> None:
    (q, k, v), seen = a_mask()
    expected = reference.attention(q, k, v, seen)
    assert not expected[:, :, 2].any()
    asked = query, key, value = [torch.tensor(one, requires_grad=True) for one in (q, k, v)]
    mask = torch.from_numpy(seen)
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-12)
    found.square().sum().backward()
    for one in asked:
        assert one.grad is not None and torch.isfinite(one.grad).all()


@pytest.mark.parametrize("settings", [{}, {"key_heads": 2}, {"normed_heads": True, "rotary": True}])
def test_a_layer_of_attention_gives_zeros_where_nothing_is_seen(settings: dict[str, Any]) -> None:
    """Its output has no bias, so that a position that attends to none adds nothing to what it was."""
    layer = Attention(Block(**{"width": WIDTH, "heads": 4, "key_heads": 4, "hidden": 8, **settings}), 5)
    x = torch.tensor(np.random.default_rng(0).normal(size=(2, 5, WIDTH)), requires_grad=True)
    found = layer(x, seen=torch.from_numpy(a_mask()[1]))
    assert not found[:, 2].any()
    assert found[:, [0, 1, 3, 4]].abs().sum(-1).min() > 0
    found.square().sum().backward()
    for name, one in {"x": x, **dict(layer.named_parameters())}.items():
        assert one.grad is not None and torch.isfinite(one.grad).all(), name


@given(scores=st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=6), data=st.data())
def test_weights_of_attention_add_up_to_one_or_to_zero(scores: list[float], data: st.DataObject) -> None:
    seen = np.array(data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))))
    found = reference.softmax(np.array(scores), seen)
    assert found.sum() == pytest.approx(1.0 if seen.any() else 0.0)
    assert not found[~seen].any()


def test_several_heads_are_those_of_torchs_own_layer() -> None:
    block = Block(width=WIDTH, heads=4, key_heads=4, hidden=8, bias=True, causal=False)
    ours = Attention(block, LENGTH).eval()
    theirs = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True).eval()
    with torch.no_grad():
        torch.nn.init.normal_(theirs.in_proj_bias)
        for part, layer in enumerate((ours.query, ours.key, ours.value)):
            rows = slice(part * WIDTH, (part + 1) * WIDTH)
            layer.weight.copy_(theirs.in_proj_weight[rows])
            layer.bias.copy_(theirs.in_proj_bias[rows])
        ours.output.load_state_dict(theirs.out_proj.state_dict())
        x, other = torch.randn(2, 7, WIDTH), torch.randn(2, 5, WIDTH)
        torch.testing.assert_close(ours(x), theirs(x, x, x)[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(ours(x, other), theirs(x, other, other)[0], rtol=0, atol=1e-12)
        seen = torch.tril(torch.ones(7, 7, dtype=torch.bool))
        masked = theirs(x, x, x, attn_mask=~seen)[0]
        torch.testing.assert_close(ours(x, seen=seen), masked, rtol=0, atol=1e-12)


def a_mask() -> tuple[list[np.ndarray], np.ndarray]:
    """q, k and v, and a mask by which position 2 attends to none."""
    seen = np.tril(np.ones((5, 5), bool))
    seen[2] = False
    return [np.random.default_rng(seed).normal(size=(2, 3, 5, 4)) for seed in range(3)], seen


@pytest.fixture(scope="module")
def in_keras(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What tests/in_transformer.py finds, by backend."""
    found: dict[str, dict[str, Any]] = {}
    qkv, seen = a_mask()
    generator = np.random.default_rng(0)
    asked = {
        "kinds": {kind: settings_and_weights(**settings) for kind, settings in KINDS.items()},
        "shapes": SHAPES,
        "tokens": TOKENS,
        "qkv": qkv,
        "seen": seen,
        "block": Block(width=WIDTH, heads=2, key_heads=2, hidden=8, bias=True, causal=False),  # TensorFlow rounds 1/√8
        "x": generator.normal(size=(2, 7, WIDTH)),
        "other": generator.normal(size=(2, 5, WIDTH)),
        "seen_of_x": np.tril(np.ones((7, 7), bool)),
    }

    def of(backend: str) -> dict[str, Any]:
        if backend not in found:
            folder = tmp_path_factory.mktemp(backend)
            (folder / "asked").write_bytes(pickle.dumps(asked))
            script = Path(__file__).with_name("in_transformer.py")
            command = [sys.executable, str(script), backend, str(folder / "asked"), str(folder / "found")]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            assert ended.returncode == 0, ended.stderr[-3000:]
            found[backend] = pickle.loads((folder / "found").read_bytes())
        return found[backend]

    return of


def settings_and_weights(**settings: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Of a small GPT, for another process."""
    _, values, _ = net_of(**settings)
    return {"layers": 2, "heads": 4, "width": WIDTH, **settings}, values


KERAS = ("jax", "tensorflow")


@pytest.mark.wide
@pytest.mark.parametrize("backend", KERAS)
def test_keras_computes_the_formulas(in_keras: Callable[[str], dict[str, Any]], backend: str) -> None:
    found = in_keras(backend)["logits"]
    assert found.keys() == KINDS.keys()
    for kind, logits in found.items():
        _, values, model = net_of(**KINDS[kind])
        expected = reference.gpt(TOKENS, values, model.decoder())
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-12, err_msg=kind)


@pytest.mark.wide
@pytest.mark.parametrize("backend", KERAS)
def test_keras_gives_zeros_where_nothing_is_seen(in_keras: Callable[[str], dict[str, Any]], backend: str) -> None:
    (q, k, v), seen = a_mask()
    found = in_keras(backend)
    np.testing.assert_allclose(found["attention"], reference.attention(q, k, v, seen), rtol=0, atol=1e-12)
    assert not found["attention"][:, :, 2].any()
    assert [np.isfinite(one).all() for one in found["gradients"]] == [True] * 3


@pytest.mark.wide
@pytest.mark.parametrize("backend", KERAS)
def test_several_heads_are_those_of_keras_own_layer(in_keras: Callable[[str], dict[str, Any]], backend: str) -> None:
    found = in_keras(backend)["heads"]
    assert found
    for ours, theirs in found:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rotary", [False, True])
def test_attention_to_all_moves_with_its_input(rotary: bool) -> None:
    """Permuted positions in, permuted positions out; with rotary positions not."""
    block = Block(width=WIDTH, heads=4, key_heads=2, hidden=8, causal=False, rotary=rotary)
    attention, order = Attention(block, LENGTH).eval(), torch.randperm(LENGTH, generator=torch.manual_seed(0))
    x = torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad():
        change = (attention(x)[:, order] - attention(x[:, order])).abs().max()
    assert (change < 1e-12) == (not rotary)


def test_what_the_page_shows_of_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Its few lines of NumPy: permuted positions in, permuted positions out, unless a mask tells them apart."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "transformer.md").read_text()
    (lines,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(lines, {})
    to_all, masked = map(float, capsys.readouterr().out.split())
    assert to_all < 1e-14 and masked > 0.1
    assert "4e-16" in lines and f"{masked:.0e}" in lines


def test_padding_that_is_masked_changes_nothing() -> None:
    block = Block(width=WIDTH, heads=4, key_heads=4, hidden=8, causal=False)
    attention, x = Attention(block, LENGTH).eval(), torch.randn(3, LENGTH, WIDTH)
    lengths = torch.tensor([5, 1, LENGTH])
    seen = (torch.arange(LENGTH) < lengths[:, None])[:, None, None, :]
    with torch.no_grad():
        padded = attention(x, seen=seen)
        for number, length in enumerate(lengths.tolist()):
            alone = attention(x[number : number + 1, :length])
            torch.testing.assert_close(padded[number : number + 1, :length], alone, rtol=0, atol=1e-12)


def test_one_batch_is_learned_by_heart() -> None:
    torch.manual_seed(0)
    net = Gpt(layers=2, heads=4, width=WIDTH).torch(SHAPES)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    inputs, targets = torch.from_numpy(TOKENS[:, :-1]), torch.from_numpy(TOKENS[:, 1:])
    for _ in range(150):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.01


def test_rotary_positions_see_only_distances() -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 1, 8))
    turned = reference.turned(np.repeat(x, LENGTH, axis=2))[0, 0]
    products = turned @ turned.T
    for distance in range(LENGTH):
        along = np.diagonal(products, distance)
        np.testing.assert_allclose(along, along[0], atol=1e-12)


def test_sinusoidal_positions_are_those_of_vaswani() -> None:
    table = positions.sinusoidal(50, 16)
    for position, number in ((0, 0), (7, 4), (49, 15)):
        angle = position / 10000 ** ((number - number % 2) / 16)
        assert table[position, number] == pytest.approx((math.cos if number % 2 else math.sin)(angle))


@pytest.mark.parametrize("settings", [{}, {"tied": True}, {"zero_projections": True, "positions": "rotary"}])
def test_a_fresh_model_has_the_loss_of_a_guess(settings: dict[str, Any]) -> None:
    model = Gpt(layers=2, heads=4, width=WIDTH, **settings)
    net = model.torch(SHAPES).eval()
    drawn = weights.initial(weights.from_torch(net), seed=0)
    weights.to_torch(net, {name: model.first_value(name, array) for name, array in drawn.items()}, "test")
    targets = np.random.default_rng(1).integers(0, VOCABULARY, (200, LENGTH))
    inputs = np.random.default_rng(2).integers(0, VOCABULARY, (200, LENGTH))
    found = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits_of(net, inputs)).flatten(0, 1), torch.from_numpy(targets).flatten()
    )
    assert float(found) == pytest.approx(math.log(VOCABULARY), rel=0.02)


@pytest.mark.wide
@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
def test_the_page_of_attention_names_no_token_without_a_weight(tmp_path: Path) -> None:
    """The first token of a text "attends most to" two that come after it, with 0.00 each."""
    second_of_three = np.array([[[[1.0, 0, 0], [0.25, 0.75, 0], [0, 1, 0]]]])
    attention.page(tmp_path / "attention.html", second_of_three, ["a", "b", "c"], "a model")
    browser = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
    command = [*browser, "--enable-logging=stderr", "--dump-dom", (tmp_path / "attention.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "CONSOLE" not in shown.stderr
    said = re.findall(r'<p id="said"[^>]*>(.*?)</p>', shown.stdout)
    assert said == ["layer 0, head 0: token 2 (c) attends most to 1 (b) 1.00"]


def test_the_figure_of_attention_has_a_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = canvas(6, 4)
    monkeypatch.setattr(attention, "canvas", lambda *_: drawn)
    attention.figure(tmp_path / "attention.png", np.full((2, 3, LENGTH, LENGTH), 1 / LENGTH), "a model")
    *maps, scale = drawn.axes
    assert len(maps) == 2 * 3 and all(axes.images[0].norm is attention.SCALE for axes in maps)
    assert scale.get_ylabel() == "attention weight" and scale.get_ylim() == (0, 1)


@pytest.mark.parametrize("count", [5, 60])
def test_the_figure_of_attention_says_of_which_text_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The tokens at the axes, or the text below where they are too many to be read; no sign of it is mathematics."""
    drawn, tokens = canvas(6, 4), ["$", " ", "a", "\n", "$"] * (count // 5)
    monkeypatch.setattr(attention, "canvas", lambda *_: drawn)
    attention.figure(tmp_path / "attention.png", np.full((4, 4, count, count), 1 / count), "a", tokens, tokens)
    first = drawn.axes[0]
    labels = [[label.get_text() for label in axis.get_ticklabels()] for axis in (first.xaxis, first.yaxis)]
    assert labels == [["$", "␣", "a", "↵", "$"] * (count == 5)] * 2
    assert drawn.get_supxlabel().replace("\n", "") == "" if count == 5 else "$ a↵$" * 12
    edge = min(axes.yaxis.label.get_window_extent().x0 for axes in drawn.axes[:16:4])
    assert edge > 5  # pixels


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"width": 30}, "width=30: not divisible by model.heads=4"),
        ({"heads": 4, "key_heads": 3}, "key_heads=3: model.heads=4 cannot share them evenly"),
        (
            {"width": 12, "positions": "rotary"},
            "positions=rotary: needs heads of an even width, not 3; .* model.heads=3",
        ),
        ({"width": 2**32 - 5, "heads": 2}, "nearest that fits is model.heads=1"),  # a prime: half a minute went by
    ],
)
def test_sizes_that_do_not_fit(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Gpt(**settings)


def test_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"^model: takes tokens, and the examples of this dataset have shape"):
        built(Gpt().torch, Shapes((8, 8, 1), (10,)))
