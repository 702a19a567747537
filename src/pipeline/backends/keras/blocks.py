"""What an engine is given: blocks of batches, resident or from a loader, and the validation examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.backends.keras.engine import Engine
from pipeline.backends.keras.model_errors import model_explained
from pipeline.backends.shared.progress import Watch
from pipeline.datasets import Data, Split
from pipeline.loaders import ahead, paced
from pipeline.loaders.batch_plan import Planned
from pipeline.loaders.memory import Memory, resident
from pipeline.machine.quiet import quiet_import

keras = quiet_import("keras")

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


Feed = Callable[[], Iterator[tuple[Any, ...]]]


def feeder(engine: Engine, experiment: Experiment, data: Data, watch: Watch) -> Feed:
    """A function to the next period's (block, losses, scores, scales if any, norms if any), block by block."""
    if resident(experiment.loader, data):
        engine.resident(*prepared(data, data.train), experiment.loader.steps_per_execution)
        return partial(_in_memory, engine, experiment, watch)
    return _streamed(engine, experiment, data, watch)


def _in_memory(engine: Engine, experiment: Experiment, watch: Watch) -> Iterator[tuple[Any, ...]]:
    for block in watch.profile.blocks(watch.timed_blocks(experiment.loader.steps_per_execution)):
        with model_explained(experiment, watch, watch.step + 1, block.size):
            found = engine.block(block)
        yield block, *found


def _streamed(engine: Engine, experiment: Experiment, data: Data, watch: Watch) -> Feed:
    """The same from a loader's stream, which goes on from one period to the next."""
    loader, training = experiment.loader, experiment.training
    start = divmod(watch.batches, watch.plan.batches)
    batches_of = loader.stream(data, keras.config.floatx(), training.batch_size, experiment.seed, start)
    stream = Planned(batches_of, loader, watch.plan, start)
    batches: Iterator[Any] | None = None  # of an epoch that has begun

    def period() -> Iterator[tuple[Any, ...]]:
        nonlocal batches
        for block in watch.blocks(loader.steps_per_execution):
            batches = batches or paced(watch.profile.loading(stream), engine.waiter)
            steps: list[tuple[Any, ...]] = []
            for x, y in watch.profile.steps(islice(batches, len(block))):
                at = len(steps)
                number = watch.step + 1 + int(block.updates[:at].sum())
                with model_explained(experiment, watch, number, block.size):
                    steps.append(engine.batch(x, y, block[at : at + 1]))
                if not watch.batches and len(steps) == 1:
                    engine.settle()
                    watch.run.mark("first_step_s")
                if watch.keeper.interrupts() or (watch.late and block.updates[at]):
                    break
            yield block[: len(steps)], *(np.array([float(one) for one in each]) for each in zip(*steps, strict=True))
            if block.ends_epoch:
                next(batches, None)  # the loader sees its end
                batches = None

    return period


def run_period(engine: Engine, feed: Feed, watch: Watch) -> None:
    """The steps up to the next validation, each block of them reported to `watch`."""
    watch.begin_epoch()
    scaled = hasattr(engine.optimizer, "dynamic_scale")
    for block, losses, scores, *others in feed():
        if not watch.batches and "first_step_s" not in watch.run.marks:  # a block of one call has one end
            watch.run.mark("first_step_s" if len(losses) == 1 else "first_block_s")
        watch.compiled(engine.compile_s, engine.untimed)
        scales = others.pop(0) if scaled else None
        watch.block(block, losses, scores, scales, *others)
    watch.pause()


def prepared(data: Data, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets as the engine takes them: integers in 32 bits."""
    floatx = keras.config.floatx()
    targets = data.targets(split.y, floatx)
    return data.inputs(split.x, floatx), targets.astype(np.int32) if targets.dtype.kind == "i" else targets


class HeldOut:
    """The validation examples: prepared at once for a loader that keeps all in memory, else by a thread, ahead."""

    def __init__(self, experiment: Experiment, data: Data, forward: Any) -> None:
        self.data, self.forward = data, forward
        self.loss: Any = experiment.loss.keras()
        self.size = experiment.training.evaluation_batch_size
        self.whole = prepared(data, data.validation) if isinstance(experiment.loader, Memory) else None

    def measured(self) -> tuple[float, float] | None:
        """Mean loss and mean score over the validation examples; None where there are none."""
        loss = score = 0.0
        task, examples = self.data.task, len(self.data.validation)
        if not examples:
            return None
        for x, y in self._batches():
            outputs = self.forward(x).astype(np.float64)
            wanted = y.astype(np.float64) if y.dtype.kind == "f" else y
            loss += float(task.loss_of(self._of_arrays, np, outputs, wanted)) * len(y)
            score += float(np.sum(task.scores(np, outputs, y))) if task.score is not None else 0.0
        return task.of_split(loss / examples, self.data.validation.y), score / (examples * task.units)

    def _of_arrays(self, *compared: np.ndarray) -> Any:
        return self.loss(*map(keras.ops.convert_to_tensor, compared))

    def _batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        split = self.data.validation
        parts = [slice(first, first + self.size) for first in range(0, len(split), self.size)]
        if self.whole is None:
            yield from ahead(lambda rows: prepared(self.data, Split(split.x[rows], split.y[rows])), parts, 2)
            return
        for rows in parts:
            yield self.whole[0][rows], self.whole[1][rows]
