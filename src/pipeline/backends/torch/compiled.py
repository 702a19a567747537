"""backend.compile: the training step compiled, and on a GPU captured as one CUDA graph.

Forward pass and loss are one compiled function, with which the compiler makes its backward; the optimizer's update is
another. On a GPU the step made of the three is then recorded once and replayed, so that the host gives one order a step
instead of hundreds (https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture).

Dropout draws from torch's own generator, as in the step that is not compiled, so that the masks are the same. So it is
in a graph: a replay hands its kernels the generator's offset as it now stands, and then moves it on by what the graph
draws (ATen/cuda/CUDAGeneratorImpl.h, "CUDA Graph-safe RNG states").
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from typing import Any

import torch

from pipeline.backends.torch.compiled_function import CompiledFunction
from pipeline.backends.torch.compilers import (
    cannot_compile,
    check_compiled,
    compilations,
    compiled_graphs,
    drop_compilations,
)
from pipeline.backends.torch.step import Losses, Step
from pipeline.errors import RunError, Stopped, cut

WARM_UP = 3  # steps on a side stream before the capture: what is chosen or allocated once must be so by then


class CompiledStep:
    """A step for batches of one size; one of another size is left to whoever calls, uncompiled.

    A profiler sees the parts of a captured step as one phase, `graph`. `seconds`: what compiling and capturing took,
    with the steps that were run meanwhile, of `untimed` examples. `notes`: what of the step torch did not compile, or
    not once and for all.
    """

    def __init__(self, step: Step, batch_size: int) -> None:
        started = time.perf_counter()
        torch.compiler.reset()  # what an earlier fit of this process left would count towards the compiler's limits
        self.step, self.batch_size = copy.copy(step), batch_size
        self.steps = self.updates = self.untimed = 0
        self.notes: list[str] = []
        made = partial(
            CompiledFunction, count=lambda: f"{self.steps:,} steps", notes=self.notes, changes=self._uncaptured
        )
        self._compiled = made(step.forward, "step", "training")
        self.step.forward = self._forward  # type: ignore[method-assign]
        self._compiled_update = made(step.update, "optimizer's update", "optimizer's update", parts=True)
        self.step.update = self._update  # type: ignore[method-assign]
        # Loss scaling decides on the host whether a step counts, and accumulation when one ends: no graph holds that.
        whole = step.scaler is None and step.training.accumulate == 1
        self.captures = next(step.net.parameters()).is_cuda and whole
        if self.captures:
            count_on_device(step.optimizer)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.norm = self.step.gathering.norm  # the captured one
        self.graphs = compiled_graphs()
        self.seconds = time.perf_counter() - started  # the compiler's import

    @property
    def how(self) -> str:
        """What becomes of the step, in words."""
        if self.captures:
            return "the step is compiled, and captured as a CUDA graph"
        reason = ""
        if self.step.scaler is not None:
            reason = "; not captured: loss scaling decides on the host whether a step counts"
        elif self.step.training.accumulate > 1:
            reason = "; not captured: a step is of several batches"
        return f"the step is compiled{reason}"

    def takes(self, x: torch.Tensor) -> bool:
        """Whether this step is made for the batch."""
        return len(x) == self.batch_size

    def __call__(self, x: torch.Tensor, y: torch.Tensor, share: float | None = None, *, update: bool = True) -> Losses:
        """The same as Step's call, of which this is the compiled form."""
        self.steps += 1
        if self.graph is not None:
            return self._replay(x, y)
        if self.captures:
            return self._timed(self._beside if self.steps <= WARM_UP else self._capture, x, y)
        return self._timed(partial(self.step, share=share, update=update), x, y)

    def _forward(self, *given: Any, **named: Any) -> Any:
        """Forward pass and loss."""
        return self._compiled(*given, known=self.steps > 1, **named)

    def _update(self) -> None:
        """The optimizer's part. Its second time it may find its state made, and is compiled once more for that."""
        self.updates += 1
        self._compiled_update(known=self.updates > 2)

    def _timed(self, step: Callable[..., Losses], x: torch.Tensor, y: torch.Tensor) -> Losses:
        """A step, whose time counts as compilation where torch compiled or captured something of it."""
        before, started = compilations(), time.perf_counter()
        try:
            found = step(x, y)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise cannot_compile("step", error) from error
        except Stopped:
            drop_compilations()
            raise
        if compilations() > before or self.captures:
            if x.is_cuda:
                torch.cuda.synchronize(x.device)
            self.seconds += time.perf_counter() - started
            self.untimed += len(x)
        if self.steps == 1:
            check_compiled("step", self.graphs)
        return found

    def _uncaptured(self) -> str:
        """What changes from step to step, or what Python does between pieces, is not for a CUDA graph to keep."""
        captured, self.captures = self.captures, False
        return ", and not captured as a CUDA graph" if captured else ""

    def _note(self, text: str) -> None:
        self.notes.append(f"backend.compile: {text}")

    def _beside(self, x: torch.Tensor, y: torch.Tensor) -> Losses:
        """A step on a side stream, which a capture must be preceded by."""
        before = on_host(self.step.optimizer)
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            found = self.step(x, y)
        main.wait_stream(side)
        changed = [name for name, kept in on_host(self.step.optimizer).items() if kept != before.get(name, kept)]
        if changed:
            self.captures = False
            self._note(
                "the step is not captured as a CUDA graph: the optimizer keeps values on the host that change from "
                f"step to step: {', '.join(changed)}"
            )
        return found

    def _capture(self, x: torch.Tensor, y: torch.Tensor) -> Losses:
        """Record the step, which does not run by that, and run it: by the record, if the step is the same each time."""
        self.x, self.y = x.clone(), y.clone()
        self.step.optimizer.zero_grad()  # the graph's own gradients lie in its own memory
        graph = torch.cuda.CUDAGraph()
        # Only this thread must leave the device alone meanwhile: a loader's may be filling page-locked memory.
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.found = self.step(self.x, self.y)
        except RuntimeError as error:
            if "captur" not in str(error):  # as CUDA and torch say it of what waits for the device, and the like
                raise
            why = f"this step cannot be captured as a CUDA graph: {cut(str(error).splitlines()[0])}"
            raise RunError(f"backend.compile=true: {why}; use backend.compile=false") from error
        if not self.captures:  # torch has compiled it anew meanwhile
            del self.x, self.y, self.found
            return self.step(x, y)
        self.graph, self.norm = graph, self.step.gathering.norm
        return self._replay(x, y)

    def _replay(self, x: torch.Tensor, y: torch.Tensor) -> Losses:
        assert self.graph is not None
        with self.step.phase("graph"):
            self.x.copy_(x)
            self.y.copy_(y)
            self.graph.replay()
        self.step.gathering.norm = self.norm  # a smaller batch, which is not captured, leaves its own
        loss, scores = self.found
        return loss.clone(), scores.clone()


