"""study/report/: the stages side by side, from the files that they left. A section for each kind, one figure."""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.report.intervals import LEAST_RUNS, half_width, why_none
from pipeline.report.table import figure, markdown_rows
from pipeline.runs.json_files import cannot_write
from pipeline.study import composed
from pipeline.study.outcome import ROOT, Outcome, read

if TYPE_CHECKING:
    from pipeline.report.comparison import Side

FOLDER = ROOT / "report"
HEADING = """# The study

What `dvc repro` left, side by side. Results are each run's own; rates and times are of this machine as busy as it was:
for benchmarks see `bench/`. `python -m pipeline.study check` shows that the runs are those of dvc.lock.
"""
SHOWS = """
A difference is taken seed by seed, of stages with the same data: with one seed all see the same batches, and those of
the same model begin from the same weights. The
interval is Student's, 95 %, over the seeds. It shows how far the seed alone moves a
mean; where it contains 0, no difference is shown, which does not mean that there is none. Each interval stands alone,
without a correction for several comparisons: of twenty that differ in nothing, one is expected to leave out 0.

It does not show what another machine, other versions or a longer training would give. Each of them rounds otherwise in
the last bits, training amplifies that, and the order of stages so close together can change.
"""
ACCURACY = "test/accuracy"


def report() -> int:
    """Write report.md and comparison.png. Raises UserError for a stage that has not run."""
    outcomes = {name: read(name) for name in composed.read()}
    kinds: dict[str, dict[str, Outcome]] = {}
    for name, entry in composed.read().items():
        kind = str(entry.config["stage"]["_target_"]).rpartition(".")[2].lower()
        kinds.setdefault(kind, {})[name] = outcomes[name]
    text = HEADING + unlike(outcomes) + "".join(f"\n## {kind}\n\n{section(members)}" for kind, members in kinds.items())
    try:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        for drawn in draw([members for members in kinds.values() if len(members) > 1]):
            text += f"\n![accuracy by epoch, test accuracy and rate of each stage]({drawn})\n"
        (FOLDER / "report.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(FOLDER, error, key="") from error
    print(FOLDER / "report.md")
    return 0


def unlike(outcomes: Mapping[str, Outcome]) -> str:
    """On what and with which versions the stages ran, where that is not the same for all: new versions or another
    machine make no stage stale. In Markdown; or nothing."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, outcome in outcomes.items():
        hardware = outcome.receipt["device"].get("hardware") or {}
        ran = " ".join(str(hardware[key]) for key in ("name", "family", "model") if key in hardware)
        for key, value in {"hardware": ran, **outcome.receipt.get("versions", {})}.items():
            found.setdefault(key, {}).setdefault(str(value), []).append(name)
    apart = {key: values for key, values in found.items() if len(values) > 1}
    lines = [
        f"- {key}: " + "; ".join(f"{value} ({', '.join(names)})" for value, names in values.items())
        for key, values in apart.items()
    ]
    return "\n".join(["", "What not all stages ran on, or with:", "", *lines, ""]) if lines else ""


def section(outcomes: Mapping[str, Outcome]) -> str:
    """The stages of one kind: a table, what they have written, with its figures, their differences by seed."""
    noted = [f"- {name}: {note}\n" for name, one in outcomes.items() for note in one.receipt.get("notes", ())]
    text = table(outcomes) + "".join(["\n", *noted] if noted else [])
    for name, outcome in outcomes.items():
        if outcome.summary:
            text += f"\n{name}:\n\n{outcome.summary}"
            text += figures(name)
    compared = differences(outcomes)
    return text + (f"\n{compared}{SHOWS}" if compared else "")


def figures(name: str) -> str:
    """Those that a stage has drawn, in Markdown."""
    found = sorted((ROOT / name / "figures").glob("*.png"))
    return "".join(f"\n![{name}: {one.stem}](../{name}/figures/{one.name})\n" for one in found)


def table(outcomes: Mapping[str, Outcome]) -> str:
    """One row a stage, in Markdown: what ran where, every result, rate and time."""
    rows = [_row(name, outcome) for name, outcome in outcomes.items()]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return markdown_rows(columns, [[row.get(column, "") for column in columns] for row in rows])


def differences(outcomes: Mapping[str, Outcome]) -> str:
    """The test accuracy of every two stages that share seeds and data, one less the other, in Markdown; or nothing."""
    found = {name: accuracies(outcome) for name, outcome in outcomes.items()}
    rows = [
        row
        for one, other in itertools.combinations(found, 2)
        if None is not tested_on(outcomes[one]) == tested_on(outcomes[other])
        if (row := _difference(one, other, found[one], found[other]))
    ]
    columns = ("test accuracy", "mean difference", "95 % interval", "seeds", "shown")
    return markdown_rows(columns, rows) if rows else ""


def tested_on(outcome: Outcome) -> tuple[object, object] | None:
    """What tells the examples that a stage's test accuracy is of from another's, also of one dataset; None where they
    are not known, or not the same for all its seeds."""
    data, test = outcome.receipt.get("data_sha256"), (outcome.receipt.get("held_out") or {}).get("test")
    return None if None in (data, test) else (data, test)


def accuracies(outcome: Outcome) -> dict[str, float]:
    """The test accuracy of each seed, where a stage has several."""
    parts = {key: key.partition("/") for key in outcome.metrics}
    return {
        seed.removeprefix("seed_"): float(outcome.metrics[key])
        for key, (seed, _, name) in parts.items()
        if outcome.role(key) == "seed" and name == ACCURACY.replace("/", "_")
    }


def _difference(one: str, other: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[str]:
    changes = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    half = half_width(changes)
    if len(changes) < LEAST_RUNS:
        return []
    mean = statistics.fmean(changes)
    if half is None:
        return [f"{one} - {other}", f"{mean:+.4f}", f"{why_none(changes)} for an interval", str(len(changes)), ""]
    shown = "none shown" if abs(mean) <= half else f"{one if mean > 0 else other} is higher, here"
    interval = f"{mean - half:+.4f} to {mean + half:+.4f}"
    return [f"{one} - {other}", f"{mean:+.4f}", interval, str(len(changes)), shown]


def draw(kinds: Sequence[Mapping[str, Outcome]]) -> list[str]:
    """Of stages of one kind that were trained by epochs, a figure for each unit of rates and each test set. Returns the
    files' names."""
    alike: dict[tuple[object, object], list[Side]] = {}
    for members in kinds:
        for name, outcome in members.items():
            if (side := _side(name, outcome)) is not None:
                alike.setdefault((side.unit, tested_on(outcome) or name), []).append(side)
    files = [f"comparison{f'_{number}' * bool(number)}.png" for number in range(len(alike))]
    for file, sides in zip(files, alike.values(), strict=True):
        from pipeline.report import comparison

        comparison.draw(FOLDER / file, sides, "The study: stages side by side")
    return files


def _row(name: str, outcome: Outcome) -> dict[str, str]:
    receipt, times = outcome.receipt, outcome.timings
    row = {"stage": name, "backend": str(receipt["backend"]), "device": str(receipt["device"]["effective"])}
    if not outcome.summary:  # it has its own table for what varies within the stage
        row |= {"precision": str(receipt["precision"]["effective"]), **_results(outcome)}
    if "training_rate" in times:
        speed = times["training_rate"]
        row[speed["unit"]] = f"{speed['median']:,.0f}"
    return {**row, "time": f"{times['run_s']:.1f} s"}


def _results(outcome: Outcome) -> dict[str, str]:
    """Every result with its interval, over several seeds or folds or by the test examples of one run; then each seed's
    test accuracy in one column."""
    metrics, found = outcome.metrics, dict[str, str]()
    roles = {*map(outcome.role, metrics)}
    by = "" if "seed" in roles else "over folds: " if "fold" in roles else "by the test examples: "
    for key, value in metrics.items():
        if outcome.role(key) != "value":
            continue
        text = _number(value)
        if outcome.role(f"{key}_low") == "low":
            text += f" ({by}{_number(metrics[f'{key}_low'])} to {_number(metrics[f'{key}_high'])})"
        found[key.replace("/", " ")] = text
    each = accuracies(outcome)
    return found | ({"by seed": ", ".join(map(_number, each.values()))} if each else {})


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if value.is_integer():
        return f"{value:.0f}"
    return figure(value)


def _side(name: str, outcome: Outcome) -> Side | None:
    from pipeline.report.comparison import Side

    key = "validation_accuracy"
    epochs = [
        (
            float(row["epoch"]),
            float(row[key]),
            float(row.get(f"{key}_min", row[key])),
            float(row.get(f"{key}_max", row[key])),
        )
        for row in outcome.curves
        if row.get(key)  # an epoch may have measured less than others
    ]
    rate: Mapping[str, Any] | None = outcome.timings.get("training_rate")
    if not epochs or rate is None or ACCURACY not in outcome.metrics:
        return None
    seeds = list(accuracies(outcome).values()) or [outcome.metrics[ACCURACY]]
    return Side(name, epochs, seeds, (rate["median"], rate["min"], rate["max"]), str(rate.get("unit", "images/s")))
