"""Processes that train one net together: which part of each batch is whose, and what they add up.

Each process takes its rows of every batch, in the order of a training of one process. A loss is the mean over a batch's
examples, so that a process's loss counts by its share of them: the sum over all processes is the loss of the whole
batch, and the sum of the gradients is its gradient.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pipeline.backends.torch.step import Losses, Step
from pipeline.errors import RunError
from pipeline.models import weights

DRAWS = 3  # what tells the seeds below from those of the initial weights (0) and of the order of the examples (1)


@dataclass(frozen=True)
class Group:
    """The process number `rank` (from 0) of `count`. `cores`: its share of its machine's; None: torch's, shared out."""

    rank: int
    count: int
    cores: int | None = None

    def part(self, size: int) -> slice:
        """Its rows of a batch of `size`; where there are more processes than rows, one row that counts nothing."""
        first, end = self._bounds(size)
        return slice(first, end) if end > first else slice(0, 1)

    def weight(self, size: int) -> float:
        """The share of a batch that its rows are."""
        first, end = self._bounds(size)
        return (end - first) / size

    def mine(self, rows: np.ndarray) -> np.ndarray:
        """Its rows (K, b) of those of several batches (K, B)."""
        return rows if self.count == 1 else rows[:, self.part(rows.shape[1])]

    def _bounds(self, size: int) -> tuple[int, int]:
        return size * self.rank // self.count, size * (self.rank + 1) // self.count

    def begin_sum(self, *numbers: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
        """Begin to add numbers up over all processes, in float64; what is returned waits for the sums."""
        total = torch.stack([number.detach().double() for number in numbers])
        work = dist.all_reduce(total, async_op=True)

        def finished() -> tuple[torch.Tensor, ...]:
            work.wait()
            return tuple(total)

        return finished

    def total(self, *numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Numbers added up over all processes."""
        return numbers if self.count == 1 else self.begin_sum(*numbers)()

    def share_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make each what it is in process 0: running statistics are, of batches of which each process saw its part."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def any_of(self, yes: bool, device: torch.device) -> bool:
        """Whether any of the processes says yes."""
        (count,) = self.begin_sum(torch.tensor(float(yes), device=device))()
        return bool(count.item())

    def gathered(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """What every process passes as `mine`, by rank. Every process has to call it."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, mine)
        return found


class SharedStep:
    """The optimizer step of one process of a group. `backward`: Lightning's, by which DDP averages the gradients."""

    def __init__(self, step: Step, group: Group, seed: int, backward: Callable[[torch.Tensor], None]) -> None:
        self.step, self.group, self.seed, self.backward = step, group, seed, backward
        self.moving: set[str] | None = None  # the buffers that a forward pass changes, known after the first
        self.trained = [parameter for parameter in step.net.parameters() if parameter.requires_grad]

    def __call__(
        self, x: torch.Tensor, y: torch.Tensor, share: float = 1.0, *, update: bool = True, size: int, number: int
    ) -> Losses:
        """As `Step`, with this process's rows of a batch of `size`; the losses are those of the whole batch.

        `number`: the batch's, over all epochs. The weights change after everything has been exchanged, and the buffers
        that the forward pass has changed are put back where that fails: a process that is lost before leaves the others
        with the state after the step before.
        """
        step, group = self.step, self.group
        own = group.weight(size)
        seed_batch(self.seed, group.rank, number)
        buffers = dict(step.net.named_buffers())
        before = {name: one.clone() for name, one in buffers.items() if self.moving is None or name in self.moving}
        try:
            with step.phase("forward"), step.lowering.forward():
                loss, scores = step.forward(x, y)
            summed = group.begin_sum(loss * own, scores if own else scores * 0)
            step.backward(loss * (own * group.count * share), self.backward)
            loss, scores = summed()
        except RuntimeError:
            for name, value in before.items():
                buffers[name].copy_(value)
            raise
        if self.moving is None:  # by their values: a batch normalization moves its own without a new version
            self.moving = {name for name, value in before.items() if not torch.equal(value, buffers[name])}
        step.gathering.fresh = update
        self._check_reached()
        if update:
            step.step_optimizer()
        return loss, scores

    def _check_reached(self) -> None:
        """Refuse weights without a gradient: DDP exchanges several at once, and none until all of these are there.
        Raises RunError."""
        if all(parameter.grad is not None for parameter in self.trained):
            return
        parameters = weights.parameters_torch(self.step.net)
        names = [name for name, one, _ in parameters if one.requires_grad and one.grad is None]
        raise RunError(
            f"device.processes={self.group.count}: the loss does not reach {', '.join(names)}, whose gradients the "
            f"processes would wait for; freeze them: model.freeze=[{','.join(names)}]"
        )


def seed_batch(seed: int, rank: int, number: int) -> None:
    """Let what a process draws for a batch (dropout) depend on nothing else: so a checkpoint of one serves all."""
    numbers: Sequence[int] = np.random.SeedSequence([seed, DRAWS, rank, number]).generate_state(3).tolist()
    torch.manual_seed(numbers[0])
    random.seed(numbers[1])
    np.random.seed(numbers[2])  # noqa: NPY002  # a model of somebody else's may draw from it
