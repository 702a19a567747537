"""What a checkpoint holds of a training by one of our solvers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.pinn import solution
from pipeline.pinn.solution import Moment
from pipeline.runs import weights
from pipeline.runs.keeping import Contents

if TYPE_CHECKING:
    from pipeline.pinn.solvers.training import Training
    from pipeline.runs.checkpoint import Checkpoint

CLOCKS = ("compile_s", "seconds", "beside", "fits", "loss_dtype")


def contents(training: Training) -> Contents:
    """The state of the training between two blocks. JAX's arrays do not change: none is copied but from a GPU."""
    progress = {
        **{name: getattr(training, name) for name in CLOCKS},
        "wall_s": time.perf_counter() - training.called,
        "taken": training.steps_taken(),
        "generators": [generator.bit_generator.state for generator in training.generators],
        "history": [solution.history_as_plain(rows) for rows in training.history],
    }
    arrays = {f"state.{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(training.state))}
    for seed, parts in enumerate(training.drawn):
        arrays |= {f"drawn.{seed}.{part}.{name}": array for part, one in parts.items() for name, array in one.items()}
    histories = [tuple(rows) for rows in training.history]
    return progress, {"state": partial(_write, arrays, histories)}


def restore(training: Training, checkpoint: Checkpoint, like: Any) -> None:
    """Put a training where it stood; `like`: the shape of its state."""
    kept, stored = checkpoint.progress, weights.load(checkpoint.state)
    for name in CLOCKS:
        setattr(training, name, kept[name])
    training.step = checkpoint.step
    training.taken = jnp.asarray(kept["taken"] if training.several else kept["taken"][0])
    training.called -= kept["wall_s"]
    for generator, state in zip(training.generators, kept["generators"], strict=True):
        generator.bit_generator.state = state
    for seed, parts in enumerate(training.drawn):
        for part, one in parts.items():
            parts[part] = {name: stored[f"drawn.{seed}.{part}.{name}"] for name in one}
    leaves, form = jax.tree.flatten(like)
    training.state = jax.tree.unflatten(form, [jnp.asarray(stored[f"state.{at}"]) for at in range(len(leaves))])
    training.history = [
        solution.history_from(rows, _part(stored, f"history.{seed}.")) for seed, rows in enumerate(kept["history"])
    ]


def _write(arrays: Mapping[str, np.ndarray], histories: Sequence[Sequence[Moment]], path: Path) -> None:
    for seed, rows in enumerate(histories):
        arrays = {
            **arrays,
            **{f"history.{seed}.{name}": array for name, array in solution.history_arrays(rows).items()},
        }
    weights.write(path, arrays)


def _part(stored: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in stored.items() if name.startswith(prefix)}
