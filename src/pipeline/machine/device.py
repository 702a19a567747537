"""Devices: the notations people use, and the GPUs of this machine, found without importing a framework."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pipeline.contracts import Part
from pipeline.errors import UserError, cut
from pipeline.spec import spec

NOTATIONS = "auto, cpu, gpu, gpu:N, cuda, cuda:N, /GPU:N, /device:GPU:N, /job:localhost/replica:0/task:0/device:GPU:N"

_PATTERN = re.compile(
    r"^(?:/job:localhost/replica:0/task:0)?(?:/(?:device:)?)?(?P<kind>cpu|gpu|cuda)(?::(?P<index>\d+))?$", re.IGNORECASE
)
_SIZE = re.compile(r"^(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>B|[KMGT]i?B)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """One physical device: `cpu`, or the GPU of an index as the frameworks count them."""

    kind: Literal["cpu", "gpu"]
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"gpu:{self.index}"

    @property
    def torch(self) -> str:
        """PyTorch's name: cpu, cuda:0."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def tensorflow(self) -> str:
        """TensorFlow's and Keras's short name: /CPU:0, /GPU:0."""
        return f"/{self.kind.upper()}:{self.index}"

    @property
    def in_task(self) -> str:
        """TensorFlow's name within its task: /device:CPU:0, /device:GPU:0."""
        return f"/device:{self.kind.upper()}:{self.index}"

    @property
    def full(self) -> str:
        """TensorFlow's full name."""
        return f"/job:localhost/replica:0/task:0{self.in_task}"


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver reports it."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]


def dotted(version: tuple[int, int]) -> str:
    """A version of two numbers as it is written: 9.0."""
    return f"{version[0]}.{version[1]}"


def canonical(notation: str, key: str = "device") -> str:
    """`auto`, `cpu`, `gpu` or `gpu:N` for any notation of NOTATIONS. Raises UserError for any other text of `key`."""
    text = notation.strip()
    if text.lower() == "auto":
        return "auto"
    match = _PATTERN.match(text)
    if not match:
        raise UserError(f"{key}={cut(notation)}: no such choice; choose from {NOTATIONS}")
    if match["kind"].lower() == "cpu":
        if match["index"] not in (None, "0"):
            raise UserError(f"{key}={notation}: the CPU is one device, cpu:0; choose from {NOTATIONS}")
        return "cpu"
    return "gpu" if match["index"] is None else f"gpu:{int(match['index'])}"


def parse_size(text: str) -> int:
    """Bytes of `device.memory_limit`, such as 768MiB, 1.5GB or 1000000. Raises UserError."""
    match = _SIZE.match(text.strip())
    size = 0
    if match:
        unit = (match["unit"] or "B").upper()
        base = 1024 if "I" in unit else 1000
        size = int(Fraction(match["number"]) * base ** "BKMGT".index(unit[0]))
    if size <= 0:
        raise UserError(
            f"device.memory_limit={cut(text)}: not a size; write bytes, or a number and a unit, as 768MiB or 1GB"
        )
    return size


def count_by_bus() -> None:
    """Let CUDA count GPUs by PCI bus, as NVML does, unless the user said otherwise; to be called before any framework.

    CUDA's own default is the fastest first: gpu:1 here would then be another GPU than cuda:1 in the framework.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@cache
def gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that a framework would see, by NVML; empty without a driver."""
    return tuple(_described(index, handle) for index, handle in enumerate(_handles()))


def shut_down_nvml() -> None:
    """End NVML in this process, before it forks: NVML has files and threads, and a forked process none of its threads.

    Whoever asks again starts it anew.
    """
    import pynvml

    gpus.cache_clear()
    with suppress(pynvml.NVMLError):  # once it has ended as often as it was begun
        while True:
            pynvml.nvmlShutdown()


def gpu_free_bytes(index: int) -> int:
    """Free memory of a GPU, by the driver; `index` as in `gpus`."""
    import pynvml

    return int(pynvml.nvmlDeviceGetMemoryInfo(_handles()[index]).free)


def gpu_limits() -> list[dict[str, int | None]]:
    """What each GPU of `gpus` was set to: its power limit in mW and the clock in MHz of its multiprocessors.

    None: the driver does not say, of a part of a GPU (MIG) among others. It never says which clock is locked.
    """
    import pynvml

    def asked(what: str, handle: Any, *more: int) -> int | None:
        try:
            return int(getattr(pynvml, what)(handle, *more))
        except pynvml.NVMLError:
            return None

    return [
        {
            "power_mw": asked("nvmlDeviceGetPowerManagementLimit", handle),
            "clock_mhz": asked("nvmlDeviceGetApplicationsClock", handle, pynvml.NVML_CLOCK_SM),
        }
        for handle in _handles()
    ]


def nvml_handle(index: int) -> Any:
    """NVML's handle of a GPU; `index` as in `gpus`. Raises IndexError where there is none."""
    return _handles()[index]


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA version that the NVIDIA driver runs, or None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return None
    return number // 1000, number % 1000 // 10


def _handles() -> list[Any]:
    """NVML's handle of each GPU that CUDA_VISIBLE_DEVICES leaves visible, in its order."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    every = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return every
    chosen = []
    for entry in setting.split(","):
        handle = _handle(entry.strip(), every)
        if handle is None:
            break  # CUDA ignores everything behind the first invalid entry
        chosen.append(handle)
    return chosen


def _handle(entry: str, every: list[Any]) -> Any:
    """The GPU that an entry of CUDA_VISIBLE_DEVICES names: an index, a UUID (GPU-…, MIG-…) or the beginning of one."""
    import pynvml

    if entry.isdigit():
        return every[int(entry)] if int(entry) < len(every) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    begun = [handle for handle in every if pynvml.nvmlDeviceGetUUID(handle).startswith(entry)]
    if begun:
        return begun[0] if len(begun) == 1 else None
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(entry)  # a part of a GPU (MIG) is not among those counted
    except pynvml.NVMLError:
        return None


def _described(index: int, handle: Any) -> Gpu:
    import pynvml

    whole = handle
    if pynvml.nvmlDeviceGetUUID(handle).startswith("MIG-"):  # which has its own memory, but no capability
        whole = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return Gpu(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(whole)),
    )


def _in_bytes(size: object) -> object:
    """A plain number is one of bytes, as the user wrote it."""
    return str(size) if type(size) is int else size


@spec
class Device(Part):
    """Where a run computes.

    `name` takes any notation of NOTATIONS. `memory_limit` bounds the device's memory (GPU only). `logical_devices`
    splits the device into several (TensorFlow: CPU and GPU; JAX: CPU), each with `memory_limit`. `placement_log` writes
    the device and dtype of every operation of one training step into the run's folder. `processes`: so many train
    together, each with its part of every batch: on the CPU's cores, or on as many GPUs from `name` on (PyTorch; on JAX
    one process trains on so many devices). `split`: so many devices share each weight (JAX).
    """

    name: str = "auto"
    memory_limit: Annotated[str | None, BeforeValidator(_in_bytes)] = None
    logical_devices: int = Field(default=1, ge=1, le=64)
    placement_log: bool = False
    processes: int = Field(default=1, ge=1, le=1024)
    split: int = Field(default=1, ge=1, le=1024)

    def __post_init__(self) -> None:
        canonical(self.name, "device.name")
        if self.memory_limit is not None:
            parse_size(self.memory_limit)

    @property
    def memory_limit_bytes(self) -> int | None:
        """The bound in bytes, or None."""
        return None if self.memory_limit is None else parse_size(self.memory_limit)
