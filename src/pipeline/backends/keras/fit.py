"""Keras 3, on the backend that KERAS_BACKEND names when this module is imported (pipeline.backends sees to that).

Models, losses, optimizers and dtype policies are Keras's. The loop is ours, for two reasons: a block of steps runs as
one compiled call with the data resident, which `model.fit` has no way to say, and batches come in the order that every
backend of this package shares. The compiled parts are in engine_tensorflow.py and engine_jax.py, what the frameworks
themselves are set to in settings_tensorflow.py and settings_jax.py.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from pipeline.backends.keras import state
from pipeline.backends.keras.engine import Engine
from pipeline.backends.keras.hlo import flop
from pipeline.backends.shared.keeper import observation_of
from pipeline.backends.shared.made import check_loss, check_optimizer, check_own_optimizer
from pipeline.backends.shared.progress import Watch
from pipeline.datasets import Data
from pipeline.loaders.batch_plan import Plan
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.machine.memory import process_peak_bytes, refuse_too_large
from pipeline.machine.precision import FORMATS, GROWTH_STEPS, bytes_per_number
from pipeline.machine.quiet import quiet_import, quiet_imports
from pipeline.models import Shapes, largest_setting, may_be_too_large, weights
from pipeline.models.start import start_of
from pipeline.profilers import Subject
from pipeline.runs.fit import Fit, Observation, Predictor, Start
from pipeline.runs.weights import Weights, digests

BACKEND = os.environ["KERAS_BACKEND"]
EPSILON = 1e-7  # Keras's own default
if BACKEND == "jax":
    engine_module = quiet_import("pipeline.backends.keras.engine_jax")
    settings_module = quiet_import("pipeline.backends.keras.settings_jax")
else:
    engine_module = quiet_import("pipeline.backends.keras.engine_tensorflow")
    settings_module = quiet_import("pipeline.backends.keras.settings_tensorflow")
keras = quiet_import("keras")
global_state = quiet_import("keras.src.backend.common.global_state")
with quiet_imports():
    from pipeline.backends.keras import net
    from pipeline.backends.keras.blocks import Feed, HeldOut, feeder, run_period
    from pipeline.models import keras_adapters

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

# TensorFlow's operations that draw from a state in the operation, or in a tf.random.Generator.
STATEFUL_DRAWS = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "RngReadAndSkip")
KERAS_SEEDS = ("global_random_seed", "global_seed_generator")


def fit(experiment: Experiment, data: Data, resolved: Resolved, run: Run) -> Fit:
    """Train the experiment's model and return it as NumPy weights. Raises RunError where the run cannot go on."""
    with runtime_settings(experiment, resolved):
        model, parameters, start = initial_model(experiment, data.task.shapes, resolved)
        start = replace(start, digests=digests(weights.from_keras(model), weights.trained_keras(model)))
        optimizer = optimizer_of(experiment, model, resolved)
        watch = Watch(experiment, run, data.task, Plan.of(experiment, len(data.train)), start.adapters)
        engine = engine_module.Engine(experiment, data.task, model, optimizer, widened_loss(experiment))
        watch.keeper.snapshot = lambda: partial(state.write_made, engine.snapshot())
        watch.keeper.keeping.prepare = getattr(engine, "prepare", None)  # JAX copies nothing
        watch.keeper.observation = lambda: engine.observe() if watch.finished else None  # no step is left to observe
        if run.checkpoint is not None:
            engine.put(state.read(run.checkpoint.state, engine.values()))
        feed = feeder(engine, experiment, data, watch)
        held_out = HeldOut(experiment, data, engine_module.Inference(model, experiment, trained=False))
        try:
            watch.profile.attach(_subject(model, engine, data.task.shapes, resolved.place))
            seen = _train(engine, model, feed, held_out, watch)
        finally:
            watch.close()
        engine.sync()
        kept = _validated_weights(engine, model) if watch.best.weights is None else watch.best.weights
        return Fit(
            cpu_threads=settings_module.cpu_threads(),
            weights=kept,
            kept=watch.kept(),
            behind_average=digests(weights.from_keras(model), start.digests) if experiment.training.ema else {},
            epochs=tuple(watch.epochs),
            loss_scale=watch.loss_scale,
            observed=seen or engine.observe(),
            parameters=parameters,
            start=start,
            peak_memory=peak_memory(resolved),
            processes=engine.accounts(),
            files={"model.json": net.description(model)},
        )


def _train(engine: Engine, model: Any, feed: Feed, held_out: HeldOut, watch: Watch) -> Observation | None:
    """Period by period, each validated, to the end. What the steps of the first one showed; None where none is left."""
    run, seen = watch.run, None
    if run.checkpoint is not None:  # it may have been stopped in its last validation
        seen = observation_of(run.checkpoint)
    over = watch.finished
    with watch.keeper.stops_held_back():
        while not over:
            run_period(engine, feed, watch)
            if seen is None:
                seen = engine.observe()
                run.check_seen(seen)
                note_other_draws(run, seen)
            engine.sync()
            with engine.averaged():
                measured = held_out.measured()
            over = watch.end_epoch(measured, partial(_validated_weights, engine, model))
    return seen


