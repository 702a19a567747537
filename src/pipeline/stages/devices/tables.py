"""Ceilings in tables, in numbers and in a CSV of every sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.kernels.cpu.ceilings import ALONE
from pipeline.machine.ceilings import DOUBT, HAD, Ceiling, Ceilings
from pipeline.report.csv_file import csv_file
from pipeline.report.table import digits, small
from pipeline.runs.result import Metric, Table, count

SHOWN = {
    "FLOP/s": (1e9, "GFLOP/s"),
    "bytes/s": (1e9, "GB/s"),
    "s": (1e-6, "µs"),
    "J/FLOP": (1e-12, "pJ/FLOP"),
    "%": (1, "%"),
}
NEVER = "not measured: stage.measure=true does it, in about a minute"


def about(ceilings: Ceilings | None, note: str = "; kept") -> list[tuple[str, str]]:
    """When they were measured (and a `note`), and what was not and why."""
    if ceilings is None:
        return [("ceilings", NEVER)]
    rows = [("ceilings", f"measured {ceilings.date} on this machine, with its software as it is{note}")]
    others = busy(ceilings.rows)
    if others:
        rows.append(("too low", f"{others}; measure again when none is"))
    for doubt in dict.fromkeys(doubt for one in ceilings.rows if (doubt := one.of.partition(DOUBT)[2])):
        names = ", ".join(one.name for one in ceilings.rows if one.of.endswith(f"{DOUBT}{doubt}"))
        rows.append(("uncertain", f"{names}: {doubt}"))
    return rows + [(one.name, line(one)) for one in ceilings.rows if not one.samples]


def busy(rows: Sequence[Ceiling]) -> str | None:
    """That the probe had less than ALONE of the cores, in words; None where it had, or was not measured."""
    had = min((share for one in rows if one.name == HAD for share in one.samples), default=None)
    if had is None or had >= 100 * ALONE:
        return None
    return f"other processes were at work: the probe had {had:.0f} % of the cores"


def shown(rows: Sequence[Ceiling]) -> tuple[Table, ...]:
    """A table for each device and what measures it; of what was measured."""
    tables = []
    for group in dict.fromkeys(_group(one) for one in rows if one.samples):
        of_group = [one for one in rows if one.samples and _group(one) == group]
        columns = ("ceiling", "of", "median", "unit", "least to most", "n", "error")
        tables.append(Table(" · ".join(group), columns, tuple(map(_row, of_group))))
    return tuple(tables)


def _row(one: Ceiling) -> tuple[str, ...]:
    factor, unit = SHOWN[one.unit]
    spread = f"{digits(min(one.samples) / factor)} to {digits(max(one.samples) / factor)}"
    error = small(one.error, 0)
    what = " ".join(one.name.split("/")[2:])
    of, doubted, _ = one.of.partition(DOUBT)
    return (
        what,
        f"{of}{' (uncertain)' * bool(doubted)}",
        digits(one.median / factor),
        unit,
        spread,
        str(len(one.samples)),
        error,
    )


def _group(one: Ceiling) -> tuple[str, str]:
    place, source = one.name.split("/")[:2]
    return place, source


def line(one: Ceiling) -> str:
    """What came of a ceiling, in a line."""
    if one.fault:
        return f"went wrong: {one.fault}"  # also a process that had measured something before it ended
    if one.missing:
        return f"not measured: {one.missing}"
    _, of, median, unit, spread, n, _ = _row(one)
    return f"{median} {unit} ({spread}, n={n}; {of})"


def metrics(rows: Sequence[Ceiling]) -> Iterator[Metric]:
    """The median of each, and how many were measured."""
    measured = [one for one in rows if one.samples]
    yield count("ceilings/measured", len(measured))
    for one in measured:
        factor, unit = SHOWN[one.unit]
        value = (one.median, "s") if one.unit == "s" else (one.median / factor, unit)
        yield Metric(one.name, *value, "time", "min" if one.unit in ("s", "J/FLOP") else "max")


def write_csv(path: Path, rows: Sequence[Ceiling]) -> None:
    """Every sample."""
    with csv_file(path) as writer:
        writer.writerow(("name", "of", "unit", "sample", "value"))
        for one in rows:
            for number, value in enumerate(one.samples):
                writer.writerow((one.name, one.of, one.unit, number, value))
