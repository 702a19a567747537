"""Other data than a saved run's, as a test for its model: classes by the run's numbers, inputs by its statistics."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.datasets import Data, Split
from pipeline.datasets.check import SPLITS, check_data
from pipeline.datasets.corpus import Corpus
from pipeline.datasets.documents import sha256
from pipeline.datasets.loading import check_test, loaded, saved_normalisation
from pipeline.datasets.own import OneClass
from pipeline.datasets.pool import SEED, SHARES, joined, undivided
from pipeline.errors import UserError, cut, listed, plural
from pipeline.machine.cache_folder import cache_root
from pipeline.runs.choices import changes
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_config
from pipeline.runs.saved import card_sha256, check_hashes, saved_card
from pipeline.runs.weights import digest
from pipeline.spec import choice
from pipeline.tasks.classification import Classification

if TYPE_CHECKING:
    from pipeline.contracts import Dataset
    from pipeline.experiment import Experiment
    from pipeline.runs.weights import Weights


OF_SPLITS = ("(leakage)", "nothing is held out")  # what a note has that is of splits which are not made

_ahead: list[tuple[Experiment, Data | None]] = []  # at most one


def named(experiment: Experiment, *, whole: bool = False) -> str | None:
    """The data that the user chose in place of the saved run's, in the words of a command; None: it chose none.

    `whole`: all of them, however they would be divided.
    """
    if not differ(experiment, read_config(Path(str(experiment.settings.run)))):
        return None
    now = _without_places(experiment, experiment.config)
    if whole:
        now = {name: value for name, value in now.items() if name not in SHARES or not isinstance(value, int | float)}
    chosen = changes({"dataset": now}, {"dataset": {}})
    return " ".join(_typed(key, text, now.get(key.removeprefix("dataset."))) for key, text in chosen.items())


def differ(experiment: Experiment, saved: Mapping[str, Any]) -> bool:
    """Whether the experiment's data are others than those of the `saved` config, wherever they lie."""
    return _without_places(experiment, experiment.config) != _without_places(experiment, saved)


def sha256_of(dataset: Dataset) -> str:
    """Hash of other data, before the run is there that they are for. Raises UserError."""
    if isinstance(dataset, Corpus):  # whose tokens, which are that run's, have no part in the hash
        return sha256(replace(dataset, tokens="bytes").documents(cache_root(dataset.cache)))
    return _undivided(dataset).sha256


def _typed(key: str, text: str, value: object) -> str:
    """A setting as a shell takes it. `text`: its value as YAML has it."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return listed(key, value)
    return shlex.quote(f"{key}={text}")


def _without_places(experiment: Experiment, config: Mapping[str, Any]) -> dict[str, Any]:
    """A dataset's settings without those that say where files lie. A run may find its tokens in its own folder."""
    places = (*experiment.data_source.locations, "tokens")
    return {name: value for name, value in (config.get("dataset") or {}).items() if name not in places}


def load_other_ahead(experiment: Experiment, *, alone: bool) -> Data | None:
    """`load_other`; the next one of the same experiment gives it without reading it again."""
    _ahead[:] = [(experiment, load_other(experiment, alone=alone))]
    return _ahead[0][1]


def load_other(experiment: Experiment, *, alone: bool) -> Data | None:
    """All examples of the other data as a test, or their test `alone`; None for the data that the run was trained on.

    Raises UserError for what the saved model does not take.
    """
    if _ahead and _ahead[0][0] is experiment:
        return _ahead.pop()[1]
    if named(experiment) is None:
        return None
    source, dataset = Path(str(experiment.settings.run)), experiment.data_source
    card = saved_card(source)
    try:
        data = loaded(dataset, SEED, experiment.inputs) if alone else _undivided(dataset)
    except OneClass as error:
        raise UserError(f"{error}{_names_all(dataset, card.get('classes'))}") from error
    if alone:
        check_test(dataset, data)
    if data.sha256 == read_json(source / "receipt.json").get("data_sha256"):
        return None
    shown = f"run={source.name} on dataset={choice(dataset)}"
    if experiment.inputs.folds is not None:
        folds = f"dataset.folds={experiment.inputs.folds}"
        raise UserError(f"{folds} with {shown}: other data are measured whole; leave it and dataset.fold out")
    test = data.test if alone else joined(data, reversed(SPLITS))  # in the order of a test that is measured alone
    check_data(replace(data, train=test, test=test), type(dataset).__name__.lower())
    none = Split(test.x[:0], test.y[:0])
    data = replace(data, train=none, validation=none, test=test, normalisation=saved_normalisation(source))
    data = _by_classes(_by_columns(data, card.get("columns"), shown), card.get("classes"), shown)
    _check_card(data.task.card(), card, shown)
    notes = [note for note in data.notes if not any(words in note for words in OF_SPLITS)]
    return replace(data, notes=(*_of_scale(data, card), *notes))


