"""A device that the checks let through and the framework does not find: one message, whatever the backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import TORCH_THEN_WIDE, environment, failed, message

# A GPU as the driver would describe it, on a machine where no framework finds one. The rest is the real command.
COMMAND = """
import sys
from pipeline import backends
from pipeline.machine import device
device.gpus = lambda: (device.Gpu(0, "A100", 80 * 2**30, (8, 0)),)
for kind in (backends.Torch, backends.TensorFlow, backends.Jax):
    kind.no_gpu_because = lambda self, gpu=None: None
from pipeline.__main__ import main
sys.exit(main())
"""
NAMES = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}


def said(folder: Path, *words: str) -> str:
    command = [sys.executable, "-c", COMMAND, "tracking=none", "device=gpu", *words]
    return message(subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False))


def expected(backend: str) -> str:
    detail = {"jax": " (Unknown backend cuda. Available backends are ['cpu'])"}.get(backend, "")
    return f"device=gpu:0: {NAMES[backend]} finds no gpu:0, though the driver has one{detail}; device=cpu runs here"


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_a_gpu_that_the_framework_does_not_find_is_one_message(backend: str, tmp_path: Path) -> None:
    words = ("dataset=digits", "training=quick", f"backend={backend}")
    assert said(tmp_path, *words) == expected(backend)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_a_problem_says_the_same(backend: str, tmp_path: Path) -> None:
    words = ("stage=pinn", "dataset=function", "solver=deepxde", "solver.steps=2", f"backend={backend}")
    assert said(tmp_path, *words) == expected(backend)


@pytest.mark.wide
def test_a_solver_of_ours_says_the_same(tmp_path: Path) -> None:
    assert said(tmp_path, "stage=pinn", "dataset=function", "backend=jax") == expected("jax")


# A platform that says when it is started, as CUDA's would take a GPU's memory.
PLATFORMS = """
import jax
from jax._src import xla_bridge
from pipeline.machine.device import Place
from pipeline.machine.found import jax_device
xla_bridge.register_backend_factory("other", lambda: print("other started"), priority=500, fail_quietly=True)
print(jax_device(jax, Place("cpu")).platform, jax.config.jax_platforms)
"""


def test_on_the_cpu_jax_starts_nothing_else() -> None:
    command = [sys.executable, "-c", PLATFORMS]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "cpu None\n", done.stderr


EXCLUDES = "device=cpu: JAX_PLATFORMS={} excludes the CPU; unset it, or set JAX_PLATFORMS=cpu"
DOES_NOT_START = "device=cpu: JAX does not start with JAX_PLATFORMS={} (Unable to initialize backend 'nope': "


@pytest.mark.wide
@pytest.mark.parametrize(
    ("words", "platforms", "message"),
    [
        (("dataset=digits", "training=quick", "device=cpu"), "cuda", EXCLUDES),
        pytest.param(
            *(("stage=pinn", "dataset=function", "solver=adam", "device=auto"), "nope,cpu", DOES_NOT_START),
            marks=pytest.mark.wide,
        ),
        pytest.param(("stage=pinn", "dataset=function", "solver=deepxde"), "tpu", EXCLUDES, marks=pytest.mark.wide),
    ],
)
def test_a_cpu_that_jax_may_not_use_is_one_message(
    words: tuple[str, ...], platforms: str, message: str, tmp_path: Path
) -> None:
    assert failed(tmp_path, *words, "backend=jax", JAX_PLATFORMS=platforms).startswith(message.format(platforms))
