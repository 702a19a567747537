"""What each ingredient of experiment=gpt_fast gains: one left out at a time, over the same seeds.

Losses are compared by the byte of the test text, since one of the sides has other tokens. Steps and tokens a step are
the same, so that `seconds` (of the training) say what an ingredient costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count

from bench.measure import Side, alternate, figure_rows, pipeline, row

ROUNDS = 5  # each with another seed
WORDS = ("experiment=gpt_fast", "stage.baselines=false", "stage.attention=false", "tracking=none")
LEFT_OUT = {
    "characters in place of byte pairs": ("dataset.tokens=characters",),
    "Muon in place of AdamW": ("optimizer=muon_text", "optimizer.learning_rate=0.02"),
    "learned positions in place of rotary": ("model.positions=learned",),
    "a norm of queries and keys": ("model.normed_heads=true",),
    "projections that do not begin at zero": ("model.zero_projections=false",),
    "GELU in place of squared ReLU": ("model.activation=gelu",),
    "LayerNorm in place of RMSNorm": ("model.norm=layer",),
    "a learning rate of 0.001, as nanoGPT's, in place of 0.004": ("optimizer.learning_rate=0.001",),
    "nanoGPT's settings": (
        *("optimizer.learning_rate=0.001", "dataset.tokens=characters", "model.positions=learned"),
        *("model.zero_projections=false", "model.activation=gelu", "model.norm=layer"),
    ),
}


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table."""
    whole = side("experiment=gpt_fast")
    others = [side(name, *words) for name, words in LEFT_OUT.items()]
    alternate([whole, *others], rounds, uncounted=0)
    rows = figure_rows([whole, *others], "bits_per_byte", "bits/byte")
    for one in others:
        pairs = zip(one.values("bits_per_byte"), whole.values("bits_per_byte"), strict=True)
        rows.append(row(f"{one.name}: more", [without - bits for without, bits in pairs], "bits/byte"))
    return [*rows, *figure_rows([whole, *others], "seconds", "s")]


def side(name: str, *words: str) -> Side:
    """Trains once for each round, with seeds 0, 1, 2, ..."""
    return Side(name, partial(trained, words, count()))


def trained(words: tuple[str, ...], seeds: count[int]) -> Mapping[str, float]:
    """Bits per byte of the test text, and the training's seconds."""
    found = pipeline(*WORDS, *words, f"seed={next(seeds)}")
    return {"bits_per_byte": found["test/bits_per_byte"], "seconds": found["receipt"]["training_s"]}
