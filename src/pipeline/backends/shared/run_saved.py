"""Train by a saved graph, without this package: `python -I run_saved.py <kind> <folder> <net.npz> <found.npz> <steps>`.

The graph takes x, y, w1 and w2 and gives the loss and new weights. `found.npz` gets `losses`, `w1` and `w2`. It imports
nothing of this package and refuses that anything else does.
"""

import sys
from pathlib import Path


class Without:
    """A finder that makes our package one that is not there."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] == "pipeline":
            raise ModuleNotFoundError(f"{name}: not in this process")


def read(kind, folder):  # type: ignore[no-untyped-def]
    """The graph, as a function of arrays, and what makes its framework's array of one of NumPy."""
    if kind == "saved_model":
        import tensorflow as tf

        return tf.saved_model.load(str(folder)).step, tf.constant
    if kind == "jax_export":
        import jax
        from jax import export

        jax.config.update("jax_enable_x64", True)
        return export.deserialize((folder / "step.bin").read_bytes()).call, jax.numpy.asarray
    import torch

    if kind == "torch_script":
        return torch.jit.load(folder / "step.pt"), torch.from_numpy
    return torch.export.load(folder / "step.pt2").module(), torch.from_numpy


def main(kind, folder, net, target, steps):  # type: ignore[no-untyped-def]
    """Read a saved graph and a net's start, train by the graph, and write losses and weights."""
    sys.meta_path.insert(0, Without())
    import numpy as np

    graph, array = read(kind, Path(folder))
    start = np.load(net)
    x, y, w1, w2 = (array(start[name]) for name in ("x", "y", "start_w1", "start_w2"))
    losses = []
    for _ in range(int(steps)):
        loss, w1, w2 = graph(x, y, w1, w2)
        losses.append(np.asarray(loss))
    np.savez(target, losses=np.array(losses), w1=np.asarray(w1), w2=np.asarray(w2))


if __name__ == "__main__":
    main(*sys.argv[1:])
