"""Whether choices go together: the last value that is allowed, the first that is not, and what a saved run is not
asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from in_backend import Choice, experiment

from pipeline.errors import Impossible, UserError
from pipeline.experiment.checks import check_run, check_schedule, check_training
from pipeline.losses.cross_entropy import CrossEntropy
from pipeline.optimizers.adam import Adam
from pipeline.schedules.cosine import Cosine
from pipeline.spec import spec
from pipeline.tasks.classification import Classification


def trained(steps: int, accumulate: int, **choices: Choice) -> Any:
    training = ("default", {"steps": steps, "accumulate": accumulate, "batch_size": 16})
    return experiment("torch", 0, training=training, **choices)


def test_a_profiler_has_the_batches_that_it_needs_and_no_fewer() -> None:
    """Of a step that accumulates several batches are profiled."""
    window: Choice = ("torch", {"skip": 7, "steps": 5})
    for steps, accumulate in ((12, 1), (6, 2), (4, 3)):
        check_training(trained(steps, accumulate, profiler=window))
    for steps, accumulate, most in ((11, 1, 11), (5, 2, 10), (3, 3, 9)):
        said = rf"needs 12 batches, but training\.steps={steps} has {most} at most"
        with pytest.raises(UserError, match=said):
            check_training(trained(steps, accumulate, profiler=window))
    check_training(experiment("torch", profiler=window))  # whose steps are known with its data


def test_a_warm_up_is_shorter_than_its_training() -> None:
    with_schedule: Any = SimpleNamespace(schedule=Cosine(warm_up=20), optimizer=Adam())
    check_schedule(with_schedule, 21)
    check_schedule(with_schedule, None)
    shorter: Any = SimpleNamespace(schedule=Cosine(warm_up=2), optimizer=Adam())
    check_schedule(shorter, 20)  # as the message has it
    with pytest.raises(
        UserError,
        match=r"^schedule\.warm_up=20: the training has 20 optimizer steps; choose fewer steps, such as "
        r"schedule\.warm_up=2, or train longer, by training\.steps=21 or more$",
    ):
        check_schedule(with_schedule, 20)
    with pytest.raises(
        UserError, match=r"the training has 1 optimizer step; train longer, by training\.steps=21 or more"
    ):
        check_schedule(with_schedule, 1)


@spec
class Falls(Cosine):
    """Below zero at one step; `of_end`: counted from the end."""

    at: int = 0
    of_end: bool = False

    def factor(self, step: int, steps: int) -> float:
        return -1.0 if step == (steps - self.at if self.of_end else self.at) else 1.0


@pytest.mark.parametrize("steps", [2, 150, 10_007])
def test_the_first_and_the_last_step_of_every_training_are_tried(steps: int) -> None:
    """A schedule that falls below zero does so at its end, after hours."""
    for schedule, step in ((Falls(), 0), (Falls(at=1, of_end=True), steps - 1)):
        with pytest.raises(UserError, match=rf"factor\({step}, {steps}\) gives -1"):
            check_schedule(SimpleNamespace(schedule=schedule, optimizer=Adam()), steps)  # type: ignore[arg-type]
    schedule = Falls(at=0, of_end=True)  # which is behind the last one
    check_schedule(SimpleNamespace(schedule=schedule, optimizer=Adam()), steps)  # type: ignore[arg-type]


def test_a_rate_that_is_not_there_is_not_scheduled() -> None:
    bare: Any = SimpleNamespace(schedule=Cosine(), optimizer=SimpleNamespace())
    with pytest.raises(UserError, match=r"it has no learning_rate to schedule; use schedule=constant$"):
        check_schedule(bare, 40)


def test_of_a_saved_run_only_what_it_still_needs_is_checked() -> None:
    """Its loader, augmentation, monitor and schedule have done their work."""
    choices: dict[str, Choice] = {
        "loader": "tfdata",
        "augmentation": "images",
        "schedule": ("cosine", {"warm_up": 10_000}),
        "training": ("default", {"steps": 5, "monitor": "validation/nothing"}),
    }
    saved = experiment("torch", 0, stage="evaluate", **choices)
    check_training(replace(saved, settings=replace(saved.settings, run="a-run")))
    for name, said in (
        ("loader", "loader=tfdata with backend=torch: this loader feeds tensorflow"),
        ("schedule", "schedule.warm_up=10000: the training has 5 optimizer steps"),
        ("training", "training.monitor=validation/nothing: no such choice"),
    ):
        kept = {"training": ("default", {"steps": 5})} | {name: choices[name]}
        with pytest.raises(UserError, match=f"^{said}"):
            check_training(experiment("torch", **kept))  # type: ignore[arg-type]
    for stage, refused in (("evaluate", False), ("classifier", True)):
        asked = experiment("torch", stage=stage)
        named = replace(asked, settings=replace(asked.settings, run="a-run"))
        if refused:
            with pytest.raises(UserError, match=r"^run=a-run with stage=classifier: this stage does not start from "):
                check_run(named)
        else:
            check_run(named)
        check_run(asked)


def test_layers_with_dtypes_of_their_own_need_a_precision_that_leaves_the_others_alone() -> None:
    layers: Choice = ("mlp", {"units": [32], "layer_dtypes": ["float64", "float32"]})
    check_training(experiment("torch", model=layers))
    with pytest.raises(Impossible, match=r"^model\.layer_dtypes with precision=fp64: "):
        check_training(experiment("torch", model=layers, precision="fp64"))
    check_training(experiment("torch", precision="fp64"))


class Own(CrossEntropy):
    """Builds on a loss of classes, for whatever its author has in mind."""


class Finer(Classification):
    """A task of the user's that is a classification."""


def test_what_builds_on_a_part_of_ours_is_for_what_its_author_says() -> None:
    numbers = experiment("torch", stage="train", dataset="diabetes", loss="squared_error", training="default")
    check_training(numbers)
    with pytest.raises(Impossible, match=r"^loss=cross_entropy with dataset=diabetes: it takes classes, and the "):
        check_training(replace(numbers, loss=CrossEntropy()))
    check_training(replace(numbers, loss=Own()))
    digits = experiment("torch")
    finer = type("Fine", (type(digits.dataset),), {"task": Finer})
    check_training(replace(digits, dataset=finer()))


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"optimizer": ("sgd", {"nesterov": True})}, "needs optimizer.momentum above 0, such as 0.9"),
        ({"model": ("gpt", {"key_heads": 3, "heads": 4})}, "model.heads=4 cannot share them evenly"),
    ],
)
def test_a_second_key_in_a_message_is_named_as_it_is_typed(choices: dict[str, Choice], said: str) -> None:
    with pytest.raises(UserError, match=f"{re.escape(said)}$"):
        experiment("torch", **choices)  # type: ignore[arg-type]
