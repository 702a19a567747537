"""stage=show: one saved run whole: what was asked, what really ran, what came out, and how it ended."""

from __future__ import annotations

import csv
import shlex
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from pipeline.cli.terminal import results
from pipeline.contracts.runs import AboutRuns
from pipeline.errors import UserError
from pipeline.experiment.settings import Settings
from pipeline.report.table import figure, figure_of, of_words, seconds, show, show_table, size
from pipeline.runs.as_typed import with_names
from pipeline.runs.checkpoint import newest
from pipeline.runs.choices import changes, nearest, text_of
from pipeline.runs.deletion import cells_of
from pipeline.runs.json_files import read_json
from pipeline.runs.keeping import resume_words
from pipeline.runs.listing import age_text
from pipeline.runs.lookup import find_run, reap_one, status_now
from pipeline.runs.records import EPOCH, Record, Status, duration, read_config, read_metrics, read_status
from pipeline.runs.result import Metric, Table, read_result
from pipeline.spec import Config, spec

FIRST, LAST = 3, 9  # of more epochs than both, these are shown
CELLS = 20  # runs of a grid
LISTED = 3  # of a receipt's longer list
USUAL_STAGE = "classifier"  # of conf/config.yaml
RATES = {"min": "less", "max": "more", "none": ""}

Rows = list[tuple[str, str]]


@spec
class Show(AboutRuns):
    """No settings: the run is named by `run=<id>`."""

    keys: ClassVar[tuple[str, ...]] = ("run",)

    def act(self, settings: Settings, config: Config) -> int:
        """Print it, section by section."""
        folder = named_run(settings)
        status = status_now(folder)
        if status is None:
            raise UserError(f"run={folder.name}: status.json is damaged")
        console = results()
        show(console, folder.name, _head(folder, status))
        asked = with_names(read_config(folder), folder.parent)
        if "grid" in asked:
            _show_grid(console, folder, asked["grid"], config)
        elif "search" in asked:
            _show_search(console, asked)
        else:
            _show_config(console, asked, config)
        _section(console, "receipt: what really ran", _receipt(read_json(folder / "receipt.json")))
        _show_result(console, folder)
        _show_epochs(console, list(read_metrics(folder)))
        _section(console, "artifacts", [(name, size(path.stat().st_size)) for name, path in _artifacts(folder)])
        return 0


def named_run(settings: Settings) -> Path:
    """The folder of the run that `run=` names, in any state; one whose process is gone is marked KILLED.

    Raises UserError.
    """
    if not settings.run:
        raise UserError("run=null with stage=show: name the saved run, by its id, its folder or latest")
    folder = find_run(Path(settings.output_dir), settings.run, holding="status.json")
    reap_one(folder)
    return folder


def _head(folder: Path, status: Status) -> Rows:
    """How it ended and why, when, and where it lies."""
    now = time.time()
    rows = [("status", status.state.lower())]
    if status.error:
        rows.append(("because", status.error))
    began = datetime.fromtimestamp(status.started).astimezone().isoformat(sep=" ", timespec="seconds")
    rows.append(("began", f"{began}, {age_text(now - status.started)} ago"))
    if status.ended:
        rows.append(("ended", datetime.fromtimestamp(status.ended).astimezone().isoformat(sep=" ", timespec="seconds")))
    rows.append(_duration(folder, status, now))
    if status.state in ("KILLED", "FAILED"):
        rows += _going_on(folder)
    rows.append(("process", f"{status.pid} on {status.host}" + (f", Slurm job {status.job}" if status.job else "")))
    rows.append(("folder", str(folder)))
    if status.cell_of:
        rows.append(("cell of", status.cell_of))
    if status.id != folder.name:
        rows.append(("run", _of_other_name(folder, status.id)))
    return [*rows, ("MLflow", _in_mlflow(folder))]


def _in_mlflow(folder: Path) -> str:
    """Its entry there, or why there is none."""
    record = read_json(folder / "mlflow.json")
    if record.get("run_id"):
        return f"run {record['run_id']}"
    if not record:
        return "not tracked"
    why = f" ({record['error']})" if record.get("error") else ""
    return f"not there yet{why}; `python -m pipeline.tracking sync {shlex.quote(str(folder.parent))}` sends it"


