"""An experiment's data: loaded from the user's cache, checked, normalised, and augmented where they are trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.augmentations.feed import augment_of
from pipeline.datasets import Data
from pipeline.datasets.check import check_data
from pipeline.datasets.folds import fold_of
from pipeline.datasets.normalisation import Normalisation
from pipeline.datasets.pool import pool_of, read
from pipeline.datasets.split import held_out
from pipeline.errors import UserError, cut, shown
from pipeline.runs.judged_on import examples_of
from pipeline.runs.saved import card_sha256, check_hashes, saved_card
from pipeline.runs.weights import digest
from pipeline.spec import choice

if TYPE_CHECKING:
    from pipeline.contracts import Dataset
    from pipeline.experiment import Experiment
    from pipeline.experiment.settings import Inputs
    from pipeline.runs.weights import Weights


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
    data = loaded(dataset, experiment.seed, experiment.inputs)
    check_test(dataset, data)
    check_data(data, type(dataset).__name__.lower())
    data = _with_normalisation(experiment, data)
    if not experiment.augmentation.active:
        return data
    return replace(data, augment=augment_of(experiment.augmentation, experiment.seed, data.task.shapes, data.train.x))


def loaded(dataset: Dataset, seed: int, inputs: Inputs) -> Data:
    """The data as the dataset divides them, or the fold that is asked for. Raises UserError."""
    if inputs.folds is None or inputs.fold is None:
        return read(dataset, seed)
    return fold_of(pool_of(dataset, f"dataset.folds={inputs.folds}"), inputs.folds, inputs.fold, seed)


def check_test(dataset: Dataset, data: Data) -> None:
    """Refuse data without a test where a share of 0 is why. Raises UserError."""
    key = next((name for name in ("test", "test_share") if getattr(dataset, name, None) == 0), None)
    if key is not None and not len(data.test):
        raise UserError(
            f"dataset.{key}={getattr(dataset, key)}: leaves no example for the test; choose a share above 0"
        )


def saved_normalisation(source: Path) -> Normalisation | None:
    """What the model of a saved run takes its inputs normalised by, if anything."""
    return Normalisation.of_card(saved_card(source))


def check_saved(source: Path, saved: Weights, data: Data) -> tuple[str, ...]:
    """`check_hashes` of weights and data, and of the card where it says by what inputs are normalised.

    Raises UserError, too, where a dataset now normalises its examples otherwise than it did when it trained the model,
    where its classes have other names, and where the same data are divided so that the test holds other examples.
    """
    found, renamed = {"weights": digest(saved), "data": data.sha256}, _other_classes(source, data)
    if data.normalisation is not None or renamed:
        found["card"] = card_sha256(saved_card(source))
    _check_vocabulary(source, data)
    notes = check_hashes(source, found)
    if examples_of(source, "test/") not in (None, held_out(data).get("test")):
        raise UserError(
            f"run={source.name}: the test set now holds other examples of the same data than when it was trained, so "
            "it may have seen them; split the data as they were then"
        )
    if renamed:
        raise UserError(f"run={source.name}: {renamed}; restore their names")
    then, now = saved_normalisation(source), data.normalisation
    if then != (now and Normalisation.of_card({"normalisation": now.plain()})):
        raise UserError(
            f"run={source.name}: its dataset normalised its examples by {_shown(then)}, and load() now by "
            f"{_shown(now)}; restore that, or train again"
        )
    return notes


def _other_classes(source: Path, data: Data) -> str | None:
    """How the names of the data's classes differ from those on the card: the hash of the data is of numbers alone."""
    now = data.task.card().get("classes")
    then = saved_card(source).get("classes", now)
    if then == now:
        return None
    return f"the data's classes are now {cut(shown(now), 300)}, and were {cut(shown(then), 300)} when it was trained"


def _shown(by: Normalisation | None) -> str:
    return "nothing" if by is None else by.shown()


def _check_vocabulary(source: Path, data: Data) -> None:
    """Refuse text whose tokens are not those that the model was trained on. Raises UserError."""
    now = data.task.card().get("tokens")
    if now is not None and saved_card(source).get("tokens", now) != now:
        raise UserError(
            f"run={source.name}: the vocabulary learned from the data now differs from the one it was trained with: "
            f"{_why_other(now['kind'])}"
        )


def _why_other(kind: str) -> str:
    """What changes a vocabulary that is learned."""
    if kind != "bpe":
        return "the text has changed; restore it"
    return "the text has changed, or the version of tokenizers, which its receipt names"


def _with_normalisation(experiment: Experiment, data: Data) -> Data:
    """The data, normalised if asked for: by what a saved run's model was trained with, else as measured."""
    if not experiment.inputs.normalise:
        return data
    shown = f"dataset.normalise=true with dataset={choice(experiment.dataset)}"
    if data.normalisation is not None:
        raise UserError(f"{shown}: it normalises its examples already; leave the key out")
    if data.holds_tokens or data.train.x.ndim < 2:
        what = "tokens" if data.holds_tokens else f"single numbers, x {data.train.x.shape}"
        raise UserError(f"{shown}: its examples are {what}; it is for images and rows of numbers")
    if not experiment.stage.starts_from_run:
        return replace(data, normalisation=Normalisation.measured(data.train.x, data.scale))
    source = Path(str(experiment.settings.run))
    found = saved_normalisation(source)
    if found is None:
        raise UserError(
            f"run={source.name}: artifacts/model/card.json, which says how x is normalised, is missing or damaged"
        )
    return replace(data, normalisation=found)
