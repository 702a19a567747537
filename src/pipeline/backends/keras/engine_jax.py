"""The compiled part of Keras on JAX: a block of optimizer steps as one jitted loop over the model's state."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from pipeline.backends.keras.devices_jax import Several, devices_of, near
from pipeline.backends.keras.hlo import products
from pipeline.backends.keras.net import attention, called
from pipeline.backends.keras.tf32 import by_program
from pipeline.backends.keras.updates import bounded, control_of, moved_average
from pipeline.loaders import padded
from pipeline.loaders.batch_plan import Block
from pipeline.runs.fit import ON_CPU, PASS, Observation
from pipeline.tasks import Task

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

OPS = jnp  # what a task may need (pipeline.tasks.Ops)
PRODUCTS = ("dot_general", "conv_general_dilated")
LEFT_OUT = "xla_disable_hlo_passes"  # a program's option of this name replaces the one in XLA_FLAGS


class Engine:
    """A model, its optimizer and its loss; their variables are carried as a value from call to call."""

    def __init__(self, experiment: Experiment, task: Task, model: Any, optimizer: Any, loss: Any) -> None:
        self.task = task
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.batch_size = experiment.training.batch_size
        self.variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        self.training = experiment.training
        # Not donated to the program: Keras's variables share these buffers, and a block is long beside one copy.
        values = tuple([v.value for v in group] for group in self.variables)
        self.devices = devices_of(experiment.device)
        self.state: tuple[Any, ...] = self.devices.placed((*values, self._beside(values[0])))
        rate = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
        self.rate_at = next((at for at, variable in enumerate(optimizer.variables) if variable is rate), None)
        scale = getattr(optimizer, "dynamic_scale", None)  # of Keras's LossScaleOptimizer alone
        self.scale_at = next((at for at, variable in enumerate(optimizer.variables) if variable is scale), None)
        if isinstance(self.devices, Several):
            self.sync()  # or the variables would hold the whole model on the first device until the first validation
        self._programs: dict[tuple[int, ...], Any] = {}
        self._jaxpr: Any = None
        self.compile_s = 0.0
        self.untimed = 0

    def _beside(self, trained: list[Any]) -> dict[str, list[Any]]:
        """What is carried beside Keras's own: gradients of the step's batches so far, and the weights' average."""
        many = self.training.accumulate > 1
        found = {"gathered": [jnp.zeros_like(widened(value)) for value in trained]} if many else {}
        return found | ({"average": list(map(widened, trained))} if self.training.ema else {})

    def resident(self, x: np.ndarray, y: np.ndarray, steps: int) -> None:
        """Put the training data on the device; blocks are of `steps` steps at most."""
        self.x, self.y = self.devices.everywhere((jnp.asarray(x), jnp.asarray(y)))
        self.steps = steps

    def block(self, block: Block) -> tuple[np.ndarray, ...]:
        count, indices = len(block), padded(block.rows, self.steps, self.batch_size)  # the program runs `count` steps
        control = self._control(control_of(block, len(indices)))
        found = self._call(self._run_block, indices.shape, indices, np.int32(count), self.x, self.y, control)
        return tuple(np.asarray(each)[:count] for each in found)

    def _control(self, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """In the dtypes that the step takes."""
        wide = keras.config.floatx()
        return {name: each if name == "update" else each.astype(wide) for name, each in found.items()}

    def batch(self, x: Any, y: Any, block: Block) -> tuple[Any, ...]:
        x, y = jnp.asarray(x), jnp.asarray(y)
        y = y.astype(jnp.int32) if jnp.issubdtype(y.dtype, jnp.integer) else y
        control = {name: each[0] for name, each in self._control(control_of(block, 1)).items()}
        found = self._call(self._step, x.shape, x, y, control)
        self.loss_so_far = found[0]
        return found

    def waiter(self) -> Callable[[], Any]:
        return partial(jax.block_until_ready, self.loss_so_far)

    def settle(self) -> None:
        """Wait until the device has done the steps so far."""
        jax.block_until_ready(self.state)

    def values(self) -> list[np.ndarray]:
        """All that decides the rest of the training, copied."""
        return [np.array(value) for value in jax.tree.leaves(self.state)]

    def snapshot(self) -> Callable[[], list[np.ndarray]]:
        """What gives the values of now, later and from another thread: JAX's arrays do not change."""
        leaves = jax.tree.leaves(self.state)
        return lambda: [np.asarray(leaf) for leaf in leaves]

    def put(self, values: list[np.ndarray]) -> None:
        """Put back what `values` returned."""
        leaves, form = jax.tree.flatten(self.state)
        restored = [jnp.asarray(value, old.dtype) for value, old in zip(values, leaves, strict=True)]
        self.state = self.devices.placed(jax.tree.unflatten(form, restored))
        self.sync()

    def sync(self) -> None:
        """Write the carried values into the Keras variables."""
        for group, values in zip(self.variables, self.state[:3], strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The moving average in the place of the weights, which `sync` has written into the variables."""
        if self.training.ema:
            for variable, value in zip(self.variables[0], self.state[3]["average"], strict=True):
                variable.assign(value)
        try:
            yield
        finally:
            self.sync()

    def _call(self, function: Any, shape: tuple[int, ...], *arguments: Any) -> tuple[Any, ...]:
        """Run `function(state, *arguments)`, compiled once for each shape, and keep the state it returns.

        What else it returns is still on the device, and may still be computed.
        """
        if shape not in self._programs:
            started = time.perf_counter()
            traced = jax.jit(function, out_shardings=self.devices.places(self.state)).trace(self.state, *arguments)
            self._jaxpr = self._jaxpr or traced.jaxpr
            self._programs[shape] = traced.lower().compile(self._compiler_options())
            self.compile_s += time.perf_counter() - started
        self.state, found = self._programs[shape](self.state, *arguments)
        return tuple(found)

    def _compiler_options(self) -> dict[str, str]:
        """XLA for CPUs drops barriers early, with what it is to keep apart (`models.keras_layers.computed_once`)."""
        device = next(iter(self.state[0][0].devices()))
        if device.platform != "cpu":
            return {}
        return {LEFT_OUT: ",".join([*left_out(os.environ.get("XLA_FLAGS", "")), "cse_barrier_expander"])}

    def _loss(self, trainable: Any, fixed: Any, optimizer: Any, x: Any, y: Any, control: Any) -> tuple[Any, Any]:
        outputs, fixed = called(self.model, trainable, fixed, x, training=True)
        outputs = widened(outputs)
        loss = self.task.loss_of(self.loss, jnp, outputs, y)
        with keras.StatelessScope(list(zip(self.optimizer.variables, optimizer, strict=True))):
            scaled = self.optimizer.scale_loss(loss * control["share"] if "share" in control else loss)
        return scaled, (loss, outputs, fixed)

    def _step(self, state: Any, x: Any, y: Any, control: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        trainable, fixed, optimizer, beside = state
        x, y = self.devices.by_rows(x, y)
        gradient = jax.grad(self._loss, has_aux=True)
        gradients, (loss, outputs, fixed) = gradient(trainable, fixed, optimizer, x, y, control)
        with jax.named_scope("optimizer"):
            trainable, optimizer, beside, norm = self._update((trainable, optimizer, beside), gradients, control)
        scores = self._scores(outputs, y)
        scale = () if self.scale_at is None else (optimizer[self.scale_at],)
        return (trainable, fixed, optimizer, beside), (loss, scores, *scale, *(() if norm is None else (norm,)))

    def _update(self, state: Any, gradients: list[Any], control: dict[str, Any]) -> tuple[Any, ...]:
        """Update the weights, after a step's last batch. Returns the state, and the gradient's norm where measured."""
        if "update" not in control:
            return self._apply(state, gradients, control)
        trainable, optimizer, beside = state
        gathered = [total + gradient for total, gradient in zip(beside["gathered"], gradients, strict=True)]
        wide = keras.config.floatx()  # of the norm, whatever the weights are in

        def apply() -> tuple[Any, ...]:
            summed = [total.astype(value.dtype) for total, value in zip(gathered, trainable, strict=True)]
            *new, now, norm = self._apply(state, summed, control)
            empty = [jnp.zeros_like(total) for total in gathered]
            return *new, {**now, "gathered": empty}, None if norm is None else norm.astype(wide)

        def wait() -> tuple[Any, ...]:
            nothing = jnp.zeros((), wide) if self.training.needs_norm else None
            return trainable, optimizer, {**beside, "gathered": gathered}, nothing

        found: tuple[Any, ...] = jax.lax.cond(control["update"], apply, wait)
        return found

    def _apply(self, state: Any, gradients: list[Any], control: dict[str, Any]) -> tuple[Any, ...]:
        trainable, optimizer, beside = state
        scale = None if self.scale_at is None else optimizer[self.scale_at]
        gradients, norm = bounded(gradients, self.training, scale)
        if "rate" in control:
            assert self.rate_at is not None
            rate = control["rate"].astype(optimizer[self.rate_at].dtype)
            optimizer = [rate if at == self.rate_at else value for at, value in enumerate(optimizer)]
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        if self.training.ema:
            pairs = zip(beside["average"], trainable, strict=True)
            beside = {**beside, "average": [moved_average(kept, new, self.training.ema) for kept, new in pairs]}
        return trainable, optimizer, beside, norm

    def _scores(self, outputs: Any, y: Any) -> Any:
        """The sum of the batch's scores; in fp64 an error of a regression is in float64, as the test's is."""
        wide = jnp.dtype(keras.config.floatx())
        if self.task.score is None:
            return jnp.zeros((), wide)
        return self.task.scores(jnp, outputs, y).sum().astype(wide)

    def _run_block(
        self, state: Any, rows: Any, count: Any, x: Any, y: Any, control: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        wide = jnp.dtype(keras.config.floatx())
        dtypes = [wide, wide]  # of loss, sum of scores, loss scale and gradient's norm
        dtypes += [jnp.float32] * (self.scale_at is not None) + [wide] * self.training.needs_norm

        def step(i: Any, carried: Any) -> Any:
            state, found = carried
            with jax.named_scope("data"):
                batch = x[rows[i]], y[rows[i]]
            state, now = self._step(state, *batch, {name: each[i] for name, each in control.items()})
            return state, tuple(kept.at[i].set(new.astype(kept.dtype)) for kept, new in zip(found, now, strict=True))

        return jax.lax.fori_loop(0, count, step, (state, tuple(jnp.zeros(len(rows), dtype) for dtype in dtypes)))

    def accounts(self) -> dict[str, object] | None:
        """For the receipt: what lay on which device, of a training by several."""
        return self.devices.accounts(self.state[0], self.program() if self._programs else "")

    def program(self) -> str:
        """What XLA made of the first call, as HLO text."""
        text: str = next(iter(self._programs.values())).as_text()
        return text

    def observe(self) -> Observation:
        """The operations of the program that was traced, and the matrix products that XLA made of it."""
        assert self._jaxpr is not None, "observe() before the first step"
        # One program for the device, or the devices, of the state, which the program gave back.
        return observed("the training step", self._jaxpr, self.program(), self.state[0][0].devices(), self.model)


def observed(what: str, jaxpr: Any, program: str, on: set[Any], model: Any) -> Observation:
    """What a compiled program runs. `jaxpr`: as it was traced; `program`: what XLA made of it, as HLO text."""
    devices = sorted(map(str, on))
    count = "the one device" if len(devices) == 1 else f"{len(devices)} devices"
    seen = Observation(how=f"jaxpr of {what}, compiled as one program for {count}")
    for equation in _equations(jaxpr.jaxpr):
        dtype = next((str(made.aval.dtype) for made in equation.outvars if hasattr(made.aval, "dtype")), "-")
        seen.operations.update((equation.primitive.name, device, dtype) for device in devices)
        seen.devices.update(devices)
        if equation.primitive.name in PRODUCTS:
            seen.matmuls[str(equation.invars[0].aval.dtype)] += 1
            seen.product_devices.update(devices)
    seen.attention = attention(model)
    seen.compiled = Counter(products(program))
    on_cpu = next(iter(on)).platform == "cpu"
    seen.tf32, seen.tf32_by = (False, ON_CPU) if on_cpu else by_program(program, "the compiled program")
    return seen


def widened(outputs: Any) -> Any:
    """Outputs, or weights, in float32 at least, as a loss, a score, an average and a sum of gradients take them."""
    return outputs.astype(jnp.float32) if outputs.dtype in (jnp.float16, jnp.bfloat16) else outputs


class Inference:
    """A compiled function from a batch to outputs. `model.predict` would import TensorFlow for its data adapters.

    `trained`: the weights stay as they are, and are not asked for at each call, which takes a microsecond a variable.
    `xla`: it is compiled in any case.
    """

    def __init__(self, model: Any, experiment: Experiment, *, trained: bool, xla: bool = False) -> None:
        self.model = model

        @jax.jit
        def forward(trainable: Any, fixed: Any, x: Any) -> Any:
            return called(model, trainable, fixed, x, training=False)[0]

        self._forward = forward
        self._kept = self._values() if trained else None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self._forward(*self._arguments(x)).astype(keras.config.floatx()))

    def observe(self, x: np.ndarray) -> Observation:
        """What a pass over a batch runs."""
        arguments = self._arguments(x)
        traced = self._forward.trace(*arguments)
        return observed(PASS, traced.jaxpr, traced.lower().compile().as_text(), arguments[2].devices(), self.model)

    def hlo(self, x: np.ndarray) -> str:
        """The program that XLA is given for a batch."""
        text: str = self._forward.lower(*self._arguments(x)).as_text("hlo")
        return text

    def _arguments(self, x: np.ndarray) -> tuple[list[Any], list[Any], Any]:
        trainable, fixed = self._kept or self._values()
        return trainable, fixed, near(trainable, x)

    def _values(self) -> tuple[list[Any], list[Any]]:
        """Of the weights that are trained, and of the others."""
        variables = self.model.trainable_variables, self.model.non_trainable_variables
        trainable, fixed = ([variable.value for variable in group] for group in variables)
        return trainable, fixed


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of the jaxprs inside it (loops, calls)."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (list, tuple)) else [value]:
                inside = getattr(inner, "jaxpr", inner)
                if hasattr(inside, "eqns"):
                    yield from _equations(inside)


def left_out(flags: str) -> list[str]:
    """The passes that the user's XLA_FLAGS leave out."""
    given = (word.partition("=")[2] for word in flags.split() if word.startswith(f"--{LEFT_OUT}="))
    return [one for each in given for one in each.strip("'\"").split(",") if one]
