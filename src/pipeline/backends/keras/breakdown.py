"""Where the time of a step of Keras's goes, on JAX or TensorFlow, as the framework's own profiler sees it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline.backends.keras import bare as keras_bare
from pipeline.backends.keras import xla_ops
from pipeline.backends.keras.blocks import prepared
from pipeline.backends.keras.fit import (
    BACKEND,
    engine_module,
    initial_model,
    keras,
    optimizer_of,
    runtime_settings,
    widened_loss,
)
from pipeline.backends.keras.hlo import RANGES, Sizes
from pipeline.backends.shared import gpu_kernels
from pipeline.backends.shared.step_breakdown import (
    MOST_WATCHED,
    ROUNDS,
    SECONDS,
    Operation,
    Product,
    StepBreakdown,
    longest,
    steps_to_watch,
    with_rest,
)
from pipeline.backends.shared.trace import Event, calls_by_owner, events, seconds_by_owner
from pipeline.datasets import Data
from pipeline.loaders.batch_plan import Block, Plan
from pipeline.loaders.memory import resident
from pipeline.machine.capability import Resolved
from pipeline.machine.precision import FORMATS

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

FRAMEWORKS = {"jax": "JAX", "tensorflow": "TensorFlow"}
KINDS = ("products", "copies", *RANGES, "other")
LEAST_TIMES, MOST_TIMES = 3, 400  # a bare product is run in one trace
HOW = (
    "{framework}'s profiler, the quickest of {rounds} times {steps} steps of the training's own program; threads (on a "
    "GPU: streams) that work at once share the time; fused operations count as the last of them, or as a product if "
    "there is one among them"
)


class Operations(Protocol):
    """What is known of the operations that a step consists of."""

    def owner(self, event: Event) -> str | None: ...

    def kind(self, name: str) -> str: ...

    def label(self, name: str) -> str: ...

    def sizes(self, name: str) -> list[Sizes]: ...


def step_breakdown(experiment: Experiment, data: Data, resolved: Resolved, step_s: float) -> StepBreakdown:
    """The operations of a training's steps by time, and each product's own ceiling."""
    gpu, compute = resolved.place.kind == "gpu", FORMATS[resolved.precision].compute
    with runtime_settings(experiment, resolved):
        model, *_ = initial_model(experiment, data.task.shapes, resolved)
        engine = engine_module.Engine(
            experiment, data.task, model, optimizer_of(experiment, model, resolved), widened_loss(experiment)
        )
        go = training_go(engine, experiment, data, step_s)
        for _ in range(2):  # the first time it compiles
            go()
        wall, waited, seen = min((watched(go, gpu=gpu) for _ in range(ROUNDS)), key=lambda one: one[0])
        xla = BACKEND == "jax" or engine.xla
        operations = _operations(engine.program() if xla else engine.graph())
        seconds = seconds_by_owner(seen, operations.owner)
        found = products(operations, seconds, calls_by_owner(seen, operations.owner), go.steps)
        return StepBreakdown(
            how=HOW.format(framework=FRAMEWORKS[BACKEND], steps=go.steps, rounds=ROUNDS),
            step_s=wall / go.steps,
            shares=shares(operations, seconds, wall, waited),
            products=with_ceilings(found, compute, xla=xla, gpu=gpu),
            longest=longest(
                Operation(operations.label(name), operations.kind(name), time_s / go.steps)
                for name, time_s in seconds.items()
            ),
            tensor_core_share=tensor_core_share(seen) if gpu else None,
        )


class Resident:
    """Steps of the training's own program over the whole training set on the device: the first of its first block."""

    def __init__(self, engine: Any, experiment: Experiment, data: Data, step_s: float) -> None:
        steps = experiment.loader.steps_per_execution
        engine.resident(*prepared(data, data.train), steps)
        block = next(Plan.of(experiment, len(data.train)).period(0, steps))
        self.engine, self.block, self.waited = engine, block[: steps_to_watch(step_s, len(block))], 0.0
        self.steps = len(self.block)

    def __call__(self) -> None:
        self.engine.block(self.block)


