"""stage=folds: cross-validation. Each fold is the test of one training, a run below the stage's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pipeline.contracts import Dataset, Stage
from pipeline.errors import UserError
from pipeline.experiment.folds import check_folds
from pipeline.experiment.settings import Folds as Count
from pipeline.machine.capability import Resolved
from pipeline.report.fold_intervals import half_width_over_folds, widening
from pipeline.report.intervals import LEAST_RUNS
from pipeline.runs import receipt as receipts
from pipeline.runs.beside import beside
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import is_shipped, spec
from pipeline.stages.cells import (
    Variant,
    caveats,
    checked,
    rehearse,
    run_cells,
    variant,
    without_result,
)
from pipeline.stages.repeated import (
    Over,
    Trained,
    asked_of,
    grid,
    keep,
    lacking,
    means,
    metrics,
    of_lengths,
    trained_of,
)

if TYPE_CHECKING:
    import numpy as np

    from pipeline.datasets.pool import Pool
    from pipeline.experiment import Experiment

_ahead: list[tuple[Experiment, Pool, np.ndarray]] = []  # at most one


@spec
class Folds(Stage):
    """`folds`: how many. They run one at a time in one warm worker, with the same seed."""

    folds: Count = 5

    has_cells: ClassVar[bool] = True
    folds_by: ClassVar[str | None] = "folds"
    packages: ClassVar[tuple[str, ...]] = ("scipy", "scikit-learn")  # of an interval, of the division

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse data that have no folds, and a fold that is chosen already."""
        if not isinstance(experiment.dataset, Dataset):
            return  # a problem, which no stage takes that trains on data
        chosen = experiment.inputs.folds
        if chosen is not None:
            raise UserError(f"dataset.folds={chosen} with stage=folds: it sets them; use stage.folds={chosen}")
        check_folds(experiment, "stage=folds")

    def check(self, experiment: Experiment) -> None:
        """Refuse what cannot run here before the first fold does."""
        checked(self.variants(experiment))

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse data that cannot be divided so, or on which no fold can train."""
        _ahead[:] = [(experiment, *self.divided(experiment))]
        rehearse(self.variants(experiment))

    def divided(self, experiment: Experiment) -> tuple[Pool, np.ndarray]:
        """All examples, and the fold of each. Raises UserError for too few."""
        from pipeline.datasets.folds import division
        from pipeline.datasets.pool import pool_of

        if _ahead and _ahead[0][0] is experiment:
            return _ahead.pop()[1:]
        who = f"stage.folds={self.folds}"
        pool = pool_of(experiment.data_source, who)
        return pool, division(pool, self.folds, who)

    def variants(self, experiment: Experiment) -> list[Variant]:
        """A training for each fold."""
        return [
            variant(
                experiment,
                {"dataset.fold": str(fold)},
                f"dataset.folds={self.folds} dataset.fold={fold}",
                called=f"fold-{fold}",
            )
            for fold in range(self.folds)
        ]

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train on every fold. Raises RunError where none came to a result."""
        from pipeline.stages import out_of_fold

        receipt = receipts.before(experiment, resolved)
        run.journal.write_receipt(receipt)
        pool, division = self.divided(experiment)
        entries = run_cells(run, checked(self.variants(experiment)))
        over = Over("fold", "dataset.fold", partial(half_width_over_folds, folds=self.folds), spread=True)
        asked = asked_of(experiment)
        trained = trained_of(entries, asked, over)
        keep(run, receipt, trained, over)
        folders = {int(one.of): one.folder for one in trained}
        together = partial(
            out_of_fold.result_of, run, pool.data.task, experiment.loss, division, folders, experiment.name
        )
        other_data = of_other_data(trained, pool.data.sha256)
        pooled = Result(()) if other_data else beside("predictions of all folds: not written", together)
        return Result(
            metrics=(*metrics(trained, over), *pooled.metrics),
            table=(*means(trained, over), *pooled.table),
            tables=(grid(trained, asked, over),),
            notes=(
                *self._said(len(trained), experiment),
                *pooled.notes,
                *of_lengths(trained, experiment.training, over),
                *lacking(trained, over),
                *caveats(entries),
            ),
            failed=without_result(entries) or other_data or pooled.failed,
        )

    def _said(self, n: int, experiment: Experiment) -> list[str]:
        """What the interval means, where there is one."""
        if n < LEAST_RUNS:
            return []
        size = getattr(experiment.dataset, "train_size", None) if is_shipped(experiment.dataset) else None
        some = f"{self.folds - 1}/{self.folds} of as many to train and validate on"
        trained_on = some if size is None else f"{size} to train on"
        wider = f"{widening(n, self.folds):.2g} times as wide as for independent results"
        return [
            "the interval is of the expected result with other examples of the same kind, "
            f"{trained_on}, and this seed; folds share training examples, so it is an approximation, {wider} "
            "(Nadeau and Bengio, 2003)"
        ]


def of_other_data(trained: Sequence[Trained], sha256: str) -> str | None:
    """Folds that were made of other data than those that were divided, in words for `Result.failed`."""
    others = [one.of for one in trained if one.receipt["data_sha256"] != sha256]
    if not others:
        return None
    return (
        f"fold {', '.join(others)}: the data were others than when they were divided (another sha256), so that the "
        "folds do not belong together; code that draws the data has to draw the same each time"
    )
