"""What every backend reports of its training, block by block: journal, progress, epochs, and when it stops."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from pipeline.backends.shared.best import Best, Snapshot
from pipeline.backends.shared.keeper import Keeper
from pipeline.errors import RunError
from pipeline.loaders.batch_plan import Block, Plan
from pipeline.profilers.session import Session
from pipeline.report.table import figure
from pipeline.runs.fit import Epoch
from pipeline.runs.loss_scale import LossScale
from pipeline.runs.result import Metric, count
from pipeline.tasks import Task

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.adapters import Adapters
    from pipeline.runs.run import Run
    from pipeline.runs.weights import Weights


class Watch:
    """Takes the losses and scores of each block of batches. One per fit."""

    def __init__(
        self, experiment: Experiment, run: Run, task: Task, plan: Plan, adapters: Adapters | None = None
    ) -> None:
        training = experiment.training
        self.run, self.task, self.plan = run, task, plan
        self.every = training.log_every_n_steps
        self.by_epochs = training.steps is None and training.validate_every is None
        self.ends_at = None if training.max_time is None else time.perf_counter() + training.max_time
        self.batch_s: float | None = None  # of the last block, where time is limited
        self.out_of_time = False
        self.agreed: Callable[[bool], bool] = bool  # whether it is so for any of the processes; set by the backend
        self.best, self.monitor, self.ema = Best(training, task), training.monitor, training.ema
        self.precision = experiment.precision.name
        self.initial_scale = experiment.precision.loss_scale
        self.loss_scale: LossScale | None = None
        self.profile = Session(experiment, run, plan, self.leave_out)
        self.progress = run.progress("training", total=plan.steps)
        self.epochs: list[Epoch] = []
        self.cold = True  # no period of this process is over
        self.step = 0  # optimizer steps
        self.batches = 0
        self.waiting: list[Mapping[str, float]] = []  # steps not yet in the journal
        self.begun = np.zeros(3)  # of a step whose batches are not all in: loss, scores, examples
        self.number = -1
        self.asked = 0  # periods whose blocks were asked for
        self.ended_by: str | None = None  # the setting that ended training before its last step
        self.in_period = self.resumes_in_period = False
        self.loss_sum = self.score_sum = 0.0
        self.seen = self.first_step = 0
        self.untimed = self.untimed_in_all = 0  # examples of steps that compiled: of `seen`, of this process
        self.epoch_started = time.perf_counter()
        self.epoch_seconds_before = self.compiled_before = self.compiled_at_begin = 0.0
        self.adapters = adapters
        self.keeper = Keeper(experiment, run, self)
        if run.checkpoint is not None:
            self.keeper.restore(run.checkpoint)

    def begin_epoch(self) -> None:
        """Start the clock of the next period, or of the rest of one in which training was killed."""
        if self.resumes_in_period:
            self.resumes_in_period = False
            self.epoch_started = time.perf_counter() - self.epoch_seconds_before
            self.profile.begin_epoch()
            return
        self.number += 1
        self.in_period = True
        self.compiled_at_begin = self.run.marks.get("compile_s", 0.0)
        self.loss_sum = self.score_sum = 0.0
        self.seen = self.untimed = 0  # examples
        self.first_step = self.step
        self.epoch_started = time.perf_counter()
        self.profile.begin_epoch()

    def leave_out(self, seconds: float) -> None:
        """Seconds of this epoch that were not training (a compilation, a profiler at work)."""
        self.epoch_started += seconds

    def compiled(self, seconds: float, examples: int) -> None:
        """All compiling so far, and the examples of the steps within it: neither counts in a rate."""
        self.untimed += examples - self.untimed_in_all
        self.untimed_in_all = examples
        seconds += self.compiled_before
        before = self.run.marks.get("compile_s", 0.0)
        if seconds > before:
            self.leave_out(seconds - before)
            self.run.marks["compile_s"] = seconds

    def blocks(self, most: int) -> Iterator[Block]:
        """The blocks of the next period, until the time is over. Lightning asks for the first before it has begun."""
        number, self.asked = self.asked, self.asked + 1
        for block in self.plan.period(number, most, self.batches):
            if self.out_of_time:
                return
            yield block

    def timed_blocks(self, most: int) -> Iterator[Block]:
        """The same for steps that run in one call: where time is limited, cut to what fits into what is left of it, by
        what a batch of the last block took."""
        for block in self.blocks(most):
            if self.ends_at is None:
                yield block
                continue
            first = 0
            while first < len(block) and not self.out_of_time:
                began = time.perf_counter()
                fitting = 1 if self.batch_s is None else max(1, int((self.ends_at - began) / self.batch_s))
                part = block[first : first + fitting]
                yield part
                if part.size == self.plan.batch_size:  # not of an epoch's smaller last one, which takes less
                    self.batch_s = (time.perf_counter() - began) / len(part)
                first += len(part)

    @property
    def late(self) -> bool:
        """Whether this process's time is over."""
        return self.ends_at is not None and time.perf_counter() >= self.ends_at

    def block(
        self,
        block: Block,
        losses: np.ndarray,
        scores: np.ndarray,
        scales: np.ndarray | None = None,
        norms: np.ndarray | None = None,
        *,
        whole: bool = True,
    ) -> None:
        """Batches that have run: mean loss (k,) and sum of scores (k,) of each.

        `scales`: the loss scale (k,) after each, where the loss is scaled; `norms`: the gradient's norm (k,), which
        counts where the weights were updated. `whole`: not cut short, so that every process is here.
        """
        updates = block.updates
        if scales is not None:
            self._journal_scales(scales[updates])
        finite = np.isfinite(losses)
        if not finite.all():
            self._diverged(losses, int(updates[: int(np.argmin(finite))].sum()), int(np.argmin(finite)))
        # One by one: where a stop and a resumption cut the blocks must not show in how the sums are rounded.
        for loss, score in zip(losses.tolist(), scores.tolist(), strict=True):
            self.loss_sum += loss * block.size
            self.score_sum += score
        self.seen += block.size * len(losses)
        self.batches += len(losses)
        self._wait(block, losses, scores, norms)
        self.step += int(updates.sum())
        self._journal_waiting(final=False)
        late = whole and self.ends_at is not None and self.agreed(self.late)
        self.out_of_time |= late and bool(updates[-1])  # the step under way is finished
        state = f"{self._where(self.number + 1)}  loss {figure(self.loss_sum / self.seen)}"
        if self.task.score is not None:
            state += f"  {self.task.score} {figure(self.mean_score)}"
        self.progress.advance(int(updates.sum()), state)
        self.keeper.after_block(ends_period=self.at_period_end)

    @property
    def at_period_end(self) -> bool:
        """Whether the period's validation comes next. A last period may be shorter than the others."""
        over = self.step == self.plan.steps or self.out_of_time
        return over or self.plan.period_of(self.batches) != self.number

    def _wait(self, block: Block, losses: np.ndarray, scores: np.ndarray, norms: np.ndarray | None) -> None:
        """Fold batches into optimizer steps."""
        updates, rates, examples = block.updates, block.rates, block.size
        if self.plan.accumulate == 1 and rates is None and norms is None:  # the usual case: each batch is a step
            means = scores / (examples * self.task.units)
            pairs = zip(losses.tolist(), means.tolist(), strict=True)
            self.waiting.extend({"loss": loss, "score": mean} for loss, mean in pairs)
            return
        for at in range(len(losses)):
            self.begun += losses[at] * examples, scores[at], examples
            if updates[at]:
                loss, score, seen = self.begun.tolist()
                found: dict[str, float] = {"loss": loss / seen, "score": score / (seen * self.task.units)}
                if rates is not None:
                    found["learning_rate"] = float(rates[at])
                if norms is not None:
                    found["gradient_norm"] = float(norms[at])
                self.waiting.append(found)
                self.begun[:] = 0

    @property
    def mean_score(self) -> float:
        """The mean score of the epoch so far."""
        return self.score_sum / (self.seen * self.task.units)

    def _count_compiling(self) -> None:
        """As training, in a period of which each step compiled, so that no other time is known."""
        seconds = self.run.marks["compile_s"] - self.compiled_at_begin
        where = self._where(self.number + 1)
        self.run.note(f"{where}: each step compiled; {seconds:.2f} s of compiling count as training")
        self.epoch_seconds += seconds
        self.compiled_before -= seconds
        self.run.marks["compile_s"] = self.compiled_at_begin
        self.untimed = 0

    def pause(self) -> None:
        """Training of this epoch is over; what follows (validation) is not its time."""
        self.epoch_seconds = time.perf_counter() - self.epoch_started
        self.profile.pause()

    def end_epoch(self, validation: tuple[float, float] | None = None, weights: Snapshot | None = None) -> bool:
        """Close the period; `validation`: loss and score of the examples held out, `weights`: makes a copy of what was
        validated. Returns whether training ends here. Raises RunError for a NaN.
        """
        self._journal_waiting(final=True)
        if self.seen == self.untimed:
            self._count_compiling()
        loss, score = validation or (None, None)
        if loss is not None and not math.isfinite(loss):
            raise diverged(f"the validation loss became {loss}", self.step, self.number + 1, self.precision)
        scored = self.task.score is not None
        epoch = Epoch(
            number=self.number + 1,
            seconds=self.epoch_seconds,
            steps=self.step - self.first_step,
            units=(self.seen - self.untimed) * self.task.units,
            train_loss=self.loss_sum / self.seen,
            train_score=self.mean_score if scored else None,
            validation_loss=loss,
            validation_score=score if scored else None,
            passes=None if self.by_epochs else self.batches / self.plan.batches,
            cold=self.cold,
        )
        self.cold = False
        self.epochs.append(epoch)
        self.progress.note(_line(epoch, self._where(epoch.number), self.task))
        self.profile.end_epoch(epoch.number)
        self.run.end_epoch(epoch.number, self.metrics_of_last(), self.step)
        if validation is not None and weights is not None:
            self.best.take(validation, self.step, epoch.number, weights)
        if weights is not None and self.run.watchers:
            self._show(weights())
        self.in_period = False
        over = self._over()
        if over:
            self._refuse_untrained()
            self.keeper.after_last()
        else:
            self.keeper.after_block(ends_period=False)
        return over

    def metrics_of_last(self) -> tuple[Metric, ...]:
        """Of the last epoch, before another one begins: the loss scale is the present one."""
        metrics = self.epochs[-1].metrics(self.task.unit, self.task.score, self.task.better)
        if self.loss_scale is not None:
            metrics.append(Metric("loss_scale/scale", self.loss_scale.final))
            metrics.append(count("loss_scale/skipped_steps", self.loss_scale.skipped_steps))
        return tuple(metrics)

    def _show(self, trained: Weights) -> None:
        """The weights, with adapters merged, to whoever watches."""
        whole = trained if self.adapters is None else self.adapters.split(trained)[0]
        for watcher in self.run.watchers:
            watcher(self.step, whole)

    @property
    def finished(self) -> bool:
        """Whether the last validation is over, also of a training that was stopped there and goes on."""
        return bool(self.epochs) and not self.in_period and (self.step >= self.plan.steps or self.ended_by is not None)

    def _over(self) -> bool:
        """Whether training ends here, and why it does before its time."""
        if self.step >= self.plan.steps:
            return True
        if self.out_of_time:
            self.ended_by = "training.max_time"
        elif self.best.stops:
            self.ended_by = "training.patience"
        if self.ended_by is not None:
            self.run.say(f"{self.ended_by}: training ends at step {self.step:,} of {self.plan.steps:,}")
        return self.ended_by is not None

    def _refuse_untrained(self) -> None:
        """Raises RunError after a training whose every step was skipped: its numbers are the initial weights'."""
        scale = self.loss_scale
        if scale is not None and scale.skipped_steps == self.step:
            raise RunError(
                f"all {self.step:,} steps were skipped, so nothing was trained: gradients overflowed float16 at every "
                f"loss scale from {scale.initial:,.6g} down (each overflow halves it); train longer, start lower "
                "(precision.initial_scale; with stage=amp stage.initial_scale), or use precision=mixed_bf16"
            )

    def kept(self) -> dict[str, object]:
        """Which weights are saved, for the receipt."""
        best = self.best
        found: dict[str, object] = {"ended_by": self.ended_by, "ema": self.ema}
        if best.weights is None:
            return {"weights": "last", "step": self.step, **found}
        found |= {"monitor": self.monitor, "value": best.value, "validation": best.validation}
        return {"weights": "best", "step": best.step, "epoch": best.epoch, **found}

    def _where(self, number: int) -> str:
        if self.by_epochs:
            return f"epoch {number}/{self.plan.periods}"
        return f"step {self.step:,}/{self.plan.steps:,}"

    def close(self) -> None:
        """Take the progress bar down, finish the last checkpoint and end the profiler."""
        self.progress.close()
        self.keeper.keeping.close()
        self.profile.close(self.batches)

    def _journal_waiting(self, *, final: bool) -> None:
        """One record for each `every` steps, dated at its last step; at an epoch's end, one for the rest."""
        first = self.step - len(self.waiting)
        while len(self.waiting) >= self.every or (final and self.waiting):
            part, self.waiting = self.waiting[: self.every], self.waiting[self.every :]
            first += len(part)
            found = {"train/loss": sum(one["loss"] for one in part) / len(part)}
            if self.task.score is not None:
                found[f"train/{self.task.score}"] = sum(one["score"] for one in part) / len(part)
            if "learning_rate" in part[-1]:
                found["train/learning_rate"] = part[-1]["learning_rate"]
            norms = [one["gradient_norm"] for one in part if math.isfinite(one.get("gradient_norm", math.nan))]
            if norms:  # a step that loss scaling skips has none
                found["train/gradient_norm"] = sum(norms) / len(norms)
            self.run.log(found, first)

    def _journal_scales(self, scales: np.ndarray) -> None:
        """One record for each change of the loss scale, dated at the step that made it."""
        self.loss_scale = self.loss_scale or LossScale(self.initial_scale)
        for step, scale in self.loss_scale.take(scales, self.step):
            self.run.log({"loss_scale/scale": scale}, step)

    def _diverged(self, losses: np.ndarray, steps: int, position: int) -> None:
        step = self.step + steps + 1
        raise diverged(f"the loss became {losses[position]}", step, self.number + 1, self.precision)


def diverged(what: str, step: int, epoch: int, precision: str) -> RunError:
    """The error of a training that has left the finite numbers: `what` happened, after which step."""
    hints = {"fp16": "float16 holds 6e-8 to 65,504, and nothing scales the loss: precision=mixed_fp16 does"}
    hint = hints.get(precision, "try a smaller optimizer.learning_rate")
    return RunError(f"{what} at step {step} (epoch {epoch}); {hint}")


def _line(epoch: Epoch, where: str, task: Task) -> str:
    text = f"{where}  loss {figure(epoch.train_loss)}"
    if epoch.train_score is not None:
        text += f"  {task.score} {figure(epoch.train_score)}"
    if epoch.validation_loss is not None:
        shown = epoch.validation_loss if epoch.validation_score is None else epoch.validation_score
        text += f"  validation {figure(shown)}"
    return f"{text}  {epoch.units_per_s:,.0f} {task.unit}/s"
