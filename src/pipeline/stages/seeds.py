"""stage=seeds: one training with several seeds, each a run below the stage's: mean, interval, every seed's result."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from pipeline.contracts import Stage
from pipeline.machine.capability import Resolved
from pipeline.report.table import figure
from pipeline.runs import receipt as receipts
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages.cells import Variant, caveats, checked, of_tests, rehearse, run_cells, variant, without_result
from pipeline.stages.repeated import (
    SEEDS,
    Trained,
    asked_of,
    declared,
    grid,
    keep,
    lacking,
    means,
    metrics,
    of_lengths,
    trained_of,
)

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@spec
class Seeds(Stage):
    """`repeats`: how many seeds, from the experiment's `seed` on. They run one at a time in one warm worker."""

    repeats: Annotated[int, Field(gt=0, le=1000)] = 3

    has_cells: ClassVar[bool] = True
    seeds_by: ClassVar[str | None] = "repeats"
    packages: ClassVar[tuple[str, ...]] = ("scipy",)  # of an interval

    def check(self, experiment: Experiment) -> None:
        """Refuse what cannot run here before the first seed does."""
        checked(self.variants(experiment))

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse data on which no seed can train."""
        rehearse(self.variants(experiment))

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train with every seed. Raises RunError where none came to a result."""
        receipt = receipts.before(experiment, resolved)
        run.journal.write_receipt(receipt)
        entries = run_cells(run, checked(self.variants(experiment)))
        asked = asked_of(experiment)
        trained = trained_of(entries, asked, SEEDS)
        keep(run, receipt, trained, SEEDS)
        keep_first(run, trained[0])
        return Result(
            metrics=metrics(trained, SEEDS),
            table=means(trained, SEEDS),
            tables=(grid(trained, asked, SEEDS),),
            notes=(
                "the interval is over seeds, on this machine, with these versions: another machine rounds differently, "
                "and training amplifies that",
                *of_lengths(trained, experiment.training, SEEDS),
                *(of_tests([one.receipt for one in trained]) or by_one_test(trained)),
                *lacking(trained, SEEDS),
                *caveats(entries),
            ),
            failed=without_result(entries),
        )

    def variants(self, experiment: Experiment) -> list[Variant]:
        """A training for each seed."""
        seeds = [str(experiment.seed + repeat) for repeat in range(self.repeats)]
        return [variant(experiment, {"seed": seed}, f"seed={seed}", called=f"seed-{seed}") for seed in seeds]


def by_one_test(trained: Sequence[Trained]) -> list[str]:
    """A note on how far the test set, which is the same for all seeds, carries the means.

    The mean over seeds is known no worse by the examples than the seeds are on average: its standard error is at most
    the mean of theirs, and as large where all seeds fail on the same examples.
    """
    names = [name for name in declared(trained) if all(name in one.by_examples for one in trained)]
    if not names:
        return []
    found = ", ".join(
        f"{name} +-{figure(statistics.fmean(one.by_examples[name] for one in trained))}" for name in names
    )
    return [
        f"the test examples, the same for all seeds, leave the means uncertain by up to {found} (95 %); that is not in "
        "the interval over seeds, and more seeds do not reduce it"
    ]


def keep_first(run: Run, first: Trained) -> None:
    """The first seed's figures and predictions, which are of one model and have no mean."""
    for path in sorted((first.folder / "artifacts" / "figures").glob("*.png")):
        shutil.copyfile(path, run.artifact(f"figures/{path.name}"))
    predictions = first.folder / "artifacts" / "predictions.csv"
    if predictions.exists():  # a task may write none
        shutil.copyfile(predictions, run.artifact("predictions.csv"))
