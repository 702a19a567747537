"""What the Trainer iterates over: blocks of batches, each batch fetched when its step begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from pipeline.backends.torch.group import Group
from pipeline.datasets import Split
from pipeline.loaders import ahead, one_ahead, paced
from pipeline.loaders.batch_plan import Block

if TYPE_CHECKING:
    from pipeline.backends.torch.training import Training


class HeldOut:
    """Validation batches on the device. Not a list: Lightning takes a list for several loaders.

    `made`: inputs and targets on the host, of stored ones; `moved`: those on the device. `resident`: all of them stay
    there; otherwise a thread makes a batch ahead.
    """

    def __init__(
        self,
        split: Split,
        size: int,
        made: Callable[[Any, Any], Any],
        moved: Callable[[Any], Any],
        group: Group,
        *,
        resident: bool,
    ) -> None:
        self.split, self.size, self.made, self.moved, self.group = split, size, made, moved, group
        self.whole = moved(made(split.x, split.y)) if resident else None

    def __len__(self) -> int:
        """The same for every process: Lightning leaves out the validation of one that has none."""
        return math.ceil(math.ceil(len(self.split) / self.size) / self.group.count)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        parts = [slice(first, first + self.size) for first in range(0, len(self.split), self.size)]
        parts = parts[self.group.rank :: self.group.count]
        parts += [slice(0, 0)] * (len(self) - len(parts))
        if self.whole is None:
            yield from map(self.moved, ahead(lambda rows: self.made(self.split.x[rows], self.split.y[rows]), parts, 2))
            return
        x, y = self.whole
        for rows in parts:
            yield x[rows], y[rows]


Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class ResidentBlocks:
    """Blocks gathered from tensors on the device; each pass is the next period."""

    def __init__(self, module: Training, most: int) -> None:
        self.module, self.most = module, most
        self.x, self.y = module.moved(module.made(module.data.train.x, module.data.train.y))

    def __iter__(self) -> Iterator[tuple[Block, Batches]]:
        for block in self.module.watch.blocks(self.most):
            # Each batch is gathered when its step begins, so that it is still in the cache when the step reads it.
            index_KB = torch.from_numpy(self.module.group.mine(block.rows)).to(self.y.device)
            yield block, self.module.watch.profile.steps(index_KB, self.gathered)

    def gathered(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x.index_select(0, batch), self.y.index_select(0, batch)


class StreamedBlocks:
    """Blocks of batches from a loader on the host, each pass the next period; a batch is fetched when its step begins.

    `ahead`: the batches lie in page-locked memory, and each is on its way to the GPU during the step before. The host
    does not run further ahead of a GPU: see `paced`.
    """

    def __init__(self, module: Training, stream: Any, most: int, *, ahead: bool) -> None:
        self.module, self.stream, self.most = module, stream, most
        self.batches: Iterator[Any] | None = None  # of an epoch that has begun
        on_gpu = module.home.type == "cuda"
        self.copies = Copies(module.home) if ahead and on_gpu else None
        self.waiter = self.steps_so_far if on_gpu else None  # a CPU has done a step when it returns

    def close(self) -> None:
        """Let go of the loader, whose workers end then. Left to the garbage collector, torch's hang for 5 s."""
        self.stream = self.batches = None

    def __iter__(self) -> Iterator[tuple[Block, Batches]]:
        for block in self.module.watch.blocks(self.most):
            # Lightning asks for a block before the one before it has run: nothing is fetched for that.
            yield block, self.module.watch.profile.steps(self._taken(block), self.make)

    def _epoch(self) -> Iterator[Any]:
        """The batches of the next epoch, on their way to the device."""
        batches = iter(self.module.watch.profile.loading(self.stream))
        if self.copies is not None:
            batches = one_ahead(batches, partial(self.copies.begin, self.module.moved))
        return batches if self.waiter is None else paced(batches, self.waiter)

    def make(self, batch: Any) -> Any:
        """A batch that was fetched, moved to the device."""
        return self.module.moved(batch) if self.copies is None else self.copies.finish(batch)

    def _taken(self, block: Block) -> Iterator[Any]:
        """The batches of a block; after an epoch's last the loader is asked once more, so that it sees its end."""
        if self.batches is None:
            self.batches = self._epoch()
        yield from islice(self.batches, len(block))
        if block.ends_epoch:
            next(self.batches, None)
            self.batches = None

    def steps_so_far(self) -> Callable[[], None]:
        """A function that waits until the GPU has done the steps so far."""
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self.module.home))
        return done.synchronize


class Copies:
    """Copies to a GPU on a stream of their own, which run while the steps compute."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def begin(self, moved: Callable[[Any], Any], batch: Any) -> tuple[Any, torch.cuda.Event]:
        """Start copying; the tensors are not to be read before the event."""
        with torch.cuda.stream(self.stream):
            tensors, done = moved(batch), torch.cuda.Event()
            done.record(self.stream)
        return tensors, done

    def finish(self, begun: tuple[Any, torch.cuda.Event]) -> Any:
        """The tensors, for the stream of the steps: it waits for this copy, and not for the next one's."""
        tensors, done = begun
        steps = torch.cuda.current_stream(self.device)
        steps.wait_event(done)
        for tensor in tensors:
            tensor.record_stream(steps)  # else the allocator may reuse the memory while a step reads it
        return tensors
