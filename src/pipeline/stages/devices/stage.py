"""stage=devices: what this machine has, how each framework calls it, and what runs on it at which precision; the
ceilings that were measured on it; or the GPUs there are, side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipeline.contracts import Stage
from pipeline.errors import UserError, bad_choice
from pipeline.experiment.effects import refuse_unread
from pipeline.machine import gpu_table
from pipeline.machine.capability import Resolved
from pipeline.machine.ceilings import Ceiling, Ceilings
from pipeline.machine.device import Device, Place, gpus
from pipeline.runs import receipt as receipts
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import group_of, spec
from pipeline.stages import by_framework
from pipeline.stages.devices import inventory, kept, tables

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

SHOWN = ("here", "known")
OF_TRAININGS = (
    *("precision", "model", "dataset", "loader", "augmentation", "optimizer", "loss", "schedule", "training"),
    "seed",
)
OF_STEPS = ("backend.compile", "backend.xla", "device.placement_log")
NOT_MEASURED_WITH = ("memory_limit", "logical_devices", "placement_log")  # of the device


@spec
class Devices(Stage):
    """`gpus`: `here` for this machine, or `known` for the table of GPUs, which needs no framework. `measure`: measure
    the ceilings of this machine, and keep them; with a `device` that is not auto those of that one, which are not kept
    where there are others. `rounds`: samples of each.

    Of this machine the chosen backend is asked for its own (logical) devices, so it is the one that is imported.
    """

    reads: ClassVar[tuple[str, ...]] = ("backend", "device")
    headline: ClassVar[str] = "ceilings/measured"

    gpus: str = "here"
    measure: bool = False
    rounds: Annotated[int, Field(gt=0, le=1000)] = 7

    def __post_init__(self) -> None:
        if self.gpus not in SHOWN:
            raise bad_choice("stage.gpus", self.gpus, SHOWN)
        if self.gpus == "known" and self.measure:
            raise UserError(
                "stage.measure=true with stage.gpus=known: the table is of GPUs, not of this machine; leave it out"
            )

    @property
    def recorded(self) -> bool:
        """A measurement leaves a run; a list does not."""
        return self.measure

    def title(self, experiment: Experiment) -> str:
        return "devices"

    @property
    def user_code(self) -> tuple[str, ...]:
        """What measures, which other processes import by its name."""
        return kept.CODE if self.measure else ()

    @property
    def user_files(self) -> tuple[Path, ...]:
        """What measures the processor, beside Python's modules."""
        return tuple(kept.ROOT / name for name in kept.COMPILED) if self.measure else ()

    def check(self, experiment: Experiment) -> None:
        """Refuse what divides or bounds a device, or records its steps: a ceiling is of the whole one."""
        for name in NOT_MEASURED_WITH if self.measure else ():
            value = getattr(experiment.device, name)
            if value != getattr(Device(), name):
                shown = str(value).lower() if isinstance(value, bool) else value
                raise UserError(
                    f"device.{name}={shown} with stage.measure=true: ceilings are of whole devices; leave it out"
                )

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys that are about a training, and for the table of GPUs those about this machine too."""
        known, why = self.gpus == "known", dict[str, str]()
        for key in keys:
            if group_of(key) in OF_TRAININGS or key in OF_STEPS:
                why[key] = "nothing is trained here"
            elif known and group_of(key) in self.reads:
                why[key] = "the table is of GPUs, not of this machine"
        refuse_unread(why, "stage.gpus=known" if known else "stage=devices")
        if "stage.rounds" in keys and not self.measure:
            raise UserError("stage.rounds with stage.measure=false: nothing is measured; set stage.measure=true")

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse a cache folder that cannot keep them, before minutes are spent."""
        if self.measure:
            kept.folder()

    def run(self, experiment: Experiment, resolved: Resolved, run: Run | None) -> Result:
        """One table: devices, the backend's logical devices, precisions; and the ceilings. The study records the first.

        What was measured before is shown where nothing is recorded: a run has only what it has found itself.
        """
        receipt = receipts.before(experiment, resolved) if run is not None else {}
        if run is not None:
            run.journal.write_receipt(receipt)
        if self.gpus == "known":
            return Result(metrics=inventory.counts(), table=tuple(gpu_table.rows(gpus())))
        seen = experiment.backend.load().logical_devices(experiment, resolved)
        rows = inventory.rows(experiment.backend.name, seen)
        if run is None:
            ceilings = kept.kept()
            shown = tables.shown(ceilings.rows if ceilings else ())
            return Result(metrics=inventory.counts(), table=(*rows, *tables.about(ceilings)), tables=shown)
        if not self.measure:
            return Result(metrics=inventory.counts(), table=rows)
        return self._measured(inventory.asked_for(experiment.device.name, resolved.place), run, receipt, rows)

    def _measured(
        self, places: Sequence[Place], run: Run, receipt: dict[str, object], rows: Sequence[tuple[str, str]]
    ) -> Result:
        from pipeline.stages.devices.bench import Bench

        facts, bench = kept.facts(), Bench(self.rounds, run, run.artifact("tables/samples.csv"), places)
        run.journal.write_receipt({**receipt, "ceilings": facts})
        by_framework.note_threads(run, by_framework.core_count())
        bench.measure()
        run.journal.write_receipt({**receipt, "ceilings": {**facts, "seen": bench.seen()}})
        failed = "; ".join(bench.faults()) or None
        result = Result(
            metrics=(*inventory.counts(), *tables.metrics(bench.found)),
            tables=tables.shown(bench.found),
            table=(*rows, *tables.about(Ceilings(bench.found, time.strftime(kept.DATE)), "")),
            failed=failed,
        )
        if len(places) < len(inventory.physical()):
            said = f"no: only {places[0]} was measured; leave device out to measure and keep all"
        else:
            said = kept_or_why(bench.found, facts, failed is not None)
        return replace(result, table=(*result.table, ("kept", said)))


def kept_or_why(found: Sequence[Ceiling], facts: dict[str, Any], faulty: bool) -> str:
    """Keep what was measured. What minutes went into is shown and recorded whether or not that succeeds.

    What has faults, was measured beside other processes or with few samples does not take the place of what is kept,
    unless that is worse.
    """
    why_not, before = "something went wrong" if faulty else tables.busy(found), kept.kept(facts)
    if before is not None:
        why_not = why_not or _fewer(found, before.rows)
    if why_not and before is not None and _flaws(found) >= _flaws(before.rows):
        return f"no: {why_not}; what was kept before stays"
    try:
        kept.keep(found, facts)
    except UserError as error:
        return f"no: {error}"
    return "yes"


def _flaws(ceilings: Sequence[Ceiling]) -> tuple[int, bool]:
    """How many were not measured because of a fault, and whether other processes were at work."""
    return sum(bool(one.fault) for one in ceilings), tables.busy(ceilings) is not None


def _fewer(found: Sequence[Ceiling], before: Sequence[Ceiling]) -> str | None:
    """That there are less than half as many samples as before, in words."""
    now, then = (sum(len(one.samples) for one in rows) for rows in (found, before))
    return f"{now} samples, and what is kept has {then}" if 2 * now < then else None