def on_host(optimizer: torch.optim.Optimizer) -> dict[str, list[float]]:
    """Numbers that an optimizer keeps on the host, by name: its own, of its groups and of its state."""
    found: dict[str, list[float]] = {}
    beside = {str(key): value for key, value in optimizer.state.items() if not isinstance(value, Mapping)}
    states = [state for state in optimizer.state.values() if isinstance(state, Mapping)]
    for kept in (vars(optimizer), *optimizer.param_groups, *states, beside):
        for name, value in kept.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                found.setdefault(name, []).append(float(value.double().sum()))
            elif isinstance(value, Real):
                found.setdefault(name, []).append(float(value))
    return found


def count_on_device(optimizer: torch.optim.Optimizer) -> None:
    """Move Adagrad's counters, which it makes on the host, to its weights' device: others are `make_capturable`'s."""
    if isinstance(optimizer, torch.optim.Adagrad):
        for parameter, state in optimizer.state.items():
            state["step"] = state["step"].to(parameter.device)


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer count its steps on the device; before its first step, when the counters are made."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True


def rate_as_tensor(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Keep the learning rate where a compiled update reads it anew: a number would be compiled in.

    A fused update on a GPU reads float32, and raises of float64.
    """
    for group in optimizer.param_groups:
        narrow = device.type == "cuda" and group.get("fused")
        dtype = torch.float32 if narrow else torch.float64
        group["lr"] = torch.as_tensor(group["lr"], dtype=dtype, device=device)
