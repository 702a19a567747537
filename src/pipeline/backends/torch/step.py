"""One optimizer step of torch: the same wherever one is taken, in training, observed, compiled or probed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pipeline.backends.shared.made import check_optimizer
from pipeline.backends.torch.lowering import Lowering
from pipeline.models import weights
from pipeline.tasks import Task

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.models import Shapes

NARROW = (torch.float16, torch.bfloat16)
OPS: Any = torch  # what a task may need (pipeline.tasks.Ops)
Losses = tuple[torch.Tensor, torch.Tensor]
Phase = Callable[[str], contextlib.AbstractContextManager[Any]]


def unmarked(_: str) -> contextlib.AbstractContextManager[None]:
    """No mark: for steps that no profiler watches."""
    return contextlib.nullcontext()


@dataclass
class Gathering:
    """What a step and its compiled copy share. `fresh`: no gradient has been gathered; `norm`: of the last gradient.

    `wide`: the sum so far of gradients that are not themselves as wide as float32, by parameter.
    """

    norm: torch.Tensor
    fresh: bool = True
    wide: dict[torch.Tensor, torch.Tensor] = field(default_factory=dict)


class Step:
    """A net, its optimizer and its loss. `phase` marks the parts of a step for a profiler."""

    def __init__(
        self, net: torch.nn.Module, experiment: Experiment, task: Task, lowering: Lowering, phase: Phase = unmarked
    ) -> None:
        self.net, self.task, self.lowering, self.phase = net, task, lowering, phase
        self.loss: Any = experiment.loss.torch()
        if isinstance(self.loss, torch.nn.Module):  # it may hold tensors, such as a weight for each class
            self.loss.to(lowering.device, torch.float64 if lowering.dtype == torch.float64 else None)
        self.training = experiment.training
        self.optimizer = optimizer_of(net, experiment, lowering, task.shapes)
        self.scaler = lowering.scaler(experiment)
        self.one = torch.ones((), device=lowering.device)
        self.gathering = Gathering(self.one)
        self.average = Average(net, experiment.training.ema) if experiment.training.ema else None
        many = experiment.training.accumulate > 1
        self.narrow = {p for p in net.parameters() if many and p.dtype in NARROW}  # a set asks by identity, not by ==

    def __call__(self, x: torch.Tensor, y: torch.Tensor, share: float | None = None, *, update: bool = True) -> Losses:
        """Take the step. Returns the batch's mean loss and the sum of its scores, both on the device.

        `share`: of a step of several batches, what this one's loss counts in it; `update`: it is the last of them.
        """
        with self.phase("forward"), self.lowering.forward():
            loss, scores = self.forward(x, y)
        self.backward(loss if share is None else loss * share)
        self.gathering.fresh = update
        if update:
            self.step_optimizer()
        return loss.detach(), scores

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Losses:
        """The loss that is trained, and the sum of the scores."""
        return self.judged(self.net(x), y)

    def judged(self, outputs: torch.Tensor, y: torch.Tensor) -> Losses:
        """Loss and sum of scores of outputs."""
        outputs = widened(outputs)
        loss: torch.Tensor = self.task.loss_of(self.loss, OPS, outputs, y)
        if self.task.score is None:
            return loss, loss.new_zeros(())
        return loss, self.task.scores(OPS, outputs.detach(), y).sum()

    def backward(self, loss: torch.Tensor, by: Callable[[torch.Tensor], object] = torch.Tensor.backward) -> None:
        """The gradients, of the scaled loss where it is scaled, added to those of the step's other batches."""
        wide = self.gathering.wide
        if self.gathering.fresh:
            self.optimizer.zero_grad()
            wide.clear()
        for parameter in self.narrow:
            parameter.grad = None
        with self.phase("backward"):
            by(loss if self.scaler is None else self.scaler.scale(loss))
        for parameter in self.narrow:
            if parameter.grad is not None:
                wide[parameter] = parameter.grad.float() + wide.get(parameter, 0)

    def step_optimizer(self) -> None:
        """Update the weights; where the loss is scaled, unless a gradient overflowed."""
        for parameter, total in self.gathering.wide.items():
            parameter.grad = total.to(parameter.dtype)
        with self.phase("optimizer"), self.lowering.defaults():
            if self.scaler is None:
                self.update()
            else:
                if self.bounds:
                    self.scaler.unscale_(self.optimizer)
                    self.bound()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            if self.average is not None:
                self.average.update()

    @property
    def bounds(self) -> bool:
        """Whether the gradient is measured or clipped."""
        return self.training.needs_norm or self.training.clip_value is not None

    def bound(self) -> None:
        """Clip the gradient's numbers, measure its norm, and clip that (Pascanu et al., ICML 2013, algorithm 1)."""
        parameters = [p for p in self.net.parameters() if p.grad is not None]
        overflow = None  # clipped by its numbers, a gradient that has overflowed would have a norm
        if self.training.clip_value is not None:
            if self.scaler is not None and self.training.needs_norm:
                whole = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
                overflow = whole - whole  # 0, or NaN
            torch.nn.utils.clip_grad_value_(parameters, self.training.clip_value)
        if self.training.needs_norm:  # in float32: above 65,504 one in float16 is infinite, and would clip all to 0
            norm = torch.nn.utils.get_total_norm([widened(p.grad) for p in parameters if p.grad is not None])
            if self.training.clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters, self.training.clip_norm, norm)
            self.gathering.norm = norm
        if overflow is not None:
            self.gathering.norm = self.gathering.norm + overflow

    def update(self) -> None:
        """The optimizer's part, where the loss is not scaled."""
        if self.bounds:
            self.bound()
        self.optimizer.step()

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next update."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def scale(self) -> list[torch.Tensor]:
        """The loss scale as it now stands, where there is one, without waiting for the device."""
        return [] if self.scaler is None else [self.scaler.scale(self.one)]


