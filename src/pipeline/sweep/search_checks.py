"""What a search cannot be asked for: trials that no number compares, lengths that a pruner would have to guess."""

from __future__ import annotations

from pipeline.errors import UserError
from pipeline.experiment import Experiment
from pipeline.runs.listing import WHICH
from pipeline.spec import group_of
from pipeline.sweep.pivot import REPEATS
from pipeline.sweep.search_settings import Search
from pipeline.sweep.space import Space

HOW_LONG = ("training", "training.epochs", "training.steps", "training.validate_every")


def check_comparable(space: Space, search: Search) -> None:
    """Refuse a key by which trials would be judged by unlike numbers. Raises UserError.

    A key of one value is not searched: beside a searched `experiment`, what is fixed is written so.
    """
    for written in (key for key, distribution in space.items() if not distribution.single()):
        key = written.lstrip("+")
        if key == REPEATS:
            raise UserError(
                f"{written}: no seed is the best one; leave it out of the space (stage=seeds shows their spread)"
            )
        if search.pruner != "none" and key in HOW_LONG:
            raise UserError(
                f"{written} with hydra.sweeper.pruner={search.pruner}: trials of different lengths would be compared "
                "after the same number of validations; leave it out of the space, or use hydra.sweeper.pruner=none"
            )
        if key in WHICH:
            raise UserError(
                f"{written}: each trial would be judged by other examples; leave it out of the space, or use a grid"
            )
        lost = next((name for name in search.metrics if name.endswith("/loss")), None)
        if group_of(key) == "loss" and lost is not None:
            raise UserError(
                f"{written}: {lost} would be of another loss in each trial; give another hydra.sweeper.metric"
            )


def epochs_of(experiment: Experiment, search: Search) -> int:
    """After how many validations a trial ends by itself. Raises UserError where a pruner would have to guess."""
    training = experiment.training
    if training.validations is None and search.pruner != "none":
        raise UserError(
            f"hydra.sweeper.pruner={search.pruner}: counts validations; give training.steps and "
            "training.validate_every together, or neither"
        )
    return training.validations or training.epochs
