"""What the tasks of in_backend.py find in one backend. Each is written by its own process and read by tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Steps:
    """A training, step by step."""

    trail: np.ndarray  # all weights in a row: at the start, and after each step
    weights: list[tuple[str, tuple[int, ...], str]]  # kind, shape, dtype
    parameters: int
    train_loss: float
    train_score: float


@dataclass
class Logits:
    """What a model makes of given weights."""

    logits: np.ndarray
    given: np.ndarray  # all weights in a row
    returned: np.ndarray  # the same after a way through the model
    shapes: list[tuple[str, tuple[int, ...]]]


@dataclass
class Gradient:
    """A loss of given logits, and its gradient."""

    value: np.ndarray
    gradient: np.ndarray


@dataclass
class Parity:
    """Everything that has to be the same in all backends, by the names of the choices."""

    steps: dict[tuple[str, str], Steps] = field(default_factory=dict)  # (what is trained, precision)
    logits: dict[tuple[str, int, str], Logits] = field(default_factory=dict)  # (model, side of the images, precision)
    losses: dict[tuple[str, str], Gradient] = field(default_factory=dict)  # (loss, dtype)
    updates: dict[str, np.ndarray] = field(default_factory=dict)  # by optimizer: seven numbers after each update


@dataclass
class Ran:
    """A run of the classifier stage, or the refusal of one."""

    receipt: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None
    refused: str | None = None


@dataclass
class Precisions:
    """Every precision, one after the other in one process."""

    cells: dict[str, Ran] = field(default_factory=dict)  # by precision
    fp32_again: Ran = field(default_factory=Ran)
    layers: Ran = field(default_factory=Ran)  # layers with dtypes of their own
    fp32_after: dict[str, str] = field(default_factory=dict)  # digest of its weights, by the precision before
    diverged: dict[str, Ran] = field(default_factory=dict)  # by the way in which the data come
    planted: dict[bool, Ran] = field(default_factory=dict)  # a layer that computes in another dtype, by strict
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # those of the process, by moment


@dataclass
class OnGpu:
    """float32 on a GPU alone and after each other precision: digests of the weights."""

    alone: str
    cells: dict[str, str]
    fp32_after: dict[str, str]
    settings: dict[str, dict[str, Any]]


@dataclass
class Scaled:
    """A training with a loss scale."""

    scale: dict[str, Any]  # as the receipt has it
    journal: list[tuple[int, dict[str, float]]]  # the records that name the scale


@dataclass
class LossScales:
    """Trainings in mixed float16, by what is done to them."""

    ways: dict[str, Scaled]
    trail: np.ndarray  # all weights of the planted one: at the start, and after each step
    others: list[Any]  # the scale of precisions that have none


@dataclass
class Repeated:
    """The end of a training."""

    weights: np.ndarray  # in a row
    digest: str
    losses: list[float]


@dataclass
class Programs:
    """XLA's programs as text."""

    of_dtype: dict[tuple[str, str], str] = field(default_factory=dict)  # (operation, dtype)
    of_tf32: dict[tuple[str, bool], str] = field(default_factory=dict)  # (operation, whether TF32 is allowed)


@dataclass
class Normalized:
    """A training with a normalization over the batch."""

    trained: dict[str, np.ndarray]
    parameters: int
    start: dict[str, tuple[float, float]]  # least and most of each array
    validation: tuple[float, float]  # loss and score that the training saw
    validation_by_the_predictor: tuple[float, float]
    loss_of_fresh_statistics: float


@dataclass
class Moved:
    """A training of a model one of whose weights is watched."""

    names: list[str]  # of all weights
    start: list[Any]  # the one before the training
    end: list[Any]


@dataclass
class OwnModels:
    """Models of a user's own."""

    one_thread: Ran
    streamed: Ran
    normalized: dict[str, Normalized] = field(default_factory=dict)  # by precision
    logits: dict[str, Logits] = field(default_factory=dict)  # of the normalized model, by precision
    choosy: dict[str, Ran] = field(default_factory=dict)  # by the message of its builder
    diverged_at_the_end: dict[int, Ran] = field(default_factory=dict)  # by the number of images held out
    unknown: Moved | None = None  # a layer of unknown layout
    eighth: Moved | None = None  # the kernel of a model with its own start, trained by next to nothing
    starts: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # by model, as the receipt has them
    twins: Ran = field(default_factory=Ran)  # of Keras: two weights of one path
    graph: list[tuple[str, str, str]] = field(default_factory=list)  # TensorFlow's: operation, device, dtype
    memory_fraction: dict[str, dict[str, Any]] = field(default_factory=dict)  # JAX's
