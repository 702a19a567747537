"""The bench of stage=matmul: a process for each framework and device, and what went wrong on the way."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.machine.own_process import OwnProcess
from pipeline.report.table import digits
from pipeline.runs.run import Run
from pipeline.stages.apart import measured_apart
from pipeline.stages.matmul.memory import Used
from pipeline.stages.matmul.misplaced import Misplaced
from pipeline.stages.matmul.problem import Problem
from pipeline.stages.matmul.rates import GIGA, Rates
from pipeline.stages.matmul.timing import Found

MODULES = {
    "numpy": "pipeline.backends.shared.matrices_numpy",
    "torch": "pipeline.backends.torch.matrices",
    "tensorflow": "pipeline.backends.keras.matrices_tensorflow",
    "jax": "pipeline.backends.keras.matrices_jax",
}


@dataclass(frozen=True)
class Side:
    """A framework on a device, or a kernel of stage=wmma on the CPU."""

    name: str
    place: str = "cpu"
    kernel: str | None = None

    @property
    def label(self) -> str:
        """In tables: `torch`, `torch gpu:0`."""
        return self.name if self.place == "cpu" else f"{self.name} {self.place}"

    @property
    def key(self) -> str:
        """In metrics: `torch`, `torch_gpu0`."""
        return self.label.replace(" ", "_").replace(":", "")

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be found out: products of `dtypes` and `sizes` by `sides`, on `cores` of the CPU.

    `starts`: processes of each side, one after the other; `rounds`: samples in each. `longest`: seconds of a single
    product, above which it is not run. `limit`: bytes of a GPU that a framework may take. `placed`: the dtype and size
    of the product whose memory and whose operands' places are looked at. `ceilings`: whether multiply-adds can be
    measured.
    """

    sides: tuple[Side, ...]
    dtypes: tuple[str, ...]
    sizes: tuple[int, ...]
    starts: int
    rounds: int
    longest: float
    cores: int
    seed: int
    limit: int | None
    placed: tuple[str, int] | None
    ceilings: bool

    @property
    def samples(self) -> int:
        """How many samples are taken of each product."""
        return self.starts * self.rounds


