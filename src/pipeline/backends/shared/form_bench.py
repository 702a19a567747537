"""The forms of a net in one framework: which of them are right, and how long their steps take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.shared.arrays import Arrays
from pipeline.backends.shared.two_layer import Form, Net, Reference, Way
from pipeline.machine.blas import norm
from pipeline.raised import first_line

TOLERANCE = 1e-12  # of a loss in parts of the first one, of a weight matrix's norm in parts of the reference's


class WrongResult(Exception):
    """A result that is not what it has to be: its numbers, dtype or device, or the time at which it was there."""


def said_of(error: Exception) -> str:
    """What is wrong, or the first line of what a framework raises."""
    return str(error) if isinstance(error, WrongResult) else first_line(error)


@dataclass
class Found:
    """What a form was found to be; None and empty where it did not come so far.

    `missing`: what the machine lacks for it. `fault`: why it is wrong, so that it has no times. `losses`, `weights`:
    the largest differences from NumPy's, as parts of the first loss and of the norms. `samples`: by the number of
    steps, (seconds to launch them, seconds to wait then). `first`, `second`: seconds of the first two steps of a new
    process, compilation included. `saved_as`: how its graph is read again; `unsaved`: why it could not be saved.
    """

    name: str
    how: str
    eager: bool | None = None
    missing: str | None = None
    fault: str | None = None
    losses: float | None = None
    weights: float | None = None
    dtype: str | None = None
    device: str | None = None
    samples: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    saved_as: str | None = None
    unsaved: str | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Found:
        """The inverse of `plain`; the keys of samples are text in JSON."""
        samples = {int(n): [(launch, wait) for launch, wait in pairs] for n, pairs in plain["samples"].items()}
        return cls(**{**plain, "samples": samples})


def found_of(kind: type[Form], place: str) -> Found:
    """What is known of a form before it is run."""
    return Found(kind.name, kind.how, getattr(kind, "eager", None), kind.missing(place))


class Bench:
    """The forms of one framework: verify all, then time those that are right. `begun`: forms that have been called."""

    def __init__(self, net: Net, reference: Reference, arrays: Arrays, place: str) -> None:
        self.net, self.reference, self.arrays, self.place = net, reference, arrays, place
        self.by_name: dict[str, Found] = {}
        self.begun: dict[str, Form] = {}
        self.right: dict[str, Form] = {}

    @property
    def found(self) -> list[Found]:
        """What has come of each form so far."""
        return [*self.by_name.values()]

    def begin(self, kind: type[Form]) -> None:
        """Time the first step of a form and its second, compilation included, in a process that has made no other."""
        found = self._found(kind)
        with self._blaming(found):
            form = kind(self.net, self.arrays)
            first, second = (sum(self._timed(form, 1, number)) for number in (1, 2))
            found.first, found.second = [first], [second]
            self.begun[kind.name] = form

    def verify(self, kinds: Sequence[type[Form]]) -> None:
        """Train by each form, and compare the losses and weights with the reference."""
        for kind in kinds:
            found = self._found(kind)
            if found.missing is None and found.fault is None:
                with self._blaming(found):
                    self.right[kind.name] = self._trained(kind, found)

    def time(self, repetitions: Sequence[int], rounds: int) -> None:
        """`rounds` samples of each number of steps, the forms in turns. A form that goes wrong here loses its times."""
        for n in repetitions:
            for _ in range(rounds):
                for name, form in list(self.right.items()):
                    found = self.by_name[name]
                    with self._blaming(found):
                        found.samples.setdefault(n, []).append(self._sample(form, n))

    def save(self, folder: Path) -> None:
        """Save the graphs that are right, each in a folder of its name."""
        for one in self.found:
            way = self.right.get(one.name)
            if not isinstance(way, Way) or way.saved_as is None:
                continue
            (folder / one.name).mkdir(parents=True)
            try:
                way.save(folder / one.name)
                one.saved_as = way.saved_as
            except Exception as error:  # whatever a framework raises of a graph that it cannot write
                one.unsaved = first_line(error)

    def _found(self, kind: type[Form]) -> Found:
        return self.by_name.setdefault(kind.name, found_of(kind, self.place))

    @contextmanager
    def _blaming(self, found: Found) -> Iterator[None]:
        """A form that raises, or is wrong, is named with the reason, and has no times."""
        try:
            yield
        except Exception as error:  # whatever a framework raises of an operation that it refuses
            found.fault, found.samples, found.first, found.second = said_of(error), {}, [], []
            self.right.pop(found.name, None)

    def _trained(self, kind: type[Form], found: Found) -> Form:
        """The form after `steps` steps from the start, compared with the reference. Raises WrongResult."""
        form = self.begun.get(kind.name)
        if form is None:
            form = kind(self.net, self.arrays)
        else:
            form.restart()
        losses = []
        for _ in range(self.reference.steps):
            form.step()
            losses.append(self._loss(form))
        uncompiled = form.uncompiled() if isinstance(form, Way) else None
        if uncompiled is not None:
            raise WrongResult(uncompiled)
        weights = [self.arrays.get(each) for each in form.held()]
        found.dtype = _common([losses[0].dtype, losses[-1].dtype, *(each.dtype for each in weights)])
        found.device = self.arrays.device(form.held()[0])
        if found.dtype != "float64":
            raise WrongResult(f"computes in {found.dtype}, not in float64")
        if found.device != self.place:
            raise WrongResult(f"ran on {found.device}, not on {self.place}")
        found.losses, found.weights = compared(np.array(losses), weights, self.reference)
        return form

    def _sample(self, form: Form, n: int) -> tuple[float, float]:
        """As `_timed`, from the start of a training, after a step that is not counted: the process may have slept, and
        the system may have taken its memory meanwhile."""
        form.step()
        form.wait()
        form.restart()
        return self._timed(form, n, n)

    def _timed(self, form: Form, n: int, last: int) -> tuple[float, float]:
        """Seconds to launch `n` steps, of which the last is step `last`, and to wait for them. Raises WrongResult."""
        form.wait()
        began = time.perf_counter()
        for _ in range(n):
            form.step()
        launched = time.perf_counter()
        form.wait()
        ended = time.perf_counter()
        if not form.ready():
            raise WrongResult(f"the timer was stopped before the last of {n} steps was computed")
        self._check_timed(form, last)
        return launched - began, ended - launched

    def _check_timed(self, form: Form, n: int) -> None:
        """The last loss and the weights after `n` steps; late in a training the weights alone show a missing step."""
        expected = self.reference.losses[n - 1]
        if not abs(self._loss(form) - expected) <= TOLERANCE * self.reference.losses[0]:
            raise WrongResult(f"the loss of step {n}, when it was timed, is {self._loss(form):.9g}, not {expected:.9g}")
        try:
            by_norms([self.arrays.get(each) for each in form.held()], self.reference.weights[n])
        except WrongResult as error:
            raise WrongResult(f"when step {n} was timed: {error}") from None

    def _loss(self, form: Form) -> np.ndarray:
        return np.asarray(self.arrays.get(form.last))


def by_losses(losses: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference from `expected`, as a part of the first loss. Raises WrongResult."""
    if losses.shape != expected.shape:
        raise WrongResult(f"its loss has the shape {losses.shape[1:]}, not that of a number")
    apart = np.abs(losses.astype(np.float64) - expected) / expected[0]
    wrong = np.flatnonzero(~(apart <= TOLERANCE))  # so that NaN is wrong
    if wrong.size:
        at = int(wrong[0])
        raise WrongResult(f"the loss of step {at + 1} is {losses[at]:.9g}, NumPy's {expected[at]:.9g}")
    return float(apart.max())


