"""What the bench finds, and what is read off it: which kernels are timed, their rates and shares, and how certain."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.contracts.kernels import Kernel
from pipeline.errors import plural
from pipeline.kernels.cpu import ceilings
from pipeline.kernels.gemm import Gemm
from pipeline.kernels.on_card import card, card_index
from pipeline.kernels.printed import Printed
from pipeline.kernels.timing import Times, median_rate
from pipeline.kernels.verify import Verdict, is_ours, missing_of, refusal_of
from pipeline.machine.known_gpus import known
from pipeline.machine.others import allowed_cores
from pipeline.runs.run import Run
from pipeline.stages.cores_had import CoresHad

if TYPE_CHECKING:
    from pipeline.kernels.cuda.ceilings import Ceilings as CardCeilings

CORE_TYPE = "OPENBLAS_CORETYPE"  # OpenBLAS: for which processor its code is


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be found out: `kernels` on `problems`, the smallest first, on `cores` of a CPU.

    `rounds`: samples of each; `seconds`: that these may take of a kernel at a size. `longest`: seconds of a single
    product, above which it is not run.
    """

    kernels: tuple[Kernel, ...]
    problems: tuple[Gemm, ...]
    cores: int
    rounds: int
    seconds: float
    longest: float
    seed: int
    any_dtype: bool = False  # a kernel that lacks the dtype that is timed is verified in its own first one

    @property
    def dtype(self) -> str:
        """The dtype that is timed."""
        return self.problems[0].dtype

    def checked_in(self, kernel: Kernel) -> str | None:
        """The dtype that a kernel is verified in: that which is timed, or its own first; None: in none."""
        if self.dtype in kernel.dtypes:
            return self.dtype
        return kernel.dtypes[0] if self.any_dtype else None

    def taken(self, kernel: Kernel) -> list[Gemm]:
        """The problems that a kernel does not refuse."""
        return [gemm for gemm in self.problems if refusal_of(kernel, gemm) is None]

    def problem(self, size: int) -> Gemm:
        """The product of matrices N × N, otherwise like the others."""
        return replace(self.problems[0], m=size, n=size, k=size)