def _of_other_name(folder: Path, began_as: str) -> str:
    """Which run lies in a folder of another name: one that was copied, or moved."""
    if (folder.parent / began_as).is_dir():
        return f"a copy of {began_as}"
    return f"{began_as}, copied or renamed"


def _going_on(folder: Path) -> Rows:
    """From which checkpoint, of those that are whole; nothing where it has none."""
    checkpoint, damaged = newest(folder)
    if checkpoint is None:
        return [("resumes", "not: its checkpoints are damaged")] if damaged else []
    newer = "".join(f"; {note}" for note in damaged)
    return [("resumes", f"from step {checkpoint.step:,}: {resume_words(folder)}{newer}")]


def _duration(folder: Path, status: Status, now: float) -> tuple[str, str]:
    """How long it took; the wall time that a receipt has is from the start of the process."""
    took = seconds(duration(folder, status, now) or 0.0)
    if status.ended and "wall_time_s" in read_json(folder / "receipt.json"):
        return "took", f"{took} of wall time, the start of the program included"
    return "took" if status.ended else "so far", took


def _show_config(console: Console, config: Config, defaults: Config) -> None:
    """What differs from the defaults, then a line for each group."""
    if not config:
        _section(console, "config", [("", "config.yaml is missing or damaged")])
        return
    _section(console, "config: what differs from the defaults", list(_changed(config, defaults).items()))
    _section(console, "config: all of it", [(key, _group(key, value)) for key, value in sorted(config.items())])


def _show_grid(console: Console, folder: Path, swept: Mapping[str, str], defaults: Config) -> None:
    """What varies, what all cells have, by the first one's config, and their runs."""
    _section(console, "grid: what varies", list(swept.items()))
    own = cells_of(folder)
    before = [name for name in _in_table(folder) if name not in own and (folder.parent / name).is_dir()]
    cells = [*own, *before]
    if not cells:
        return
    first = with_names(read_config(folder.parent / cells[0]), folder.parent)
    varied = {".".join(key.split(".")[:end]) for key in swept for end in range(1, key.count(".") + 2)}
    same = {key: value for key, value in _changed(first, defaults).items() if key not in varied}
    _section(console, "config of its cells: what else differs from the defaults", list(same.items()))
    states = [(name, read_status(folder.parent / name)) for name in cells[:CELLS]]
    states_of = {name: status.state.lower() if status else "" for name, status in states}
    rows = [(name, f"{state}{' before' if name in before else ''}") for name, state in states_of.items()]
    rows += [(f"and {len(cells) - CELLS} more", "in cells.txt")] if len(cells) > CELLS else []
    _section(console, "cells", rows)


def _in_table(folder: Path) -> list[str]:
    """The runs of a grid's table, also of cells whose result an earlier command had; none before it has ended."""
    try:
        with (folder / "artifacts" / "grid.csv").open(encoding="utf-8", newline="") as file:
            return [row["run"] for row in csv.DictReader(file) if row.get("run")]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


def _show_search(console: Console, asked: Config) -> None:
    """What is searched, what all trials have, and the search's settings."""
    _section(console, "search: what varies", [(key, text_of(value)) for key, value in asked["space"].items()])
    fixed = [(key, value) for key, _, value in (text.partition("=") for text in asked["fixed"])]
    _section(console, "what all trials have", fixed)
    _section(console, "settings of the search", [(key, text_of(value)) for key, value in asked["search"].items()])


def _changed(config: Config, defaults: Config) -> dict[str, str]:
    """What differs from the defaults: not the stage where it is theirs, in whose place they have stage=show."""
    found = changes(config, {**defaults, "run": None})
    return {key: value for key, value in found.items() if (key, value) != ("stage", USUAL_STAGE)}


def _group(key: str, value: Any) -> str:
    """A group on one line: its choice and its settings."""
    if not isinstance(value, Mapping):
        return text_of(value)
    return " ".join(
        [nearest(key, value)[0], *(f"{key}={text_of(one)}" for key, one in value.items() if key != "_target_")]
    )


