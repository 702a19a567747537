"""What a stage found: metrics that say what they are, tables and notes. `result.json` keeps all of it.

    {"version": 1, "title": "mlp",
     "scalars":    {"test/loss": 0.31, ...},            the metrics by name
     "last_epoch": {"validation/loss": 0.33, ...},      of the last epoch, or of the best where kept
     "declared":   {"test/loss": {"unit": "", "kind": "result", "direction": "min"}, ...},      what each of both is
     "tables":     [{"title": "...", "columns": [...], "rows": [[...], ...]}, ...],
     "details":    [...],                               more tables, which stage=show prints and the run does not
     "table":      [["test loss", "0.3100"], ...],      the last table: a name and a text in each row
     "notes": [...], "failed": null}

What a run prints at its end is made of this file (report/table.py). A NaN or an infinity is a text, as everywhere in
the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pipeline.machine.regular_file import read_regular
from pipeline.runs.json_files import parsed

VERSION = 1
NAME_LENGTH = 240  # MLflow takes 250, its own prefix included
Kind = Literal["result", "time", "memory", "count"]
Direction = Literal["min", "max", "none"]
Role = Literal["value", "low", "high", "seed", "fold"]


@dataclass(frozen=True)
class Metric:
    """A number and what it is. `unit`: "s", "bytes", "images/s", ...; empty where it has none.

    `kind`: a result of the experiment, the machine's time (also a rate, or a ratio of times) or memory, or a count.
    `direction`: which value is better. `role`: the value itself; an end of its interval, named <name>_low or _high; or
    what one seed or one fold gave, named seed_<seed>/<name> or fold_<fold>/<name>.
    """

    name: str
    value: float
    unit: str = ""
    kind: Kind = "result"
    direction: Direction = "none"
    role: Role = "value"

    def __post_init__(self) -> None:
        parts = self.name.split("/")
        if not self.name.isprintable() or len(self.name) > NAME_LENGTH or {"", ".", ".."} & set(parts):
            raise ValueError(
                f"metric {self.name!r}: needs a printable name of at most {NAME_LENGTH} characters, "
                "its parts between slashes neither empty nor dots"
            )
        for field, choices in (
            ("kind", get_args(Kind)),
            ("direction", get_args(Direction)),
            ("role", get_args(Role)),
        ):
            if getattr(self, field) not in choices:
                raise ValueError(
                    f"metric {self.name}: {field}={getattr(self, field)!r}; choose from {', '.join(choices)}"
                )
        object.__setattr__(self, "value", float(self.value))

    @property
    def is_end(self) -> bool:
        """Whether it is an end of another metric's interval, which follows from what that one is made of."""
        return self.role in ("low", "high")

    @property
    def of_machine(self) -> bool:
        """Whether it says how the machine worked: it differs from run to run of the same experiment."""
        return self.kind in ("time", "memory")


def ends(metric: Metric, low: float, high: float) -> tuple[Metric, Metric]:
    """The ends of a metric's interval. Neither is better for being more or less."""
    return (
        Metric(f"{metric.name}_low", low, metric.unit, metric.kind, role="low"),
        Metric(f"{metric.name}_high", high, metric.unit, metric.kind, role="high"),
    )


def with_ends(metrics: Sequence[Metric], intervals: Mapping[str, tuple[float, float]]) -> tuple[Metric, ...]:
    """Every metric, and the ends of its interval behind it. A metric that has the name of an end keeps it."""
    names, found = {metric.name for metric in metrics}, list[Metric]()
    for metric in metrics:
        both = ends(metric, *intervals[metric.name]) if metric.name in intervals else ()
        found += [metric, *(end for end in both if end.name not in names)]
    return tuple(found)


def half_of(metrics: Mapping[str, Metric], name: str) -> float | None:
    """Half of the width of a metric's interval; None where it has none."""
    both = [metrics.get(f"{name}_{end}") for end in ("low", "high")]
    low, high = (None if one is None or not one.is_end else one.value for one in both)
    return None if low is None or high is None else (high - low) / 2


def seconds(name: str, value: float) -> Metric:
    """A time, of which less is better."""
    return Metric(name, value, "s", "time", "min")


def rate(name: str, value: float, unit: str) -> Metric:
    """What is done in a second, in `unit` ("images"): more is better."""
    return Metric(name, value, f"{unit}/s", "time", "max")


def memory(name: str, value: float) -> Metric:
    """Bytes, of which less is better."""
    return Metric(name, value, "bytes", "memory", "min")


def count(name: str, value: float, unit: str = "") -> Metric:
    """A number of things, named by `unit` where the metric's name does not."""
    return Metric(name, value, unit, "count")


