"""A training by DeepXDE, watched: loss and terms into the journal, a progress bar, a stop at what is no number."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.backends.memory import process_peak_bytes
from pipeline.errors import RunError
from pipeline.exits import raise_if_stopped
from pipeline.pinn.problem import Problem, recipe_of
from pipeline.pinn.solution import Fitted, Layers, Moment, Solution
from pipeline.solvers.deepxde_problem import data_of

if TYPE_CHECKING:
    from pipeline.device import Place
    from pipeline.run import Run
    from pipeline.solvers.deepxde_adam import DeepxdeAdam

LBFGS_BLOCK = 1000  # steps between which DeepXDE itself comes to look, at the most


def train(
    dde: ModuleType, solver: DeepxdeAdam, problem: Problem, model: Any, *, backend: str, place: Place, run: Run
) -> Solution:
    """Adam, then L-BFGS where the solver has it."""
    unknowns = {name: _variable(dde, backend, guess) for name, guess in problem.unknowns.items()}
    test_points = solver.test_points or recipe_of(problem).test_points
    data = data_of(dde, problem, backend, test_points, unknowns)
    net = dde.nn.FNN(model.sizes(problem), model.activation, "Glorot uniform")
    learner = dde.Model(data, net)
    if backend == "jax":
        _initialise(dde, learner)
    steps, lbfgs_steps = solver.steps_for(problem), getattr(solver, "lbfgs_steps", 0)
    watch = watch_for(dde)(problem, backend, unknowns, run, steps + lbfgs_steps)
    started = time.perf_counter()
    try:
        learner.compile("adam", lr=solver.learning_rate, external_trainable_variables=list(unknowns.values()))
        learner.train(iterations=steps, display_every=solver.every, callbacks=[watch], verbose=0)
        evaluations = steps
        if lbfgs_steps:
            watch.method = "L-BFGS"
            evaluations += _lbfgs(dde, learner, lbfgs_steps, list(unknowns.values()), watch, backend)
    finally:
        watch.close()
    fitted = fitted_of(learner, backend, unknowns)
    last = watch.history[-1]
    return Solution(
        fitted=fitted,
        points=points_of(problem, data),
        history=tuple(watch.history),
        steps=last.step,
        seconds=watch.seconds,
        compile_s=max(0.0, time.perf_counter() - started - watch.seconds),
        parameters=sum(kernel.size + bias.size for kernel, bias in fitted.layers) + len(unknowns),
        residual_evaluations=evaluations * len(data.train_x),
        dtypes={
            "parameters": str(fitted.layers[0][0].dtype),
            "loss": str(np.asarray(learner.train_state.loss_train).dtype),
        },
        peak_memory=peak_memory(backend, place),
        device=device_of(learner, backend),
    )


def _initialise(dde: ModuleType, learner: Any) -> None:
    """Draw the parameters as DeepXDE would, in the float that it was told: flax makes them float32 whatever that is."""
    import jax

    net, dtype = learner.net, dde.config.real(np)
    drawn = net.init(jax.random.PRNGKey(dde.config.jax_random_seed), learner.data.test()[0])
    net.params = jax.tree.map(lambda array: array.astype(dtype), drawn)
    learner.params = [net.params, []]  # not drawn again then


def _lbfgs(dde: ModuleType, learner: Any, steps: int, unknowns: list[Any], watch: Any, backend: str) -> int:
    """Run it; returns how often it has evaluated the loss.

    torch's comes in blocks of 1,000 whatever `maxiter` says, so the block is set beside it: a part of `steps`.
    """
    options = dde.optimizers.config.LBFGS_options
    before = dict(options)
    dde.optimizers.set_LBFGS_options(maxiter=steps)
    blocks = math.ceil(steps / LBFGS_BLOCK)
    options["iter_per_step"] = math.ceil(steps / blocks)
    options["fun_per_step"] = math.ceil(options["iter_per_step"] * 1.25)
    try:
        learner.compile("L-BFGS", external_trainable_variables=unknowns)
        counted = _counted(learner) if backend == "tensorflow" else None
        learner.train(display_every=1, callbacks=[watch], verbose=0)
        watch.look()  # the last block is not told of where nothing was left to gain
        if counted is not None:
            return sum(counted)
        return int(learner.opt.state_dict()["state"][0]["func_evals"])
    finally:
        options.clear()
        options.update(before)


def _counted(learner: Any) -> list[int]:
    """The evaluations of each call of TensorFlow Probability's L-BFGS, as they come."""
    step, counts = learner.train_step, []

    def counting(*arguments: Any) -> Any:
        found = step(*arguments)
        counts.append(int(found.num_objective_evaluations))
        return found

    learner.train_step = counting
    return counts


def _variable(dde: ModuleType, backend: str, guess: float) -> Any:
    """A coefficient to be found."""
    if backend == "tensorflow":
        return dde.Variable(guess, dtype=dde.config.default_float())
    return dde.Variable(guess)


