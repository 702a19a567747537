"""How sure a mean over few runs is: Student's interval, and nothing where the runs are too few for one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95
LEAST_RUNS = 3  # of two runs Student's factor is 12.7: such an interval holds nearly everything and shows nothing
TOO_FEW = "too few runs"
NO_SPREAD = 1e-12  # of the mean: a spread up to this is rounding
ALL_THE_SAME = "the same each time, too little"


def half_width(values: Sequence[float]) -> float | None:
    """Half of the confidence interval of the mean; None for fewer than LEAST_RUNS values, or where all are the same.

    Three equal values say nothing about how far they scatter: an interval of width zero would claim certainty.
    """
    n = len(values)
    if n < LEAST_RUNS or all_the_same(values):
        return None
    from scipy import stats

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)


def all_the_same(values: Sequence[float]) -> bool:
    """Whether several values differ by no more than rounding."""
    return len(values) > 1 and statistics.stdev(values) <= NO_SPREAD * max(map(abs, values))


def why_none(values: Sequence[float]) -> str:
    """Why `half_width` of the values is None, in words."""
    return ALL_THE_SAME if len(values) >= LEAST_RUNS else TOO_FEW
