"""Loaders in one framework: which of them give the right batches, and how fast they give them.

A batch is right that holds the examples which seed and epoch say (`epoch_order`), as NumPy prepares them from the
stored ones (`Data.inputs`), to the bit, with their targets, in their order.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.backends.shared.load_settings import Setting, Settings
from pipeline.contracts import Loader
from pipeline.datasets import Data
from pipeline.loaders import epoch_order
from pipeline.machine.resident import resident

DTYPE = "float32"
STEP_OF = 128  # images in the step whose time is given; other batches take as much longer or shorter

Batch = tuple[Any, Any]
Arrays = tuple[np.ndarray, np.ndarray]


class WrongBatches(Exception):
    """A loader that does not give the batches that it has to give."""


class Feed(Protocol):
    """How a framework's training takes batches from a loader."""

    def stream(self, loader: Loader, data: Data, batch_size: int, seed: int) -> Iterable[Batch]:
        """Batches on the device; each pass is the next epoch."""
        ...

    def wait(self) -> None:
        """Until all batches so far are on the device."""
        ...

    def arrays(self, batch: Batch) -> Arrays:
        """A batch as NumPy arrays."""
        ...

    def parts(self, source: Source, batch_size: int) -> dict[str, float]:
        """Seconds that each part of a pass takes by itself, in one thread, without the loader around it."""
        ...


@dataclass(frozen=True)
class Source:
    """Where a loader takes its examples from.

    `data.train`: as the loader sees them. `x`: the same in memory, from which `data.train.x` was made by repeating it.
    `examples`: that a pass takes, of those that there are. `file`: the mapped file, dropped from memory before a pass.
    """

    name: str
    data: Data
    x: np.ndarray
    examples: int
    seed: int
    file: Path | None = None

    def expected(self, setting: Setting, epoch: int) -> Iterator[Arrays]:
        """The batches of an epoch by NumPy alone."""
        if setting.loader == "tfdata" and not setting.keys.get("shuffle"):
            epoch = 0  # which this loader repeats
        order = epoch_order(len(self.data.train), self.seed, epoch)[: self.taken(setting)]
        for first in range(0, len(order), setting.batch_size):
            rows = order[first : first + setting.batch_size]
            x = self.data.inputs(self.x[rows % len(self.x)], DTYPE)
            yield x, self.data.targets(self.data.train.y[rows], DTYPE)

    @property
    def whole(self) -> bool:
        """Whether a pass is an epoch."""
        return self.examples == len(self.data.train)

    def batches(self, setting: Setting) -> int:
        """In a pass: those of an epoch, or full ones."""
        full, rest = divmod(self.examples, setting.batch_size)
        return full + (self.whole and rest > 0)

    def taken(self, setting: Setting) -> int:
        """How many examples a pass takes in the batches of a setting."""
        return self.examples if self.whole else self.batches(setting) * setting.batch_size

    def begin(self) -> float | None:
        """Drop the mapped file from memory; the share of it that stayed there, or None for other sources."""
        if self.file is None:
            return None
        stored = self.data.train.x
        assert isinstance(stored, np.memmap)
        return dropped(self.file, stored)


@dataclass(frozen=True)
class Sample:
    """`first_s`: until the first batch is there, the stream built and workers started.

    `images` in `seconds`: of whole passes.

    `waits_s` of `stepped_s`: that steps which took `step_s` in all waited for their batches. `before`, `after`:
    the share of a mapped file that was in memory.
    """

    first_s: float
    images: int
    seconds: float
    waits_s: float
    stepped_s: float
    before: float | None = None
    after: float | None = None

    @property
    def rate(self) -> float:
        """The rate in images per second."""
        return self.images / self.seconds

    @property
    def waits(self) -> float:
        """The share of a training's time that its steps would wait."""
        return self.waits_s / self.stepped_s


@dataclass
class Found:
    """What a setting was found to be. `fault`: why it is wrong, so that it has no times. `batches`: that were compared.

    `final`: samples taken in turns with the plainest setting, when the candidates were known.
    """

    setting: Setting
    fault: str | None = None
    batches: int = 0
    samples: list[Sample] = field(default_factory=list)
    final: list[Sample] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.setting.name

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Found:
        """From JSON."""
        samples, final = ([Sample(**one) for one in plain[name]] for name in ("samples", "final"))
        return cls(**{**plain, "setting": Setting(**plain["setting"]), "samples": samples, "final": final})


