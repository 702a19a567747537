"""The bench in figures: the roofline, the share against the size, the ladder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import atan, ceil, degrees, floor, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import offset_copy

from pipeline.errors import plural
from pipeline.kernels.cpu.ceilings import Ceilings
from pipeline.report.canvas import BLUE, GREY, ORANGE, apart, canvas, colour_of, log_labels, mark_of, plain, save
from pipeline.report.table import digits
from pipeline.runs.run import Run
from pipeline.stages.wmma.found import Found
from pipeline.stages.wmma.tables import GIGA

if TYPE_CHECKING:
    from pipeline.contracts.kernels import Kernel
    from pipeline.kernels.cuda.ceilings import Ceilings as CardCeilings

WORDS = "#4a5568"
TICKS = 10  # of an axis whose labels are not to touch


def draw(run: Run, bench: Found) -> None:
    """Those of them that there is something to see in."""
    if not any(bench.times.values()):
        return
    for processor, suffix in (("cpu", ""), ("gpu", "_gpu")):
        roof = bench.ceilings if processor == "cpu" else bench.card_ceilings
        kernels = [kernel for kernel in bench.shown.values() if kernel.processor == processor]
        if roof and roof.peak and kernels:
            names = [kernel.name for kernel in kernels]
            roofline(run.artifact(f"figures/roofline{suffix}.png"), bench, names, roof, roof.peak / GIGA)
        rungs = sorted((one for one in kernels if one.rung is not None), key=lambda one: one.rung or 0)
        if len(rungs) > 1:
            ladder(run.artifact(f"figures/ladder{suffix}.png"), bench, rungs)
    if len(bench.times) > 1:
        against_size(run.artifact("figures/rate_against_size.png"), bench)


def roofline(path: Path, bench: Found, kernels: Sequence[str], roof: Ceilings | CardCeilings, peak: float) -> None:
    """These kernels at every size below the ceilings of their processor, of which `peak` is that of products.

    An intensity is that of the fewest bytes possible. Dotted: ceilings that other processes may have lowered. The
    names of the ceilings stand above them, where no kernel is.
    """
    memory, is_lowered = roof.memory / GIGA, bench.others is not None and isinstance(roof, Ceilings)
    at_least = "at least " if is_lowered else ""
    figure = canvas(7.2, 4.4)
    axes = figure.add_subplot()
    intensities = [gemm.intensity for gemm in bench.plan.problems]
    ridge = peak / memory  # both ceilings are seen, whatever the sizes
    low, high = min(ridge / 8, *intensities) / 1.5, max(ridge * 4, *intensities) * 1.5
    axes.plot((low, ridge, high), (low * memory, peak, peak), color=GREY, lw=1.5, ls=":" if is_lowered else "-")
    for what, flat in _roofs(roof).items():  # the highest is the roof; others are those of slower instructions
        if flat < peak:
            axes.plot((flat / memory, high), (flat, flat), color=GREY, lw=0.8, ls="--")
        said = f"{what}, {at_least}{digits(flat)} GFLOP/s"
        axes.annotate(said, (high, flat), (0, 4), textcoords="offset points", va="bottom", ha="right", **TEXT)
    axes.text(
        low, low * memory, f"memory, {at_least}{digits(memory)} GB/s", va="bottom", ha="left",
        rotation=degrees(atan(memory)), rotation_mode="anchor", transform_rotates_text=True,  # along its line
        transform=offset_copy(axes.transData, figure, x=0, y=4, units="points"), **TEXT,
    )  # fmt: skip
    for number, name in enumerate(kernels):
        points = [
            (gemm.intensity, rate) for gemm in bench.plan.problems if (rate := bench.rate(gemm, name, sustained=True))
        ]
        if points:
            axes.plot(*zip(*points, strict=True), mark_of(number), ms=5, color=colour_of(number), label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="FLOP per byte of the fewest bytes that have to be moved",
        ylabel="GFLOP/s, sustained",
    )
    axes.set_xticks(*_powers_of_two(low, high))
    log_labels(axes.yaxis)
    axes.minorticks_off()
    plain(axes)
    figure.legend(frameon=False, fontsize=8, loc="outside right center")
    figure.suptitle(title(bench, kernels), fontsize=10, wrap=True)  # of the figure: a long name leaves the axes narrow
    save(figure, path)


def _powers_of_two(low: float, high: float) -> tuple[list[float], list[str]]:
    """Those between two numbers, at most TICKS of them, and how each is written."""
    found = range(ceil(log2(low)), floor(log2(high)) + 1)
    shown = found[:: ceil(len(found) / TICKS) or 1]
    return [2.0**power for power in shown], [f"1/{2**-power}" if power < 0 else f"{2**power}" for power in shown]


def _roofs(roof: Ceilings | CardCeilings) -> dict[str, float]:
    """GFLOP/s of each kind of product, in words."""
    if isinstance(roof, Ceilings):
        return {"multiply-adds on registers": roof.peak / GIGA}
    return {f"{word}: {roof.what[word]}": max(rates) / GIGA for word, rates in roof.flop_per_s.items()}


TEXT: dict[str, Any] = {"fontsize": 8, "color": WORDS}


def against_size(path: Path, bench: Found) -> None:
    """Rate of each kernel against the size; beside it the share of the yardstick, where there is one.

    Dotted: shares that the tables call uncertain.
    """
    figure = canvas(11 if bench.yardstick else 7, 3.8)
    axes = figure.subplots(1, 2 if bench.yardstick else 1, squeeze=False)[0]
    for number, name in enumerate(bench.shown):
        style: dict[str, Any] = {"marker": mark_of(number), "ms": 4, "color": colour_of(number)}
        done = [gemm for gemm in bench.plan.problems if name in bench.times[gemm]]
        sizes = [_size(gemm.flop) for gemm in done]
        axes[0].plot(sizes, [bench.rate(gemm, name, sustained=True) for gemm in done], label=name, **style)
        if bench.yardstick:
            line = ":" if bench.is_uncertain(name) else "-"
            axes[1].plot(sizes, [bench.share(gemm, name) for gemm in done], ls=line, **style)
    axes[0].set(yscale="log", ylabel="GFLOP/s, sustained")
    log_labels(axes[0].yaxis)
    if bench.yardstick:
        uncertain = any(bench.is_uncertain(name) for name in bench.shown)
        axes[1].set(ylim=(0, None), ylabel=f"share of {bench.yardstick}{', dotted: uncertain' if uncertain else ''}")
    for one in axes:
        one.set(xscale="log", xlabel="(M·N·K)$^{1/3}$")
        shown = apart(sorted({round(_size(gemm.flop)) for gemm in bench.plan.problems}))
        one.set_xticks(shown, [str(size) for size in shown], fontsize=8)
        one.minorticks_off()
        plain(one)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside right center")
    figure.suptitle(title(bench, bench.shown), fontsize=10)
    save(figure, path)


def ladder(path: Path, bench: Found, rungs: Sequence[Kernel]) -> None:
    """The rungs of one processor at the largest size that all of them ran at, each with what it gained on the one
    before; and the yardstick, if it is that processor's."""
    common = [gemm for gemm in bench.plan.problems if all(one.name in bench.times[gemm] for one in rungs)]
    if not common:
        return
    gemm, names = common[-1], [one.name for one in rungs]
    values = [bench.rate(gemm, name, sustained=True) or 0 for name in names]
    figure = canvas(7.2, 1.2 + 0.5 * (len(names) + 1))
    axes = figure.add_subplot()
    axes.barh(range(len(names)), values, height=0.4, color=BLUE, alpha=0.75)
    for number, value in enumerate(values):
        axes.text(0, number - 0.25, f" {rungs[number].launches}", va="bottom", fontsize=7, color=WORDS)
        gain = f"  {digits(value / values[number - 1])}×" if number else ""
        axes.annotate(
            digits(value) + gain, (value, number), (6, 0), textcoords="offset points", va="center", fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    processor = rungs[0].processor
    is_theirs = bench.yardstick is not None and bench.processor(bench.yardstick) == processor
    yard = bench.rate(gemm, bench.yardstick, sustained=True) if bench.yardstick and is_theirs else None
    if yard:
        axes.axvline(yard, color=ORANGE, lw=1, zorder=0)
        axes.annotate(
            f"{bench.yardstick} {digits(yard)}", (yard, 1), (0, 3), xycoords=("data", "axes fraction"),
            textcoords="offset points", va="bottom", ha="center", fontsize=8, color=ORANGE,
        )  # fmt: skip
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.6, -0.7)  # with room above the first bar for how it is launched
    axes.margins(x=0.2)
    axes.set_xlabel("GFLOP/s, sustained; after it the gain over the rung before")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    plain(axes)
    figure.suptitle(f"D = alpha·A·B + beta·C, {gemm}, {_where(bench, processor)}", fontsize=10, wrap=True)
    save(figure, path)


def _size(flop: int) -> float:
    return float((flop / 2) ** (1 / 3))


def title(bench: Found, kernels: Collection[str]) -> str:
    """Of a figure of these kernels: what they compute and where; a GPU's name, if one of them ran on it."""
    first = bench.plan.problems[0]
    processor = "gpu" if any(bench.processor(name) == "gpu" for name in kernels) else "cpu"
    return f"D = alpha·A·B + beta·C, {first.dtype}, {first.order}-major, {_where(bench, processor)}"


def _where(bench: Found, processor: str) -> str:
    if processor == "gpu":
        return str(bench.card)
    return plural(bench.plan.cores, "thread") + (" beside other processes" if bench.others else "")
