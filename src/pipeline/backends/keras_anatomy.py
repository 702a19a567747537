"""Where the time of a step of Keras's goes, on JAX or TensorFlow, as the framework's own profiler sees it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline.backends import gpu_kernels, xla_ops
from pipeline.backends.hlo import RANGES, Sizes
from pipeline.backends.keras import BACKEND, _initial_model, _loss, _optimizer, engine_module, keras, switches
from pipeline.backends.trace import Event, calls_by_owner, events, seconds_by_owner
from pipeline.capability import Resolved
from pipeline.datasets import Arrays
from pipeline.precision import FORMATS
from pipeline.probe import ROUNDS, SECONDS, Anatomy, Device, Operation, Product, first_batch, longest

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

FRAMEWORKS = {"jax": "JAX", "tensorflow": "TensorFlow"}
KINDS = ("products", "copies", *RANGES, "other")
WATCHED = 10  # steps, in one call as in training
_MATMUL = re.compile(r":_?\w*MatMul$")
MOST_CALLS = 1000  # of a bare product in one trace
HOW = (
    "{framework}'s profiler, {steps} steps in one call; threads (on a GPU: streams) that work at once each have a part "
    "of that time; operations that are fused into one count as the last of them, or as a product if one is among them"
)


class Operations(Protocol):
    """What is known of the operations that a step consists of."""

    def owner(self, event: Event) -> str | None: ...

    def kind(self, name: str) -> str: ...

    def label(self, name: str) -> str: ...

    def sizes(self, name: str) -> list[Sizes]: ...


def anatomy(experiment: Experiment, data: Arrays, resolved: Resolved, device: Device) -> Anatomy:
    """The operations of WATCHED steps by time, and each product's own ceiling, found by `device`."""
    gpu, compute = resolved.place.kind == "gpu", FORMATS[resolved.precision].compute
    with switches(experiment, resolved):
        model, _ = _initial_model(experiment, data, resolved)
        engine = engine_module.Engine(experiment, model, _optimizer(experiment, model, resolved), _loss(experiment))
        rows = first_batch(experiment, data)
        x, y = data.scaled(data.train.x[rows], keras.config.floatx()), data.train.y[rows].astype(np.int32)
        engine.resident(x, y, WATCHED)
        block = np.tile(np.arange(len(rows)), (WATCHED, 1))
        for _ in range(2):  # the first call compiles
            engine.block(block)
        wall, seen = watched(lambda: engine.block(block), gpu=gpu)
        operations = _operations(engine)
        seconds = seconds_by_owner(seen, operations.owner)
        found = products(operations, seconds, calls_by_owner(seen, operations.owner))
        return Anatomy(
            how=HOW.format(framework=FRAMEWORKS[BACKEND], steps=WATCHED),
            step_s=wall / WATCHED,
            shares=shares(operations, seconds, wall),
            products=[with_ceiling(product, device, compute, gpu=gpu) for product in found],
            longest=longest(
                Operation(operations.label(name), operations.kind(name), time_s / WATCHED)
                for name, time_s in seconds.items()
            ),
            tensor_core_share=tensor_core_share(seen) if gpu else None,
        )


def watched(call: Callable[[], object], *, gpu: bool) -> tuple[float, list[Event]]:
    """How long a call took under the framework's profiler, and what that saw."""
    with tempfile.TemporaryDirectory() as folder:
        with _profiler(folder):
            started = time.perf_counter()
            call()
            seconds = time.perf_counter() - started
        return seconds, events(Path(folder), gpu=gpu)


@contextlib.contextmanager
def _profiler(folder: str) -> Iterator[None]:
    """The framework's profiler, without Python's calls."""
    if BACKEND == "jax":
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            yield
    else:
        import tensorflow as tf

        with tf.profiler.experimental.Profile(folder):
            yield


def _operations(engine: Any) -> Operations:
    """What the step that ran consists of: XLA's instructions, or TensorFlow's own operations."""
    if BACKEND == "jax" or engine.xla:
        return xla_ops.Operations(engine.program())
    from pipeline.backends import tensorflow_ops

    return tensorflow_ops.Operations(engine.graph())


def shares(operations: Operations, seconds: Mapping[str, float], wall_s: float) -> dict[str, float | None]:
    """The share of `wall_s` in each kind; the rest is no operation's (`outside`).

    None for getting the batch and for the update where no operation is theirs alone: others have taken them in.
    """
    found: Counter[str] = Counter()
    for name, time_s in seconds.items():
        found[operations.kind(name)] += time_s / wall_s  # type: ignore[assignment]
    told = {kind: found[kind] if kind in found or kind not in RANGES else None for kind in KINDS}
    return {**told, "outside": max(0.0, 1 - sum(found.values()))}


def products(operations: Operations, seconds: Mapping[str, float], calls: Mapping[str, int]) -> list[Product]:
    """The products of one step, those of one kind and size together, where the time is one product's alone."""
    found: dict[tuple[str, int, int, int], list[float]] = {}
    for name, time_s in seconds.items():
        sizes = operations.sizes(name) if operations.kind(name) == "products" else []
        if len(sizes) == 1:
            side, m, n, k, count = sizes[0]
            total = found.setdefault((side, m, n, k), [0.0, 0.0])
            total[0] += time_s / WATCHED
            total[1] += count * calls[name] / WATCHED
    listed = [Product(*key, seconds=time_s, calls=count) for key, (time_s, count) in found.items()]
    return sorted(listed, key=lambda product: -product.seconds)


def with_ceiling(product: Product, device: Device, dtype: str, *, gpu: bool) -> Product:
    """The product with the rate of a bare one of its sizes: by the same profiler, so that no call's price is in it."""
    sides = ((product.m, product.k), (product.k, product.n))
    a, b = (keras.ops.cast(keras.random.normal(side, seed=0, dtype="float32"), dtype) for side in sides)

    def multiply(times: int) -> None:
        for _ in range(times):
            device.wait(device.product(a, b))

    multiply(1)
    started = time.perf_counter()
    multiply(1)
    times = min(MOST_CALLS, max(1, int(SECONDS / (time.perf_counter() - started))))
    rounds = []
    for _ in range(ROUNDS):
        _, seen = watched(lambda: multiply(times), gpu=gpu)
        rounds.append(sum(seconds_by_owner(seen, _bare).values()) / times)
    bare = statistics.median(rounds)
    if not bare:
        return product
    return dataclasses.replace(product, ceiling_FLOP_per_s=2.0 * product.m * product.n * product.k / bare)


def _bare(event: Event) -> str | None:
    """What counts of a bare product: on TensorFlow not the look at the result, by which its end is waited for."""
    if event.on_gpu:
        return event.name if BACKEND == "jax" or gpu_kernels.kind(event.name) == "products" else None
    return event.stats.get("hlo_op") or (event.name if _MATMUL.search(event.name) else None)


def tensor_core_share(seen: Sequence[Event]) -> float | None:
    """Share of the GPU's busy time in kernels that, by their names, run on Tensor Cores; None where none ran."""
    busy = seconds_by_owner(seen, lambda event: event.name)
    tensor = sum(time_s for name, time_s in busy.items() if gpu_kernels.ON_TENSOR_CORES.search(name))
    return tensor / sum(busy.values()) if busy else None
