"""Latency and rate against the size of the batch."""

from __future__ import annotations

import statistics
from pathlib import Path

from pipeline.report.canvas import BLUE, ORANGE, canvas, log_labels, plain, save
from pipeline.stages.inference.tables import Found


def draw(path: Path, found: Found, title: str) -> None:
    """Two panels; bars: from the lowest to the highest round, and up to the 99th percentile of latencies."""
    sizes = [one.batch for one in found.timed]
    figure = canvas(8, 3.6)
    left, right = figure.subplots(1, 2)
    latency = [1e3 * one.latency_s for one in found.timed]
    above = [1e3 * (one.tail_s or one.latency_s) - middle for one, middle in zip(found.timed, latency, strict=True)]
    left.errorbar(sizes, latency, [[0.0] * len(sizes), above], color=BLUE, marker="o", ms=4, capsize=2)
    left.set(ylabel="latency, ms")
    rates = [found.rates(one) for one in found.timed]
    middle = [statistics.median(each) for each in rates]
    ends = [[abs(at - end(each)) for at, each in zip(middle, rates, strict=True)] for end in (min, max)]
    right.errorbar(sizes, middle, ends, color=ORANGE, marker="s", ms=4, capsize=2)
    right.set(ylabel=f"{found.unit}/s")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="examples in a batch")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        log_labels(axes.yaxis)
        plain(axes)
    bars = "bars: up to the 99th percentile, where there are enough calls; the lowest and the highest round"
    figure.suptitle(f"{title}\nmedians; {bars}", fontsize=10, wrap=True)
    save(figure, path)
