"""The one table of what runs: backend x device x precision. What cannot run is refused here, before any framework is
imported, with the nearest choice that can; what `auto` and `mixed` stand for is decided here too, with the reason.

Each row for a CPU was found by running the cell, not taken from documentation. Those for GPUs are from NVIDIA's
documentation; docs/capability.md says which of them were then run on an H200.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import Impossible
from pipeline.machine.architecture import architecture, since
from pipeline.machine.device import Device, Gpu, Place, canonical
from pipeline.machine.host import lacks_bfloat16
from pipeline.machine.launched import Launched
from pipeline.machine.precision import AUTO, FORMATS


@dataclass(frozen=True)
class Refusal:
    """A cell that does not run as asked: `why`, and the override that does (`instead`)."""

    why: str
    instead: str


_NO_TF32 = Refusal(
    f"TF32 exists only in the Tensor Cores of NVIDIA GPUs from Ampere on (compute capability {since('TF32')})", "fp32"
)

# On a CPU, (backend, precision) -> refusal; a cell that is not here runs.
CPU_REFUSALS: dict[tuple[str, str], Refusal] = {
    ("torch", "tf32"): _NO_TF32,
    ("tensorflow", "tf32"): _NO_TF32,
    ("jax", "tf32"): _NO_TF32,
}

# What a GPU may lack (see architecture.py) -> the refusal of a precision that is computed by it, and of a mixed one.
_NO_FP16 = Refusal(f"float16 arithmetic needs compute capability {since('FP16')}", "fp32")
_NO_BF16 = f"bfloat16 needs compute capability {since('BF16')}"
GPU_REFUSALS: dict[str, tuple[Refusal, Refusal]] = {
    "TF32": (_NO_TF32, _NO_TF32),
    "FP16": (_NO_FP16, _NO_FP16),
    "BF16": (Refusal(_NO_BF16, "fp16"), Refusal(_NO_BF16, "mixed_fp16")),
}


@dataclass(frozen=True)
class Resolved:
    """What will run, and why it is that where the request left it open."""

    place: Place
    precision: str
    device_reason: str
    precision_reason: str


def converts_bfloat16(resolved: Resolved) -> str | None:
    """In words, that a processor has to convert each number of a precision; None where it does not."""
    bfloat16 = FORMATS[resolved.precision].compute == "bfloat16"
    if resolved.place.kind == "cpu" and bfloat16 and lacks_bfloat16():
        return "this processor has no instructions for bfloat16 and converts it: fp32 is mostly faster here"
    return None


def refusal(backend: str, kind: Literal["cpu", "gpu"], precision: str, gpu: Gpu | None = None) -> Refusal | None:
    """Why a cell does not run and what does instead, or None where it runs."""
    found = _refusal(backend, kind, precision, gpu)
    if found is None:
        return None
    instead = found.instead
    while further := _refusal(backend, kind, instead, gpu):  # what bf16 falls back to may be too new for a GPU as well
        instead = further.instead
    return Refusal(found.why, instead)


def _refusal(backend: str, kind: Literal["cpu", "gpu"], precision: str, gpu: Gpu | None) -> Refusal | None:
    if kind == "cpu":
        return CPU_REFUSALS.get((backend, precision))
    form = FORMATS[precision]
    if gpu is None or form.unit not in GPU_REFUSALS or architecture(gpu.compute_capability).has(form.unit):
        return None
    return GPU_REFUSALS[form.unit][form.mixed]


def resolve(
    backend: str, device: Device, precision: str, gpus: tuple[Gpu, ...], no_gpu_because: tuple[str | None, ...] = ()
) -> Resolved:
    """The device and precision that a request comes to. Raises UserError for a cell that does not run.

    `no_gpu_because` says for each GPU why the installed framework cannot use it, if it cannot; empty: it can use all.
    """
    place, device_reason = _place(device, gpus, no_gpu_because)
    gpu = gpus[place.index] if place.kind == "gpu" else None
    effective, precision_reason = _precision(place, precision, gpu)
    found = refusal(backend, place.kind, effective, gpu)
    if found:
        raise Impossible(
            f"precision={precision} with backend={backend} on {place}: {found.why}; "
            f"the nearest that runs is precision={found.instead}"
        )
    _check_limits(backend, device, place)
    return Resolved(place, effective, device_reason, precision_reason)


def _place(device: Device, gpus: tuple[Gpu, ...], no_gpu_because: tuple[str | None, ...]) -> tuple[Place, str]:
    wanted = canonical(device.name)
    if wanted == "cpu":
        return Place("cpu"), "as requested"
    because = no_gpu_because or (None,) * len(gpus)
    if wanted == "auto":
        return _auto(because)
    index = int(wanted.partition(":")[2] or 0)
    if not gpus:
        raise Impossible(
            f"device={device.name}: no NVIDIA GPU found on this machine; device=cpu or device=auto runs here"
        )
    if index >= len(gpus):
        names = ", ".join(f"gpu:{gpu.index} ({gpu.name})" for gpu in gpus)
        raise Impossible(f"device={device.name}: no such GPU; choose from {names}, cpu")
    if because[index]:
        others = [f"gpu:{gpu.index}" for gpu, why in zip(gpus, because, strict=True) if why is None]
        raise Impossible(f"device={device.name}: {because[index]}; device={(*others, 'cpu')[0]} runs here")
    return Place("gpu", index), "as requested"


def _auto(because: tuple[str | None, ...]) -> tuple[Place, str]:
    """The first GPU that the framework can use, or the CPU."""
    if not because:
        return Place("cpu"), "auto: no NVIDIA GPU found"
    for index, why in enumerate(because):
        if why is None:
            passed = f" that it can use: {because[0]}" if index else ""
            return Place("gpu", index), f"auto: the first GPU{passed}"
    return Place("cpu"), f"auto: {because[0]}"


def _precision(place: Place, precision: str, gpu: Gpu | None) -> tuple[str, str]:
    if precision != AUTO:
        return precision, "as requested"
    if place.kind == "cpu":
        return "mixed_bf16", "mixed on a CPU: bfloat16, since float16 there is slower and needs loss scaling"
    assert gpu is not None
    units = architecture(gpu.compute_capability)
    if "BF16" in units.tensor:
        newer = f"mixed on compute capability {since('BF16')} or newer"
        return "mixed_bf16", f"{newer}: bfloat16 at float16's rate, no loss scaling"
    if "FP16" in units.tensor:
        return "mixed_fp16", f"mixed below compute capability {since('BF16')}: only float16 has Tensor Cores"
    if units.has("FP16") and not units.slow("FP16"):
        return "mixed_fp16", "mixed without Tensor Cores: the CUDA cores have float16 at twice float32's rate"
    return "fp32", "mixed without Tensor Cores or a fast float16: float32 is the fastest here"


def _check_limits(backend: str, device: Device, place: Place) -> None:
    if device.memory_limit is not None and place.kind == "cpu":
        raise Impossible(
            f"device.memory_limit={device.memory_limit} on cpu: frameworks bound GPU memory only; "
            "bound a CPU run with your shell (ulimit -v) or drop the key"
        )
    if device.logical_devices > 1:
        splits = {("tensorflow", "cpu"), ("tensorflow", "gpu"), ("jax", "cpu")}
        if (backend, place.kind) not in splits:
            raise Impossible(
                f"device.logical_devices={device.logical_devices} with backend={backend} on {place}: "
                "it cannot split a device; backend=tensorflow can"
            )
        if place.kind == "gpu" and device.memory_limit is None:
            raise Impossible(
                f"device.logical_devices={device.logical_devices} on {place}: needs device.memory_limit, "
                "the memory of each (for example 768MiB)"
            )


def check_count(device: Device, place: Place, gpus: int, started: Launched | None) -> None:
    """Refuse more processes or devices than there are cores, or GPUs from `place` on. Raises Impossible.

    `started`: processes that a launcher has started, of which only those on this machine count.
    """
    here = device.processes if started is None else started.local_count
    asked = {f"device.{key}": count for key in ("processes", "split") if (count := getattr(device, key)) > 1}
    most = len(os.sched_getaffinity(0)) if place.kind == "cpu" else gpus - place.index
    if not asked or here * device.split <= most:
        return
    words = " ".join(f"{key}={count}" for key, count in asked.items())
    words += "" if started is None else f", {here} of them on this machine,"
    why = {
        "cpu": f"{words} on cpu: more than the cores that this command may use",
        "gpu": f"{words} from {place} on: each takes a GPU, and there are {gpus}",
    }
    choices = f"1 to {most}" if len(asked) == 1 else f"a product of at most {most}"
    raise Impossible(f"{why[place.kind]}; choose {choices}")


def runnable(backend: str, kind: Literal["cpu", "gpu"], gpu: Gpu | None = None) -> dict[str, Refusal | None]:
    """Every precision with its refusal (None: runs) for one backend and device, as `stage=devices` shows them."""
    return {name: refusal(backend, kind, name, gpu) for name in FORMATS}
