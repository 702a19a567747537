"""A trained model that only predicts, on torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipeline.backends.torch.compiled_pass import CompiledPass
from pipeline.backends.torch.lowering import Lowering
from pipeline.backends.torch.net import example, made, peak_memory
from pipeline.backends.torch.observer import Observer
from pipeline.backends.torch.settings import runtime_settings
from pipeline.backends.torch.threads import step_flop
from pipeline.backends.torch.training import to_tensor
from pipeline.machine.capability import Resolved
from pipeline.machine.threads import threads_for, threads_to_read
from pipeline.models import Shapes, weights
from pipeline.runs.fit import ON_CPU, PASS, Observation, Predictor
from pipeline.runs.weights import Weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


class TorchPredictor(Predictor):
    """The net in evaluation mode, with the weights that a run has saved; `compiled`: by backend.compile, too."""

    def __init__(
        self, experiment: Experiment, shapes: Shapes, saved: Weights, resolved: Resolved, *, compiled: bool = False
    ) -> None:
        self.experiment, self.resolved, self.lowering = experiment, resolved, Lowering(resolved)
        with self.settings():
            net = self.lowering.moved(made(experiment.data_model, shapes))
            chosen = experiment.backend.threads or self.lowering.device.type != "cpu"
            # First: a forward pass may change the net's buffers, which are then the saved ones all the same.
            self.step_flop = 0.0 if chosen else step_flop(net, example(shapes, next(net.parameters()).dtype), 1)
            self.threads = torch.get_num_threads()
            self.read_bytes = sum(tensor.nbytes for tensor in net.parameters())
            weights.to_torch(net, saved, "the saved run")
            self.net = net.to(self.lowering.device).eval()
        self.compiled = CompiledPass(self.net) if compiled and experiment.backend.compile else None

    @property
    def compiled_by(self) -> str | None:
        return None if self.compiled is None or self.compiled.gave_up else "torch.compile"

    @property
    def notes(self) -> Sequence[str]:
        return () if self.compiled is None else self.compiled.notes

    def settings(self) -> contextlib.AbstractContextManager[None]:
        return runtime_settings(self.experiment, self.resolved)

    def forward(self, x: np.ndarray) -> np.ndarray:
        outputs = self._outputs(x, torch.inference_mode(), self.compiled)
        narrow = outputs.dtype in (torch.float16, torch.bfloat16)
        found: np.ndarray = (outputs.float() if narrow else outputs).cpu().numpy()
        return found

    def observe(self, x: np.ndarray) -> Observation:
        seen = Observation(how=f"torch dispatch, {PASS}")
        if self.lowering.device.type == "cpu":
            seen.tf32, seen.tf32_by = False, ON_CPU
        with self.settings(), Observer(seen):
            self._outputs(x, torch.no_grad())  # in inference mode a layer is one operation, with no product to be seen
        if self.compiled is not None:
            seen.how += "; the compiled passes are not observed"
        return seen

    def flop(self, x: np.ndarray) -> float | None:
        from pipeline.backends.torch.flop import flop  # torch's counter, of use here alone

        with self.settings():
            return flop(lambda: self._outputs(x, torch.no_grad()))

    def peak_memory(self) -> dict[str, int]:
        return peak_memory(self.lowering.device)

    def cpu_threads(self, batch: int) -> int:
        if not self.step_flop:
            return self.threads
        by_flop = threads_for(batch * self.step_flop, self.threads)
        return max(by_flop, threads_to_read(self.read_bytes, self.threads))

    def _outputs(
        self, x: np.ndarray, mode: contextlib.AbstractContextManager[Any], run: Callable[..., Any] | None = None
    ) -> torch.Tensor:
        """Of the net, or of what runs it."""
        torch.set_num_threads(self.cpu_threads(len(x)))  # `settings` puts back what it found
        with mode, self.lowering.forward():
            outputs: torch.Tensor = (run or self.net)(self.lowering.entered(to_tensor(x)))
            return outputs
