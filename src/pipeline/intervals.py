"""How sure a mean over few runs is: Student's interval, and nothing where the runs are too few for one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95
LEAST_RUNS = 3  # of two runs Student's factor is 12.7: such an interval holds nearly everything and shows nothing
TOO_FEW = "too few runs"


def half_width(values: Sequence[float]) -> float | None:
    """Half of the confidence interval of the mean; None for fewer than LEAST_RUNS values."""
    n = len(values)
    if n < LEAST_RUNS:
        return None
    from scipy import stats

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