def watch_for(dde: ModuleType) -> Any:
    """The callback's class: its base exists when DeepXDE has been imported."""

    class Watch(dde.callbacks.Callback):  # type: ignore[name-defined]
        """Looks on where DeepXDE has taken the losses."""

        def __init__(self, problem: Problem, backend: str, unknowns: Mapping[str, Any], run: Run, total: int) -> None:
            super().__init__()
            self.names = [*problem.equations, *(condition.name for condition in problem.conditions())]
            self.backend, self.unknowns, self.run = backend, unknowns, run
            self.progress, self.total, self.method = run.progress("training", total=total), total, "Adam"
            self.history: list[Moment] = []
            self.seen = 0  # rows of DeepXDE's history
            self.shown = 0
            self.seconds = 0.0
            self.resumed: float | None = None

        def on_train_begin(self) -> None:
            self.look()
            self.resumed = time.perf_counter()

        def on_train_end(self) -> None:
            self._pause()

        def on_batch_end(self) -> None:
            raise_if_stopped()
            if len(self.model.losshistory.steps) > self.seen:
                self.look()

        def _pause(self) -> None:
            if self.resumed is not None:
                self.seconds += time.perf_counter() - self.resumed
                self.resumed = None

        def look(self) -> None:
            """One record for what DeepXDE has seen since. Raises RunError for a term that is no number."""
            running = self.resumed is not None
            self._pause()
            told = self.model.losshistory
            for step, losses, tests in list(zip(told.steps, told.loss_train, told.loss_test, strict=True))[self.seen :]:
                self._record(int(step), np.atleast_1d(losses), np.atleast_1d(tests))
            self.seen = len(told.steps)
            if running:
                self.resumed = time.perf_counter()

        def _record(self, step: int, losses: np.ndarray, tests: np.ndarray) -> None:
            terms = dict(zip(self.names, map(float, losses), strict=True))
            loss = sum(terms.values())
            for name, value in terms.items():
                if not math.isfinite(value):
                    raise RunError(
                        f"the loss became {value} by step {step}, first in the term {name!r} (a look each solver.every "
                        "steps); try a smaller solver.learning_rate or precision=fp64"
                    )
            if self.history and self.history[-1].step == step:
                return  # where Adam ended, L-BFGS begins
            fitted = fitted_of(self.model, self.backend, self.unknowns)
            self.history.append(Moment(step, self.seconds, loss, terms, fitted))
            figures = {"train/loss": loss, "test/loss": float(np.sum(tests))}
            self.run.log({**figures, **{f"train/{name}": value for name, value in terms.items()}}, step)
            self.progress.advance(step - self.shown, f"{self.method}  step {step:,}  loss {loss:.3e}")
            self.shown = step

        def close(self) -> None:
            """Take the progress bar down."""
            self.progress.close()

    return Watch


def fitted_of(learner: Any, backend: str, unknowns: Mapping[str, Any]) -> Fitted:
    """The network as it stands."""
    plain = {name: value.value if backend == "jax" else value for name, value in unknowns.items()}
    found = {name: float(_numpy(value, backend)) for name, value in plain.items()}
    return Fitted(layers_of(learner.net, backend), unknowns=found)


def layers_of(net: Any, backend: str) -> Layers:
    """The layers as kernels (inputs, outputs) and biases."""
    if backend == "torch":
        return tuple((_numpy(layer.weight, backend).T.copy(), _numpy(layer.bias, backend)) for layer in net.linears)
    if backend == "tensorflow":
        return tuple((layer.kernel.numpy(), layer.bias.numpy()) for layer in net.denses)
    tree = net.params["params"]
    layers = [tree[f"denses_{number}"] for number in range(len(tree))]
    return tuple((np.asarray(layer["kernel"]), np.asarray(layer["bias"])) for layer in layers)


def _numpy(value: Any, backend: str) -> np.ndarray:
    if backend == "torch":
        return value.detach().cpu().numpy().copy()
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def points_of(problem: Problem, data: Any) -> dict[str, np.ndarray]:
    """What was trained on, by part."""
    conditions = problem.conditions()
    if not hasattr(data, "num_bcs"):
        return {conditions[0].name: np.asarray(data.train_x, np.float64)}
    ends = np.cumsum([0, *data.num_bcs])
    found = {"inside": np.asarray(data.train_x[ends[-1] :], np.float64)}
    for condition, start, end in zip(conditions, ends, ends[1:], strict=False):
        found[condition.name] = np.asarray(data.train_x[start:end], np.float64)
    return {name: points for name, points in found.items() if len(points)}


def peak_memory(backend: str, place: Place) -> dict[str, int]:
    """Peak bytes: of the process, and on a GPU also what the framework's allocator gave out."""
    peak = {"process_bytes": process_peak_bytes()}
    if place.kind == "cpu":
        return peak
    if backend == "torch":
        import torch

        given = torch.cuda.max_memory_allocated(place.torch)
    elif backend == "tensorflow":
        import tensorflow as tf

        given = tf.config.experimental.get_memory_info(f"GPU:{place.index}")["peak"]
    else:
        import jax

        given = jax.devices("cuda")[place.index].memory_stats()["peak_bytes_in_use"]
    return {**peak, "device_bytes": int(given)}


def device_of(learner: Any, backend: str) -> str:
    """Where the parameters lie, by the framework's name."""
    if backend == "torch":
        return str(learner.net.linears[0].weight.device)
    if backend == "tensorflow":
        return str(learner.net.denses[0].kernel.value.device)
    (device,) = learner.net.params["params"]["denses_0"]["kernel"].devices()
    return str(device)
