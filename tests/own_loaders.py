"""Loaders of which one is right; the others show what has to be found out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pipeline.backends.shared.load_bench import Arrays, Batch, Source
from pipeline.backends.shared.load_parts import in_parts
from pipeline.contracts import Loader
from pipeline.datasets import Data
from pipeline.loaders.threads import Batches, Threads
from pipeline.spec import spec

BATCH_S = 0.03  # that the slow one takes


class Feed:
    """NumPy's: batches as a loader gives them."""

    def stream(self, loader: Loader, data: Data, batch_size: int, seed: int) -> Iterable[Batch]:
        return loader.stream(data, "float32", batch_size, seed)

    def wait(self) -> None:
        """All is there."""

    def arrays(self, batch: Batch) -> Arrays:
        x, y = batch
        return x, y

    def parts(self, source: Source, batch_size: int) -> dict[str, float]:
        return in_parts(source, batch_size, lambda pairs: np.stack([x for x, _ in pairs]), len)


class Changed:
    """The batches of `threads`, changed; `passes` counts the epochs."""

    def __init__(self, loader: Own, batches: Batches) -> None:
        self.loader, self.batches, self.passes = loader, batches, 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return iter(self.loader.changed(list(self.batches), self.passes))


@spec
class Own(Threads):
    """Right."""

    def stream(self, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int] = (0, 0)) -> Any:
        return Changed(self, super().stream(data, dtype, batch_size, seed, start))

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        return batches


@spec
class Short(Own):
    """Leaves the last batch out."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        return batches[:-1]


@spec
class Dropping(Own):
    """Leaves an example out."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        (x, y), *others = batches
        return [(x[1:], y[1:]), *others]


@spec
class Long(Own):
    """Gives a batch twice."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        return [*batches, batches[-1]]


@spec
class Doubling(Own):
    """Gives an example twice, in the place of another."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        for part in batches[1]:
            part[3] = part[2]
        return batches


@spec
class Scaled(Own):
    """Divides by 256 in place of 255."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        return [(x * np.float32(255 / 256), y) for x, y in batches]


@spec
class Wide(Own):
    """Gives float64."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        return [(x.astype(np.float64), y) for x, y in batches]


@spec
class Mislabelled(Own):
    """Gives each example the label of the one before."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        return [(x, np.roll(y, 1)) for x, y in batches]


@spec
class Stale(Own):
    """Repeats the first epoch's order."""

    def stream(self, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int] = (0, 0)) -> Any:
        return list(super().stream(data, dtype, batch_size, seed, start))


@spec
class Tiring(Own):
    """Right for two epochs; then it leaves an example out."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        *others, (x, y) = batches
        return batches if number <= 2 else [*others, (x[1:], y[1:])]


@spec
class Forgetful(Own):
    """Right for two epochs; then its last batch has other examples."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        (x, y), count = batches[0], len(batches[-1][1])
        return batches if number <= 2 else [*batches[:-1], (x[:count], y[:count])]


@spec
class Slow(Own):
    """Right, and takes its time over each batch."""

    def changed(self, batches: list[Any], number: int) -> Any:
        for batch in batches:
            time.sleep(BATCH_S)
            yield batch


@spec
class Failing(Own):
    """Raises, as a worker does."""

    def changed(self, batches: list[Any], number: int) -> list[Any]:
        raise OSError("Caught OSError in worker 0.\nOriginal Traceback:\nOSError: a.png: no such file")
