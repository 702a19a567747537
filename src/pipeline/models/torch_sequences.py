"""Recurrent units and causal convolutions over tokens in torch. Imported only by a model's torch builder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional


def token_stack(vocabulary: int, width: int, layers: Mapping[str, nn.Module]) -> nn.Sequential:
    """Tokens (B, T) to logits (B, T, V): embeddings, `layers` from (B, T, width) to the same by name, and a kernel."""
    tokens, logits = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
    return nn.Sequential(OrderedDict({"tokens": tokens, **layers, "logits": logits}))


class Cell(nn.Module):
    """The weights of a layer of units as Keras has them: the columns are those of the gates z, r and of the candidate.

    `bias`: of the inputs and of the state.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kernel, self.recurrent_kernel = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, 3 * width))) for _ in range(2)
        )
        self.bias = nn.Parameter(torch.zeros(2, 3 * width))

    def for_torch(self) -> list[torch.Tensor]:
        """Kernels (3U, in) and (3U, U) and two biases, in torch's order of the gates: r, z."""
        turned = []
        for weight in (self.kernel, self.recurrent_kernel, self.bias):
            z, r, candidate = weight.chunk(3, -1)
            turned.append(torch.cat([r, z, candidate], -1))
        return [turned[0].T, turned[1].T, *turned[2].unbind()]


class GruLayer(nn.Module):
    """(B, T, U) to the states (B, T, U) of gated recurrent units, by torch's own operation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru_cell = Cell(width)

    def forward(self, x_BTU: torch.Tensor) -> torch.Tensor:
        first = x_BTU.new_zeros(1, x_BTU.shape[0], x_BTU.shape[2])
        weights = self.gru_cell.for_torch()
        states_BTU: torch.Tensor
        states_BTU, _ = torch.gru(x_BTU, first, weights, True, 1, 0.0, self.training, False, True)
        return states_BTU


class Convolution(nn.Conv1d):
    """(B, T, C) to (B, T, C): x + GELU(a causal convolution of x)."""

    def __init__(self, width: int, size: int, apart: int) -> None:
        super().__init__(width, width, size, dilation=apart)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        before = (self.kernel_size[0] - 1) * self.dilation[0]
        found_BCT = super().forward(functional.pad(x_BTC.transpose(1, 2), (before, 0)))
        return x_BTC + functional.gelu(found_BCT).transpose(1, 2)
