"""A net in training, as Lightning calls it: the steps of a block, what is observed of them, and the validation."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipeline.backends.shared.keeper import observation_of
from pipeline.backends.shared.model_errors import of_model
from pipeline.backends.shared.progress import Watch
from pipeline.backends.torch import state
from pipeline.backends.torch.blocks import Batches, HeldOut, ResidentBlocks, StreamedBlocks
from pipeline.backends.torch.compiled import CompiledStep, make_capturable, rate_as_tensor
from pipeline.backends.torch.group import Group, SharedStep
from pipeline.backends.torch.lean_import import lean_import
from pipeline.backends.torch.lowering import Lowering
from pipeline.backends.torch.model_errors import in_model
from pipeline.backends.torch.observer import Observer
from pipeline.backends.torch.peers import Terminating, is_of_connection
from pipeline.backends.torch.step import Losses, Step
from pipeline.datasets import Data
from pipeline.loaders.batch_plan import Block, Planned
from pipeline.loaders.memory import Memory, resident
from pipeline.models import weights
from pipeline.runs.fit import ON_CPU, Observation
from pipeline.runs.weights import Weights

with lean_import():
    import pytorch_lightning as pl
    import torchmetrics

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

Found = dict[str, list[torch.Tensor]]  # of the steps of a block: losses, scores, loss scales, gradients' norms


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor of the array's memory; torch has no read-only ones."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class Training(pl.LightningModule):
    """A net in training: block after block of optimizer steps, watched."""

    def __init__(
        self,
        net: torch.nn.Module,
        experiment: Experiment,
        data: Data,
        lowering: Lowering,
        watch: Watch,
        group: Group,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.experiment, self.data, self.lowering, self.watch = experiment, data, lowering, watch
        self.home, self.group = lowering.device, group
        self.terminating = Terminating()
        if group.count > 1:
            watch.agreed = partial(group.any_of, device=self.home)
        self.observation = Observation(how="torch dispatch, first training step")
        if self.home.type == "cpu":
            self.observation.tf32, self.observation.tf32_by = False, ON_CPU
        self.compiled: CompiledStep | None = None
        self.copy = state.HostCopy()
        watch.keeper.snapshot = self.snapshot
        watch.keeper.keeping.prepare = lambda: self.copy.ready(self.state())
        watch.keeper.observation = lambda: self.observation
        # Sums, exact in float64. nan_strategy's default would leave a NaN out. Lightning moves no list to the device;
        # torchmetrics' `to` makes the sums float32 again, so that it comes first.
        self.held_out = [
            torchmetrics.SumMetric(nan_strategy="disable", sync_on_compute=False).to(self.home).set_dtype(torch.float64)
            for _ in range(2)
        ]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.step = Step(self.net, self.experiment, self.data.task, self.lowering, self.watch.profile.phase)
        self.take: Callable[..., Losses] = self.step
        if self.group.count > 1:
            self.take = SharedStep(self.step, self.group, self.experiment.seed, self.manual_backward)
        if self.experiment.backend.compile:
            if self.home.type == "cuda":
                make_capturable(self.step.optimizer)
            if self.watch.plan.rate is not None:
                rate_as_tensor(self.step.optimizer, self.home)
        return self.step.optimizer

    def snapshot(self) -> Callable[[Path], None]:
        """Copy all that decides the rest of the training; returns what writes the copy."""
        return self.copy.of(self.state())

    def state(self) -> dict[str, Any]:
        """All that, not copied."""
        return state.of(self.step, mid_step=not self.step.gathering.fresh)

    def on_train_start(self) -> None:
        self.terminating.put_back()
        checkpoint = self.watch.run.checkpoint
        if checkpoint is None:
            return
        state.restore(self.step, checkpoint.state)
        if self.group.rank == 0:  # a checkpoint has what the first process saw; each other looks again
            self.observation = observation_of(checkpoint) or self.observation
        if self.experiment.backend.compile:
            self._compile()

    def restore_finished(self) -> None:
        """Be what a training was that a signal stopped in its last validation: no step is left for the Trainer."""
        checkpoint = self.watch.run.checkpoint
        assert checkpoint is not None
        self.net.to(self.home)
        self.configure_optimizers()
        state.restore(self.step, checkpoint.state)
        self.observation = observation_of(checkpoint) or self.observation

    def training_blocks(self) -> Any:
        """What the Trainer iterates over, once a period: blocks with their (x, y) batches."""
        loader = self.experiment.loader
        if resident(loader, self.data):
            return ResidentBlocks(self, loader.steps_per_execution)
        size = self.experiment.training.batch_size
        # torch has no NumPy bfloat16 to take from the host: narrow dtypes are made on the device
        plan = self.watch.plan
        start = divmod(self.watch.batches, plan.batches)
        stream = loader.stream(self.data, self.lowering.numpy, size, self.experiment.seed, start)
        planned = Planned(stream, loader, plan, start, self.data.part)
        return StreamedBlocks(self, planned, loader.steps_per_execution, ahead=loader.pin_memory)

    def validation_batches(self) -> Any:
        """Batches of the examples that are held out, or nothing where there are none."""
        held_out, size = self.data.validation, self.experiment.training.evaluation_batch_size
        if not len(held_out):
            return None
        resident = isinstance(self.experiment.loader, Memory)
        return HeldOut(held_out, size, self.made, self.moved, self.group, resident=resident)

    def made(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of stored ones."""
        wide = self.lowering.numpy
        return self.data.inputs(x, wide), self.data.targets(y, wide)

    def moved(self, batch: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch on the device; real targets stay as wide as the loss."""
        x, y = (part if isinstance(part, torch.Tensor) else to_tensor(part) for part in batch)
        return self.lowering.entered(x), y.to(self.home, non_blocking=True)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch  # the blocks have seen to it; looking at every tensor again costs 4 % of a step

    def on_train_epoch_start(self) -> None:
        self.watch.begin_epoch()

    def training_step(self, fed: tuple[Block, Batches], _: int) -> None:
        if self.watch.out_of_time:
            return  # Lightning has fetched a block ahead
        try:
            self._block(*fed)
        except RuntimeError as error:
            whole = self.step.gathering.fresh and self.watch.batches and not self.watch.at_period_end
            # On GPUs the host does not wait for an exchange: later steps may have begun with what never came.
            if whole and self.home.type == "cpu" and is_of_connection(error):
                self.watch.keeper.now()
            raise

    def _block(self, block: Block, batches: Batches) -> None:
        """Its steps, and a report of those that were taken, also where another process is lost."""
        found: Found = {"losses": [], "scores": [], "scales": [], "norms": []}
        try:
            self._take(block, batches, found)
        except RuntimeError as error:
            if found["losses"] and is_of_connection(error):
                self._report(block, found)
            raise
        self._report(block, found)

    def _take(self, block: Block, batches: Batches, found: Found) -> None:
        """The steps of a block, until a signal asks for a stop or, of one process, the time is over."""
        for (x, y), control in zip(batches, self._controls(block), strict=True):
            try:
                loss, score = self._batch(x, y, control, first=not self.watch.batches and not found["losses"])
            except Exception as error:
                number = self.watch.step + 1 + int(block.updates[: len(found["losses"])].sum())
                self._raise_of_model(error, number, len(x))
                raise
            found["losses"].append(loss)
            found["scores"].append(score)
            found["scales"] += self.step.scale()
            if self.experiment.training.needs_norm:
                found["norms"].append(self._norm())
            if self.watch.keeper.interrupts():
                return
            if self.watch.late and self.group.count == 1 and block.updates[len(found["losses"]) - 1]:
                return

    def _batch(self, x: torch.Tensor, y: torch.Tensor, control: dict[str, Any], *, first: bool) -> Losses:
        if first:
            return self._first(x, y, control)
        if self.compiled is not None and self.compiled.takes(x):
            return self.compiled(x, y, **control)
        return self.take(x, y, **control)

    def _raise_of_model(self, error: Exception, number: int, examples: int) -> None:
        """Raise RunError, in words, where the user's model is the cause; not in a process that has no run to show."""
        artifacts = self.watch.run.folder / "artifacts"
        lost = self.group.count > 1 and isinstance(error, RuntimeError) and is_of_connection(error)
        if self.group.rank == 0 and not lost:
            said = of_model(error, in_model(error, self.step), self.experiment, number, examples, artifacts)
            if said is not None:
                raise said from error

    def _report(self, block: Block, found: Found) -> None:
        """Tell of the steps of a block that were taken."""
        kept = {name: torch.stack(each).double() for name, each in found.items() if each}
        copied = torch.stack([*kept.values()]).cpu().numpy()  # one copy a block
        if self.compiled is not None:
            self.watch.compiled(self.compiled.seconds, self.compiled.untimed)
            for note in self.compiled.notes:
                self.watch.run.note(note)
        taken = len(found["losses"])
        whole = taken == len(block) or self.group.count == 1
        self.watch.block(block[:taken], **dict(zip(kept, copied, strict=True)), whole=whole)

    def _controls(self, block: Block) -> Iterator[dict[str, Any]]:
        """What each batch's step takes beside it: its share, and whether it is the last of its step."""
        rates, plan, shared = block.rates, self.watch.plan, self.group.count > 1
        if plan.accumulate == 1 and rates is None and not shared:
            yield from itertools.repeat({}, len(block))
            return
        for at, (share, update) in enumerate(zip(block.shares.tolist(), block.updates.tolist(), strict=True)):
            if rates is not None:
                self.step.set_rate(float(rates[at]))
            control = {} if plan.accumulate == 1 else {"share": share, "update": update}
            if shared:
                control |= {"size": block.size, "number": block.epoch * plan.batches + block.first + at}
            yield control

    def _norm(self) -> torch.Tensor:
        """The gradient's, of the step that was last taken; a captured step writes it to the same memory each time."""
        return self.step.gathering.norm.clone()

    def validated_weights(self) -> Weights:
        """A copy of the weights that are validated and saved: the moving average, where there is one."""
        average = self.step.average
        with contextlib.nullcontext() if average is None else average.in_the_net():
            return weights.from_torch(self.net)

    def _first(self, x: torch.Tensor, y: torch.Tensor, control: dict[str, Any]) -> Losses:
        """The first step, observed as it is written; those after it may be compiled."""
        with Observer(self.observation):
            found = self.take(x, y, **control)
        if self.home.type == "cuda":
            torch.cuda.synchronize(self.home)  # a GPU takes orders: without this its work is still to come
        self.watch.run.mark("first_step_s")
        if self.experiment.backend.compile:
            self._compile()
        if self.compiled is not None:
            self.observation.how += "; the compiled steps after it are not observed"
        self.watch.run.check_seen(self.observation)
        return found

    def _compile(self) -> None:
        if self.watch.plan.whole_batches < 2:
            self.watch.run.note(
                "backend.compile=true: no step is compiled: the first one never is, and no other has a whole batch"
            )
            return
        self.compiled = CompiledStep(self.step, self.experiment.training.batch_size)
        # Of a run that goes on before the period begins: not part of it.
        self.watch.compiled(self.compiled.seconds, self.compiled.untimed)
        self.watch.run.say(f"backend.compile: {self.compiled.how}")

    def on_train_epoch_end(self) -> None:
        if not len(self.data.validation):
            self.watch.pause()
            self.trainer.should_stop = self.watch.end_epoch(weights=self.validated_weights)
            return
        examples = len(self.data.validation)
        loss, score = (total.item() for total in self.group.total(*(total.compute() for total in self.held_out)))
        task = self.data.task
        measured = (task.of_split(loss / examples, self.data.validation.y), score / (examples * task.units))
        self.trainer.should_stop = self.watch.end_epoch(measured, self.validated_weights)
        for total in self.held_out:
            total.reset()

    def on_validation_epoch_start(self) -> None:
        self.watch.pause()
        self.group.share_first(self.net.buffers())
        if self.step.average is not None:
            self.averaged = contextlib.ExitStack()
            self.averaged.enter_context(self.step.average.in_the_net())

    def on_validation_epoch_end(self) -> None:
        if self.step.average is not None:
            self.averaged.close()

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        if not len(y):
            return
        with self.lowering.forward():
            loss, score = self.step.forward(x, y)
        self.held_out[0].update(loss.double() * len(y))
        self.held_out[1].update(score.double())
