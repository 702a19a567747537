"""The data of a training: loaded, checked, and the same as before where the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.datasets import Data
from pipeline.datasets.loading import load_data
from pipeline.datasets.split import held_out
from pipeline.errors import UserError
from pipeline.experiment.effects import of_length
from pipeline.loaders.batch_plan import Plan
from pipeline.runs.resume import identity
from pipeline.runs.saved import card_sha256, said_of_unverified
from pipeline.stages.contamination import said_of_contamination
from pipeline.stages.data_checks import check_data, said_of_scales
from pipeline.stages.shapes import said_of_layout
from pipeline.stages.start import (
    card_of,
    check_held_out,
    said_of_classes,
    said_of_columns,
    said_of_inputs,
    said_of_positions,
    said_of_settings,
    said_of_vocabulary,
)
from pipeline.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

VOCABULARY = "vocabulary_sha256"  # of a checkpoint


def prepared(experiment: Experiment, run: Run, receipt: dict[str, Any], task: type[Task] | None) -> Data:
    """The data, checked, and notes on what of the settings does not suit them. Raises UserError."""
    if run.checkpoint is None:  # a run that goes on keeps its own receipt until the data are known to be the same
        run.journal.write_receipt(receipt)
    data = load_data(experiment)
    divided = {"data_sha256": data.sha256, "held_out": held_out(data)}
    run.identity = {**identity(), **divided, **of_vocabulary(data.task)}
    for other in check_same_data(experiment, run):
        run.say(f"resume={run.id}: not exact: {other}")
        receipt["resumed"][-1]["differences"].append(other)
    receipt |= divided
    run.journal.write_receipt(receipt)
    check_data(experiment, data, task)
    plan = Plan.of(experiment, len(data.train))
    for note in (*data.notes, *of_length(experiment.training, plan.steps, plan.periods, plan.batches)):
        run.note(note)
    for said in (
        said_of_layout(experiment, data.task.shapes),
        said_of_scales(experiment, data),
        *said_of_start(experiment, data, receipt),
        *said_of_contamination(experiment, data, receipt),
    ):
        if said:
            run.note(said)
    return data


def check_same_data(experiment: Experiment, run: Run) -> list[str]:
    """Refuse to go on with other data than the run began with, or say what differs where `strict` is false. Raises
    UserError.

    Tokens that stand for other text are refused whatever `strict` is: the embeddings would be those of other tokens.
    """
    if run.checkpoint is None:
        return []
    strict, then, now = experiment.training.checkpoint.strict, run.checkpoint.progress["identity"], run.identity
    other_data = then["data_sha256"] != now["data_sha256"]
    if strict and other_data:
        raise UserError(f"resume={run.id}: the data now differ from those it was trained on (another sha256)")
    if then.get(VOCABULARY, now.get(VOCABULARY)) != now.get(VOCABULARY):  # a checkpoint of before may not have it
        learns = getattr(experiment.dataset, "kind", None) == "bpe"
        learned = " and the version of tokenizers that its receipt names" if learns else ""
        raise UserError(
            f"resume={run.id}: the vocabulary learned from the data now differs from the one it was trained with, "
            "which training.checkpoint.strict=false does not allow; restore its text"
            f"{learned}, or train again"
        )
    # Of the same data: their own code may divide them without the seed. A checkpoint of before may not have it.
    other_examples = then.get("held_out", now["held_out"]) != now["held_out"]
    if strict and other_examples:
        raise UserError(
            f"resume={run.id}: the examples for validation or test now differ from those it began with, though the "
            "data are the same, or come in another order: it may have been trained on them; let load(root, seed) split "
            "by its seed alone (training.checkpoint.strict=false resumes anyway)"
        )
    if other_data:
        return ["the data (another sha256)"]
    return ["the examples for validation or test"] if other_examples else []


def of_vocabulary(task: Task) -> dict[str, str]:
    """What a run that goes on has to share, too, where its tokens stand for text."""
    tokens = task.card().get("tokens")
    return {} if tokens is None else {VOCABULARY: card_sha256(tokens)}


def said_of_start(experiment: Experiment, data: Data, receipt: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Where a saved model whose weights this training starts from had other settings, classes or inputs, or
    examples to train on that are held out here. Raises UserError where these are of the test set."""
    if experiment.starting.start is None:
        return ()
    start, adapters = Path(experiment.starting.start), experiment.starting.adapters.start
    check_held_out(start, receipt, experiment.config)
    return (
        *said_of_unverified(start),
        *(said_of_unverified(Path(adapters)) if adapters else ()),
        said_of_settings(start, experiment.config["model"]),
        said_of_positions(start, experiment.config),
        None if experiment.starting.start_layers else said_of_classes(card_of(start), data.task.card()),
        said_of_columns(card_of(start), data.columns, whole=not experiment.starting.start_layers),
        None if experiment.starting.start_layers else said_of_vocabulary(start, card_of(start), data.task.card()),
        said_of_inputs(card_of(start), data.normalisation, experiment.inputs.normalise),
    )
