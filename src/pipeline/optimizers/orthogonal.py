"""Updates of matrices that are made orthogonal, for any framework's arrays (Jordan et al., "Muon", 2024)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MATRIX = "matrix"  # kinds of update: this one
ADAM = "adam"
# Of the odd polynomial that brings singular values from (0, 1] to about 1 in five steps.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
TINY = 1e-8  # beside a norm


@dataclass(frozen=True)
class Matrices:
    """How matrices are updated; `iterations`: of Newton and Schulz."""

    momentum: float
    nesterov: bool
    iterations: int
    weight_decay: float


def orthogonal(
    x: Any, transpose: Callable[[Any], Any], iterations: int, times: Callable[[float, Any], Any] = operator.mul
) -> Any:
    """Matrices (..., R, C) whose norm is at most 1, with singular values near 1 and the same singular vectors.

    Newton's and Schulz's iteration, of any framework's arrays: x <- a x + (b s + c s s) x with s = x x^T. `times`: a
    number times an array, in a framework that rounds the number to the array's dtype: an update of bfloat16 is up to
    3 % shorter with coefficients of bfloat16.
    """
    a, b, c = COEFFICIENTS
    tall = x.shape[-2] > x.shape[-1]  # the smaller of both products
    x = transpose(x) if tall else x
    for _ in range(iterations):
        square = x @ transpose(x)
        x = times(a, x) + (times(b, square) + times(c, square @ square)) @ x
    return transpose(x) if tall else x


def reach(inputs: int, outputs: int) -> float:
    """What an orthogonal update is multiplied by, so that activations change by as much whatever the shape is."""
    return math.sqrt(max(1.0, outputs / inputs))
