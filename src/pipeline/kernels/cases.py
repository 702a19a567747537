"""The classes of problems that every kernel is verified on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.kernels.gemm import Gemm, Order, Values


def cases(dtype: str, order: Order | None = None) -> Iterator[tuple[str, Gemm, Values, bool]]:
    """The classes of problems that a kernel is verified on: (what it tries, problem, values, C is NaN).

    A kernel's `refusal` says which of them it does not take.
    """
    whole = dtype == "int8"
    half = -2.0 if whole else -0.5
    for one in ("column", "row") if order is None else (order,):
        base = Gemm(m=1, n=1, k=1, dtype=dtype, order=one)
        for m, n, k in ((1, 1, 1), (1, 7, 3), (9, 1, 5), (16, 16, 16), (17, 15, 33), (64, 48, 80), (130, 67, 1)):
            yield "sizes", replace(base, m=m, n=n, k=k), "uniform", False
        yield "a long K", replace(base, m=24, n=40, k=600), "uniform", False
        odd = replace(base, m=37, n=53, k=71)
        yield "leading dimensions", replace(odd, pad=(3, 5, 7)), "uniform", False
        yield "leading dimensions", replace(base, m=64, n=32, k=48, pad=(32, 16, 64), beta=1.0), "uniform", False
        for alpha in (0.0, 1.0, half):
            for beta in (0.0, 1.0, half):
                yield "alpha, beta", replace(odd, alpha=alpha, beta=beta), "uniform", False
        if not whole:
            yield "NaN in C with beta 0", odd, "uniform", True
        even = replace(base, m=37, n=53, k=69, pad=(11, 11, 11))  # multiples of 16 in both orders
        for alpha, beta in ((1.0, 0.0), (half, 1.0), (0.0, half)):
            yield "even leading dimensions", replace(even, alpha=alpha, beta=beta), "uniform", not whole and not beta
        # A whole tile of the largest kernels, for which each has its fastest way; by rows as wide as by columns high.
        whole_tile = replace(base, m=128, n=256, k=128) if one == "column" else replace(base, m=256, n=128, k=128)
        yield "whole tiles", whole_tile, "uniform", not whole
        # For kernels of whole tiles alone it is one of few: no size or leading dimension stands in for another.
        yield "whole tiles", replace(whole_tile, k=256, pad=(16, 32, 64), alpha=half, beta=1.0), "uniform", False
        yield "integers", replace(odd, k=200, alpha=2.0, beta=-1.0, pad=(1, 2, 3)), "integers", False
