"""Backends: what trains a model. One process runs one of them; none is imported before it is needed.

Here: the specs that a config names. What they load offers (types: pipeline.runs.fit)

    fit(experiment, data, resolved, run) -> Fit
    predictor(experiment, shapes, weights, resolved, compiled=False) -> a function from images (N, H, W, C) in [0, 1]
        to logits
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import ClassVar

from pydantic import PositiveInt

from pipeline.contracts import Backend
from pipeline.errors import Impossible, UserError
from pipeline.machine.allocator import keep_freed_memory
from pipeline.machine.device import Gpu, Place
from pipeline.machine.quiet import import_for
from pipeline.machine.threads import check_threads, wait_briefly
from pipeline.spec import spec


@spec
class Torch(Backend):
    """PyTorch through Lightning.

    `threads`: CPU threads of one operation (default: 1 for small steps, else all). `compile`: the training step by
    torch.compile, and on a GPU captured as a CUDA graph; with stage=inference the forward pass, not captured.
    """

    name: ClassVar[str] = "torch"
    builder: ClassVar[str] = "torch"
    packages: ClassVar[tuple[str, ...]] = ("torch", "pytorch-lightning", "torchmetrics")
    modules: ClassVar[tuple[str, ...]] = ("pipeline.backends.torch.fit", "pipeline.backends.torch.peer")
    probe: ClassVar[str] = "pipeline.backends.torch.probe"
    distributes: ClassVar[bool] = True

    threads: PositiveInt | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        check_threads("backend.threads", self.threads)

    def check_device(self, place: Place) -> None:
        """Refuse to compile where there is no compiler: torch's writes C++ for a CPU, and for a GPU what starts it."""
        if not self.compile:
            return
        if missing := missing_for_compile(place.kind):
            raise Impossible(
                f"backend.compile=true: needs {missing}; install one, name another in "
                f"{_compiler_variable(place.kind)}, or use backend.compile=false"
            )

    def unused_by_solvers(self) -> tuple[str, ...]:
        return ("backend.compile=true",) if self.compile else ()

    def load(self) -> ModuleType:
        """Import the backend. Raises UserError where that would crash the process."""
        if "tensorflow" in sys.modules and "triton" not in sys.modules and find_spec("triton") is not None:
            raise UserError(
                "backend=torch: TensorFlow has been imported in this process, and Triton, which torch loads, crashes "
                "when it comes after it; restart the process (of a notebook the kernel), and import triton first"
            )
        keep_freed_memory()
        wait_briefly()
        return import_for(self.name, self.modules[0])

    def no_gpu_because(self, gpu: Gpu | None = None) -> str | None:
        """Why this installation cannot use `gpu` (None: any GPU at all), read off its files; None where it can."""
        from pipeline.machine import gpu_support

        return gpu_support.reason(gpu_support.torch(), gpu)


@spec
class TensorFlow(Backend):
    """Keras on TensorFlow.

    `xla`: compile the training step with XLA (None: yes, but not convolutions on a CPU, which XLA trains 60 times
    slower than TensorFlow itself; all else it makes much faster); with stage=inference the forward pass (None: no).
    """

    name: ClassVar[str] = "tensorflow"
    builder: ClassVar[str] = "keras"
    packages: ClassVar[tuple[str, ...]] = ("tensorflow", "keras")
    modules: ClassVar[tuple[str, ...]] = (
        "pipeline.backends.keras.fit",
        "pipeline.backends.keras.engine_tensorflow",
        "pipeline.backends.keras.settings_tensorflow",
    )
    probe: ClassVar[str] = "pipeline.backends.keras.probe"

    xla: bool | None = None
    threads: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_threads("backend.threads", self.threads)

    def unused_by_solvers(self) -> tuple[str, ...]:
        return () if self.xla is None else (f"backend.xla={str(self.xla).lower()}",)

    def load(self) -> ModuleType:
        """Choose Keras's backend for this process and import it."""
        return _load_keras("tensorflow")

    def no_gpu_because(self, gpu: Gpu | None = None) -> str | None:
        """As for Torch."""
        from pipeline.machine import gpu_support

        return gpu_support.reason(gpu_support.tensorflow(), gpu)


@spec
class Jax(Backend):
    """Keras on JAX."""

    name: ClassVar[str] = "jax"
    builder: ClassVar[str] = "keras"
    packages: ClassVar[tuple[str, ...]] = ("jax", "keras")
    modules: ClassVar[tuple[str, ...]] = (
        "pipeline.backends.keras.fit",
        "pipeline.backends.keras.engine_jax",
        "pipeline.backends.keras.settings_jax",
    )
    probe: ClassVar[str] = "pipeline.backends.keras.probe"
    shards: ClassVar[bool] = True

    def check_device(self, place: Place) -> None:
        """Refuse the variable by which no step is compiled."""
        check_jax_compiles("backend=jax compiles each step")

    def load(self) -> ModuleType:
        """Choose Keras's backend for this process and import it."""
        return _load_keras("jax")

    def no_gpu_because(self, gpu: Gpu | None = None) -> str | None:
        """As for Torch."""
        from pipeline.machine import gpu_support

        return gpu_support.reason(gpu_support.jax(), gpu)


def missing_for_compile(kind: str) -> str | None:
    """What torch.compile would not find, in words; None where there is what it needs on a device of this kind."""
    named = os.environ.get(_compiler_variable(kind))
    wanted = (named,) if named else ("g++",) if kind == "cpu" else ("gcc", "clang")
    return None if any(map(shutil.which, wanted)) else f"a compiler ({' or '.join(wanted)} on the PATH)"


def _compiler_variable(kind: str) -> str:
    return "CXX" if kind == "cpu" else "CC"


def check_jax_compiles(what: str) -> None:
    """Refuse the variable by which JAX compiles single operations alone. `what`: what compiles, in words.

    Raises UserError.
    """
    value = os.environ.get("JAX_DISABLE_JIT", "")
    if value.lower() in ("y", "yes", "t", "true", "on", "1"):  # JAX's words
        raise UserError(f"JAX_DISABLE_JIT={value}: {what}; unset it")


class WithoutTensorFlow(MetaPathFinder):
    """Keras imports TensorFlow on every backend if it is installed: 3 s that a JAX process has no use for.

    A finder, not None in sys.modules: Keras takes the name's presence there for an imported TensorFlow.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "tensorflow":
            raise ModuleNotFoundError("tensorflow is left out of a process that runs Keras on another backend")


def _load_keras(backend: str) -> ModuleType:
    there = sys.modules.get("keras")
    if there is not None and (chosen := there.config.backend()) != backend:
        raise UserError(
            f"backend={backend}: Keras has been imported on {chosen} in this process, where it stays; restart the "
            "process (of a notebook the kernel), and leave that import to this package, or set "
            f"KERAS_BACKEND={backend} before it"
        )
    keep_freed_memory()
    os.environ["KERAS_BACKEND"] = backend
    if backend != "tensorflow":
        sys.meta_path.insert(0, WithoutTensorFlow())
        os.environ.setdefault("EPATH_USE_TF", "false")  # JAX's cache of programs would look for it through etils.epath
    return import_for(backend, "pipeline.backends.keras.fit")
