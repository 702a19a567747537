"""Looking into a step of torch's: its gradients, its operations by time, and the machine's rates at its dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from pipeline.backends.shared.step_breakdown import (
    NUMBERS,
    ROUNDS,
    FirstStep,
    Machine,
    StepBreakdown,
    first_batch,
    longest,
)
from pipeline.backends.torch import products as torch_products
from pipeline.backends.torch import steps_in_profile as torch_look
from pipeline.backends.torch.net import initial_net, widened
from pipeline.backends.torch.settings import runtime_settings
from pipeline.datasets import Arrays
from pipeline.machine.capability import Resolved
from pipeline.machine.precision import FORMATS
from pipeline.models import weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

HOW = "torch's profiler, {steps} steps of the training's own loop (the quickest of {rounds}){compiled}"
CLOSE = 1.2  # a look at steps that took no longer than this times the timed ones is not repeated
SIDE = {"cpu": 1024, "cuda": 8192}


class Step:
    """The model, its optimizer and a batch, ready to take a step at the run's precision."""

    def __init__(self, experiment: Experiment, data: Arrays, resolved: Resolved) -> None:
        form = FORMATS[resolved.precision]
        self.device = torch.device(resolved.place.torch)
        dtype = getattr(torch, form.parameters)
        net, _ = initial_net(experiment, data, form, self.device)
        self.net = net.to(self.device) if dtype == torch.float32 else net.to(self.device, dtype)
        self.optimizer: Any = experiment.optimizer.torch(self.net.parameters())
        self.loss: Any = experiment.loss.torch()
        self.scaler = torch.amp.GradScaler(self.device.type, experiment.precision.loss_scale, enabled=form.loss_scaling)
        compute = getattr(torch, form.compute)
        self.mixed = torch.autocast(self.device.type, compute, enabled=form.compute != form.parameters)
        rows = first_batch(experiment, data)
        wide = "float64" if form.parameters == "float64" else "float32"
        self.x = torch.from_numpy(data.scaled(data.train.x[rows], wide)).to(self.device, dtype)
        self.y = torch.from_numpy(data.train.y[rows]).to(self.device)

    def backward(self) -> torch.Tensor:
        """Forward and backward; the gradients are left unscaled. Returns the loss."""
        with self.mixed:
            loss: torch.Tensor = self.loss(widened(self.net(self.x)), self.y)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer) if self.scaler.is_enabled() else None
        return loss

    def update(self) -> None:
        """The optimizer's part."""
        self.scaler.step(self.optimizer)
        self.scaler.update()


def first_step(experiment: Experiment, data: Arrays, resolved: Resolved) -> FirstStep:
    """The first step again, from the same weights and images, without dropout."""
    with runtime_settings(experiment, resolved):
        step = Step(experiment, data, resolved)
        for layer in step.net.modules():
            if isinstance(layer, torch.nn.modules.dropout._DropoutNd):
                layer.p = 0.0
        loss = float(step.backward().detach())
        trained = {name: p.grad for name, p in step.net.named_parameters() if p.grad is not None}
        gradients = {name: gradient.double().cpu().numpy().copy() for name, gradient in trained.items()}
        step.update()
        return FirstStep(loss, gradients, weights.from_torch(step.net))


class OnDevice:
    """Moving and multiplying, for `Machine.measure`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def move(self, array: Any) -> torch.Tensor:
        moved: torch.Tensor = array.to(self.device, copy=True)
        return moved

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.is_mkldnn:  # oneDNN's is of a and b transposed, which costs the same
            return functional.linear(a, b)
        return a @ b

    def wait(self, result: torch.Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def machine(experiment: Experiment, resolved: Resolved) -> Machine:
    """The machine's rates at this precision's dtypes."""
    form, device = FORMATS[resolved.precision], torch.device(resolved.place.torch)
    with runtime_settings(experiment, resolved), torch.inference_mode():
        numbers = torch.ones(NUMBERS, dtype=getattr(torch, form.parameters))
        side = SIDE[device.type]
        square = torch.randn(side, side, device=device).to(getattr(torch, form.compute))
        if torch_products.onednn_multiplies(square):
            square = square.to_mkldnn()
        return Machine.measure(OnDevice(device), numbers, square)


def step_breakdown(experiment: Experiment, data: Arrays, resolved: Resolved, step_s: float) -> StepBreakdown:
    """The operations of a training's steps by time, as torch's profiler sees them, and each product's own ceiling."""
    looks: list[torch_look.Look] = []
    rounds = 1 if experiment.backend.compile else ROUNDS  # a compilation takes many times as long as the steps
    while len(looks) < rounds and not any(look.step_s <= CLOSE * step_s for look in looks):
        looks.append(torch_look.Look.at(experiment, len(data.train), step_s))
        torch_look.watch(experiment, data, resolved, looks[-1])
    look = min(looks, key=lambda look: look.step_s)
    gpu, compute = resolved.place.kind == "gpu", getattr(torch, FORMATS[resolved.precision].compute)
    found = torch_products.products(look.events, data.shape, look.steps, gpu=gpu)
    device = torch.device(resolved.place.torch)
    with runtime_settings(experiment, resolved):
        torch.set_num_threads(look.threads)
        with_ceilings = torch_products.with_ceilings(found, device, compute)
    return StepBreakdown(
        how=HOW.format(rounds=len(looks), steps=look.steps, compiled=look.compiled),
        step_s=look.step_s,
        shares=torch_products.shares(look.events, look.step_s * look.steps, gpu=gpu),
        products=with_ceilings,
        longest=longest(torch_products.operations(look.events, look.steps, gpu=gpu)),
        tensor_core_share=torch_products.tensor_core_share(look.events) if gpu else None,
    )
