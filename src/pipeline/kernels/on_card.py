"""Which GPU the kernels run on, as `device` says. It holds for this process: a kernel's contract knows no device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.machine.device import Gpu, canonical, dotted, gpus

_index: int | None = 0


@contextmanager
def on_card(index: int | None) -> Iterator[None]:
    """The GPU of an index, as `gpus` counts; None: none, kernels for a GPU are rehearsed and not timed."""
    global _index
    before, _index = _index, index
    try:
        yield
    finally:
        _index = before


def card_index() -> int | None:
    """As `on_card` was called; the first GPU where it was not."""
    return _index


def card() -> Gpu | None:
    """The GPU, where there is one that may be used."""
    return None if _index is None else next((gpu for gpu in gpus() if gpu.index == _index), None)


def asked(name: str) -> int | None:
    """The index for a `device`, as a stage with `own_kernels` is resolved: `auto` is the first, whatever a framework
    can use; None: `device=cpu`."""
    wanted = canonical(name)
    return None if wanted == "cpu" else int(wanted.partition(":")[2] or 0)


def missing_card(minimum: tuple[int, int] | None, *, exactly: bool = False) -> str | None:
    """What keeps a kernel from the GPU, in words that follow "needs"; None where nothing does.

    `minimum`: the oldest compute capability; `exactly`: no newer one will do either.
    """
    gpu = card()
    if gpu is None:
        return "an NVIDIA GPU" if not gpus() else "a GPU, and device=cpu leaves it alone"
    has = gpu.compute_capability
    if minimum is not None and (has < minimum or (exactly and has != minimum)):
        newer = "" if exactly else " or newer"
        return f"compute capability {dotted(minimum)}{newer}; {gpu.name} has {dotted(has)}"
    return None


def missing_torch(minimum: tuple[int, int] | None) -> str | None:
    """The same of a kernel that goes through torch, which is not imported."""
    from pipeline.machine import gpu_support

    lacking, gpu = missing_card(minimum), card()
    if lacking is not None or gpu is None:
        return lacking
    reason = gpu_support.reason(gpu_support.torch(), gpu)
    return None if reason is None else f"a torch that can use {gpu.name}: {reason}"