class Bench:
    """The settings of one framework on one source: verify all, then time those that are right.

    `seconds`: that a sample lasts at least, in whole passes. `step_s`: of a step of STEP_OF images.
    """

    def __init__(self, feed: Feed, source: Source, seconds: float, step_s: float) -> None:
        self.feed, self.source = feed, source
        self.seconds, self.step_s = seconds, step_s
        self.found: dict[str, Found] = {}

    def measure(self, settings: Settings, rounds: int, finals: int) -> Iterator[None]:
        """Vary the plainest setting; then time the best, and the best combined, in turns with it, `finals` times.

        Yields after each round, when `found` can be kept.
        """
        varied = settings.varied()
        self.verify(varied)
        yield from self.time(varied, rounds, lambda found: found.samples)
        candidates = self._candidates(settings)
        self.verify(candidates)
        yield from self.time(candidates, finals, lambda found: found.final)

    def verify(self, settings: Iterable[Setting]) -> None:
        """Compare the batches of each with NumPy's, and note what is wrong."""
        for setting in settings:
            if setting.name in self.found:
                continue
            found = self.found[setting.name] = Found(setting)
            try:
                found.batches = self._compare(setting)
            except WrongBatches as error:
                found.fault = str(error)
            except Exception as error:  # whatever a loader raises of a file that it cannot read
                found.fault = raised(error)

    def time(
        self, settings: Sequence[Setting], rounds: int, samples: Callable[[Found], list[Sample]]
    ) -> Iterator[None]:
        """`rounds` samples of each, in turns, every other time backwards. One that goes wrong here loses its times."""
        for number in range(rounds):
            for setting in settings[:: 1 if number % 2 == 0 else -1]:
                found = self.found[setting.name]
                if found.fault:
                    continue
                try:
                    samples(found).append(self.sample(setting))
                except WrongBatches as error:
                    self._refuse(found, str(error))
                except Exception as error:
                    self._refuse(found, raised(error))
            yield

    def _refuse(self, found: Found, fault: str) -> None:
        found.fault, found.samples, found.final = f"when it was timed: {fault}", [], []

    def _candidates(self, settings: Settings) -> list[Setting]:
        """The plainest, the fastest one found, and the best changes together."""
        rates = {name: median_rate(found.samples) for name, found in self.found.items() if found.samples}
        if settings.plainest.name not in rates:
            return []
        fastest = self.found[max(rates, key=lambda name: rates[name])].setting
        return list({one.name: one for one in (settings.plainest, fastest, settings.combined(rates))}.values())

    def _stream(self, setting: Setting) -> Iterable[Batch]:
        return self.feed.stream(setting.build(), self.source.data, setting.batch_size, self.source.seed)

    def _compare(self, setting: Setting) -> int:
        """Two epochs, the second from a cache where there is one; how many batches. Raises WrongBatches."""
        stream, count, total = self._stream(setting), self.source.batches(setting), 0
        for epoch in range(2 if self.source.file is None else 1):
            expected, given = self.source.expected(setting, epoch), 0
            for batch in self._whole(stream, setting):
                given += 1
                if given > count:
                    raise WrongBatches(f"epoch {epoch + 1} has more than its {count} batches")
                compared(self.feed.arrays(batch), next(expected), f"epoch {epoch + 1}, batch {given}")
                total += 1
            if given < count:
                raise WrongBatches(f"epoch {epoch + 1} ends after {given} of its {count} batches")
        return total

    def sample(self, setting: Setting) -> Sample:
        """Times of a new stream, whose workers have not been started. Raises WrongBatches.

        A mapped file is in memory after the first pass, which is why that one counts, the start of its workers with it:
        they read ahead meanwhile. Of the other sources the passes after the first one count.
        """
        before = self.source.begin()
        feed = self.feed
        began = time.perf_counter()  # before the stream is built: some build in the first pass, others here
        stream = self._stream(setting)
        batches = iter(stream)
        first = next(batches)
        feed.wait()
        first_s = time.perf_counter() - began
        if self.source.file is not None:
            images, seconds = self._pass(batches, setting, 0, after=1)
            del batches, stream  # and the workers, which have the file mapped
            after = in_memory(self.source.file)
            self.source.begin()
            waits = self._stepped(iter(self._stream(setting)), setting)
            return Sample(first_s, images + len(first[1]), seconds + first_s, *waits, before, after)
        for _ in batches:
            pass
        images, seconds, epoch = 0, 0.0, 0
        while seconds < self.seconds:
            epoch += 1
            more, took = self._pass(stream, setting, epoch)
            images, seconds = images + more, seconds + took
        return Sample(first_s, images, seconds, *self._stepped(iter(stream), setting))

    def _pass(self, batches: Iterable[Batch], setting: Setting, epoch: int, after: int = 0) -> tuple[int, float]:
        """Images and seconds of a pass, or of what is left `after` so many batches. Raises WrongBatches."""
        images, last = 0, None
        began = time.perf_counter()
        for last in self._whole(batches, setting, after):
            images += len(last[1])
        self.feed.wait()
        seconds = time.perf_counter() - began
        expected = self.source.taken(setting) - after * setting.batch_size
        if images != expected or last is None:
            raise WrongBatches(f"epoch {epoch + 1} has {images:,} images, not {expected:,}")
        *_, right = self.source.expected(setting, epoch)
        compared(self.feed.arrays(last), right, f"epoch {epoch + 1}, last batch")
        return images, seconds

    def _whole(self, batches: Iterable[Batch], setting: Setting, after: int = 0) -> Iterable[Batch]:
        """All batches of a pass; of a set larger than a pass as many as a pass has."""
        if self.source.whole:
            return batches
        return islice(batches, self.source.batches(setting) - after)

    def _stepped(self, batches: Iterator[Batch], setting: Setting) -> tuple[float, float]:
        """Seconds that steps wait in a pass, and of the pass, without the first batch. A step sleeps: a GPU works."""
        next(batches)
        waits = 0.0
        began = time.perf_counter()
        for _ in range(self.source.batches(setting) - 1):
            time.sleep(self.step_s * setting.batch_size / STEP_OF)
            asked = time.perf_counter()
            next(batches)
            self.feed.wait()
            waits += time.perf_counter() - asked
        return waits, time.perf_counter() - began


