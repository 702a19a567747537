"""A metric over the batches of a test set."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from pipeline.contracts import Metric
from pipeline.errors import UserError
from pipeline.experiment.metrics import name_of
from pipeline.raised import in_words
from pipeline.report.intervals import Interval, by_examples
from pipeline.runs import result

SAME = 1e-6  # of a metric: it adds up batches, perhaps in float32


class Total:
    """One metric's sums so far. `fault`: what is wrong with the metric, where something is; it is then left alone."""

    def __init__(self, metric: Metric) -> None:
        self.metric, self.name = metric, name_of(metric)
        self.sums: Any = None
        self.each: list[np.ndarray] = []  # what each example gave, where the metric says it: some bytes an example
        self.fault: str | None = None

    def add(self, outputs: np.ndarray, targets: np.ndarray) -> None:
        """One batch, as the loss takes it."""
        if self.fault is not None:
            return
        try:
            sums = widened(self.metric.sums(outputs, targets))
            self.sums = sums if self.sums is None else added(self.sums, sums)
        except UserError as error:
            self.fault = str(error)
        except Exception as error:  # whatever a user's code may raise
            self.fault = f"sums() failed ({in_words(error)})"

    def add_examples(self, outputs: np.ndarray, targets: np.ndarray) -> None:
        """The same batch once more, where its rows are independent examples: for the interval of a mean over them."""
        if self.fault is not None:
            return
        try:
            found = self.metric.of_examples(outputs, targets)
        except Exception as error:  # whatever a user's code may raise
            self.fault = f"of_examples() failed ({in_words(error)})"
            return
        if found is None:
            return
        if not isinstance(found, np.ndarray) or found.shape != (len(targets),) or found.dtype.kind not in "bif":
            kind = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else _what(found)
            self.fault = f"of_examples() gave {kind} for {len(targets)} examples; give an array with a number for each"
            return
        self.each.append(found if found.dtype.kind == "b" else found.astype(np.float64))

    def interval(self) -> Interval | None:
        """The interval of the value by the examples; None where the metric does not say what each of them gave."""
        return by_examples(np.concatenate(self.each)) if self.each and self.fault is None else None

    def measured(self) -> result.Metric | None:
        """The number of all batches, with what the metric declares; None where it is not a number: `fault` says why."""
        if self.fault is None:
            try:
                value = number(self.metric.value(self.sums))
                metric = self.metric
                found = result.Metric(f"test/{self.name}", value, metric.unit, direction=metric.direction)
            except Exception as error:
                reason = error if isinstance(error, NoNumber) else f"failed ({in_words(error)})"
                self.fault = f"value() {reason}"
                return None
            self.fault = self._other_mean(value)
            return None if self.fault else found
        return None

    def _other_mean(self, value: float) -> str | None:
        """What is wrong where the value is not the mean that an interval would be of; None where nothing is."""
        if not self.each:
            return None
        each = np.concatenate(self.each)
        mean, size = float(each.mean()), float(np.abs(each).mean())
        # A mean of errors with either sign is nearly 0: it is as exact as they are, in the dtype that they are kept in.
        if math.isclose(mean, value, rel_tol=SAME, abs_tol=max(SAME * size, 1e-9)):
            return None
        return f"value() gave {value:.6g}, which has to be the mean of what of_examples() gives: {mean:.6g}"


class NoNumber(ValueError):
    """A metric gave something else than a number; the message continues `value()`."""


def number(value: object) -> float:
    """A metric's value as a float: of Python, NumPy or a framework, not NaN. Raises NoNumber."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise NoNumber(f"gave {_what(value)}, not a number")
    if math.isnan(value):
        raise NoNumber("gave nan, not a number")
    return float(value)


def _what(value: object) -> str:
    shape = getattr(value, "shape", None)
    kind = "None" if value is None else f"a {type(value).__name__}"
    return kind if shape is None else f"{kind} of shape {tuple(shape)}"


def widened(sums: Any) -> Any:
    """Sums in the widest type of their kind: a bool or a byte of NumPy would not add up."""
    if isinstance(sums, tuple | list):
        return tuple(map(widened, sums))
    if isinstance(sums, np.ndarray | np.generic):
        return sums.astype(np.int64 if sums.dtype.kind in "bui" else np.float64)
    return int(sums) if isinstance(sums, bool) else sums


def added(one: Any, other: Any) -> Any:
    """The sum of two batches' sums, of several item by item."""
    if isinstance(one, tuple):
        return tuple(added(*pair) for pair in zip(one, other, strict=True))
    return one + other