def _names_all(dataset: Dataset, classes: list[str] | None) -> str:
    """How data of one class are given to a model of several."""
    if classes and hasattr(dataset, "classes"):
        return f"; here {cut(listed('dataset.classes', classes), 300)}, those of the model, will do"
    return "; here an empty subfolder for another class will do" if hasattr(dataset, "folder") else ""


def _undivided(dataset: Dataset) -> Data:
    """The data with no share held out; a text is a test already."""
    return dataset.load_whole(cache_root(dataset.cache)) if isinstance(dataset, Corpus) else undivided(dataset)


def check_other(source: Path, saved: Weights) -> tuple[str, ...]:
    """`check_hashes` of what is used of the run: its weights, and its card. Raises UserError."""
    return check_hashes(source, {"weights": digest(saved), "card": card_sha256(saved_card(source))})


def _by_columns(data: Data, columns: list[str] | None, shown: str) -> Data:
    """The columns of a table in the order that the model has them. Raises UserError for a table of others."""
    if not columns or not data.columns:
        return data
    if sorted(columns) != sorted(data.columns):
        raise UserError(
            f"{shown}: the model takes the columns {cut(', '.join(columns), 300)}; dataset.features names columns, and "
            f"here they are {cut(', '.join(data.columns), 300)}"
        )
    order = [data.columns.index(name) for name in columns]
    return replace(data, columns=tuple(columns), test=Split(data.test.x[:, order], data.test.y))


def _by_classes(data: Data, classes: list[str] | None, shown: str) -> Data:
    """The targets as the numbers that the model's classes of these names have. Raises UserError for one it lacks."""
    task = data.task
    if not isinstance(task, Classification) or not classes:
        return data
    lacking = [name for name in task.classes if name not in classes]
    if lacking:
        raise UserError(
            f"{shown}: the model has no class {cut(', '.join(lacking))}; its classes are {cut(', '.join(classes), 300)}"
        )
    places = np.array([classes.index(name) for name in task.classes], np.int64)
    test = Split(data.test.x, places[data.test.y])
    return replace(data, task=replace(task, classes=tuple(classes)), test=test)


def _check_card(now: Mapping[str, Any], then: Mapping[str, Any], shown: str) -> None:
    """Refuse examples that the model was not made for. Raises UserError."""
    if not then:
        raise UserError(f"{shown}: artifacts/model/card.json, which says what the model takes, is missing or damaged")
    words = {"task": "the task", "x": "the shape of an example", "outputs": "the shape of an output"}
    for key, value in now.items():
        if value != then.get(key):
            raise UserError(
                f"{shown}: {words.get(key, key)} is {cut(value)} there, and the model was made for {cut(then.get(key))}"
            )


def _of_scale(data: Data, card: Mapping[str, Any]) -> tuple[str, ...]:
    """A note where inputs are divided by another number than those that the model was trained on.

    Cards of before have the range of images that were divided by nothing, and no scale of others.
    """
    before = card.get("scale", None if "range" in card else data.scale)
    if before == data.scale:
        return ()
    now, then = (f"by {scale:g}" if scale else "by nothing" for scale in (data.scale, before))
    return (f"x is divided {now} here, and was divided {then} when the model was trained; is it in the same unit?",)


def counted(data: Data) -> str:
    """How many examples are measured, in words."""
    return plural(len(data.test), "sequence" if data.task.units > 1 else "example")
