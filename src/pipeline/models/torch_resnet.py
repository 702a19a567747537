"""The residual net in torch. Imported only by its model's torch builder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from pipeline.models.torch_layers import ChannelsFirst
from pipeline.models.torch_quick import Linear


class Normed(nn.Module):
    """A 3x3 convolution without a bias that keeps the image's size (but for its stride), normalised over the batch."""

    def __init__(self, inputs: int, filters: int, stride: int, momentum: float, epsilon: float) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(filters, epsilon, 1 - momentum)

    def forward(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.convolution(x_NCHW))
        return found


class ResidualBlock(nn.Module):
    """relu(x + what two convolutions make of x); x enters at the block's stride, with channels of zeros added."""

    def __init__(self, inputs: int, filters: int, stride: int, momentum: float, epsilon: float) -> None:
        super().__init__()
        self.stride, self.more = stride, filters - inputs
        self.first = Normed(inputs, filters, stride, momentum, epsilon)
        self.second = Normed(filters, filters, 1, momentum, epsilon)

    def forward(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        found = self.second(functional.relu_(self.first(x_NCHW)))
        return functional.relu_(found + self.shortcut(x_NCHW))

    def shortcut(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        """x as it is added: every `stride`-th row and column."""
        seen = x_NCHW if self.stride == 1 else x_NCHW[:, :, :: self.stride, :: self.stride]
        return functional.pad(seen, (0, 0, 0, 0, 0, self.more)) if self.more else seen


class Resnet(nn.Module):
    """Images (N, H, W, C) to logits (N, classes)."""

    def __init__(
        self, stages: Sequence[Sequence[tuple[int, int]]], channels: int, classes: int, momentum: float, epsilon: float
    ) -> None:
        super().__init__()
        inputs = stages[0][0][0]
        self.channels_first, self.first = ChannelsFirst(), Normed(channels, inputs, 1, momentum, epsilon)
        self.stages = nn.ModuleList()
        for stage in stages:
            blocks = nn.Sequential()
            for filters, stride in stage:
                blocks.append(ResidualBlock(inputs, filters, stride, momentum, epsilon))
                inputs = filters
            self.stages.append(blocks)
        self.logits = Linear(inputs, classes)

    def forward(self, x_NHWC: torch.Tensor) -> torch.Tensor:
        h_NCHW = functional.relu_(self.first(self.channels_first(x_NHWC)))
        for stage in self.stages:
            h_NCHW = stage(h_NCHW)
        found: torch.Tensor = self.logits(h_NCHW.mean((2, 3)))
        return found
