"""Generation: the same tokens with a cache as without, on every backend; how tokens are chosen; stage=generate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from in_generation import KINDS, Compared, compared

from pipeline.backends.shared.generation import generate
from pipeline.backends.shared.sampling import Sampling

HERE = Path(__file__).parent
SAME = 1e-12  # of logits in float64


def hold(name: str, found: Compared) -> None:
    assert found.from_uncached < SAME, name
    assert found.from_alone < SAME, name
    assert found.from_formulas < SAME, name
    assert found.same_tokens, name
    assert found.same_alone, name
    assert found.moved > 1, name  # so that windows that move are compared too


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_changes_no_token_and_no_logit_on_torch(kind: str) -> None:
    hold(kind, compared("torch", KINDS[kind]))


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_cache_changes_no_token_and_no_logit_in_keras(backend: str, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, str(HERE / "in_generation.py"), backend, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(file.read_text())
    assert found.keys() == KINDS.keys()
    for name, one in found.items():
        hold(name, Compared(**one))


class Next:
    """Steps that want the token after the last one, and keep what they were asked."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.windows: list[list[list[int]]] = []

    def prefill(self, tokens_BT: np.ndarray, lengths_B: np.ndarray, /) -> np.ndarray:
        rows = zip(tokens_BT, lengths_B, strict=True)
        self.now = [[int(token) for token in tokens[:length]] for tokens, length in rows]
        return self._wanted()

    def step(self, tokens_B: np.ndarray, at_B: np.ndarray, /) -> np.ndarray:
        for window, token, at in zip(self.now, tokens_B, at_B, strict=True):
            window[at:] = [int(token)]
        return self._wanted()

    def _wanted(self) -> np.ndarray:
        self.windows.append([list(window) for window in self.now])
        return np.array([np.eye(self.vocabulary)[(window[-1] + 1) % self.vocabulary] for window in self.now])


def test_every_token_sees_all_before_it_up_to_the_context_and_half_of_it_at_least() -> None:
    steps = Next(1000)
    prompts = [np.array([0]), np.array([100, 101, 102, 103, 104, 105])]
    found = generate(steps, prompts, 6, 20, Sampling(temperature=0))
    assert [row.tokens for row in found.rows] == [list(range(21)), list(range(100, 126))]
    for number, windows in enumerate(steps.windows[1:]):  # the first prefill is done twice
        for prompt, window in zip(prompts, windows, strict=True):
            last = int(prompt[-1]) + number
            assert window == list(range(last - len(window) + 1, last + 1))
            assert len(window) in range(3, 7) or window[0] == prompt[0]
    assert [row.moved for row in found.rows] == [4, 5]
    assert len(found.prefill_s) + len(found.step_s) == len(found.choose_s) == 20


def test_a_row_that_ends_leaves_the_others_alone() -> None:
    prompts = [np.array([0]), np.array([50, 51])]

    def ended(row: int, token: int) -> str | None:
        return "enough" if row == 0 and token == 3 else None

    found = generate(Next(100), prompts, 4, 9, Sampling(temperature=0), ended)
    assert [row.tokens for row in found.rows] == [list(range(4)), list(range(50, 61))]
    assert [row.ended for row in found.rows] == ["enough", None]
    both = generate(Next(100), prompts, 4, 9, Sampling(temperature=0), lambda *_: "at once")
    assert [len(row.tokens) for row in both.rows] == [2, 3]


LOGITS = arrays(np.float64, (2, 7), elements=st.floats(-20, 20))


@given(logits=LOGITS, temperature=st.floats(0.1, 10), seed=st.integers(0, 2**32 - 1))
def test_probabilities_are_those_of_the_softmax(logits: np.ndarray, temperature: float, seed: int) -> None:
    order, likely = Sampling(temperature, seed=seed).likely(logits)
    powers = np.exp(logits / temperature - (logits / temperature).max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(likely, np.take_along_axis(expected, order, axis=1), atol=1e-12)
    assert (np.diff(likely, axis=1) <= 0).all()


@given(logits=LOGITS, top_k=st.integers(1, 7), top_p=st.floats(0.01, 1), seed=st.integers(0, 100))
def test_what_is_left_out_is_never_chosen(logits: np.ndarray, top_k: int, top_p: float, seed: int) -> None:
    sampling = Sampling(1.0, top_k, top_p, seed)
    order, likely = sampling.likely(logits)
    _, among_k = Sampling(1.0, top_k).likely(logits)
    for row in range(2):
        kept = int((likely[row] > 0).sum())
        assert kept <= top_k
        assert kept == 1 or among_k[row, : kept - 1].sum() < top_p + 1e-12  # without the last they do not reach it
        assert among_k[row, :kept].sum() > top_p - 1e-12 or kept == top_k
        assert likely[row].sum() == pytest.approx(1)
        assert sampling.choose(logits, 0)[row] in order[row, :kept]


@given(logits=LOGITS)
def test_greedy_is_the_limit_of_a_low_temperature_and_of_one_token(logits: np.ndarray) -> None:
    greedy = Sampling(temperature=0).choose(logits, 0)
    np.testing.assert_array_equal(greedy, Sampling(top_k=1).choose(logits, 0))
    np.testing.assert_array_equal(greedy, Sampling(top_p=1e-9).choose(logits, 0))
    assert all(logits[row, token] == logits[row].max() for row, token in enumerate(greedy))


def test_draws_follow_the_probabilities_and_depend_on_seed_row_and_number() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.2]] * 40))
    drawn = np.array([Sampling(seed=1).choose(logits, number) for number in range(100)])
    share = np.bincount(drawn.ravel(), minlength=3) / drawn.size
    np.testing.assert_allclose(share, [0.5, 0.3, 0.2], atol=4 * 0.5 / np.sqrt(drawn.size))
    np.testing.assert_array_equal(drawn[7], Sampling(seed=1).choose(logits, 7))
    np.testing.assert_array_equal(drawn[7, :3], Sampling(seed=1).choose(logits[:3], 7))  # whatever rows come after
    assert (drawn != [Sampling(seed=2).choose(logits, number) for number in range(100)]).any()
    assert len({tuple(row) for row in drawn}) == 100
