"""The parts of `make gpu`, the most valuable first: what each runs, for how long at most, and what it has to find."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu import found
from pipeline.kernels.named import every
from pipeline.kernels.nvrtc import PACKAGES
from pipeline.machine.installed import is_installed

SECONDS = 480  # of all parts together
AT_ONCE, CORES = 12, 16  # tests, where there are so many cores: each takes two in turns, and waits in between
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One command, `python -m <module> <words>`, and at most `limit_s` seconds of it.

    `rows`: reads what was found from the folder that the command ran in. `small`: words that take the place of others
    in a rehearsal on the CPU (None: only a GPU can run it). `backends` have to be able to use the GPU, `needs` are
    distributions beside the core. `later`: it is not among those of the first eight minutes, and begins only where its
    limit still fits into them: in a `make gpu` after it.
    """

    name: str
    limit_s: int
    words: tuple[str, ...]
    rows: Callable[[Path], list[Row]]
    module: str = "pipeline"
    backends: tuple[str, ...] = ("torch",)
    needs: tuple[str, ...] = ()
    small: tuple[str, ...] | None = None
    later: bool = False

    @property
    def is_tests(self) -> bool:
        """Whether pytest is the command."""
        return self.module == "pytest"

    def arguments(self, *, rehearsal: bool) -> tuple[str, ...]:
        """The words of the command behind `python -m`."""
        if self.module != "pipeline":
            return (self.module, *self.words)
        words = (*self.words, "device=gpu", "tracking=none")
        return (self.module, *(instead(words, (*(self.small or ()), "device=cpu")) if rehearsal else words))


