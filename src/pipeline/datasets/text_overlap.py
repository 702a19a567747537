"""How much of one text occurs in another, at any position: by fingerprints, the hashes of some windows of bytes.

A window is taken where the hash of its beginning is small, so that equal passages give equal fingerprints (after
"winnowing": Schleimer, Wilkerson & Aiken, SIGMOD 2003; without its bound on the gaps).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.tokens import Content

WINDOW = 32  # bytes: texts that have nothing else in common seldom share so many
ONE_OF = 2**6  # windows
PIECE = 2**18  # bytes of text at a time, whose hashes stay in a processor's cache
LEAST = 0.02  # of a text: licences and headings occur in many
OPTIMISTIC = {
    "test": "the test result is optimistic",
    "validation": "validation is optimistic, and so is what is chosen by it",
}
BEGIN = 24  # bits of a hash
SHIFT = np.uint64(64 - BEGIN)
MIXED = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, and odd


def common(trained: Content, tested: Sequence[Content]) -> list[float]:
    """The share of each text of `tested` that occurs in `trained`, from 0 to 1, estimated from its fingerprints."""
    windows = [fingerprints(text) for text in tested]
    known = np.sort(np.concatenate(windows))
    there = np.zeros(len(known), bool)
    begins = np.zeros(2**BEGIN, bool)  # a quick look, before the search
    begins[known >> SHIFT] = True
    for hashes in _pieces(trained) if len(known) else ():  # which may be larger than memory
        near = hashes[begins[hashes >> SHIFT]]
        places = np.minimum(np.searchsorted(known, near), len(known) - 1)
        there[places[known[places] == near]] = True
    return [float(there[np.searchsorted(known, each)].mean()) if len(each) else 0.0 for each in windows]


def fingerprints(text: Content) -> np.ndarray:
    """Hashes (N,) uint64 of about one in ONE_OF of the windows of WINDOW bytes."""
    return np.concatenate([np.empty(0, np.uint64), *_pieces(text)])


def _pieces(text: Content) -> Iterator[np.ndarray]:
    for first in range(0, len(text) - WINDOW + 1, PIECE):
        piece = text[first : first + PIECE + WINDOW - 1]
        eights = np.ndarray((len(piece) - 7,), "<u8", piece, strides=(1,))  # the eight bytes from each place on
        begin = eights[: len(piece) - WINDOW + 1] * MIXED
        places = np.flatnonzero(begin < np.uint64(2**64 // ONE_OF))
        hashes = begin[places]
        for step in range(8, WINDOW, 8):
            hashes = (hashes ^ (hashes >> np.uint64(29)) ^ eights[places + step]) * MIXED
        yield hashes
