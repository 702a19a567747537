"""Looking into a step of torch's: its gradients, its operations by time, and the machine's rates at its dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from pipeline.backends.shared.step_breakdown import (
    NUMBERS,
    ROUNDS,
    FirstStep,
    Machine,
    StepBreakdown,
    first_batch,
    in_memory,
    longest,
)
from pipeline.backends.torch import bare as torch_bare
from pipeline.backends.torch import products as torch_products
from pipeline.backends.torch import steps_in_profile as torch_look
from pipeline.backends.torch.lowering import Lowering
from pipeline.backends.torch.net import initial_net
from pipeline.backends.torch.settings import runtime_settings
from pipeline.backends.torch.step import Step
from pipeline.backends.torch.training import to_tensor
from pipeline.datasets import Data
from pipeline.loaders.batch_plan import Plan
from pipeline.machine.capability import Resolved
from pipeline.machine.precision import FORMATS, Format, bytes_per_number
from pipeline.models import weights
from pipeline.models.torch_quick import onednn_is_quicker, onednn_product
from pipeline.runs.weights import Weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

HOW = "torch's profiler, {steps} steps of the training's own loop (the quickest of {rounds}){compiled}"
CLOSE = 1.2  # a look at steps that took no longer than this times the timed ones is not repeated
SIDE = {"cpu": 1024, "cuda": 8192}


def first_step(experiment: Experiment, data: Data, resolved: Resolved) -> FirstStep:
    """The first step again, from the same weights and examples, without dropout."""
    lowering = Lowering(resolved)
    with runtime_settings(experiment, resolved):
        net, *_ = initial_net(experiment, data.task.shapes, lowering)
        step = Step(lowering.moved(net).to(lowering.device), experiment, data.task, lowering)
        for layer in net.modules():
            if isinstance(layer, torch.nn.modules.dropout._DropoutNd):
                layer.p = 0.0
        rows = first_batch(experiment, data)
        batch = data.training(rows, 0)
        x = lowering.entered(to_tensor(data.inputs(batch.x, lowering.numpy)))
        y = to_tensor(data.targets(batch.y, lowering.numpy)).to(lowering.device)
        rate = Plan.of(experiment, len(data.train)).rate
        if rate is not None:
            step.set_rate(rate(0))
        loss, gradients = _differentiated(step, x, y)
        return FirstStep(loss, gradients, weights.from_torch(net))


def _differentiated(step: Step, x: torch.Tensor, y: torch.Tensor) -> tuple[float, Weights]:
    """The loss, and the gradients of all that is trained, unscaled; the step is taken."""
    with step.lowering.forward():
        loss, _ = step.forward(x, y)
    step.backward(loss)
    scale = 1.0 if step.scaler is None else step.scaler.get_scale()  # the step takes it out of its gradients itself
    trained = {name: p.grad for name, p in step.net.named_parameters() if p.grad is not None}
    gradients = {name: gradient.double().cpu().numpy() / scale for name, gradient in trained.items()}
    step.step_optimizer()
    return float(loss.detach()), gradients


class OnDevice:
    """Multiplying, for `Machine.measure`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        # oneDNN's is of a and b transposed, which costs the same
        return onednn_product(a, b) if torch_bare.onednn_multiplies(a) and onednn_is_quicker() else a @ b

    def wait(self, result: torch.Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def machine(experiment: Experiment, resolved: Resolved) -> Machine:
    """The machine's rates at this precision's dtypes."""
    form, device = FORMATS[resolved.precision], torch.device(resolved.place.torch)
    with runtime_settings(experiment, resolved), torch.inference_mode():
        side = SIDE[device.type]
        square = torch.randn(side, side, device=device).to(getattr(torch, form.compute))
        move = in_memory(bytes_per_number(form.parameters)) if device.type == "cpu" else to_device(device, form)
        return Machine.measure(OnDevice(device), move, square)


def to_device(device: torch.device, form: Format) -> Callable[[], object]:
    """A copy of numbers of the parameters' dtype from the host's memory to a GPU."""
    numbers, on_device = torch.ones(NUMBERS, dtype=getattr(torch, form.parameters)), OnDevice(device)
    return lambda: on_device.wait(numbers.to(device, copy=True))


def step_breakdown(experiment: Experiment, data: Data, resolved: Resolved, step_s: float) -> StepBreakdown:
    """The operations of a training's steps by time, as torch's profiler sees them, and each product's own ceiling."""
    looks: list[torch_look.Look] = []
    rounds = 1 if experiment.backend.compile else ROUNDS  # a compilation takes many times as long as the steps
    while len(looks) < rounds and not any(look.step_s <= CLOSE * step_s for look in looks):
        looks.append(torch_look.Look.at(experiment, len(data.train), step_s))
        torch_look.watch(experiment, data, resolved, looks[-1])
    look = min(looks, key=lambda look: look.step_s)
    gpu, compute = resolved.place.kind == "gpu", getattr(torch, FORMATS[resolved.precision].compute)
    found = torch_products.products(look.events, data.task.shapes.x, look.steps, gpu=gpu)
    device = torch.device(resolved.place.torch)
    with runtime_settings(experiment, resolved):
        torch.set_num_threads(look.threads)
        with_ceilings = torch_bare.with_ceilings(found, device, compute)
    return StepBreakdown(
        how=HOW.format(rounds=len(looks), steps=look.steps, compiled=look.compiled),
        step_s=look.step_s,
        shares=torch_products.shares(look.events, look.step_s * look.steps, gpu=gpu),
        products=with_ceilings,
        longest=longest(torch_products.operations(look.events, look.steps, gpu=gpu)),
        tensor_core_share=torch_products.tensor_core_share(look.events) if gpu else None,
    )
