"""Precisions against each other: speed against fp32, numbers against fp64, run by run of the same seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.report.intervals import ALL_THE_SAME, CONFIDENCE, LEAST_RUNS, TOO_FEW, half_width, why_none
from pipeline.report.table import change
from pipeline.stages.amp import BASELINE, REFERENCE
from pipeline.stages.amp.measured import Measured


@dataclass(frozen=True)
class Ratio:
    """A ratio over `n` pairs of runs: the geometric mean, with its confidence interval where the pairs are enough.

    The interval is Student's, of the logarithms (pipeline.report.intervals); None below three pairs.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        logs = [math.log(ratio) for ratio in ratios]
        mean, n = statistics.fmean(logs), len(logs)
        half = half_width(logs)
        if half is None:
            return cls(math.exp(mean), None, None, n)
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n)

    @property
    def no_interval(self) -> str:
        """Why the ratio has no confidence interval, in words."""
        return TOO_FEW if self.n < LEAST_RUNS else ALL_THE_SAME

    @property
    def gains(self) -> bool:
        """Whether the whole interval is above one."""
        return self.low is not None and self.low > 1

    @property
    def seems_to_gain(self) -> bool:
        """The same; where the pairs are too few for an interval, whether the mean is above one."""
        return self.mean > 1 if self.low is None else self.gains

    @property
    def loses(self) -> bool:
        """Whether the whole interval is below one."""
        return self.high is not None and self.high < 1


@dataclass(frozen=True)
class Errors:
    """Relative to the fp64 run of the same seed; the median over the seeds that have one (in a study, the first)."""

    first_loss: float
    first_gradient: float
    first_weights: float
    last_loss: float
    last_weights: float


@dataclass(frozen=True)
class Compared:
    """One precision. `speedup` over fp32; None where there is nothing to compare with."""

    precision: str
    runs: tuple[Measured, ...]
    speedup: Ratio | None
    errors: Errors | None

    @property
    def effective(self) -> str:
        return self.runs[0].effective

    @property
    def unit(self) -> str:
        """The unit of the rate, such as "images/s"."""
        return self.runs[0].rate.unit

    @property
    def score(self) -> str:
        """What the test set is judged by: "test accuracy"."""
        return self.runs[0].score.name.replace("/", " ")

    def values(self, of: Callable[[Measured], float]) -> list[float]:
        """What `of` gives for each of the runs."""
        return [of(run) for run in self.runs]

    def median(self, of: Callable[[Measured], float]) -> float:
        return statistics.median(self.values(of))

    def beside(self, other: Compared) -> tuple[Measured, ...]:
        """Its runs of the seeds that the other has too: medians of others compare seeds with other seeds."""
        seeds = {run.seed for run in other.runs}
        return tuple(run for run in self.runs if run.seed in seeds)


def compare(runs: Sequence[Measured]) -> list[Compared]:
    """Every precision of `runs`, in their order."""
    by_name: dict[str, dict[int, Measured]] = {}
    for run in runs:
        by_name.setdefault(run.precision, {})[run.seed] = run
    return [
        Compared(
            precision=name,
            runs=tuple(found.values()),
            speedup=None if name == BASELINE else _speedup(found, by_name.get(BASELINE, {})),
            errors=None if name == REFERENCE else _errors(found, by_name.get(REFERENCE, {})),
        )
        for name, found in by_name.items()
    ]


def _speedup(runs: Mapping[int, Measured], baseline: Mapping[int, Measured]) -> Ratio | None:
    pairs = [runs[seed].units_per_s / baseline[seed].units_per_s for seed in runs if seed in baseline]
    return Ratio.of(pairs) if pairs else None


def _errors(runs: Mapping[int, Measured], reference: Mapping[int, Measured]) -> Errors | None:
    pairs = [(runs[seed], reference[seed]) for seed in runs if seed in reference]
    if not pairs:
        return None

    def median(of: Callable[[Measured], float | np.ndarray]) -> float:
        return statistics.median(distance(of(run), of(exact)) for run, exact in pairs)

    return Errors(
        first_loss=median(lambda run: float(run.step["loss"])),
        first_gradient=median(lambda run: run.gradients),
        first_weights=median(lambda run: run.first_weights),
        last_loss=median(lambda run: run.value("test/loss")),
        last_weights=median(lambda run: run.last_weights),
    )


def distance(found: float | np.ndarray, exact: float | np.ndarray) -> float:
    """Relative error: the norm of the difference over the norm of what is exact."""
    return float(np.linalg.norm(np.subtract(found, exact)) / np.linalg.norm(exact))


def verdict(row: Compared, baseline: Compared | None) -> str:
    """In words: what this precision gains over fp32, and what it costs."""
    if baseline is None or row.speedup is None:
        return f"{row.precision}: no {BASELINE} run to compare with"
    speed = row.speedup
    if speed.low is None or speed.high is None:
        pairs = "one pair of runs" if speed.n == 1 else f"{speed.n} pairs of runs"
        result = f"{speed.mean:.2f}x the speed of {BASELINE} in {pairs}: {speed.no_interval} for an interval"
        result += "" if row.precision == REFERENCE or speed.n >= LEAST_RUNS else " (stage.repeats=3 gives one)"
    elif speed.gains:
        result = f"faster: {speed.mean:.2f}x the speed of {BASELINE} ({speed.low:.2f} to {speed.high:.2f})"
    elif speed.loses:
        result = f"slower: {speed.mean:.2f}x the speed of {BASELINE} ({speed.low:.2f} to {speed.high:.2f})"
    else:
        result = f"no difference in speed shown by {speed.n} pairs of runs ({speed.low:.2f} to {speed.high:.2f}x)"
    return f"{row.precision}: {result}; {_score(row, baseline)}"


def _score(row: Compared, baseline: Compared) -> str:
    """Whether the test score differs, the seeds' own spread being the yardstick."""
    changes, name = score_changes(row, baseline), row.score
    if not changes:
        return f"{name} not compared: no seed in common"
    mean, half = statistics.fmean(changes), half_width(changes)
    if half is None:
        return f"{name} {change(mean)} (n={len(changes)}, {why_none(changes)})"
    ends = f"+-{change(half)[1:]}"
    if abs(mean) <= half:
        return f"no difference in {name} shown ({change(mean)}, {CONFIDENCE:.0%} interval {ends})"
    return f"{name} {'higher' if mean > 0 else 'lower'} ({change(mean)} {ends})"


def score_changes(row: Compared, baseline: Compared) -> list[float]:
    """By how much the test score changes, seed by seed."""
    before = {run.seed: run.score.value for run in baseline.runs}
    return [run.score.value - before[run.seed] for run in row.runs if run.seed in before]
