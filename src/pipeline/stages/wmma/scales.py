"""Which alpha and beta leave D in the range of the numbers that it has: beyond it every kernel would be wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_DOWN, Context

import numpy as np

from pipeline.errors import UserError
from pipeline.kernels.gemm import DTYPES, Gemm

# Numbers of A, B and C lie in [-1, 1], so that products of two of them go down to 2^-48 or so: smaller scales give
# subnormal float32 numbers (below 2^-126), whose relative error is not bounded.
LEAST = 1e-23
OF_INT8 = 128  # that A, B and C hold at most
SPREAD = OF_INT8**2 / 3  # standard deviation of a product of two uniform ones
WORST = 8  # standard deviations that a sum of products does not exceed


def check_scales(problems: Sequence[Gemm]) -> None:
    """Raises UserError with the bound, by the longest K."""
    longest = max(problems, key=lambda gemm: gemm.k)
    for name, scale, factor in (
        ("alpha", longest.alpha, _largest_sum(longest)),
        ("beta", longest.beta, OF_INT8 if longest.dtype == "int8" else 1.0),
    ):
        most = _rounded_down(_largest(longest) / 2 / factor)  # half for each of the two terms
        if abs(scale) > most:
            of_k = f" with K={longest.k}" if name == "alpha" else ""
            raise UserError(
                f"stage.{name}={scale:g}: D would leave the range of {_kept_in(longest)}; choose up to {most:g}{of_k}"
            )
        if 0 < abs(scale) < LEAST:
            raise UserError(
                f"stage.{name}={scale:g}: D would have subnormal numbers of {_kept_in(longest)}; choose 0, or "
                f"{LEAST:g} and more"
            )


def _largest_sum(gemm: Gemm) -> float:
    """Of K products: what it can be, of int8 what a sum of random ones is not above."""
    return WORST * SPREAD * math.sqrt(gemm.k) if gemm.dtype == "int8" else float(gemm.k)


def _largest(gemm: Gemm) -> float:
    """The largest finite number that the result's dtype holds."""
    out = np.dtype(DTYPES[gemm.dtype].out)
    return float(np.finfo(out).max if out.kind == "f" else np.iinfo(out).max)


def _kept_in(gemm: Gemm) -> str:
    return np.dtype(DTYPES[gemm.dtype].out).name


def _rounded_down(value: float) -> float:
    """To three digits, so that the bound that is said is the bound."""
    return float(Context(prec=3, rounding=ROUND_DOWN).create_decimal_from_float(value))
