"""Generates with and without a cache in one framework, and brings back how much that differs.

python tests/in_generation.py <backend> <file>      what test_generation.py starts for the frameworks of Keras
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from in_backend import experiment

from pipeline.backends.shared.generation import Steps, Uncached, generate
from pipeline.backends.shared.sampling import Sampling
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.models import Shapes, weights
from pipeline.models.transformer import reference
from pipeline.runs.weights import Weights

VOCABULARY, CONTEXT, MADE = 19, 12, 20
SHAPES = Shapes((CONTEXT,), (CONTEXT, VOCABULARY), vocabulary=VOCABULARY)
KINDS: dict[str, dict[str, Any]] = {
    "as it ships": {},
    "Llama's": {"positions": "rotary", "key_heads": 2, "norm": "rms", "activation": "swiglu", "tied": True},
    "speed-run": {"positions": "rotary", "activation": "relu2", "normed_heads": True, "soft_cap": 3.0, "norm": "rms"},
    "of 2017": {"positions": "sinusoidal", "norm_place": "after", "bias": True, "dropout": 0.5},
    "linear": {"positions": "linear", "norm_place": "after", "norm": "rms"},
    "none": {"positions": "none", "key_heads": 1},
}
LENGTHS = (2, 5, 3, CONTEXT)  # of the prompts; the last fills the context
GREEDY, SEEDED = Sampling(temperature=0), Sampling(temperature=1.5, top_k=12, top_p=0.95, seed=3)


@dataclass
class Compared:
    """One kind of model. Differences are the largest of logits, in float64."""

    from_uncached: float
    from_alone: float  # each prompt by itself
    from_formulas: float  # reference.py, over the tokens that came out
    same_tokens: bool
    same_alone: bool
    moved: int


def main(backend: str, file: Path) -> None:
    """Write all kinds of `compared`."""
    file.write_text(json.dumps({name: asdict(compared(backend, kind)) for name, kind in KINDS.items()}))


def compared(backend: str, settings: dict[str, Any]) -> Compared:
    """Cached against uncached, alone and the formulas, greedy and seeded."""
    model = ("gpt", {**settings, "layers": 2, "heads": 4, "width": 32})
    node: Any = {"backend": ("torch", {"threads": 1})} if backend == "torch" else {}  # two wait on a busy machine
    of = experiment(backend, stage="train", dataset="moby_dick", model=model, precision="fp64", **node)
    resolved = Resolved(Place("cpu"), "fp64", "", "")
    loaded = of.backend.load()
    module = importlib.import_module(f"pipeline.backends.{of.backend.builder}.generate")
    values = random_weights(of)
    predict = loaded.predictor(of, SHAPES, values, resolved)
    steps, uncached = module.Steps(of, SHAPES, values, resolved), Uncached(predict, CONTEXT, CONTEXT)
    generator = np.random.default_rng(2)
    prompts = [generator.integers(0, VOCABULARY, length) for length in LENGTHS]
    found = Compared(0, 0, 0, True, True, 0)
    for sampling in (GREEDY, SEEDED):
        tokens, logits, moved = made(steps, prompts, sampling)
        others, expected, _ = made(uncached, prompts, sampling)
        found.same_tokens &= tokens == others
        found.from_uncached = max(found.from_uncached, float(np.abs(logits - expected).max()))
        found.moved = max(moved)
        found.from_formulas = max(found.from_formulas, _from_formulas(of.model, values, tokens, logits))
    one = prompts[:1]  # the first row draws the same numbers in every batch
    for sampling in (GREEDY, SEEDED):
        tokens, logits, _ = made(steps, prompts, sampling)
        alone, expected, _ = made(steps, one, sampling)
        found.same_alone &= tokens[:1] == alone
        found.from_alone = max(found.from_alone, float(np.abs(logits[:, :1] - expected).max()))
    return found


def made(
    steps: Steps, prompts: list[np.ndarray], sampling: Sampling, count: int = MADE
) -> tuple[list[list[int]], np.ndarray, list[int]]:
    """Tokens of each row, prompts included; logits (number, B, V); how often each row's window moved."""
    seen: list[np.ndarray] = []
    found = generate(steps, prompts, CONTEXT, count, sampling, check=seen.append)
    return [row.tokens for row in found.rows], np.array(seen), [row.moved for row in found.rows]


def random_weights(of: Any) -> Weights:
    """Larger than those of a start."""
    if of.backend.name == "torch":
        like = weights.from_torch(of.model.torch(SHAPES))
    else:
        like = weights.from_keras(of.model.keras(SHAPES))
    generator = np.random.default_rng(1)
    return {name: generator.normal(0, 0.3, array.shape) for name, array in like.items()}


def _from_formulas(model: Any, values: Weights, tokens: list[list[int]], logits: np.ndarray) -> float:
    """The logits of all steps before any window moves, against those of the formulas over the whole context."""
    worst = 0.0
    for row, length in enumerate(LENGTHS):
        x_BT = np.array(tokens[row][:CONTEXT])[None]
        expected = reference.gpt(x_BT, values, model.decoder(), CONTEXT)[0]
        for number in range(CONTEXT - length + 1):
            worst = max(worst, float(np.abs(logits[number, row] - expected[length + number - 1]).max()))
    return worst


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
