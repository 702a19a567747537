"""Checkpoints of a fit: when one is due, what of the training's progress goes into it, and how a fit goes on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.runs import weights
from pipeline.runs.checkpoint import Checkpoint, Write
from pipeline.runs.fit import Epoch, Observation
from pipeline.runs.keeping import Contents, Keeping
from pipeline.runs.loss_scale import LossScale

if TYPE_CHECKING:
    from pipeline.backends.shared.progress import Watch
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

SUMS = ("step", "batches", "number", "loss_sum", "score_sum", "seen", "first_step", "ended_by", "out_of_time")
COMPILING = ("untimed", "compiled_at_begin")  # checkpoints of older versions do not have these


class Keeper:
    """One per fit. `snapshot`: what copies the backend's state and returns what writes the copy; set by the backend."""

    def __init__(self, experiment: Experiment, run: Run, watch: Watch) -> None:
        self.run, self.watch = run, watch
        self.keeping = Keeping(run, experiment.training.checkpoint)
        self.stops_held_back, self.interrupts = self.keeping.stops_held_back, self.keeping.interrupts
        self.snapshot: Callable[[], Write] | None = None
        self.observation: Callable[[], Observation | None] = lambda: None

    def after_block(self, *, ends_period: bool) -> None:
        """Write a checkpoint where one is due, or where the training is asked to stop.

        Not at a period's last block: its validation comes first.
        """
        if not (ends_period and self.keeping.active):
            self.keeping.after_block(self.watch.step, self.contents)

    def now(self) -> None:
        """Write a checkpoint of the present state: the training cannot go on."""
        self.keeping.now(self.watch.step, self.contents)

    def after_last(self) -> None:
        """As `after_block`, after the last validation: only a stop needs a checkpoint here."""
        self.keeping.after_block(self.watch.step, self.contents, over=True)

    def contents(self) -> Contents:
        """The training's present state: its progress, and by name what writes each file."""
        assert self.snapshot is not None
        files: dict[str, Write] = {"state": self.snapshot()}
        best = self.watch.best.weights
        if best is not None:
            files["best.npz"] = partial(weights.write, arrays=best)
        return self.progress(), files

    def progress(self) -> dict[str, Any]:
        """Where the training stands, as plain data."""
        watch, scale, seen = self.watch, self.watch.loss_scale, self.observation()
        now = time.perf_counter()
        return {
            **{name: getattr(watch, name) for name in (*SUMS, *COMPILING)},
            "in_period": watch.in_period,
            "epoch_seconds": now - watch.epoch_started,
            "time_left": None if watch.ends_at is None else watch.ends_at - now,
            "begun": watch.begun.tolist(),
            "waiting": [dict(one) for one in watch.waiting],
            "epochs": [asdict(epoch) for epoch in watch.epochs],
            "best": {name: getattr(watch.best, name) for name in ("value", "step", "epoch", "since", "validation")},
            "loss_scale": None if scale is None else asdict(scale),
            "observation": None if seen is None else plain(seen),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set the watch back to where it stood at the checkpoint."""
        watch, kept = self.watch, checkpoint.progress
        for name in SUMS:
            setattr(watch, name, kept[name])
        for name in COMPILING:
            setattr(watch, name, kept.get(name, 0))
        watch.in_period = watch.resumes_in_period = kept["in_period"]
        watch.epoch_seconds_before = kept["epoch_seconds"]
        watch.asked = watch.number if watch.in_period else watch.number + 1
        if kept["time_left"] is not None:
            watch.ends_at = time.perf_counter() + kept["time_left"]
        watch.begun, watch.waiting = np.array(kept["begun"]), list(kept["waiting"])
        # The first one, also where an older version has not kept which were cold.
        watch.epochs = [Epoch(**{"cold": at == 0, **epoch}) for at, epoch in enumerate(kept["epochs"])]
        for name, value in kept["best"].items():
            setattr(watch.best, name, value)
        watch.best.weights = None if checkpoint.best is None else weights.load(checkpoint.best)
        watch.loss_scale = None if kept["loss_scale"] is None else _loss_scale(kept["loss_scale"])
        if watch.epochs and not watch.in_period:  # else another epoch's end is to come
            self.run.last_epoch = watch.metrics_of_last()
        watch.profile.skip_to(watch.batches)
        watch.progress.advance(watch.step, "resumed")
        self.run.marks |= kept["marks"]
        watch.compiled_before = kept["marks"].get("compile_s", 0.0)


def observation_of(checkpoint: Checkpoint) -> Observation | None:
    """What was seen of the first step, before the training was killed."""
    kept: Mapping[str, Any] | None = checkpoint.progress.get("observation")
    if kept is None:
        return None
    return Observation(
        how=kept["how"],
        matmuls=Counter(kept["matmuls"]),
        devices=Counter(kept["devices"]),
        product_devices=Counter(kept["product_devices"]),
        operations=Counter({(name, device, dtype): count for (name, device, dtype), count in kept["operations"]}),
        attention=Counter(kept.get("attention", {})),
        compiled=None if kept["compiled"] is None else Counter(kept["compiled"]),
        tf32=kept["tf32"],
        tf32_by=kept["tf32_by"],
    )


def plain(seen: Observation) -> dict[str, Any]:
    """An observation as plain data, for a checkpoint."""
    operations = [[list(key), count] for key, count in seen.operations.items()]
    return {**vars(seen), "operations": operations}


def _loss_scale(kept: Mapping[str, Any]) -> LossScale:
    found = LossScale(kept["initial"])
    found.final, found.skipped_steps = kept["final"], kept["skipped_steps"]
    found.changes = [(step, scale) for step, scale in kept["changes"]]
    return found
