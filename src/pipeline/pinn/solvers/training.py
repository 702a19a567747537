"""A training by one of our solvers: blocks of compiled steps, between them new points, the history and the stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.contracts.physics import Network, Problem
from pipeline.errors import RunError
from pipeline.machine.device import Place
from pipeline.machine.found import jax_device
from pipeline.machine.precision import FORMATS
from pipeline.pinn.solution import Moment, Solution
from pipeline.pinn.solvers import kept
from pipeline.pinn.solvers.method import Method, State
from pipeline.pinn.solvers.peak_memory import free_memory, peak_memory, refuse_too_large
from pipeline.pinn.solvers.side_by_side import alike, chosen
from pipeline.pinn.solvers.system import INSIDE, Ansatz, Data, System
from pipeline.runs.keeping import Keeping
from pipeline.runs.run import TENTHS
from pipeline.spec import choice

if TYPE_CHECKING:
    from pipeline.pinn.solvers.own import Own
    from pipeline.runs.run import Progress, Run

CANDIDATES = 10  # for each point that is drawn where the residual is large


@contextlib.contextmanager
def settings(precision: str, place: Place) -> Iterator[None]:
    """JAX's process-wide settings as a run needs them, put back afterwards: without them float64 is float32, and
    float32 on a GPU is TF32."""
    with (
        jax.enable_x64(FORMATS[precision].parameters == "float64"),
        jax.default_matmul_precision("highest"),
        jax.default_device(jax_device(jax, place)),
    ):
        yield


def train(
    solver: Own, problem: Problem, model: Network, *, precision: str, seed: int, place: Place, run: Run
) -> Solution:
    """All seeds of the solver, and the solution of the lowest loss."""
    called = time.perf_counter()
    ansatz = Ansatz(
        model=model,
        hard=solver.conditions == "hard",
        enrichment=solver.enrichment,
        scale=solver.scale,
        start=solver.start,
        condition_weight=solver.condition_weight,
        graded=solver.graded,
    )
    with settings(precision, place):
        system = System(problem, ansatz, FORMATS[precision].parameters)
        training = Training(solver, system, range(seed, seed + solver.seeds), place, run, called)
        training.run()
        return training.solution()


class Training:
    """One training of one or more seeds, the latter side by side in one program."""

    def __init__(
        self, solver: Own, system: System, seeds: Sequence[int], place: Place, run: Run, called: float
    ) -> None:
        self.called = called  # when the solver was, by `perf_counter`, were it one process
        self.solver, self.system, self.place, self.watch = solver, system, place, run
        self.method: Method = solver.method()
        self.several = len(seeds) > 1
        self.generators = [np.random.default_rng([seed, 1]) for seed in seeds]
        self.drawn = [system.draw(generator) for generator in self.generators]
        self._check_memory()
        self.data = self._together(alike(self.drawn))
        self.theta = self._together([system.initial(seed) for seed in seeds])
        self.compile_s = self.seconds = 0.0
        self.step = 0  # of the run, in whole blocks
        self.taken = self._together([0 for _ in seeds])  # by each seed
        self.beside = 0  # points of each seed at which residuals were evaluated outside of the steps
        self.fits = 0  # evaluations at all points outside of the steps
        self.programs: dict[Any, Any] = {}
        self.coming: dict[Any, Future[Any]] = {}  # programs that are being compiled
        self.history: list[list[Moment]] = [[] for _ in seeds]

    def _check_memory(self) -> None:
        """Raise UserError for what does not fit into the device's memory."""
        solver, seeds = self.solver, len(self.drawn)
        parameters, residuals = self.system.parameters, self.system.count(self.drawn[0])
        needed = seeds * np.dtype(self.system.dtype).itemsize * solver.numbers(parameters, residuals)
        what = f"solver={choice(solver)} with {parameters:,} parameters and {residuals:,} residuals"
        what += f", {seeds} seeds at once," if seeds > 1 else ""
        where = "this machine" if self.place.kind == "cpu" else str(self.place)
        refuse_too_large(needed, free_memory(self.place), what, where, solver.smaller)

    def _together(self, each: Sequence[Any]) -> Any:
        """One tree of arrays with the seeds in front; of one seed alone without."""
        if not self.several:
            return jax.tree.map(jnp.asarray, each[0])
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *each)

    def _compiled(self, key: Any, function: Any, *arguments: Any) -> Any:
        """Call `function`, compiled; the compilation has its own clock, as has the wait for one under way."""
        if key not in self.programs:
            started = time.perf_counter()
            coming = self.coming.pop(key, None)
            self.programs[key] = coming.result() if coming else self._lowered(function, *arguments).compile()
            self.compile_s += time.perf_counter() - started
        return jax.block_until_ready(self.programs[key](*arguments))

    def _lowered(self, function: Any, *arguments: Any) -> Any:
        return jax.jit(jax.vmap(function) if self.several else function).lower(*arguments)

    def _compile_ahead(self, state: Any) -> None:
        """What the first rows of the history need, side by side: XLA compiles while Python goes on tracing the next.

        `state`: the shape of it.
        """
        started, system = time.perf_counter(), self.system
        n = self._block_length()
        wanted: dict[Any, tuple[Any, ...]] = {("block", n): (self._block(n), state, self.taken, self.data)}
        if self.watch.checkpoint is None:
            if self.solver.start == "features":
                wanted["linear"] = (system.linear_model, self.theta, self.data)
            wanted["renew"] = (partial(self.method.renew, system), state, self.data)
        wanted["terms"] = (system.terms, self.theta, self.data)
        pool = ThreadPoolExecutor(len(wanted))
        for key, (function, *arguments) in wanted.items():
            self.coming[key] = pool.submit(self._lowered(function, *arguments).compile)
        pool.shutdown(wait=False)
        self.compile_s += time.perf_counter() - started

    def run(self) -> None:
        """Until the steps are done or no seed has anything to gain."""
        with self._clock():
            self._begin()
        progress = self.watch.progress("training", self.solver.steps, TENTHS)
        progress.advance(self.step, "resumed" if self.step else "begun")
        keeping = Keeping(self.watch, self.watch.checkpoints)
        try:
            with keeping.stops_held_back():
                while not self._over():
                    self._next_block(progress)
                    keeping.after_block(self.step, partial(kept.contents, self), over=self._over())
        finally:
            progress.close()
            keeping.close()

    def _begin(self) -> None:
        """The state before the first step, or that of the checkpoint."""
        system, method = self.system, self.method
        start = partial(method.start, system)
        like = jax.eval_shape(jax.vmap(start) if self.several else start, self.theta)
        checkpoint = self.watch.checkpoint
        if checkpoint is not None:
            kept.restore(self, checkpoint, like)
            self.data = self._together(alike(self.drawn))
            if not self._over():
                self._compile_ahead(like)
            return
        self._compile_ahead(like)
        if self.solver.start == "features":
            self._fit_last_layer()
        self.state = self._compiled("start", start, self.theta)
        self._renew()

    def _over(self) -> bool:
        """Whether the steps are done, or there is nothing left to gain, which new points may bring."""
        return self.step >= self.solver.steps or (not self.solver.resample and bool(np.all(self.state.done)))

    def _next_block(self, progress: Progress) -> None:
        """Up to the next row of the history, behind new points where it is time for them."""
        solver = self.solver
        if solver.resample and self.step and self.step % solver.resample == 0:
            with self._clock():
                self._draw_anew()
                self._renew()
        before, first, n = self.state, self.step, self._block_length()
        with self._clock():
            self.state, self.taken = self._compiled(("block", n), self._block(n), before, self.taken, self.data)
        self.step += n
        self._tell(before, first)
        progress.advance(n, f"step {self.step:,}/{solver.steps:,}  loss {self._best():.3e}")

    @contextlib.contextmanager
    def _clock(self) -> Iterator[None]:
        """Seconds of training, without those of compilation."""
        compiled, started = self.compile_s, time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started - (self.compile_s - compiled)

    def _renew(self) -> None:
        """Bring the method up to date with the points."""
        self.state = self._compiled("renew", partial(self.method.renew, self.system), self.state, self.data)

    def _fit_last_layer(self) -> None:
        """By least squares, whose singular values NumPy finds; kept where it lowers the loss."""
        system, start = self.system, self.theta
        residual, jacobian = self._compiled("linear", system.linear_model, start, self.data)
        at, thetas = system.last_layer(), np.array(start, ndmin=2)
        for theta, r, j in zip(thetas, np.array(residual, ndmin=2), np.array(jacobian, ndmin=3), strict=True):
            theta[at] -= np.linalg.lstsq(j, r, rcond=np.finfo(j.dtype).eps)[0]
        fitted = jnp.asarray(thetas if self.several else thetas[0])
        after, _ = self._compiled("linear", system.linear_model, fitted, self.data)
        lower = np.sum(np.square(after), axis=-1) < np.sum(np.square(residual), axis=-1)
        self.theta = fitted if np.all(lower) else jnp.where(lower[..., None], fitted, start)
        self.fits = 2

    def _block_length(self) -> int:
        """Steps to the next row of the history, to new points or to the end."""
        nearest = [self.solver.every - self.step % self.solver.every, self.solver.steps - self.step]
        if self.solver.resample:
            nearest.append(self.solver.resample - self.step % self.solver.resample)
        return min(nearest)

    def _block(self, n: int) -> Any:
        """Steps, and how many were taken: those of a method that has nothing left to gain change nothing, evaluate
        nothing and count for nothing."""

        def steps(state: State, taken: Any, data: Data) -> tuple[State, Any]:
            def step(so_far: tuple[State, Any]) -> tuple[State, Any]:
                state, taken = so_far
                return self.method.step(self.system, state, data), taken + 1

            def unless_done(so_far: tuple[State, Any]) -> tuple[State, Any]:
                return jax.lax.cond(so_far[0].done, lambda so_far: so_far, step, so_far)

            one = unless_done if self.method.ends else step
            if n == 1:
                return one((state, taken))
            return jax.lax.scan(lambda so_far, _: (one(so_far), None), (state, taken), length=n)[0]

        return steps

    def _draw_anew(self) -> None:
        """New points inside the domain, for `adaptive` chosen among ten times as many candidates with a probability
        that grows with the square of the residual. The ends of an interval are always among them."""
        n, domain = self.system.problem.interior, self.system.problem.domain
        many = CANDIDATES * n if self.solver.adaptive else n
        candidates = [self.system.draw_inside(many, generator) for generator in self.generators]
        if self.solver.adaptive:
            parts = self._together([self.system.inside(points) for points in candidates])
            found = np.asarray(self._compiled("squares", self._squares, self.state.theta, parts), np.float64)
            squares = found if self.several else found[None]
            self.beside += many
            for at, generator in enumerate(self.generators):
                share = squares[at] / squares[at].mean() + 1
                candidates[at] = candidates[at][chosen(share, domain.ends(candidates[at]), n, generator)]
        for at, points in enumerate(candidates):
            self.drawn[at][INSIDE] = self.system.inside(points)
        self.data = self._together(alike(self.drawn))

    def _squares(self, theta: Any, part: Any) -> Any:
        return jnp.sum(self.system.inside_residual(theta, part) ** 2, axis=1)

    def _tell(self, before: State, first: int) -> None:
        """A row of the history for each seed. Raises RunError where one is not finite.

        `before`, `first`: state and number of the step before the last block.
        """
        found = self._compiled("terms", self.system.terms, self.state.theta, self.data)
        terms, self.loss_dtype = np.asarray(found, np.float64), str(found.dtype)
        thetas, taken = np.asarray(self.state.theta), self.steps_taken()
        for at, seed_terms in enumerate(terms if self.several else terms[None]):
            named = dict(zip(self.system.names, map(float, seed_terms), strict=True))
            loss = sum(self.system.weight(name) * value for name, value in named.items())
            if not np.isfinite(loss):
                raise self._diverged(before, first, named)
            fitted = self.system.fitted(thetas[at] if self.several else thetas)
            wall_s = time.perf_counter() - self.called
            self.history[at].append(Moment(int(taken[at]), self.seconds, loss, named, fitted, wall_s))
        best = min((rows[-1] for rows in self.history), key=lambda moment: moment.loss)
        self.watch.log({"train/loss": best.loss, **{f"train/{name}": v for name, v in best.terms.items()}}, max(taken))

    def steps_taken(self) -> list[int]:
        """By each seed: fewer than `step` where a method had nothing left to gain within a block."""
        return np.atleast_1d(np.asarray(self.taken)).tolist()

    def _best(self) -> float:
        return min(rows[-1].loss for rows in self.history)

    def _diverged(self, before: State, first: int, terms: dict[str, float]) -> RunError:
        """Which step it was, and which term: the block is run again, step by step."""
        step, state, terms_of = self.step, before, self.system.terms
        for number in range(first + 1, self.step + 1):
            state, _ = self._compiled(("block", 1), self._block(1), state, self.taken, self.data)
            found = np.atleast_2d(np.asarray(self._compiled("terms", terms_of, state.theta, self.data)))
            bad = np.argwhere(~np.isfinite(found))
            if len(bad):
                terms = dict(zip(self.system.names, found[bad[0][0]].tolist(), strict=True))
                step = number
                break
        name = next((name for name, value in terms.items() if not np.isfinite(value)), "its sum")
        return RunError(
            f"the loss became {terms.get(name, float('inf'))} at step {step}, first in the term {name!r}; "
            f"{self.solver.hint}"
        )

    def solution(self) -> Solution:
        """Of the seed with the lowest loss, those of all seeds beside it."""
        evaluations = np.atleast_1d(np.asarray(self.state.evaluations))
        each = [self._one(at, int(evaluations[at])) for at in range(len(self.history))]
        best = min(each, key=lambda solution: solution.history[-1].loss)
        return best if not self.several else Solution(**{**vars(best), "seeds": tuple(each)})

    def _one(self, at: int, evaluations: int) -> Solution:
        last = self.history[at][-1]
        points = {name: np.asarray(part["x"], np.float64) for name, part in self.drawn[at].items()}
        return Solution(
            fitted=last.fitted,
            points=points,
            history=tuple(self.history[at]),
            steps=self.steps_taken()[at],
            seconds=self.seconds,
            compile_s=self.compile_s,
            parameters=int(self.theta.shape[-1]),
            residual_evaluations=self.beside + (evaluations + self.fits) * sum(map(len, points.values())),
            dtypes={"parameters": str(self.state.theta.dtype), "loss": self.loss_dtype},
            device=str(next(iter(self.state.theta.devices()))),
            peak_memory=peak_memory("jax", self.place),
        )
