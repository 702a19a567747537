"""The settings of loaders in a figure: images a second, with the range of the samples, against the plainest."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from pipeline.report.canvas import BLUE, GREY, ORANGE, canvas, plain
from pipeline.stages.loading.bench import Bench

COLOURS = {"torch": ORANGE, "tensorflow": BLUE}


def draw(path: Path, bench: Bench) -> None:
    """A panel for each source; a bar for each setting, the limit of memory as a dotted line."""
    sources = [one for one in bench.sources if any(bars(bench, one))]
    if not sources:
        return
    most = max(len(bars(bench, source)) for source in sources)
    figure = canvas(2 + 4.6 * len(sources), 1 + 0.26 * most)
    panels = figure.subplots(1, len(sources), squeeze=False)[0]
    for axes, source in zip(panels, sources, strict=True):
        _panel(axes, bench, source)
    figure.savefig(path)


def bars(bench: Bench, source: str) -> list[tuple[str, str, list[float]]]:
    """Framework, setting and rates of each bar."""
    return [
        (framework, one.name, [each.rate for each in one.samples or one.final])
        for (where, framework), found in bench.found.items()
        for one in found
        if where == source and (one.samples or one.final)
    ]


def _panel(axes: Axes, bench: Bench, source: str) -> None:
    found = bars(bench, source)
    for place, (framework, _, rates) in enumerate(found):
        middle = sorted(rates)[len(rates) // 2]
        axes.barh(place, middle, color=COLOURS[framework], height=0.7)
        axes.plot([min(rates), max(rates)], [place, place], color="black", lw=1)
    axes.set_yticks(range(len(found)), [name for _, name, _ in found], fontsize=7)
    axes.invert_yaxis()
    if bench.limit is not None:
        axes.axvline(bench.limit.images_per_s(bench.sources[source].x), color=GREY, ls=":", label="limit of memory")
    for framework in dict.fromkeys(framework for framework, _, _ in found):
        axes.barh(0, 0, color=COLOURS[framework], label=framework)
    axes.set(xscale="log", xlabel="images/s", title=source)
    axes.legend(frameon=False, fontsize=7, loc="lower left")
    plain(axes)
