"""What an NVIDIA GPU did while it was timed: its clock and the power that it took, by NVML.

NVML's power is a mean over some tenths of a second on newer cards, so that of a short sample is that of its round.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.kernels.on_card import card
from pipeline.machine.device import nvml_handle


@dataclass(frozen=True)
class State:
    """`clock_mhz`: of the multiprocessors. `power_w`: of the whole card. None: the driver does not say."""

    clock_mhz: float | None
    power_w: float | None


def state() -> State | None:
    """Of the card that the kernels run on, now; None where there is none."""
    gpu = card()
    if gpu is None:
        return None
    import pynvml

    def asked(what: str, *more: int) -> float | None:
        try:
            return float(getattr(pynvml, what)(nvml_handle(gpu.index), *more))
        except (pynvml.NVMLError, IndexError):
            return None

    power = asked("nvmlDeviceGetPowerUsage")  # in thousandths of a watt
    return State(asked("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM), None if power is None else power / 1000)
