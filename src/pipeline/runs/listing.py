"""The runs of a folder with what each measured, for stage=runs: filtered, sorted by age or by a metric.

A thousand runs are read in a moment: `result.json` as it lies, `config.yaml` only where a key of it is asked for, and
what many configs share once.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.errors import UserError, bad_choice, cut
from pipeline.experiment import SINCE
from pipeline.experiment.settings import Sought
from pipeline.machine.regular_file import open_regular
from pipeline.runs.as_typed import with_names
from pipeline.runs.better import better_of, check_direction
from pipeline.runs.choices import text_of as setting_text
from pipeline.runs.json_files import read_json
from pipeline.runs.judged_on import (
    GIVEN_OTHERWISE,
    OTHER_DATA,
    SPLITS,
    asked_for,
    examples_of,
    measured_otherwise,
    says_which,
    user_modules,
)
from pipeline.runs.lookup import reap_these, run_folders, status_now
from pipeline.runs.records import EPOCH, Status, loaded_by_groups, parse, read_config, read_status
from pipeline.runs.result import read_result

TAIL_BYTES = 1 << 16  # of the journal of a run without a result: its last lines; above them in blocks as large
LINE_BYTES = 1 << 14  # more than the record of an epoch has
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
OF_TASKS = ("bits_per_byte", "exact_match", "accuracy", "mean_absolute_error")
HEADLINES = (
    *(f"{split}/{name}" for split in ("test", OTHER_DATA) for name in OF_TASKS),
    "best/sustained",
    "best/rate",
)  # of a model's test, the first that it has; of matrix products the rate, whose first result is a rounding error

OF_SIZES = "inference/"  # metrics of the smallest batch that a run has timed, or of the quickest
DATA = ("dataset", "dataset.path", "dataset.file", "dataset.folder")  # settings that say what is tested
FOLDS = ("dataset.folds", "dataset.fold", "stage.folds")  # of runs without them the dataset's own division
TESTED = (*DATA, "dataset.test", *FOLDS)
WHICH = (*TESTED, "dataset.validation")  # and which of them
BY_NAME = ("device", "precision")  # groups of one class whose choices have a `name`
MERGED = ("training", "sweep")  # groups of one class whose choices leave nothing but their settings
TRACKERS = {"pipeline.tracking.tracker.Mlflow": "mlflow", "pipeline.tracking.tracker.Off": "none"}


@dataclass(frozen=True)
class Listed:
    """One run. `metrics`: those of its result and of its last epoch, by name; `declared`: unit, kind and direction."""

    folder: Path
    status: Status
    metrics: Mapping[str, float]
    declared: Mapping[str, Mapping[str, str]]

    @property
    def id(self) -> str:
        return self.folder.name

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config by dotted keys; a group's choice at the group's name (`model`: `cnn`)."""
        config = config_of(self.folder)
        flat = {key: value for key, value in flat_config(config).items() if key not in MERGED}
        flat |= {group: flat[f"{group}.name"] for group in BY_NAME if f"{group}.name" in flat}
        tracker = (config.get("tracking") or {}).get("_target_")
        return flat | ({"tracking": TRACKERS[tracker]} if tracker in TRACKERS else {})

    def value(self, key: str) -> Any:
        """The metric or the setting of that name; None where the run has neither."""
        return self.metrics[key] if key in self.metrics else self.config.get(key)

    def has(self, key: str) -> bool:
        """Whether the run has a metric or a setting of that name."""
        return key in self.metrics or key in self.config

    @property
    def headline(self) -> str | None:
        """What the run is judged by: a metric of HEADLINES, else the first result or rate that says what is better."""
        declares = [name for name, one in self.declared.items() if one["direction"] != "none" and name in self.metrics]
        results = [name for name in declares if self.declared[name]["kind"] == "result"]
        rates = [name for name in declares if self.declared[name]["direction"] == "max"]
        return next((name for name in (*HEADLINES, *results, *rates) if name in self.metrics), None)


def listed(root: Path) -> list[Listed]:
    """The runs below `root`, newest first; those whose process is gone without a word are marked KILLED first."""
    statuses = {folder: read_status(folder) for folder in run_folders(root)}
    running = [folder for folder, status in statuses.items() if status and status.state == "RUNNING"]
    reap_these(running)
    statuses |= {folder: status_now(folder) for folder in running}
    found = [Listed(folder, status, *_measured(folder)) for folder, status in statuses.items() if status]
    return sorted(found, key=lambda run: run.status.started, reverse=True)


