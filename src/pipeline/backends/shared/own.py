"""A training that is the user's whole: what it is asked for, and what comes back of it."""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.backends.shared.keeper import observation_of, plain
from pipeline.cli.exits import raise_if_stopped
from pipeline.errors import Readable, RunError, Stopped, UserError, bad_key, cut, raised
from pipeline.runs.checkpoint import newest
from pipeline.runs.fit import Observation
from pipeline.runs.keeping import Contents, Keeping, resume_words
from pipeline.runs.records import EPOCH
from pipeline.runs.result import Metric, count
from pipeline.runs.weights import Weights, digest
from pipeline.spec import named_object

if TYPE_CHECKING:
    from pipeline.runs.run import Run

RUNS_OWN = ("epochs", "steps", "fit_s", EPOCH)  # metrics that every run has, whatever it trains


@dataclass(frozen=True)
class Called:
    """Something of the user's and the arguments it is called with. `key`: the setting that names it."""

    key: str
    target: str
    arguments: Mapping[str, Any]

    def made(self) -> Any:
        """What the call gives. Raises UserError for a name that is missing or not allowed, and if the call fails."""
        found = named_object(self.target, self.key)
        if not callable(found):
            raise UserError(f"{self.key}={self.target}: is a {type(found).__name__}; name a class or a function")
        try:
            return found(**self.arguments)
        except TypeError as error:
            raise UserError(f"{self.key}={self.target}: {error}") from error
        except Readable:
            raise
        except Exception as error:
            raise raised(f"{self.key}={self.target}", error) from error


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A training of the user's own: what gives the net, its data and its callbacks, for how many epochs.

    `arguments`: of the framework's call that trains, each under `key`.
    """

    net: Called
    data: Called | None
    callbacks: Called | None = None
    epochs: int
    key: str
    arguments: Mapping[str, Any]

    @property
    def shown(self) -> str:
        """The arguments, as they were typed."""
        return ", ".join(f"{self.key}.{name}={value}" for name, value in self.arguments.items())

    def check(
        self, known: Mapping[str, inspect.Parameter], reserved: Mapping[str, str], counts: Collection[str]
    ) -> None:
        """Refuse arguments that the run says already (`reserved`, by the key to use instead), that the call does not
        take, and `counts` below 1. Raises UserError."""
        any_name = any(one.kind is one.VAR_KEYWORD for one in known.values())
        for name, value in self.arguments.items():
            if name in reserved:
                raise UserError(f"{self.key}.{name}={value}: leave it out and use {reserved[name]}")
            if name not in known and not any_name:
                raise bad_key(f"{self.key}.{name}", [f"{self.key}.{one}" for one in known if one not in reserved])
            if name in counts and value is not None and (not isinstance(value, int) or value < 1):
                raise UserError(f"{self.key}.{name}={value}: give a whole number, 1 or more")

    def check_epoch(self, name: str, most: int) -> None:
        """Refuse an argument, where it is given, that counts epochs and is not 0 to `most`. Raises UserError."""
        value = self.arguments.get(name)
        if value is not None and (not isinstance(value, int) or not 0 <= value <= most):
            raise UserError(
                f"{self.key}.{name}={value}: give 0 to {most}: stage.epochs={self.epochs} ends the training"
            )


@dataclass(frozen=True)
class OwnFit:
    """What a training of the user's came to. `metrics`: the last of each that it logged, the test's too.

    `layers`: where no step is `observed`, how many of the layers that multiply matrices compute in which dtype, with
    weights in which.
    """

    weights: Weights
    metrics: tuple[Metric, ...]
    epochs: int
    steps: int
    seconds: float
    parameters: int
    peak_memory: dict[str, int]
    observed: Observation | None = None
    layers: Mapping[tuple[str, str], int] = field(default_factory=dict)
    cpu_threads: int | None = None
    files: dict[str, str] = field(default_factory=dict)
    trained: Collection[str] = ()  # the names of the weights that an optimizer changes


class Watch:
    """Takes what the user's training logs into the journal, and keeps it at each epoch's end.

    `save`: writes the training's state to a path; set by the backend, as soon as there is one.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.keeping = run, Keeping(run, run.checkpoints)
        kept = {} if run.checkpoint is None else run.checkpoint.progress
        self.last: dict[str, float] = dict(kept.get("last", {}))
        self.epoch_of: dict[str, int] = dict(kept.get("epoch_of", {}))  # each of `last`
        self.epochs: int = kept.get("epochs", 0)
        of_last = [name for name, epoch in self.epoch_of.items() if epoch == self.epochs]
        if self.epochs:
            run.last_epoch = self._of_epoch({name: self.last[name] for name in of_last})  # there may be no other epoch
        seconds = kept.get("fit_s", kept.get("training_s", 0.0))  # as older checkpoints call it
        self.seconds: float = seconds  # of the processes before this one
        self.observation = None if run.checkpoint is None else observation_of(run.checkpoint)  # where the backend looks
        self.started = time.perf_counter()
        self.over: bool = kept.get("over", False)  # nothing but the test is left
        self.initial: str | None = None  # the digest of the trained weights before the first step
        self.save: Callable[[Path], Any] | None = None

    @property
    def fit_s(self) -> float:
        """Seconds since the user's fit began, were it one process: its validations and callbacks are in it too."""
        return self.seconds + time.perf_counter() - self.started

    def step(self, metrics: Mapping[str, Any], step: int) -> None:
        """What was logged at an optimizer step."""
        raise_if_stopped()
        if metrics:
            self.run.log(numbers(metrics), step)

    def epoch(self, metrics: Mapping[str, Any], step: int) -> None:
        """Record the metrics of an epoch that has ended."""
        self.epochs += 1
        found = numbers(metrics)
        self.last |= found
        self.epoch_of |= dict.fromkeys(found, self.epochs)
        self.run.end_epoch(self.epochs, self._of_epoch(found), step)
        text = "  ".join(f"{name} {value:.4g}" for name, value in found.items())
        self.run.say(f"epoch {self.epochs}  {text}")

    def _of_epoch(self, found: Mapping[str, float]) -> tuple[Metric, ...]:
        """As the journal keeps an epoch's metrics: by its number whatever reads one knows it from a step's."""
        return count(EPOCH, self.epochs), *(Metric(name, value) for name, value in found.items())

    def keep(self, step: int, *, over: bool = False) -> None:
        """Where the training is whole, after an epoch. `over`: there will be no other epoch."""
        self.over = over
        self.keeping.after_epoch(step, self.contents)

    def contents(self) -> Contents:
        """The training at an epoch's end. What the user's objects hold is written at once: nobody else can copy it."""
        assert self.save is not None
        written = self.run.folder / "checkpoints" / ".state"
        written.parent.mkdir(exist_ok=True)
        self.save(written)
        progress = {"epochs": self.epochs, "last": self.last, "epoch_of": self.epoch_of}
        progress |= {"fit_s": self.fit_s, "over": self.over}
        progress |= {"observation": None if self.observation is None else plain(self.observation)}
        return {**progress, "note": f"not exact: from the end of epoch {self.epochs}"}, {"state": written.replace}

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Round the user's training: at a stop, say where it goes on."""
        try:
            yield
        except Stopped:
            checkpoint, _ = newest(self.run.folder)
            if self.keeping.active and not checkpoint:
                self.run.say("stopped before the end of an epoch: it has no checkpoint to resume from")
            elif checkpoint and checkpoint.progress["epochs"] < self.epochs + 1:
                at = checkpoint.progress["epochs"]
                self.run.say(f"stopped; {resume_words(self.run.folder)} resumes from the end of epoch {at}")
            raise
        finally:
            self.keeping.close()

    def begins_with(self, weights: Weights, trained: Collection[str]) -> None:
        """The weights before the first step, and the names of those that an optimizer changes."""
        if self.run.checkpoint is None and trained:
            self.initial = _digest_of(weights, trained)

    def note_unchanged(self, weights: Weights, trained: Collection[str], steps: int) -> None:
        """Say so where no step has changed a weight: the framework counts steps without a gradient too."""
        if self.initial == _digest_of(weights, trained):
            self.run.note(
                f"{steps:,} optimizer steps have changed no weight: the learning rate is 0, no optimizer is set, "
                "or the training step gives no loss that depends on a weight"
            )

    def refuse_untrained(self, steps: int) -> None:
        """Raises RunError after a training that came to no epoch: its numbers are the initial weights'."""
        if not self.epochs:
            raise RunError(
                f"nothing was trained: 0 epochs, {steps:,} optimizer steps: the training split has no batch, or an "
                "argument of the training ends it before its first"
            )

    def metrics(self, tested: Mapping[str, Any]) -> tuple[Metric, ...]:
        """The last of each, with those of the test. Says which of them are of an earlier epoch than the last one.

        A test's metric that has the name of one of the training gets `test_` before it.
        """
        for epoch in sorted({*self.epoch_of.values()} - {self.epochs}):
            names = ", ".join(name for name, one in self.epoch_of.items() if one == epoch)
            self.run.note(f"{names}: of epoch {epoch}, the last of {self.epochs} that measured it")
        of_test = {f"test_{name}" if name in self.last else name: value for name, value in numbers(tested).items()}
        return tuple(Metric(name, value) for name, value in (self.last | of_test).items())


