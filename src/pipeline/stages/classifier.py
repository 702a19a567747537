"""stage=classifier: train a classifier, measure it on the test set, draw, save."""

from __future__ import annotations

from typing import ClassVar

from pipeline.spec import spec
from pipeline.stages.train import Train
from pipeline.tasks import Task
from pipeline.tasks.classification import Classification


@spec
class Classifier(Train):
    """stage=train for a dataset whose examples have classes; any other is refused."""

    task: ClassVar[type[Task] | None] = Classification
    headline: ClassVar[str] = "test/accuracy"
