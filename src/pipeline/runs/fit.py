"""What a backend returns: the trained model, how each epoch went, and what was seen in a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pipeline.runs.adapters import Adapters
from pipeline.runs.loss_scale import LossScale
from pipeline.runs.records import EPOCH
from pipeline.runs.result import Direction, Metric, count, rate
from pipeline.runs.weights import Weights, digest

Predict = Callable[[np.ndarray], np.ndarray]


def not_finite(outputs: np.ndarray) -> tuple[int, float] | None:
    """The first example whose outputs (N, ...) are not all finite, and the value; None where there is none."""
    where = np.nonzero(~np.isfinite(outputs))
    return (int(where[0][0]), float(outputs[tuple(axis[0] for axis in where)])) if where[0].size else None


NOT_SEEN = "set, not seen"
ON_CPU = "no processor has TF32"
NO_STEP = "the run had no step left when it was resumed"
PASS = "a pass of the saved model"


@dataclass
class Observation:
    """What was seen in a training step, or in a pass of a saved model, while it ran.

    `matmuls` counts matrix products and convolutions, forward and backward, by their operands' dtype, and
    `product_devices` by where they ran; `devices` and `operations` count every operation, by device and by (name,
    device, dtype). `compiled` is the count of matrix products after the compiler's passes, where a compiler stands
    between (XLA). `how` names the way of looking. `attention` counts the layers of attention by how they were computed.

    `tf32`: whether float32 products ran in TF32, seen as `tf32_by` says; None where it was set and not seen, for the
    reason in `tf32_by`.
    """

    how: str
    matmuls: Counter[str] = field(default_factory=Counter)
    devices: Counter[str] = field(default_factory=Counter)
    product_devices: Counter[str] = field(default_factory=Counter)
    operations: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    compiled: Counter[str] | None = None
    attention: Counter[str] = field(default_factory=Counter)
    tf32: bool | None = None
    tf32_by: str = NOT_SEEN


class Passes(ABC):
    """A model whose passes can be timed."""

    @abstractmethod
    def settings(self) -> AbstractContextManager[None]:
        """The framework's process-wide settings, inside of which `forward` is called."""

    @abstractmethod
    def forward(self, x: np.ndarray) -> np.ndarray:
        """Outputs (B, ...) in the host's memory: in float64 if the model gives that, else in float32."""

    @abstractmethod
    def flop(self, x: np.ndarray) -> float | None:
        """Floating-point operations of the matrix products of a pass over a batch; None where they cannot be read."""

    @abstractmethod
    def peak_memory(self) -> dict[str, int]:
        """The most bytes so far: `process_bytes`, and on a GPU `device_bytes` of the framework's allocator."""


class Predictor(Passes):
    """A trained model on its device. Called with a batch of inputs (see Data.inputs), it gives outputs (B, ...) in
    float64, at the run's precision.

    `compiled_by`: what compiles its passes where that is a choice ("torch.compile", "XLA"), else None. `notes`: what
    the compiler could not do, or not once and for all.
    """

    @property
    def compiled_by(self) -> str | None:
        return None

    @property
    def notes(self) -> Sequence[str]:
        return ()

    def __call__(self, x: np.ndarray) -> np.ndarray:
        with self.settings():
            return self.forward(x).astype(np.float64)

    @abstractmethod
    def observe(self, x: np.ndarray) -> Observation:
        """What a pass over a batch runs."""

    @abstractmethod
    def cpu_threads(self, batch: int) -> int | None:
        """CPU threads of an operation in a pass over so many examples; None where the framework chooses."""


