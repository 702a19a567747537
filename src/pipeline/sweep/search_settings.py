"""The settings of a search: hydra.sweeper.<key> with hydra/sweeper=optuna."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from pipeline.errors import UserError
from pipeline.experiment.settings import Sought
from pipeline.spec import spec
from pipeline.sweep.search_metric import directions_of, usual_metric

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@spec
class Search:
    """What Optuna is asked for; see conf/hydra/sweeper/optuna.yaml. `direction`: None: as each metric declares."""

    study: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,60}$")] | None = None
    trials: PositiveInt = 20
    metric: str | tuple[str, ...] | None = None
    direction: Sought | tuple[Sought, ...] | None = None
    sampler: Literal["tpe", "random", "cmaes"] = "tpe"
    pruner: Literal["none", "median", "hyperband"] = "none"
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.given is not None and self.metrics and len(self.metrics) != len(self.given):
            raise UserError(
                f"hydra.sweeper.direction={self.direction}: give one for each of the {len(self.metrics)} metrics"
            )
        if self.pruner != "none" and len(self.metrics) > 1:
            raise UserError(
                f"hydra.sweeper.pruner={self.pruner}: Optuna prunes by one metric; give one, or pruner=none"
            )
        if self.sampler == "cmaes" and len(self.metrics) > 1:
            raise UserError(
                "hydra.sweeper.sampler=cmaes: seeks the best by one metric; give one, or sampler=tpe or sampler=random"
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.metric,) if isinstance(self.metric, str) else self.metric or ()

    @property
    def given(self) -> tuple[Sought, ...] | None:
        """The directions that the user gave."""
        return (self.direction,) if isinstance(self.direction, str) else self.direction

    @property
    def directions(self) -> tuple[Sought, ...]:
        """That of each metric, once `decided`."""
        assert self.given is not None, "a search goes by `decided`"
        return self.given

    def decided(self, experiment: Experiment) -> Search:
        """With a direction for each metric: of what its trials measure. Raises UserError where it has none."""
        named = self if self.metrics else replace(self, metric=usual_metric(experiment))
        return replace(named, direction=directions_of(named.metrics, named.given, experiment))
