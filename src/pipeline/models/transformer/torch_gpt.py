"""The whole decoder in torch."""

from __future__ import annotations

import torch
from torch import nn

from pipeline.models.torch_quick import Dropout, Linear
from pipeline.models.transformer import Decoder, positions
from pipeline.models.transformer.torch_parts import Tables, TransformerBlock, norm
from pipeline.models.transformer.torch_past import Now, Past
from pipeline.models.weights import EMBEDDING_DEVIATION


class Gpt(nn.Module):
    """Tokens (B, T) to logits (B, T, V)."""

    def __init__(self, settings: Decoder, length: int, vocabulary: int) -> None:
        super().__init__()
        block, self.cap, self.length = settings.block, settings.soft_cap, length
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
        return self.logits_of(h_BTD)

    def logits_of(self, h_BTD: torch.Tensor) -> torch.Tensor:
        """What comes after the blocks."""
        logits_BTV: torch.Tensor = self.logits(self.norm(h_BTD))
        return logits_BTV if self.cap is None else self.cap * torch.tanh(logits_BTV / self.cap)


class Cached:
    """A Gpt that keeps the keys and values of what it has seen (pipeline.models.cached). A cache: a Past a block."""

    def __init__(self, net: Gpt) -> None:
        self.net = net

    def prefill(self, tokens_BT: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, list[Past]]:
        """Logits (B, V) after each row's last token, and the cache."""
        now = Now()
        past = [Past(now, self.net.length) for _ in self.net.blocks]
        h_BTD = self._hidden(tokens_BT, past)
        last = h_BTD[torch.arange(len(h_BTD)), lengths_B - 1]
        return self.net.logits_of(last), past

    def step(self, tokens_B: torch.Tensor, at_B: torch.Tensor, past: list[Past]) -> tuple[torch.Tensor, list[Past]]:
        """Logits (B, V) after one token more a row, the one at position `at`."""
        past[0].now.go_to(at_B, tokens_B.device)
        return self.net.logits_of(self._hidden(tokens_B[:, None], past)[:, 0]), past

    def _hidden(self, tokens_BT: torch.Tensor, past: list[Past]) -> torch.Tensor:
        h_BTD: torch.Tensor = self.net.positions(self.net.tokens(tokens_BT), past[0].at_BT)
        for block, one in zip(self.net.blocks, past, strict=True):
            h_BTD = block(h_BTD, one)
        return h_BTD


class Table(Tables):
    """Adds positions (T, D): learned ones, a learned direction times t / T, or waves; for other kinds nothing."""

    def __init__(self, kind: str, length: int, width: int) -> None:
        table = {"linear": positions.linear(length), "sinusoidal": positions.sinusoidal(length, width)}.get(kind)
        super().__init__(**({} if table is None else {"table": table}))
        self.kind = kind
        if kind in ("learned", "linear"):
            shape = (length, width) if kind == "learned" else (width,)
            self.embeddings = nn.Parameter(nn.init.normal_(torch.empty(shape), std=EMBEDDING_DEVIATION))

    def forward(self, x_BTD: torch.Tensor, at_BT: torch.Tensor | None = None) -> torch.Tensor:
        """`at`: the positions (None: 0 to T - 1)."""
        rows = slice(x_BTD.shape[1]) if at_BT is None else at_BT
        if self.kind == "learned":
            return x_BTD + self.embeddings[rows]
        if self.kind == "linear":
            return x_BTD + self.get_buffer("table")[rows] * self.embeddings
        return x_BTD + self.get_buffer("table")[rows] if self.kind == "sinusoidal" else x_BTD
