"""Layers that compute what torch's own do, quicker on a CPU. With torch's names: a layer is called what it is."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

# Multiply-adds from which oneDNN's product, and taking its operands there and back, costs less than MKL's
# (see docs/decisions.md, 2026-11-22).
WORTH_ONEDNN = 2**24


def plain_float32_on_cpu(x: torch.Tensor) -> bool:
    """Whether the layer computes in float32 on a CPU, and nobody is about to rewrite it (autocast, a compiler)."""
    rewritten = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    return x.device.type == "cpu" and x.dtype == torch.float32 and not rewritten


class Conv2d(nn.Conv2d):
    """torch's convolution, with the bias beside it: oneDNN is slow at a bias's gradient in channels-last memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None or not plain_float32_on_cpu(x):
            return super().forward(x)
        return self._conv_forward(x, self.weight, None).add_(self.bias[:, None, None])


class Linear(nn.Linear):
    """torch's Dense layer, with large products by oneDNN: torch asks MKL, which on an AMD CPU takes twice the time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        worth = x.numel() * self.out_features >= WORTH_ONEDNN
        if not (worth and torch.backends.mkldnn.is_available() and plain_float32_on_cpu(x)):
            return super().forward(x)
        return functional.linear(x.to_mkldnn(), self.weight, self.bias).to_dense()


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
