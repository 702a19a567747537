"""The study's figures, drawn by matplotlib without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.canvas import canvas, colour_of, log_labels, mark_of, plain, save, striped
from pipeline.report.table import size
from pipeline.stages.amp.compare import Compared

SMOOTH = 20  # records of the journal that the line of a loss curve is the mean of, at most


def speed_against_error(path: Path, rows: Sequence[Compared], title: str) -> None:
    """The rate of each run against its precision's error of the first gradient; no figure where none has an error."""
    if all(row.errors is None for row in rows):
        return
    figure, axes = _axes(6.4, 4)
    for index, row in enumerate(rows):
        if row.errors is None:
            continue
        rates, colour = row.values(lambda run: run.units_per_s), colour_of(index)
        axes.plot([row.errors.first_gradient] * len(rates), rates, "o", color=colour, alpha=0.6)
        label = (row.errors.first_gradient, row.median(lambda run: run.units_per_s))
        axes.annotate(row.precision, label, (7, 0), textcoords="offset points", va="center", fontsize=9, color=colour)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.1 * max(max(row.values(lambda run: run.units_per_s)) for row in rows))
    axes.margins(x=0.25)
    axes.set_xlabel("relative error of the first gradient, against fp64")
    axes.set_ylabel(f"training, {rows[0].unit}")
    axes.set_title(title, fontsize=10)
    save(figure, path)


def memory(path: Path, rows: Sequence[Compared], title: str) -> None:
    """Peak memory of each precision; beside it that of the weights alone."""
    figure, axes = _axes(6.4, 0.9 + 0.45 * len(rows))
    for index, row in enumerate(rows):
        peak = row.median(lambda run: run.peak_bytes) / 2**20
        axes.barh(index, peak, color=colour_of(index), alpha=0.7)
        weights = size(row.runs[0].weight_bytes)
        axes.text(peak, index, f"  {peak:,.0f} MiB (weights {weights})", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.precision for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.4)
    axes.set_xlabel("peak memory, MiB")
    axes.set_title(title, fontsize=10)
    save(figure, path)


def losses(path: Path, rows: Sequence[Compared], title: str) -> None:
    """The training loss of each precision's first run: points as journalled, their running mean as a line."""
    figure, axes = _axes(7.2, 4)
    for index, row in enumerate(rows):
        steps, values = row.runs[0].losses()
        width = max(1, min(SMOOTH, len(values) // 5))
        smooth = [sum(values[i : i + width]) / width for i in range(len(values) - width + 1)]
        axes.plot(steps, values, ".", ms=2, color=colour_of(index), alpha=0.25)
        axes.plot(steps[width - 1 :], smooth, color=colour_of(index), ls=striped(index, len(rows)), label=row.precision)
    axes.set_yscale("log")
    log_labels(axes.yaxis)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    figure.legend(frameon=False, fontsize=8, handlelength=6, loc="outside right center")
    axes.set_title(title, fontsize=10)
    save(figure, path)


def loss_scales(path: Path, rows: Sequence[Compared], title: str) -> None:
    """The scale of the loss after each step, of each precision's first run that has one."""
    figure, axes = _axes(7.2, 3)
    for index, row in enumerate(rows):
        scale = row.runs[0].loss_scale
        if scale is not None:
            steps = [0, *(change["step"] for change in scale["changes"]), row.runs[0].losses()[0][-1]]
            values = [scale["initial"], *(change["scale"] for change in scale["changes"]), scale["final"]]
            axes.step(
                steps, values, f"{mark_of(index)}-", ms=4, where="post", color=colour_of(index), label=row.precision
            )
    axes.set_yscale("log", base=2)
    axes.set_xlabel("step")
    axes.set_ylabel("scale of the loss")
    figure.legend(frameon=False, fontsize=8, loc="outside right center")
    axes.set_title(title, fontsize=10)
    save(figure, path)


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = canvas(width, height)
    axes = figure.add_subplot()
    plain(axes)
    return figure, axes