def of_folder(folder: Path) -> Listed:
    """The run in `folder`. Raises UserError where its status cannot be read."""
    status = status_now(folder)
    if status is None:
        raise UserError(f"run={folder.name}: status.json is missing or damaged")
    return Listed(folder, status, *_measured(folder))


def not_listed(root: Path, runs: Sequence[Listed]) -> list[str]:
    """A line where runs below `root` are not among `runs`, since their status cannot be read."""
    known = {run.folder for run in runs}
    lost = [folder.name for folder in run_folders(root) if folder not in known and read_status(folder) is None]
    if not lost:
        return []
    return [f"{len(lost)} not listed, since their status.json is damaged: {cut(', '.join(lost), 300)}"]


def without_result(runs: Sequence[Listed]) -> list[str]:
    """A line where finished runs have lost what they measured: the best may be among them."""
    finished = [run for run in runs if run.status.state == "FINISHED" and not run.declared]
    lost = sorted(run.id for run in finished if read_result(run.folder) is None)
    if not lost:
        return []
    named = cut(", ".join(lost), 300)
    why = "their result.json is missing, damaged or of an early version"
    return [f"{len(lost)} without a result, since {why}: {named}"]


def is_of_loss(key: str) -> bool:
    """Whether a setting says what the loss is: of a solver, what a condition and a residual near a corner weigh."""
    return key.partition(".")[0] == "loss" or key in ("solver.condition_weight", "solver.conditions", "solver.graded")


def unlike(runs: Sequence[Listed], metric: str) -> list[str]:
    """A line where a metric of these runs is of different losses or settings, or of different data: then none is better
    for it.

    And one where other versions of the code measured it, by which it may mean something else.
    """
    having = [run for run in runs if metric in run.metrics]
    several = []
    if metric.endswith("/loss"):
        several += _differing(having, [key for run in having for key in run.config if is_of_loss(key)])
    asked = [asked_for(run.folder, run.config, metric) for run in having]
    if any(one != asked[0] for one in asked):
        several += _differing(having, ["training.metrics"])
    if metric.startswith(OF_SIZES):
        several += _differing(having, ["stage.batches"])
    if metric.partition("/")[0] in SPLITS:
        several += _of_other_examples(having, metric)
    lines = _of_other_versions(having, metric)
    if several:
        across = cut("; ".join(several), 300)
        lines.insert(0, f"{metric} is not compared across {across}; choose among them by stage.where=<key>=<value>")
    return lines


def _of_other_versions(runs: Sequence[Listed], metric: str) -> list[str]:
    """A line where what says what the metric is was edited between these runs: an update of the package, perhaps."""
    own = {module for run in runs for module in user_modules(run.folder, run.config, metric)}
    edited = measured_otherwise((run.folder for run in runs), metric, own)
    if not edited:
        return []
    return [
        f"{metric} was measured by several versions of the code, which differ in {cut(', '.join(edited), 300)}: "
        "what it means may have changed; stage=compare says how two runs differ"
    ]


def _differing(runs: Sequence[Listed], keys: Iterable[str]) -> list[str]:
    """Those of the settings that runs have more than one value of, with these values. Of folds none is one, too."""
    found = []
    for key in dict.fromkeys(keys):
        values = dict.fromkeys(
            setting_text(run.config.get(key)) for run in runs if key in FOLDS or run.config.get(key) is not None
        )
        found += [f"{key}={','.join(values)}"] if len(values) > 1 else []
    return found


def _of_other_examples(runs: Sequence[Listed], metric: str) -> list[str]:
    """What of the data differs, where a metric is of other examples: by the receipts, else by the settings.

    Another seed has other examples for validation, which is how seeds are compared: of these the settings say it.
    """
    examples: dict[Any, set[str | None]] = {}
    for run in runs:
        seed = run.config.get("seed") if metric.startswith("validation/") else None
        examples.setdefault(seed, set()).add(examples_of(run.folder, metric))
    if any(None in one for one in examples.values()):
        return _differing(runs, WHICH if metric.startswith("validation/") else TESTED)
    if all(len(one) == 1 for one in examples.values()):
        return _differing(runs, WHICH) if len(examples) > 1 else []
    keys = says_which(key for run in runs for key in run.config)
    return _differing(runs, keys) or ([] if _differing(runs, GIVEN_OTHERWISE) else ["examples that differ"])


