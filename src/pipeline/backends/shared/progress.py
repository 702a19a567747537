"""What every backend reports of its training, block by block: journal, progress, epochs, and the stop at a NaN."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from pipeline.cli.exits import raise_if_stopped
from pipeline.errors import RunError
from pipeline.profilers.session import Session
from pipeline.runs.fit import Epoch
from pipeline.runs.loss_scale import LossScale
from pipeline.runs.result import Metric, count
from pipeline.tasks import Task

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run


class Watch:
    """Takes the losses and scores of each block of steps. One per fit. `examples`: of the training set."""

    def __init__(self, experiment: Experiment, run: Run, task: Task, examples: int) -> None:
        training = experiment.training
        self.run, self.task = run, task
        self.every = training.log_every_n_steps
        self.batch_size = training.batch_size
        self.precision = experiment.precision.name
        self.initial_scale = experiment.precision.loss_scale
        self.loss_scale: LossScale | None = None
        self.profile = Session(experiment, run, examples, self.leave_out)
        steps = math.ceil(examples / training.batch_size)
        self.progress = run.progress("training", total=training.epochs * steps)
        self.epochs: list[Epoch] = []
        self.epochs_wanted = training.epochs
        self.step = 0
        self.waiting: list[tuple[float, float]] = []  # steps not yet in the journal: (loss, mean score)
        self.number = -1

    def begin_epoch(self) -> None:
        """Start the clock of the next epoch."""
        self.number += 1
        self.loss_sum = self.score_sum = 0.0
        self.seen = 0  # examples
        self.first_step = self.step
        self.epoch_started = time.perf_counter()
        self.profile.begin_epoch()

    def leave_out(self, seconds: float) -> None:
        """Seconds of this epoch that were no training (a compilation, a profiler at work)."""
        self.epoch_started += seconds

    def compiled(self, seconds: float) -> None:
        """All compiling so far: not counted as training, measured by itself."""
        before = self.run.marks.get("compile_s", 0.0)
        if seconds > before:
            self.leave_out(seconds - before)
            self.run.marks["compile_s"] = seconds

    def block(self, losses: np.ndarray, scores: np.ndarray, size: int, scales: np.ndarray | None = None) -> None:
        """Steps that have run: mean loss (k,) and sum of scores (k,) of each, over batches of `size` examples.

        `scales`: the loss scale (k,) after each, where the loss is scaled.
        """
        raise_if_stopped()
        if scales is not None:
            self._journal_scales(scales)
        finite = np.isfinite(losses)
        if not finite.all():
            self._diverged(losses, int(np.argmin(finite)))
        self.loss_sum += float(losses.sum()) * size
        self.score_sum += float(scores.sum())
        self.seen += size * len(losses)
        means = scores / (size * self.task.units)
        self.waiting.extend(zip(losses.tolist(), means.tolist(), strict=True))
        self.step += len(losses)
        self._journal_waiting(final=False)
        state = f"epoch {self.number + 1}/{self.epochs_wanted}  loss {self.loss_sum / self.seen:.4f}"
        if self.task.score is not None:
            state += f"  {self.task.score} {self.mean_score:.4f}"
        self.progress.advance(len(losses), state)

    @property
    def mean_score(self) -> float:
        """Of the epoch so far."""
        return self.score_sum / (self.seen * self.task.units)

    def pause(self) -> None:
        """Training of this epoch is over; what follows (validation) is not its time."""
        self.epoch_seconds = time.perf_counter() - self.epoch_started
        self.profile.pause()

    def end_epoch(self, validation: tuple[float, float] | None = None) -> None:
        """Close the epoch; `validation`: loss and score of the examples held out. Raises RunError for a NaN."""
        self._journal_waiting(final=True)
        loss, score = validation or (None, None)
        if loss is not None and not math.isfinite(loss):
            raise diverged(f"the validation loss became {loss}", self.step, self.number + 1, self.precision)
        scored = self.task.score is not None
        epoch = Epoch(
            number=self.number + 1,
            seconds=self.epoch_seconds,
            steps=self.step - self.first_step,
            units=self.seen * self.task.units,
            train_loss=self.loss_sum / self.seen,
            train_score=self.mean_score if scored else None,
            validation_loss=loss,
            validation_score=score if scored else None,
        )
        self.epochs.append(epoch)
        self.progress.note(_line(epoch, self.epochs_wanted, self.task))
        self.profile.end_epoch(epoch.number)
        metrics = epoch.metrics(self.task.unit, self.task.score, self.task.better)
        if self.loss_scale is not None:
            metrics.append(Metric("loss_scale/scale", self.loss_scale.final))
            metrics.append(count("loss_scale/skipped_steps", self.loss_scale.skipped_steps))
        self.run.end_epoch(epoch.number, metrics, self.step)

    def close(self) -> None:
        """Take the progress bar down and end the profiler."""
        self.progress.close()
        self.profile.close()

    def _journal_waiting(self, *, final: bool) -> None:
        """One record for each `every` steps, dated at its last step; at an epoch's end, one for the rest."""
        first = self.step - len(self.waiting)
        while len(self.waiting) >= self.every or (final and self.waiting):
            part, self.waiting = self.waiting[: self.every], self.waiting[self.every :]
            first += len(part)
            found = {"train/loss": sum(loss for loss, _ in part) / len(part)}
            if self.task.score is not None:
                found[f"train/{self.task.score}"] = sum(score for _, score in part) / len(part)
            self.run.log(found, first)

    def _journal_scales(self, scales: np.ndarray) -> None:
        """One record for each change of the loss scale, dated at the step that made it."""
        self.loss_scale = self.loss_scale or LossScale(self.initial_scale)
        for step, scale in self.loss_scale.take(scales, self.step):
            self.run.log({"loss_scale/scale": scale}, step)

    def _diverged(self, losses: np.ndarray, position: int) -> None:
        step = self.step + position + 1
        raise diverged(f"the loss became {losses[position]}", step, self.number + 1, self.precision)


def diverged(what: str, step: int, epoch: int, precision: str) -> RunError:
    """The error of a training that has left the finite numbers: `what` happened, after which step."""
    hints = {"fp16": "float16 without loss scaling underflows: precision=mixed_fp16 scales the loss"}
    hint = hints.get(precision, "try a smaller optimizer.learning_rate")
    return RunError(f"{what} at step {step} (epoch {epoch}); {hint}")


def _line(epoch: Epoch, of: int, task: Task) -> str:
    text = f"epoch {epoch.number}/{of}  loss {epoch.train_loss:.4f}"
    if epoch.train_score is not None:
        text += f"  {task.score} {epoch.train_score:.4f}"
    if epoch.validation_loss is not None:
        shown = epoch.validation_loss if epoch.validation_score is None else epoch.validation_score
        text += f"  validation {shown:.4f}"
    return f"{text}  {epoch.units_per_s:,.0f} {task.unit}/s"
