"""Which GPUs a framework would see, by NVML. The mapping alone is tested here, on a driver that is made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
from command import environment

from pipeline.machine import device
from pipeline.machine.device import Place
from pipeline.machine.gpu_users import others_on, said_of_others

UUIDS = ("GPU-1111aaaa-0000", "GPU-1111bbbb-0000", "GPU-22220000-0000")
PART = "MIG-33330000-0000"  # of the second GPU


class NvmlError(Exception):
    """What the made-up driver raises."""


def handle_of(uuid: str) -> str:
    if uuid not in (*UUIDS, PART):
        raise NvmlError("Not Found")
    return uuid


def capability(handle: str) -> tuple[int, int]:
    if handle == PART:
        raise NvmlError("Invalid Argument")
    return (8, UUIDS.index(handle))


begun: list[None] = []  # one for each nvmlInit that no nvmlShutdown has ended


def shut_down() -> None:
    if not begun:
        raise NvmlError("Uninitialized")
    begun.pop()


def power_limit(handle: str) -> int:
    if handle == PART:
        raise NvmlError("Not Supported")
    return 700_000


def set_clock(handle: str, kind: int) -> int:
    if handle != UUIDS[0]:
        raise NvmlError("Not Supported")
    return 1980 + kind


DRIVER = SimpleNamespace(
    NVMLError=NvmlError,
    NVML_CLOCK_SM=1,
    nvmlDeviceGetPowerManagementLimit=power_limit,
    nvmlDeviceGetApplicationsClock=set_clock,
    nvmlInit=lambda: begun.append(None),
    nvmlShutdown=shut_down,
    nvmlDeviceGetCount=lambda: len(UUIDS),
    nvmlDeviceGetHandleByIndex=lambda index: UUIDS[index],
    nvmlDeviceGetHandleByUUID=handle_of,
    nvmlDeviceGetUUID=lambda handle: handle,
    nvmlDeviceGetName=lambda handle: f"name of {handle}",
    nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=len(handle), free=1000 + (*UUIDS, PART).index(handle)),
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda _: UUIDS[1],
    nvmlDeviceGetCudaComputeCapability=capability,
    nvmlSystemGetDriverVersion=lambda: "580.1",
)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setitem(sys.modules, "pynvml", DRIVER)
    device.gpus.cache_clear()
    yield monkeypatch
    device.gpus.cache_clear()


VISIBLE = {
    None: [0, 1, 2],
    "": [],
    "-1": [],
    "2,0": [2, 0],
    "0,7,1": [0],  # CUDA ignores everything behind the first invalid entry
    UUIDS[1]: [1],
    f"{UUIDS[2]}, {UUIDS[0]}": [2, 0],
    "GPU-2222": [2],
    "GPU-1111": [],  # two begin so
    f"1,GPU-9999,{UUIDS[2]}": [1],
}


@pytest.mark.parametrize("setting", VISIBLE)
def test_visible_gpus(driver: pytest.MonkeyPatch, setting: str | None) -> None:
    driver.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        driver.setenv("CUDA_VISIBLE_DEVICES", setting)
    wanted = VISIBLE[setting]
    assert [gpu.name for gpu in device.gpus()] == [f"name of {UUIDS[number]}" for number in wanted]
    assert [gpu.index for gpu in device.gpus()] == list(range(len(wanted)))
    assert [gpu.compute_capability for gpu in device.gpus()] == [(8, number) for number in wanted]
    assert [device.gpu_free_bytes(gpu.index) for gpu in device.gpus()] == [1000 + number for number in wanted]


def test_a_part_of_a_gpu_has_its_own_memory_and_the_capability_of_the_whole(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("CUDA_VISIBLE_DEVICES", f"{PART},0")
    part, whole = device.gpus()
    assert (part.name, part.memory_bytes, part.compute_capability) == (f"name of {PART}", len(PART), (8, 1))
    assert (whole.index, whole.compute_capability) == (1, (8, 0))
    assert device.gpu_free_bytes(0) == 1003


def test_what_gpus_are_set_to(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("CUDA_VISIBLE_DEVICES", f"0,2,{PART}")
    set_to = [(700_000, 1981), (700_000, None), (None, None)]
    assert device.gpu_limits() == [{"power_mw": power, "clock_mhz": clock} for power, clock in set_to]


def test_driver_version(driver: pytest.MonkeyPatch) -> None:
    assert device.driver_version() == "580.1"
    driver.setattr(DRIVER, "nvmlInit", lambda: handle_of("no driver"))
    assert device.driver_version() is None
    assert device.gpus() == ()


@pytest.mark.parametrize(("set_by_user", "order"), [(None, "PCI_BUS_ID"), ("FASTEST_FIRST", "FASTEST_FIRST")])
def test_gpus_are_counted_as_nvml_counts_them_unless_set_otherwise(set_by_user: str | None, order: str) -> None:
    code = (
        "import os; from pipeline.ready import ready; from pipeline.errors import UserError\n"
        "try: ready({'stage': {'_target_': 'pipeline.stages.devices.stage.Devices'}}, [])\n"
        "except UserError: print(os.environ.get('CUDA_DEVICE_ORDER'))"
    )
    result = environment()
    result.pop("CUDA_DEVICE_ORDER", None)
    result |= {} if set_by_user is None else {"CUDA_DEVICE_ORDER": set_by_user}
    done = subprocess.run([sys.executable, "-c", code], env=result, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == order


def test_other_processes_on_a_gpu_are_counted(driver: pytest.MonkeyPatch) -> None:
    """Nothing said that another training had the same card. One of no number of ours is a container's: not known."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        for pids, count, said in (
            ([os.getpid()], 0, None),
            ([os.getpid(), child.pid], 0, None),
            ([child.pid, 1], 1, "1 other process used gpu:0 when this run ended: they may have slowed it"),
            ([os.getpid(), 1, 2], 2, "2 other processes used gpu:0 when this run ended: they may have slowed it"),
            ([1, 2], None, None),
            ([], None, None),
        ):
            listed = partial(map, lambda pid: SimpleNamespace(pid=pid), pids)
            driver.setattr(DRIVER, "nvmlDeviceGetComputeRunningProcesses", lambda _, of=listed: of(), raising=False)
            assert (others_on(0), said_of_others(Place("gpu"))) == (count, said)
        assert others_on(99) is None and said_of_others(Place("cpu")) is None
    finally:
        child.communicate(b"\n")
