"""stage=classifier: train a classifier, measure it on the test set, draw, save."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pipeline.spec import spec
from pipeline.stages.train import Train

if TYPE_CHECKING:
    from pipeline.tasks import Task


@spec
class Classifier(Train):
    """stage=train for a dataset whose examples have classes; any other is refused."""

    headline: ClassVar[str] = "test/accuracy"

    @property
    def task(self) -> type[Task]:
        from pipeline.tasks.classification import Classification  # NumPy with it, which a refusal can do without

        return Classification
