"""How sure a mean, a median or a share is, of runs or of test examples, and nothing where they are too few to say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

CONFIDENCE = 0.95
LEAST_RUNS = 3  # of two runs Student's factor is 12.7: such an interval holds nearly everything and shows nothing
TOO_FEW = "too few runs"
# Ranges of n samples each of one and the same thing lie apart 2 times in (2n choose n): 1 time in 10 with n = 3, 1 in
# 126 with 5.
ENOUGH = 5
NO_SPREAD = 1e-12  # of the mean: a spread up to this is rounding
LEAST_EXAMPLES = 30  # of which a mean has an interval: errors are skewed, and of fewer it holds the mean too rarely
LEAST_OF_A_SHARE = 2
NOT_FINITE = "one is not finite"
ALL_THE_SAME = "the same each time, too little"


def half_width(values: Sequence[float]) -> float | None:
    """Half of the confidence interval of the mean; None for fewer than LEAST_RUNS values, where all are the same, or
    where one is not finite, as a perplexity may be.

    Three equal values say nothing about how far they scatter: an interval of width zero would claim certainty.
    """
    n, spread = len(values), deviation(values)
    if n < LEAST_RUNS or spread is None or spread <= NO_SPREAD * max(map(abs, values)):
        return None
    from scipy.special import stdtrit  # Student's quantile; scipy.stats takes three times as long to import

    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * spread / math.sqrt(n)


@dataclass(frozen=True)
class Interval:
    """The confidence interval of a model's metric by its test examples: `n` of them, taken to be independent, and drawn
    like those that the model is for. It holds nothing of what another seed would change."""

    low: float
    high: float
    n: int


def of_share(right: int, n: int) -> Interval | None:
    """Of a share of `n` examples that are right; None of too few of them. Wilson's, which stays within 0 and 1 and has
    a width where all are right. Written out, since every training has one and SciPy's takes half a second to import.
    Source: E. B. Wilson, Journal of the American Statistical Association 22, 1927, page 209."""
    if n < LEAST_OF_A_SHARE:
        return None
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre = (right + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(right * (n - right) / n + z * z / 4)
    return Interval(max(centre - half, 0.0), min(centre + half, 1.0), n)


def by_examples(values: np.ndarray) -> Interval | None:
    """Of the mean of what each test example gave, (n,): of booleans Wilson's, of numbers Student's, which of fewer than
    LEAST_EXAMPLES is none."""
    n = len(values)
    if values.dtype.kind == "b":
        return of_share(int(values.sum()), n)
    half = half_width(values.tolist()) if n >= LEAST_EXAMPLES else None
    mean = float(values.mean()) if n else math.nan
    return None if half is None else Interval(mean - half, mean + half, n)


@dataclass(frozen=True)
class Paired:
    """How far one thing lies from another: the mean of the differences of `n` pairs, and `half` of its confidence
    interval; None where all differences are the same, and where one is not finite (the mean is then NaN).

    `p`: how often chance alone gives a mean as far from 0, by Student's test; 1 where there is no interval.
    """

    n: int
    mean: float
    half: float | None
    p: float

    @property
    def shown(self) -> bool:
        """Whether the interval shows that there is a difference."""
        return self.half is not None and abs(self.mean) > self.half


def paired(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Paired | None:
    """Of values by seed, ours less theirs, seed by seed; None for fewer than LEAST_RUNS common seeds.

    Two trainings with one seed begin with the same weights and see the same batches, and validate on the same
    examples: what the seed alone does to both drops out of their difference.
    """
    differences = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if len(differences) < LEAST_RUNS:
        return None
    mean = statistics.fmean(differences) if all(map(math.isfinite, differences)) else math.nan
    half = half_width(differences)
    return Paired(len(differences), mean, half, 1.0 if half is None else _p_value(differences))


@dataclass(frozen=True)
class PairedShares:
    """How far the share of right examples of one model lies from another's on the same `n` examples: `difference`, and
    the ends of its confidence interval. `p`: how often chance alone divides those that one model alone has right as
    unevenly, by McNemar's exact test; 1 where there are none."""

    n: int
    difference: float
    low: float
    high: float
    p: float

    @property
    def shown(self) -> bool:
        """Whether the test shows that there is a difference. The test decides, and it is the more cautious: where
        0 lies just outside the interval it may show none."""
        return self.p <= 1 - CONFIDENCE


def paired_shares(ours_alone: int, theirs_alone: int, n: int) -> PairedShares:
    """Of `n` examples of which ours alone has some right, and theirs alone others: our share less theirs.

    The interval has its coverage with few such examples too, and a width where there are none. Sources: Q. McNemar,
    Psychometrika 12, 1947, page 153; D. G. Bonett, R. M. Price, Journal of Educational and Behavioral Statistics 37,
    2012, page 479.
    """
    from scipy import stats

    one, other, of = ours_alone + 1, theirs_alone + 1, n + 2
    middle = (one - other) / of
    spread = math.sqrt(((one + other) / of - middle**2) / of)
    half = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * spread
    either = ours_alone + theirs_alone
    p = float(stats.binomtest(ours_alone, either).pvalue) if either else 1.0
    return PairedShares(n, (ours_alone - theirs_alone) / n, max(-1.0, middle - half), min(1.0, middle + half), p)


def corrected(found: Sequence[Paired]) -> list[float]:
    """The `p` of each of several differences that are looked at together: with many, one is far from 0 by chance.

    Of those that are at most 1 - CONFIDENCE, that share is expected to be chance. Source: Y. Benjamini, Y. Hochberg,
    Journal of the Royal Statistical Society B 57, 1995, page 289.
    """
    from scipy import stats

    return [float(p) for p in stats.false_discovery_control([one.p for one in found])] if found else []


def _p_value(differences: Sequence[float]) -> float:
    from scipy import stats

    found = float(stats.ttest_1samp(differences, 0).pvalue)
    return found if math.isfinite(found) else 1.0  # their variance is so small that it is rounded to 0


def of_median(values: Sequence[float]) -> tuple[float, float] | None:
    """A confidence interval of the median between two of the values, whatever their distribution; None below six.

    The median lies outside of the k-th smallest and the k-th largest of n values where k - 1 of them at most lie on
    one side of it, each with a chance of a half; k is the largest for which that is rare enough. Source: H. A. David,
    H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1.
    """
    ordered, outside, k = sorted(values), 0.0, 0
    while (outside := outside + 2 * math.comb(len(ordered), k) / 2 ** len(ordered)) <= 1 - CONFIDENCE:
        k += 1
    return (ordered[k - 1], ordered[-k]) if k else None


def lie_apart(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether the ranges of ENOUGH values or more do not overlap: all of ours are below all of theirs, or above."""
    if min(len(ours), len(theirs)) < ENOUGH:
        return False
    return max(ours) < min(theirs) or max(theirs) < min(ours)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation; None of fewer than two values, and where one is not finite."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def why_none(values: Sequence[float]) -> str:
    """Why `half_width` of the values is None, in words."""
    if not all(map(math.isfinite, values)):
        return NOT_FINITE
    return ALL_THE_SAME if len(values) >= LEAST_RUNS else TOO_FEW
