"""stage=keras: a compiled keras.Model, trained by its own `fit` with its own callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PositiveInt

from pipeline.backends.shared.own import Asked, Called
from pipeline.errors import Impossible, UserError
from pipeline.spec import check_own, spec
from pipeline.stages.own import OwnTraining

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@spec
class Keras(OwnTraining):
    """`model`: the dotted name of what gives a compiled keras.Model, called with `arguments`. `data`: of what gives a
    dict of train, validation and test, each a pair (x, y) of arrays or a dataset that `fit` takes (tf.data.Dataset,
    PyDataset). `callbacks`: of what gives a list of callbacks. `fit`: more arguments of `keras.Model.fit`.
    """

    imports: ClassVar[tuple[str, ...]] = ("pipeline.backends.keras.own", "pipeline.runs.receipt")

    model: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    data: str | None = None
    data_arguments: dict[str, Any] = Field(default_factory=dict)
    callbacks: str | None = None
    epochs: PositiveInt = 10
    fit: dict[str, Any] = Field(default_factory=dict)

    @property
    def user_code(self) -> tuple[str, ...]:
        """The user's code that it runs."""
        return tuple(name for name in (self.model, self.data, self.callbacks) if name)

    @property
    def trains_users(self) -> str:
        return f"stage.model={self.model}"

    def check(self, experiment: Experiment) -> None:
        """Refuse another backend, and names that are missing or may not be imported."""
        for name in ("model", "data"):
            if getattr(self, name) is None:
                raise UserError(f"stage.{name}=null: name a function of yours, as stage.{name}=mine.{name}")
        if experiment.backend.name == "torch":
            raise Impossible("stage=keras with backend=torch: use backend=tensorflow or backend=jax")
        for name in ("model", "data", "callbacks"):
            if getattr(self, name) is not None:
                check_own(getattr(self, name), f"stage.{name}")

    def asked(self) -> Asked:
        return Asked(
            net=Called("stage.model", str(self.model), self.arguments),
            data=Called("stage.data", str(self.data), self.data_arguments),
            callbacks=Called("stage.callbacks", self.callbacks, {}) if self.callbacks else None,
            epochs=self.epochs,
            key="stage.fit",
            arguments=self.fit,
        )