def note_other_draws(run: Run, seen: Observation) -> None:
    """That a run which goes on draws anew what TensorFlow's operations draw from a state that nothing reads."""
    drawn = sorted({name for name, _, _ in seen.operations if name.startswith(STATEFUL_DRAWS)})
    if run.checkpoint is not None and drawn:
        run.note(
            f"resume={run.id}: not exact: the model draws from a generator of TensorFlow's ({', '.join(drawn)}), which "
            "starts over; keras.random goes on"
        )


class KerasPredictor(Predictor):
    """The model, with the weights that a run has saved; `compiled`: by backend.xla, too."""

    def __init__(
        self, experiment: Experiment, shapes: Shapes, saved: Weights, resolved: Resolved, *, compiled: bool = False
    ) -> None:
        self.experiment, self.resolved = experiment, resolved
        with self.settings():
            model = net.made(experiment.data_model, shapes)
            weights.to_keras(model, saved, "the saved run")
            self.xla = compiled and bool(experiment.backend.xla)
            self.inference = engine_module.Inference(model, experiment, trained=True, xla=self.xla)

    @property
    def compiled_by(self) -> str | None:
        return "XLA" if self.xla else None

    def settings(self) -> contextlib.AbstractContextManager[None]:
        return runtime_settings(self.experiment, self.resolved)

    def forward(self, x: np.ndarray) -> np.ndarray:
        outputs: np.ndarray = self.inference(x)
        return outputs if outputs.dtype == np.float64 else outputs.astype(np.float32, copy=False)

    def observe(self, x: np.ndarray) -> Observation:
        with self.settings():
            seen: Observation = self.inference.observe(x)
            return seen

    def flop(self, x: np.ndarray) -> float | None:
        with self.settings():
            program = self.inference.hlo(x)
            return None if program is None else flop(program)

    def cpu_threads(self, batch: int) -> int | None:
        found: int | None = settings_module.cpu_threads()
        return found

    def peak_memory(self) -> dict[str, int]:
        return peak_memory(self.resolved)


def predictor(
    experiment: Experiment, shapes: Shapes, saved: Weights, resolved: Resolved, *, compiled: bool = False
) -> Predictor:
    """The experiment's model with these weights. `compiled`: backend.xla is of its passes."""
    return KerasPredictor(experiment, shapes, saved, resolved, compiled=compiled)


def _validated_weights(engine: Engine, model: Any) -> Weights:
    """A copy of the weights that are validated and saved: the moving average, where there is one."""
    with engine.averaged():
        return weights.from_keras(model)


def _subject(model: Any, engine: Engine, shapes: Shapes, place: Place) -> Subject:
    """What a profiler may look at."""

    def current() -> Weights:
        engine.sync()
        return weights.from_keras(model)

    return Subject(model, current, engine.settle, shapes, keras.config.floatx(), place, lambda: engine.compile_s)


def widened_loss(experiment: Experiment) -> Any:
    """The experiment's loss over outputs widened to float32 at least (see pipeline.losses)."""
    loss = experiment.loss.keras()

    def widened(outputs: Any, *targets: Any) -> Any:
        wide = "float64" if outputs.dtype == "float64" else "float32"
        return loss(keras.ops.cast(outputs, wide), *targets)

    return widened


def check_model(experiment: Experiment, shapes: Shapes, resolved: Resolved) -> None:
    """Refuse a model that cannot be trained on examples of these shapes. Raises UserError."""
    with runtime_settings(experiment, resolved):
        _try_model(experiment, shapes, resolved)
    gc.collect()  # Keras's models refer to themselves: this one would take memory beside the one that is trained


def _try_model(experiment: Experiment, shapes: Shapes, resolved: Resolved) -> None:
    model, *_ = initial_model(experiment, shapes, resolved)
    if experiment.optimizer.asks_the_model:
        experiment.kinds_of_update(weights.shapes_keras(model), model.output_shape[-1])
    check_own_optimizer(experiment, lambda: optimizer_of(experiment, model, resolved))


def check_size(experiment: Experiment, shapes: Shapes, resolved: Resolved) -> None:
    """Refuse a model that is too large for the device, without giving it values. Raises UserError."""
    with runtime_settings(experiment, resolved):
        _check_sketch(experiment, shapes, resolved)


@contextlib.contextmanager
def loss_of(experiment: Experiment, resolved: Resolved) -> Iterator[Callable[..., np.ndarray]]:
    """What a training would lower, as a function of arrays."""
    with runtime_settings(experiment, resolved):
        function: Any = experiment.loss.keras()
        check_loss(experiment, function)
        yield lambda *arrays: np.asarray(
            keras.ops.convert_to_numpy(function(*map(keras.ops.convert_to_tensor, arrays)))
        )


