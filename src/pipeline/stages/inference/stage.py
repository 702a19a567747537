"""stage=inference: how fast a saved run's model predicts, batch by batch size, beside how good it is."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from pipeline.contracts import Stage
from pipeline.contracts.physics import Problem
from pipeline.datasets import Data
from pipeline.datasets.loading import check_saved, load_data
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.machine.host import cpu_name
from pipeline.machine.others import said_of
from pipeline.runs import receipt
from pipeline.runs.beside import with_figures
from pipeline.runs.fit import Predict, Predictor
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.runs.saved import check_outputs, compiled_steps, saved_weights
from pipeline.runs.source_rows import source_rows
from pipeline.spec import spec
from pipeline.stages.inference.bench import Bench, in_turns
from pipeline.stages.inference.tables import Found
from pipeline.stages.measuring import Measured, input_dtype, measure, said_of_metrics
from pipeline.stages.training_table import precision_row

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

EXAMPLES = 1024  # that batches are made of, or as many as the largest batch takes


@spec
class Inference(Stage):
    """The run is named by `run=<id>`. `batches`: sizes, each timed by itself; `rounds`: of each, in turns; `seconds`:
    that a round of one size takes, or a single call if that takes longer.

    A pass begins with examples as the model takes them in the host's memory, and ends with outputs there.
    """

    batches: tuple[PositiveInt, ...] = (1, 16, 256)
    rounds: PositiveInt = 5
    seconds: PositiveFloat = 0.2

    starts_from_run: ClassVar[bool] = True
    compiles_passes: ClassVar[bool] = True
    probe: ClassVar[bool] = True  # whose bare matmul the passes are held against
    headline: ClassVar[str] = "inference/latency_s"

    def check(self, experiment: Experiment) -> None:
        """Refuse a run that has no test set, and sizes that are none."""
        source = Path(str(experiment.settings.run))
        if isinstance(experiment.dataset, Problem):
            raise UserError(f"run={source.name}: solved a problem; stage=inference takes a model of examples")
        if not self.batches:
            raise UserError("stage.batches=[]: give one size at least, as 'stage.batches=[1,16,256]'")
        twice = [one for one in self.batches if self.batches.count(one) > 1]
        if twice:
            typed = ",".join(map(str, self.batches))
            raise UserError(f"stage.batches=[{typed}]: {twice[0]} is there twice")

    def needs_less(self) -> str:
        return "use smaller stage.batches, a smaller training.evaluation_batch_size or precision"

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Measure the test set, then time the passes. Raises UserError for a run without a readable model, or whose
        weights or data are others now."""
        source = Path(str(experiment.settings.run))
        saved, data = saved_weights(source), load_data(experiment)
        notes = (*check_saved(source, saved, data), *said_of_metrics(experiment, data.task), *data.notes)
        load = partial(experiment.backend.load().predictor, experiment, data.task.shapes, saved, resolved)
        predictor: Predictor = load(compiled=True)
        bench = Bench(predictor, examples(data, max(self.batches), input_dtype(resolved)), self.batches)
        measured, expected = self._judged(experiment, resolved, run, data, predictor)
        verify = partial(bench.verify, precision=resolved.precision, layer_dtypes=experiment.data_model.layer_dtypes)
        verify(expected)
        if predictor.compiled_by:
            verify(self._plain(experiment, load(), bench.x), where="in passes that are not compiled")
        seen = predictor.observe(bench.x[: max(self.batches)])  # of few rows a GPU's library multiplies in its own way
        kept = receipt.of_saved(experiment, resolved, saved, data.sha256, seen)
        receipt.refuse(receipt.problems(kept), experiment)
        machine = partial(importlib.import_module(experiment.backend.probe).machine, experiment, resolved)
        before, others, after = machine(), in_turns([bench], self.rounds, self.seconds, run), machine()
        passes = [
            {
                "batch": one.batch,
                "calls": len(one.calls),
                "flop": one.flop,
                "cpu_threads": predictor.cpu_threads(one.batch) or receipt.UNSET_THREADS,
            }
            for one in bench.found
        ]
        how = {"compiled_by": predictor.compiled_by, "cores_of_others": others}
        run.journal.write_receipt({**kept, "passes": passes, **how})
        found = Found(bench.right, data.task.unit, data.task.units, (before, after))
        result = Result(
            metrics=(*measured.kept, *found.metrics()),
            tables=(found.table(),) if found.timed else (),
            table=(
                *measured.rows(),
                *([found.limit_row()] if found.timed else []),
                *([("timing", f"uncertain: {said}")] if (said := said_of(others)) else []),
                *source_rows(source),
                ("device", f"{resolved.place} ({kept['device']['hardware']['name']})"),
                ("precision", precision_row(experiment, resolved, seen)),
                *([("passes", f"compiled by {predictor.compiled_by}")] if predictor.compiled_by else []),
            ),
            notes=(*notes, *self._notes(data), *found.notes(), *self._of_compiling(experiment, source, predictor)),
            details=measured.details.tables,
            failed="; ".join(one.fault for one in bench.found if one.fault) or measured.fault,
        )
        if not found.timed:
            return result
        where = cpu_name() if resolved.place.kind == "cpu" else str(resolved.place)
        title = title_of(source.name, experiment.backend.name, predictor.compiled_by, resolved.precision, where)
        return with_figures(result, partial(self._draw, run, found, title))

    def _judged(
        self, experiment: Experiment, resolved: Resolved, run: Run, data: Data, predictor: Predictor
    ) -> tuple[Measured, np.ndarray]:
        """What the test set says of the model, and the outputs of its first examples, as stage=evaluate has them."""
        source, kept = Path(str(experiment.settings.run)), list[np.ndarray]()

        def check(outputs: np.ndarray, first: int) -> None:
            check_outputs(outputs, "test example {}", first, source, resolved.precision)
            kept.extend([outputs[: max(self.batches) - first]] if first < max(self.batches) else [])

        judge = data.task.judge(experiment.loss)
        measured = measure(experiment, resolved, data, predictor, judge, check, run)
        return measured, np.concatenate(kept)

    def _plain(self, experiment: Experiment, predict: Predict, x: np.ndarray) -> np.ndarray:
        """The outputs of the examples of the largest batch (N, ...) by passes that are not compiled."""
        size, largest = experiment.training.evaluation_batch_size, max(self.batches)
        return np.concatenate([predict(x[at : min(at + size, largest)]) for at in range(0, largest, size)])

    def _notes(self, data: Data) -> Sequence[str]:
        """What a reader of the times should know."""
        found = []
        if len(data.test) < max(self.batches):
            found.append(f"the test has {len(data.test):,} examples: larger batches hold some of them twice")
        if data.task.units > 1:
            found.append(
                f"a pass reads whole sequences of {data.task.units:,} {data.task.unit}; what is written token by token "
                "is timed by stage=generate"
            )
        return found

    def _of_compiling(self, experiment: Experiment, source: Path, predictor: Predictor) -> Iterator[str]:
        """What the compiler could not do; that it was for the training alone, where nobody has asked for it here."""
        yield from predictor.notes
        steps = compiled_steps(source, vars(experiment.backend))
        if steps and not (experiment.backend.compile or experiment.backend.xla):
            yield f"run={source.name}: {steps} compiled its training steps; give it again to compile the passes"

    def _draw(self, run: Run, found: Found, title: str) -> None:
        from pipeline.stages.inference import figures

        figures.draw(run.artifact("figures/inference.png"), found, title)


def title_of(run: str, backend: str, compiled_by: str | None, precision: str, where: str) -> str:
    """What the figure is of."""
    compiled = f" compiled by {compiled_by}" if compiled_by else ""
    return f"{run}: {backend}{compiled}, {precision}, on {where}"


def examples(data: Data, largest: int, dtype: str) -> np.ndarray:
    """The first of the test set as the model takes them, from the beginning again where there are not enough."""
    count = max(largest, min(EXAMPLES, len(data.test)))
    x = data.inputs(data.test.x[: min(count, len(data.test))], dtype)
    return np.concatenate([x] * -(-count // len(x)))[:count] if len(x) < count else x
