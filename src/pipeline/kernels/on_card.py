"""Which GPU the kernels run on, as `device` says. It holds for this process: a kernel's contract knows no device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.machine.device import Gpu, canonical, gpus

if TYPE_CHECKING:
    from pipeline.machine.device import Place

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


def asked(name: str, place: Place | None = None) -> int | None:
    """The index for a `device`. `place`: what it came to for a framework, which `auto` follows to a GPU.

    A framework that cannot use GPUs does not keep our kernels from them, `device=cpu` does.
    """
    wanted = canonical(name)
    if wanted == "cpu":
        return None
    if place is not None and place.kind == "gpu":
        return place.index
    return int(wanted.partition(":")[2] or 0)
