"""The study's tables, narrow enough for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.machine.others import said_of
from pipeline.report.csv_file import csv_file
from pipeline.report.table import figure, small
from pipeline.runs.result import Table
from pipeline.stages.amp import BASELINE, REFERENCE
from pipeline.stages.amp.claims import claims, halvings
from pipeline.stages.amp.compare import Compared
from pipeline.stages.amp.measured import Measured


def speed(rows: Sequence[Compared]) -> Table:
    """The table of rates, times and memory, a row for each precision."""
    fewer = ", ".join(f"{row.precision}: n={len(row.runs)}" for row in rows if len(row.runs) < _most(rows))
    over = f"seeds ({fewer})" if fewer else "seeds"
    title = f"speed: medians over {over}; the speed-up over {BASELINE} with its 95 % interval (3 runs or more)"
    busy = said_of(max((share for row in rows for run in row.runs if (share := run.cores_of_others)), default=None))
    return Table(
        f"{title}; uncertain: {busy}" if busy else title,
        ("precision", rows[0].unit, "speed-up", "wall s", "peak MiB", "Tensor Cores"),
        tuple(
            (
                row.precision,
                f"{row.median(lambda run: run.units_per_s):,.0f}",
                _speedup(row),
                f"{row.median(lambda run: run.wall_s):.1f}",
                f"{row.median(lambda run: run.peak_bytes) / 2**20:,.0f}",
                _tensor_cores(row),
            )
            for row in rows
        ),
    )


def numbers(rows: Sequence[Compared]) -> Table:
    """What the numbers lose. Errors are relative to the fp64 run of the same seed."""
    title = f"numbers: errors relative to {REFERENCE}, first seed; step 1 without dropout"
    if all(row.precision != REFERENCE for row in rows):
        title = f"numbers: no errors, which are relative to {REFERENCE}: no run is in it"
    return Table(
        title,
        ("precision", "loss 1", "gradient 1", "weights 1", "loss end", "weights end"),
        tuple((row.precision, *_errors(row)) for row in rows),
    )


def loss_scales(rows: Sequence[Compared]) -> list[Table]:
    """How the scale of the loss went, where there is one: a table, or none."""
    found = [(row, run.loss_scale) for row in rows for run in row.runs[:1] if run.loss_scale]
    lines = tuple(
        (
            row.precision,
            f"{scale['initial']:g}",
            f"{scale['final']:g}",
            str(len(scale["changes"])),
            f"{row.median(_skipped):.0f}",
        )
        for row, scale in found
    )
    heads = ("precision", "at first", "at the end", "changes", "steps skipped (median)")
    return [Table("the scale of the loss, first seed", heads, lines)] if lines else []


def seen(rows: Sequence[Compared]) -> Table:
    """The dtypes that the products ran in, and what was learned."""
    return Table(
        "what ran", ("precision", "effective", "products in", "runs", f"{rows[0].score} (range)"),
        tuple((row.precision, row.effective, row.runs[0].products, str(len(row.runs)), _score(row)) for row in rows),
    )  # fmt: skip


def claimed(rows: Sequence[Compared], *, on_cpu: bool) -> Table:
    """The table of what is claimed of half the width beside what was measured."""
    heads = []
    for wide, narrow in halvings(rows):
        n = len(narrow.beside(wide))
        heads.append(f"{wide.precision} to {narrow.precision}{f' (n={n})' * (n < _most(rows))}")
    lines = tuple((claim.text, claim.claimed, *claim.measured) for claim in claims(rows, on_cpu=on_cpu))
    title = "half the width: what is claimed, and what was measured over the seeds of both"
    if busy := said_of(max(run.cores_of_others_beside_step or 0 for row in rows for run in row.runs)):
        title = f"{title}; numbers moved and bare products are uncertain: {busy}"
    return Table(title, ("claim", "claimed", *heads), lines)


def write_csv(path: Path, rows: Sequence[Compared]) -> None:
    """A line for each run, with every figure that the tables are made of."""
    names = list(dict.fromkeys(name for row in rows for run in row.runs for name in run.metrics))
    with csv_file(path) as writer:
        writer.writerow(["precision", "effective", "seed", "run", "products", "wall_s", "peak_bytes", *names])
        for row in rows:
            for run in row.runs:
                figures = [repr(run.value(name)) if name in run.metrics else "" for name in names]
                about = [run.precision, run.effective, run.seed, run.folder.name, run.products]
                writer.writerow([*about, f"{run.wall_s:.3f}", run.peak_bytes, *figures])


def _most(rows: Sequence[Compared]) -> int:
    """How many seeds the precision with the most of them has."""
    return max(len(row.runs) for row in rows)


def _speedup(row: Compared) -> str:
    found = row.speedup
    if found is None:
        return "1" if row.precision == BASELINE else "not measured"
    if found.low is None:
        return f"{found.mean:.2f} (n={found.n}, {found.no_interval})"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def _tensor_cores(row: Compared) -> str:
    if row.runs[0].on_cpu:
        return "no GPU"
    share = row.runs[0].step["step_breakdown"]["tensor_core_share"]
    return "not measured" if share is None else f"{share:.0%}"


def _score(row: Compared) -> str:
    values = sorted(row.values(lambda run: run.score.value))
    return f"{figure(row.median(lambda run: run.score.value))} ({figure(values[0])} to {figure(values[-1])})"


def _errors(row: Compared) -> tuple[str, ...]:
    found = row.errors
    if found is None:
        return ("-",) * 5
    each = (found.first_loss, found.first_gradient, found.first_weights, found.last_loss, found.last_weights)
    return tuple(small(value, 0) for value in each)


def _skipped(run: Measured) -> float:
    """Steps that the loss scaling left out."""
    return run.value("loss_scale/skipped_steps")