def compared(losses: np.ndarray, weights: Sequence[np.ndarray], reference: Reference) -> tuple[float, float]:
    """How far losses (steps,) and weights are from the reference, as `Found` has it. Raises WrongResult."""
    by_loss = by_losses(losses, reference.losses[: reference.steps])
    return by_loss, by_norms(weights, reference.weights[reference.steps])


def by_norms(weights: Sequence[np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> float:
    """The larger difference of w1 and w2 from `expected`, as `by_norm` has it. Raises WrongResult."""
    return max(by_norm(*each) for each in zip(("w1", "w2"), weights, expected, strict=True))


def by_norm(which: str, weights: np.ndarray, expected: np.ndarray) -> float:
    """The norm of the difference from `expected`, of the same shape, as a part of its norm. Raises WrongResult."""
    if weights.shape != expected.shape:
        raise WrongResult(f"{which} has the shape {weights.shape}, not {expected.shape}")
    apart = norm(weights.astype(np.float64) - expected) / norm(expected)
    if not apart <= TOLERANCE:
        raise WrongResult(f"{which} differs from NumPy's by {apart:.1e} of its norm")
    return apart


def _common(dtypes: Sequence[np.dtype]) -> str:
    """The dtype's name, or the names of all where they differ."""
    return ", ".join(dict.fromkeys(map(str, dtypes)))
