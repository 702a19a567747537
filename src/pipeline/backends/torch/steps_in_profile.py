"""A training under torch's profiler for a few steps, so that what is explained is the step that was timed.

It is the backend's own `fit`, begun again with the same experiment: the same loop, blocks, loader, threads, autocast
and compiled step. It ends with the last step that is looked at.
"""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from pipeline.backends.shared.step_breakdown import window
from pipeline.backends.torch import fit as lightning
from pipeline.backends.torch.compiled import WARM_UP as BESIDE
from pipeline.contracts import Profiler
from pipeline.datasets import Data
from pipeline.machine.capability import Resolved
from pipeline.profilers import Tool
from pipeline.profilers.kineto import Kineto
from pipeline.runs.journal import Journal
from pipeline.runs.run import Run

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

WARM_UP = 1 + BESIDE + 1  # steps before: the first is observed; on a GPU some are run beside, and then one is captured
COMPILED = (
    "; what is fused counts as everything else, and a product in a CUDA graph by its kernel, whose sizes are not known"
)


class Enough(Exception):
    """The window is over, and with it the training."""


@dataclass
class Look(Profiler):
    """A profiler's spec for one window of `steps` steps after the first `skip`; what it saw is here afterwards."""

    skip: int
    steps: int
    compiled: str
    events: Sequence[Any] = field(default_factory=list)
    step_s: float = 0.0
    threads: int = 1

    @classmethod
    def at(cls, experiment: Experiment, images: int, step_s: float) -> Look:
        """A window of whole batches within one epoch."""
        skip, steps = window(images, experiment.training.batch_size, step_s, WARM_UP)
        return cls(skip, steps, COMPILED if experiment.backend.compile else "")

    def tool(self, experiment: Experiment, run: Run) -> Tool:
        """torch's profiler with the sizes of the products."""
        return Kineto(self._keep, shapes=True, memory=False, stacks=False)

    def _keep(self, profile: Any, device: str, seen: Mapping[str, Any]) -> None:
        self.events, self.step_s, self.threads = profile.events(), seen["step_s"], torch.get_num_threads()
        raise Enough


def watch(experiment: Experiment, data: Data, resolved: Resolved, look: Look) -> None:
    """Train until the steps that are to be profiled are over."""
    each = math.ceil(len(data.train) / experiment.training.batch_size)
    usual, batches = experiment.training, look.skip + look.steps
    training = replace(  # as long as it was timed, so that its schedule fits, or longer: nothing but the window ends it
        usual,
        epochs=max(usual.epochs, batches // each + 1),
        steps=None if usual.steps is None else max(usual.steps, batches // usual.accumulate + 1),
        validate_every=None,
        max_time=None,
        patience=None,
        weights="last",
    )
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal.begin(Path(folder), "look", experiment.config)
        try:
            run = Run(journal, Console(file=io.StringIO()))
            with contextlib.suppress(Enough):
                lightning.fit(replace(experiment, profiler=look, training=training), data, resolved, run)
        finally:
            journal.finish("KILLED")
