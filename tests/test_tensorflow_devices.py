"""TensorFlow on a machine with several GPUs: its own code, on devices that are made up."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command import environment

from pipeline.machine.memory import still_free
from pipeline.machine.tensorflow_devices import GROWTH, free_bytes

# Two GPUs as TensorFlow lists them before it starts any; what it would start them with is computed by its own code.
TWO_GPUS = """
import sys
from types import SimpleNamespace
from pipeline.machine.device import Device, Place
from pipeline.machine.quiet import quiet_import
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
tf = quiet_import("tensorflow")
from tensorflow.python.eager import context
process = context.context()
process._initialize_physical_devices()
cards = [context.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in (0, 1)]
process._physical_devices += cards
process._visible_device_list += cards
process._memory_growth_map |= dict.fromkeys(cards)
"""
CLASSIFIER = """
from pipeline.backends.keras import settings_tensorflow
device = Device(name="gpu:1", memory_limit=sys.argv[1] or None)
experiment = SimpleNamespace(device=device, backend=SimpleNamespace(threads=None))
settings_tensorflow._configure_devices(experiment, SimpleNamespace(place=Place("gpu", 1)))
"""
DEEPXDE = """
from pipeline.machine.precision import FORMATS
from pipeline.pinn.solvers import deepxde_start
with deepxde_start._tensorflow(SimpleNamespace(name="tensorflow", threads=None), FORMATS["fp32"], Place("gpu", 1), 0.0):
    pass
"""
SHOW = "print(process._compute_gpu_options(), os.environ['TF_FORCE_GPU_ALLOW_GROWTH'])"


def options(start: str, limit: str = "") -> str:
    """What TensorFlow's own code makes of the settings, as text."""
    code = TWO_GPUS + start + SHOW
    command = [sys.executable, "-c", code, limit]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.wide
def test_memory_grows_on_every_visible_gpu() -> None:
    assert (
        options(CLASSIFIER) == options(DEEPXDE) == 'allow_growth: true visible_device_list: "0,1" experimental { } true'
    )


@pytest.mark.wide
def test_a_limit_on_one_gpu_does_not_take_the_other() -> None:
    found = options(CLASSIFIER, "768MiB")
    assert "allow_growth" not in found  # TensorFlow leaves it out beside logical devices, and asks the environment
    assert "virtual_devices { } virtual_devices { memory_limit_mb: 768 }" in found
    assert found.endswith(" true")


GIB = 2**30


def test_memory_that_the_pool_has_taken_is_still_free() -> None:
    """A GPU of 80 GiB with 20 GiB used by others, and a limit of 40 GiB taken at once: the driver has 20 GiB left."""
    assert still_free(20 * GIB, 40 * GIB, reserved=40 * GIB, given_out=0) == 40 * GIB
    assert still_free(20 * GIB, 40 * GIB, reserved=40 * GIB, given_out=15 * GIB) == 25 * GIB
    assert still_free(60 * GIB, 40 * GIB, reserved=0, given_out=0) == 40 * GIB  # not more than the limit
    assert still_free(10 * GIB, 40 * GIB, reserved=0, given_out=0) == 10 * GIB  # nor than there is
    assert still_free(60 * GIB, None, reserved=0, given_out=0) == 60 * GIB
    assert still_free(50 * GIB, None, reserved=10 * GIB, given_out=GIB) == 59 * GIB  # the pool of an earlier fit


def test_a_pool_of_the_whole_gpu_is_not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 80 GiB of which TensorFlow has taken 78 at once: the driver has 2 GiB left."""
    monkeypatch.setenv(GROWTH, "false")
    assert free_bytes(2 * GIB, 80 * GIB, None, given_out=3 * GIB) == 77 * GIB
    assert free_bytes(40 * GIB, 80 * GIB, 30 * GIB, given_out=3 * GIB) == 27 * GIB
    monkeypatch.setenv(GROWTH, "true")
    assert free_bytes(70 * GIB, 80 * GIB, None, given_out=3 * GIB) == 70 * GIB
    assert free_bytes(70 * GIB, 80 * GIB, 30 * GIB, given_out=3 * GIB) == 27 * GIB
