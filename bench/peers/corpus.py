"""Moby-Dick for the peers, from the same cache and with the same splits as the pipeline's: streams of characters."""

from __future__ import annotations

import numpy as np

from pipeline.datasets import Split
from pipeline.datasets.fetch import cache_root
from pipeline.datasets.moby_dick import MobyDick
from pipeline.tasks.language_modelling import LanguageModelling

CONTEXT = 64


def load() -> tuple[np.ndarray, np.ndarray, int]:
    """The tokens to train on and those held out for validation, int64, and how many different ones there are."""
    data = MobyDick(context=CONTEXT).load(cache_root(None), 0)
    assert isinstance(data.task, LanguageModelling)
    return stream(data.train), stream(data.validation), data.task.vocabulary


def stream(split: Split) -> np.ndarray:
    """Sequences that follow each other without a gap, as one array again."""
    return np.concatenate([np.ravel(split.x), split.y[-1, -1:]]).astype(np.int64)
