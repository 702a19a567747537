"""The device of a run as its framework finds it. Files, driver and GPU fitted each other (gpu_support.py); where the
framework finds no GPU all the same, its own error says nothing of that.

The framework is handed in: this folder imports none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pipeline.errors import Impossible
from pipeline.machine.device import Place


def check_torch(torch: ModuleType, place: Place) -> None:
    """Raise Impossible where torch does not find the GPU."""
    if place.kind == "gpu":
        # By is_available, CUDA is asked; device_count alone may be the driver's answer.
        _check("torch", torch.cuda.device_count() if torch.cuda.is_available() else 0, place)


def check_tensorflow(tf: ModuleType, place: Place) -> None:
    """Raise Impossible where TensorFlow does not find the GPU, as where its libraries of CUDA are not found."""
    if place.kind == "gpu":
        _check("TensorFlow", len(tf.config.list_physical_devices("GPU")), place)


def jax_device(jax: ModuleType, place: Place) -> Any:
    """JAX's device. Raises Impossible where JAX does not find it."""
    if place.kind == "cpu":
        try:
            with _gpus_left_alone(jax):
                return jax.devices("cpu")[place.index]
        except (RuntimeError, AssertionError) as error:  # JAX starts no platform but those of JAX_PLATFORMS
            raise _no_cpu(os.environ.get("JAX_PLATFORMS", ""), str(error)) from error
    try:
        found = jax.devices("cuda")
    except RuntimeError as error:  # JAX knows no such platform, or could not start it
        raise _missing("JAX", place, f" ({_one_line(str(error))})") from error
    _check("JAX", len(found), place)
    return found[place.index]


@contextmanager
def _gpus_left_alone(jax: ModuleType) -> Iterator[None]:
    """Have JAX start the CPU alone, where it has not started and the user has not said what it starts.

    It starts all that it has, and on a GPU takes three quarters of the memory, whichever device is then used.
    """
    before = jax.config.jax_platforms
    if before or jax._src.xla_bridge.backends_are_initialized():
        yield
        return
    jax.config.update("jax_platforms", "cpu")
    try:
        yield
    finally:
        jax.config.update("jax_platforms", before)


def _check(framework: str, found: int, place: Place) -> None:
    if place.index >= found:
        raise _missing(framework, place)


def _no_cpu(platforms: str, said: str) -> Impossible:
    if platforms and "cpu" not in platforms.split(","):
        return Impossible(f"device=cpu: JAX_PLATFORMS={platforms} excludes the CPU; unset it, or set JAX_PLATFORMS=cpu")
    named = f" with JAX_PLATFORMS={platforms}" if platforms else ""
    return Impossible(f"device=cpu: JAX does not start{named} ({_one_line(said)})")


def _one_line(said: str) -> str:
    return " ".join(said.split())[:200]


def _missing(framework: str, place: Place, said: str = "") -> Impossible:
    return Impossible(
        f"device={place}: {framework} finds no {place}, though the driver has one{said}; device=cpu runs here"
    )
