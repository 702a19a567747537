"""Where the time of a step of Keras's goes, on JAX or TensorFlow, as the framework's own profiler sees it."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline.backends import gpu_kernels, keras_bare, xla_ops
from pipeline.backends.hlo import RANGES, Sizes
from pipeline.backends.keras import BACKEND, _initial_model, _loss, _optimizer, engine_module, keras, switches
from pipeline.backends.trace import Event, calls_by_owner, events, seconds_by_owner
from pipeline.capability import Resolved
from pipeline.datasets import Arrays
from pipeline.precision import FORMATS
from pipeline.probe import ROUNDS, SECONDS, Anatomy, Operation, Product, first_batch, longest

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

FRAMEWORKS = {"jax": "JAX", "tensorflow": "TensorFlow"}
KINDS = ("products", "copies", *RANGES, "other")
WATCHED = 10  # steps, in one call as in training
LEAST_TIMES, MOST_TIMES = 3, 50  # a bare product is run in one trace
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


def anatomy(experiment: Experiment, data: Arrays, resolved: Resolved) -> Anatomy:
    """The operations of WATCHED steps by time, and each product's own ceiling."""
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
        xla = BACKEND == "jax" or engine.xla
        operations = _operations(engine.program() if xla else engine.graph())
        seconds = seconds_by_owner(seen, operations.owner)
        found = products(operations, seconds, calls_by_owner(seen, operations.owner))
        return Anatomy(
            how=HOW.format(framework=FRAMEWORKS[BACKEND], steps=WATCHED),
            step_s=wall / WATCHED,
            shares=shares(operations, seconds, wall),
            products=with_ceilings(found, compute, xla=xla, gpu=gpu),
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


def _operations(program: Any) -> Operations:
    """What a program consists of: XLA's instructions by its HLO text, or TensorFlow's own operations by their graph."""
    if isinstance(program, str):
        return xla_ops.Operations(program)
    from pipeline.backends import tensorflow_ops

    return tensorflow_ops.Operations(program)


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


def with_ceilings(found: Sequence[Product], dtype: str, *, xla: bool, gpu: bool) -> list[Product]:
    """The products, each with the rate of a bare one of its sizes: the median of ROUNDS rounds of about SECONDS."""
    if not found:
        return []
    loops: list[keras_bare.Loop] = []
    numbers = np.random.default_rng(0)  # not JAX's, which compiles a program for each shape
    for product in found:
        sides = ((2, product.m, product.k), (2, product.k, product.n))
        a, b = (keras.ops.cast(numbers.standard_normal(side, np.float32), dtype) for side in sides)
        times = SECONDS / max(product.seconds / product.calls, 1e-9)
        loops.append((a, b, min(MOST_TIMES, max(LEAST_TIMES, int(times)))))
    run, program = keras_bare.by_jax(loops) if BACKEND == "jax" else keras_bare.by_tensorflow(loops, xla=xla)
    operations = _operations(program)
    run()
    rounds = [_rates(operations, watched(run, gpu=gpu)[1]) for _ in range(ROUNDS)]
    told = [[rates[_sides(product)] for rates in rounds if _sides(product) in rates] for product in found]
    return [
        dataclasses.replace(product, ceiling_FLOP_per_s=statistics.median(rates) if rates else None)
        for product, rates in zip(found, told, strict=True)
    ]


def _rates(operations: Operations, seen: Sequence[Event]) -> dict[tuple[int, ...], float]:
    """FLOP/s of the products of each size."""
    seconds = seconds_by_owner(seen, operations.owner)
    found = products(operations, seconds, calls_by_owner(seen, operations.owner))
    return {_sides(product): product.FLOP / product.seconds for product in found}


def _sides(product: Product) -> tuple[int, ...]:
    """A product's sizes, whichever way round: a compiler may turn it over."""
    return *sorted((product.m, product.n)), product.k


def tensor_core_share(seen: Sequence[Event]) -> float | None:
    """Share of the GPU's busy time in kernels that, by their names, run on Tensor Cores; None where none ran."""
    busy = seconds_by_owner(seen, lambda event: event.name)
    tensor = sum(time_s for name, time_s in busy.items() if gpu_kernels.ON_TENSOR_CORES.search(name))
    return tensor / sum(busy.values()) if busy else None
