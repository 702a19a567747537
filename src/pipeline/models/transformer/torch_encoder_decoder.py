"""Encoder and decoder in torch."""

from __future__ import annotations

import math

import torch
from torch import nn

from pipeline.models import PADDING
from pipeline.models.torch_quick import Dropout, Linear
from pipeline.models.transformer import Block, Stacks
from pipeline.models.transformer.torch_gpt import Table
from pipeline.models.transformer.torch_parts import Attention, ResidualBlock, norm


class EncoderDecoder(nn.Module):
    """Sources and the targets so far, side by side (N, S + T), to logits (N, T, V)."""

    def __init__(self, settings: Stacks, source: int, target: int, vocabulary: int) -> None:
        super().__init__()
        block, self.source, longest = settings.block, source, max(source, target)
        before = block.norm_place == "before"
        self.tokens = nn.Embedding(vocabulary, block.width)
        self.positions = Entering(settings, source, target)
        self.encoder = nn.ModuleList(EncoderBlock(settings.encoder_block, longest) for _ in range(settings.layers))
        self.encoder_norm = norm(block) if before else nn.Identity()
        self.decoder = nn.ModuleList(DecoderBlock(block, longest) for _ in range(settings.layers))
        self.norm = norm(block) if before else nn.Identity()
        self.logits = Linear(block.width, vocabulary, bias=False)
        self.dropout = Dropout(block.dropout) if block.dropout else nn.Identity()
        if settings.tied:
            self.logits.weight = self.tokens.weight

    def forward(self, x_NW: torch.Tensor) -> torch.Tensor:
        seen_N11S = (x_NW[:, : self.source] != PADDING)[:, None, None]
        source_NSD, target_NTD = map(self.dropout, self.positions(self.tokens(x_NW)))
        for block in self.encoder:
            source_NSD = block(source_NSD, seen_N11S)
        source_NSD = self.encoder_norm(source_NSD)
        for block in self.decoder:
            target_NTD = block(target_NTD, source_NSD, seen_N11S)
        logits_NTV: torch.Tensor = self.logits(self.norm(target_NTD))
        return logits_NTV


class Entering(nn.Module):
    """Embedded tokens (N, S + T, D), times the root of D (section 3.4), as source and target with positions."""

    def __init__(self, settings: Stacks, source: int, target: int) -> None:
        super().__init__()
        self.length, self.scale = source, math.sqrt(settings.block.width)
        self.source, self.target = (
            Table(settings.positions, length, settings.block.width) for length in (source, target)
        )

    def forward(self, h_NWD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h_NWD = self.scale * h_NWD
        return self.source(h_NWD[:, : self.length]), self.target(h_NWD[:, self.length :])


class EncoderBlock(ResidualBlock):
    """Attention among the tokens of a source that are not padding, and an MLP."""

    def forward(self, x_NSD: torch.Tensor, seen_N11S: torch.Tensor) -> torch.Tensor:
        x_NSD = self.added(x_NSD, lambda x: self.attention(x, seen=seen_N11S), self.attention_norm)
        return self.added(x_NSD, self.mlp, self.mlp_norm)


class DecoderBlock(ResidualBlock):
    """Attention to the target so far, then to the source, and an MLP."""

    def __init__(self, block: Block, length: int) -> None:
        super().__init__(block, length)
        self.cross_norm, self.cross = norm(block), Attention(block, length)

    def forward(self, x_NTD: torch.Tensor, source_NSD: torch.Tensor, seen_N11S: torch.Tensor) -> torch.Tensor:
        x_NTD = self.added(x_NTD, self.attention, self.attention_norm)
        x_NTD = self.added(x_NTD, lambda x: self.cross(x, source_NSD, seen_N11S), self.cross_norm)
        return self.added(x_NTD, self.mlp, self.mlp_norm)
