"""The ceilings of a GPU's roofline, measured: products on registers, and bytes from the card's memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import RunError
from pipeline.kernels.cpu.ceilings import TIMES, doubt
from pipeline.kernels.cuda.built import built
from pipeline.kernels.cuda.card import Card, chosen
from pipeline.kernels.cuda.function import CudaFunction
from pipeline.kernels.cuda.probes import PROBES, ROUNDS, TRIAD, Probe, room, unprobed, work
from pipeline.machine.device import gpu_free_bytes

BURSTS = 30  # measurements of a ceiling
WARM_S = 0.2  # of the same work before: a card's clock rises when it has something to do
SMALLEST, LARGEST = 2**28, 2**30  # bytes of an array
Y, Z, FACTOR, WRONG = 1.0, 3.0, 3.0, -1.0  # a triad of the first three gives none of them, and not the last
FOUR = 16  # bytes that a thread moves at a time


@dataclass(frozen=True)
class Ceilings:
    """FLOP per second of each launch, by the probe that made it (`fma`, `mma`, `wgmma`), for A and B of one dtype; and
    bytes per second of each of the triad's, which reads two arrays and writes one. A ceiling is the highest.

    `what`: of each probe, in words. `facts`: of each, how it was built. `unprobed`: the instruction that is faster than
    those of the probes, and was not measured. `doubt`: why the bytes may be those of a cache; None: they are memory's.
    """

    flop_per_s: Mapping[str, tuple[float, ...]]
    bytes_per_s: tuple[float, ...]
    what: Mapping[str, str]
    facts: Mapping[str, Mapping[str, object]]
    unprobed: str | None = None
    doubt: str | None = None

    @property
    def peak(self) -> float | None:
        """FLOP per second, by whichever instruction makes most; None where that one was not measured."""
        return None if self.unprobed else max(rate for rates in self.flop_per_s.values() for rate in rates)

    @property
    def memory(self) -> float:
        """Bytes per second."""
        return max(self.bytes_per_s)


def measured(dtype: str) -> Ceilings:
    """Of the chosen GPU; takes about a second.

    Raises UserError where the packages that compile for it are missing, RunError where a probe computes something else.
    """
    major, minor = chosen().compute_capability
    architecture = 10 * major + minor
    probes = [one for one in PROBES if one.compiles_for(dtype, architecture)]
    if not probes:
        raise RunError(f"no probe of ours multiplies {dtype} on {chosen().name}")
    flop_per_s, facts = {}, {}
    for probe in probes:
        flop_per_s[probe.word], facts[probe.word] = _products(probe, dtype, architecture)
    bytes_per_s, facts["triad"], uncertain = _triad(architecture)
    return Ceilings(
        flop_per_s=flop_per_s,
        bytes_per_s=bytes_per_s,
        what={one.word: one.what for one in probes},
        facts=facts,
        unprobed=unprobed(dtype, architecture),
        doubt=uncertain,
    )


def _products(probe: Probe, dtype: str, architecture: int) -> tuple[tuple[float, ...], Mapping[str, object]]:
    """FLOP per second of each launch, and how the probe was built."""
    card, function, facts = _loaded(probe, dtype, architecture)
    blocks = probe.blocks * card.attribute("MULTIPROCESSOR_COUNT")
    made, d = work(probe, dtype), room(probe, dtype, blocks)
    places = [
        card.allocated(f"{probe.name}: {what}", one.nbytes)
        for what, one in zip("ABD", (made.a, made.b, d), strict=True)
    ]
    for place, values in zip(places, (made.a, made.b, d), strict=True):
        card.upload(place, values)
    arguments: list[np.ndarray] = [np.array([place], np.uint64) for place in places]
    arguments.append(np.array([ROUNDS], np.int32))
    launch = card.launcher(function, (blocks, 1, 1), probe.block, probe.shared(dtype, architecture), arguments)
    seconds = _samples(card, launch)
    card.download(places[2], d)
    fault = made.fault(d, ROUNDS)
    if fault:
        raise RunError(f"{probe.name} on {card.name}: {fault}")
    return tuple(probe.flop(dtype, blocks, ROUNDS) / one for one in seconds), facts


def _triad(architecture: int) -> tuple[tuple[float, ...], Mapping[str, object], str | None]:
    """Bytes per second of each launch, how the triad was built, and why the bytes may be those of the L2 cache."""
    card, function, facts = _loaded(TRIAD, "fp32", architecture)
    cache = card.attribute("L2_CACHE_SIZE")
    size = array_bytes(cache, gpu_free_bytes(card.gpu.index))
    places = [card.allocated(f"{TRIAD.name}: {what}", size) for what in "xyz"]
    for place, value in zip(places, (WRONG, Y, Z), strict=True):
        card.call("cuMemsetD32", place, int(np.float32(value).view(np.uint32)), size // 4)
    arguments: list[np.ndarray] = [np.array([place], np.uint64) for place in places]
    arguments += [np.array([FACTOR], np.float32), np.array([size // FOUR], np.int32)]
    per_processor = int(card.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, TRIAD.block[0], 0))
    blocks = per_processor * card.attribute("MULTIPROCESSOR_COUNT")
    seconds = _samples(card, card.launcher(function, (blocks, 1, 1), TRIAD.block, 0, arguments))
    x = np.empty(size // 4, np.float32)
    card.download(places[0], x)
    if not x.min() == x.max() == Y + FACTOR * Z:
        raise RunError(f"{TRIAD.name} on {card.name} gives {x.min()} to {x.max()}, not {Y + FACTOR * Z}")
    return tuple(3 * size / one for one in seconds), {**facts, "array_bytes": size}, doubt(size, cache)


def array_bytes(cache: int, free: int) -> int:
    """Of an array, three of which have to fit: whole pieces of FOUR bytes."""
    wanted = min(max(TIMES * cache, SMALLEST), LARGEST, free // 8)
    return wanted // FOUR * FOUR


def _loaded(one: CudaFunction, dtype: str, architecture: int) -> tuple[Card, Any, dict[str, object]]:
    """A card with the function, the function, and how it was built."""
    made = built(one, dtype, architecture)
    card = Card(one.name)
    facts = {"registers": made.registers, "spilled_bytes": made.spilled, "architecture": f"sm_{made.architecture}"}
    return card, card.function(made.cubin, one.entry), facts


def _samples(card: Card, launch: Callable[[], None]) -> list[float]:
    """Seconds of each launch, once the card is warm."""
    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        launch()
        card.wait()
    return list(map(card.seconds, [launch] * BURSTS))
