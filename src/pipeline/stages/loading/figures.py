"""The settings of loaders in a figure: images a second, with the range of the samples."""

from __future__ import annotations

import statistics
from pathlib import Path

from matplotlib.axes import Axes

from pipeline.errors import plural
from pipeline.machine.host import cpu_name
from pipeline.report.canvas import BLUE, GREY, ORANGE, canvas, log_labels, plain, save
from pipeline.stages.loading.bench import Bench

COLOURS = {"torch": ORANGE, "tensorflow": BLUE}
COPYING = "copying large arrays"


def draw(path: Path, bench: Bench) -> None:
    """A panel for each source; a mark for each setting at its median, the rate of copying as a dotted line."""
    panels = {source: found for source in bench.sources if (found := marks(bench, source))}
    if not panels:
        return
    figure = canvas(2 + 4 * len(panels), 1.4 + 0.24 * max(map(len, panels.values())))
    every = figure.subplots(1, len(panels), sharex=True, squeeze=False)[0]
    for axes, (source, found) in zip(every, panels.items(), strict=True):
        _panel(axes, found)
        if bench.limit is not None:
            axes.axvline(bench.limit.images_per_s(bench.sources[source].x), color=GREY, ls=":", label=COPYING)
        axes.set_title(source, fontsize=10)
    named = {name: one for axes in every for one, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    shown = sorted(named, key=[*COLOURS, COPYING].index)
    lines = [named[name] for name in shown]
    figure.legend(lines, shown, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    counts = {len(rates) for found in panels.values() for *_, rates in found}
    figure.suptitle(_title(bench.job.cores, counts), fontsize=10)
    save(figure, path)


def _title(cores: int, counts: set[int]) -> str:
    """What is seen, where it was measured, of how many samples."""
    of = " to ".join(map(str, sorted({min(counts), max(counts)})))
    spread = f"medians of {of} samples, with their ranges" if max(counts) > 1 else "one sample each"
    return f"the loader's settings on {cpu_name()}, {plural(cores, 'core')}\n{spread}"


def marks(bench: Bench, source: str) -> list[tuple[str, str, list[float]]]:
    """Framework, setting and rates of each mark."""
    return [
        (framework, one.setting.beside(found[0].setting), [each.rate for each in one.samples or one.final])
        for (where, framework), found in bench.found.items()
        for one in found
        if where == source and (one.samples or one.final)
    ]


def _panel(axes: Axes, found: list[tuple[str, str, list[float]]]) -> None:
    for place, (framework, _, rates) in enumerate(found):
        colour = COLOURS[framework]
        axes.plot([min(rates), max(rates)], [place, place], color=colour, lw=1.5)
        axes.plot(statistics.median(rates), place, "o", color=colour, ms=5, label=framework)
    axes.set_yticks(range(len(found)), [name for _, name, _ in found], fontsize=7)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="images/s")
    log_labels(axes.xaxis)
    axes.tick_params(axis="x", labelsize=7)
    plain(axes)
