"""The encoder of images in torch."""

from __future__ import annotations

import torch
from torch import nn

from pipeline.models.torch_quick import Dropout, Linear
from pipeline.models.transformer import Encoder
from pipeline.models.transformer.torch_gpt import Table
from pipeline.models.transformer.torch_parts import TransformerBlock, norm


class Vit(nn.Module):
    """Images (N, H, W, C) to logits (N, classes)."""

    def __init__(self, settings: Encoder, image: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        block, self.patch = settings.block, settings.patch
        height, width, channels = image
        count = (height // self.patch) * (width // self.patch)
        self.patches = Linear(self.patch * self.patch * channels, block.width)
        self.positions = Table("learned", count, block.width)
        self.dropout = Dropout(block.dropout) if block.dropout else nn.Identity()
        self.blocks = nn.ModuleList(TransformerBlock(block, count) for _ in range(settings.layers))
        self.norm = norm(block)
        self.logits = Linear(block.width, classes)

    def forward(self, x_NHWC: torch.Tensor) -> torch.Tensor:
        h_NTD = self.dropout(self.positions(self.patches(patched(x_NHWC, self.patch))))
        for block in self.blocks:
            h_NTD = block(h_NTD)
        logits: torch.Tensor = self.logits(self.norm(h_NTD).mean(1))
        return logits


def patched(x_NHWC: torch.Tensor, patch: int) -> torch.Tensor:
    """(N, T, patch * patch * C): the patches row by row, and the pixels of each row by row."""
    rows = x_NHWC.unflatten(2, (-1, patch)).unflatten(1, (-1, patch))  # N, H / P, P, W / P, P, C
    return rows.transpose(2, 3).flatten(3).flatten(1, 2)
