"""What looks on while DeepXDE trains: losses into the journal, a progress bar, a stop at what is not a number."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.cli.exits import raise_if_stopped
from pipeline.contracts.physics import Problem
from pipeline.errors import RunError
from pipeline.pinn.problem import terms_of
from pipeline.pinn.solution import Moment
from pipeline.pinn.solvers.deepxde_network import fitted_of

if TYPE_CHECKING:
    from pipeline.runs.run import Run


class Watch:
    """Looks on where DeepXDE has taken the losses. `seconds` are of training alone; the bar names `method`.

    `called`: when the solver was, by `perf_counter`.
    """

    def __init__(
        self,
        learner: Any,
        problem: Problem,
        backend: str,
        unknowns: Mapping[str, Any],
        run: Run,
        total: int,
        called: float,
    ) -> None:
        self.learner, self.backend, self.unknowns, self.run = learner, backend, unknowns, run
        self.called = called
        self.hard = problem.recipe.hard
        self.names = [*problem.equations, *(condition.name for condition in terms_of(problem, self.hard))]
        self.progress, self.method = run.progress("training", total=total), "Adam"
        self.history: list[Moment] = []
        self.seen = 0  # rows of DeepXDE's history
        self.seconds = 0.0
        self.resumed: float | None = None

    def callback(self, dde: ModuleType) -> Any:
        """As DeepXDE takes it."""
        made = dde.callbacks.Callback()
        made.on_train_begin, made.on_batch_end, made.on_train_end = self._begin, self._step, self._pause
        return made

    def _begin(self) -> None:
        self.look()
        self.resumed = time.perf_counter()

    def _step(self) -> None:
        raise_if_stopped()
        if len(self.learner.losshistory.steps) > self.seen:
            self.look()

    def _pause(self) -> None:
        if self.resumed is not None:
            self.seconds += time.perf_counter() - self.resumed
            self.resumed = None

    def look(self) -> None:
        """One record for each row that DeepXDE has noted since. Raises RunError for a term that is not a number."""
        running = self.resumed is not None
        self._pause()
        history = self.learner.losshistory
        for step, losses, tests in list(zip(history.steps, history.loss_train, history.loss_test, strict=True))[
            self.seen :
        ]:
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
        """Take the progress bar down."""
        self.progress.close()