def initial_model(experiment: Experiment, shapes: Shapes, resolved: Resolved) -> tuple[Any, int, Start]:
    """The model as training starts from it, how many weights are trained, and whose values they have.

    Keras's generators are seeded first. Raises UserError where it cannot be trained in the memory there is.
    """
    if may_be_too_large(experiment.data_model):
        _check_sketch(experiment, shapes, resolved)
    keras.utils.set_random_seed(experiment.seed)
    model = net.made(experiment.data_model, shapes)
    _check_size(model, experiment, resolved)
    built = weights.from_keras(model)
    trained, names = weights.trained_keras(model), weights.keras_names(model)
    values, start = start_of(experiment, built, trained, names, partial(keras_adapters.dense_layers, model))
    weights.to_keras(model, values, "the initial weights")
    if start.adapters is not None:
        keras_adapters.adapt(model, start.adapters)
    weights.freeze_keras(model, start.frozen)
    return model, _trained(model), start


def _check_sketch(experiment: Experiment, shapes: Shapes, resolved: Resolved) -> None:
    sketch = net.sketch(experiment.data_model, shapes)
    if sketch is not None:
        _check_size(sketch, experiment, resolved)


def _check_size(model: Any, experiment: Experiment, resolved: Resolved) -> None:
    each = bytes_per_number(FORMATS[resolved.precision].parameters)
    numbers = 2 + experiment.optimizer.slots()
    free, setting = free_memory(experiment, resolved), largest_setting(experiment.data_model)
    refuse_too_large(_trained(model), numbers, each, free, str(resolved.place), setting)


def _trained(model: Any) -> int:
    """How many numbers of a model are trained."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def policy_of(precision: str) -> str:
    """Keras's dtype policy of a precision. tf32 is float32 with a switch of the framework's."""
    form = FORMATS[precision]
    return f"mixed_{form.compute}" if form.mixed else form.compute


def optimizer_of(experiment: Experiment, model: Any, resolved: Resolved) -> Any:
    """Keras's optimizer, built for the weights that are trained; scales the loss where the precision asks for it."""
    optimizer: Any = experiment.optimizer.keras()
    check_optimizer(experiment, optimizer, keras.optimizers.Optimizer, "keras.optimizers.Optimizer")
    if experiment.optimizer.several:
        kinds = experiment.kinds_of_update(weights.shapes_keras(model), model.output_shape[-1])
        names = {id(one): name for name, one in weights.variables_keras(model)}
        optimizer.kinds = [kinds[names[id(one)]] for one in model.trainable_variables]
    if FORMATS[resolved.precision].loss_scaling:
        scale = experiment.precision.loss_scale
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, scale, dynamic_growth_steps=GROWTH_STEPS)
    if experiment.optimizer.decay != "all":
        named = weights.variables_keras(model)
        others = [one for name, one in named if not experiment.optimizer.decays(name, tuple(one.shape))]
        getattr(optimizer, "inner_optimizer", optimizer).exclude_from_weight_decay(var_list=others)
    optimizer.build(model.trainable_variables)
    return optimizer


@contextlib.contextmanager
def runtime_settings(experiment: Experiment, resolved: Resolved) -> Iterator[None]:
    """Keras's and the framework's process-wide settings as this run needs them, put back afterwards.

    Also those that Keras reads from the user's ~/.keras/keras.json, which is in no receipt.
    """
    policy, floatx = keras.config.dtype_policy(), keras.config.floatx()
    epsilon, layout = keras.config.epsilon(), keras.config.image_data_format()
    form = FORMATS[resolved.precision]
    with settings_module.runtime_settings(experiment, resolved, form), _random_states():
        keras.config.set_floatx("float64" if form.parameters == "float64" else "float32")
        keras.config.set_dtype_policy(policy_of(resolved.precision))
        keras.config.set_epsilon(EPSILON)
        keras.config.set_image_data_format("channels_last")
        try:
            yield
        finally:
            keras.config.set_floatx(floatx)
            keras.config.set_dtype_policy(policy)
            keras.config.set_epsilon(epsilon)
            keras.config.set_image_data_format(layout)


@contextlib.contextmanager
def _random_states() -> Iterator[None]:
    """Put back the generators that keras.utils.set_random_seed seeds: Python's, NumPy's and Keras's own."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  # the generator that Keras seeds
    own = {name: global_state.get_global_attribute(name) for name in KERAS_SEEDS}
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        for name, value in own.items():
            global_state.set_global_attribute(name, value)


def logical_devices(experiment: Experiment, resolved: Resolved) -> list[str]:
    """Every logical device that the framework makes of this machine under the experiment's settings."""
    with runtime_settings(experiment, resolved):
        return list(settings_module.logical_devices())


def free_memory(experiment: Experiment, resolved: Resolved) -> int:
    """Bytes that can still be had on the run's device."""
    if resolved.place.kind == "gpu":
        return int(settings_module.gpu_free_bytes(resolved.place.index, experiment.device.memory_limit_bytes))
    return int(psutil.virtual_memory().available)


def peak_memory(resolved: Resolved) -> dict[str, int]:
    """Peak bytes: of the process, and on a GPU also what the framework's allocator gave out."""
    peak = {"process_bytes": process_peak_bytes()}
    if resolved.place.kind == "gpu":
        peak["device_bytes"] = int(settings_module.gpu_peak_bytes(resolved.place.index))
    return peak
