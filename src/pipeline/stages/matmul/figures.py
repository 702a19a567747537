"""The products in a figure: GFLOP/s against the size, the ceiling, and where a GPU begins to win."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from pipeline.errors import plural
from pipeline.machine.device import gpus
from pipeline.machine.host import cpu_name
from pipeline.report.canvas import GREY, apart, canvas, colour_of, log_labels, mark_of, plain, save
from pipeline.report.table import digits
from pipeline.stages.matmul.bench import Bench, Side
from pipeline.stages.matmul.rates import Rates
from pipeline.stages.matmul.tables import crossovers, medians_of

TEXT: dict[str, Any] = {"fontsize": 8, "color": "#4a5568"}


def draw(path: Path, bench: Bench) -> None:
    """A panel for each dtype that was timed; a bar at each mark is the interval of its median."""
    timed = list(bench.timed)
    dtypes = [dtype for dtype in bench.plan.dtypes if any(one.found.dtype == dtype for _, one in timed)]
    if not dtypes:
        return
    columns = min(2, len(dtypes))
    rows = -(-len(dtypes) // columns)
    figure = canvas(1 + 4.2 * columns, 0.8 + 3.2 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(dtypes) :]:
        axes.set_visible(False)
    for axes, dtype in zip(panels.flat, dtypes, strict=False):
        _panel(axes, bench, dtype, [(side, one) for side, one in timed if one.found.dtype == dtype])
    for axes in panels[:, 0]:
        axes.set_ylabel("GFLOP/s")
    for axes in panels.flat[len(dtypes) - columns : len(dtypes)]:  # the last of each column
        axes.set_xlabel("N")
        axes.tick_params(labelbottom=True)  # left out by shared axes, also above a place that is empty
    lines = {line.get_label(): line for axes in panels.flat for line in axes.get_lines() if line.get_label()[0] != "_"}
    figure.legend(lines.values(), lines.keys(), frameon=False, fontsize=8, loc="outside right upper")
    figure.suptitle(_title(bench, dtypes), fontsize=10, wrap=True)
    save(figure, path)


def _title(bench: Bench, dtypes: Sequence[str]) -> str:
    """What is seen, where it was measured, of how many samples; what bars and dotted lines are, where there are any."""
    timed = [one for _, one in bench.timed]
    places = {side.place for side in bench.plan.sides}
    cards = [f"gpu:{gpu.index}: {gpu.name}" for gpu in gpus() if f"gpu:{gpu.index}" in places]
    where = ", ".join((cpu_name(), plural(bench.plan.cores, "core"), *cards))
    bars = "; bars: 95 % intervals" if any(one.rate.ends for one in timed) else ""
    wins = "; dotted: a GPU is quicker from there on" if any(any(crossovers(bench, one)) for one in dtypes) else ""
    return f"products of N × N matrices on {where}\n{medians_of(timed)}{bars}{wins}"


def _panel(axes: Axes, bench: Bench, dtype: str, timed: list[tuple[Side, Rates]]) -> None:
    for number, side in enumerate(bench.plan.sides):
        ours = [one for at, one in timed if at == side]
        if not ours:
            continue
        sizes = [one.found.size for one in ours]
        style: dict[str, Any] = {"marker": mark_of(number), "ms": 4, "lw": 1, "color": colour_of(number)}
        axes.plot(sizes, [one.rate.median for one in ours], label=side.label, **style)
        low, high = zip(*(one.rate.ends or (one.rate.median,) * 2 for one in ours), strict=True)
        axes.vlines(sizes, low, high, colors=colour_of(number), lw=1)
        copied = [(one.found.size, one.with_copies.median) for one in ours if one.with_copies]
        if copied:
            axes.plot(*zip(*copied, strict=True), ls="--", label=f"{side.label}, with copies", **style)
    known = [one.ceiling for _, one in timed if one.ceiling is not None]
    if known:
        ceiling = statistics.median(known)
        axes.axhline(ceiling, color=GREY, lw=1.2)
        axes.annotate(
            f"multiply-adds on registers, {digits(ceiling)}",
            (0, ceiling),
            (4, -10),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            **TEXT,
        )
    for side, copies, at in crossovers(bench, dtype):
        axes.axvline(at, color=colour_of(bench.plan.sides.index(side)), lw=0.8, ls="--" if copies else ":")
        axes.text(at, 0.02, f" {at:,}", transform=axes.get_xaxis_transform(), **TEXT)
    axes.set(xscale="log", yscale="log")
    shown = apart(bench.plan.sizes)
    axes.set_xticks(shown, [str(size) for size in shown], fontsize=8)
    axes.minorticks_off()
    log_labels(axes.yaxis)
    axes.set_title(dtype, fontsize=10)
    plain(axes)
