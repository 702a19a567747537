"""The parts of a transformer in torch. Imported only by a model's torch builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipeline.models.torch_quick import Dropout, Linear, at_once
from pipeline.models.transformer import EPSILON, Block, positions
from pipeline.models.transformer.torch_past import Past


class Tables(nn.Module):
    """Holds float64 tables as buffers that are rounded once, to the dtype in which the net computes in the end."""

    def __init__(self, **tables: np.ndarray) -> None:
        super().__init__()
        self.exact = tables
        for name, table in tables.items():
            self.register_buffer(name, torch.from_numpy(table).to(torch.get_default_dtype()), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Tables:
        super()._apply(fn, recurse)
        for name, table in self.exact.items():  # a net is built in float32 and then moved to float64
            self.register_buffer(name, torch.from_numpy(table).to(self.get_buffer(name)), persistent=False)
        return self


class Rotary(Tables):
    """Turns queries and keys by their positions."""

    def __init__(self, length: int, head: int) -> None:
        cosines, sines = positions.rotary(length, head)
        super().__init__(cosines=cosines, sines=sines)

    def forward(self, x_BHTK: torch.Tensor, at_BT: torch.Tensor | None = None) -> torch.Tensor:
        """`at`: the positions (None: 0 to T - 1)."""
        tables = (getattr(self, name) for name in ("cosines", "sines"))
        rows = slice(x_BHTK.shape[-2]) if at_BT is None else at_BT[:, None]
        cosines, sines = (table[rows].to(x_BHTK.dtype) for table in tables)
        first, second = x_BHTK.chunk(2, -1)
        turned: torch.Tensor = x_BHTK * cosines + torch.cat([-second, first], -1) * sines
        return turned


class Attention(nn.Module):
    """Several heads of softmax(Q K^T / sqrt(K)) V, by torch's fused operation."""

    def __init__(self, block: Block, length: int) -> None:
        super().__init__()
        self.block = block
        shared = block.key_heads * block.head
        self.query = Linear(block.width, block.width, bias=block.bias)
        self.key = Linear(block.width, shared, bias=block.bias)
        self.value = Linear(block.width, shared, bias=block.bias)
        self.output = Linear(block.width, block.width, bias=block.bias)
        self.turn = Rotary(length, block.head) if block.rotary else None

    def forward(
        self,
        x_BTD: torch.Tensor,
        other_BSD: torch.Tensor | None = None,
        seen: torch.Tensor | None = None,
        past: Past | None = None,
    ) -> torch.Tensor:
        """Of x to `other` (None: to itself). `seen`: (..., T, S), in the place of the causal order.

        `past`: keys and values of what came before x.
        """
        query, key, value = map(self._heads, self._projected(x_BTD, other_BSD))
        if self.block.normed_heads:
            query, key = (functional.rms_norm(one, (self.block.head,), eps=EPSILON) for one in (query, key))
        if self.turn is not None:
            at = None if past is None else past.at_BT
            query, key = self.turn(query, at), self.turn(key, at)
        if past is not None:
            key, value, seen = past.joined(key, value)
        later = past is not None and past.at_BT is not None  # a token behind all those that it may look at
        found_BHTK = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=seen,
            is_causal=self.block.causal and seen is None and other_BSD is None and not later,
            enable_gqa=self.block.key_heads != self.block.heads,
        )
        merged: torch.Tensor = self.output(found_BHTK.transpose(1, 2).flatten(2))
        return merged

    def _projected(self, x_BTD: torch.Tensor, other_BSD: torch.Tensor | None) -> Sequence[torch.Tensor]:
        if other_BSD is None:
            return at_once((self.query, self.key, self.value), x_BTD)
        return [self.query(x_BTD), *at_once((self.key, self.value), other_BSD)]

    def _heads(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD.unflatten(-1, (-1, self.block.head)).transpose(1, 2)


class Mlp(nn.Module):
    """What follows attention at every position by itself."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.activation = block.activation
        self.inner = Linear(block.width, block.hidden, bias=block.bias)
        if block.activation == "swiglu":
            self.gate = Linear(block.width, block.hidden, bias=block.bias)
        self.outer = Linear(block.hidden, block.width, bias=block.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(x)
        if self.activation == "gelu":
            inner = functional.gelu(inner)
        elif self.activation == "relu2":
            inner = functional.relu(inner).square()
        else:
            inner = functional.silu(inner) * self.gate(x)
        found: torch.Tensor = self.outer(inner)
        return found


class ResidualBlock(nn.Module):
    """What the blocks share: self-attention and an MLP, and how a part is added to what came in."""

    def __init__(self, block: Block, length: int) -> None:
        super().__init__()
        self.before = block.norm_place == "before"
        self.attention_norm, self.mlp_norm = norm(block), norm(block)
        self.attention, self.mlp = Attention(block, length), Mlp(block)
        self.dropout = Dropout(block.dropout) if block.dropout else nn.Identity()

    def added(
        self, x: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor], normalised: nn.Module
    ) -> torch.Tensor:
        """x + part(norm(x)), or norm(x + part(x))."""
        if self.before:
            return x + self.dropout(part(normalised(x)))
        found: torch.Tensor = normalised(x + self.dropout(part(x)))
        return found


class TransformerBlock(ResidualBlock):
    """Attention and an MLP, each added to what came in."""

    def __init__(self, block: Block, length: int) -> None:
        super().__init__(block, length)
        self.recompute = block.recompute

    def forward(self, x_BTD: torch.Tensor, past: Past | None = None) -> torch.Tensor:
        if self.recompute and past is None and torch.is_grad_enabled():
            random = isinstance(self.dropout, nn.Dropout)  # whose masks are drawn again from the generator's old state
            found: torch.Tensor = checkpoint(self._of, x_BTD, use_reentrant=False, preserve_rng_state=random)
            return found
        return self._of(x_BTD, past)

    def _of(self, x_BTD: torch.Tensor, past: Past | None = None) -> torch.Tensor:
        x_BTD = self.added(x_BTD, lambda x: self.attention(x, past=past), self.attention_norm)
        return self.added(x_BTD, self.mlp, self.mlp_norm)


class RMSNorm(nn.RMSNorm):
    """torch's, whose weight is a `gamma` among the common names."""


def norm(block: Block) -> nn.Module:
    """A norm over the width."""
    if block.norm == "rms":
        return RMSNorm(block.width, eps=EPSILON)
    return nn.LayerNorm(block.width, eps=EPSILON, bias=block.bias)
