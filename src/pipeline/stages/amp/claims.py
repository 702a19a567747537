"""What textbooks promise of halving the width of a number (row A16), beside what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.report.table import change
from pipeline.stages.amp import BASELINE
from pipeline.stages.amp.compare import Compared, score_changes
from pipeline.stages.amp.measured import Measured

# Wide and narrow: each halves the bytes of the products' operands.
HALVINGS = (
    ("fp64", "fp32"),
    ("fp32", "fp16"),
    ("fp32", "bf16"),
    ("fp32", "mixed"),
    ("fp32", "mixed_fp16"),
    ("fp32", "mixed_bf16"),
)


@dataclass(frozen=True)
class Claim:
    """`measured`: for each halving of `halvings`, narrow against wide."""

    text: str
    claimed: str
    measured: tuple[str, ...]


def halvings(rows: Sequence[Compared]) -> list[tuple[Compared, Compared]]:
    """The pairs of HALVINGS, a wide and a narrow precision, of which both were run."""
    by_name = {row.precision: row for row in rows}
    return [(by_name[wide], by_name[narrow]) for wide, narrow in HALVINGS if wide in by_name and narrow in by_name]


def claims(rows: Sequence[Compared], *, on_cpu: bool) -> list[Claim]:
    """Each claim about narrow numbers, with what was measured of each pair of `halvings`."""
    pairs = halvings(rows)

    def ratio(of: Callable[[Measured], float]) -> tuple[str, ...]:
        return tuple(_ratio(wide, narrow, of) for wide, narrow in pairs)

    found = [
        Claim("bytes of the weights", "0.5x", ratio(lambda run: run.weight_bytes)),
        Claim("peak memory", "0.5x", ratio(lambda run: run.peak_bytes)),
        Claim("numbers moved a second", "2x", ratio(lambda run: run.step["machine"]["moved_per_s"])),
        Claim("bare products a second", "2x", ratio(lambda run: run.step["machine"]["FLOP_per_s"])),
        Claim(f"training, {rows[0].unit}, medians", "2x", ratio(lambda run: run.units_per_s)),
        Claim(rows[0].score, "worse", tuple(_change(*pair) for pair in pairs)),
    ]
    if on_cpu:
        found.append(Claim("on a CPU, mixed is slower", "below 1x", tuple(_mixed(*pair) for pair in pairs)))
    return found


def _ratio(wide: Compared, narrow: Compared, of: Callable[[Measured], float]) -> str:
    """Of the medians over the seeds that both have: of fp64 there is the first alone."""
    ours, theirs = ([of(run) for run in one.beside(other)] for one, other in ((narrow, wide), (wide, narrow)))
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}x" if ours else "-"


def _change(wide: Compared, narrow: Compared) -> str:
    changes = score_changes(narrow, wide)
    return change(statistics.fmean(changes)) if changes else "-"


def _mixed(wide: Compared, narrow: Compared) -> str:
    if not narrow.effective.startswith("mixed") or wide.precision != BASELINE or narrow.speedup is None:
        return "-"
    if narrow.speedup.low is None:
        return f"{narrow.speedup.mean:.2f}x, n={narrow.speedup.n}"
    return "true" if narrow.speedup.loses else "false" if narrow.speedup.gains else "undecided"
