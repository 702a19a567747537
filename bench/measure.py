"""Measuring whole commands: sides take turns within each round, and a figure is the median over the rounds."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.machine.environment import environment
from pipeline.machine.host import cpu, cpu_name
from pipeline.runs.result import read_result, values

COMPUTES = ("torch", "jax", "jaxlib", "tensorflow", "keras", "triton", "numpy")
PEERS = Path(__file__).parent / "peers"
Row = Mapping[str, Any]
LONGEST_S = 4 * 3600.0  # of one command: longer than any takes, so that one that hangs ends


@dataclass
class Side:
    """One of the things compared: a name, and a function that runs it once and returns what it measured."""

    name: str
    once: Callable[[], Mapping[str, float]]
    seen: list[Mapping[str, float]] = field(default_factory=list)

    def values(self, figure: str) -> list[float]:
        return [row[figure] for row in self.seen]

    def median(self, figure: str) -> float:
        return statistics.median(self.values(figure))


def alternate(sides: Sequence[Side], rounds: int, *, uncounted: int = 1) -> None:
    """An uncounted round, then `rounds` counted ones, the sides in turn, every other round backwards.

    `uncounted=0`: of sides that take minutes, which the first reading of a file does not change.
    """
    for number in range(1 - uncounted, rounds + 1):
        for side in sides if number % 2 == 0 else list(reversed(sides)):
            row = side.once()
            if number:
                side.seen.append(row)
            print(f"  {number}/{rounds} {side.name}: {_brief(row)}", file=sys.stderr, flush=True)


def ratios(ours: Side, peer: Side, figure: str) -> list[float]:
    """ours / peer, round by round: what drifts with the machine cancels."""
    return [a / b for a, b in zip(ours.values(figure), peer.values(figure), strict=True)]


def figure_rows(sides: Sequence[Side], figure: str, unit: str) -> list[dict[str, object]]:
    """The table's row of each side."""
    return [row(side.name, side.values(figure), unit) for side in sides]


def row(what: str, values: Sequence[float], unit: str) -> dict[str, object]:
    """One row of the table: median, range and count. The median of values of which one is NaN is NaN."""
    return {
        "what": what,
        "unit": unit,
        "median": math.nan if any(map(math.isnan, values)) else statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def not_measured(what: str, unit: str) -> dict[str, object]:
    """The row of what should have been measured and was not: without a number, as NaN has no place in JSON."""
    return {"what": what, "unit": unit, "median": None, "min": None, "max": None, "n": 0}


def with_range(ratio: Row, rates: Mapping[str, Row], ours: str, theirs: str) -> dict[str, Any]:
    """A ratio of two of `rates`, by their names: from the lowest to the highest that the samples of both allow.

    Its n is the lesser of theirs. Unchanged where one of the two is missing.
    """
    if ours not in rates or theirs not in rates:
        return dict(ratio)
    a, b = rates[ours], rates[theirs]
    return {**ratio, "min": a["min"] / b["max"], "max": a["max"] / b["min"], "n": min(a["n"], b["n"])}


def at_least(found: dict[str, object], limit: float) -> dict[str, object]:
    """A row with a floor for its median, and whether it is met. Written so that NaN is not."""
    return {**found, "limit": f"at least {limit}", "met": _median(found) >= limit}


def at_most(found: dict[str, object], limit: float) -> dict[str, object]:
    """A row with a ceiling for its median, and whether it is met."""
    return {**found, "limit": f"at most {limit}", "met": _median(found) <= limit}


def agree(sides: Sequence[Side], figure: str, tolerance: float) -> None:
    """Verify before believing a time: the sides' results agree. Written so that NaN fails."""
    values = [value for side in sides for value in side.values(figure)]
    if not all(map(math.isfinite, values)) or not max(values) - min(values) <= tolerance:
        raise SystemExit(f"{figure} differs by more than {tolerance}: {sorted(values)}; no time is worth anything")


def all_below(sides: Sequence[Side], figure: str, bound: float) -> None:
    """Verify before believing a time: every result is below a bound. Written so that NaN fails."""
    for side in sides:
        values = side.values(figure)
        if not all(value <= bound for value in values):
            raise SystemExit(f"{side.name}: {figure} is above {bound}: {values}; no time is worth anything")


def peer(script: str, *arguments: str) -> dict[str, float]:
    """Run a script of bench/peers in its own process; its last line is its figures as JSON."""
    command = [sys.executable, str(PEERS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def pipeline(*overrides: str, terminal: bool = False) -> dict[str, Any]:
    """Run `python -m pipeline` in its own folder; the receipt and the result it left."""
    with tempfile.TemporaryDirectory() as folder:
        run = pipeline_in(folder, *overrides, terminal=terminal)
        receipt = json.loads((run / "receipt.json").read_text())
        result = read_result(run)
        assert result is not None
    return {"receipt": receipt, **values(result.last_epoch), **values(result.metrics)}


def pipeline_in(folder: str, *overrides: str, terminal: bool = False) -> Path:
    """Run `python -m pipeline` in a folder; the folder of its run."""
    command = [sys.executable, "-m", "pipeline", *overrides]
    status, said = _in_terminal(command, folder) if terminal else _in_silence(command, folder)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with status {status}:\n{said[-2000:]}")
    return next((Path(folder) / "runs").iterdir())


def wall(command: Sequence[str], status: int = 0, folder: str | None = None) -> dict[str, float]:
    """Seconds that a command takes as a whole process. It must end with `status`."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=LONGEST_S)
    seconds = time.perf_counter() - started
    if done.returncode != status:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}, not {status}:\n{done.stderr.decode()}")
    return {"seconds": seconds}


def machine() -> dict[str, Any]:
    """Hardware and system, to stand beside every figure."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",  # without the builder's own suffix
        "date": time.strftime("%Y-%m-%d"),
    }


def conditions() -> dict[str, Any]:
    """What stands in each entry, as another of the day may be of another: processor, versions, deciding variables."""
    return {"processor": cpu(), "versions": versions(), "environment": environment()}


def versions() -> dict[str, str]:
    """Of Python and the frameworks that are installed."""
    found = {"python": platform.python_version()}
    for name in COMPUTES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _in_silence(command: Sequence[str], folder: str) -> tuple[int, str]:
    """The status, and what was said on standard error."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    return done.returncode, done.stderr


def _in_terminal(command: Sequence[str], folder: str) -> tuple[int, str]:
    """Run with a terminal for standard output and error, so that progress is drawn. The status, and what was drawn."""
    drawn = b""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=folder, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        try:
            while read := os.read(ours, 1 << 16):
                drawn = (drawn + read)[-(1 << 16) :]
        except OSError:  # the other end was closed: the command has ended
            pass
        os.close(ours)
        return process.wait(), drawn.decode(errors="replace")


def _median(found: Mapping[str, object]) -> float:
    """Of a row; NaN, which reaches no limit, where nothing was measured."""
    return float(str(found["median"])) if found["n"] else math.nan


def _brief(row: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:,.4g}" for name, value in row.items())
