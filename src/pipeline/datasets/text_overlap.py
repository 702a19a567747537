"""How much of one text occurs in another, at any position: by fingerprints, the hashes of some windows of bytes.

A window is taken where the hash of its beginning is small, so that equal passages give equal fingerprints (after
"winnowing": Schleimer, Wilkerson & Aiken, SIGMOD 2003; without its bound on the gaps). Of texts up to AT_ONCE all
windows are taken: one in 64 misses what is there, and is off by ten points where few lines are much of a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.tokens import Content

WINDOW = 32  # bytes: texts that have nothing else in common seldom share so many
ONE_OF = 2**6  # windows, at most
AT_ONCE = 2**22  # bytes of a text, all of whose windows take a third of a second
FEW = 1000  # of a text, with fewer of which a share is given with their number
PIECE = 2**18  # bytes of text at a time, whose hashes stay in a processor's cache
LEAST = 0.02  # of a text: licences and headings occur in many
OPTIMISTIC = {
    "test": "the test result is optimistic",
    "validation": "validation is optimistic, and so is what is chosen by it",
}
BEGIN = 24  # bits of a hash
SHIFT = np.uint64(64 - BEGIN)
MIXED = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, and odd


class Common(NamedTuple):
    """The share of a text that occurs in another, from 0 to 1, by so many fingerprints; `whole`: of all its windows."""

    share: float
    windows: int
    whole: bool

    def __str__(self) -> str:
        few = not self.whole and self.windows < FEW
        return f"about {self.share:.0%}{f' (by {self.windows:,} samples alone)' if few else ''}"


def common(trained: Content, tested: Sequence[Content]) -> list[Common]:
    """What of each text of `tested` occurs in `trained`, estimated from its fingerprints."""
    one_of = sampled(max(len(text) for text in (trained, *tested)))
    windows = [counted(text, one_of) for text in tested]
    while one_of > 1 and any(_few(text, counts, one_of) for text, (_, counts) in zip(tested, windows, strict=True)):
        one_of //= 2
        windows = [counted(text, one_of) for text in tested]
    known = np.sort(np.concatenate([hashes for hashes, _ in windows]))  # of equal ones the first is found and looked at
    there = np.zeros(len(known), bool)
    begins = np.zeros(2**BEGIN, bool)  # a quick look, before the search
    begins[known >> SHIFT] = True
    for hashes in _pieces(trained, one_of) if len(known) else ():  # which may be larger than memory
        near = hashes[begins[hashes >> SHIFT]]
        places = np.minimum(np.searchsorted(known, near), len(known) - 1)
        there[places[known[places] == near]] = True
    found = []
    for hashes, counts in windows:
        both, every = int(counts[there[np.searchsorted(known, hashes)]].sum()), int(counts.sum())
        found.append(Common(both / every if every else 0.0, every, one_of == 1))
    return found


def _few(text: Content, counts: np.ndarray, one_of: int) -> bool:
    """Whether much fewer windows were taken than of most texts: one that repeats itself has few different ones."""
    return bool(counts.sum() < (len(text) - WINDOW + 1) / one_of / 4)


def counted(text: Content, one_of: int) -> tuple[np.ndarray, np.ndarray]:
    """The fingerprints that differ, sorted, and how often each occurs."""
    pieces = [np.unique(piece, return_counts=True) for piece in _pieces(text, one_of)]
    hashes = np.concatenate([np.empty(0, np.uint64), *(piece for piece, _ in pieces)])
    found, which = np.unique(hashes, return_inverse=True)
    times = np.concatenate([np.empty(0, np.int64), *(counts for _, counts in pieces)])
    return found, np.bincount(which, times, len(found)).astype(np.int64)


def sampled(largest: int) -> int:
    """Of how many windows one is taken, a power of 2, where the largest text has so many bytes."""
    return min(ONE_OF, 1 << (max(largest // AT_ONCE, 1).bit_length() - 1))


def _pieces(text: Content, one_of: int) -> Iterator[np.ndarray]:
    """The fingerprints, uint64: of about one in `one_of` of the windows, PIECE bytes of the text at a time."""
    for first in range(0, len(text) - WINDOW + 1, PIECE):
        piece = text[first : first + PIECE + WINDOW - 1]
        eights = np.ndarray((len(piece) - 7,), "<u8", piece, strides=(1,))  # the eight bytes from each place on
        begin = eights[: len(piece) - WINDOW + 1] * MIXED
        places = np.flatnonzero(begin <= np.uint64(2**64 // one_of - 1))
        hashes = begin[places]
        for step in range(8, WINDOW, 8):
            hashes = (hashes ^ (hashes >> np.uint64(29)) ^ eights[places + step]) * MIXED
        yield hashes
