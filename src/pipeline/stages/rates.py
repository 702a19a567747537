"""How fast a training went, and how a stage that compares trainings reads their rate and score: by their task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.runs.fit import Epoch
from pipeline.runs.result import Metric, rate
from pipeline.runs.run import Run, seconds_since_start


def steady(epochs: tuple[Epoch, ...]) -> tuple[Epoch, ...]:
    """The epochs that a rate is taken from: not the first of each process, unless there are no others."""
    return tuple(epoch for epoch in epochs if not epoch.cold) or epochs


def left_out(epochs: tuple[Epoch, ...], period: str = "epoch") -> str:
    """What `steady` leaves out, in words, or that it leaves out nothing. `period`: what an epoch of these is called."""
    cold = sum(epoch.cold for epoch in epochs)
    if cold == len(epochs):
        word, *key = period.split(" ", 1)
        several = f"{cold} {' '.join((f'{word}s', *key))}, each with a cold start, which is included"
        return f"one {period}, cold start included" if cold == 1 else several
    also = f" and {cold - 1} of a resumption" if cold > 1 else ""
    return f"the first {period}{also}, cold, not counted"


def median_rate(epochs: tuple[Epoch, ...]) -> float:
    """Training units (images, tokens, ...) per second, the median over the steady epochs."""
    return float(np.median([epoch.units_per_s for epoch in steady(epochs)]))


def rate_metrics(run: Run, epochs: tuple[Epoch, ...], unit: str) -> tuple[Metric, ...]:
    """The rate of training, in `unit` a second: under another name where a profiler ran, with what its window cost."""
    if run.profile is None:
        return (rate(f"{unit}_per_s", median_rate(epochs), unit),)
    times = {name: run.profile.get(name) for name in ("step_s", "step_after_s", "overhead")}
    cost = tuple(
        Metric(f"profiler/{name}", value, "" if name == "overhead" else "s", "time", "min")
        for name, value in times.items()
        if value is not None
    )
    return rate(f"{unit}_per_s_with_profiler", median_rate(epochs), unit), *cost


def timings(run: Run, epochs: tuple[Epoch, ...], unit: str, of_others: float | None = None) -> dict[str, Any]:
    """How long what took, and the rate of training. `of_others`: the part of the cores that other processes had."""
    counted = steady(epochs)
    rates = [epoch.units_per_s for epoch in counted]
    profiled = {} if run.profile is None else {"profile": run.profile}
    return {
        **profiled,
        "wall_time_s": run.earlier_s + seconds_since_start(),
        "training_s": sum(epoch.seconds for epoch in epochs),
        **run.marks,
        "training_rate": {
            "unit": f"{unit}/s",
            "median": float(np.median(rates)),
            "min": min(rates),
            "max": max(rates),
            "n": len(rates),
            "timed_s": sum(epoch.seconds for epoch in counted),
            "cold": all(epoch.cold for epoch in epochs),  # so that these are in it
            "with_profiler": run.profile is not None,
            "cores_of_others": of_others,
        },
    }


def score_of(receipt: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Metric:
    """How good a finished run is on the test set: its task's score, or the loss where the task has none."""
    return metrics[f"test/{receipt['task']['score'] or 'loss'}"]
