"""Lightning's import without what it loads and a run does not use: the first training step comes a third sooner."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
# Whose functions are kept from the compiler without its import; ours is the Observer's, of every first step.
LIBRARIES = ("torch", "torchmetrics", "lightning_fabric", "pytorch_lightning", "pipeline")


@contextmanager
def lean_import() -> Iterator[None]:
    """Import torch and Lightning inside, without SciPy's signal processing, transformers and torch's compiler.

    All can be imported afterwards, as ever.
    """
    import torch

    if COMPILER not in sys.modules:
        torch._dynamo = sys.modules[COMPILER] = UnusedCompiler()
    with in_place_of(signal_processing()), in_place_of(UnusedTransformers()):
        yield


@contextmanager
def in_place_of(placeholder: ModuleType) -> Iterator[None]:
    """Keep torchmetrics 1.x from importing the module of that name inside, where it has not been imported already."""
    name = placeholder.__name__
    if name in sys.modules or "torchmetrics" in sys.modules:
        yield
        return
    sys.modules[name] = placeholder
    try:
        yield
    finally:
        if sys.modules.get(name) is placeholder:
            del sys.modules[name]


def signal_processing() -> ModuleType:
    """Stands for `scipy.signal`, with which scipy.stats would come.

    torchmetrics gives it back a name that SciPy 1.13 dropped (`hamming`), for an audio package. This has the name.
    """
    placeholder = ModuleType("scipy.signal")
    placeholder.hamming = None  # type: ignore[attr-defined]
    return placeholder


class UnusedTransformers(ModuleType):
    """Stands for Hugging Face's transformers, which take a second of a core; asked for more, it makes way for them.

    torchmetrics imports two of their classes for one metric of texts, and has them when that metric is computed.
    """

    def __init__(self) -> None:
        super().__init__("transformers")
        self.AutoModel, self.AutoTokenizer = UnusedClass("AutoModel"), UnusedClass("AutoTokenizer")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class UnusedClass:
    """Stands for one of transformers' classes, whose class methods alone are called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # as whoever inspects every object asks
            raise AttributeError(name)
        return getattr(getattr(importlib.import_module("transformers"), self.name), name)


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

    def disable(self, fn: Callable[..., Any] | None = None, recursive: bool = True, **options: Any) -> Any:
        """Keep `fn` from being compiled: a function of LIBRARIES never is, others the compiler itself marks."""
        if fn is None:
            return partial(self.disable, recursive=recursive, **options)
        if str(fn.__module__).partition(".")[0] not in LIBRARIES:
            return self.real().disable(fn, recursive, **options)
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
