"""study/report/: the stages side by side, from the files that they left. A table for each kind of stage, one figure."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.journal import cannot_write
from pipeline.report.table import figure
from pipeline.study import composed
from pipeline.study.outcome import ROOT, Outcome, read

FOLDER = ROOT / "report"
HEADING = """# The study

What `dvc repro` left, side by side. Results are each run's own; rates and times are of this machine as busy as it was:
for benchmarks see `bench/`. `python -m pipeline.study check` shows that the runs are those of dvc.lock.
"""


def report() -> int:
    """Write report.md and comparison.png. Raises UserError for a stage that has not run."""
    outcomes = {name: read(name) for name in composed.read()}
    kinds: dict[str, dict[str, Outcome]] = {}
    for name, entry in composed.read().items():
        kind = str(entry.config["stage"]["_target_"]).rpartition(".")[2].lower()
        kinds.setdefault(kind, {})[name] = outcomes[name]
    text = HEADING + "".join(f"\n## {kind}\n\n{table(members)}" for kind, members in kinds.items())
    try:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        if draw({name: outcome for name, outcome in outcomes.items() if outcome.curves}):
            text += "\n![accuracy by epoch, test accuracy and rate of each stage](comparison.png)\n"
        (FOLDER / "report.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(FOLDER, error, key="") from error
    print(FOLDER / "report.md")
    return 0


def table(outcomes: Mapping[str, Outcome]) -> str:
    """One row a stage, in Markdown: what ran where, every result, rate and time."""
    rows = [_row(name, outcome) for name, outcome in outcomes.items()]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    lines += [[row.get(column, "") for column in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw(outcomes: Mapping[str, Outcome]) -> bool:
    """The figure of the stages that were trained by epochs; False where there is none."""
    sides = [side for name, outcome in outcomes.items() if (side := _side(name, outcome))]
    if sides:
        from pipeline.report import comparison

        comparison.draw(FOLDER / "comparison.png", sides, "The study: stages side by side")
    return bool(sides)


def _row(name: str, outcome: Outcome) -> dict[str, str]:
    paper, times = outcome.receipt, outcome.timings
    row = {
        "stage": name,
        "backend": str(paper["backend"]),
        "device": str(paper["device"]["effective"]),
        "precision": str(paper["precision"]["effective"]),
        **{key.replace("/", " "): _number(value) for key, value in outcome.metrics.items()},
    }
    if "images_per_s" in times:
        row["images/s"] = f"{times['images_per_s']['median']:,.0f}"
    return {**row, "time": f"{times['run_s']:.1f} s"}


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if value.is_integer():
        return f"{value:.0f}"
    return figure(value)


def _side(name: str, outcome: Outcome) -> Any:
    from pipeline.report.comparison import Side

    epochs = [
        (int(row["epoch"]), float(row["validation_accuracy"])) for row in outcome.curves if "validation_accuracy" in row
    ]
    rate: Mapping[str, float] | None = outcome.timings.get("images_per_s")
    if not epochs or rate is None or "test/accuracy" not in outcome.metrics:
        return None
    spread: Sequence[float] = [rate[key] for key in ("median", "min", "max")]
    return Side(name, epochs, outcome.metrics["test/accuracy"], (spread[0], spread[1], spread[2]))
