"""How fast bytes go between the host and a GPU, and on the GPU: by torch's copies, waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from pipeline.backends.shared.form_bench import WrongResult
from pipeline.machine.ceilings import Ceiling
from pipeline.machine.paths import both

LARGE, SMALL = 2**28, 4  # bytes
CALLS = 100  # of a small block, in a sample


def measured(place: str, rounds: int) -> Iterator[list[Ceiling]]:
    """Both directions, from pageable and from pinned memory; on the device; to the next GPU, where there is one.

    All so far after each.
    """
    device = torch.device(place.replace("gpu", "cuda"))
    torch.cuda.set_device(device)
    others = [number for number in range(torch.cuda.device_count()) if number != device.index]
    found = [Ceiling(name=f"{place}/paths/unified/bandwidth", unit="bytes/s", missing="torch has no unified memory")]
    for name, (source, target) in _pairs(device, others[0] if others else None).items():
        try:
            found += _path(f"{place}/paths/{name}", source, target, rounds)
        except (WrongResult, RuntimeError) as error:  # of this path alone
            found.append(Ceiling(name=f"{place}/paths/{name}", unit="bytes/s", fault=str(error)))
        yield found


def _pairs(device: torch.device, other: int | None) -> dict[str, tuple[Tensor, Tensor]]:
    """By path: where from and where to. The sources differ in all of their numbers."""
    there, here = (torch.arange(LARGE // 4, dtype=torch.int32, device=one) for one in ("cpu", device))
    pinned, target = there.pin_memory(), torch.zeros_like(here)
    found = {
        "pageable to device": (there, target),
        "device to pageable": (here, torch.zeros_like(there)),
        "pinned to device": (pinned, target),
        "device to pinned": (here, torch.zeros_like(pinned).pin_memory()),
        "on the device": (here, target),
    }
    return found if other is None else {**found, f"to gpu:{other}": (here, here.to(f"cuda:{other}"))}


def _path(name: str, source: Tensor, target: Tensor, rounds: int) -> list[Ceiling]:
    target.zero_()
    _seconds(source, target, 1)
    if not torch.equal(target.cpu(), source.cpu()):
        raise WrongResult("what arrives differs from what was sent")
    bandwidth, latency = [], []
    for _ in range(rounds):
        bandwidth.append(LARGE / _seconds(source, target, 1))
        latency.append(_seconds(source[:1], target[:1], CALLS))
    return both(name, LARGE, SMALL, bandwidth, latency)


def _seconds(source: Tensor, target: Tensor, calls: int) -> float:
    """Mean seconds of a copy over so many calls, each waited for."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls
