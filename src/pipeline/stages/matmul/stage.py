"""stage=matmul: products of matrices by framework, size, dtype and device, verified, then timed against the ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from pipeline.contracts import Part
from pipeline.contracts.kernels import Kernel
from pipeline.errors import Readable, UserError
from pipeline.kernels.cpu import ceilings, compiled
from pipeline.kernels.cpu.compiled import missing_compiler
from pipeline.kernels.gemm import Gemm
from pipeline.kernels.named import FILES, kernels_of
from pipeline.kernels.verify import refusal_of
from pipeline.machine.capability import Resolved
from pipeline.machine.device import gpu_free_bytes
from pipeline.machine.free_memory import free_bytes
from pipeline.machine.precision import ROUNDOFF, bytes_per_number
from pipeline.report.table import size as in_bytes
from pipeline.runs import receipt as receipts
from pipeline.runs.beside import with_figures
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages import by_framework
from pipeline.stages.by_framework import ByFramework
from pipeline.stages.cores_had import CoresHad
from pipeline.stages.matmul.bench import MODULES, Bench, Plan, Side
from pipeline.stages.matmul.problem import Problem

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

PLACED = ("float32", "float64", "float16", "bfloat16")  # of stage.placed: the first of them that is asked for


@spec
class Matmul(ByFramework):
    """`frameworks`: numpy, torch, tensorflow, jax, each in its own process. `kernels`: of stage=wmma for the CPU, by
    name or file. `sizes`: N of N × N matrices. `dtypes`: of the operands and the result.

    `starts`: processes of each framework, in turns; `rounds`: samples of each product in each. `longest`: a product
    that would take more seconds is not run. `placed`: N of the product whose memory, and what a misplaced operand
    costs, are measured (None: neither). `cores`: of the CPU (None: those that this process may use).
    """

    reads: ClassVar[tuple[str, ...]] = ("device", "seed")
    headline: ClassVar[str] = "best/rate"

    frameworks: tuple[str, ...] = ("numpy", "torch", "tensorflow", "jax")
    kernels: tuple[str, ...] = ()
    sizes: tuple[Annotated[int, Field(gt=0, le=1_000_000)], ...] = (64, 128, 256, 512, 1024)
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")
    starts: Annotated[int, Field(gt=0, le=100)] = 3
    rounds: Annotated[int, Field(gt=0, le=1000)] = 3
    longest: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 0.5
    placed: Annotated[int, Field(gt=0, le=1_000_000)] | None = 2048
    cores: PositiveInt | None = None

    def __post_init__(self) -> None:
        by_framework.check_names("frameworks", self.frameworks, MODULES)
        by_framework.check_names("dtypes", self.dtypes, ROUNDOFF)
        if self.sizes == ():
            raise UserError("stage.sizes=[]: name one at least")
        for kernel in self._kernels:
            if kernel.name in self.frameworks:  # their rows and metrics would have one name
                raise UserError(f"stage.kernels={kernel.name}: stage.frameworks has it too; leave one of them out")
            if kernel.processor != "cpu":
                raise UserError(
                    f"stage.kernels={kernel.name}: runs on a GPU, and only kernels of the CPU run here; use stage=wmma"
                )
            if refusal_of(kernel, Gemm(m=64, n=64, k=64, order="row")) is not None:
                raise UserError(f"stage.kernels={kernel.name}: does not take float32, row by row; use stage=wmma")
        by_framework.check_cores(self.cores)

    @property
    def inside(self) -> tuple[Part, ...]:
        """The backends, whose packages the products need, and the kernels."""
        return (*by_framework.of_frameworks(self.frameworks), *self._kernels)

    @property
    def user_code(self) -> tuple[str, ...]:
        """What other processes import by name."""
        return ("pipeline.stages.matmul.process.main", *(f"{MODULES[name]}.matrices" for name in self.frameworks))

    @property
    def user_files(self) -> tuple[Path, ...]:
        """What measures the ceilings, beside Python's modules."""
        return ceilings.SOURCES

    @property
    def _kernels(self) -> tuple[Kernel, ...]:
        found: Any = kernels_of(self.kernels)
        return tuple(found)

    def versions(self) -> Mapping[str, str]:
        """The version of the compiler of kernels in C++."""
        return {"c++": compiled.named()}

    def check(self, experiment: Experiment) -> None:
        """Refuse a framework that is not installed, and sizes beyond memory, before anything is allocated."""
        by_framework.check_frameworks(self.frameworks)
        by_framework.check_device("matmul", experiment.device, follows=("name", "memory_limit"))
        free = free_bytes()
        for key, problem in self._problems:
            if problem.needed_bytes > free:
                raise UserError(
                    f"{key}={problem.size}: three {problem.dtype} matrices need {in_bytes(problem.matrices_bytes)}, "
                    f"{in_bytes(problem.needed_bytes)} with their check in float64; {in_bytes(free)} are free; "
                    "use a smaller size"
                )

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys of trainings, and name the stage's own in their place."""
        instead = {"backend": "stage.frameworks names them", "precision": "stage.dtypes names them"}
        by_framework.check_taken("matmul", keys, instead, "nothing is trained")

    def needs_less(self) -> str:
        return "use smaller stage.sizes"

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse matrices that the GPU has no room for."""
        if resolved.place.kind == "cpu":
            return
        free, limit = gpu_free_bytes(resolved.place.index), experiment.device.memory_limit_bytes
        room = free if limit is None else min(free, limit)
        for key, problem in self._problems:
            if problem.matrices_bytes > room:
                raise UserError(
                    f"{key}={problem.size}: three {problem.dtype} matrices need {in_bytes(problem.matrices_bytes)}; "
                    f"{in_bytes(room)} of {resolved.place} are free; use a smaller size"
                )

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """The products, framework by framework in turns; then where operands lie; tables and the figure."""
        from pipeline.stages.matmul import figures, tables

        receipt = receipts.before(experiment, resolved)
        dtypes = ", ".join(self.dtypes)
        receipt["precision"] = {"requested": dtypes, "effective": dtypes, "reason": "stage.dtypes"}
        run.journal.write_receipt(receipt)
        place = resolved.place
        absent = {f"{name} {place}": why for name, why in by_framework.cannot_use(self.frameworks, place).items()}
        bench = Bench(self._plan(experiment, resolved, run), absent, run)
        by_framework.note_threads(run, bench.plan.cores)
        samples, had = run.artifact("tables/samples.csv"), CoresHad(bench.plan.cores, pinned=True)
        with had.during():
            for number in range(1, self.starts + 1):
                for side in bench.plan.sides:
                    run.say(f"{side}, process {number} of {self.starts}")
                    bench.time(side)
                    tables.write_csv(samples, bench)  # what an interrupted run leaves
            for side in bench.plan.sides:
                bench.say(side)
            if bench.plan.placed:
                for side in bench.plan.sides:
                    bench.place(side)
            tables.write_csv(samples, bench)
        bench.others = had.note()
        if bench.others:
            run.note(bench.others)
        facts = {"cores": bench.plan.cores, "cores_had": had.shares, "products": bench.facts()}
        run.journal.write_receipt(receipt | facts)
        rows, shown = tables.summary(bench), tables.shown(bench)
        result = by_framework.reported(run, tables.metrics(bench), rows, shown, bench.faults())
        return with_figures(result, lambda: figures.draw(run.artifact("figures/rates.png"), bench))

    @property
    def _placed(self) -> tuple[str, int] | None:
        """The dtype and size of the product that is looked at."""
        if self.placed is None:
            return None
        return next(dtype for dtype in PLACED if dtype in self.dtypes), self.placed

    @property
    def _problems(self) -> list[tuple[str, Problem]]:
        """Those that need the most memory, with the key that asks for each."""
        widest = max(self.dtypes, key=bytes_per_number)
        found = [("stage.sizes", Problem(widest, max(self.sizes)))]
        return [*found, ("stage.placed", Problem(*self._placed))] if self._placed else found

    def _plan(self, experiment: Experiment, resolved: Resolved, run: Run) -> Plan:
        names = [str(Path(one).absolute()) if Path(one).suffix in FILES else one for one in self.kernels]
        kernels = [Side(kernel.name, kernel=name) for kernel, name in zip(self._kernels, names, strict=True)]
        return Plan(
            sides=(*_sides(self.frameworks, str(resolved.place)), *kernels),
            dtypes=self.dtypes,
            sizes=tuple(sorted(set(self.sizes))),
            starts=self.starts,
            rounds=self.rounds,
            longest=self.longest,
            cores=self.cores or by_framework.core_count(),
            seed=experiment.seed,
            limit=experiment.device.memory_limit_bytes,
            placed=self._placed,
            ceilings=_has_ceilings(run),
        )


def _sides(frameworks: Sequence[str], place: str) -> list[Side]:
    """Each framework on the CPU, and where there is a GPU on it too; NumPy has none."""
    on_gpu = [] if place == "cpu" else [Side(name, place) for name in frameworks if name in by_framework.BACKENDS]
    return [*(Side(name) for name in frameworks), *on_gpu]


def _has_ceilings(run: Run) -> bool:
    """Whether multiply-adds can be measured; their program is compiled once, for all processes."""
    missing = missing_compiler()
    if missing is None:
        try:
            ceilings.probe()
        except Readable as error:
            missing = str(error)
    if missing is not None:
        run.note(f"no ceiling is measured: it needs {missing}")
    return missing is None
