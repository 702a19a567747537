"""How much of one text stands in another, wherever it stands there: by the fingerprints of some of its windows.

Their own beginnings decide which windows are taken, so that the same text has the same ones in both ("winnowing":
Schleimer, Wilkerson & Aiken, SIGMOD 2003; here without its bound on gaps).
"""

from __future__ import annotations

import numpy as np

from pipeline.tokens import Content

WINDOW = 32  # bytes: texts that have nothing else in common seldom share so many
ONE_OF = 2**6  # windows, the one whose beginning has such a hash
PIECE = 2**22  # bytes of text at a time
MIXED = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, and odd


def common(trained: Content, tested: Content) -> float:
    """The share of `tested`, from 0 to 1, that occurs in `trained`: of the windows by which a text is known."""
    windows = fingerprints(tested)
    return float(np.isin(windows, fingerprints(trained)).mean()) if len(windows) else 0.0


def fingerprints(text: Content) -> np.ndarray:
    """Hashes (N,) uint64 of windows of WINDOW bytes, one in about ONE_OF: the same ones wherever a text stands."""
    found = [np.empty(0, np.uint64)]
    for first in range(0, len(text) - WINDOW + 1, PIECE):
        piece = text[first : first + PIECE + WINDOW - 1]
        eights = np.ndarray((len(piece) - 7,), "<u8", piece, strides=(1,))  # the eight bytes from each place on
        begin = eights[: len(piece) - WINDOW + 1] * MIXED
        places = np.flatnonzero(begin < np.uint64(2**64 // ONE_OF))
        hashes = begin[places]
        for step in range(8, WINDOW, 8):
            hashes = (hashes ^ (hashes >> np.uint64(29)) ^ eights[places + step]) * MIXED
        found.append(hashes)
    return np.concatenate(found)