class Found:
    """What was found of a plan, as it is found, and what it says: rates, shares, and what makes them uncertain.

    `verdicts`: of each kernel that was run at all, by name. `times`: of each problem, by the kernel's name;
    `times_around`: those of padding.py.
    `skipped`: of each problem and kernel that was not timed, why not. `absent`: why a kernel takes no part.
    `facts`: of each kernel, how it was made. `printed`: what it printed.
    """

    def __init__(self, plan: Plan, run: Run, printed: Printed | None = None) -> None:
        self.plan, self.run, self.printed = plan, run, printed or Printed()
        self.verdicts: dict[str, Verdict] = {}
        self.errors: dict[tuple[Gemm, str], Verdict] = {}
        self.times: dict[Gemm, dict[str, Times]] = {gemm: {} for gemm in plan.problems}
        self.times_around: dict[Gemm, dict[str, Times]] = {}
        self.skipped: dict[tuple[Gemm, str], str] = {}
        self.absent: dict[str, str] = {}
        self.broken: str | None = None  # why the GPU's context answers no more
        self.facts: dict[str, dict[str, object]] = {}
        self.fastest_run: dict[str, tuple[Gemm, float]] = {}  # the last product that was verified, and its seconds
        self.ceilings: ceilings.Ceilings | None = None  # of the CPU
        self.card_ceilings: CardCeilings | None = None
        gpu = card()
        self.index, self.card = card_index(), None if gpu is None else gpu.name
        self.cores_had = CoresHad(plan.cores, pinned=False)  # before, between and after the times
        for kernel in plan.kernels:
            missing, taken = missing_of(kernel), plan.taken(kernel)
            if missing and (taken or plan.any_dtype):
                self.absent[kernel.name] = f"needs {missing}"
            elif not taken:
                self.absent[kernel.name] = str(refusal_of(kernel, plan.problems[0]))

    @property
    def timed(self) -> dict[str, Kernel]:
        """The kernels that passed and can be timed here, by name."""
        return {
            kernel.name: kernel
            for kernel in self.plan.kernels
            if kernel.name not in self.absent and self.verdicts[kernel.name].fault is None
        }

    @property
    def shown(self) -> dict[str, Kernel]:
        """Those, and those that have times although they can be timed no more, by name."""
        with_times = {name for found in (*self.times.values(), *self.times_around.values()) for name in found}
        return {one.name: one for one in self.plan.kernels if one.name in with_times or one.name in self.timed}

    @property
    def yardstick(self) -> str | None:
        """The kernel that the others are shown as a share of: a GPU's, else a CPU's."""
        found = [kernel for kernel in self.shown.values() if kernel.yardstick]
        return min(found, key=lambda kernel: kernel.processor != "gpu").name if found else None

    @property
    def fastest(self) -> str | None:
        """The fastest kernel but the yardstick at the largest size at which one was timed."""
        for gemm in reversed(self.plan.problems):
            names = [name for name in self.times.get(gemm, {}) if name != self.yardstick]
            if names:
                return min(names, key=lambda name: self.times[gemm][name].median)
        return None

    @property
    def others(self) -> str | None:
        """That other processes are at work, in words; None where none were seen."""
        return self.cores_had.note()

    @property
    def crowded(self) -> str | None:
        """That threads take turns on the cores, in words; None where each has one."""
        there = len(allowed_cores())
        if self.plan.cores <= there:
            return None
        cores = plural(there, "core")
        return f"stage.threads={self.plan.cores}: more than the {cores} that this process may use; they take turns"

    @property
    def slowed_yardstick(self) -> str | None:
        """That NumPy's BLAS takes the processor for another one, in words; None where no variable makes it do so."""
        kind = os.environ.get(CORE_TYPE)
        if self.yardstick != "numpy" or kind is None:
            return None
        return (
            f"{CORE_TYPE}={kind}: numpy's BLAS computes as for that processor, whatever this one can do; "
            "shares of numpy are uncertain; unset it"
        )

    @property
    def burdened_yardstick(self) -> str | None:
        """What ours does besides the product in the time that others are a share of, in words; None: nothing."""
        kernel, gemm = self.shown.get(self.yardstick or ""), self.plan.problems[0]
        if kernel is None or len(self.shown) == 1 or not is_ours(kernel):
            return None
        more = ["makes further passes over D for alpha and beta"] * ((gemm.alpha, gemm.beta) != (1, 0))
        more += ["rounds A and B from float32 to bfloat16"] * (kernel.name == "onednn")
        beside = "in the time that is measured: shares of it are higher than of a product alone"
        return f"{kernel.name} {' and '.join(more)}, {beside}" if more else None

    def processor(self, name: str) -> str:
        """The processor that the kernel of that name is for: "cpu" or "gpu"."""
        return next(one.processor for one in self.plan.kernels if one.name == name)

    def is_uncertain(self, name: str) -> bool:
        """Whether the share of a kernel is that of a processor that others used too, or of a yardstick held back."""
        processors = {self.processor(one) for one in (name, self.yardstick) if one is not None}
        return "cpu" in processors and (self.others is not None or self.slowed_yardstick is not None)

    def above_yardstick(self) -> dict[tuple[Gemm, str], float]:
        """Shares of the CPU's kernels that are above 1 by every sample: the slowest of theirs against the yardstick's
        median. None where others were at work, from whom a library whose threads spin suffers most."""
        found = {}
        for gemm, kernels in self.times.items():
            for name, times in kernels.items():
                share = self.share(gemm, name)
                if share is None or name == self.yardstick or self.processor(name) != "cpu" or self.is_uncertain(name):
                    continue
                if kernels[str(self.yardstick)].median > max(times.sustained):
                    found[gemm, name] = share
        return found

    def of_datasheet(self, gemm: Gemm, name: str) -> float | None:
        """The sustained rate as a share of what the maker states for the card and dtype; None where it states none."""
        rate = self.rate(gemm, name, sustained=True)
        if rate is None or self.card is None or self.processor(name) != "gpu":
            return None
        gpu = known(self.card)
        stated = None if gpu is None else gpu.tensor.get(gemm.dtype.upper(), gpu.cuda.get(gemm.dtype.upper()))
        return None if stated is None else rate / 1000 / stated

    def rate(self, gemm: Gemm, name: str, *, sustained: bool = False) -> float | None:
        """GFLOP/s by the median; None where it was not timed."""
        times = self.times.get(gemm, {}).get(name)
        return None if times is None else median_rate(gemm.flop, times.sustained if sustained else times.burst)

    def share(self, gemm: Gemm, name: str) -> float | None:
        """Of the yardstick's rate, by the sustained medians."""
        ours = self.rate(gemm, name, sustained=True)
        theirs = self.rate(gemm, self.yardstick, sustained=True) if self.yardstick else None
        return None if ours is None or theirs is None else ours / theirs

    def peak(self, name: str) -> float | None:
        """FLOP per second that a kernel's processor was measured to do where nothing is fetched; None: it was not, or
        others were at work, who slow the probe too."""
        if self.processor(name) == "gpu":
            return None if self.card_ceilings is None else self.card_ceilings.peak
        return None if self.ceilings is None or self.others else self.ceilings.peak
