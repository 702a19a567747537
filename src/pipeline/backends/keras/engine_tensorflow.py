"""The compiled part of Keras on TensorFlow: a block of steps as one tf.function, by XLA unless `xla` is false."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.layers.convolutional.base_conv import BaseConv
from keras.src.random.seed_generator import global_seed_generator

from pipeline.backends.keras import autograph, tensorflow_graph
from pipeline.backends.keras.hlo import products
from pipeline.backends.keras.net import attention
from pipeline.backends.keras.tf32 import by_program
from pipeline.backends.keras.updates import bounded, control_of, moved_average
from pipeline.backends.keras.xla_lacks import xla_explained
from pipeline.loaders import padded
from pipeline.loaders.batch_plan import Block
from pipeline.runs.fit import NOT_SEEN, ON_CPU, PASS, Observation
from pipeline.tasks import Task

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

# What a task may need (pipeline.tasks.Ops). Not keras.ops.argmax, which looks for negative zeros first.
OPS = SimpleNamespace(
    argmax=lambda x, axis: tf.argmax(x, axis, output_type=tf.int32),
    reshape=tf.reshape,
    abs=tf.abs,
    square=tf.square,
    sum=lambda x, axis: tf.reduce_sum(tf.cast(x, tf.int32) if x.dtype == tf.bool else x, axis),
)
PRODUCTS = (
    *("MatMul", "BatchMatMulV2", "Einsum"),
    *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    *("DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter"),
    *("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
)

COPIES = 4  # threads that copy a snapshot; NumPy lets go of the interpreter meanwhile


class Engine:
    """A model, its optimizer and its loss, stepped together. `compile_s` is that of all its programs."""

    def __init__(self, experiment: Experiment, task: Task, model: Any, optimizer: Any, loss: Any) -> None:
        self.task = task
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.scales_loss = hasattr(optimizer, "dynamic_scale")  # Keras's LossScaleOptimizer
        self.rate = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
        self.training = experiment.training
        self.trained = model.trainable_variables
        # Beside Keras's own: gradients of the step's batches so far, and the moving average of the weights.
        many = experiment.training.accumulate > 1
        self.gathered = [tf.Variable(tf.zeros_like(widened(v.value))) for v in self.trained] if many else []
        self.buffers: list[np.ndarray] = []  # of the snapshots
        self.average = [tf.Variable(widened(v.value)) for v in self.trained] if experiment.training.ema else []
        self.batch_size = experiment.training.batch_size
        self.xla = _worth_compiling(model) if experiment.backend.xla is None else experiment.backend.xla
        users = autograph.is_needed(task, experiment.loss, experiment.optimizer, experiment.data_model)
        # What user code may draw from without a seed. Keras would make it in the first step: too late to be put back.
        self.drawn = [global_seed_generator().state.value] if users else []
        traced = partial(tf.function, jit_compile=self.xla, autograph=users)
        self._block = traced(self._run_block)
        self._batch = traced(self._step, reduce_retracing=True)
        self._ran: tuple[Any, tuple[Any, ...], str] | None = None  # the first function, its arguments, and where
        self.compiled: set[tuple[int, ...]] = set()  # shapes of the blocks that have a program
        self.batches: set[tuple[int, ...]] = set()  # and of the single batches
        self.compile_s = 0.0
        self.untimed = 0

    def resident(self, x: np.ndarray, y: np.ndarray, steps: int) -> None:
        """Put the training data on the device; blocks are of `steps` steps at most."""
        self.x, self.y, self.steps = tf.convert_to_tensor(x), tf.convert_to_tensor(y), steps

    def block(self, block: Block) -> tuple[np.ndarray, ...]:
        count, indices = len(block), padded(block.rows, self.steps, self.batch_size)  # the program runs `count` steps
        control = self._control(control_of(block, len(indices)))
        arguments = (tf.constant(indices), tf.constant(count), self.x, self.y, control)
        if indices.shape not in self.compiled:
            with xla_explained():
                self._compile_block(indices, control)
        found = self._block(*arguments)
        self._ran = self._ran or (self._block, arguments, found[0].device)
        return tuple(each.numpy()[:count] for each in found)

    def _control(self, found: dict[str, np.ndarray]) -> dict[str, Any]:
        """As tensors, in the dtypes that the step takes."""
        wide = keras.config.floatx()
        return {name: tf.constant(each, None if name == "update" else wide) for name, each in found.items()}

    def _compile_block(self, indices: np.ndarray, control: dict[str, Any]) -> None:
        """TensorFlow compiles in the first call: here one of no steps, which changes nothing and can be timed."""
        started = time.perf_counter()
        self._block(tf.constant(indices), tf.constant(0), self.x, self.y, control)
        self.compile_s += time.perf_counter() - started
        self.compiled.add(indices.shape)

    def batch(self, x: Any, y: Any, block: Block) -> tuple[Any, ...]:
        x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
        control = {name: each[0] for name, each in self._control(control_of(block, 1)).items()}
        arguments = (x, tf.cast(y, tf.int32) if y.dtype.is_integer else y, control)
        result = self._batch(*arguments) if tuple(x.shape) in self.batches else self._first(arguments)
        self._ran = self._ran or (self._batch, arguments, result[0].device)
        self.loss_so_far = result[0]
        return tuple(result)

    def _first(self, arguments: tuple[Any, ...]) -> Any:
        """The first step of a shape, which compiles: it is counted as that, the one step with it."""
        started = time.perf_counter()
        with xla_explained():
            result = self._batch(*arguments)
        result[0].numpy()
        self.compile_s += time.perf_counter() - started
        self.untimed += len(arguments[0])
        self.batches.add(tuple(arguments[0].shape))
        return result

    def waiter(self) -> Callable[[], Any]:
        return self.loss_so_far.numpy

    def settle(self) -> None:
        """Wait until the device has done the steps so far: a GPU does them in turn, so reading one number waits."""
        self.optimizer.iterations.numpy()

    def values(self) -> list[np.ndarray]:
        """All that decides the rest of the training, copied."""
        return [np.asarray(variable.numpy()) for variable in self._kept()]

    def _tensors(self) -> list[np.ndarray]:
        """The values, not copied: a tensor does not change, only the variable does."""
        return [np.asarray(variable.read_value()) for variable in self._kept()]

    def prepare(self) -> Callable[[], None]:
        """What makes the buffers of a snapshot, in another thread."""
        values = self._tensors()

        def make() -> None:
            self.buffers = [np.full_like(value, 0) for value in values]

        return make

    def snapshot(self) -> Callable[[], list[np.ndarray]]:
        """What gives the values of now, later and from another thread, until the next snapshot.

        Copied into buffers that are kept: to fill fresh ones takes several times as long.
        """
        values = self._tensors()
        if len(values) != len(self.buffers):
            self.buffers = [np.empty_like(value) for value in values]
        with ThreadPoolExecutor(COPIES) as pool:
            list(pool.map(np.copyto, self.buffers, values))
        return lambda: self.buffers

    def put(self, values: list[np.ndarray]) -> None:
        """Put back what `values` returned."""
        for variable, value in zip(self._kept(), values, strict=True):
            variable.assign(value)

    def _kept(self) -> list[Any]:
        keras_own = [variable.value for variable in (*self.model.variables, *self.optimizer.variables)]
        return [*keras_own, *self.gathered, *self.average, *self.drawn]

    def sync(self) -> None:
        """Nothing to do: the steps write the model's own variables."""

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The moving average in the place of the weights."""
        if not self.average:
            yield
            return
        kept = [v.value.numpy() for v in self.trained]
        self._assign(self.average)
        try:
            yield
        finally:
            self._assign(kept)

    def _assign(self, values: list[Any]) -> None:
        for variable, value in zip(self.trained, values, strict=True):
            variable.assign(value)

    def _step(self, x: Any, y: Any, control: dict[str, Any]) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            outputs = widened(self.model(x, training=True))
            loss = self.task.loss_of(self.loss, OPS, outputs, y)
            shared = loss * tf.cast(control["share"], loss.dtype) if "share" in control else loss
            scaled = self.optimizer.scale_loss(shared)
        gradients = dense(tape.gradient(scaled, self.trained), self.trained)
        with tf.name_scope("optimizer"):
            norm = self._update(gradients, control)
        scores = self._scores(outputs, y)
        scale = (tf.identity(self.optimizer.dynamic_scale.value),) if self.scales_loss else ()
        return tf.cast(loss, tf.float64), scores, *scale, *(() if norm is None else (tf.cast(norm, tf.float64),))

    def _update(self, gradients: list[Any], control: dict[str, Any]) -> Any:
        """Update the weights, after a step's last batch. Returns the gradient's norm, where it is measured."""
        if not self.gathered:
            return self._apply(gradients, control)
        for total, gradient in zip(self.gathered, gradients, strict=True):
            total.assign_add(tf.cast(gradient, total.dtype))
        nothing = tf.zeros((), tf.float64)

        def apply() -> Any:
            pairs = zip(self.gathered, gradients, strict=True)
            norm = self._apply([tf.cast(total, gradient.dtype) for total, gradient in pairs], control)
            for total in self.gathered:
                total.assign(tf.zeros_like(total))
            return nothing if norm is None else tf.cast(norm, tf.float64)

        norm = tf.cond(control["update"], apply, lambda: nothing)
        return norm if self.training.needs_norm else None

    def _apply(self, gradients: list[Any], control: dict[str, Any]) -> Any:
        scale = self.optimizer.dynamic_scale.value if self.scales_loss else None
        gradients, norm = bounded(gradients, self.training, scale)
        if "rate" in control:
            self.rate.assign(control["rate"])
        self.optimizer.apply(gradients, self.trained)
        if self.training.ema:
            for average, variable in zip(self.average, self.trained, strict=True):
                average.assign(moved_average(average, variable.value, self.training.ema))
        return norm

    def _scores(self, outputs: Any, y: Any) -> Any:
        """The sum of the batch's scores; in fp64 an error of a regression is in float64, as the test's is."""
        wide = keras.config.floatx()
        if self.task.score is None:
            return tf.zeros((), wide)
        return tf.reduce_sum(tf.cast(self.task.scores(OPS, outputs, y), wide))

    def _run_block(self, rows: Any, count: Any, x: Any, y: Any, control: dict[str, Any]) -> tuple[Any, ...]:
        wide = tf.as_dtype(keras.config.floatx())
        dtypes = [tf.float64, wide]  # of loss, sum of scores, loss scale and gradient's norm
        dtypes += [tf.float32] * self.scales_loss + [tf.float64] * self.training.needs_norm
        start = (tf.constant(0), *(tf.zeros([rows.shape[0]], dtype) for dtype in dtypes))

        def step(i: Any, *found: Any) -> tuple[Any, ...]:
            with tf.name_scope("data"):
                batch = tf.gather(x, rows[i]), tf.gather(y, rows[i])
            now = self._step(*batch, {name: each[i] for name, each in control.items()})
            pairs = zip(found, now, strict=True)
            return i + 1, *(tf.tensor_scatter_nd_update(kept, [[i]], [new]) for kept, new in pairs)

        return tuple(tf.while_loop(lambda i, *_: i < count, step, start, parallel_iterations=1)[1:])

    def program(self, stage: str = "optimized_hlo") -> str:
        """What XLA made of the first call, as HLO text; compiled once more, since TensorFlow does not keep it.

        `stage`: `hlo` for what XLA was given, which needs no compilation.
        """
        assert self._ran is not None, "program() before the first step"
        function, arguments, _ = self._ran
        text: str = function.experimental_get_compiler_ir(*arguments)(stage=stage)
        return text

    def graph(self) -> Any:
        """The graph that ran."""
        assert self._ran is not None, "graph() before the first step"
        function, arguments, _ = self._ran
        return function.get_concrete_function(*arguments).graph

    def accounts(self) -> None:
        """One device has everything."""

    def observe(self) -> Observation:
        """The operations of the graph that ran, and the matrix products that XLA made of it."""
        assert self._ran is not None, "observe() before the first step"
        home = self._ran[2]
        seen = observed("the training step", self.graph(), home, self.model)
        if self.xla:
            add_compiled(seen, home, self.program)
        return seen


def add_compiled(seen: Observation, home: str, program: Callable[[str], str]) -> None:
    """What XLA made of a graph that ran on the device `home`. `program`: its text at a stage of XLA's (see Engine)."""
    if not set(seen.matmuls) <= {"float32", "float64"}:
        # A second compilation, so only where XLA may have widened what it was given.
        seen.compiled = Counter(products(program("optimized_hlo")))
    if "GPU" in home:
        # By the program that TensorFlow hands to XLA: it does not keep what XLA makes of it.
        seen.tf32, seen.tf32_by = by_program(program("hlo"), "the program that XLA was given")


