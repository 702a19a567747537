"""Which batches a training takes, in what order and in which blocks: the same for every backend and loader.

An optimizer step takes `accumulate` batches; the last step of an epoch takes those that are left. A period is what
lies between two validations: an epoch, or `validate_every` optimizer steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import RunError, UserError, thing
from pipeline.experiment.checks import check_schedule, factor_of
from pipeline.loaders import epoch_order
from pipeline.spec import choice

if TYPE_CHECKING:
    from pipeline.contracts import Loader
    from pipeline.experiment import Experiment


@dataclass(frozen=True)
class Plan:
    """`steps`: optimizer steps in all. `rate`: the learning rate of each step; None: the optimizer's own throughout."""

    examples: int
    batch_size: int
    steps: int
    seed: int
    accumulate: int = 1
    validate_every: int | None = None
    rate: Callable[[int], float] | None = None

    @classmethod
    def of(cls, experiment: Experiment, examples: int) -> Plan:
        """The plan of an experiment whose training set has `examples`. Raises UserError for a schedule too long."""
        training = experiment.training
        batches = math.ceil(examples / training.batch_size)
        steps = training.steps or training.epochs * math.ceil(batches / training.accumulate)
        return cls(
            examples,
            training.batch_size,
            steps,
            experiment.seed,
            training.accumulate,
            training.validate_every,
            _rates(experiment, steps),
        )

    @property
    def batches(self) -> int:
        """In an epoch, a last smaller one included."""
        return math.ceil(self.examples / self.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.batches / self.accumulate)

    @property
    def periods(self) -> int:
        """How many periods the training has, a last shorter one included."""
        return math.ceil(self.steps / (self.validate_every or self.steps_per_epoch))

    @property
    def total_batches(self) -> int:
        """In the whole training."""
        epochs, rest = divmod(self.steps, self.steps_per_epoch)
        return epochs * self.batches + rest * self.accumulate

    @property
    def whole_batches(self) -> int:
        """Those of `batch_size` examples, in the whole training."""
        epochs, rest = divmod(self.steps, self.steps_per_epoch)
        each = self.examples // self.batch_size
        return epochs * each + min(rest * self.accumulate, each)

    def period_of(self, batch: int) -> int:
        """The period in which a batch (from 0, over all epochs) is taken."""
        epoch, within = divmod(batch, self.batches)
        step = epoch * self.steps_per_epoch + within // self.accumulate
        return step // (self.validate_every or self.steps_per_epoch)

    def period(self, number: int, most: int, after: int = 0) -> Iterator[Block]:
        """The blocks of a period (from 0), each of `most` batches at most; those `after` so many batches of training.

        A block ends with an optimizer step if it holds the end of one, and with its epoch; a last smaller batch is a
        block by itself: a compiled program serves one shape.
        """
        length = self.validate_every or self.steps_per_epoch
        step, end = number * length, min((number + 1) * length, self.steps)
        epoch, within = divmod(step, self.steps_per_epoch)
        first = within * self.accumulate
        if after > epoch * self.batches + first:
            epoch, first = divmod(after, self.batches)
        full = self.examples // self.batch_size
        while epoch * self.steps_per_epoch + first // self.accumulate < end:
            last = min(self.batches, (end - epoch * self.steps_per_epoch) * self.accumulate)
            whole = (first + most) // self.accumulate * self.accumulate
            stop = min(whole if whole > first else first + most, last, full if first < full else last)
            yield Block(self, epoch, first, stop - first)
            first = stop
            if first == self.batches:
                epoch, first = epoch + 1, 0


