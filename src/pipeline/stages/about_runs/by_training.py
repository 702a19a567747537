"""Two runs of stage=seeds, or of stage=folds, beside each other: how far they lie apart, training by training."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.report.fold_intervals import paired_by_fold
from pipeline.report.intervals import Paired, paired
from pipeline.runs.differences import Account
from pipeline.runs.result import Role

OTHER_FOLDS = "not compared fold by fold: the two do not test the same examples in each fold"
Compared = tuple[str, Paired]  # a metric's name, and its difference
Unlike = Callable[[Sequence[Account], str], bool]


def by_seed(first: Account, second: Account, unlike: Unlike) -> list[Compared] | None:
    """The mean difference of each metric of the test, `second` less `first`, over the seeds that both have.

    `unlike`: whether a metric of the runs was measured otherwise or is of other examples; it is then left out. None
    where the two are no such runs or have too few seeds in common.
    """
    theirs, ours = (_by_metric(one, "seed") for one in (first, second))
    found = []
    for name in theirs:
        metric = name.replace("_", "/", 1)
        difference = paired(ours.get(name, {}), theirs[name])
        if difference is not None and not unlike((first, second), metric):
            found.append((metric, difference))
    return found or None


def by_fold(first: Account, second: Account, otherwise: Unlike) -> list[Compared] | str | None:
    """The mean difference of each metric of the test, `second` less `first`, with its corrected interval.

    `otherwise`: whether the runs measured a metric otherwise; it is then left out. None where the two are no such runs
    or have too few folds in common; words where their folds are of other examples.
    """
    folds = [one.sections["config"].get("stage.folds") for one in (first, second)]
    each = [_by_metric(one, "fold") for one in (first, second)]
    if None in folds or not all(each):
        return None
    divisions = [_division(one.folder) for one in (first, second)]
    if folds[0] != folds[1] or not divisions[0] or divisions[0] != divisions[1]:
        return OTHER_FOLDS
    found = []
    for name, theirs in each[0].items():
        metric = name.replace("_", "/", 1)
        if name in each[1] and not otherwise((first, second), metric):
            difference = paired_by_fold(each[1][name], theirs, int(str(folds[0])))
            if difference is not None:
                found.append((metric, difference))
    return found or None


def _by_metric(account: Account, role: Role) -> dict[str, dict[str, float]]:
    """The values of each metric by seed, or by fold, of a run of such a stage: no other has metrics of that role."""
    found: dict[str, dict[str, float]] = {}
    for metric in account.metrics.values():
        if metric.role == role:
            training, _, name = metric.name.partition("/")
            found.setdefault(name, {})[training] = metric.value
    return found


def _division(folder: Path) -> Sequence[tuple[str, ...]]:
    """Which examples each fold tested: their numbers in the pool, their fold and their targets. The examples' own
    numbers may differ, as those of a table do with other columns."""
    try:
        with (folder / "artifacts" / "predictions.csv").open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            kept = [head for head in rows.fieldnames or () if not head.startswith("predicted")]
            return [tuple(kept), *(tuple(row[head] for head in kept) for row in rows)]
    except (OSError, ValueError, csv.Error):
        return []
