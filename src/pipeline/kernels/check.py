"""What a correct D is: a kernel's against float64, element by element or, of a large one, by sums over random signs.

Error bounds: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.errors import plural
from pipeline.kernels.gemm import Gemm, Operands, decode, margin_of, matrix, poison_of_d, views

# Of a dtype, the coarser one in which sums may have been kept by mistake, and its unit roundoff.
COARSER = {
    "fp32": ("tf32", 2.0**-11),
    "tf32": ("fp16", 2.0**-11),
    "fp16": ("fp16", 2.0**-11),
    "bf16": ("bf16", 2.0**-8),
}
SUMS = 8  # of each row of a large D over random signs: two errors of a row cancel in all of them once in 256 times


@dataclass(frozen=True)
class Check:
    """How far a kernel's D is from the product in float64. `fault`: what is wrong with it, in words; None: nothing.

    `error`: the largest difference over the bound of its element. `relative`: the Frobenius norm of the difference over
    that of D.
    """

    error: float
    relative: float
    fault: str | None = None


def check(operands: Operands, d: np.ndarray, rows: np.ndarray | None = None) -> Check:
    """Compare a kernel's buffer `d` with float64, and its padding with what it was.

    `rows`: of a large D, those that are compared element by element; of all rows the sums over random signs are.

    Element by element the error is at most (K + 3)·u·(|alpha|·|A|·|B| + |beta|·|C|), whatever the order of the sum; of
    random operands its Frobenius norm is far below 4·sqrt(K + 3)·u of D's (where D cancels, of what it would be if it
    did not). Integers have to be exact.
    """
    gemm = operands.gemm
    a, b, c, _ = views(operands)
    found = matrix(d, gemm.m, gemm.n, gemm.ldc, gemm.order)
    margin = matrix(d, *_whole(gemm), gemm.ldc, gemm.order)
    fault = _overwritten(margin, gemm) or _beyond(d, gemm)
    picked = slice(None) if rows is None else rows
    a64, b64 = decode(a[picked], gemm.dtype), decode(b, gemm.dtype)
    c64 = np.zeros((len(a64), gemm.n)) if gemm.beta == 0 else c[picked].astype(np.float64)
    exact = gemm.alpha * (a64 @ b64) + gemm.beta * c64
    size = abs(gemm.alpha) * (np.abs(a64) @ np.abs(b64)) + abs(gemm.beta) * np.abs(c64)
    difference = np.abs(found[picked].astype(np.float64) - exact)
    unit = (gemm.k + 3) * gemm.type.unit
    whole = bool((a64 == np.rint(a64)).all() and (b64 == np.rint(b64)).all()) and size.max(initial=0) < 2**22
    bound = np.zeros_like(size) if whole else unit * size
    norm = max(float(np.linalg.norm(exact)), float(np.linalg.norm(size)) / np.sqrt(gemm.k + 3))
    typical = norm / np.sqrt(exact.size)
    relative = float(np.linalg.norm(difference)) / norm if norm else float(difference.max(initial=0))
    wrong = ~(difference <= bound)  # a NaN is wrong
    if fault is None and wrong.any():
        largest = float(difference.max()) / typical if typical else np.inf
        fault = _where(wrong, found[picked], exact, rows) + _as_if_coarser(relative, largest, gemm)
    if fault is None and rows is not None:
        fault = _wrong_sum(operands, found, typical)
    if fault is None and not relative <= 4 * np.sqrt(gemm.k + 3) * gemm.type.unit and not whole:
        fault = f"relative error {relative:.1e}, far above that of rounding"
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(difference == 0, 0, difference / (unit * size if unit else 1))
    return Check(float(share.max(initial=0)), relative, fault)


def _whole(gemm: Gemm) -> tuple[int, int]:
    """Rows and columns of D's buffer with its padding."""
    return (gemm.ldc, gemm.n) if gemm.order == "column" else (gemm.m, gemm.ldc)


