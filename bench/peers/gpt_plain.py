"""A small GPT with nothing round it, as nanoGPT's configurations (github.com/karpathy/nanoGPT) train it.

Tokens in memory, fused attention, AdamW whose weight decay is for matrices, a clipped norm, a warm-up and a cosine; on
a GPU compiled, in bfloat16 by autocast. Arguments: steps, the seed (0), and `cpu` (the default) or `a100`.
The clock runs over the steps after the first twenty, without validations. With several validations, the loss is the
lowest, and the seconds those until then.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from dataclasses import dataclass
from statistics import fmean as mean

import numpy as np
import torch
from corpus import load, sequences
from torch import nn
from torch.nn import functional

WARM_UP, LOWEST, HIGHEST = 100, 1e-4, 1e-3
UNTIMED = 20


@dataclass(frozen=True)
class Settings:
    """`every`: steps between validations (None: one at the end)."""

    context: int
    batch: int
    layers: int
    heads: int
    width: int
    dropout: float = 0.0
    every: int | None = None


KNOWN = {
    "cpu": Settings(context=64, batch=12, layers=4, heads=4, width=128),
    "a100": Settings(context=256, batch=64, layers=6, heads=6, width=384, dropout=0.2, every=250),
}


class Block(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width, self.heads, self.rate = settings.width, settings.heads, settings.dropout
        self.before_attention, self.before_mlp = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.mixed = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(self.rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        x = x + self.dropout(self.mixed(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.narrow(functional.gelu(self.wide(self.before_mlp(x)))))


class Gpt(nn.Module):
    def __init__(self, settings: Settings, vocabulary: int) -> None:
        super().__init__()
        width = settings.width
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(settings.context, width)
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.Sequential(*(Block(settings) for _ in range(settings.layers)))
        self.last = nn.LayerNorm(width, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:  # what a block adds begins smaller
                std = 0.02 / math.sqrt(2 * settings.layers) if "mixed" in name or "narrow" in name else 0.02
                nn.init.normal_(weight, std=std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.tokens(x) + self.positions.weight[: x.shape[1]])
        return functional.linear(self.last(self.blocks(hidden)), self.tokens.weight)


def rate(step: int, steps: int) -> float:
    if step < WARM_UP:
        return HIGHEST * (step + 1) / (WARM_UP + 1)
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return LOWEST + 0.5 * (1 + math.cos(math.pi * done)) * (HIGHEST - LOWEST)


def main(settings: Settings, steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    torch.set_float32_matmul_precision("high" if on_gpu else "highest")
    corpus = load(settings.context)
    text = torch.from_numpy(corpus.training).to(device)
    model = Gpt(settings, len(corpus.lengths)).to(device)
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    vectors = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=HIGHEST, betas=(0.9, 0.99), fused=on_gpu)
    forward = torch.compile(model) if on_gpu else model
    half = torch.autocast("cuda", torch.bfloat16) if on_gpu else contextlib.nullcontext()
    best, seconds, started = (math.inf, math.inf), 0.0, math.inf
    for step in range(steps):
        if step == UNTIMED:
            started = now(device)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        first = torch.randint(len(text) - settings.context, (settings.batch,), device=device)
        window = text[first[:, None] + torch.arange(settings.context + 1, device=device)]
        with half:
            logits = forward(window[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last = step == steps - 1
        if last or (settings.every and step > UNTIMED and (step + 1) % settings.every == 0):
            seconds += now(device) - started
            best = min(best, (mean(losses_of(model, settings, corpus.validation)), seconds))
            started = now(device)
    whole = (steps - UNTIMED) * settings.batch * settings.context
    bytes_of_test = int(corpus.lengths[sequences(corpus.test, settings.context)[1]].sum())
    found = {
        "tokens_per_s": whole / seconds,
        "validation_loss": best[0],
        "bits_per_byte": sum(losses_of(model, settings, corpus.test)) / math.log(2) / bytes_of_test,
        "seconds": best[1],
    }
    print(json.dumps(found))


def now(device: torch.device) -> float:
    """Seconds, when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def losses_of(model: Gpt, settings: Settings, stream: np.ndarray) -> list[float]:
    """Nats of every token of a split, cut as the pipeline cuts it."""
    model.eval()
    device = next(model.parameters()).device
    x, y = map(torch.from_numpy, sequences(stream, settings.context))
    found: list[float] = []
    for rows, wanted in zip(x.split(100), y.split(100), strict=True):
        logits, targets = model(rows.to(device)).flatten(0, 1), wanted.flatten().to(device)
        found += functional.cross_entropy(logits, targets, reduction="none").tolist()
    model.train()
    return found


arguments = sys.argv[1:]
main(KNOWN[arguments[2] if len(arguments) > 2 else "cpu"], int(arguments[0]), int(arguments[1]) if arguments[1:] else 0)