def compared(given: Arrays, expected: Arrays, where: str) -> None:
    """Raise WrongBatches where a batch is not the expected one, to the bit."""
    for what, ours, theirs in zip(("x", "y"), given, expected, strict=True):
        if ours.shape != theirs.shape or (ours.dtype != theirs.dtype and what == "x"):
            raise WrongBatches(f"{where}: {what} is {ours.shape} {ours.dtype}, not {theirs.shape} {theirs.dtype}")
        differs = ~np.all((ours == theirs).reshape(len(theirs), -1), axis=1)  # so that NaN differs
        if differs.any():
            at = int(np.flatnonzero(differs)[0])
            most = float(np.max(np.abs(ours[at].astype(np.float64) - theirs[at])))
            raise WrongBatches(
                f"{where}: {what} of {int(differs.sum())} of {len(theirs)} examples differs from NumPy's, "
                f"first that of example {at + 1}, by up to {most:.3g}"
            )


def dropped(path: Path, mapped: np.memmap) -> float:
    """Take a mapped file's pages out of memory; the share that stayed. No other process may have it mapped.

    Source: madvise(2), posix_fadvise(2).
    """
    under = mapped
    while isinstance(under, np.ndarray):
        under = under.base  # type: ignore[assignment]
    assert isinstance(under, mmap.mmap)
    under.madvise(mmap.MADV_DONTNEED)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return in_memory(path)


def in_memory(path: Path) -> float:
    """The share of a file's pages that is in memory."""
    with path.open("rb") as file:
        return resident(file.fileno())


def median_rate(samples: Sequence[Sample]) -> float:
    """The median rate of the samples, in images per second."""
    return float(np.median([one.rate for one in samples]))


def raised(error: Exception) -> str:
    """The last thing that an error says: a worker's begins with where it was raised."""
    lines = str(error).strip().splitlines() or [""]
    return f"raised {type(error).__name__}: {lines[-1].strip()[:300]}"
