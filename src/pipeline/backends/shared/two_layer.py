"""The two-layer net that is written in many forms, and what each form has to offer.

    p = relu(x·w1)·w2,   loss = sum of (p - y)²,   w -= rate · gradient

x (N, D_in), y (N, D_out), w1 (D_in, H) and w2 (H, D_out) are drawn from the normal distribution, all in float64.
Source: J. Johnson, "Learning PyTorch with Examples", with N, D_in, H, D_out = 64, 1000, 100, 10, 500 steps and 1e-6.
`by_hand` is the reference: every form of every framework has to give its numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.backends.shared.arrays import Arrays

Sizes = tuple[int, int, int, int]  # N, D_in, H, D_out


@dataclass(frozen=True)
class Net:
    """What a training starts from; shapes as above. `rate`: the learning rate."""

    x: np.ndarray
    y: np.ndarray
    w1: np.ndarray
    w2: np.ndarray
    rate: float


@dataclass(frozen=True)
class Reference:
    """`losses`: that of each step, before its update. `weights`: w1 and w2 after so many steps, or `steps`."""

    losses: np.ndarray
    weights: Mapping[int, tuple[np.ndarray, np.ndarray]]
    steps: int


def drawn(sizes: Sizes, rate: float, seed: int) -> Net:
    """A net with normal inputs, targets and weights, drawn from a seed."""
    n, d_in, h, d_out = sizes
    generator = np.random.default_rng(seed)
    x, y = generator.standard_normal((n, d_in)), generator.standard_normal((n, d_out))
    return Net(x, y, generator.standard_normal((d_in, h)), generator.standard_normal((h, d_out)), rate)


def by_hand(x: np.ndarray, y: np.ndarray, w1: np.ndarray, w2: np.ndarray, rate: float) -> tuple[np.ndarray, ...]:
    """One step in NumPy, its gradients by the chain rule: the loss and the new weights."""
    hidden = x @ w1
    active = np.maximum(hidden, 0)
    error = active @ w2 - y
    loss = np.square(error).sum()
    by_output = 2 * error
    by_hidden = (by_output @ w2.T) * (hidden > 0)
    return loss, w1 - rate * (x.T @ by_hidden), w2 - rate * (active.T @ by_output)


def trained(net: Net, steps: int, timed: Collection[int]) -> Reference:
    """The reference: weights after `steps` steps and after each number in `timed`, and the losses up to the largest."""
    w1, w2, losses = net.w1, net.w2, []
    kept, weights = {steps, *timed}, {}
    with np.errstate(all="ignore"):  # whoever asks looks whether the losses are numbers
        for number in range(1, max(kept) + 1):
            loss, w1, w2 = by_hand(net.x, net.y, w1, w2, net.rate)
            losses.append(loss)
            if number in kept:
                weights[number] = w1, w2
    return Reference(np.array(losses), weights, steps)


class Form(ABC):
    """One way to write and run the training of the net.

    `name` in tables and metrics; `how`: what it is, in words. `last`: the loss of the last step, a framework's array
    that may not be computed yet. `w1`, `w2`: the weights, which a subclass may keep otherwise.
    """

    name: ClassVar[str]
    how: ClassVar[str]
    last: Any = None

    def __init__(self, net: Net, arrays: Arrays) -> None:
        self.net, self.arrays = net, arrays
        self.x, self.y, self.rate = arrays.put(net.x), arrays.put(net.y), net.rate
        self.restart()

    @classmethod
    def missing(cls, place: str) -> str | None:  # noqa: ARG003
        """What this machine lacks to run it ("an NVIDIA GPU"); None where it can."""
        return None

    def start_from(self, w1: Any, w2: Any) -> None:
        """Go on from these weights, the framework's arrays, which are the form's own from here on."""
        self.w1, self.w2 = w1, w2

    def held(self) -> tuple[Any, Any]:
        """w1 (D_in, H) and w2 (H, D_out) as they are now, the framework's arrays."""
        return self.w1, self.w2

    @abstractmethod
    def step(self) -> None:
        """Launch one step: the loss to `last`, new weights. It need not be computed when this returns."""

    def restart(self) -> None:
        """Go back to the weights that the training starts from; what is compiled stays."""
        self.start_from(self.arrays.put(self.net.w1), self.arrays.put(self.net.w2))

    def wait(self) -> None:
        """Until all that was launched is computed."""
        self.arrays.wait([self.last, *self.held()])

    def ready(self) -> bool:
        """Whether all that was launched is computed."""
        return self.arrays.ready([self.last, *self.held()])


class Way(Form):
    """A pure function (x, y, w1, w2) -> (loss, w1, w2), run as it is or as a graph of it.

    `eager`: it is what its framework's other ways are compared with. It is built at the first step, so that the first
    call includes all of its compilation. `saved_as`: how run_saved.py reads what `save` writes; None: it is not saved.
    """

    eager: ClassVar[bool] = False
    saved_as: ClassVar[str | None] = None
    built: Callable[..., Any] | None = None

    @abstractmethod
    def build(self) -> Callable[..., Any]:
        """Make the function that is called for each step."""

    def step(self) -> None:
        if self.built is None:
            self.built = self.build()
        self.last, self.w1, self.w2 = self.built(self.x, self.y, self.w1, self.w2)

    def uncompiled(self) -> str | None:
        """Why what ran is not the graph that `how` names; None where it is. Asked after a step."""
        return None

    def save(self, folder: Path) -> None:
        """Write the graph for a process that does not have this code."""
        raise NotImplementedError
