"""The table at the end of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.errors import cut, plural
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Device
from pipeline.machine.others import said_of, too_short
from pipeline.machine.precision import FORMATS
from pipeline.report import table
from pipeline.runs.fit import Fit, Observation
from pipeline.runs.json_files import read_json
from pipeline.runs.loss_scale import LossScale
from pipeline.runs.result import Result
from pipeline.runs.run import Run, seconds_since_start
from pipeline.stages.measuring import Measured
from pipeline.stages.rates import left_out, steady

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

SHOWN_CHANNELS = 4
SHOWN_NAMES = 300  # letters of the names of frozen weights; the receipt has them all


def rows(
    experiment: Experiment,
    resolved: Resolved,
    fit: Fit,
    measured: Measured,
    receipt: dict[str, Any],
    unit: str,
) -> list[tuple[str, str]]:
    """The rows of the table that a training ends with."""
    found = measured.rows()
    found += [row for row in measured.details.rows if row[0] not in dict(found)]
    training = experiment.training
    if training.steps is not None:
        found.append(("length", f"training.steps={training.steps}, in place of training.epochs={training.epochs}"))
    return [
        *found,
        *weights_row(fit.kept),
        *time_rows(fit, receipt, unit, training.period),
        *overhead_row(receipt.get("profile")),
        *adapters_row(fit),
        *frozen_row(receipt),
        *augmentation_row(receipt["augmentation"]),
        *normalisation_row(receipt.get("normalisation")),
        ("peak memory", memory_row(experiment.device, fit, receipt)),
        (
            "device",
            f"{resolved.place}{shared_by(experiment.device, receipt)} "
            f"({receipt['device']['hardware']['name']}; {resolved.device_reason})",
        ),
        ("precision", precision_row(experiment, resolved, fit.observed)),
        *([("loss scale", scale_row(fit.loss_scale, fit))] if fit.loss_scale else []),
    ]


def time_rows(fit: Fit, receipt: Mapping[str, Any], unit: str, period: str) -> list[tuple[str, str]]:
    """Times, and the rate with what it leaves out and what may have disturbed it. `period`: what an epoch is called."""
    rates = [epoch.units_per_s for epoch in steady(fit.epochs)]
    profiled = "measured with a profiler" if receipt.get("profile") else None
    seen = receipt["training_rate"]
    timed = f"uncertain, timed over {table.seconds(seen['timed_s'])}" if too_short(seen["timed_s"]) else None
    remarks = (left_out(fit.epochs, period), profiled, timed, said_of(seen["cores_of_others"]))
    rate = "; ".join((table.spread(rates, f" {unit}/s"), *filter(None, remarks)))
    compiled = receipt.get("compile_s")
    return [
        wall_row(receipt),
        ("training rate", rate),
        *([("compilation", f"{table.seconds(compiled)}, not counted as training")] if compiled else []),
    ]


def wall_row(receipt: Mapping[str, Any]) -> tuple[str, str]:
    """How long the run took so far, and its training."""
    wall, training = (table.seconds(receipt[name]) for name in ("wall_time_s", "training_s"))
    probed = f", measuring a step {table.seconds(receipt['probe_s'])}" if "probe_s" in receipt else ""
    return "wall time", f"{wall}, of which training {training}{probed}"


def timed_to_now(run: Run, result: Result) -> Result:
    """A training's result whose wall time is also of what was measured and drawn after it; so is the receipt's."""
    receipt = read_json(run.folder / "receipt.json") | {"wall_time_s": run.earlier_s + seconds_since_start()}
    run.journal.write_receipt(receipt)
    wall = wall_row(receipt)
    return replace(result, table=tuple(wall if row[0] == wall[0] else row for row in result.table))


def memory_row(device: Device, fit: Fit, receipt: dict[str, Any]) -> str:
    """The peak of memory until the training was over, and what it is of: the allocator's is of the first device of
    several. What comes then (the test, baselines, figures) may have taken more.
    """
    peak, together = fit.peak_memory, receipt.get("processes", {})
    processes, devices = together.get("count", 1), device.processes * device.split
    found = f"{table.size(peak['process_bytes'])} of the process"
    if processes > 1 and together["each"]:
        found = f"{table.size(sum(one['peak_bytes'] for one in together['each']))}, the sum of {processes} processes"
    elif processes > 1:
        found = f"{table.size(peak['process_bytes'])} of the first of {processes} processes"
    if "device_bytes" in peak:
        where = f"the first of {devices} GPUs" if devices > 1 else "the GPU"
        found = f"{table.size(peak['device_bytes'])} on {where}, {found}"
    return f"{found}, up to the end of training"


def shared_by(device: Device, receipt: dict[str, Any]) -> str:
    """The processes that trained, or what was split over the devices of one."""
    if device.processes * device.split == 1:
        return ""
    processes = receipt.get("processes", {}).get("count", 1)
    if processes > 1:
        return f", {processes} processes"
    what = [name for name, count in (("batches", device.processes), ("weights", device.split)) if count > 1]
    return f", {' and '.join(what)} split over {device.processes * device.split} devices"


def scale_row(scale: LossScale, fit: Fit) -> str:
    """Where the loss scale began and ended, and the steps that it cost."""
    return (
        f"{scale.initial:,.6g} -> {scale.final:,.6g}; {scale.skipped_steps:,} of {fit.steps:,} steps skipped (overflow)"
    )


def overhead_row(profile: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Which steps a profiler measured, and what a step took there and after."""
    if profile is None:
        return []
    if profile["steps"] is None:
        return [("profiler", f"{profile['profiler']}: no window of steps")]
    first, last = profile["steps"]
    counts = profile.get("counts", "steps")
    took = table.digits(profile["step_s"] * 1000)
    text = f"{profile['profiler']}: {counts} {first} to {last} took {took} ms each (mean)"
    if profile.get("cold"):
        cold = "the first step, which starts cold" if first == 1 else "one that compiled, or began a resumed run"
        return [("profiler", f"{text}; overhead not measured: {cold}, is among them")]
    if profile["overhead"] is None:
        return [("profiler", f"{text}; overhead not measured: no {counts} after them")]
    alone = f"{table.digits(profile['step_after_s'] * 1000)} ms (median)"
    overhead = profile["overhead"]
    shown = f"overhead {overhead:+.0%}" if overhead > 0 else "no overhead beyond their noise"
    return [("profiler", f"{text} with it, {alone} without it in the {profile['steps_after']:,} after them: {shown}")]


