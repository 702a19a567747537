"""What language models are compared with: n-grams against the formula written plainly, and a compressor."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.baselines import compression, kneser_ney
from pipeline.datasets.moby_dick import MobyDick
from pipeline.machine.cache_folder import cache_root

TEXT = b"how much wood would a woodchuck chuck if a woodchuck could chuck wood? as much wood as it would. " * 3


def as_array(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def plain_model(train: bytes, order: int) -> Callable[[bytes, int], float]:
    """p(byte after history), from dictionaries: Chen and Goodman's formulas one by one."""
    padded = b"\n" * (order - 1) + train
    grams = [padded[end - order : end] for end in range(order, len(padded) + 1)]
    counts: dict[int, Counter[bytes]] = {order: Counter(grams)}
    for size in range(order - 1, 0, -1):
        counts[size] = Counter(gram[1:] for gram in counts[size + 1])

    def discount(size: int, count: int) -> float:
        n = Counter(counts[size].values())
        if not all(n[number] for number in (1, 2, 3, 4)):
            return 0.75 if count else 0.0
        y, k = n[1] / (n[1] + 2 * n[2]), min(count, 3)
        return max(k - (k + 1) * y * n[k + 1] / n[k], 0.1) if k else 0.0

    followers: dict[bytes, list[bytes]] = defaultdict(list)
    for size in counts:
        for gram in counts[size]:
            followers[b"%d:" % size + gram[:-1]].append(gram)

    def p(history: bytes, byte: int) -> float:
        size = len(history) + 1
        below = 1 / 256 if size == 1 else p(history[1:], byte)
        after = followers[b"%d:" % size + history]
        if not after:
            return below
        count = counts[size][history + bytes([byte])]
        spared = sum(discount(size, counts[size][gram]) for gram in after)
        return (count - discount(size, count) + spared * below) / sum(counts[size][gram] for gram in after)

    return p


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_n_grams_are_those_of_the_formula(order: int) -> None:
    test = b"would a wood chuck? zzz \xff"
    p, padded = plain_model(TEXT, order), b"\n" * (order - 1) + test
    expected = [p(padded[place : place + order - 1], byte) for place, byte in enumerate(test)]
    found = kneser_ney.probabilities(as_array(TEXT), as_array(test), order)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    bits = -sum(map(math.log2, expected)) / len(test)
    assert kneser_ney.bits_per_byte(as_array(TEXT), as_array(test), order) == pytest.approx(bits)


@given(train=st.binary(min_size=1, max_size=60), before=st.binary(min_size=4, max_size=4), order=st.integers(1, 5))
def test_all_bytes_that_may_come_next_have_probability_one_together(train: bytes, before: bytes, order: int) -> None:
    every = b"".join(before + bytes([byte]) for byte in range(256))
    ends = kneser_ney.probabilities(as_array(train), as_array(every), order)[4::5]
    assert ends.min() > 0
    assert ends.sum() == pytest.approx(1)


def test_more_context_predicts_better() -> None:
    half = len(TEXT) // 2
    first, third = (kneser_ney.bits_per_byte(as_array(TEXT[:half]), as_array(TEXT[half:]), order) for order in (1, 3))
    assert third < first / 2 < 4


def test_a_compressor_knows_what_it_was_trained_on() -> None:
    noise = np.random.default_rng(0).bytes(20_000)
    assert compression.bits_per_byte(noise, noise) < 0.2
    assert compression.bits_per_byte(noise, np.random.default_rng(1).bytes(20_000)) == pytest.approx(8, rel=0.02)


@pytest.mark.parametrize(
    ("train", "order", "said"), [(b"", 3, "0 bytes to count"), (b"a", 9, "order=9: choose 1 to 8")]
)
def test_what_cannot_be_counted_is_refused(train: bytes, order: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kneser_ney.bits_per_byte(as_array(train), as_array(b"a"), order)


@pytest.mark.slow
def test_what_moby_dick_comes_to() -> None:
    """The figures of docs/transformer.md. Slow, since it fetches the text."""
    text = MobyDick().texts(MobyDick().documents(cache_root(None)), 0)
    before, test = bytes(text.train) + bytes(text.validation), bytes(text.test)
    found = {order: kneser_ney.bits_per_byte(as_array(before), as_array(test), order) for order in (3, 5)}
    assert found == {3: pytest.approx(2.8573, abs=1e-4), 5: pytest.approx(2.1404, abs=1e-4)}
    assert compression.bits_per_byte(before, test) == pytest.approx(2.535, abs=0.01)
