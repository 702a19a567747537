"""Whether a dataset can be divided into folds, by its kind and its settings: before anything is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.spec import choice, own_settings

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

TEXT = ("tokens", "pairs of sequences")
OF_TEST = ("test", "test_share")  # settings of how large a test is


def check_folds(experiment: Experiment, asked: str) -> None:
    """Refuse data that are not divided into folds, and settings that folds replace. `asked`: what asks for folds.

    Raises UserError.
    """
    dataset = experiment.data_source
    who, kind = f"{asked} with dataset={choice(dataset)}", dataset.task.example_kind
    if kind in TEXT:
        raise UserError(
            f"{who}: its examples are {kind}, and folds are for tables, images and other independent examples; "
            "stage=seeds shows how far the seed moves a result"
        )
    if dataset.fixed_test:
        raise UserError(
            f"{who}: its authors fixed the test set, and results of folds would compare with none that is published; "
            "stage=seeds keeps that test, and dataset=digits has folds"
        )
    for name in OF_TEST:
        if name in own_settings(dataset) and isinstance(getattr(dataset, name), float):
            share = getattr(dataset, name)
            raise UserError(
                f"dataset.{name}={share} with {asked}: each fold is the test once, whatever this says; leave it out"
            )
