"""What every backend tells of its training, block by block: journal, progress, epoch figures, and the stop at a NaN."""

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

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run


class Watch:
    """Takes the losses and hits of each block of steps. One per fit."""

    def __init__(self, experiment: Experiment, run: Run, images: int) -> None:
        training = experiment.training
        self.run, self.images = run, images
        self.every = training.log_every_n_steps
        self.batch_size = training.batch_size
        self.precision = experiment.precision.name
        self.initial_scale = experiment.precision.loss_scale
        self.loss_scale: LossScale | None = None
        self.profile = Session(experiment, run, images, self.leave_out)
        steps = math.ceil(images / training.batch_size)
        self.progress = run.progress("training", total=training.epochs * steps)
        self.epochs: list[Epoch] = []
        self.epochs_wanted = training.epochs
        self.step = 0
        self.waiting: list[tuple[float, float]] = []  # steps not yet in the journal: (loss, share of hits)
        self.number = -1

    def begin_epoch(self) -> None:
        """Start the clock of the next epoch."""
        self.number += 1
        self.loss_sum = self.n_correct = 0.0
        self.seen = 0
        self.epoch_started = time.perf_counter()
        self.profile.begin_epoch()

    def leave_out(self, seconds: float) -> None:
        """Seconds of this epoch that were no training (a compilation, a profiler at work)."""
        self.epoch_started += seconds

    def compiled(self, seconds: float) -> None:
        """All compiling so far: it is no training and has a figure of its own."""
        before = self.run.marks.get("compile_s", 0.0)
        if seconds > before:
            self.leave_out(seconds - before)
            self.run.marks["compile_s"] = seconds

    def block(self, losses: np.ndarray, n_correct: np.ndarray, size: int, scales: np.ndarray | None = None) -> None:
        """Steps that have run: mean loss (k,) and hits (k,) of each, over batches of `size` images.

        `scales`: the loss scale (k,) after each, where the loss is scaled.
        """
        raise_if_stopped()
        if scales is not None:
            self._journal_scales(scales)
        finite = np.isfinite(losses)
        if not finite.all():
            self._diverged(losses, int(np.argmin(finite)))
        self.loss_sum += float(losses.sum()) * size
        self.n_correct += float(n_correct.sum())
        self.seen += size * len(losses)
        self.waiting.extend(zip(losses.tolist(), (n_correct / size).tolist(), strict=True))
        self.step += len(losses)
        self._journal_waiting(final=False)
        self.progress.advance(
            len(losses),
            f"epoch {self.number + 1}/{self.epochs_wanted}  loss {self.loss_sum / self.seen:.4f}  "
            f"accuracy {self.n_correct / self.seen:.4f}",
        )

    def pause(self) -> None:
        """Training of this epoch is over; what follows (validation) is not its time."""
        self.epoch_seconds = time.perf_counter() - self.epoch_started
        self.profile.pause()

    def end_epoch(self, validation_loss: float | None = None, validation_accuracy: float | None = None) -> None:
        """Close the epoch with its figures on the validation images, where there are any. Raises RunError for a NaN."""
        self._journal_waiting(final=True)
        if validation_loss is not None and not math.isfinite(validation_loss):
            raise diverged(f"the validation loss became {validation_loss}", self.step, self.number + 1, self.precision)
        epoch = Epoch(
            number=self.number + 1,
            seconds=self.epoch_seconds,
            images=self.seen,
            train_loss=self.loss_sum / self.seen,
            train_accuracy=self.n_correct / self.seen,
            validation_loss=validation_loss,
            validation_accuracy=validation_accuracy,
        )
        self.epochs.append(epoch)
        metrics = epoch.metrics("images")
        if self.loss_scale is not None:
            skipped = count("loss_scale/skipped_steps", self.loss_scale.skipped_steps)
            metrics += (Metric("loss_scale/scale", self.loss_scale.final), skipped)
        self.progress.note(_line(epoch, self.epochs_wanted))
        self.profile.end_epoch(epoch.number)
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
            loss = sum(loss for loss, _ in part) / len(part)
            share = sum(share for _, share in part) / len(part)
            self.run.log({"train/loss": loss, "train/accuracy": share}, first)

    def _journal_scales(self, scales: np.ndarray) -> None:
        """One record for each change of the loss scale, dated at the step that made it."""
        self.loss_scale = self.loss_scale or LossScale(self.initial_scale)
        for step, scale in self.loss_scale.take(scales, self.step):
            self.run.log({"loss_scale/scale": scale}, step)

    def _diverged(self, losses: np.ndarray, place: int) -> None:
        step = self.step + place + 1
        raise diverged(f"the loss became {losses[place]}", step, self.number + 1, self.precision)


def diverged(what: str, step: int, epoch: int, precision: str) -> RunError:
    """The error of a training that has left the finite numbers: `what` happened, after which step."""
    hints = {"fp16": "float16 without loss scaling underflows: precision=mixed_fp16 scales the loss"}
    hint = hints.get(precision, "try a smaller optimizer.learning_rate")
    return RunError(f"{what} at step {step} (epoch {epoch}); {hint}")


def _line(epoch: Epoch, of: int) -> str:
    text = f"epoch {epoch.number}/{of}  loss {epoch.train_loss:.4f}  accuracy {epoch.train_accuracy:.4f}"
    if epoch.validation_accuracy is not None:
        text += f"  validation {epoch.validation_accuracy:.4f}"
    return f"{text}  {epoch.images_per_s:,.0f} images/s"