def _digest_of(weights: Weights, trained: Collection[str]) -> str:
    return digest({name: weights[name] for name in trained if name in weights})


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Scalars by name, as Python's numbers; of one that has a value for each class, `f1_score/0`, `f1_score/1`, ...

    Raises UserError for a name that no metric can have, or the run's own have, and for a value that is not a number.
    """
    for name in metrics:
        if name in RUNS_OWN:
            raise UserError(f"the metric {name}: the run itself has one of this name; log it under another name")
    found = {one: number for name, value in metrics.items() for one, number in _each(str(name), value).items()}
    try:
        return {one.name: one.value for one in (Metric(name, value) for name, value in found.items())}
    except ValueError as error:
        raise UserError(f"{error}; log it under another name") from error


def _each(name: str, value: Any) -> dict[str, float]:
    """A metric's number, or those of its row. Strings are refused, also those that spell a number."""
    shape = tuple(getattr(value, "shape", ()))
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        if math.prod(shape) == 1:
            return {name: float(value.item() if hasattr(value, "item") else value)}
        if len(shape) == 1:
            return {f"{name}/{place}": float(value[place]) for place in range(shape[0])}
    except (TypeError, ValueError) as error:
        raise _no_number(name, value, f"is a {type(value).__name__}") from error
    raise _no_number(name, value, f"has the shape {shape}")


def _no_number(name: str, value: Any, what: str) -> UserError:
    return UserError(f"the metric {name}={cut(' '.join(str(value).split()))}: {what}; log a number, or a row of them")


def check_finite(metrics: tuple[Metric, ...]) -> str | None:
    """The first metric that is not a finite number, in words."""
    return next((f"the metric {one.name} is {one.value}" for one in metrics if not math.isfinite(one.value)), None)


def check_weights(weights: Weights, trained: Collection[str]) -> str | None:
    """The first weight that has diverged, in words. What is not `trained` may hold infinities, as a mask does."""
    for name, array in weights.items():
        if array.dtype.kind in "fc" and not (np.isfinite(array) | (np.isinf(array) & (name not in trained))).all():
            return f"the weight {name} holds numbers that are not finite: lower the learning rate"
    return None
