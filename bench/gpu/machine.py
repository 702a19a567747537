"""The machine beside the figures: its GPU and the clocks; of each figure the driver and the versions that computed."""

from __future__ import annotations

import contextlib
from typing import Any

from bench.measure import machine, versions
from pipeline.machine.device import Gpu, driver_cuda, driver_version, gpus, nvml_handle


def described(*, rehearsal: bool) -> dict[str, Any]:
    """What stands at the head of the file of results; `gpu` where figures are of one."""
    found: dict[str, Any] = {name: value for name, value in machine().items() if name != "python"}  # see `software`
    if gpus() and not rehearsal:
        found["gpu"] = of_gpu(gpus()[0])
    return found | ({"rehearsal": True} if rehearsal else {})


def software() -> dict[str, Any]:
    """What stands in each entry, since another may be of another environment: the driver where there is one, versions.

    `cuda`: the newest that the driver takes.
    """
    driver = {"driver": driver_version(), "cuda": "{}.{}".format(*(driver_cuda() or (0, 0)))} if gpus() else {}
    return {**driver, "versions": versions()}


def of_gpu(gpu: Gpu) -> dict[str, Any]:
    """A GPU as the driver describes it; clocks in MHz, the limit of its power in W."""
    return {
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "compute_capability": "{}.{}".format(*gpu.compute_capability),
        **_limits(gpu),
    }


def _limits(gpu: Gpu) -> dict[str, Any]:
    """The highest clocks, and the power that it may take, as far as the driver says."""
    import pynvml

    handle = nvml_handle(gpu.index)
    asked = {
        "sm_clock_MHz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_MHz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "power_limit_W": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    }
    found = {}
    for name, ask in asked.items():
        with contextlib.suppress(pynvml.NVMLError):
            found[name] = ask()
    return found
