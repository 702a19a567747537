"""stage=wmma: the matrix product by one kernel after the other, verified, then timed in turns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from pipeline.contracts import Part, Stage
from pipeline.contracts.kernels import Kernel
from pipeline.errors import Impossible, Readable, UserError, bad_choice
from pipeline.experiment.effects import refuse_unread
from pipeline.kernels.cpu import compiled
from pipeline.kernels.gemm import DTYPES, Gemm, operands
from pipeline.kernels.named import every, kernels_of
from pipeline.kernels.on_card import asked, on_card
from pipeline.kernels.printed import Printed
from pipeline.kernels.verify import all_cases, is_ours, missing_of, raised, refusal_of
from pipeline.machine.cache_folder import cache_root, written_folder
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.machine.threads import check_threads
from pipeline.report.table import in_markdown
from pipeline.runs import receipt as receipts
from pipeline.runs.beside import with_figures
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import group_of, spec
from pipeline.stages.by_framework import TAKES
from pipeline.stages.wmma import tables
from pipeline.stages.wmma.bench import TRIAL, Bench
from pipeline.stages.wmma.found import Plan
from pipeline.stages.wmma.memory import check_card_memory, check_memory, check_memory_around
from pipeline.stages.wmma.scales import check_scales
from pipeline.stages.wmma.sizes import Size, sizes_of

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.stages.wmma.padding import Around

OF_DEVICE = ("device", "device.name")  # the only keys of a device that decide anything here
MOST_THREADS = 1024
COMPILED_FOR = (90,)  # one: NVRTC takes about a second of a core for each large kernel
# N where nothing else is said. A GPU of many cores has too little to do at the sizes that keep a CPU busy.
SIZES = {"cpu": (256, 512, 1024), "gpu": (1024, 2048, 4096, 8192)}
SECONDS = {"cpu": 0.25, "gpu": 1.0}  # longer there, since the clock depends on what ran before


@spec
class Wmma(Stage):
    """`kernels`: which, by name, file or node (None: all there are). `sizes`: N for M = N = K, or [M, N, K] (None: by
    the processor that is timed, SIZES).

    `dtype`: of A and B (None: fp32 is timed, fp16 where a GPU's kernel is; a kernel that lacks it is verified in its
    own first one). `order`: how all four matrices lie in memory. `pad`: padding of the leading dimensions of A, of
    B, and of C and D. `threads`: cores of a CPU's kernels (None: those that this process may use).
    `rounds`: samples of each; `seconds`: that they may take of one kernel at one size (None: SECONDS). `longest`: a
    kernel whose single product would take more seconds is not run at that size. `around`: also sizes on and off the
    multiples of 8, 16 and 64 from this one up. `architectures`: GPUs that the CUDA kernels are compiled for, which
    need not be there, as 80 for compute capability 8.0 (None: 90 where the packages for it are installed).
    """

    reads: ClassVar[tuple[str, ...]] = ("device", "seed")
    own_kernels: ClassVar[bool] = True
    headline: ClassVar[str] = "best/share"
    otherwise: ClassVar[tuple[str, ...]] = ("best/sustained", tables.RIGHT)

    kernels: Annotated[tuple[Kernel, ...] | None, BeforeValidator(kernels_of)] = None
    sizes: Annotated[tuple[Size, ...] | None, BeforeValidator(sizes_of)] = None
    dtype: str | None = None
    order: Literal["column", "row"] = "column"
    alpha: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    beta: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    pad: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = (0, 0, 0)
    threads: Annotated[int, Field(gt=0, le=MOST_THREADS)] | None = None
    rounds: Annotated[int, Field(gt=0, le=1000)] = 5
    seconds: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] | None = None
    longest: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 0.5
    around: Annotated[int, Field(ge=64)] | None = None
    architectures: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise bad_choice("stage.dtype", self.dtype, DTYPES)
        for name, value in (("kernels", self.kernels), ("sizes", self.sizes)):
            if value == ():
                raise UserError(f"stage.{name}=[]: name one at least")
        for name, scale in (("alpha", self.alpha), ("beta", self.beta)):
            if self.dtype == "int8" and scale != int(scale):
                raise UserError(f"stage.{name}={scale:g} with stage.dtype=int8: needs a whole number")
            most = 2**31 - 1 if self.dtype == "int8" else float(np.finfo(np.float32).max)
            if abs(scale) > most:
                raise UserError(f"stage.{name}={scale:g}: kernels take numbers up to {most:g}")

    def title(self, experiment: Experiment) -> str:
        with on_card(asked(experiment.device.name)):
            return f"wmma-{self.timed_dtype}"

    @property
    def timed_dtype(self) -> str:
        """`dtype`; without one fp16 where a GPU's kernel takes it, else fp32, else the first of the first kernel."""
        if self.dtype is not None:
            return self.dtype
        if any(one.processor == "gpu" and "fp16" in one.dtypes and missing_of(one) is None for one in self.chosen):
            return "fp16"
        return "fp32" if any("fp32" in one.dtypes for one in self.chosen) else self.chosen[0].dtypes[0]

    @property
    def chosen(self) -> tuple[Kernel, ...]:
        """The kernels that were named, or all of ours."""
        return every() if self.kernels is None else self.kernels

    @property
    def inside(self) -> tuple[Part, ...]:
        """The kernels, whose packages are needed too."""
        return self.chosen

    @property
    def user_files(self) -> tuple[Path, ...]:
        """The programs that measure the ceilings, which shares are of."""
        from pipeline.kernels.cpu import ceilings
        from pipeline.kernels.cuda import probes

        return (*ceilings.SOURCES, *probes.files())

    @property
    def cores(self) -> int:
        """How many threads the kernels of the CPU use."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def times_gpu(self) -> bool:
        """Whether one of the kernels is timed on a GPU of this machine."""
        of_gpu = (one for one in self.chosen if one.processor == "gpu" and self.timed_dtype in one.dtypes)
        return any(missing_of(one) is None for one in of_gpu)

    @property
    def timed_on(self) -> Literal["cpu", "gpu"]:
        """The processor by which sizes and seconds are chosen where none are set."""
        return "gpu" if self.times_gpu else "cpu"

    @property
    def problems(self) -> tuple[Gemm, ...]:
        """One for each size, the smallest first."""
        one = Gemm(
            m=1, n=1, k=1, dtype=self.timed_dtype, order=self.order, alpha=self.alpha, beta=self.beta, pad=self.pad
        )
        sizes = self.sizes or [(size, size, size) for size in SIZES[self.timed_on]]
        found = (replace(one, m=m, n=n, k=k) for m, n, k in sizes)
        return tuple(sorted(found, key=lambda gemm: gemm.flop))

    @property
    def around_problems(self) -> tuple[Gemm, ...]:
        """The problems of the sizes around `around`."""
        if self.around is None:
            return ()
        from pipeline.stages.wmma.padding import sizes

        return tuple(replace(self.problems[0], m=size, n=size, k=size) for size in sizes(self.around))

    @cached_property
    def printed(self) -> Printed:
        """What kernels print, from before the run on: while they are prepared for the first time."""
        return Printed()

    def plan(self, seed: int) -> Plan:
        """What the bench is asked to verify and time."""
        return Plan(
            kernels=self.chosen,
            problems=self.problems,
            cores=self.cores,
            rounds=self.rounds,
            seconds=SECONDS[self.timed_on] if self.seconds is None else self.seconds,
            longest=self.longest,
            seed=seed,
            any_dtype=self.dtype is None,
        )

    def versions(self) -> Mapping[str, str]:
        """The version of the compiler of kernels in C++."""
        return {"c++": compiled.named()}

    def check(self, experiment: Experiment) -> None:
        """Refuse kernels that cannot do what was asked, and sizes beyond memory, before anything is allocated."""
        with on_card(asked(experiment.device.name)):
            self._check()

    def _check(self) -> None:
        check_threads("stage.threads", self.threads)
        trial = replace(self.problems[0], k=TRIAL)  # which is verified too
        check_scales((*self.problems, *self.around_problems, trial))
        able = [kernel for kernel in self.chosen if self._takes(kernel)]
        for kernel in self.kernels or ():
            self._check_kernel(kernel)
        self._check_architectures()
        timed = self.timed_dtype
        runs = [one for one in able if missing_of(one) is None or one.rehearses(timed)]
        if self.dtype is None:
            lacking = [one for one in self.chosen if timed not in one.dtypes]
            runs += [one for one in lacking if missing_of(one) is None or one.rehearses(one.dtypes[0])]
        if not runs:
            reasons = dict.fromkeys(f"needs {missing_of(one)}" for one in able) or dict.fromkeys(
                f"{one.name} {refusal_of(one, self.problems[0])}" for one in self.chosen
            )
            others = [one.name for one in every() if self._takes(one) and missing_of(one) is None]
            also = f"; {', '.join(others)} {'run' if len(others) > 1 else 'runs'} here" if others else ""
            key = "stage=wmma" if self.kernels is None else self._named
            raise Impossible(f"{key}: no kernel runs here: {'; '.join(reasons)}{also}")
        check_memory(self.problems, len(runs))
        check_card_memory(
            self.problems,
            self.around_problems,
            sum(one.processor == "gpu" and missing_of(one) is None for one in able),
            self.around,
        )
        for gemm in self.around_problems:
            if able and all(refusal_of(one, gemm) is not None for one in runs):
                raise UserError(f"stage.around={self.around}: {runs[0].name} {refusal_of(runs[0], gemm)} ({gemm})")
        check_memory_around(self.around_problems, self.around)

    def _takes(self, kernel: Kernel) -> bool:
        return any(refusal_of(kernel, gemm) is None for gemm in self.problems)

    def _check_architectures(self) -> None:
        from pipeline.kernels import nvrtc

        if not self.architectures:
            return
        missing = nvrtc.missing_packages()
        if missing is not None:
            raise Impossible(f"stage.architectures={list(self.architectures)}: {missing}")
        for one in self.architectures:
            if one not in nvrtc.architectures():
                raise bad_choice("stage.architectures", one, map(str, nvrtc.architectures()))
            if not self._compiles_for(one):
                able = ", ".join(str(other) for other in nvrtc.architectures() if self._compiles_for(other))
                raise UserError(
                    f"stage.architectures={one}: none of {self._named} is compiled for it in {self.timed_dtype}; "
                    + (f"choose from {able}" if able else "leave it out")
                )

    def _compiles_for(self, architecture: int) -> bool:
        dtype_of = self.plan(0).checked_in
        return any((dtype := dtype_of(one)) and one.compiles_for(dtype, architecture) for one in self.chosen)

    @property
    def _named(self) -> str:
        return f"stage.kernels=[{','.join(one.name for one in self.chosen)}]"

    @property
    def compiled_for(self) -> tuple[int, ...]:
        """The architectures that are asked for, or those of COMPILED_FOR where they can be compiled for."""
        from pipeline.kernels import nvrtc

        if self.architectures is None:
            return COMPILED_FOR if nvrtc.missing_packages() is None else ()
        return self.architectures

    def _check_kernel(self, kernel: Kernel) -> None:
        lacks = self.dtype is None and self.timed_dtype not in kernel.dtypes  # it is verified in another one
        for gemm in () if lacks else self.problems:
            refusal = refusal_of(kernel, gemm)
            if refusal:
                raise Impossible(f"stage.kernels={kernel.name}: {refusal} ({gemm})")
        missing = missing_of(kernel)
        if missing and kernel.processor == "cpu":
            raise Impossible(f"stage.kernels={kernel.name}: needs {missing}")

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys of trainings: nothing is trained here."""
        with on_card(asked(experiment.device.name)):
            dtype = self.timed_dtype
        instead = {
            "precision": f"stage.dtype ({dtype}) says it",
            "device": "of a device the kernels follow its name alone",
        }
        unread = [
            key for key in keys if group_of(key) not in TAKES or (key.startswith("device.") and key not in OF_DEVICE)
        ]
        refuse_unread({key: instead.get(group_of(key), "nothing is trained here") for key in unread}, "stage=wmma")

    def needs_less(self) -> str:
        return "use smaller stage.sizes"

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse a cache folder that cannot keep what is compiled, and kernels of the user's that do not compile."""
        compiled_before = any((cache_root(None) / "kernels").glob("*.so"))  # all of them, perhaps: nothing is written
        if any(kernel.user_files for kernel in self.chosen) and not compiled_before:
            written_folder("kernels")
        with on_card(asked(experiment.device.name)):
            for kernel in self.kernels or ():
                if not is_ours(kernel):
                    self._prepare(kernel, experiment.seed)

    def _prepare(self, kernel: Kernel, seed: int) -> None:
        """For a problem that it takes. Raises UserError where it raises anything."""
        dtype = self.plan(seed).checked_in(kernel) or self.timed_dtype
        every_case = (gemm for _, gemm, _, _ in all_cases(dtype))
        small = next((gemm for gemm in (*every_case, *self.problems) if refusal_of(kernel, gemm) is None), None)
        if small is None:
            return
        here = missing_of(kernel) is None
        try:
            with self.printed.keeping(kernel.name):
                if here:
                    kernel.prepare(operands(small, seed), self.cores)
                else:
                    kernel.rehearse(operands(small, seed))
        except Readable:
            raise
        except Exception as error:  # whatever the user's code may raise
            raise UserError(f"stage.kernels={kernel.name}: prepare {raised(error)}") from error

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Verify, time, measure the ceilings, draw."""
        from pipeline.stages.wmma import figures, machine_code, padding
        from pipeline.stages.wmma.result import result_of

        receipt = receipts.before(experiment, resolved)
        index = asked(experiment.device.name)
        with on_card(index):
            bench = Bench(self.plan(experiment.seed), run, self.printed)
        timed = bench.plan.dtype
        receipt["precision"] = {"requested": self.dtype or timed, "effective": timed, "reason": "stage.dtype"}
        run.journal.write_receipt(receipt)
        with on_card(index), bench.blas_threads():
            around = self._measured(bench, run, receipt)
        if resolved.place.kind == "gpu" and not any(one.processor == "gpu" for one in bench.timed.values()):
            note_no_gpu(experiment, resolved, run, receipt)
        code = machine_code.built(self.chosen, bench.plan.checked_in, self.compiled_for, self.cores)
        result = result_of(bench, code, around)
        run.artifact("summary.md").write_text(in_markdown(result.table, result.tables), encoding="utf-8")
        draw = [partial(figures.draw, run, bench)]
        if around is not None:
            path = run.artifact("figures/padding.png")
            draw.append(partial(padding.draw, path, around, figures.title(bench, around.rates)))
        return with_figures(result, *draw)

    def _measured(self, bench: Bench, run: Run, receipt: dict[str, Any]) -> Around | None:
        """Verify and time the kernels, measure the ceilings, and write what is found into the receipt.

        What the sizes around `around` gave; None where they are not asked for.
        """
        from pipeline.stages.wmma import padding

        bench.verify()
        run.journal.write_receipt(receipt | {"kernels": bench.facts})
        samples = run.artifact("tables/samples.csv")
        with bench.watched():
            for gemm in bench.plan.problems:
                bench.times |= bench.time([gemm])
                tables.write_csv(samples, bench)  # what an interrupted run leaves
                if bench.timed:
                    run.say(tables.line(bench, gemm))
        bench.measure_ceilings()
        bench.rehearse()
        around = padding.measured(bench, self.around) if self.around else None
        bench.note_printed()
        doubts = bench.crowded, bench.others, bench.slowed_yardstick, bench.burdened_yardstick
        for doubt in filter(None, doubts):
            run.note(doubt)
        found = {"kernels": bench.facts, "cores_had": bench.cores_had.shares}
        if bench.card_ceilings:
            found["ceilings_gpu"] = bench.card_ceilings.facts
        run.journal.write_receipt(receipt | found)
        tables.write_csv(samples, bench)
        return around


def note_no_gpu(experiment: Experiment, resolved: Resolved, run: Run, receipt: dict[str, Any]) -> None:
    """That the device was asked for and no kernel ran there: the receipt is then of the CPU."""
    reason = f"no kernel was timed on {resolved.place}"
    alone = replace(resolved, place=Place("cpu"), device_reason=reason)
    receipt["device"] = receipts.before(experiment, alone)["device"]
    run.journal.write_receipt(receipt)
    run.note(f"device={experiment.device.name}: {reason}")
