"""DeepXDE brought up: one backend, float and device for the process. It must not choose for itself.

Without DDE_BACKEND it would look for a backend and write its choice into the user's home.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

from pipeline.contracts import Backend
from pipeline.contracts.physics import Network, Problem
from pipeline.machine.device import Place
from pipeline.machine.found import check_tensorflow, check_torch, jax_device
from pipeline.machine.precision import FORMATS, Format
from pipeline.machine.quiet import import_for, quiet_imports
from pipeline.machine.tensorflow_devices import grow_as_needed
from pipeline.machine.threads import threads_for
from pipeline.pinn.guard import asked

NAMES = {"torch": "pytorch", "tensorflow": "tensorflow", "jax": "jax"}


def step_flop(problem: Problem, model: Network) -> float:
    """Operations of a step's matrix products, roughly: each derivative, and the gradient, triples what is below it."""
    sizes = model.sizes(problem)
    products = sum(2 * inputs * units for inputs, units in pairwise(sizes))
    return float(products * (problem.interior + problem.boundary) * 3 ** (1 + asked(problem)[0]))


@contextlib.contextmanager
def started(backend: Backend, precision: str, seed: int, place: Place, flop: float) -> Iterator[ModuleType]:
    """DeepXDE, imported and set up. What it and the frameworks print is left out: it is in the journal and the table.

    The seed is also NumPy's, which draws a polygon's points. `flop`: of a step, by which torch's threads are chosen.
    """
    os.environ["DDE_BACKEND"] = NAMES[backend.name]
    form = FORMATS[precision]
    with {"torch": _torch, "tensorflow": _tensorflow, "jax": _jax}[backend.name](backend, form, place, flop):
        with quiet_imports():
            dde = import_for(backend.name, "deepxde")
        with contextlib.redirect_stdout(io.StringIO()), _placed(backend.name, place):
            dde.config.set_default_float(form.compute)
            dde.config.set_random_seed(seed)
            yield dde


@contextlib.contextmanager
def _torch(backend: Backend, form: Format, place: Place, flop: float) -> Iterator[None]:
    import torch

    check_torch(torch, place)
    dtype, products = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    threads, device = torch.get_num_threads(), torch.get_default_device()
    if place.kind == "gpu":
        torch.set_float32_matmul_precision("high" if form.tf32 else "highest")
    torch.set_num_threads(backend.threads or threads_for(flop, threads))
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(products)
        torch.set_num_threads(threads)
        torch.set_default_device(mode_of(device))


def mode_of(device: Any) -> Any:
    """A default device as torch.set_default_device takes it: none for the CPU, which is it where none is set.

    With one, even "cpu", a Python function stands before every call of torch: it cost half of a small step.
    """
    return None if device.type == "cpu" else device


@contextlib.contextmanager
def _tensorflow(backend: Backend, form: Format, place: Place, flop: float) -> Iterator[None]:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    with quiet_imports():
        tf = import_for(backend.name, "tensorflow")
    check_tensorflow(tf, place)
    with contextlib.suppress(RuntimeError):  # already started
        if place.kind == "cpu":
            tf.config.set_visible_devices([], "GPU")  # before DeepXDE asks whether there is one, and turns XLA on
        else:
            grow_as_needed(tf)
        if backend.threads:
            tf.config.threading.set_intra_op_parallelism_threads(backend.threads)
    tf.config.experimental.enable_tensor_float_32_execution(form.tf32)
    tf.autograph.set_verbosity(0)  # a problem's residual has nothing to transform, and it would say so each time
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    yield


@contextlib.contextmanager
def _jax(backend: Backend, form: Format, place: Place, flop: float) -> Iterator[None]:
    with quiet_imports():
        jax = import_for(backend.name, "jax")
    with (
        jax.enable_x64(form.compute == "float64"),
        jax.default_matmul_precision("tensorfloat32" if form.tf32 else "highest"),
        jax.default_device(jax_device(jax, place)),
    ):
        yield


@contextlib.contextmanager
def _placed(backend: str, place: Place) -> Iterator[None]:
    """DeepXDE takes the first GPU that it finds: here the device that was asked for."""
    if backend == "torch":
        import torch

        torch.set_default_device(mode_of(torch.device(place.torch)))
        yield
    elif backend == "tensorflow":
        import tensorflow as tf

        with tf.device(place.tensorflow):
            yield
    else:
        yield
