"""The two-layer net in torch: four forms of one training, and four ways to run one step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeline.backends import missing_for_compile
from pipeline.backends.shared.two_layer import Form, Way
from pipeline.backends.torch.arrays import Arrays
from pipeline.backends.torch.compiled import WARM_UP
from pipeline.backends.torch.compilers import DYNAMO, SCRIPT, compiled_graphs, compiled_nothing


def step(x: Tensor, y: Tensor, w1: Tensor, w2: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    """The whole step, its gradients by hand: one graph without a branch."""
    hidden = x @ w1
    active = hidden.clamp(min=0)
    error = active @ w2 - y
    loss = error.square().sum()
    by_output = 2 * error
    by_hidden = (by_output @ w2.t()) * (hidden > 0)
    return loss, w1 - rate * (x.t() @ by_hidden), w2 - rate * (active.t() @ by_output)


class ByHand(Form):
    """`step`, as a function of tensors."""

    name: ClassVar[str] = "torch_by_hand"
    how: ClassVar[str] = "tensors, gradients by hand"

    def step(self) -> None:
        self.last, self.w1, self.w2 = step(self.x, self.y, self.w1, self.w2, self.rate)


class Differentiated(Form):
    """The loss is written, autograd finds the gradients, and the weights are changed in place."""

    def start_from(self, w1: Tensor, w2: Tensor) -> None:
        self.w1, self.w2 = w1.requires_grad_(), w2.requires_grad_()

    def descend(self, relu: Callable[[Tensor], Tensor]) -> None:
        """One step with `relu` between the layers."""
        loss = (relu(self.x @ self.w1) @ self.w2 - self.y).square().sum()
        loss.backward()
        with torch.no_grad():
            for weight in (self.w1, self.w2):
                assert weight.grad is not None
                weight.sub_(self.rate * weight.grad)
                weight.grad = None
        self.last = loss.detach()


class Autograd(Differentiated):
    """torch's own operations."""

    name: ClassVar[str] = "torch_autograd"
    how: ClassVar[str] = "tensors, autograd"

    def step(self) -> None:
        self.descend(torch.relu)


class Relu(torch.autograd.Function):
    """max(x, 0) with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * (x > 0)


class OwnFunction(Differentiated):
    """An operation that autograd is taught."""

    name: ClassVar[str] = "torch_function"
    how: ClassVar[str] = "own autograd.Function"

    def step(self) -> None:
        self.descend(Relu.apply)


class Modules(Form):
    """Layers and an optimizer. `Linear` keeps its weight transposed."""

    name: ClassVar[str] = "torch_nn"
    how: ClassVar[str] = "nn.Sequential, optim.SGD"

    def start_from(self, w1: Tensor, w2: Tensor) -> None:
        sizes = (w1.shape, w2.shape)
        first, second = (torch.nn.Linear(each[0], each[1], bias=False, device="meta") for each in sizes)
        first.weight, second.weight = (torch.nn.Parameter(each.t().contiguous()) for each in (w1, w2))
        self.weights = first.weight, second.weight
        self.layers = torch.nn.Sequential(first, torch.nn.ReLU(), second)
        self.loss = torch.nn.MSELoss(reduction="sum")
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=self.rate)

    def held(self) -> tuple[Tensor, Tensor]:
        return self.weights[0].t(), self.weights[1].t()

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(self.layers(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        self.last = loss.detach()


class Eager(Way):
    """Operation by operation, as Python calls them."""

    name: ClassVar[str] = "torch_eager"
    how: ClassVar[str] = "operation by operation"
    eager: ClassVar[bool] = True

    def build(self) -> Callable[..., Any]:
        return partial(step, rate=self.rate)


class Step(torch.nn.Module):
    """`step` as a module, which is what torch saves."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, y: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return step(x, y, w1, w2, self.rate)


class Script(Way):
    """torch.jit.script, which torch calls deprecated. It optimizes in its second call, by what the first one met."""

    name: ClassVar[str] = "torch_script"
    how: ClassVar[str] = "TorchScript"
    saved_as: ClassVar[str | None] = "torch_script"

    def build(self) -> Callable[..., Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.scripted = torch.jit.script(Step(self.rate))
        return self.scripted

    def uncompiled(self) -> str | None:
        return None if isinstance(self.scripted, torch.jit.ScriptModule) else compiled_nothing(SCRIPT)

    def save(self, folder: Path) -> None:
        self.scripted.save(folder / "step.pt")


class Compiled(Way):
    """torch.compile: C++ by Inductor on a CPU, Triton on a GPU."""

    name: ClassVar[str] = "torch_compile"
    how: ClassVar[str] = "torch.compile"
    saved_as: ClassVar[str | None] = "torch_export"

    @classmethod
    def missing(cls, place: str) -> str | None:
        return missing_for_compile(place.partition(":")[0])

    def build(self) -> Callable[..., Any]:
        self.graphs, rate = compiled_graphs(), self.rate
        return torch.compile(lambda x, y, w1, w2: step(x, y, w1, w2, rate), dynamic=False, fullgraph=True)

    def uncompiled(self) -> str | None:
        return None if compiled_graphs() > self.graphs else compiled_nothing(DYNAMO)

    def save(self, folder: Path) -> None:
        examples = self.x, self.y, *self.held()
        torch.export.save(torch.export.export(Step(self.rate), examples), folder / "step.pt2")


class CudaGraph(Way):
    """The step captured once and replayed: one order for all of its kernels."""

    name: ClassVar[str] = "torch_cuda_graph"
    how: ClassVar[str] = "CUDA graph"

    @classmethod
    def missing(cls, place: str) -> str | None:
        return "an NVIDIA GPU" if place == "cpu" else None

    def build(self) -> Callable[..., Any]:
        fixed_w1, fixed_w2 = (each.clone() for each in self.held())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step(self.x, self.y, fixed_w1, fixed_w2, self.rate)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss, new_w1, new_w2 = step(self.x, self.y, fixed_w1, fixed_w2, self.rate)
            fixed_w1.copy_(new_w1)
            fixed_w2.copy_(new_w2)

        def replay(x: Tensor, y: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, ...]:
            """The graph reads and writes its own copies of the weights; others are brought there first."""
            if w1 is not fixed_w1:
                fixed_w1.copy_(w1)
                fixed_w2.copy_(w2)
            graph.replay()
            return loss, fixed_w1, fixed_w2

        return replay


FORMS: tuple[type[Form], ...] = (ByHand, Autograd, OwnFunction, Modules)
WAYS: tuple[type[Way], ...] = (Eager, Script, Compiled, CudaGraph)


def arrays(place: str) -> Arrays:
    """torch's arrays on `place`: `cpu` or `gpu:0`."""
    return Arrays(place)
