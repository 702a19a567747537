"""The peak memory of a run as metrics, by which runs and cells are compared: a receipt has it in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.machine import memory
from pipeline.runs.result import Metric

PROCESS, CELL, DEVICE = "peak_memory", "cell_peak_memory", "device_peak_memory"  # in MiB
PEAKS = (PROCESS, CELL, DEVICE)


def peaks(receipt: Mapping[str, Any]) -> tuple[Metric, ...]:
    """Of this process, or of all processes together, and of the GPU's allocator (the first of several), up to the end
    of training.

    A cell that was forked from a worker has another name for its own: without the imports it is lower by a third or so,
    and would stand beside that of a command. What the receipt does not know of the whole run is left out: a resumed one
    has that of its last process alone, and the first of several processes may not know that of the others.
    """
    found = receipt.get("peak_memory", {})
    if not found or "peak_memory" in receipt.get("of_the_last_process", ()):
        return ()
    own, several = found["process_bytes"], receipt.get("processes", {})
    if several.get("count", 1) > 1:
        each = [one["peak_bytes"] for one in several.get("each", ())]
        own = sum(each) if each else None
    return named({**found, "process_bytes": own})


def named(found: Mapping[str, int | None], before: str = "") -> tuple[Metric, ...]:
    """`before` and a name for each of the peaks that are known, in bytes: of the process and of the GPU's allocator."""
    known = {CELL if memory.forked else PROCESS: found["process_bytes"], DEVICE: found.get("device_bytes")}
    made = ((f"{before}{of}", size) for of, size in known.items() if size is not None)
    return tuple(Metric(name, size / 2**20, "MiB", "memory", "min") for name, size in made)
