"""Python's garbage collector, where it has nothing to collect."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's garbage collector, which would look again and again through what is made here."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def importing(*packages: str) -> Iterator[None]:
    """Around the import of packages: what they make is left alone by the collector, then and later.

    It stays as long as the process, and to look through all of it takes an eighth of a framework's import, and a
    quarter once more as the process ends. Where one of `packages` was there already, the process is past its imports:
    what it has made since, a model with its weights perhaps, has to be collected when its time has come.
    """
    first = sys.modules.keys().isdisjoint(packages)
    with uncollected():
        yield
    if first:
        gc.freeze()
        atexit.register(thaw)


def thaw() -> None:
    """Have the end of the process look through everything after all, where Triton is bound by nanobind (from 3.9 on):
    of what the end leaves alone nanobind prints a page, as if it had leaked.
    """
    triton = sys.modules.get("triton._C.libtriton")
    if triton is not None and type(triton.ir.context).__module__ == "nanobind":
        gc.unfreeze()