def _beyond(d: np.ndarray, gemm: Gemm) -> str | None:
    """Whether numbers before or behind D's buffer were written, where it has margins (`Operands.room`)."""
    margin = margin_of(gemm.ldc)
    if not isinstance(d.base, np.ndarray) or d.base.shape != (d.size + 2 * margin,):
        return None
    outside = np.concatenate((d.base[:margin], d.base[margin + d.size :]))
    changed = _written(outside)
    return f"writes beyond D: {plural(changed, 'number')} before or after its buffer" if changed else None


def _overwritten(margin: np.ndarray, gemm: Gemm) -> str | None:
    """Whether numbers beside D were written."""
    beside = margin[gemm.m :] if gemm.order == "column" else margin[:, gemm.n :]
    changed = _written(beside)
    return f"writes beside D: {plural(changed, 'number')} between its {gemm.order}s" if changed else None


def _written(outside: np.ndarray) -> int:
    """How many elements are not as they were, to the bit."""
    return int(np.sum(np.ascontiguousarray(outside).view(np.int32) != poison_of_d(outside.dtype).view(np.int32)))


def _wrong_sum(operands: Operands, found: np.ndarray, typical: float) -> str | None:
    """D·S compared with alpha·A·(B·S) + beta·C·S, for SUMS columns S of random signs (Freivalds' check).

    Rounding leaves a difference of about sqrt(K·N)·u·|D|; an element that is wrong adds its whole error, and two whose
    errors cancel in one sum do not in the next. `typical`: |D| as it should be. As the kernel left it a single infinity
    would hide every other error.
    """
    gemm = operands.gemm
    a, b, c, _ = views(operands)
    signs = np.random.default_rng(gemm.m).choice([-1.0, 1.0], (gemm.n, SUMS))
    exact = gemm.alpha * (decode(a, gemm.dtype) @ (decode(b, gemm.dtype) @ signs))
    if gemm.beta:
        exact += gemm.beta * (c.astype(np.float64) @ signs)
    with np.errstate(invalid="ignore"):  # of infinities, which are as wrong as NaN
        difference = np.abs(found.astype(np.float64) @ signs - exact)
    wrong = ~(difference <= 16 * np.sqrt((gemm.k + 3) * gemm.n) * gemm.type.unit * typical)
    if not wrong.any():
        return None
    row, of = (int(index[0]) for index in np.nonzero(wrong))
    of_row = f"the sum over random signs of row {row} is {difference[row, of]:.3g} off"
    return f"{int(wrong.any(1).sum())} of {len(wrong)} rows are wrong: {of_row}"


def _where(wrong: np.ndarray, found: np.ndarray, exact: np.ndarray, rows: np.ndarray | None) -> str:
    i, j = (int(index[0]) for index in np.nonzero(wrong))
    row = i if rows is None else int(rows[i])
    first = f"D[{row},{j}] = {found[i, j]:.7g}, not {exact[i, j]:.7g}"
    return f"{int(wrong.sum())} of {wrong.size} elements are wrong: {first}{_as_before(found[wrong])}"


def _as_before(wrong: np.ndarray) -> str:
    """How many elements that are wrong are as they were before the run; a sum with that NaN may have its bits too."""
    number = wrong.size - _written(wrong)
    if not number:
        return ""
    whose = "all are" if number == wrong.size else f"{number} of them are" if number > 1 else "1 of them is"
    return f"; {whose} as D was before the run: not written, or added to"


def _as_if_coarser(relative: float, largest: float, gemm: Gemm) -> str:
    """Whether the errors are as small as those of sums in a coarser dtype: a mistake that no element shows.

    `largest`: the largest of them against a typical |D|. All of D hardly feels a single element that is far off.
    """
    name, unit = COARSER.get(gemm.dtype, ("", 0.0))
    of_sums = np.sqrt(gemm.k + 3) * unit
    small = relative <= of_sums and largest <= 4 * of_sums
    return f"; the errors are as small as those of sums in {name}: keep them in fp32" if small else ""
