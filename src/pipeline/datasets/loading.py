"""An experiment's data: loaded from the user's cache and checked, and augmented where they are trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.augmentations.feed import augment_of
from pipeline.datasets import Data
from pipeline.datasets.check import check_data
from pipeline.datasets.fetch import cache_root

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


_ahead: list[tuple[Experiment, Data]] = []  # at most one


def load_ahead(experiment: Experiment) -> Data:
    """The experiment's dataset; the next `load_data` of the same experiment gives it without reading it again."""
    _ahead[:] = [(experiment, load_data(experiment))]
    return _ahead[0][1]


def load_data(experiment: Experiment) -> Data:
    """The experiment's dataset. Raises UserError for data that are missing, damaged or not what their task needs."""
    if _ahead and _ahead[0][0] is experiment:
        return _ahead.pop()[1]
    dataset = experiment.data_source
    data: Data = dataset.load(cache_root(dataset.cache), experiment.seed)
    check_data(data, type(dataset).__name__.lower())
    if not experiment.augmentation.active:
        return data
    return replace(data, augment=augment_of(experiment.augmentation, experiment.seed, data.task.shapes, data.train.x))