class Bench:
    """What was found, as it is found, by side.

    `absent`: by label, why one takes no part. `ended`: why the process of one did not end well.
    `unplaced`: why the product of `plan.placed` was not looked at. `others`: that other processes were at work, in
    words, or None; no share of the ceiling is kept then, since they slow both and not both alike.
    """

    def __init__(self, plan: Plan, absent: Mapping[str, str], run: Run) -> None:
        self.plan, self.absent, self.run = plan, absent, run
        self.products: dict[Side, list[Found]] = {}
        self.memory: dict[Side, Used] = {}
        self.misplaced: dict[Side, Misplaced] = {}
        self.ended: dict[Side, str] = {}
        self.unplaced: dict[Side, str] = {}
        self.others: str | None = None

    def time(self, side: Side) -> None:
        """Verify and time its products in a new process: each has its own place in memory, and its own spread."""
        answer = self._answer(side, "products")
        if answer is None:
            return
        found = [Found(**one) for one in answer["products"]]
        for one, other in zip(self.products.setdefault(side, found), found, strict=True):
            if one is not other:
                one.add(other)

    def say(self, side: Side) -> None:
        """What came of it, a line for each dtype."""
        if side in self.products:
            for dtype in self.plan.dtypes:
                self.run.say(f"{side} {dtype}: {described(self.of(side, dtype))}")

    def place(self, side: Side) -> None:
        """The memory of a product, and what a misplaced operand costs."""
        if side.kernel is not None or side.label in self.absent or side in self.ended:
            return
        why = self._not_placed(side)
        if why is not None:
            self.unplaced[side] = why
            return
        answer = self._answer(side, "placed")
        if answer is not None:
            self.memory[side] = Used(**answer["memory"])
            self.misplaced[side] = Misplaced(**answer["misplaced"])

    def _not_placed(self, side: Side) -> str | None:
        """Why its product is not looked at: none of the dtype was timed, or it would take too long by the best rate."""
        dtype, size = self.plan.placed or ("", 0)
        found = self.of(side, dtype)
        rates = [Rates(one).rate.median for one in found if one.samples]
        if not rates:
            said = next((why for one in found if (why := one.missing or one.fault)), "none was timed")
            return f"no {dtype} product: {said}"
        about = Problem(dtype, size).flop / (GIGA * max(rates))
        if about > self.plan.longest:
            at = f"by the best rate of stage.sizes a {dtype} product of {size:,} would take"
            return f"{at} about {digits(about)} s, more than stage.longest={self.plan.longest:g}"
        return None

    def of(self, side: Side, dtype: str) -> list[Found]:
        """Its products of a dtype, the smallest first."""
        return [one for one in self.products.get(side, ()) if one.dtype == dtype]

    @property
    def timed(self) -> Iterator[tuple[Side, Rates]]:
        """The rates of each product that was right, with the side that computed it."""
        for side, found in self.products.items():
            yield from ((side, Rates(one)) for one in found if one.samples)

    def faults(self) -> Iterator[str]:
        """What went wrong, by which the run is FAILED."""
        for side, why in self.ended.items():
            yield f"{side}: {why}"
        for side, found in self.products.items():
            for one in found:
                if one.fault:
                    yield f"not timed, because wrong: {side}, {one.problem}: {one.fault}"
        for side, placed in self.misplaced.items():
            if placed.fault:
                yield f"{side}, an operand misplaced: {placed.fault}"

    def facts(self) -> list[dict[str, object]]:
        """For the receipt: what was observed of each product."""
        kept = ("dtype", "size", "missing", "fault", "error", "seen_dtype", "device")
        return [
            {"name": side.label, **{key: value for key in kept if (value := getattr(one, key)) is not None}}
            for side, found in self.products.items()
            for one in found
        ]

    def _answer(self, side: Side, what: Literal["products", "placed"]) -> Any:
        """What its process found, or had found when it was ended; None where it takes no part, or found nothing."""
        if side.label in self.absent or side in self.ended:
            return None
        found, why = answer(self.plan, side, what)
        if why is not None:
            self.ended[side] = why
            self.run.say(f"{side}: {why}")
        return found


def answer(plan: Plan, side: Side, what: Literal["products", "placed"]) -> tuple[Any, str | None]:
    """Start the process, and read what it found; None where it has found nothing. Then why it did not end well."""
    dtype, size = plan.placed or (None, None)
    job = {
        "what": what,
        "module": MODULES.get(side.name),
        "kernel": side.kernel,
        "place": side.place,
        "limit": None if side.place == "cpu" else plan.limit,
        "dtypes": plan.dtypes,
        "sizes": plan.sizes,
        "rounds": plan.rounds if what == "products" else plan.samples,
        "longest": plan.longest,
        "cores": plan.cores,
        "seed": plan.seed,
        "ceilings": plan.ceilings and side.place == "cpu",
        "dtype": dtype,
        "size": size,
    }
    with tempfile.TemporaryDirectory() as temporary:
        process = OwnProcess(place=side.place, cores=plan.cores, folder=Path(temporary))
        found, why = measured_apart(process, "pipeline.stages.matmul.process", job)
        return found or None, why


def described(found: list[Found]) -> str:
    """What came of the products of a dtype, in a line."""
    timed = [Rates(one) for one in found if one.samples]
    wrong = next((f"WRONG at {one.size}: {one.fault}" for one in found if one.fault), None)
    if wrong or not timed:
        return wrong or next((f"not run: {one.missing}" for one in found if one.missing), "not run")
    best = max(timed, key=lambda one: one.rate.median)
    return f"up to {best.rate} GFLOP/s, at {best.found.size}"
