"""Loaders: how batches reach the step. One file each; `backends` names the backends that a loader feeds.

Every loader takes the order of the examples from `epoch_order`, so that it depends on seed and epoch alone and is the
same in every backend and with any number of workers. One setting is an exception: `tfdata` with `shuffle: false`,
its default, repeats the order of the first epoch, which its cache fixes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np


def epoch_order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the training examples in an epoch (from 0): a permutation that only seed and epoch decide."""
    return np.random.default_rng([seed, 1, epoch]).permutation(examples)


def one_ahead(batches: Iterable[Any], begin: Callable[[Any], Any]) -> Iterator[Any]:
    """What `begin` makes of each batch, begun one batch before it is handed over."""
    begun = deque[Any]()
    for batch in batches:
        begun.append(begin(batch))
        if len(begun) > 1:
            yield begun.popleft()
    yield from begun


def paced(batches: Iterable[Any], waiter: Callable[[], Callable[[], Any]]) -> Iterator[Any]:
    """The batches, each fetched once the device has done all steps but the last one that it was given.

    A host that only gives out steps runs ahead of a GPU, and every batch on its way takes the GPU's memory. `waiter`
    makes a function that waits for the steps given out so far.
    """
    waiting = deque[Callable[[], Any]]()
    for batch in batches:
        yield batch
        waiting.append(waiter())
        if len(waiting) > 1:
            waiting.popleft()()


def ahead(make: Callable[[Any], Any], each: Iterable[Any], most: int, workers: int = 1) -> Iterator[Any]:
    """What `make` makes of each, in order, by threads, up to `most` of them before they are asked for."""
    left = iter(each)
    with ThreadPoolExecutor(workers) as pool:
        begun = deque(pool.submit(make, one) for one in islice(left, most))
        while begun:
            ready = begun.popleft().result()
            begun.extend(pool.submit(make, one) for one in islice(left, 1))
            yield ready


def padded(rows: np.ndarray, steps: int, batch_size: int) -> np.ndarray:
    """Index rows (k, B) made up with zeros to (`steps`, B), so that one compiled program serves every block.

    The last, smaller batch of an epoch stays a single row: it has its own program anyway.
    """
    if rows.shape[1] < batch_size:
        return rows.astype(np.int32)
    full = np.zeros((steps, rows.shape[1]), np.int32)
    full[: len(rows)] = rows
    return full


def blocks(order: np.ndarray, batch_size: int, steps: int) -> Iterator[np.ndarray]:
    """`order` cut into index blocks (k, batch_size), k <= steps; a last smaller batch is its own block."""
    full = len(order) // batch_size * batch_size
    batches = order[:full].reshape(-1, batch_size)
    for first in range(0, len(batches), steps):
        yield batches[first : first + steps]
    if full < len(order):
        yield order[full:][None]
