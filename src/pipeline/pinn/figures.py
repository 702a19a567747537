"""Figures of a solved problem: how the training went, the solution beside its reference, where it was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator
from matplotlib.tri import Triangulation

from pipeline.contracts.physics import Problem
from pipeline.pinn.errors import Measured
from pipeline.pinn.solution import Moment
from pipeline.report.canvas import BLUE, GREY, canvas, colour_of, mark_of, plain, save

SMALLEST = 1e-17  # an error below it is rounding, and a logarithmic axis shows nothing
FEW = 20  # moments of a history, up to which each has a mark (a line of one point shows nothing)


def loss_history(path: Path, history: Sequence[Moment], errors: Sequence[float], title: str) -> None:
    """The loss with its terms, and the relative L2 error, by step."""
    figure = canvas(9, 3.8)
    steps = [moment.step for moment in history]
    mark: dict[str, Any] = {"marker": "o", "ms": 3} if len(steps) <= FEW else {}
    axes = figure.add_subplot(1, 2, 1)
    if len(history[0].terms) > 1:
        for number, name in enumerate(history[0].terms, start=1):
            terms = _positive([moment.terms[name] for moment in history], above=0.0)
            far = len(steps) > FEW and np.isfinite(terms).any()  # matplotlib measures no line without a point
            line = f"{mark_of(number)}-"
            axes.plot(steps, terms, line, lw=1, ms=3, markevery=0.1 if far else 1, color=colour_of(number), label=name)
    losses = _positive([moment.loss for moment in history], above=0.0)
    axes.plot(steps, losses, lw=1.6, color=BLUE, label="loss", zorder=1, **mark)
    axes.set_ylabel("mean squared residual")
    axes.legend(frameon=False, fontsize=8)
    right = figure.add_subplot(1, 2, 2)
    right.plot(steps, _positive(errors), lw=1.6, color=BLUE, **mark)
    right.set_ylabel("relative L2 error")
    for each in (axes, right):
        each.set_yscale("log")
        _a_decade(each)
        each.set_xlabel("step")
        if len(steps) <= FEW:
            each.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain(each)
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def solution(path: Path, problem: Problem, measured: Measured, points: Mapping[str, np.ndarray], title: str) -> None:
    """The network and the reference, and the error between them; of one coordinate as curves, of two as maps."""
    caption = f"{title}: relative L2 error {measured.relative_l2:.2e}, maximum error {measured.largest:.2e}"
    if len(problem.domain.names) == 1:
        _curves(path, problem, measured, points, caption)
    else:
        _maps(path, problem, measured, caption)


def training_points(path: Path, problem: Problem, points: Mapping[str, np.ndarray], title: str) -> None:
    """Where the equations and the conditions were asked to hold."""
    names = problem.domain.names
    figure = canvas(5.4, 5.6) if len(names) > 1 else canvas(7, 1.2 + 0.45 * len(points))
    axes = figure.add_subplot()
    for number, (name, array) in enumerate(points.items()):
        colour, label = colour_of(number), f"{name} ({len(array):,})"
        heights = array[:, 1] if len(names) > 1 else np.full(len(array), -number)
        ms = 3 if len(array) > 200 else 4
        axes.plot(array[:, 0], heights, mark_of(number), ms=ms, alpha=0.8, color=colour, label=label)
    axes.set_xlabel(names[0])
    if len(names) > 1:
        axes.set_ylabel(names[1])
        _proportions(axes, problem)
    else:
        axes.set_yticks([-number for number in range(len(points))], [f"{n} ({len(a):,})" for n, a in points.items()])
        axes.set_ylim(-len(points) + 0.4, 0.6)
    if len(names) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    plain(axes)
    figure.suptitle(f"{title}: training points", fontsize=10, wrap=True)  # of the figure: the axes are narrower
    save(figure, path)


def _curves(path: Path, problem: Problem, measured: Measured, points: Mapping[str, np.ndarray], title: str) -> None:
    figure = canvas(9, 3.8)
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    x = measured.grid[:, 0]
    where = {name: array for name, array in points.items() if name == "inside" or len(points) == 1}
    for output in range(problem.outputs):
        colour, suffix = colour_of(output), f" {output + 1}" if problem.outputs > 1 else ""
        left.plot(
            x,
            measured.reference[:, output],
            color=GREY,
            lw=4,
            alpha=1 - output / problem.outputs / 2,
            label=f"reference{suffix}",
        )
        left.plot(x, measured.values[:, output], color=colour, lw=1.5, label=f"network{suffix}")
        error = np.abs(measured.values[:, output] - measured.reference[:, output])
        right.plot(x, _positive(error), color=colour, lw=1, label=f"error{suffix}")
        for array in where.values():
            at = problem.reference(array)[:, output]
            left.plot(array[:, 0], at, "o", ms=4, mfc="white", color=colour)
    right.set_yscale("log")
    right.set_ylabel("absolute error")
    for axes in (left, right):
        axes.set_xlabel(problem.domain.names[0])
        axes.xaxis.set_major_locator(MaxNLocator(6))
        plain(axes)
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)  # on no curve
    figure.suptitle(f"{title}\n(circles: the reference at the training points)", fontsize=10, wrap=True)
    save(figure, path)


def _maps(path: Path, problem: Problem, measured: Measured, title: str) -> None:
    """A row for each output: the network, the reference, the absolute error."""
    figure = canvas(12, 3.7 * problem.outputs)
    mesh = _mesh(problem, measured.grid)
    for output in range(problem.outputs):
        values, reference = measured.values[:, output], measured.reference[:, output]
        error = np.maximum(np.abs(values - reference), SMALLEST)
        low, high = float(reference.min()), float(reference.max())
        top = float(error.max())
        shades: list[tuple[str, np.ndarray, dict[str, Any]]] = [
            ("network", values, {"cmap": "viridis", "vmin": low, "vmax": high}),
            ("reference", reference, {"cmap": "viridis", "vmin": low, "vmax": high}),
            ("absolute error", error, {"cmap": "magma", "norm": LogNorm(top * 1e-4, top)}),
        ]
        for place, (name, shown, look) in enumerate(shades):
            axes = figure.add_subplot(problem.outputs, 3, 3 * output + place + 1)
            image = axes.tripcolor(mesh, shown, shading="gouraud", **look)
            beyond = "both" if name == "network" and (shown.min() < low or shown.max() > high) else "neither"
            figure.colorbar(image, ax=axes, shrink=0.85, extend=beyond)  # the reference's range is that of the network
            axes.set_title(name if problem.outputs == 1 else f"{name} {output + 1}", fontsize=9)
            axes.set_xlabel(problem.domain.names[0])
            axes.set_ylabel(problem.domain.names[1])
            _proportions(axes, problem)
    figure.suptitle(title, fontsize=10, wrap=True)
    save(figure, path)


def _mesh(problem: Problem, grid: np.ndarray) -> Triangulation:
    """Triangles between the grid's points, without those outside the domain."""
    mesh = Triangulation(grid[:, 0], grid[:, 1])
    centres = grid[mesh.triangles].mean(axis=1)
    mesh.set_mask(~problem.domain.contains(centres))
    return mesh


def _proportions(axes: Any, problem: Problem) -> None:
    """Equal scales where the coordinates are lengths; time has its own scale."""
    if "t" not in problem.domain.names:
        axes.set_aspect("equal")


def _positive(values: Sequence[float] | np.ndarray, above: float = SMALLEST) -> np.ndarray:
    """For a logarithmic axis, which has no 0: a gap stands there."""
    found = np.asarray(values, float)
    return np.where(found > above, found, np.nan)


def _a_decade(axes: Axes) -> None:
    """At least, on a logarithmic axis of heights: less of one has no two marks that read apart."""
    low, high = axes.get_ylim()
    if high < 10 * low:
        axes.set_ylim(low / 3, high * 3)
