"""Layers that compute what torch's own do, quicker on a CPU. With torch's names: a layer is called what it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pipeline.machine.host import cpu

MKLS_MAKER = "GenuineIntel"  # as /proc/cpuinfo calls it
LARGE = 2**24  # multiply-adds from which another library's product gains (see docs/decisions.md, 2026-11-22)


def worth_onednn(multiply_adds: int) -> bool:
    """Whether a product of float32 on a CPU is quicker by oneDNN than by MKL, which torch asks."""
    return multiply_adds >= LARGE and onednn_is_quicker()


@cache
def onednn_is_quicker() -> bool:
    """MKL uses all vector instructions on its maker's processors alone (docs/decisions.md, 2026-11-25)."""
    return torch.backends.mkldnn.is_available() and cpu().get("vendor") != MKLS_MAKER


def plain_float32_on_cpu(x: torch.Tensor) -> bool:
    """Whether the layer computes in float32 on a CPU, and nobody rewrites it (autocast, a compiler, a trace)."""
    rewritten = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or traced()
    return x.device.type == "cpu" and x.dtype == torch.float32 and not rewritten


def traced() -> bool:
    """Whether torch traces the model to show its graph: it would warn of each choice that is made by a size."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


class Conv2d(nn.Conv2d):
    """torch's convolution, with the bias beside it: oneDNN is slow at a bias's gradient in channels-last memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None or not plain_float32_on_cpu(x):
            return super().forward(x)
        return self._conv_forward(x, self.weight, None).add_(self.bias[:, None, None])


class Linear(nn.Linear):
    """torch's Dense layer, by oneDNN where that is quicker: large products, and those of `by_onednn`."""

    by_onednn = False  # whatever the product's size, where no gradients are taken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.by_onednn and plain_float32_on_cpu(x) and not torch.is_grad_enabled():
            return onednn_product(x, self.weight, self.bias)
        return dense(x, self.weight, self.bias)


def dense(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + b: x (..., inputs), W (outputs, inputs), b (outputs,) or None."""
    if not (plain_float32_on_cpu(x) and worth_onednn(x.numel() * len(weight))):
        return functional.linear(x, weight, bias)
    found: torch.Tensor = OneDnnLinear.apply(x, weight, bias)
    return found


def at_once(layers: Sequence[nn.Linear], x: torch.Tensor) -> Sequence[torch.Tensor]:
    """What each of several Dense layers gives of the same x: of many rows by a single product.

    One after the other where somebody looks at, or changes, what a layer gives (a hook), and where dtypes differ.
    """
    large = x.numel() * sum(layer.out_features for layer in layers) >= LARGE
    alike = len({layer.weight.dtype for layer in layers}) == 1 and len({layer.bias is None for layer in layers}) == 1
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    if hooked or traced() or not (large and alike):
        return [layer(x) for layer in layers]
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return dense(x, weight, bias).split([layer.out_features for layer in layers], -1)


class OneDnnLinear(torch.autograd.Function):
    """x W^T + b by oneDNN, and its gradients: x (..., inputs), W (outputs, inputs), b (outputs,) or None."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            onednn_product(gradient, weight.T) if of_x else None,
            gradient_of_weight(rows, x.flatten(0, -2)) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def gradient_of_weight(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """(outputs, inputs) of a gradient (rows, outputs) and x (rows, inputs).

    oneDNN copies the gradient, turned: with more rows than inputs that costs more than its product gains.
    """
    return gradient.T @ x if len(x) > x.shape[1] else onednn_product(gradient.T, x.T)


def onednn_product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """a b^T + bias of float32 on a CPU: a (..., k), b (n, k), bias (n,).

    By the operation that torch's own compiler calls: no public one takes a tensor in memory as it lies.
    """
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return found


class Dropout(nn.Dropout):
    """torch's dropout, with a quicker mask on a CPU, where torch takes a sixth of the step of row B1 for its own.

    An element is kept or not by 8 random bits where they can say the rate, else by 16: the rate is then the nearest
    multiple of 1/65,536, at most 65,535 of them.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or x.device.type != "cpu":
            return super().forward(x)
        bits, drawn = (8, torch.int8) if (self.p * 2**8).is_integer() else (16, torch.int16)
        dropped = min(round(self.p * 2**bits), 2**bits - 1)
        words = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() * bits // 64),))  # several elements in each
        kept = words.view(drawn)[: x.numel()].view(x.shape) >= dropped - 2 ** (bits - 1)
        return x * (kept * torch.tensor(2**bits / (2**bits - dropped), dtype=x.dtype))
