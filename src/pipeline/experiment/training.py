"""The group `training`: how long and in what portions, and what is kept on the way."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from pipeline.contracts import Metric, Part
from pipeline.errors import UserError
from pipeline.experiment.metrics import metrics_of, name_of, renamed_by
from pipeline.experiment.settings import Positive, Text
from pipeline.spec import build_as, spec


@spec
class Checkpoints:
    """When a training keeps what it needs to go on after it was killed. None of it changes a bit of the result.

    `every`: optimizer steps between two checkpoints; `every_s`: seconds (0: none). `keep`: how many stay. `strict`:
    whether another machine, another version or other code refuses to go on from one.
    """

    every: PositiveInt | None = None
    every_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    keep: PositiveInt = 2
    strict: bool = True


def _checkpoints(value: object) -> object:
    return build_as(Checkpoints, value, "training.checkpoint") if isinstance(value, Mapping) else value


@spec
class Training(Part):
    """How long and in what portions to train.

    `steps`: optimizer steps, in place of epochs where set. `accumulate`: batches whose gradients make one step.
    `validate_every`: optimizer steps between validations (None: an epoch). `max_time`: seconds of wall time after which
    training ends. `clip_norm`, `clip_value`: bounds of the gradient's norm and of each of its numbers.
    `log_gradient_norm`: note the norm before clipping. `ema`: decay of an exponential moving average of the weights,
    which is validated and saved in their place. `monitor`: what `patience` and `weights` judge a validation by.
    `patience`: validations without a better one after which training ends. `weights`: those of the last step or of the
    best validation.
    `log_every_n_steps`: one point in the journal is the mean over that many steps. `metrics`: of the test set, to
    report beside loss and score. `evaluation_batch_size`: examples at a time in validation and test.
    """

    locations: ClassVar[tuple[str, ...]] = ("checkpoint",)

    epochs: Annotated[int, Field(gt=0, le=1_000_000)] = 10
    steps: PositiveInt | None = None
    batch_size: PositiveInt = 32
    accumulate: PositiveInt = 1
    validate_every: PositiveInt | None = None
    max_time: Positive | None = None
    clip_norm: Positive | None = None
    clip_value: Positive | None = None
    log_gradient_norm: bool = False
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    monitor: Text = "validation/loss"
    patience: PositiveInt | None = None
    weights: Literal["last", "best"] = "last"
    checkpoint: Annotated[Checkpoints, BeforeValidator(_checkpoints)] = Field(default_factory=Checkpoints)
    log_every_n_steps: PositiveInt = 10
    metrics: Annotated[tuple[Metric, ...], BeforeValidator(metrics_of)] = ()
    evaluation_batch_size: PositiveInt = 1000

    def __post_init__(self) -> None:
        names = [name_of(metric) for metric in self.metrics]
        if len(set(names)) < len(names):
            differ = all(one != other for one, other in combinations(self.metrics, 2))
            same = [metric for metric, name in zip(self.metrics, names, strict=True) if names.count(name) > 1]
            hint = f"; {renamed_by(same)} would tell them apart" if differ else ""
            raise UserError(f"training.metrics=[{','.join(names)}]: one of them is named twice{hint}")

    @property
    def inside(self) -> tuple[Part, ...]:
        """The metrics."""
        return self.metrics

    @property
    def period(self) -> str:
        """What lies between two validations, in words, with its key."""
        return "epoch" if self.validate_every is None else f"period (training.validate_every={self.validate_every})"

    @property
    def validations(self) -> int | None:
        """How many there are at most; None where that takes the size of the training set to say."""
        if self.steps is None and self.validate_every is None:
            return self.epochs
        if self.steps is None or self.validate_every is None:
            return None
        return -(-self.steps // self.validate_every)

    @property
    def needs_norm(self) -> bool:
        """Whether a step measures its gradient's norm."""
        return self.log_gradient_norm or self.clip_norm is not None

    @property
    def validates_for(self) -> str | None:
        """The key that needs validation, if any does."""
        if self.patience is not None:
            return f"training.patience={self.patience}"
        return "training.weights=best" if self.weights == "best" else None
