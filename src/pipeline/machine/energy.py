"""The energy that a device takes, where the machine tells it: a processor's by RAPL, an NVIDIA GPU's by NVML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.machine.device import nvml_handle

POWERCAP = Path("/sys/class/powercap")
UNKNOWN = "the machine does not report the energy that it uses"


Meter = Callable[[], float]  # the joules that the whole device has taken since some moment


def meter(place: str) -> Meter | None:
    """Of `cpu` or `gpu:0`; None where the machine does not say, or not to this user."""
    return of_processor(POWERCAP) if place == "cpu" else of_gpu(int(place.partition(":")[2]))


class Package:
    """A processor's counter, which begins again at 0 when it is full.

    Source: Documentation/power/powercap/powercap.rst of Linux.
    """

    def __init__(self, folder: Path) -> None:
        self.counter = folder / "energy_uj"
        self.full = int((folder / "max_energy_range_uj").read_text())
        self.total, self.last = 0, self._read()

    def joules(self) -> float:
        """Since it was made; to be asked before the counter has been full twice."""
        now = self._read()
        self.total += (now - self.last) % self.full
        self.last = now
        return self.total / 1e6

    def _read(self) -> int:
        return int(self.counter.read_text())


def of_processor(powercap: Path) -> Meter | None:
    """All packages together: `intel-rapl:0`, `intel-rapl:1`, on AMD's processors too. `intel-rapl:0:0` is a part."""
    try:
        packages = [Package(folder) for folder in sorted(powercap.glob("intel-rapl:*")) if folder.name.count(":") == 1]
    except (OSError, ValueError):  # Linux lets root alone read them
        return None
    return (lambda: sum(one.joules() for one in packages)) if packages else None


def of_gpu(index: int) -> Meter | None:
    """From Volta on."""
    import pynvml

    try:
        handle = nvml_handle(index)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except (pynvml.NVMLError, IndexError):
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
