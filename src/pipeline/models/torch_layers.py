"""The few torch modules that the models share. Imported only by a model's torch builder."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from pipeline.models.torch_quick import Conv2d, Dropout, Linear

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
}


class ChannelsFirst(nn.Module):
    """(N, H, W, C) to (N, C, H, W) as a view: the memory stays channels-last, which convolutions run fastest on."""

    def forward(self, x_NHWC: torch.Tensor) -> torch.Tensor:
        return x_NHWC.permute(0, 3, 1, 2)


class FlattenChannelsLast(nn.Module):
    """(N, C, H, W) to (N, H*W*C), in the order in which Keras flattens (N, H, W, C)."""

    def forward(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        return x_NCHW.permute(0, 2, 3, 1).flatten(1)


class Cast(nn.Module):
    """To another dtype: what Keras does at the input of a layer with its own dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = getattr(torch, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


def convolution(inputs: int, filters: int, kernel_size: int, padding: str = "valid") -> nn.Module:
    """A convolution; "same" keeps the image's size. torch warns that an even kernel then copies its input: it may."""
    warnings.filterwarnings("ignore", message="Using padding='same' with even kernel lengths")
    return Conv2d(inputs, filters, kernel_size, padding=padding)


def activation(name: str, *, in_place: bool = False) -> nn.Module:
    """The module of an activation's name.

    `in_place`: a ReLU overwrites its input, which is right where nothing else needs that: behind a Dense layer, a
    convolution or a pool.
    """
    return nn.ReLU(inplace=True) if name == "relu" and in_place else ACTIVATIONS[name]()


def dropout(rate: float) -> list[nn.Module]:
    """A dropout layer, or nothing for a rate of zero."""
    return [Dropout(rate)] if rate else []


def dense(inputs: int, units: int, dtype: str | None = None) -> list[nn.Module]:
    """A Dense layer, in its own dtype where one is given."""
    if dtype is None:
        return [Linear(inputs, units)]
    return [Cast(dtype), Linear(inputs, units, dtype=getattr(torch, dtype))]
