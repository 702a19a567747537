"""A pass over a source taken apart, one example at a time and in one thread."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.shared.load_bench import DTYPE, Source
from pipeline.datasets.pictures import Pictures
from pipeline.loaders import epoch_order

PARTS = ("read", "decode", "scale", "batch", "hand over")


def in_parts(
    source: Source, batch_size: int, collate: Callable[[list[Any]], Any], handed: Callable[[Any], Any]
) -> dict[str, float]:
    """Seconds of each of PARTS over a pass. `collate`: a batch of pairs (x, y); `handed`: that on the device.

    Batches are those of the first epoch. A part that a source does not have takes 0.
    """
    source.begin()
    stored, y = source.data.train.x, source.data.train.y
    taken = dict.fromkeys(PARTS, 0.0)
    for rows in _batches(source, batch_size):
        began = time.perf_counter()
        raw = [_read(stored, row) for row in rows]
        read = time.perf_counter()
        images = _decoded(stored, raw, rows)
        decoded = time.perf_counter()
        scaled = [source.data.inputs(one, DTYPE) for one in images]
        prepared = time.perf_counter()
        batch = collate([(one, int(y[row])) for one, row in zip(scaled, rows, strict=True)])
        collated = time.perf_counter()
        handed(batch)
        ended = time.perf_counter()
        times = (began, read, decoded, prepared, collated, ended)
        for part, first, second in zip(PARTS, times, times[1:], strict=False):
            taken[part] += second - first
    return taken


def _batches(source: Source, batch_size: int) -> Iterator[list[int]]:
    order = epoch_order(len(source.data.train), source.seed, 0)[: source.examples]
    for first in range(0, len(order), batch_size):
        yield order[first : first + batch_size].tolist()


def _read(stored: Any, row: int) -> Any:
    """The bytes of an example: a file's, or a copy out of memory."""
    if isinstance(stored, Pictures):
        return Path(str(stored.paths[row])).read_bytes()
    return np.array(stored[row])


def _decoded(stored: Any, raw: list[Any], rows: list[int]) -> list[np.ndarray]:
    if not isinstance(stored, Pictures):
        return raw
    return [stored.decoded(str(stored.paths[row]), io.BytesIO(one)) for one, row in zip(raw, rows, strict=True)]