def observed(what: str, graph: Any, home: str, model: Any) -> Observation:
    """What a graph runs, which ran on the device `home`, by TensorFlow's own kernels."""
    seen = Observation(how=f"TensorFlow graph of {what}; what is bound to no device has the graph's")
    for name, device, dtype in tensorflow_graph.operations(graph, home):
        seen.operations[(name, device, dtype)] += 1
        seen.devices[device] += 1
        if name in PRODUCTS:
            seen.matmuls[dtype] += 1
            seen.product_devices[device] += 1
    seen.attention = attention(model)
    by = f"{NOT_SEEN}: TensorFlow's own kernels do not say"
    seen.tf32, seen.tf32_by = (None, by) if "GPU" in home else (False, ON_CPU)
    return seen


def widened(outputs: Any) -> Any:
    """Outputs, or weights, in float32 at least, as a loss, a score, an average and a sum of gradients take them."""
    return tf.cast(outputs, tf.float32) if outputs.dtype in (tf.float16, tf.bfloat16) else outputs


def dense(gradients: list[Any], weights: list[Any]) -> list[Any]:
    """Gradients as tensors: of an embedding TensorFlow gives slices, one for each token, of which an optimizer would
    square each and not their sum; of a weight that the loss does not reach None, where JAX has zeros."""
    pairs = zip(gradients, weights, strict=True)
    return [tf.zeros_like(weight.value) if one is None else tf.convert_to_tensor(one) for one, weight in pairs]