class Stream:
    """Steps on batches that the training's own loader hands over; `waited`: seconds for it, of the last call."""

    def __init__(self, engine: Any, experiment: Experiment, data: Data, step_s: float) -> None:
        self.engine, self.size = engine, experiment.training.batch_size
        stream = experiment.loader.stream(data, keras.config.floatx(), self.size, experiment.seed)
        plan = Plan.of(experiment, len(data.train))
        blocks = [Block(plan, 0, number, 1) for number in range(plan.batches)]  # of which some end a step
        self.batches = zip(
            itertools.chain.from_iterable(itertools.repeat(stream)), itertools.cycle(blocks), strict=False
        )
        self.steps = steps_to_watch(step_s, MOST_WATCHED)

    def __call__(self) -> None:
        self.waited, taken = 0.0, 0
        while taken < self.steps:
            started = time.perf_counter()
            (x, y), block = next(self.batches)
            self.waited += time.perf_counter() - started
            if len(y) == self.size:  # the last batch of an epoch may be smaller, and has its own program
                self.engine.batch(x, y, block)
                taken += 1
        self.engine.settle()


def training_go(engine: Any, experiment: Experiment, data: Data, step_s: float) -> Resident | Stream:
    """What takes a few steps as the training does."""
    on_device = resident(experiment.loader, data)
    return (Resident if on_device else Stream)(engine, experiment, data, step_s)


def watched(call: Callable[[], object], *, gpu: bool) -> tuple[float, float, list[Event]]:
    """How long a call took under the framework's profiler, how much of it it waited for a loader, and what was seen."""
    with tempfile.TemporaryDirectory() as folder:
        with _profiler(folder):
            started = time.perf_counter()
            call()
            seconds = time.perf_counter() - started
        return seconds, getattr(call, "waited", 0.0), events(Path(folder), gpu=gpu)


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
    from pipeline.backends.keras import tensorflow_ops

    return tensorflow_ops.Operations(program)


def shares(
    operations: Operations, seconds: Mapping[str, float], wall_s: float, waited_s: float
) -> dict[str, float | None]:
    """The share of `wall_s` in each kind; the rest belongs to none (`outside`). `waited_s`: for a loader's batches.

    None for getting the batch and for the update where no operation is theirs alone: others have taken them in.
    """
    found: defaultdict[str, float] = defaultdict(float)
    for name, time_s in seconds.items():
        found[operations.kind(name)] += time_s / wall_s
    if waited_s:
        found["data"] += waited_s / wall_s
    whole = with_rest(found)
    known = {kind: whole.get(kind, None if kind in RANGES else 0.0) for kind in KINDS}
    return {**known, "outside": whole["outside"]}


def products(
    operations: Operations, seconds: Mapping[str, float], calls: Mapping[str, int], steps: int
) -> list[Product]:
    """The products of one of `steps` steps, those of one kind and size together, where the time is one's alone."""
    found: dict[tuple[str, int, int, int], list[float]] = {}
    for name, time_s in seconds.items():
        sizes = operations.sizes(name) if operations.kind(name) == "products" else []
        if len(sizes) == 1:
            side, m, n, k, count = sizes[0]
            total = found.setdefault((side, m, n, k), [0.0, 0.0])
            total[0] += time_s / steps
            total[1] += count * calls[name] / steps
    listed = [Product(*key, seconds=time_s, calls=count) for key, (time_s, count) in found.items()]
    return sorted(listed, key=lambda product: -product.seconds)


def with_ceilings(found: Sequence[Product], dtype: str, *, xla: bool, gpu: bool) -> list[Product]:
    """The products, each with the rate of a bare one of its sizes: the best of ROUNDS rounds of about SECONDS.

    The best, since whatever else the machine does makes a round of short products slower, and nothing makes it quicker.
    """
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
    rounds = [_rates(operations, watched(run, gpu=gpu)[2]) for _ in range(ROUNDS)]
    per_product = [[rates[_sides(product)] for rates in rounds if _sides(product) in rates] for product in found]
    return [
        dataclasses.replace(product, ceiling_FLOP_per_s=max(rates) if rates else None)
        for product, rates in zip(found, per_product, strict=True)
    ]


def _rates(operations: Operations, seen: Sequence[Event]) -> dict[tuple[int, ...], float]:
    """FLOP/s of the products of each size."""
    seconds = seconds_by_owner(seen, operations.owner)
    found = products(operations, seconds, calls_by_owner(seen, operations.owner), 1)
    return {_sides(product): product.FLOP / product.seconds for product in found}


def _sides(product: Product) -> tuple[int, ...]:
    """A product's sizes, whichever way round: a compiler may turn it over."""
    return *sorted((product.m, product.n)), product.k


def tensor_core_share(seen: Sequence[Event]) -> float | None:
    """Share of the GPU's busy time in kernels that, by their names, run on Tensor Cores; None where none ran."""
    busy = seconds_by_owner(seen, lambda event: event.name)
    tensor = sum(time_s for name, time_s in busy.items() if gpu_kernels.ON_TENSOR_CORES.search(name))
    return tensor / sum(busy.values()) if busy else None
