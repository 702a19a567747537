"""What stage=lightning and stage=keras share: a training that is the user's whole leaves a run like any other."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.backends.shared.own import Asked, OwnFit, check_finite, check_weights
from pipeline.contracts import Stage
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.report.table import figure
from pipeline.runs import receipt as receipts
from pipeline.runs import weights
from pipeline.runs.result import Result, count, seconds
from pipeline.runs.resume import identity, resumptions
from pipeline.runs.run import seconds_since_start
from pipeline.spec import choice, group_of

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

READS = ("backend", "device", "precision", "seed")
NOT_FOLLOWED = ("backend.compile", "backend.xla", "device.placement_log", "precision.initial_scale")
NOT_KNOWN = "the user's own; pipeline has not read them"


class OwnTraining(Stage):
    """A training that is the user's whole: what checks, makes and trains it lies beside each backend."""

    reads: ClassVar[tuple[str, ...]] = READS
    by: ClassVar[str] = "own"

    @abstractmethod
    def asked(self) -> Asked:
        """What to call, and with which arguments."""

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys that the user's training does not read."""
        refuse_keys(experiment, keys)

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Make the model and the data once, before the run begins."""
        self._backend(experiment).check(self.asked(), experiment, resolved)

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train, and test where there is a test."""
        backend = self._backend(experiment)
        receipt = begun(experiment, resolved, run)
        fit = backend.fit(self.asked(), experiment, resolved, run)
        return finished(experiment, resolved, run, fit, receipt)

    def _backend(self, experiment: Experiment) -> Any:
        experiment.backend.load()
        return importlib.import_module(experiment.backend.module(self.by))


def refuse_keys(experiment: Experiment, keys: Sequence[str]) -> None:
    """Refuse keys of the groups that such a training does not read. Raises UserError."""
    for key in keys:
        if key in NOT_FOLLOWED:
            raise UserError(f"{key} with stage={choice(experiment.stage)}: it would be ignored; leave it out")
    read = (*READS, "stage", "tracking", "sweep", "name", "output_dir")
    for key in keys:
        if group_of(key) not in read and not key.startswith("training.checkpoint."):
            stage = choice(experiment.stage)
            instead = "; stage.epochs says how many" if key == "training.epochs" else ""
            raise UserError(
                f"{key} with stage={stage}: here your own code decides what is trained, on what and how{instead}"
            )


def begun(experiment: Experiment, resolved: Resolved, run: Run) -> dict[str, Any]:
    """The receipt before the training, written."""
    receipt = receipts.before(experiment, resolved) | resumptions(run)
    run.identity = identity()
    run.journal.write_receipt(receipt)
    return receipt


def finished(experiment: Experiment, resolved: Resolved, run: Run, fit: OwnFit, receipt: dict[str, Any]) -> Result:
    """Save, write the receipt and report. A precision or device that is not as asked is noted, and fails nothing."""
    weights.save(run.artifact("module/weights.npz"), fit.weights)
    for name, text in fit.files.items():
        run.artifact(f"module/{name}").write_text(text, encoding="utf-8")
    receipt |= {"weights_sha256": weights.digest(fit.weights), "parameters": fit.parameters, "data": NOT_KNOWN}
    receipt |= {"initial_weights": NOT_KNOWN, "peak_memory": fit.peak_memory, "fit_s": fit.seconds, **run.marks}
    problem = add_seen(receipt, experiment, resolved, fit)
    receipt["wall_time_s"] = run.earlier_s + seconds_since_start()
    run.journal.write_receipt(receipt)
    table = [*((one.name, figure(one.value)) for one in fit.metrics)]
    table += [("epochs", f"{fit.epochs} ({fit.steps:,} optimizer steps)"), ("parameters", f"{fit.parameters:,}")]
    table += [("device", str(resolved.place)), ("precision", precision_in_words(receipt, resolved, fit))]
    return Result(
        metrics=(
            *fit.metrics,
            count("epochs", fit.epochs),
            count("steps", fit.steps),
            seconds("fit_s", fit.seconds),
        ),
        table=tuple(table),
        notes=(problem,) if problem else (),
        failed=check_finite(fit.metrics) or check_weights(fit.weights, fit.trained),
    )


def add_seen(receipt: dict[str, Any], experiment: Experiment, resolved: Resolved, fit: OwnFit) -> str:
    """Add what is known of how it ran. Returns in words what is not as asked; empty where all is."""
    if fit.observed is None:
        return receipts.add_layers(receipt, resolved, fit.layers)
    receipt["device"]["cpu_threads"] = fit.cpu_threads or receipts.UNSET_THREADS
    return receipts.add_observed(receipt, experiment, resolved, fit.observed)


def precision_in_words(receipt: dict[str, Any], resolved: Resolved, fit: OwnFit) -> str:
    """The precision, and what was found in its place where it is another."""
    if receipt["precision"].get("as_requested") is not False:
        return resolved.precision
    if fit.observed is None:
        return f"{resolved.precision} asked for; layers compute in {', '.join(receipt['precision']['layers'])}"
    products = ", ".join(sorted(fit.observed.matmuls)) or "none seen"
    return f"{resolved.precision} asked for; matrix products: {products}"
