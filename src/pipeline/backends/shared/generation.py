"""Text, token by token: prompts of any lengths go through the model once, then each row gets one token a step.

A backend's `Steps` keeps the keys and values of what it has seen; `Uncached` computes all of the window for every token
and is what the others are compared with. Letters: B rows, T positions of a window, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from pipeline.backends.shared.sampling import Sampling
from pipeline.runs.fit import Predict

Ended = Callable[[int, int], str | None]  # (row, its new token) -> why the row ends with it, or None


class Steps(Protocol):
    """A model that goes on with a batch of windows. Logits are (B, V) float64, of each row's last token."""

    def prefill(self, tokens_BT: np.ndarray, lengths_B: np.ndarray, /) -> np.ndarray:
        """Begin with these windows; a row is filled up with zeros behind its length."""

    def step(self, tokens_B: np.ndarray, at_B: np.ndarray, /) -> np.ndarray:
        """One token more in each row, at position `at` of its window."""


class Uncached:
    """Steps without a cache. `padded`: to how many positions a window is filled up (None: it is not).

    The model has to be causal: a later token changes nothing before it.
    """

    def __init__(self, predict: Predict, context: int, padded: int | None) -> None:
        self.predict, self.context, self.padded = predict, context, padded

    def prefill(self, tokens_BT: np.ndarray, lengths_B: np.ndarray, /) -> np.ndarray:
        batch, length = tokens_BT.shape
        self.tokens_BT = np.zeros((batch, self.context), np.int32)
        self.tokens_BT[:, :length] = tokens_BT
        return self._after(lengths_B - 1)

    def step(self, tokens_B: np.ndarray, at_B: np.ndarray, /) -> np.ndarray:
        self.tokens_BT[np.arange(len(at_B)), at_B] = tokens_B
        return self._after(at_B)

    def _after(self, at_B: np.ndarray) -> np.ndarray:
        window_BT = self.tokens_BT[:, : self.padded or int(at_B.max()) + 1]
        after_BV: np.ndarray = self.predict(np.ascontiguousarray(window_BT))[np.arange(len(at_B)), at_B]
        return after_BV


@dataclass
class Row:
    """One text in the making. `begin`: of its window; the model no longer sees what comes before. `moved`: how often.

    `ended`: why it got no more tokens before it had all.
    """

    tokens: list[int]
    context: int
    begin: int = 0
    moved: int = 0
    ended: str | None = None

    @property
    def window(self) -> list[int]:
        """The tokens that the model sees: at most `context` of them."""
        return self.tokens[self.begin : self.begin + self.context]

    def move(self) -> bool:
        """Begin anew with the newer half of the context, where the window has become longer than it is."""
        if self.ended or len(self.tokens) - self.begin <= self.context:
            return False
        self.begin, self.moved = len(self.tokens) - max(1, self.context // 2), self.moved + 1
        return True


@dataclass
class Generated:
    """`rows`: the texts. `prompted`: tokens of the prompts. `generated`: tokens that were made.

    Seconds: `first_s` of the prefills and the step before all others, which compile; `prefill_s` of the prompts;
    `moved_s` of each time that windows moved; `step_s` of each step; `choose_s` of
    choosing the tokens of each step.
    """

    rows: list[Row]
    generated: int = 0
    prompted: int = 0
    first_s: float = 0.0
    prefill_s: list[float] = field(default_factory=list)
    moved_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    choose_s: list[float] = field(default_factory=list)


def generate(
    steps: Steps,
    prompts: Sequence[np.ndarray],
    context: int,
    count: int,
    sampling: Sampling,
    ended: Ended | None = None,
    check: Callable[[np.ndarray], None] | None = None,
) -> Generated:
    """Up to `count` tokens behind each prompt (1 to `context` tokens). `check`: sees the logits of each step.

    Before that come prefills of every length that there will be where no text ends early, and a step, in which
    frameworks compile and which leave nothing behind.
    """
    found = Generated([Row([int(token) for token in prompt], context) for prompt in prompts])
    started = time.perf_counter()
    for length in _moved_lengths(found.rows, count):
        steps.prefill(np.zeros((len(prompts), length), np.int32), np.full(len(prompts), length, np.int32))
    steps.prefill(*_windows(found.rows))
    if count > 1:
        steps.step(*_last(found.rows))
    found.first_s = time.perf_counter() - started
    found.prompted = sum(len(row.tokens) for row in found.rows)
    logits_BV = _timed(found.prefill_s, lambda: steps.prefill(*_windows(found.rows)))
    for number in range(count):
        if check is not None:
            check(logits_BV)
        chosen_B = _timed(found.choose_s, partial(sampling.choose, logits_BV, number))
        for index, (row, token) in enumerate(zip(found.rows, chosen_B, strict=True)):
            if row.ended is None:
                row.tokens.append(int(token))
                found.generated += 1
                row.ended = None if ended is None else ended(index, int(token))
        if number + 1 == count or all(row.ended for row in found.rows):
            break
        logits_BV = _next(steps, found)
    return found


def _moved_lengths(rows: Sequence[Row], count: int) -> list[int]:
    """How long the longest window is each time that one moves, where no text ends before it has `count` tokens."""
    trial = [Row([0] * len(row.tokens), row.context) for row in rows]
    found = set()
    for _ in range(count - 1):
        for row in trial:
            row.tokens.append(0)
        if sum(row.move() for row in trial):
            found.add(max(len(row.window) for row in trial))
    return sorted(found)


def _next(steps: Steps, found: Generated) -> np.ndarray:
    """The logits after each row's last token. A row that has ended goes on idly: its logits are not used."""
    rows = found.rows
    if sum(row.move() for row in rows):
        return _timed(found.moved_s, lambda: steps.prefill(*_windows(rows)))
    return _timed(found.step_s, lambda: steps.step(*_last(rows)))


def _last(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """The last tokens (B,) of the windows, and their positions (B,)."""
    windows = [row.window for row in rows]
    return np.array([one[-1] for one in windows], np.int32), np.array([len(one) - 1 for one in windows], np.int32)


def _windows(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Windows (B, T), filled up with zeros, and their lengths (B,)."""
    lengths_B = np.array([len(row.window) for row in rows], np.int32)
    tokens_BT = np.zeros((len(rows), lengths_B.max()), np.int32)
    for tokens_T, row in zip(tokens_BT, rows, strict=True):
        tokens_T[: len(row.window)] = row.window
    return tokens_BT, lengths_B


def _timed(into: list[float], work: Callable[[], np.ndarray]) -> np.ndarray:
    started = time.perf_counter()
    done = work()
    into.append(time.perf_counter() - started)
    return done