@dataclass(frozen=True)
class Block:
    """`count` batches of an epoch, from batch `first`: what runs before Python looks at the losses."""

    plan: Plan
    epoch: int
    first: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> Block:
        start, stop, _ = part.indices(self.count)
        return Block(self.plan, self.epoch, self.first + start, max(stop - start, 0))

    @property
    def size(self) -> int:
        """Examples in each of its batches."""
        return min(self.plan.batch_size, self.plan.examples - self.first * self.plan.batch_size)

    @property
    def ends_epoch(self) -> bool:
        return self.first + self.count == self.plan.batches

    @property
    def rows(self) -> np.ndarray:
        """The examples of its batches: indices (count, size) into the training set."""
        plan = self.plan
        order = _order(plan.examples, plan.seed, self.epoch)
        first = self.first * plan.batch_size
        return order[first : first + self.count * self.size].reshape(self.count, self.size)

    @property
    def numbers(self) -> np.ndarray:
        """The batches' numbers in the epoch (count,)."""
        return np.arange(self.first, self.first + self.count)

    @property
    def steps(self) -> np.ndarray:
        """The optimizer step (count,), from 0, that each batch belongs to."""
        return self.epoch * self.plan.steps_per_epoch + self.numbers // self.plan.accumulate

    @property
    def updates(self) -> np.ndarray:
        """Whether the weights are updated after each batch (count,)."""
        after = self.numbers + 1
        return (after % self.plan.accumulate == 0) | (after == self.plan.batches)

    @property
    def shares(self) -> np.ndarray:
        """The share (count,) that each batch has in its step's loss: by its examples, as in one large batch."""
        plan = self.plan
        begin = self.numbers // plan.accumulate * plan.accumulate * plan.batch_size
        end = np.minimum(begin + plan.accumulate * plan.batch_size, plan.examples)
        return self.size / (end - begin)

    @property
    def rates(self) -> np.ndarray | None:
        """The learning rate (count,) of each batch's step, where a schedule sets it."""
        rate = self.plan.rate
        return None if rate is None else np.array([rate(int(step)) for step in self.steps])


class Planned:
    """The batches of a loader's stream, held to the plan; each pass is the next epoch, the first as `start` says.

    `part`: which rows of a batch of so many are this process's. Raises RunError for a batch of another size, and for an
    epoch of more or fewer batches: losses and rates would count examples that were not there.
    """

    def __init__(
        self,
        stream: Iterable[tuple[Sized, Sized]],
        loader: Loader,
        plan: Plan,
        start: tuple[int, int],
        part: Callable[[int], slice] | None = None,
    ) -> None:
        self.stream, self.plan, self.part = stream, plan, part
        self.named = f"loader={choice(loader)}"
        if not hasattr(stream, "__iter__"):
            raise UserError(
                f"{self.named}: stream() gives {thing(stream)}; give what can be iterated over, batches (x, y)"
            )
        self.epoch, self.first = start

    def __iter__(self) -> Iterator[tuple[Sized, Sized]]:
        plan, number, epoch = self.plan, self.first, self.epoch
        self.epoch, self.first = epoch + 1, 0
        for batch in self.stream:
            if number == plan.batches:
                raise RunError(f"{self.named}: epoch {epoch + 1} has more than its {plan.batches:,} batches")
            wanted, found = self._size(Block(plan, epoch, number, 1)), len(batch[1])
            number += 1
            if found != wanted:
                raise RunError(
                    f"{self.named}: epoch {epoch + 1}, batch {number:,} has {found:,} examples, not {wanted:,} "
                    f"(training.batch_size={plan.batch_size})"
                )
            yield batch
        if number < plan.batches:
            raise RunError(f"{self.named}: epoch {epoch + 1} ends after {number:,} of its {plan.batches:,} batches")

    def _size(self, block: Block) -> int:
        """Examples of a batch that are this process's."""
        return block.size if self.part is None else len(range(block.size)[self.part(block.size)])


def _rates(experiment: Experiment, steps: int) -> Callable[[int], float] | None:
    """The learning rate of each step, where a schedule changes it. Raises UserError for one that is too long."""
    schedule = experiment.schedule
    if schedule.constant:
        return None
    check_schedule(experiment, steps)
    rate = experiment.optimizer.learning_rate
    return lambda step: rate * factor_of(schedule, step, steps)


@lru_cache(maxsize=2)
def _order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """Kept from block to block of an epoch."""
    return epoch_order(examples, seed, epoch)