def _receipt(receipt: Mapping[str, Any]) -> Rows:
    """An entry a row; what lies in it, one below the other."""
    if not receipt:
        return [("", "none was written")]
    rows = {key: "\n".join(_lines(value)) for key, value in receipt.items()}
    if isinstance(git := receipt.get("git"), Mapping):
        rows["git"] = "\n".join(_commits(git))
    return [(key, text or "none") for key, text in rows.items()]


def _commits(git: Mapping[str, Any]) -> Iterator[str]:
    """A line for each repository that the code came from, with the user's modules in it."""
    for name, state in git.items():
        if name == "own_code":
            for repository, one in state.items():
                yield f"{one.get('modules')} ({repository}): {_commit(one)}"
        elif name == "current_folder":
            yield f"the current folder ({state.get('repository')}): {_commit(state)}"
        else:
            yield f"{name}: {_commit(state)}"


def _commit(state: Mapping[str, Any]) -> str:
    commit = state.get("commit")
    return "no commit has it" if commit is None else f"{commit}{', and changes' if state.get('dirty') else ''}"


def _lines(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _lines(one, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield f"{prefix}: {_entry(value)}" if prefix else _entry(value)


def _entry(value: Any) -> str:
    if isinstance(value, list) and len(value) > LISTED + 1:  # the weights of a model, say
        return f"{', '.join(map(text_of, value[:LISTED]))} and {len(value) - LISTED:,} more"
    return figure(value) if isinstance(value, float) else text_of(value)


def _show_result(console: Console, folder: Path) -> None:
    """Every metric with its unit, then the tables and notes of the stage."""
    result = read_result(folder)
    if result is None:
        _section(console, "results", [("", "none: it left no result.json that can be read")])
        return
    named = {metric.name: metric for metric in (*result.last_epoch, *result.metrics)}
    rows = tuple((one.name, value_of(one), one.unit, RATES[one.direction]) for one in named.values())
    console.print()
    show_table(console, Table("results", ("metric", "value", "unit", "better"), rows), left=("unit", "better"))
    for table in (*result.tables, *result.details):
        console.print()
        show_table(console, table, of_words(table))
    if result.table:
        _section(console, "as it was reported", list(result.table))
    if result.notes:
        _section(console, "notes", [("", note) for note in result.notes])


def value_of(metric: Metric) -> str:
    """A metric's value in a few digits: bytes as people read them, a count without digits behind the point."""
    if metric.unit == "bytes":
        return size(metric.value)
    return figure_of(metric.value, metric.kind)


def _show_epochs(console: Console, records: list[Record]) -> None:
    """A row for each epoch, of many the first and the last; of a run without epochs its last record."""
    epochs = [record.metrics for record in records if EPOCH in record.metrics]
    if not epochs:
        last = [(name, figure(value)) for name, value in records[-1].metrics.items()] if records else [("", "empty")]
        _section(console, f"journal: {len(records):,} records, of which the last", last)
        return
    names = list(dict.fromkeys(name for metrics in epochs for name in metrics if name != EPOCH))
    rows = [
        (passes(metrics[EPOCH]), *(figure(metrics[name]) if name in metrics else "" for name in names))
        for metrics in epochs
    ]
    if len(rows) > FIRST + LAST + 1:
        rows = [*rows[:FIRST], ("...", *[""] * len(names)), *rows[-LAST:]]
    heads = (name.removeprefix("epoch/") for name in names)
    console.print()
    show_table(console, Table("epochs", ("epoch", *heads), tuple(rows)))


def passes(number: float) -> str:
    """Passes over the training examples: `3`; `2.25` where validations are by steps."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _artifacts(folder: Path) -> list[tuple[str, Path]]:
    """The files below artifacts/, by their path in there. Links are not followed."""
    root = folder / "artifacts"
    return [(str(path.relative_to(root)), path) for path in sorted(root.rglob("*")) if path.is_file()]


def _section(console: Console, title: str, rows: Rows) -> None:
    console.print()
    console.print(title, style="italic", highlight=False, markup=False)
    show(console, "", rows or [("", "nothing")])
