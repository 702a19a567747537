"""torch's DataLoader: items transformed one by one, in worker processes if asked for (row A10)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from pipeline.contracts import Loader
from pipeline.datasets import Data
from pipeline.errors import Impossible
from pipeline.loaders import epoch_order
from pipeline.machine.device import Place
from pipeline.spec import spec


@spec
class DataLoader(Loader):
    """Each worker prepares `prefetch_factor` batches ahead.

    `pin_memory`: page-locked memory, copied to a GPU on a stream beside the steps, one batch ahead.
    `steps_per_execution`: optimizer steps before Python looks at their losses.
    """

    backends: ClassVar[tuple[str, ...]] = ("torch",)
    augments: ClassVar[bool] = True

    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    pin_memory: bool = False
    prefetch_factor: PositiveInt | None = None
    steps_per_execution: PositiveInt = 64

    def __post_init__(self) -> None:
        if self.prefetch_factor is not None and self.workers == 0:
            raise ValueError(
                f"prefetch_factor={self.prefetch_factor}: workers prepare batches ahead, and there are none; "
                "set loader.workers=1 or more"
            )

    def check_device(self, place: Place) -> None:
        """Refuse page-locked memory where nothing is copied."""
        if self.pin_memory and place.kind == "cpu":
            raise Impossible(
                "loader.pin_memory=true on cpu: page-locked memory speeds up copies to a GPU, and here there are none; "
                "use loader.pin_memory=false"
            )

    def stream(self, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int] = (0, 0)) -> Any:
        """A DataLoader of (x, y) batches; each pass over it is the next epoch."""
        import torch
        from torch.utils.data import DataLoader as TorchDataLoader

        items, order = (Items, Order) if data.augment is None else (AugmentedItems, EpochsOrder)
        return TorchDataLoader(
            items(data, dtype),  # type: ignore[arg-type]  # map-style by its methods
            batch_size=batch_size,
            sampler=order(len(data.train), seed, start[0], start[1] * batch_size),
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.workers > 0,
            # Its own: each epoch takes a number from it, and from torch's that would change the dropout.
            generator=torch.Generator().manual_seed(seed),
        )


class Items:
    """One example at a time, prepared when it is asked for: the work that the source's transforms do."""

    def __init__(self, data: Data, dtype: str) -> None:
        self.data, self.dtype = data, dtype
        self.classes = data.train.y.ndim == 1 and data.train.y.dtype.kind in "iu"

    def __len__(self) -> int:
        return len(self.data.train)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        return self._item(self.data.train.x[index], self.data.train.y[index])

    def _item(self, x: np.ndarray, y: Any) -> tuple[np.ndarray, Any]:
        x = self.data.inputs(x, self.dtype)
        if not x.flags.writeable:  # a row of a mapped file, of which torch has no tensors
            x = x.copy()
        return x, int(y) if self.classes else self.data.targets(y, self.dtype)  # numbers collate faster than arrays


class AugmentedItems(Items):
    """A whole batch at a time, asked for by (epoch, index): a worker process does not know the epoch."""

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[tuple[np.ndarray, Any]]:
        batch = self.data.training(np.array([index for _, index in keys]), keys[0][0])
        return [self._item(x, y) for x, y in zip(batch.x, batch.y, strict=True)]


class Order:
    """A sampler whose n-th pass is the order of the n-th epoch. The first is of `epoch`, from example `first` on."""

    def __init__(self, examples: int, seed: int, epoch: int = 0, first: int = 0) -> None:
        self.examples, self.seed, self.epoch, self.first = examples, seed, epoch, first

    def __len__(self) -> int:
        return self.examples - self.first

    def __iter__(self) -> Any:
        order = epoch_order(self.examples, self.seed, self.epoch)[self.first :].tolist()
        self.epoch, self.first = self.epoch + 1, 0
        return iter(order)


class EpochsOrder(Order):
    """The same as (epoch, index)."""

    def __iter__(self) -> Any:
        epoch = self.epoch
        return ((epoch, index) for index in super().__iter__())
