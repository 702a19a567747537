"""The compiled part of Keras on TensorFlow: a block of steps as one tf.function, by XLA unless `xla` is false."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.layers.convolutional.base_conv import BaseConv
from tensorflow.python.eager import context as eager

from pipeline.backends.keras import tensorflow_graph
from pipeline.backends.keras.hlo import products
from pipeline.backends.keras.tf32 import by_program
from pipeline.loaders import padded
from pipeline.machine import tensorflow_devices
from pipeline.machine.capability import Resolved
from pipeline.machine.found import check_tensorflow
from pipeline.machine.precision import Format
from pipeline.runs.fit import NOT_SEEN, ON_CPU, Observation
from pipeline.tasks import Task

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

# What a task may need (pipeline.tasks.Ops). Not keras.ops.argmax, which looks for negative zeros first.
OPS = SimpleNamespace(
    argmax=lambda x, axis: tf.argmax(x, axis, output_type=tf.int32), reshape=tf.reshape, abs=tf.abs, square=tf.square
)
PRODUCTS = ("MatMul", "BatchMatMulV2", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "Einsum")


class Engine:
    """A model, its optimizer and its loss, stepped together. `compile_s` is that of the blocks' programs."""

    def __init__(self, experiment: Experiment, task: Task, model: Any, optimizer: Any, loss: Any) -> None:
        self.task = task
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.scales_loss = hasattr(optimizer, "dynamic_scale")  # Keras's LossScaleOptimizer
        self.batch_size = experiment.training.batch_size
        self.xla = _worth_compiling(model) if experiment.backend.xla is None else experiment.backend.xla
        self._block = tf.function(self._run_block, jit_compile=self.xla)
        self._batch = tf.function(self._step, jit_compile=self.xla, reduce_retracing=True)
        self._ran: tuple[Any, tuple[Any, ...], str] | None = None  # the first function, its arguments, and where
        self.compiled: set[tuple[int, ...]] = set()  # shapes of the blocks that have a program
        self.compile_s = 0.0

    def resident(self, x: np.ndarray, y: np.ndarray, steps: int) -> None:
        """Put the training data on the device; blocks are of `steps` steps at the most."""
        self.x, self.y, self.steps = tf.convert_to_tensor(x), tf.convert_to_tensor(y), steps

    def block(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        count, indices = len(rows), padded(rows, self.steps, self.batch_size)  # the program runs `count` steps
        arguments = (tf.constant(indices), tf.constant(count), self.x, self.y)
        if indices.shape not in self.compiled:
            self._compile_block(indices)
        found = self._block(*arguments)
        self._ran = self._ran or (self._block, arguments, found[0].device)
        return tuple(each.numpy()[:count] for each in found)

    def _compile_block(self, indices: np.ndarray) -> None:
        """TensorFlow compiles in the first call: here one of no steps, which changes nothing and can be timed."""
        started = time.perf_counter()
        self._block(tf.constant(indices), tf.constant(0), self.x, self.y)
        self.compile_s += time.perf_counter() - started
        self.compiled.add(indices.shape)

    def batch(self, x: Any, y: Any) -> tuple[Any, ...]:
        x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
        arguments = (x, tf.cast(y, tf.int32) if y.dtype.is_integer else y)
        result = self._batch(*arguments)
        self._ran = self._ran or (self._batch, arguments, result[0].device)
        self.loss_so_far = result[0]
        return tuple(result)

    def waiter(self) -> Callable[[], Any]:
        return self.loss_so_far.numpy

    def settle(self) -> None:
        """Wait until the device has done the steps so far: a GPU does them in turn, so reading one number waits."""
        self.optimizer.iterations.numpy()

    def sync(self) -> None:
        """Nothing to do: the steps write the model's own variables."""

    def _step(self, x: Any, y: Any) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            outputs = widened(self.model(x, training=True))
            loss = self.loss(*self.task.compared(OPS, outputs, y))
            scaled = self.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        gradients = dense(tape.gradient(scaled, variables))
        with tf.name_scope("optimizer"):
            self.optimizer.apply(gradients, variables)
        scores = self._scores(outputs, y)
        scale = (tf.identity(self.optimizer.dynamic_scale.value),) if self.scales_loss else ()
        return tf.cast(loss, tf.float64), scores, *scale

    def _scores(self, outputs: Any, y: Any) -> Any:
        """The sum of the batch's scores."""
        if self.task.score is None:
            return tf.zeros((), tf.float32)
        return tf.reduce_sum(tf.cast(self.task.scores(OPS, outputs, y), tf.float32))

    def _run_block(self, rows: Any, count: Any, x: Any, y: Any) -> tuple[Any, ...]:
        dtypes = (tf.float64, tf.float32, tf.float32) if self.scales_loss else (tf.float64, tf.float32)
        start = (tf.constant(0), *(tf.zeros([rows.shape[0]], dtype) for dtype in dtypes))

        def step(i: Any, *found: Any) -> tuple[Any, ...]:
            with tf.name_scope("data"):
                batch = tf.gather(x, rows[i]), tf.gather(y, rows[i])
            now = self._step(*batch)
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

    def observe(self) -> Observation:
        """The operations of the graph that ran, and the matrix products that XLA made of it."""
        assert self._ran is not None, "observe() before the first step"
        home = self._ran[2]
        seen = Observation(how="TensorFlow graph of the training step; what is bound to no device has the graph's")
        for name, device, dtype in tensorflow_graph.operations(self.graph(), home):
            seen.operations[(name, device, dtype)] += 1
            seen.devices[device] += 1
            if name in PRODUCTS:
                seen.matmuls[dtype] += 1
                seen.product_devices[device] += 1
        if self.xla and not set(seen.matmuls) <= {"float32", "float64"}:
            # A second compilation, so only where XLA may have widened what it was given.
            seen.compiled = Counter(products(self.program()))
        seen.tf32, seen.tf32_by = self._tf32() if "GPU" in home else (False, ON_CPU)
        return seen

    def _tf32(self) -> tuple[bool | None, str]:
        """By the program that TensorFlow hands to XLA; it does not keep what XLA makes of it."""
        if not self.xla:
            return None, f"{NOT_SEEN}: TensorFlow's own kernels do not say"
        return by_program(self.program("hlo"), "the program that XLA was given")


def widened(outputs: Any) -> Any:
    """Outputs in float32 at least, as a loss and a score take them (see pipeline.losses)."""
    return tf.cast(outputs, tf.float32) if outputs.dtype in (tf.float16, tf.bfloat16) else outputs


def dense(gradients: list[Any]) -> list[Any]:
    """Gradients as tensors: of an embedding TensorFlow gives slices, one for each token, of which an optimizer would
    square each and not their sum."""
    return [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in gradients]


def _worth_compiling(model: Any) -> bool:
    """Whether XLA makes the step faster: not convolutions on a CPU, whose gradients it has only a plain loop for."""
    on_cpu = "CPU" in model.trainable_variables[0].value.device
    return not (on_cpu and any(isinstance(layer, BaseConv) for layer in model._flatten_layers()))


def inference(model: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A compiled function from a batch to outputs."""
    floatx = keras.config.floatx()

    @tf.function(reduce_retracing=True)
    def forward(x: Any) -> Any:
        return tf.cast(model(x, training=False), floatx)

    return lambda x: forward(tf.convert_to_tensor(x)).numpy()


@contextlib.contextmanager
def runtime_settings(experiment: Experiment, resolved: Resolved, form: Format) -> Iterator[None]:
    """TensorFlow's process-wide settings as this run needs them, put back where TensorFlow lets them be."""
    check_tensorflow(tf, resolved.place)
    _configure_devices(experiment, resolved)
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(form.tf32)
    try:
        with tf.device(resolved.place.tensorflow), _random_state():
            yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


@contextlib.contextmanager
def _random_state() -> Iterator[None]:
    """Put back what tf.random.set_seed sets; nothing public reads it."""
    process = eager.context()
    seed, generator = process._seed, getattr(process, "_rng", None)  # no seed, no generator
    try:
        yield
    finally:
        process._seed, process._rng = seed, generator


def _configure_devices(experiment: Experiment, resolved: Resolved) -> None:
    """Threads, memory bounds and logical devices: fixed for the process once TensorFlow has started its devices."""
    device = experiment.device
    with contextlib.suppress(RuntimeError):  # already started: an earlier call has set them
        if experiment.backend.threads:
            tf.config.threading.set_intra_op_parallelism_threads(experiment.backend.threads)
        kind = resolved.place.kind.upper()
        physical = tf.config.list_physical_devices(kind)[resolved.place.index]
        limit = device.memory_limit_bytes
        if kind == "GPU":
            tensorflow_devices.grow_as_needed(tf)
        if limit is not None or device.logical_devices > 1:
            each = tf.config.LogicalDeviceConfiguration(memory_limit=None if limit is None else limit / 2**20)
            tf.config.set_logical_device_configuration(physical, [each] * device.logical_devices)


def logical_devices() -> list[str]:
    """Names of the logical devices of this process."""
    return [device.name for device in tf.config.list_logical_devices()]


def cpu_threads() -> int | None:
    """CPU threads of one operation; None where TensorFlow chooses."""
    return tf.config.threading.get_intra_op_parallelism_threads() or None


def gpu_free_bytes(index: int, limit: int | None) -> int:
    """Memory of a GPU that TensorFlow's allocator may still give out."""
    from pipeline.machine import device

    given_out = int(tf.config.experimental.get_memory_info(f"GPU:{index}")["current"])
    total = device.gpus()[index].memory_bytes
    return tensorflow_devices.free_bytes(device.gpu_free_bytes(index), total, limit, given_out)


def gpu_peak_bytes(index: int) -> int:
    """Most that TensorFlow's allocator has given out."""
    return int(tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"])
