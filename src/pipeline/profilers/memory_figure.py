"""The figure of a memory profile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pipeline.report.canvas import COLOURS, canvas, save


def timeline(path: Path, samples: Sequence[tuple[float, int, tuple[int, ...]]], columns: Sequence[str]) -> None:
    """Bytes over seconds, a curve for each column; a dotted line where a step begins. Sample: seconds, step, bytes."""
    figure = canvas(8, 3.6)
    axes = figure.add_subplot()
    seconds = [1000 * moment for moment, _, _ in samples]
    for index, (name, colour) in enumerate(zip(columns, COLOURS, strict=False)):
        mebibytes = [values[index] / 2**20 for _, _, values in samples]
        axes.plot(seconds, mebibytes, color=colour, lw=1, label=name.removesuffix("_bytes"))
    for step, group in groupby(samples, key=lambda sample: sample[1]):
        start = 1000 * next(group)[0]
        axes.axvline(start, color="#a0aec0", ls=":", lw=0.8)
        axes.annotate(f" {step}", (start, 1), xycoords=("data", "axes fraction"), va="top", fontsize=7)
    axes.set_xlabel("milliseconds since the window opened (numbers: the step that begins)")
    axes.set_ylabel("MiB")
    axes.ticklabel_format(useOffset=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)