@dataclass(frozen=True)
class Epoch:
    """One epoch. `seconds` is training alone, without validation; `units`: images, tokens, ... seen in these seconds,
    so that steps that compiled are left out of both.

    Where validations are counted in steps it is what lies between two of them, and `passes` says how many passes over
    the training set there were by its end.

    The scores (accuracy) are None for a task that has none. `cold`: the first of a process, which imports, compiles and
    fills its memory in it; of a training that was resumed there are several.
    """

    number: int
    seconds: float
    steps: int
    units: int
    train_loss: float
    train_score: float | None = None
    validation_loss: float | None = None
    validation_score: float | None = None
    passes: float | None = None
    cold: bool = False

    @property
    def units_per_s(self) -> float:
        return self.units / self.seconds

    def metrics(self, unit: str, score: str | None, direction: Direction) -> list[Metric]:
        """As the journal keeps them. `unit`: what a rate counts ("images"); `score`: what the score is called."""
        found: list[tuple[str, float | None, Direction]] = [
            ("epoch/train_loss", self.train_loss, "min"),
            (f"epoch/train_{score}", self.train_score, direction),
            ("validation/loss", self.validation_loss, "min"),
            (f"validation/{score}", self.validation_score, direction),
        ]
        measured = [Metric(name, value, direction=better) for name, value, better in found if value is not None]
        return [
            count(EPOCH, self.passes or self.number),
            *measured,
            rate(f"epoch/{unit}_per_s", self.units_per_s, unit),
        ]


@dataclass(frozen=True)
class Start:
    """Whose values the weights started from, by their names.

    `shared`: drawn by the seed, the same on every backend; `own`: as the model, or its framework, made them; `loaded`:
    from the file `source`, whose weights have that digest. `frozen`: those that the training did not change.
    `adapters`: what was trained in their place, as it started. `digests`: by name, of what is trained, before the first
    step.
    """

    shared: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    source: str | None = None
    source_sha256: str | None = None
    frozen: tuple[str, ...] = ()
    adapters: Adapters | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """As the receipt keeps it."""
        found: dict[str, object] = {"shared": list(self.shared), "own": list(self.own)}
        if self.source is not None:
            found |= {"loaded": list(self.loaded), "source": self.source, "source_sha256": self.source_sha256}
        if self.adapters is not None:
            found["adapters"] = self.adapters.plain()
        return found | ({"frozen": list(self.frozen)} if self.frozen else {})


@dataclass(frozen=True)
class Fit:
    """A trained model: its weights, how each epoch went and what was observed. `kept`: which weights these are.

    `behind_average`: where those are a moving average, the digests of the weights themselves at the end.
    """

    weights: Weights
    epochs: tuple[Epoch, ...]
    observed: Observation
    parameters: int
    peak_memory: dict[str, int]
    loss_scale: LossScale | None = None  # of a training in mixed float16
    start: Start = Start()
    cpu_threads: int | None = None  # of one operation; None: the framework's own choice
    kept: dict[str, object] = field(default_factory=dict)
    behind_average: Mapping[str, str] = field(default_factory=dict)
    processes: dict[str, object] | None = None  # of a training by several
    files: dict[str, str] = field(default_factory=dict)  # name -> text, for example Keras's model as JSON

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return sum(epoch.steps for epoch in self.epochs)

    @property
    def updates(self) -> int:
        """Steps that have made the weights what they are: of the best up to theirs, and none that loss scaling skipped
        (the later ones too, as which those are is not known here)."""
        step = self.kept.get("step")
        skipped = 0 if self.loss_scale is None else self.loss_scale.skipped_steps
        return (step if isinstance(step, int) else self.steps) - skipped

    @cached_property  # of large weights the digests take seconds
    def unchanged(self) -> list[str]:
        """What was to be trained and is, bit for bit, as it was before the first step.

        Nothing after a single update, which leaves some by design: behind a projection that starts as zeros all
        gradients are zero.
        """
        if self.updates < 2:
            return []
        before = self.start.digests
        return [name for name, array in self.weights.items() if before.get(name) == digest({name: array})]

    @property
    def unchanged_averages(self) -> list[str]:
        """Those of `unchanged` that the steps did change: it is their moving average that stayed as it was."""
        behind, before = self.behind_average, self.start.digests
        return [name for name in self.unchanged if behind.get(name, before[name]) != before[name]]
