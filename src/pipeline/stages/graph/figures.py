"""The crossover in a figure: seconds of a step against the number of steps that share the first calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pipeline.backends.shared.form_bench import Found
from pipeline.errors import plural
from pipeline.machine.host import cpu_name
from pipeline.report.canvas import canvas, colour_of, mark_of, plain, save
from pipeline.stages.graph.amortised import cost, with_first
from pipeline.stages.graph.bench import Bench
from pipeline.stages.graph.processes import Job
from pipeline.stages.graph.tables import crossed

BEYOND = 10  # how much further than the largest number of steps a crossover is still shown


def draw(path: Path, bench: Bench) -> None:
    """A panel for each framework; lines by first calls and median, marks by the samples of so many steps."""
    timed = {framework: found for framework, found in bench.ways.items() if any(one.samples for one in found)}
    if not timed:
        return
    figure = canvas(1 + 3.6 * len(timed), 4.4)
    panels = figure.subplots(1, len(timed), sharey=True, squeeze=False)[0]
    for axes, (framework, found) in zip(panels, timed.items(), strict=True):
        _panel(axes, found)
        axes.set_title(framework, fontsize=10)
    panels[0].set_ylabel("seconds a step, first calls included")
    figure.suptitle(_title(bench.job), fontsize=10, wrap=True)
    save(figure, path)


def _title(job: Job) -> str:
    """What is seen, where it was measured, of how many samples."""
    sizes = ", ".join(map(str, (*job.net.x.shape, *job.net.w2.shape)))
    where = f"{cpu_name()}, {plural(job.cores, 'core')}" if job.place == "cpu" else job.place
    return (
        f"a step of the two-layer net {sizes} on {where}; medians of {job.rounds}, of first calls {job.starts}\n"
        "marks: measured; lines: by the first calls and a later step; dotted: quicker than eager from there on"
    )


def _panel(axes: Axes, found: Sequence[Found]) -> None:
    timed = [one for one in found if one.samples]
    most = max(n for one in timed for n in one.samples)
    crossings = {one.name: at for one in timed if (at := crossed(found, one)) is not None and at <= BEYOND * most}
    right = max([most, *crossings.values()])
    for number, one in enumerate(timed):
        ours, colour = cost(one), colour_of(number)
        assert ours is not None
        line = np.unique(np.geomspace(1, right, 100).astype(int))
        axes.plot(line, [ours.of(int(n)) / n for n in line], color=colour, lw=1, alpha=0.7)
        marks = sorted(one.samples)
        style: dict[str, Any] = {"marker": mark_of(number), "ms": 4, "color": colour, "ls": ""}
        axes.plot(marks, [with_first(one, n) for n in marks], label=one.how, **style)
        if one.name in crossings:
            at = crossings[one.name]
            axes.axvline(at, color=colour, lw=0.8, ls=":")
            axes.text(at, 1, f" {at:,}", color=colour, fontsize=8, transform=axes.get_xaxis_transform(), va="top")
    axes.set(xscale="log", yscale="log", xlabel="steps")
    plain(axes)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))  # hides no line there
