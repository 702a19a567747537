"""One optimizer step of torch: the same wherever one is taken, in training, observed, compiled or probed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from pipeline.backends.torch.lowering import Lowering
from pipeline.tasks import Task

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

OPS: Any = torch  # what a task may need (pipeline.tasks.Ops)
Losses = tuple[torch.Tensor, torch.Tensor]
Phase = Callable[[str], contextlib.AbstractContextManager[Any]]


def unmarked(_: str) -> contextlib.AbstractContextManager[None]:
    """No mark: for steps that no profiler watches."""
    return contextlib.nullcontext()


class Step:
    """A net, its optimizer and its loss. `phase` marks the parts of a step for a profiler."""

    def __init__(
        self, net: torch.nn.Module, experiment: Experiment, task: Task, lowering: Lowering, phase: Phase = unmarked
    ) -> None:
        self.net, self.task, self.lowering, self.phase = net, task, lowering, phase
        self.loss: Any = experiment.loss.torch()
        if isinstance(self.loss, torch.nn.Module):  # it may hold tensors, such as a weight for each class
            self.loss.to(lowering.device, torch.float64 if lowering.dtype == torch.float64 else None)
        optimizer = experiment.optimizer.torch(net.parameters())
        assert isinstance(optimizer, torch.optim.Optimizer)
        self.optimizer = optimizer
        self.scaler = lowering.scaler(experiment)
        self.one = torch.ones((), device=lowering.device)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> Losses:
        """Take the step. Returns its mean loss and the sum of its scores, both on the device."""
        with self.phase("forward"), self.lowering.forward():
            loss, scores = self.forward(x, y)
        self.backward(loss)
        self.step_optimizer()
        return loss.detach(), scores

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Losses:
        """The loss that is trained, and the sum of the scores."""
        return self.judged(self.net(x), y)

    def judged(self, outputs: torch.Tensor, y: torch.Tensor) -> Losses:
        """Loss and sum of scores of outputs."""
        outputs = widened(outputs)
        loss: torch.Tensor = self.loss(*self.task.compared(OPS, outputs, y))
        if self.task.score is None:
            return loss, loss.new_zeros(())
        return loss, self.task.scores(OPS, outputs.detach(), y).sum()

    def backward(self, loss: torch.Tensor) -> None:
        """The gradients, of the scaled loss where it is scaled."""
        self.optimizer.zero_grad()
        with self.phase("backward"):
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step_optimizer(self) -> None:
        """Update the weights; where the loss is scaled, unless a gradient overflowed."""
        with self.phase("optimizer"), self.lowering.defaults():
            if self.scaler is None:
                self.update()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()

    def update(self) -> None:
        """The optimizer's part, where the loss is not scaled."""
        self.optimizer.step()

    def scale(self) -> list[torch.Tensor]:
        """The loss scale as it now stands, where there is one, without waiting for the device."""
        return [] if self.scaler is None else [self.scaler.scale(self.one)]


def widened(outputs: torch.Tensor) -> torch.Tensor:
    """Outputs in float32 at least: see pipeline.losses."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
