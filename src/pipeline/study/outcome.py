"""study/<stage>/: what DVC keeps of a run. Results apart from times, so that the same study gives the same bytes.

metrics.json   what came out                 receipt.json   the run's receipt, which run it was, and what it noted
timings.json   times, rates, memory          curves.csv     a row for each epoch
of the run's artifacts: figures/, generated/, export/, the tables (*.csv) and the summary (summary.md)
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import RunError
from pipeline.report.csv_file import csv_file
from pipeline.runs.json_files import cannot_write, read_json, write_json
from pipeline.runs.records import EPOCH, duration, read_metrics, read_status
from pipeline.runs.result import Metric, metrics_of, read_result, values
from pipeline.study import documents

ROOT = Path("study")
# The receipt's entries that differ from run to run of the same study.
TIMINGS = (
    "wall_time_s", "training_s", "fit_s", "first_step_s", "first_block_s", "compile_s", "samples_s", "probe_s",
    "training_rate", "peak_memory",
)  # fmt: skip
SUMMARY = "summary.md"  # what a stage has to say in words and tables, where it has
FOLDERS = ("figures", "generated", "export")  # pictures, and what a saved model was made to give


def keep(name: str, run: Path) -> None:
    """Write study/<name>/ anew from the run's folder. Raises RunError for a run without a receipt."""
    receipt = read_json(run / "receipt.json")
    if not receipt:
        raise RunError(f"{name}: the run {run.name} left no receipt")
    folder = ROOT / name
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        metrics = metrics_of(run).values()
        write_json(folder / "metrics.json", nested(values(one for one in metrics if not one.of_machine)))
        write_json(folder / "timings.json", timings(run, receipt, metrics))
        roles = {one.name: one.role for one in metrics if one.role != "value"}
        result = read_result(run)
        notes = [*result.notes, *([result.failed] if result.failed else [])] if result else []
        about = {"stage": name, "run": run.name, **receipt, "roles": roles, "notes": notes}
        write_json(folder / "receipt.json", about)
        write_curves(folder / "curves.csv", run)
        copy_artifacts(run / "artifacts", folder)
    except OSError as error:
        raise cannot_write(folder, error, key="") from error


def nested(figures: Mapping[str, Any]) -> dict[str, Any]:
    """`test/loss: 1` as `test: {loss: 1}`: DVC shows it as test.loss. `test/loss/a` beside it keeps its whole name."""
    found: dict[str, Any] = {}
    for key, value in figures.items():
        *parents, last = key.split("/")
        if any("/".join(parents[: depth + 1]) in figures for depth in range(len(parents))):
            parents, last = [], key
        node = found
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return found


def flat(figures: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The inverse of `nested`."""
    found: dict[str, Any] = {}
    for key, value in figures.items():
        found |= flat(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def timings(run: Path, receipt: Mapping[str, Any], metrics: Iterable[Metric]) -> dict[str, Any]:
    """How long the run took, how fast it was and what memory it had."""
    status = read_status(run)
    assert status is not None
    found: dict[str, Any] = {"run_s": duration(run, status) or 0.0}
    found |= values(one for one in metrics if one.of_machine)
    return found | {key: receipt[key] for key in TIMINGS if key in receipt}


def write_curves(path: Path, run: Path) -> None:
    """A row for each epoch of the journal, by the names that DVC's plots use. No file for a run without epochs.

    A field is empty where an epoch did not measure what another did.
    """
    result, epochs = read_result(run), [record for record in read_metrics(run) if EPOCH in record.metrics]
    last = result.last_epoch if result else ()
    left_out = {EPOCH, *(one.name for one in last if one.of_machine)}
    every = dict.fromkeys([*(one.name for one in last), *(name for record in epochs for name in record.metrics)])
    names = [name for name in every if name not in left_out]
    if epochs:
        with csv_file(path) as writer:
            writer.writerow(["epoch", "step", *(name.removeprefix("epoch/").replace("/", "_") for name in names)])
            for record in epochs:
                passes = record.metrics[EPOCH]
                epoch = int(passes) if passes.is_integer() else passes
                writer.writerow([epoch, record.step, *(record.metrics.get(name, "") for name in names)])


def copy_artifacts(artifacts: Path, folder: Path) -> None:
    """Figures, texts, exports, tables and the summary. The model is kept where another stage starts from it."""
    for path in [*sorted(artifacts.glob("*.csv")), *artifacts.glob(SUMMARY)]:
        shutil.copyfile(path, folder / path.name)
    for name in FOLDERS:
        if (artifacts / name).is_dir():
            shutil.copytree(artifacts / name, folder / name)


@dataclass(frozen=True)
class Outcome:
    """What a stage left, as others read it. `metrics` by their full names; `curves`: a row for each epoch.

    `summary`: Markdown; empty where the stage has written none. The receipt's `roles`: of the metrics that are an end
    of an interval or one seed's; its `notes`: what the run has noted, and why it failed where it did.
    """

    metrics: Mapping[str, Any]
    timings: Mapping[str, Any]
    receipt: Mapping[str, Any]
    curves: Sequence[Mapping[str, str]]
    summary: str

    def role(self, metric: str) -> str:
        """What a metric is declared to be (runs/result.py)."""
        return str(self.receipt.get("roles", {}).get(metric, "value"))


def read(name: str) -> Outcome:
    """The outcome of the stage `name`. Raises UserError where it is not there."""
    folder = ROOT / name
    parts = [documents.read(folder / f"{part}.json", "`dvc repro` makes it") for part in ("metrics", "timings")]
    receipt = documents.read(folder / "receipt.json", "`dvc repro` makes it")
    try:
        with (folder / "curves.csv").open(encoding="utf-8", newline="") as file:
            curves = list(csv.DictReader(file))
    except FileNotFoundError:
        curves = []
    summary = folder / SUMMARY
    words = summary.read_text(encoding="utf-8") if summary.is_file() else ""
    return Outcome(flat(parts[0]), parts[1], receipt, curves, words)