def _check_texts(what: str, rows: Iterable[object]) -> None:
    """Refuse what cannot be printed as rows of a table. Raises TypeError."""
    for row in rows:
        if not isinstance(row, tuple | list) or not all(isinstance(one, str) for one in row):
            raise TypeError(f"{what}: {row!r}: give a row of texts")


@dataclass(frozen=True)
class Table:
    """A table of several columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        _check_texts(f"table {self.title!r}", (self.columns, *self.rows))


@dataclass(frozen=True)
class Result:
    """`notes` are printed first, then `tables`, then `table` with a name and a text in each row.

    `details`: tables that are kept and not printed. `failed`: what did not work out, of a stage that has a result all
    the same (some of its cells ended well). The run is then FAILED and the exit status 1. `title` and
    `last_epoch` are filled in by the runner: the experiment's name, and the metrics that `Run.end_epoch` got last.
    """

    metrics: tuple[Metric, ...]
    table: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    failed: str | None = None
    title: str = ""
    last_epoch: tuple[Metric, ...] = ()
    details: tuple[Table, ...] = ()

    def __post_init__(self) -> None:
        declared: dict[str, Metric] = {}
        for metric in (*self.metrics, *self.last_epoch):
            if not isinstance(metric, Metric):
                raise TypeError(f"a result's metric {metric!r}: needs a pipeline.runs.result.Metric")
            other = declared.setdefault(metric.name, metric)
            if _declaration(other) != _declaration(metric):
                raise ValueError(f"metric {metric.name}: declared as {_declaration(other)} and {_declaration(metric)}")
        by_name(self.metrics)
        _check_texts("a result's table", self.table)

    def plain(self) -> dict[str, Any]:
        """As the JSON that `read_result` reads."""
        return {
            "version": VERSION,
            "title": self.title,
            "scalars": values(self.metrics),
            "last_epoch": values(self.last_epoch),
            "declared": {metric.name: _declaration(metric) for metric in (*self.metrics, *self.last_epoch)},
            "tables": _plain(self.tables),
            "details": _plain(self.details),
            "table": self.table,
            "notes": self.notes,
            "failed": self.failed,
        }


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Raises ValueError for two of one name."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        if metric.name in found:
            raise ValueError(f"metric {metric.name}: measured twice")
        found[metric.name] = metric
    return found


def judged_by(metrics: Mapping[str, Metric], name: str, *otherwise: str) -> str:
    """`name`; where that metric is missing the first of `otherwise`, else the first result of which more or less is
    better.
    """
    better = (one.name for one in metrics.values() if one.kind == "result" and one.direction != "none")
    return next((one for one in (name, *otherwise) if one in metrics), None) or next(better, name)


def training_rate(metrics: Mapping[str, Metric]) -> Metric:
    """What a training did in a second, whatever its task counts.

    The first metric of kind `time` of which more is better.

    Raises KeyError where there is none.
    """
    for metric in metrics.values():
        if metric.kind == "time" and metric.direction == "max":
            return metric
    raise KeyError(f"no rate among {', '.join(metrics)}")


def values(metrics: Iterable[Metric]) -> dict[str, float]:
    """The bare numbers by name."""
    return {name: metric.value for name, metric in by_name(metrics).items()}


def read_result(folder: Path) -> Result | None:
    """The result of a run; None where `result.json` is missing, damaged or of another version."""
    try:
        kept = parsed(read_regular(folder / "result.json"))
        return _result(kept) if kept["version"] == VERSION else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def metrics_of(folder: Path | None) -> dict[str, Metric]:
    """The metrics of a run by name; none where it left no result."""
    result = read_result(folder) if folder else None
    return by_name(result.metrics) if result else {}


def _result(kept: Mapping[str, Any]) -> Result:
    return Result(
        metrics=_metrics(kept, "scalars"),
        last_epoch=_metrics(kept, "last_epoch"),
        tables=_tables(kept["tables"]),
        details=_tables(kept.get("details", ())),  # runs of before have none
        table=tuple((name, text) for name, text in kept["table"]),
        notes=tuple(kept["notes"]),
        failed=kept["failed"],
        title=kept["title"],
    )


def _metrics(kept: Mapping[str, Any], part: str) -> tuple[Metric, ...]:
    return tuple(Metric(name, float(value), **kept["declared"][name]) for name, value in kept[part].items())


def _plain(tables: Iterable[Table]) -> list[dict[str, Any]]:
    return [{"title": one.title, "columns": one.columns, "rows": one.rows} for one in tables]


def _tables(kept: Iterable[Mapping[str, Any]]) -> tuple[Table, ...]:
    return tuple(Table(one["title"], tuple(one["columns"]), tuple(map(tuple, one["rows"]))) for one in kept)


def _declaration(metric: Metric) -> dict[str, str]:
    found = {"unit": metric.unit, "kind": metric.kind, "direction": metric.direction}
    return found if metric.role == "value" else {**found, "role": metric.role}
