"""The settings of loaders that stage=loading compares: a plainest one, and what is varied of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pipeline.contracts import Loader
from pipeline.loaders.dataloader import DataLoader
from pipeline.loaders.memory import Memory
from pipeline.loaders.tfdata import TfData
from pipeline.loaders.threads import Threads

LOADERS: dict[str, type[Loader]] = {"dataloader": DataLoader, "memory": Memory, "tfdata": TfData, "threads": Threads}
TORCHS = 2  # batches that each worker of torch's DataLoader makes ahead where nothing is said
Change = Mapping[str, Any]  # keys of a loader, and batch_size


@dataclass(frozen=True)
class Setting:
    """A choice of conf/loader with its keys, and the size of a batch."""

    loader: str
    batch_size: int
    keys: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Loader:
        """The loader, as a training builds it."""
        return LOADERS[self.loader](**self.keys)

    def changed(self, change: Change) -> Setting:
        """This setting with other values of some keys."""
        keys = {**self.keys, **{name: value for name, value in change.items() if name != "batch_size"}}
        return replace(self, batch_size=change.get("batch_size", self.batch_size), keys=keys)

    @property
    def name(self) -> str:
        """In tables and metrics: `dataloader workers=2 batch=128`."""
        keys = (f"{name}={_written(value)}" for name, value in self.keys.items())
        return " ".join([self.loader, *keys, f"batch={self.batch_size}"])

    def beside(self, plainest: Setting) -> str:
        """In a table whose first row is `plainest`: what differs from that, or another loader's name."""
        if self == plainest:
            return f"{self.loader}, plainest"
        if self.loader != plainest.loader:
            return self.name.removesuffix(f" batch={plainest.batch_size}")
        keys = {**self.keys, "batch": self.batch_size}
        before = {**plainest.keys, "batch": plainest.batch_size}
        return " ".join(f"{name}={_written(value)}" for name, value in keys.items() if before.get(name) != value)

    @property
    def overrides(self) -> str:
        """The same for the command line of a training."""
        keys = (f"loader.{name}={_written(value)}" for name, value in self.keys.items())
        return " ".join([f"loader={self.loader}", *keys, f"training.batch_size={self.batch_size}"])


@dataclass(frozen=True)
class Settings:
    """`plainest`: what the others are compared with. `axes`: what is varied of it, by what that is called.

    `others`: settings of other loaders. `every`: all combinations of the axes are tried, not one change at a time.
    """

    plainest: Setting
    axes: Mapping[str, Sequence[Change]]
    others: Sequence[Setting] = ()
    every: bool = False

    def varied(self) -> list[Setting]:
        """Every setting that is measured, the plainest first."""
        every = (self.plainest, *self._of_axes(), *self.others)
        return list({one.name: one for one in every}.values())

    def _of_axes(self) -> Iterable[Setting]:
        if not self.every:
            return (self.plainest.changed(change) for changes in self.axes.values() for change in changes)
        unchanged: Change = {}
        choices = itertools.product(*([unchanged, *changes] for changes in self.axes.values()))
        return (self.plainest.changed({k: v for change in chosen for k, v in change.items()}) for chosen in choices)

    def combined(self, rates: Mapping[str, float]) -> Setting:
        """The plainest with the best change of each axis that gains anything. `rates`: images/s by a setting's name."""
        found = self.plainest
        for changes in self.axes.values():
            tried = [change for change in changes if self.plainest.changed(change).name in rates]
            best = max(tried, key=lambda one: rates[self.plainest.changed(one).name], default=None)
            if best is not None and rates[self.plainest.changed(best).name] > rates.get(self.plainest.name, 0):
                found = found.changed(best)
        return found

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Settings:
        """The inverse of `plain`."""
        others = [Setting(**one) for one in plain["others"]]
        return cls(Setting(**plain["plainest"]), plain["axes"], others, plain["every"])


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The values that are varied; the first of `batch_sizes` is the plainest's. `on_gpu`: batches are copied to one."""

    batch_sizes: Sequence[int]
    workers: Sequence[int]
    prefetch: Sequence[int]
    pinned: bool
    cache: bool
    resident: bool
    every: bool
    on_gpu: bool

    def of(self, framework: str, source: str) -> Settings:
        """The settings for a framework. Only what lies in memory anyway can be kept whole on the device."""
        size = self.batch_sizes[0]
        most = max([1, *self.workers])
        others = [Setting("threads", size, {"workers": count}) for count in dict.fromkeys((1, most))]
        if self.resident and source == "memory":
            others.append(Setting("memory", size))
        axes: dict[str, list[Change]] = {"batch": [{"batch_size": one} for one in self.batch_sizes[1:]]}
        made = self._of_torch if framework == "torch" else self._of_tensorflow
        plainest, more = made(size, source)
        return Settings(plainest, axes | more, others, self.every)

    def _of_torch(self, size: int, source: str) -> tuple[Setting, dict[str, list[Change]]]:
        workers = [one for one in self.workers if one]
        changes: list[Change] = [{"workers": one} for one in workers]
        if workers:
            others = (ahead for ahead in self.prefetch if ahead not in (0, TORCHS))
            changes += [{"workers": max(workers), "prefetch_factor": ahead} for ahead in others]
        pinned: list[Change] = [{"pin_memory": True}] if self.pinned and self.on_gpu else []
        return Setting("dataloader", size, {"workers": 0}), {"workers, prefetch": changes, "pinned": pinned}

    def _of_tensorflow(self, size: int, source: str) -> tuple[Setting, dict[str, list[Change]]]:
        keys = {"map_calls": 1, "cache": False, "prefetch": 0}
        more: dict[str, list[Change]] = {
            "workers": [{"map_calls": one} for one in self.workers if one > 1] + [{"map_calls": "auto"}],
            "prefetch": [{"prefetch": one} for one in self.prefetch if one] + [{"prefetch": "auto"}],
            "cache": [{"cache": True}] if self.cache and source != "mapped" else [],
        }
        return Setting("tfdata", size, keys), more


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
