"""Bare matrix products by JAX or TensorFlow: what a step's products could reach, apart from the step.

All run in one program, as a step does: each in its own loop, one loop after another. What is timed is the products
alone, by the profiler, so neither a call nor what feeds them is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Loop = tuple[Any, Any, int]  # two left sides, two right sides, and how often to multiply


def by_jax(loops: Sequence[Loop]) -> tuple[Callable[[], object], str]:
    """What runs the loops, and its program as HLO text."""
    import jax

    def run(sides: Any) -> Any:
        last = jax.numpy.zeros((), sides[0][0].dtype)
        for (a, b), (_, _, times) in zip(sides, loops, strict=True):
            # Which side is taken depends on the turn, so no product is taken out of its loop; and the loop begins at
            # the last one's result, so no two run at once.
            start = jax.numpy.isnan(last).astype("int32")
            kept = jax.lax.fori_loop(
                start, times, lambda i, _, a=a, b=b: a[i % 2] @ b[i % 2], jax.numpy.zeros_like(a[0] @ b[0])
            )
            last = kept[0, 0]
        return last

    sides = [(a, b) for a, b, _ in loops]
    program = jax.jit(run).lower(sides).compile()
    text: Any = program.as_text()
    return lambda: program(sides).block_until_ready(), text


def by_tensorflow(loops: Sequence[Loop], *, xla: bool) -> tuple[Callable[[], object], Any]:
    """What runs the loops, and its program as HLO text or, without XLA, its graph."""
    import tensorflow as tf

    @tf.function(jit_compile=xla, autograph=False)
    def run(sides: Any) -> Any:
        last = tf.zeros((), sides[0][0].dtype)
        for number, ((a, b), (_, _, times)) in enumerate(zip(sides, loops, strict=True)):
            name = f"bare_{number}"  # a graph's functions may have nodes of one name
            start = tf.cast(tf.math.is_nan(last), tf.int32)  # as above
            kept = tf.zeros((a.shape[1], b.shape[2]), a.dtype)
            _, kept = tf.while_loop(
                lambda i, _, times=times: i < times,
                lambda i, _, a=a, b=b, name=name: (i + 1, tf.matmul(a[i % 2], b[i % 2], name=name)),
                (start, kept),
                parallel_iterations=1,
            )
            last = kept[0, 0]
        return last

    sides = [(a, b) for a, b, _ in loops]
    if xla:
        return lambda: run(sides).numpy(), run.experimental_get_compiler_ir(sides)(stage="optimized_hlo")
    return lambda: run(sides).numpy(), run.get_concrete_function(sides).graph
