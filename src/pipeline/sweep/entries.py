"""The cells of a sweep at its end: how each ended, and what it measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.runs.result import Metric, by_name, read_result
from pipeline.sweep.plan import Cell, Decision
from pipeline.sweep.schedule import Outcome

VALIDATION = "validation/"


@dataclass(frozen=True)
class Entry:
    """One cell at the end: `state` as the table says it; `metrics` where there is a result."""

    cell: Cell
    state: str
    reason: str
    run: Path | None
    metrics: dict[str, Metric]
    seconds: float | None


def entries_of(decisions: Sequence[Decision], outcomes: Sequence[Outcome]) -> list[Entry]:
    """Every cell of the sweep, in its order."""
    ran = {outcome.cell.number: outcome for outcome in outcomes}
    found = []
    for decision in decisions:
        outcome = ran.pop(decision.cell.number, None)
        if outcome is not None:
            found.append(_entry(outcome))
        elif decision.verdict == "run":
            found.append(Entry(decision.cell, "not run", "", None, {}, None))
        else:
            metrics = measured(decision.run) if decision.verdict == "done" else {}
            found.append(Entry(decision.cell, decision.verdict, decision.reason, decision.run, metrics, None))
    return [*found, *(_entry(outcome) for outcome in ran.values())]


def _entry(outcome: Outcome) -> Entry:
    state = "done" if outcome.state == "FINISHED" else outcome.state.lower()
    metrics = measured(outcome.run) if outcome.done else {}
    return Entry(outcome.cell, state, outcome.reason, outcome.run, metrics, outcome.seconds)


def measured(run: Path | None) -> dict[str, Metric]:
    """What a finished run measured: its result, and the metrics of the validation data after its last epoch."""
    result = read_result(run) if run else None
    if result is None:
        return {}
    found = by_name(result.metrics)
    last = [one for one in result.last_epoch if one.name.startswith(VALIDATION) and one.name not in found]
    return by_name([*result.metrics, *last])
