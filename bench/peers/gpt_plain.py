"""A small GPT with nothing round it, as nanoGPT's configuration for a CPU (github.com/karpathy/nanoGPT) trains it.

Tokens in memory, fused attention, AdamW whose weight decay is for matrices, a clipped norm, a warm-up and a cosine.
Arguments: steps, and the seed (0). The clock runs over the steps after the first twenty.
"""

from __future__ import annotations

import json
import math
import sys
import time
from statistics import fmean as mean

import numpy as np
import torch
from corpus import CONTEXT, load, sequences
from torch import nn
from torch.nn import functional

BATCH, LAYERS, HEADS, WIDTH = 12, 4, 4, 128
WARM_UP, LOWEST, HIGHEST = 100, 1e-4, 1e-3
UNTIMED = 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.mixed = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(functional.gelu(self.wide(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:  # what a block adds begins smaller
                std = 0.02 / math.sqrt(2 * LAYERS) if "mixed" in name or "narrow" in name else 0.02
                nn.init.normal_(weight, std=std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(x) + self.positions.weight[: x.shape[1]]
        return functional.linear(self.last(self.blocks(hidden)), self.tokens.weight)


def rate(step: int, steps: int) -> float:
    if step < WARM_UP:
        return HIGHEST * (step + 1) / (WARM_UP + 1)
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return LOWEST + 0.5 * (1 + math.cos(math.pi * done)) * (HIGHEST - LOWEST)


def main(steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    corpus = load()
    text = torch.from_numpy(corpus.training)
    model = Gpt(len(corpus.lengths))
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    vectors = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=HIGHEST, betas=(0.9, 0.99))
    for step in range(steps):
        if step == UNTIMED:
            started = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        first = torch.randint(len(text) - CONTEXT, (BATCH,))
        window = text[first[:, None] + torch.arange(CONTEXT + 1)]
        logits = model(window[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = time.perf_counter() - started
    bytes_of_test = int(corpus.lengths[sequences(corpus.test)[1]].sum())
    found = {
        "tokens_per_s": (steps - UNTIMED) * BATCH * CONTEXT / seconds,
        "validation_loss": mean(losses_of(model, corpus.validation)),
        "bits_per_byte": sum(losses_of(model, corpus.test)) / math.log(2) / bytes_of_test,
        "seconds": seconds,
    }
    print(json.dumps(found))


@torch.no_grad()
def losses_of(model: Gpt, stream: np.ndarray) -> list[float]:
    """Nats of every token of a split, cut as the pipeline cuts it."""
    x, y = map(torch.from_numpy, sequences(stream))
    found: list[float] = []
    for rows, wanted in zip(x.split(100), y.split(100), strict=True):
        found += functional.cross_entropy(model(rows).flatten(0, 1), wanted.flatten(), reduction="none").tolist()
    return found


main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
