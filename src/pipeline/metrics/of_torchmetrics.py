"""Any metric of torchmetrics, such as `torchmetrics.MulticlassAUROC` (Detlefsen et al., JOSS 7, 2022).

It computes on the CPU, from float64, whatever framework trained. torch is imported where such a metric is named and
nowhere else, beside Keras too.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from pipeline.contracts import Metric
from pipeline.errors import UserError, nearest
from pipeline.metrics.classification import probabilities
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.runs.result import Direction

PLACES = ("", ".classification", ".regression", ".text")  # `MulticlassAUROC` is not at the top of the package
ENOUGH = 1000  # classes, where there are no data to count them: more than any `top_k`


@spec
class Torchmetrics(Metric):
    """`metric`: the class, behind `torchmetrics.`; `arguments`: what it is made with. `num_classes` is filled in, and
    the task "multiclass".

    Classes are given as probabilities. `called`: the metric's name in the result (None: the class's).
    """

    packages: ClassVar[tuple[str, ...]] = ("torchmetrics", "torch")
    of_probabilities: ClassVar[bool] = True
    renamed_by: ClassVar[str] = "`called` in its node"

    metric: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    called: str | None = None

    @property
    def name(self) -> str:
        return self.called or self.metric.rpartition(".")[2]

    @property
    def direction(self) -> Direction:
        """As the class declares it; `torchmetrics.Accuracy` and its like leave that to what they make."""
        higher = self._class().higher_is_better
        if higher is None:
            higher = self.made(np.empty((1, ENOUGH))).higher_is_better
        return "none" if higher is None else "max" if higher else "min"

    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Seen:
        return Seen(self, outputs, targets)

    def value(self, sums: Seen) -> Any:
        return sums.updated().compute()

    def made(self, outputs: np.ndarray) -> Any:
        """The live metric. Raises UserError for a class that is not there or takes other arguments."""
        import torch

        cls, arguments = self._class(), dict(self.arguments)
        taken = inspect.signature(cls).parameters
        if "num_classes" in taken:
            arguments.setdefault("num_classes", outputs.shape[1])
        if "task" in taken and "num_classes" in taken:  # torchmetrics.Accuracy and its like, which make another class
            arguments.setdefault("task", "multiclass")
        try:
            return cls(**arguments).set_dtype(torch.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"torchmetrics.{self.metric}: {error}") from error

    def _class(self) -> Any:
        inside, _, name = self.metric.rpartition(".")
        names: set[str] = set()
        for place in (f".{inside}",) if inside else PLACES:
            try:
                module = vars(importlib.import_module(f"torchmetrics{place}"))
            except ImportError:
                continue
            there = {word for word, one in module.items() if _is_metric(one)}
            if name in there:
                return module[name]
            names |= there
        near = nearest(name, names)
        hint = "" if near is None else f" (did you mean torchmetrics.{inside}{'.' if inside else ''}{near}?)"
        raise UserError(f"torchmetrics has no such metric{hint}")


def _is_metric(found: object) -> bool:
    import torchmetrics

    return isinstance(found, type) and issubclass(found, torchmetrics.Metric)


class Seen:
    """A batch; adding another updates the live metric, which keeps its own sums."""

    def __init__(self, metric: Torchmetrics, outputs: np.ndarray, targets: np.ndarray) -> None:
        self.metric, self.batch, self.live = metric, (outputs, targets), None

    def __add__(self, other: Seen) -> Seen:
        _update(self.updated(), *other.batch)
        return self

    def updated(self) -> Any:
        """The live metric, with this batch."""
        if self.live is None:
            self.live = self.metric.made(self.batch[0])
            _update(self.live, *self.batch)
        return self.live


def _update(live: Any, outputs: np.ndarray, targets: np.ndarray) -> None:
    import torch

    of_classes = targets.dtype.kind in "iu"
    given = probabilities(outputs) if of_classes else outputs
    live.update(torch.tensor(given), torch.tensor(targets))  # copies: torch has no arrays that cannot be written to
