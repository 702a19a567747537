"""The whole decoder in torch."""

from __future__ import annotations

import torch
from torch import nn

from pipeline.models.torch_quick import Dropout, Linear
from pipeline.models.transformer import Decoder, positions
from pipeline.models.transformer.torch_parts import TransformerBlock, norm
from pipeline.models.weights import EMBEDDING_DEVIATION


class Gpt(nn.Module):
    """Tokens (B, T) to logits (B, T, V)."""

    def __init__(self, settings: Decoder, length: int, vocabulary: int) -> None:
        super().__init__()
        block, self.cap = settings.block, settings.soft_cap
        self.tokens = nn.Embedding(vocabulary, block.width)
        self.positions = Table(settings.positions, length, block.width)
        self.dropout = Dropout(block.dropout) if block.dropout else nn.Identity()
        self.blocks = nn.ModuleList(TransformerBlock(block, length) for _ in range(settings.layers))
        self.norm = norm(block) if block.norm_place == "before" else nn.Identity()
        self.logits = Linear(block.width, vocabulary, bias=False)
        if settings.tied:
            self.logits.weight = self.tokens.weight

    def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
        h_BTD = self.dropout(self.positions(self.tokens(x_BT)))
        for block in self.blocks:
            h_BTD = block(h_BTD)
        logits_BTV: torch.Tensor = self.logits(self.norm(h_BTD))
        return logits_BTV if self.cap is None else self.cap * torch.tanh(logits_BTV / self.cap)


class Table(nn.Module):
    """Adds positions (T, D): learned ones, a learned direction times t / T, or waves; for other kinds nothing."""

    def __init__(self, kind: str, length: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        if kind in ("learned", "linear"):
            shape = (length, width) if kind == "learned" else (width,)
            self.embeddings = nn.Parameter(nn.init.normal_(torch.empty(shape), std=EMBEDDING_DEVIATION))
        table = {"linear": positions.linear(length), "sinusoidal": positions.sinusoidal(length, width)}.get(kind)
        kept = None if table is None else torch.from_numpy(table).to(torch.get_default_dtype())
        self.register_buffer("table", kept, persistent=False)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        length = x_BTD.shape[1]
        if self.kind == "learned":
            return x_BTD + self.embeddings[:length]
        if self.kind == "linear":
            return x_BTD + self.get_buffer("table")[:length] * self.embeddings
        return x_BTD + self.get_buffer("table")[:length] if self.kind == "sinusoidal" else x_BTD