def _worth_compiling(model: Any) -> bool:
    """Whether XLA makes the step faster: not convolutions on a CPU, whose gradients it has only a plain loop for."""
    on_cpu = "CPU" in model.trainable_variables[0].value.device
    return not (on_cpu and any(isinstance(layer, BaseConv) for layer in model._flatten_layers()))


class Inference:
    """A graph from a batch to outputs, `xla`: compiled, anew for each size of a batch. It reads the variables as they
    are, whether they are `trained` or change.
    """

    def __init__(self, model: Any, experiment: Experiment, *, trained: bool, xla: bool = False) -> None:
        self.model, self.xla, floatx = model, xla, keras.config.floatx()
        self._autograph = autograph.is_needed(experiment.data_model)

        def forward(x: Any) -> Any:
            return tf.cast(model(x, training=False), floatx)

        self._plain = forward
        self._forward = tf.function(forward, reduce_retracing=not xla, autograph=self._autograph, jit_compile=xla)
        # By shape: TensorFlow takes longer to find a graph than a small net takes.
        self._graphs: dict[tuple[int, ...], Any] = {}

    def __call__(self, x: np.ndarray) -> np.ndarray:
        batch = tf.convert_to_tensor(x)
        with xla_explained():
            found: np.ndarray = self._graph_of(batch)(batch).numpy()
        return found

    def observe(self, x: np.ndarray) -> Observation:
        """What a pass over a batch runs."""
        batch = tf.convert_to_tensor(x)
        graph = self._graph_of(batch)
        home = graph(batch).device
        seen = observed(PASS, graph.graph, home, self.model)
        if self.xla:
            add_compiled(seen, home, self._compiled_program(batch))
        return seen

    def _graph_of(self, batch: Any) -> Any:
        shape = tuple(batch.shape)
        if shape not in self._graphs:
            self._graphs[shape] = self._forward.get_concrete_function(batch)
        return self._graphs[shape]

    def hlo(self, x: np.ndarray) -> str | None:
        """What XLA would be given for a batch: its products have their sizes, where a graph's may be left open.

        None of a model with an operation that XLA lacks.
        """
        try:
            return self._compiled_program(tf.convert_to_tensor(x))("hlo")
        except (ValueError, tf.errors.InvalidArgumentError):
            return None

    def _compiled_program(self, batch: Any) -> Callable[[str], str]:
        """What XLA makes of a batch, as text at a stage of its work."""
        compiled = tf.function(self._plain, jit_compile=True, autograph=self._autograph)
        found: Callable[[str], str] = compiled.experimental_get_compiler_ir(batch)
        return found