class Average:
    """An exponential moving average of the trained weights (Polyak & Juditsky, 1992): a <- decay a + (1 - decay) w.

    It begins at the initial weights, and moves after every update. It is in float32 at least: bfloat16 has 8 bits, in
    which 0.001 of a difference is lost.
    """

    def __init__(self, net: torch.nn.Module, decay: float) -> None:
        self.trained = [p for p in net.parameters() if p.requires_grad]
        self.decay, self.average = decay, [widened(p.detach()).clone() for p in self.trained]

    @torch.no_grad()
    def update(self) -> None:
        """After a step."""
        torch._foreach_lerp_(self.average, [widened(p.detach()) for p in self.trained], 1 - self.decay)

    @contextlib.contextmanager
    def in_the_net(self) -> Iterator[None]:
        """The average in the place of the weights, by copies: a captured graph reads the weights where they lie."""
        weights = [p.detach() for p in self.trained]
        kept = [weight.clone() for weight in weights]
        torch._foreach_copy_(weights, self.average)
        try:
            yield
        finally:
            torch._foreach_copy_(weights, kept)


def optimizer_of(
    net: torch.nn.Module, experiment: Experiment, lowering: Lowering, shapes: Shapes
) -> torch.optim.Optimizer:
    """torch's optimizer of the weights that are trained."""
    made: Any = experiment.optimizer.torch(groups(net, experiment, lowering, shapes))
    check_optimizer(experiment, made, torch.optim.Optimizer, "torch.optim.Optimizer")
    optimizer: torch.optim.Optimizer = made
    return optimizer


def groups(net: torch.nn.Module, experiment: Experiment, lowering: Lowering, shapes: Shapes) -> Any:
    """The parameters as the optimizer is to have them: by kind of update, and by whether they decay."""
    optimizer = experiment.optimizer
    if optimizer.several:
        return _by_kind(net, experiment, lowering, shapes)
    if optimizer.decay == "all":
        return net.parameters()
    trained = [row for row in weights.parameters_torch(net) if row[1].requires_grad]
    decaying = [parameter for name, parameter, shape in trained if optimizer.decays(name, shape)]
    others = [parameter for name, parameter, shape in trained if not optimizer.decays(name, shape)]
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _by_kind(net: torch.nn.Module, experiment: Experiment, lowering: Lowering, shapes: Shapes) -> list[dict[str, Any]]:
    """A layer with a dtype that is not the precision's has its products in it too."""
    every = list(weights.parameters_torch(net))
    trained = [row for row in every if row[1].requires_grad]
    kinds = experiment.kinds_of_update({name: shape for name, _, shape in every}, shapes.outputs[-1])
    found: dict[tuple[str, torch.dtype, bool], list[torch.Tensor]] = {}
    for name, parameter, shape in trained:
        compute = lowering.compute if parameter.dtype == lowering.dtype else parameter.dtype
        # Two layouts of one square matrix are the same to an update.
        inputs_first = parameter.ndim == 2 and shape == tuple(parameter.shape) and shape[0] != shape[1]
        found.setdefault((kinds[name], compute, inputs_first), []).append(parameter)
    return [
        {
            "params": parameters,
            "kind": kind,
            "compute": str(compute).removeprefix("torch."),
            "inputs_first": inputs_first,
        }
        for (kind, compute, inputs_first), parameters in found.items()
    ]


def widened(outputs: torch.Tensor) -> torch.Tensor:
    """Outputs, or weights, in float32 at least: see pipeline.losses."""
    return outputs.float() if outputs.dtype in NARROW else outputs
