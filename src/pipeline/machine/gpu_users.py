"""Which other processes have a GPU: its times are then theirs as well."""

from __future__ import annotations

from pipeline.errors import plural
from pipeline.machine.device import Place, nvml_handle


def said_of_others(place: Place) -> str | None:
    """In words, while this process or one that it has started has the GPU, as a training has. None where they are
    alone, or on a CPU, or nothing is known: of a stage whose processes have ended, and in containers where the driver's
    numbers of processes are the host's.
    """
    if place.kind == "cpu":
        return None
    others = others_on(place.index)
    if not others:
        return None
    return f"{plural(others, 'other process')} used {place} when this run ended: they may have slowed it"


def others_on(index: int) -> int | None:
    """How many processes compute on a GPU that are neither this one nor started by it; None where it is not known."""
    import psutil
    import pynvml

    try:
        found = {one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(nvml_handle(index))}
    except (pynvml.NVMLError, IndexError):
        return None
    me = psutil.Process()
    own = {me.pid, *(child.pid for child in me.children(recursive=True))}
    return len(found - own) if found & own else None
