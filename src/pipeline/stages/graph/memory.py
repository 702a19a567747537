"""What a process of stage=graph needs at least, before any of it is allocated."""

from __future__ import annotations

from pipeline.backends.shared.two_layer import Sizes

BYTES = 8  # of a float64
OF_A_STEP = 4  # of the hidden layer's size: before and after the relu, its gradient, and which numbers are above 0
PAIRS = 3  # of weights: those of the start, those that a form holds, and their gradients


def needed_bytes(sizes: Sizes, kept: int) -> int:
    """Of one of the processes that hold the net at the same time, with `kept` pairs of weights to compare with."""
    n, d_in, h, d_out = sizes
    data, weights, hidden = n * (d_in + d_out), d_in * h + h * d_out, n * h
    return BYTES * (data + (PAIRS + kept) * weights + OF_A_STEP * hidden)
