"""A training by DeepXDE, from its data to our Solution."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contracts.physics import Network, Problem
from pipeline.errors import Stopped
from pipeline.pinn.problem import terms_of
from pipeline.pinn.solution import Solution
from pipeline.pinn.solvers.deepxde_lbfgs import lbfgs
from pipeline.pinn.solvers.deepxde_network import device_of, fitted_of
from pipeline.pinn.solvers.deepxde_problem import data_of, output_transform
from pipeline.pinn.solvers.deepxde_watch import Watch
from pipeline.pinn.solvers.peak_memory import peak_memory

if TYPE_CHECKING:
    from pipeline.machine.device import Place
    from pipeline.pinn.solvers.deepxde_adam import DeepxdeAdam
    from pipeline.runs.run import Run


def train(
    dde: ModuleType, solver: DeepxdeAdam, problem: Problem, model: Network, *, backend: str, place: Place, run: Run
) -> Solution:
    """Adam, then L-BFGS where the solver has it."""
    called = time.perf_counter()
    unknowns = {name: _variable(dde, backend, guess) for name, guess in problem.unknowns.items()}
    learner = _learner(dde, solver, problem, model, backend, unknowns)
    steps = solver.steps_for(problem), solver.lbfgs_steps_for(problem)
    watch = Watch(learner, problem, backend, unknowns, run, steps, called)
    callback = watch.callback(dde)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # which a bar on a terminal has taken back
            evaluations = _adam(dde, solver, watch, callback)
            if watch.steps[1]:
                evaluations += _lbfgs(dde, watch, callback)
    finally:
        watch.close()
    fitted = fitted_of(learner, backend, unknowns, problem.recipe.hard)
    return Solution(
        fitted=fitted,
        points=points_of(problem, learner.data),
        history=tuple(watch.history),
        steps=watch.history[-1].step,
        seconds=watch.seconds,
        compile_s=None,
        parameters=sum(kernel.size + bias.size for kernel, bias in fitted.layers) + len(unknowns),
        residual_evaluations=evaluations * len(learner.data.train_x),
        dtypes={
            "parameters": str(fitted.layers[0][0].dtype),
            "loss": str(np.asarray(learner.train_state.loss_train).dtype),
        },
        peak_memory=peak_memory(backend, place),
        device=device_of(learner, backend),
    )


def _learner(
    dde: ModuleType,
    solver: DeepxdeAdam,
    problem: Problem,
    model: Network,
    backend: str,
    unknowns: Mapping[str, Any],
) -> Any:
    """DeepXDE's model: the data that the problem's recipe asks for, and the network."""
    recipe = problem.recipe
    data = data_of(dde, problem, backend, solver.test_points or recipe.test_points, unknowns)
    net = dde.nn.FNN(model.sizes(problem), model.activation, _initializer(dde, backend, recipe.initializer))
    if recipe.hard:
        net.apply_output_transform(output_transform(problem, backend))
    learner = dde.Model(data, net)
    if backend == "jax":
        _initialise(dde, learner)
    return learner


def _adam(dde: ModuleType, solver: DeepxdeAdam, watch: Watch, callback: Any) -> int:
    """The steps of Adam that are left. Returns how many evaluations of the loss its steps are, those of before too."""
    learner, run, (steps, lbfgs_steps) = watch.learner, watch.run, watch.steps
    adam = watch.state.adam(dde, solver.learning_rate)
    learner.compile(adam, lr=solver.learning_rate, external_trainable_variables=list(watch.unknowns.values()))
    if run.checkpoint is not None:
        watch.restore(run.checkpoint)
    left = steps - int(learner.train_state.step)
    if left:
        with watch.keeping.stops_held_back():
            learner.train(iterations=left, display_every=solver.every, callbacks=[callback], verbose=0)
        if lbfgs_steps and watch.keeping.active:
            watch.keeping.save(steps, watch.contents)
    return steps


def _lbfgs(dde: ModuleType, watch: Watch, callback: Any) -> int:
    """L-BFGS from where Adam has ended. Returns how often it has evaluated the loss."""
    run, (steps, lbfgs_steps) = watch.run, watch.steps
    watch.method = "L-BFGS"
    with _says_where_it_goes_on(run, steps, watch):
        evaluations = lbfgs(dde, watch.learner, lbfgs_steps, list(watch.unknowns.values()), callback, watch.backend)
    watch.look()  # DeepXDE does not report the last block where it makes no progress
    taken = watch.history[-1].step - steps
    if taken < lbfgs_steps:
        run.note(f"L-BFGS ended after {taken:,} of {lbfgs_steps:,} steps: it found nothing more to gain")
    return evaluations


@contextlib.contextmanager
def _says_where_it_goes_on(run: Run, steps: int, watch: Watch) -> Iterator[None]:
    """Round L-BFGS, which has no checkpoints."""
    try:
        yield
    except Stopped:
        if watch.keeping.active:
            run.say(f"stopped in L-BFGS, which has no checkpoints; resume={run.id} starts it over at step {steps:,}")
        raise


def _initializer(dde: ModuleType, backend: str, name: str) -> Any:
    """DeepXDE makes those for TensorFlow while it is imported, before the seed is set: here made again."""
    return dde.nn.initializers.initializer_dict_tf()[name] if backend == "tensorflow" else name


def _initialise(dde: ModuleType, learner: Any) -> None:
    """Draw the parameters as DeepXDE would, in the float that is set: flax makes them float32 whatever that is."""
    import jax

    net, dtype = learner.net, dde.config.real(np)
    drawn = net.init(jax.random.PRNGKey(dde.config.jax_random_seed), learner.data.test()[0])
    net.params = jax.tree.map(lambda array: array.astype(dtype), drawn)
    learner.params = [net.params, []]  # not drawn again then


def _variable(dde: ModuleType, backend: str, guess: float) -> Any:
    """A coefficient to be found."""
    if backend == "tensorflow":
        return dde.Variable(guess, dtype=dde.config.default_float())
    return dde.Variable(guess)


def points_of(problem: Problem, data: Any) -> dict[str, np.ndarray]:
    """What was trained on, by part."""
    conditions = terms_of(problem, problem.recipe.hard)
    if not hasattr(data, "num_bcs"):
        return {conditions[0].name: np.asarray(data.train_x, np.float64)}
    ends = np.cumsum([0, *data.num_bcs])
    found = {"inside": np.asarray(data.train_x[ends[-1] :], np.float64)} if problem.equations else {}
    for condition, start, end in zip(conditions, ends, ends[1:], strict=False):
        found[condition.name] = np.asarray(data.train_x[start:end], np.float64)
    return {name: points for name, points in found.items() if len(points)}
