"""The ceilings of a machine: the most that something was measured to do on it. What measures them is elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Unit = Literal["FLOP/s", "bytes/s", "s", "J/FLOP", "%"]
HAD = "cpu/probe/cores"  # how much of the cores this process had while the probe ran; less where others are at work
DOUBT = "; uncertain: "  # behind what a ceiling is of


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """`name`: device, what does it, what is done and the dtype: `cpu/torch/product/float32`. `of`: how large it was.

    `samples`: in `unit`; empty where it was not measured: because the machine lacks something (`missing`), or because
    it was wrong (`fault`). `error`: the norm of the difference from NumPy's float64 over its norm. `seen`: the dtype
    and the device of the result.
    """

    name: str
    unit: Unit
    of: str = ""
    samples: tuple[float, ...] = ()
    missing: str | None = None
    fault: str | None = None
    error: float | None = None
    seen: str | None = None

    @property
    def median(self) -> float:
        """In `unit`, of one that has samples."""
        return statistics.median(self.samples)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Ceiling:
        """From JSON, which has lists."""
        return cls(**{**plain, "samples": tuple(map(float, plain["samples"]))})


@dataclass(frozen=True)
class Ceilings:
    """Those of this machine as it is. `date`: when they were measured, such as 2026-11-23 19:40."""

    rows: Sequence[Ceiling]
    date: str

    def median(self, name: str) -> float | None:
        """In the unit of that ceiling; None where it was not measured."""
        return next((one.median for one in self.rows if one.name == name and one.samples), None)
