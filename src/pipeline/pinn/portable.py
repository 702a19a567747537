"""Columns that can do no more than those of every framework: what finds NumPy's functions in a problem's residuals.

A residual is first computed in NumPy, where `np.tanh(u.value())` works; in torch or JAX it ends in a long traceback.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.pinn.problem import FUNCTIONS

OPERATORS = {
    *("add", "subtract", "multiply", "divide", "true_divide", "negative", "positive", "absolute", "power"),
    *("square", "reciprocal", "sqrt"),  # what NumPy takes for powers of 2, -1 and 0.5
    *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
}


class Portable(np.ndarray):
    """An array with operators and indices, on which NumPy's functions raise TypeError."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc.__name__ not in OPERATORS or method != "__call__":
            raise _numpys(ufunc.__name__)
        if "out" in options:  # of `r += ...`
            options["out"] = tuple(map(plain, options["out"]))
        return ufunc(*map(plain, inputs), **options).view(Portable)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        raise _numpys(function.__name__)


class PortableMath:
    """The functions that every backend has, as a module has them."""

    def __getattr__(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise AttributeError(name)
        return lambda *columns: getattr(np, name)(*map(plain, columns)).view(Portable)


def plain(value: Any) -> Any:
    """The array itself."""
    return value.view(np.ndarray) if isinstance(value, Portable) else value


def _numpys(name: str) -> TypeError:
    instead = f"math.{name}" if name in FUNCTIONS else f"one of math.{', '.join(FUNCTIONS)} or an operator"
    return TypeError(f"NumPy's {name} works on no other backend; use {instead}")
