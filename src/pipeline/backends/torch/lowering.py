"""A precision as torch runs it: what every forward pass, training or not, goes through."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from pipeline.machine.capability import Resolved
from pipeline.machine.precision import FORMATS, GROWTH_STEPS

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


class Lowering:
    """The dtypes of a precision on a device.

    `dtype`: of parameters and inputs; `numpy`: of inputs on the host, where NumPy has no narrow one. tf32 is fp32 with
    a runtime setting (settings.py).
    """

    def __init__(self, resolved: Resolved) -> None:
        form = FORMATS[resolved.precision]
        self.device = torch.device(resolved.place.torch)
        self.dtype: torch.dtype = getattr(torch, form.parameters)
        self.numpy = "float64" if form.parameters == "float64" else "float32"
        self.compute: torch.dtype = getattr(torch, form.compute)
        self.scales_loss = form.loss_scaling

    def forward(self) -> contextlib.AbstractContextManager[None]:
        """Round a forward pass and its loss: autocast where products are narrower than the parameters.

        Without autocast's cache, which would keep the narrow copies of weights beyond an update. Where the parameters
        are not float32, tensors that a model makes on its way have their dtype by default.
        """
        if self.compute != self.dtype:
            return torch.autocast(self.device.type, self.compute, cache_enabled=False)
        return self.defaults()

    def defaults(self) -> contextlib.AbstractContextManager[None]:
        """Round what makes tensors of no stated dtype: they have the parameters'."""
        return contextlib.nullcontext() if self.dtype == torch.float32 else _default_dtype(self.dtype)

    def entered(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs on the device: real numbers in the parameters' dtype, tokens as they are."""
        return x.to(self.device, self.dtype if x.is_floating_point() else None, non_blocking=True)

    def scaler(self, experiment: Experiment) -> torch.amp.GradScaler | None:
        """What scales the loss, where the precision needs that."""
        if not self.scales_loss:
            return None
        scale = experiment.precision.loss_scale
        return torch.amp.GradScaler(self.device.type, scale, growth_interval=GROWTH_STEPS)

    def moved(self, net: torch.nn.Module) -> torch.nn.Module:
        """The net in the parameters' dtype; as built it is float32, but for layers with dtypes of their own."""
        return net if self.dtype == torch.float32 else net.to(self.dtype)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
