"""stage=lightning: a LightningModule with its own training_step, optimizers and callbacks, as it is."""

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
class Lightning(OwnTraining):
    """`module`, `data`: a LightningModule and a LightningDataModule by their dotted names, called with `arguments` and
    `data_arguments`; without `data` the module has its own loaders. `trainer`: more arguments of Lightning's Trainer.
    """

    imports: ClassVar[tuple[str, ...]] = ("pipeline.backends.torch.own", "pipeline.runs.receipt")

    module: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    data: str | None = None
    data_arguments: dict[str, Any] = Field(default_factory=dict)
    epochs: PositiveInt = 10
    trainer: dict[str, Any] = Field(default_factory=dict)

    @property
    def user_code(self) -> tuple[str, ...]:
        """The user's code that it runs."""
        return tuple(name for name in (self.module, self.data) if name)

    @property
    def trains_users(self) -> str:
        return f"stage.module={self.module}"

    def check(self, experiment: Experiment) -> None:
        """Refuse another backend, and names that may not be imported."""
        if self.module is None:
            raise UserError("stage.module=null: name a LightningModule, as stage.module=mine.Lit")
        if experiment.backend.name != "torch":
            raise Impossible(f"stage=lightning with backend={experiment.backend.name}: use backend=torch")
        check_own(self.module, "stage.module")
        if self.data is not None:
            check_own(self.data, "stage.data")

    def asked(self) -> Asked:
        return Asked(
            net=Called("stage.module", str(self.module), self.arguments),
            data=Called("stage.data", self.data, self.data_arguments) if self.data else None,
            epochs=self.epochs,
            key="stage.trainer",
            arguments=self.trainer,
        )