def config_of(folder: Path) -> dict[str, Any]:
    """A run's config with the groups that did not exist when it was saved; of an experiment, and not of a grid."""
    config = with_names(read_config(folder, loaded_by_groups), folder.parent)
    return {**SINCE, **config} if "stage" in config else config


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `a.b: value`, a `_target_` as the choice of the node that it stands in."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if key == "_target_" and prefix:
            found[prefix[:-1]] = choice_of(str(value))
        elif isinstance(value, Mapping) and value:
            found |= flat_config(value, f"{name}.")
        else:
            found[name] = value
    return found


def choice_of(target: str) -> str:
    """A `_target_` as its choice is called (see spec.choice), without importing it.

    A class of the user's keeps its module, since two modules may have classes of one name: `lab.a.Net`.
    """
    module, _, name = target.rpartition(".")
    if not module.startswith("pipeline."):
        return target
    several = module in ("pipeline.backends", "pipeline.experiment", "pipeline.experiment.settings")
    return name.lower() if several else module.removesuffix(".stage").rpartition(".")[2]


def best_first(runs: Sequence[Listed], metric: str, sought: Sought | None = None) -> list[Listed]:
    """Those that have the metric, the best first, by the direction that the runs declare, else as the user has
    `sought`; a NaN is the worst.

    Raises UserError for a metric that no run has, of which nothing says what is better, or for its wrong end.
    """
    directions = [run.declared[metric]["direction"] for run in runs if metric in run.declared]
    judged = {name for run in runs for name, one in run.declared.items() if one["direction"] != "none"}
    if runs and metric not in {name for run in runs for name in run.metrics}:
        raise bad_choice("stage.best", metric, judged)
    declared = next((one for one in directions if one != "none"), "none")
    if sought is not None:
        check_direction("stage.best", metric, sought, declared)
    direction = better_of(declared, sought)
    if runs and direction == "none":
        raise UserError(
            f"stage.best={metric}: no run says whether more or less is better; give stage.direction=maximize or "
            f"stage.direction=minimize{_or_choose(judged)}"
        )
    sign = -1.0 if direction == "max" else 1.0

    def place(run: Listed) -> tuple[bool, float]:
        value = run.metrics[metric]
        return math.isnan(value), 0.0 if math.isnan(value) else sign * value

    return sorted((run for run in runs if metric in run.metrics), key=place)


def seconds_of(age: str, key: str) -> float:
    """`90s`, `30min`, `2h`, `7d`, `1w` in seconds. Raises UserError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|w)", age)
    if not found:
        raise UserError(f"{key}={age}: not an age; write a number with one of {', '.join(UNITS)}, such as 2h or 7d")
    return float(found[1]) * UNITS[found[2]]


def age_text(seconds: float) -> str:
    """The age in its largest unit: `45s`, `3h`, `12d`."""
    unit = next((unit for unit in ("d", "h", "min") if seconds >= UNITS[unit]), "s")
    return f"{max(0.0, seconds) // UNITS[unit]:.0f}{unit}"


def _or_choose(names: Iterable[str]) -> str:
    listed = ", ".join(sorted(names))
    return f", or choose from {listed}" if listed else ""


def _measured(folder: Path) -> tuple[dict[str, float], dict[str, dict[str, str]]]:
    """Metrics by name, and what is declared of them; of a run without a result the last ones of its journal."""
    result = read_json(folder / "result.json")
    try:
        declared = {name: dict(one) for name, one in result["declared"].items() if "kind" in one and "direction" in one}
        numbers = {**result["last_epoch"], **result["scalars"]}
        return {name: float(value) for name, value in numbers.items()}, declared
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return _last_of_journal(folder / "metrics.jsonl"), {}


def _last_of_journal(path: Path) -> dict[str, float]:
    """The last value of each metric in the journal's last lines, and of its last epoch, which may be further up."""
    found: dict[str, float] = {}
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            for end in range(size, 0, -TAIL_BYTES):
                lines = _lines_before(end, file)
                above = end < size  # there the steps are of no interest, and are not parsed
                found = _last([line for line in lines if EPOCH.encode() in line] if above else lines) | found
                if EPOCH in found:
                    break
    except OSError:
        pass
    return found


def _lines_before(end: int, file: BinaryIO) -> list[bytes]:
    """The lines that begin in the block of TAIL_BYTES before `end`, which the last of them may go beyond."""
    start = max(0, end - TAIL_BYTES)
    file.seek(start)
    return file.read(end - start + LINE_BYTES).splitlines()


def _last(lines: Iterable[bytes]) -> dict[str, float]:
    """The last value of each metric in lines of a journal. The first and the last one may be half a line."""
    found: dict[str, float] = {}
    for line in lines:
        record = parse(line)
        found |= {} if record is None else record.metrics
    return found
