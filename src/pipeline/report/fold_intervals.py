"""How sure a mean over the folds of a cross-validation is: their trainings share examples, so that it moves further
than as many independent results would.

No unbiased estimator of its variance exists (Y. Bengio, Y. Grandvalet, Journal of Machine Learning Research 5, 2004,
pages 1089-1105). Nadeau and Bengio's correction takes two folds' results to be correlated by the share of the examples
that a fold tests: C. Nadeau, Y. Bengio, "Inference for the generalization error", Machine Learning 52, 2003, section 3,
equation 9 and the test by it. The variance of the mean is then (1 / n + n_test / n_train) of that of the folds' results
in place of 1 / n, and n_test / n_train is 1 / (folds - 1) where each example is tested once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.report.intervals import Paired, half_width, paired


def widening(n: int, folds: int) -> float:
    """What an interval over `n` of the folds is wider by than one over as many independent values."""
    return math.sqrt(1 + n / (folds - 1))


def half_width_over_folds(values: Sequence[float], folds: int) -> float | None:
    """Half of the corrected interval of the mean; None where `half_width` is."""
    half = half_width(values)
    return None if half is None else half * widening(len(values), folds)


def paired_by_fold(ours: Mapping[str, float], theirs: Mapping[str, float], folds: int) -> Paired | None:
    """Of values by fold, ours less theirs, fold by fold: the corrected resampled t-test. None for fewer common folds
    than an interval takes.

    Both have the same examples in each fold: what makes a fold hard for both drops out of their difference.
    """
    found = paired(ours, theirs)
    if found is None or found.half is None:
        return found
    from scipy import stats

    wider = widening(found.n, folds)
    differences = [value - theirs[fold] for fold, value in ours.items() if fold in theirs]
    t = float(stats.ttest_1samp(differences, 0).statistic) / wider
    return replace(found, half=found.half * wider, p=2 * float(stats.t.sf(abs(t), found.n - 1)))