def instead(words: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """`words`, each `key=value` of `others` in the place of the one with that key, or at the end."""
    held = {word.partition("=")[0]: word for word in words}
    return tuple((held | {word.partition("=")[0]: word for word in others}).values())


# A GPT of 25 M parameters on a text that every Python has: large enough that the arithmetic decides the time of a step.
TEXT = ("stage=transformer", "dataset=python_docs", "stage.baselines=false", "stage.attention=false")
WIDE = (
    *("model.layers=2", "model.heads=8", "model.width=1024", "dataset.context=256"),
    *("training.batch_size=64", "training.steps=120", "training.validate_every=20", "schedule.warm_up=10"),
)
TINY = (
    *("model.layers=1", "model.heads=2", "model.width=32", "dataset.context=32"),
    *("training.batch_size=8", "training.steps=8", "training.validate_every=4", "schedule.warm_up=2"),
)
GPT = ("-m", "experiment=gpt_gpu", "stage.baselines=false", "stage.attention=false", "backend.compile=true,false")
DIGITS = ("dataset=digits", "training=quick", "training.batch_size=32")
# Not fp16: of this width it leaves the finite numbers within 20 steps, which ends its cell. Not fp64: as long as two.
EVERY = "precision=fp32,mixed_bf16,tf32,mixed_fp16,bf16"
COMPILED = "precision=fp32,mixed_bf16,tf32,mixed_fp16"  # XLA compiles each anew, some ten seconds long
TWO = "precision=fp32,mixed_bf16"
CAP = "device.memory_limit=1GB"


def precisions(backend: str, limit_s: int, swept: str, *needs: str, later: bool = False) -> Part:
    """Every precision on a backend: does the receipt show what was asked for, and how fast is it?"""
    words = ("-m", *TEXT, *WIDE, f"backend={backend}", swept)
    return Part(
        name=f"precisions, {backend}", limit_s=limit_s, words=words, rows=found.precisions,
        backends=(backend,), needs=needs, small=(*TINY, TWO), later=later,
    )  # fmt: skip


def of_gpu(dtype: str) -> str:
    """The words of the kernels that multiply a dtype on a GPU."""
    return f"[{','.join(one.name for one in every() if one.processor == 'gpu' and dtype in one.dtypes)}]"


def kernels(dtype: str, limit_s: int, sizes: str, *, later: bool = False) -> Part:
    """Whatever kernels of a GPU stage=wmma has for a dtype. Larger sizes take the host too long to verify."""
    words = ("stage=wmma", f"stage.dtype={dtype}", f"stage.sizes={sizes}", f"stage.kernels={of_gpu(dtype)}")
    return Part(
        name=f"kernels, {dtype}", limit_s=limit_s, words=words, rows=found.kernels,
        backends=(), needs=PACKAGES, small=("stage.sizes=[64]",), later=later,
    )  # fmt: skip


def memory_limit(backend: str, limit_s: int, *needs: str, later: bool = False) -> Part:
    """Does a backend stay within the memory that it may take?"""
    return Part(
        name=f"memory limit, {backend}", limit_s=limit_s, rows=found.memory_limit, backends=(backend,), needs=needs,
        words=(*DIGITS, "model=mlp", "model.units=[4000,4000]", CAP, f"backend={backend}"), later=later,
    )  # fmt: skip


def reach(what: str, limit_s: int, *words: str) -> Part:
    """Kernels at what they are to reach, in a `make gpu` behind the first."""
    return Part(
        name=f"reach, {what}", limit_s=limit_s, words=("stage=wmma", *words), rows=found.kernels,
        backends=(), needs=PACKAGES, small=("stage.sizes=[64]",), later=True,
    )  # fmt: skip


def several() -> bool:
    """Whether tests run beside each other."""
    return (os.cpu_count() or 1) >= CORES and is_installed("xdist")


def pytest_of(name: str, limit_s: int, *words: str, later: bool = False) -> Part:
    """Tests that need a GPU. Those of the first eight minutes also get what is left of these.

    One more `make gpu` goes on behind those that have passed. Where there are cores for it, several run at once: they
    time nothing.
    """
    said = ("-m", "gpu", "-vv", "--color=no", "-p", "no:cacheprovider", "-p", "bench.gpu.at_once")  # pyproject has -q
    beside = ("--numprocesses", str(AT_ONCE), "--dist", "worksteal") if several() else ()
    return Part(
        name=name, limit_s=limit_s, words=(*said, *beside, *words), rows=found.tests, module="pytest",
        needs=("pytest", "pytest-timeout", "hypothesis"), small=(), later=later,
    )  # fmt: skip


RIVALS = "stage.kernels=[tuned,triton,triton_tma,wgmma_persistent,cublas]"
GRID = "{_target_: pipeline.kernels.cuda.grid_stride.GridStride,work: %d}"
FILES = tuple(
    f"tests/test_{name}.py"
    for name in ("cuda_kernels", "probes", "torch_kernels", "gpu", "solvers", "devices", "compile")  # the longest last
)
IN_A_THIRD = "tests/test_gpu.py::test_a_gpt_reaches_a_plain_loops_loss_in_a_third_of_its_time"
LADDER = ("experiment=amp_ladder", "dataset=mnist_20k", "dataset.train_size=10000", "training.epochs=5")
# The limits are of an H200 with 16 cores, where a process takes 9 to 14 s to start and the host verifies each kernel.
PARTS = (
    Part(name="machine", limit_s=20, words=("stage=devices",), rows=found.nothing, small=()),
    precisions("torch", 70, EVERY),
    kernels("fp16", 70, "[4096]"),
    Part(name="gpt_gpu", limit_s=110, words=GPT, rows=found.training, small=TINY),
    memory_limit("torch", 25),
    Part(name="profiler", limit_s=20, words=(*DIGITS, "profiler=torch"), rows=found.profiler, small=()),
    Part(
        name="ladder",
        limit_s=85,
        words=LADDER,
        rows=found.ladder,
        small=(
            *("model.filters=[4,4]", "model.units=16", "dataset.train_size=640", "training.epochs=1"),
            *("~stage.rungs.workers", "~stage.rungs.threads"),
        ),
    ),
    pytest_of("tests", 80, *FILES, f"--deselect={IN_A_THIRD}"),
    reach("fp16", 170, "stage.dtype=fp16", RIVALS, "stage.sizes=[6144,8192]"),
    memory_limit("jax", 45, "keras", later=True),
    kernels("bf16", 75, "[4096]", later=True),
    precisions("jax", 200, COMPILED, "keras", later=True),
    precisions("tensorflow", 80, COMPILED, "keras", later=True),
    pytest_of("loss in a third", 240, IN_A_THIRD, later=True),  # a plain loop of 5,000 steps
    reach("bf16", 170, "stage.dtype=bf16", RIVALS, "stage.sizes=[6144,8192]"),
    reach("tf32", 60, "stage.dtype=tf32", f"stage.kernels={of_gpu('tf32')}", "stage.sizes=[4096]"),
    reach("int8", 60, "stage.dtype=int8", f"stage.kernels={of_gpu('int8')}", "stage.sizes=[4096]"),
    reach(
        "padding", 120, "stage.dtype=fp16", "stage.kernels=[tuned,cublas]", "stage.sizes=[1024]", "stage.around=1024"
    ),
    reach("work", 45, "stage.dtype=fp16", f"stage.kernels=[grid_stride,{GRID % 4},{GRID % 16}]", "stage.sizes=[1024]"),
)
