"""Lightning's import without what it loads and a run does not use: the first training step comes a third sooner."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"


@contextmanager
def lean_import() -> Iterator[None]:
    """Import torch and Lightning inside, without SciPy's signal processing and without torch's compiler.

    Both can be imported afterwards, as ever.
    """
    import torch

    if COMPILER not in sys.modules:
        torch._dynamo = sys.modules[COMPILER] = UnusedCompiler()
    with no_scipy_signal():
        yield


@contextmanager
def no_scipy_signal() -> Iterator[None]:
    """Keep `scipy.signal` from being imported inside.

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


class UnusedCompiler(ModuleType):
    """Stands for torch's compiler where nothing is compiled; asked for anything else, it makes way for the real one.

    Lightning imports the compiler to tell a compiled module from others, and torch's optimizers to keep themselves from
    being compiled: that is all a run needs of it, and the import takes as long as torch's own.
    """

    class OptimizedModule:
        """A compiled module, of which there are none."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.__path__ = RealPath(self)  # type: ignore[assignment]
        self.kept: list[Callable[..., Any]] = []

    def graph_break(self, msg: str = "") -> None:
        """In a step that is not compiled it does nothing."""

    def disable(self, fn: Callable[..., Any] | None = None, recursive: bool = True, **_: Any) -> Any:
        """Keep `fn` from being compiled, which it is not."""
        if fn is None:
            return self.disable
        self.kept.append(fn)
        return fn

    def real(self) -> ModuleType:
        """The compiler itself, in place of this."""
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER], sys.modules["torch"]._dynamo
            for fn in self.kept:  # torch remembers our answer here; now it has to ask the compiler
                vars(fn).pop("__dynamo_disable", None)
        return importlib.import_module(COMPILER)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # `inspect` asks every module for its __file__
            raise AttributeError(name)
        return getattr(self.real(), name)


class RealPath:
    """Where the modules below the compiler lie: looking there is asking for the real one."""

    def __init__(self, unused: UnusedCompiler) -> None:
        self.unused = unused

    def __iter__(self) -> Iterator[str]:
        return iter(self.unused.real().__path__)
