"""Moby-Dick for the peers, from the same cache and with the same splits as the pipeline's: streams of characters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.datasets import Split
from pipeline.datasets.moby_dick import MobyDick
from pipeline.machine.cache_folder import cache_root
from pipeline.tasks.language_modelling import LanguageModelling

CONTEXT = 64


@dataclass(frozen=True)
class Corpus:
    """Streams of tokens, int64, and `lengths`: the bytes of each token of the vocabulary."""

    training: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    lengths: np.ndarray


def load(context: int = CONTEXT) -> Corpus:
    """The pipeline's splits of the text."""
    data = MobyDick(context=context).load(cache_root(None), 0)
    assert isinstance(data.task, LanguageModelling)
    assert data.task.tokens is not None
    return Corpus(stream(data.train), stream(data.validation), stream(data.test), data.task.tokens.lengths())


def stream(split: Split) -> np.ndarray:
    """Sequences that follow each other without a gap, as one array again."""
    return np.concatenate([np.ravel(split.x), split.y[-1, -1:]]).astype(np.int64)


def sequences(tokens: np.ndarray, context: int = CONTEXT) -> tuple[np.ndarray, np.ndarray]:
    """A stream cut into contexts, and the next token of each position: (N, context) each."""
    count = (len(tokens) - 1) // context
    x, y = (part[: count * context].reshape(count, context) for part in (tokens[:-1], tokens[1:]))
    return x, y
