"""What looks on while DeepXDE trains: losses into the journal, a progress bar, a stop at what is not a number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.cli.exits import raise_if_stopped
from pipeline.contracts.physics import Problem
from pipeline.errors import RunError
from pipeline.pinn.problem import terms_of
from pipeline.pinn.solution import Moment, history_arrays, history_as_plain, history_from
from pipeline.pinn.solvers.deepxde_network import fitted_of
from pipeline.pinn.solvers.deepxde_state import State
from pipeline.runs import weights
from pipeline.runs.keeping import Contents, Keeping
from pipeline.runs.run import TENTHS

if TYPE_CHECKING:
    from pipeline.runs.checkpoint import Checkpoint
    from pipeline.runs.run import Run


class Watch:
    """Looks on where DeepXDE has taken the losses. `seconds` are of training alone; the bar names `method`.

    `steps`: of Adam, and of L-BFGS after it, which has no checkpoints. `called`: when the solver was, by
    `perf_counter`, were it one process.
    """

    def __init__(
        self,
        learner: Any,
        problem: Problem,
        backend: str,
        unknowns: Mapping[str, Any],
        run: Run,
        steps: tuple[int, int],
        called: float,
    ) -> None:
        self.learner, self.backend, self.unknowns, self.run = learner, backend, unknowns, run
        self.called = called
        self.hard = problem.recipe.hard
        self.names = [*problem.equations, *(condition.name for condition in terms_of(problem, self.hard))]
        self.steps = steps
        self.progress, self.method = run.progress("training", sum(steps), TENTHS), "Adam"
        self.keeping = Keeping(run, run.checkpoints)
        self.history: list[Moment] = []
        self.seen = 0  # rows of DeepXDE's history
        self.seconds = 0.0
        self.resumed: float | None = None
        self.goes_on = False
        self.state = State(learner, backend, list(unknowns.values()))
        learner._test = self._untimed(learner._test)

    def _untimed(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """DeepXDE's look at the losses, which belongs to no step. The steps that it would wait for are waited for
        before, by reading the weights."""

        def look(*arguments: Any, **named: Any) -> Any:
            running = self.resumed is not None
            if running:
                fitted_of(self.learner, self.backend, self.unknowns, self.hard)
            self._pause()
            found = test(*arguments, **named)
            if running:
                self.resumed = time.perf_counter()
            return found

        return look

    def callback(self, dde: ModuleType) -> Any:
        """As DeepXDE takes it."""
        made = dde.callbacks.Callback()
        made.on_train_begin, made.on_batch_end, made.on_train_end = self._begin, self._step, self._pause
        return made

    def _begin(self) -> None:
        if self.goes_on:  # DeepXDE takes the losses at its first step: they were taken there before, or were not to be
            self.goes_on, self.seen = False, len(self.learner.losshistory.steps)
        self.look()
        self.resumed = time.perf_counter()

    def _step(self) -> None:
        if len(self.learner.losshistory.steps) > self.seen:
            self.look()
        if self.method == "Adam":
            step = int(self.learner.train_state.step)
            self.keeping.after_block(step, self.contents, over=step == sum(self.steps))
        else:
            raise_if_stopped()

    def contents(self) -> Contents:
        """What a checkpoint holds, between two steps of Adam."""
        now = time.perf_counter()
        progress = {
            "seconds_of_steps": self.seconds + (0.0 if self.resumed is None else now - self.resumed),
            "wall_s": now - self.called,
            "history": history_as_plain(self.history),
        }
        if self.learner.train_state.step == self.steps[0] and self.steps[1]:
            progress["note"] = "L-BFGS of DeepXDE has no checkpoints and started over"
        return progress, {"state": partial(self._write, self.state.arrays(), tuple(self.history))}

    def _write(self, arrays: Mapping[str, np.ndarray], history: Sequence[Moment], path: Path) -> None:
        fitted = {f"history.{name}": array for name, array in history_arrays(history).items()}
        weights.write(path, {**arrays, **fitted})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put DeepXDE's training where it stood."""
        kept, stored = checkpoint.progress, weights.load(checkpoint.state)
        prefix = "history."
        fitted = {name.removeprefix(prefix): array for name, array in stored.items() if name.startswith(prefix)}
        self.history, self.goes_on = history_from(kept["history"], fitted), True
        self.seconds = kept["seconds_of_steps"]
        self.called -= kept["wall_s"]
        self.state.put(stored)
        self.learner.train_state.step = self.learner.train_state.iteration = checkpoint.step
        self.progress.advance(self.history[-1].step, "resumed")

    def _pause(self) -> None:
        if self.resumed is not None:
            self.seconds += time.perf_counter() - self.resumed
            self.resumed = None

    def look(self) -> None:
        """One record for each row that DeepXDE has noted since. Raises RunError for a term that is not a number."""
        running = self.resumed is not None
        self._pause()
        history = self.learner.losshistory
        rows = list(zip(history.steps, history.loss_train, history.loss_test, strict=True))
        for step, losses, tests in rows[self.seen :]:
            self._record(int(step), np.atleast_1d(losses), np.atleast_1d(tests))
        self.seen = len(history.steps)
        if running:
            self.resumed = time.perf_counter()

    def _record(self, step: int, losses: np.ndarray, tests: np.ndarray) -> None:
        terms = dict(zip(self.names, map(float, losses), strict=True))
        for name, value in terms.items():
            if not math.isfinite(value):
                raise RunError(
                    f"the loss became {value} by step {step}, first in the term {name!r} (checked every solver.every "
                    "steps); try a smaller solver.learning_rate or precision=fp64"
                )
        shown = self.history[-1].step if self.history else 0
        if self.history and shown == step:
            return  # where Adam ended, L-BFGS begins
        loss = sum(terms.values())
        fitted = fitted_of(self.learner, self.backend, self.unknowns, self.hard)
        wall_s = time.perf_counter() - self.called
        self.history.append(Moment(step, self.seconds, loss, terms, fitted, wall_s))
        figures = {"train/loss": loss, "test/loss": float(np.sum(tests))}
        self.run.log({**figures, **{f"train/{name}": value for name, value in terms.items()}}, step)
        self.progress.advance(step - shown, f"{self.method}  step {step:,}  loss {loss:.3e}")

    def close(self) -> None:
        """Take the progress bar down, and finish the last checkpoint."""
        self.progress.close()
        self.keeping.close()
