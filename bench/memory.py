"""The memory of a training by the length of its sequences, on each backend: the peak of a process for each length."""

from __future__ import annotations

import math
from functools import partial

from bench.measure import Side, alternate, at_most, pipeline, row

ROUNDS = 3
LENGTHS = (512, 1024, 2048, 4096)
BACKENDS = ("torch", "tensorflow", "jax")
MOST = 3.0  # times the growth of half the length: 2 if memory is proportional to the length, 4 if to its square
WORDS = (
    *("stage=transformer", "dataset=python_docs", "training.batch_size=1", "training.evaluation_batch_size=1"),
    *("training.steps=2", "training.validate_every=2", "stage.baselines=false", "stage.attention=false"),
    *("schedule.warm_up=0", "loader.steps_per_execution=1", "tracking=none"),
)


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table."""
    rows: list[dict[str, object]] = []
    for backend in BACKENDS:
        sides = [Side(f"{backend}, {length:,} tokens", partial(peak, backend, length)) for length in LENGTHS]
        alternate(sides, rounds)
        rows += [row(side.name, side.values("MiB"), "MiB") for side in sides]
        of_rounds = zip(*(side.values("MiB") for side in sides), strict=True)
        found = row(f"{backend}, growth to 4,096 / to 2,048", [growth(peaks) for peaks in of_rounds], "x")
        rows.append(at_most(found, MOST))
    return rows


def peak(backend: str, length: int, *words: str) -> dict[str, float]:
    """Of a training of two steps, and of its validation and test, by one sequence at a time: MiB."""
    receipt = pipeline(f"backend={backend}", f"dataset.context={length}", *WORDS, *words)["receipt"]
    return {"MiB": receipt["peak_memory"]["process_bytes"] / 2**20}


def growth(peaks: tuple[float, ...]) -> float:
    """How many times more the last doubling of the length takes than the one before; infinite if that took nothing."""
    before = peaks[-2] - peaks[-3]
    return (peaks[-1] - peaks[-2]) / before if before > 0 else math.inf
