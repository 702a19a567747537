"""The parts of a transformer: torch's against the NumPy reference, and the properties of attention."""

from __future__ import annotations

import math
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
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


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
    q, k, v = (np.random.default_rng(seed).normal(size=(2, 3, 5, 4)) for seed in range(3))
    seen = np.tril(np.ones((5, 5), bool))
    seen[2] = False
    expected = reference.attention(q, k, v, seen)
    assert not expected[:, :, 2].any()
    asked = query, key, value = [torch.tensor(one, requires_grad=True) for one in (q, k, v)]
    mask = torch.from_numpy(seen)
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-12)
    found.square().sum().backward()
    assert all(torch.isfinite(one.grad).all() for one in asked if one.grad is not None)


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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"width": 30}, "width=30: not divisible by heads=4"),
        ({"heads": 4, "key_heads": 3}, "key_heads=3: heads=4 cannot share them evenly"),
        ({"width": 12, "positions": "rotary"}, "positions=rotary: needs heads of an even width, not 3"),
    ],
)
def test_sizes_that_do_not_fit(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Gpt(**settings)


def test_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"^model: takes tokens, and the examples of this dataset have shape"):
        built(Gpt().torch, Shapes((8, 8, 1), (10,)))
