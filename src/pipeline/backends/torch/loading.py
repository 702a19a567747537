"""Batches as a training in torch takes them from a loader (blocks.py), without the training."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from pipeline.backends.shared.load_bench import DTYPE, Arrays, Batch, Source
from pipeline.backends.shared.load_parts import in_parts
from pipeline.backends.torch.blocks import Copies
from pipeline.backends.torch.quiet import MANY_WORKERS
from pipeline.contracts import Loader
from pipeline.datasets import Data
from pipeline.loaders import blocks, epoch_order, one_ahead
from pipeline.loaders.memory import resident

STEPS = 64  # of which the indices lie on the device at once, as with loader=memory


class Feed:
    """torch on one device."""

    def __init__(self, place: str) -> None:
        self.home = torch.device(place.replace("gpu", "cuda"))
        warnings.filterwarnings("ignore", MANY_WORKERS)  # in a process that does nothing else

    def stream(self, loader: Loader, data: Data, batch_size: int, seed: int) -> Iterable[Batch]:
        if resident(loader, data):
            return Resident(self, data, batch_size, seed)
        return Streamed(self, loader.stream(data, DTYPE, batch_size, seed), ahead=loader.pin_memory)

    def moved(self, batch: Any) -> Batch:
        x, y = (part if isinstance(part, torch.Tensor) else torch.from_numpy(part) for part in batch)
        return x.to(self.home, non_blocking=True), y.to(self.home, non_blocking=True)

    def wait(self) -> None:
        """On a CPU a copy is done when its call returns."""
        if self.home.type == "cuda":
            torch.cuda.synchronize(self.home)

    def arrays(self, batch: Batch) -> Arrays:
        x, y = (part.cpu().numpy() for part in batch)
        return x, y

    def parts(self, source: Source, batch_size: int) -> dict[str, float]:
        return in_parts(source, batch_size, default_collate, self._handed)

    def _handed(self, batch: Any) -> None:
        self.moved(batch)
        self.wait()


class Streamed:
    """A loader's batches on the device; page-locked ones on their way one batch `ahead`, as StreamedBlocks has them."""

    def __init__(self, feed: Feed, stream: Iterable[Any], *, ahead: bool) -> None:
        self.feed, self.stream = feed, stream
        self.copies = Copies(feed.home) if ahead and feed.home.type == "cuda" else None

    def __iter__(self) -> Iterator[Batch]:
        if self.copies is None:
            return map(self.feed.moved, self.stream)
        return map(self.copies.finish, one_ahead(self.stream, partial(self.copies.begin, self.feed.moved)))


class Resident:
    """The whole set on the device, a batch gathered there, as ResidentBlocks has it."""

    def __init__(self, feed: Feed, data: Data, batch_size: int, seed: int) -> None:
        prepared = data.inputs(data.train.x, DTYPE), data.targets(data.train.y, DTYPE)
        self.x, self.y = feed.moved(prepared)
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0

    def __iter__(self) -> Iterator[Batch]:
        order = epoch_order(len(self.y), self.seed, self.epoch)
        self.epoch += 1
        for block in blocks(order, self.batch_size, STEPS):
            for rows in torch.from_numpy(block).to(self.y.device):
                yield self.x.index_select(0, rows), self.y.index_select(0, rows)
