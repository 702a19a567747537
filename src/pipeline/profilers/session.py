"""A profiler at work in one fit: it counts the steps, opens and closes the window, and says what that cost.

The backends hand their steps through `steps` (torch: one by one) or `blocks` (Keras: several in one call). In the
window every step is a separate call of the program that has run before, so that it can be timed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pipeline.errors import UserError, thing
from pipeline.profilers import FOLDER, Subject, Tool, window
from pipeline.runs.json_files import read_json

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.loaders.batch_plan import Block, Plan
    from pipeline.runs.run import Run

NOTHING = contextlib.nullcontext()


class Session:
    """One per fit. `leave_out` takes the seconds that the profiler needed for itself, which are not training."""

    def __init__(self, experiment: Experiment, run: Run, plan: Plan, leave_out: Callable[[float], None]) -> None:
        self.run, self.leave_out = run, leave_out
        self.name = type(experiment.profiler).__name__.lower()
        self.window = window(experiment.profiler, plan)
        self.each = plan.batches
        self.counts = "batches" if plan.accumulate > 1 else "steps"  # of which an optimizer step takes several
        self.tool: Tool | None = experiment.profiler.tool(experiment, run)
        if self.tool is not None and not isinstance(self.tool, Tool):
            raise UserError(
                f"profiler={self.name}: tool() gives {thing(self.tool)}; give a pipeline.profilers.Tool, or None"
            )
        self.step = self.first_step = 0  # the latter of this process
        self.open = self.done = False
        self.seconds = 0.0  # in the window
        self.cold = False  # this process's first step, which fills caches, is in the window, or one that compiled
        self.after: list[tuple[float, int]] = []  # blocks after it: seconds a step, steps

    def attach(self, subject: Subject) -> None:
        """What is trained, before the first step."""
        self.settle, self.compile_s = subject.settle, subject.compile_s
        if self.tool is not None:
            self.tool.attach(subject)
            self.run.profile = self.run.profile or {"profiler": self.name, "steps": None}

    def skip_to(self, step: int) -> None:
        """Steps that were taken before the training was killed; a window that had begun by then is not measured."""
        self.step = self.first_step = step
        if self.window is not None and step > self.window.start:
            window, self.done, self.window = self.window, False, range(0)
            self.run.profile = read_json(self.run.folder / "artifacts" / FOLDER / "window.json") or None
            if self.run.profile is None:
                asked = f"{self.counts} {window.start + 1:,} to {window.stop:,}, which were asked for"
                self.run.note(f"profiler={self.name}: nothing was profiled; the run was stopped within {asked}")

    def steps(self, batches: Iterable[Any], make: Callable[[Any], Any] = lambda batch: batch) -> Iterator[Any]:
        """What `make` makes of each batch, a step each; the window opens before its first batch is made."""
        if self.window is None:
            yield from map(make, batches)
            return
        self._tick()
        for batch in batches:
            self._before()
            with self.phase("data"):
                made = make(batch)
            with self._inside():
                yield made
            self._after(1)

    def blocks(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Blocks of steps, cut so that the window's steps come one by one."""
        if self.window is None:
            yield from blocks
            return
        for block in blocks:
            for rows in self._cut(block):
                self._tick()
                self._before()
                with self._inside():
                    yield rows
                self._after(len(rows))

    def loading(self, batches: Iterable[Any]) -> Iterable[Any]:
        """The batches of a loader; in the window its work is the phase `data`."""
        return batches if self.window is None else self._loaded(iter(batches))

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Round a part of a step: data, forward, backward, optimizer."""
        return self.tool.phase(name) if self.open and self.tool is not None else NOTHING

    def begin_epoch(self) -> None:
        """Training goes on: what comes counts as outside the window."""
        self.clock, self.counted = time.perf_counter(), self.step

    def pause(self) -> None:
        """Training of this epoch is over."""
        self._tick()

    def end_epoch(self, number: int) -> None:
        """After an epoch and its validation."""
        if self.tool is not None:
            self.tool.end_epoch(number)

    def close(self, taken: int) -> None:
        """After the last step, of `taken` in all, or after what went wrong."""
        if self.tool is None:
            return
        try:
            if self.open:
                self.open = False
                self.tool.stop()
            if self.done:
                self._write_window()
            elif self.window:
                first, last = self.window.start + 1, self.window.stop
                self.run.note(
                    f"profiler={self.name}: nothing was profiled; the training ended after {taken:,} "
                    f"{self.counts}, and {first:,} to {last:,} were asked for"
                )
        finally:
            self.tool.close()

    def _loaded(self, iterator: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self.phase("data"):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    def _tick(self) -> None:
        """A block is over, and its losses have come back from the device."""
        steps, now = self.step - self.counted, time.perf_counter()
        if self.done and steps:
            self.after.append(((now - self.clock) / steps, steps))
            self.begin_epoch()

    def _cut(self, block: Block) -> Iterator[Block]:
        assert self.window is not None
        inside = range(max(self.window.start - self.step, 0), min(self.window.stop - self.step, len(block)))
        edges = sorted({0, *inside, inside.stop if len(inside) else 0, len(block)})
        for first, end in itertools.pairwise(edges):
            yield block[first:end]

    def _inside(self) -> contextlib.AbstractContextManager[Any]:
        return self.tool.step(self.step + 1) if self.open and self.tool is not None else NOTHING

    def _before(self) -> None:
        assert self.window is not None
        if self.tool is None or self.done or self.open or self.step != self.window.start:
            return
        self.settle()
        began = time.perf_counter()
        self.tool.start()
        self.open = True
        self.compiled_before = self.compile_s()
        self.opened = time.perf_counter()
        self.leave_out(self.opened - began)

    def _after(self, steps: int) -> None:
        assert self.window is not None
        self.step += steps
        if not self.open or self.tool is None or self.step != self.window.stop:
            return
        self.settle()
        closed = time.perf_counter()
        self.seconds = closed - self.opened
        self.cold = self.window.start == self.first_step or self.compile_s() > self.compiled_before
        self.open, self.done = False, True
        self.tool.stop()
        self.tool.write(self._write_window())
        self.begin_epoch()
        self.leave_out(self.clock - closed)

    def _write_window(self) -> dict[str, Any]:
        """What is known of the window, into the receipt and into the head of the profile."""
        assert self.window is not None
        per_step = self.seconds / len(self.window)
        after = median(self.after) if self.after else None
        self.run.profile = {
            "profiler": self.name,
            "counts": self.counts,
            "steps": [self.window.start + 1, self.window.stop],
            "epoch": self.window.start // self.each + 1,
            "step_s": per_step,
            "steps_after": sum(steps for _, steps in self.after),
            "step_after_s": after,
            "overhead": None if after is None or self.cold else per_step / after - 1,
            "cold": self.cold,
        }
        text = json.dumps(self.run.profile, indent=2)
        self.run.artifact(f"{FOLDER}/window.json").write_text(text + "\n", encoding="utf-8")
        return self.run.profile


def median(blocks: list[tuple[float, int]]) -> float:
    """The median step of blocks (seconds a step, steps): one that compiles, or is disturbed, does not count."""
    ordered = sorted(blocks)
    seen = list(itertools.accumulate(steps for _, steps in ordered))
    return next(seconds for (seconds, _), steps in zip(ordered, seen, strict=True) if steps >= seen[-1] / 2)


def head(seen: dict[str, Any]) -> str:
    """The first lines of a profile that is text: which steps it is of, or batches, where a step takes several."""
    first, last = seen["steps"]
    what, one = ("batches", "batch") if seen["counts"] == "batches" else ("optimizer steps", "step")
    return (
        f"# profiler={seen['profiler']}: {what} {first} to {last} (counted from 1), in epoch {seen['epoch']}; "
        f"{seen['step_s'] * 1000:.3f} ms a {one} with the profiler\n"
        f"# window.json beside this file says what a {one} takes without it\n"
    )