def weights_row(kept: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which weights were measured and saved, where they are not those of the last step."""
    if kept.get("weights") != "best":
        return []
    return [("weights", f"of step {kept['step']:,}, the best by {kept['monitor']} ({table.figure(kept['value'])})")]


def adapters_row(fit: Fit) -> list[tuple[str, str]]:
    """What was trained beside the saved weights."""
    adapters = fit.start.adapters
    if adapters is None:
        return []
    base = sum(array.size for array in fit.weights.values())
    shape = f"rank {adapters.rank} and alpha {adapters.alpha:g} on {plural(len(adapters.layers), 'dense layer')}"
    return [("adapters", f"{shape}: {fit.parameters:,} numbers trained beside {base:,} that stay")]


def frozen_row(receipt: dict[str, Any]) -> list[tuple[str, str]]:
    """What was trained and what stayed as it started, of a model some of whose weights were frozen."""
    if "parameters_frozen" not in receipt:
        return []
    names = cut(", ".join(receipt["initial_weights"]["frozen"]), SHOWN_NAMES)
    stay = f"{receipt['parameters_frozen']:,} frozen by model.freeze ({names})"
    return [("parameters", f"{receipt['parameters']:,} trained; {stay}")]


def augmentation_row(settings: dict[str, Any] | None) -> list[tuple[str, str]]:
    """A row about the augmentation of the training images; none without one."""
    if settings is None:
        return []
    values = ", ".join(f"{key} {str(value).lower()}" for key, value in settings.items() if key != "_target_")
    name = str(settings["_target_"]).rpartition(".")[2].lower()
    return [("augmentation", f"{name}{f' ({values})' * bool(values)}; on the host, ahead of the step")]


def normalisation_row(statistics: dict[str, list[float]] | None) -> list[tuple[str, str]]:
    """The mean and the standard deviation by which examples are normalised, where there are few channels."""
    if statistics is None:
        return []
    channels = len(statistics["mean"])
    if channels > SHOWN_CHANNELS:
        return [("normalised", f"by mean and standard deviation of {channels:,} channels (receipt.json)")]
    mean, std = (", ".join(map(table.figure, statistics[name])) for name in ("mean", "std"))
    return [("normalised", f"by the training examples: mean {mean}; standard deviation {std}")]


def precision_row(experiment: Experiment, resolved: Resolved, seen: Observation) -> str:
    """Requested -> effective, and the dtypes that were seen."""
    name = experiment.precision.name
    arrow = name if name == resolved.precision else f"{name} -> {resolved.precision} ({resolved.precision_reason})"
    text = f"{arrow}; matmuls in {', '.join(sorted(seen.matmuls)) or 'none'}"
    if FORMATS[resolved.precision].tf32 and seen.tf32 is False:
        text += ", none in TF32"
    if seen.compiled and set(seen.compiled) != set(seen.matmuls):
        text += f" (compiled to {', '.join(sorted(seen.compiled))})"
    return text
