"""Which GPU of this machine a cell of a sweep runs on."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

from pipeline.errors import Impossible
from pipeline.machine.device import gpus
from pipeline.sweep.plan import Cell

VISIBLE = "CUDA_VISIBLE_DEVICES"
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"  # JAX takes three quarters of a GPU's memory at its start unless asked


class Cards:
    """The cells that run now, and their GPUs. `jobs`: cells at once, where the user says it."""

    def __init__(self, jobs: int | None) -> None:
        self.jobs = jobs
        self.taken: dict[int, list[int]] = {}  # cell -> its GPUs

    def free(self, cell: Cell) -> list[int] | None:
        """The GPUs for a cell: those with the fewest cells. None where each has one and nobody asked for more."""
        counts = Counter(card for cards in self.taken.values() for card in cards)
        alike, asked = cards_for(cell), devices_of(cell)
        if len(alike) < asked:
            raise Impossible(
                f"a cell of {asked} processes or devices needs as many GPUs of one kind: there are {len(alike)}"
            )
        cards = sorted(alike, key=lambda card: counts[card])[:asked]
        return None if self.jobs is None and any(counts[card] for card in cards) else sorted(cards)

    def take(self, cell: Cell) -> dict[str, str]:
        """Give a cell its GPUs. Returns the environment in which it sees those as the first."""
        cards = self.free(cell)
        assert cards is not None
        self.taken[cell.number] = cards
        cells = len(cards_for(cell)) // devices_of(cell)  # that have GPUs to themselves
        shared = self.jobs is not None and self.jobs > cells and PREALLOCATE not in os.environ
        environment = {PREALLOCATE: "false"} if shared else {}
        return {**environment, VISIBLE: ",".join(map(_as_cuda_knows, cards))} if _any_card(cell) else environment

    def leave(self, number: int) -> None:
        """Free the cards of a cell that has ended."""
        self.taken.pop(number, None)


def on_gpu(cell: Cell) -> bool:
    """Whether a cell runs on a GPU."""
    return cell.resolved is not None and cell.resolved.place.kind == "gpu"


def devices_of(cell: Cell) -> int:
    """Devices, or cores, that a cell takes at once: one for each process, and each part of a split model.

    One for a cell that was not made into an experiment here.
    """
    if cell.experiment is None:
        return 1
    return cell.experiment.device.processes * cell.experiment.device.split


def cards_for(cell: Cell) -> list[int]:
    """The GPUs that a cell may run on: the one that it names and the next ones, or those like the one it was judged by.

    On any other it would be refused what it was granted, and its result would not be comparable with the other cells'.
    """
    assert cell.resolved is not None
    index = cell.resolved.place.index
    if not _any_card(cell):
        return [*range(index, index + devices_of(cell))]
    judged = gpus()[index]
    return [gpu.index for gpu in gpus() if replace(gpu, index=index) == judged]


def _any_card(cell: Cell) -> bool:
    return ":" not in cell.runnable.device.name


def _as_cuda_knows(card: int) -> str:
    visible = os.environ.get(VISIBLE)
    return str(card) if visible is None else visible.split(",")[card].strip()
