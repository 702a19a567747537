"""The passes of an exported net, batch by batch size: `exported.py torch_export|onnx folder size ...`.

Prints images a second by the median call, from a NumPy array to a NumPy array.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

SECONDS, WARM_UP = 1.0, 4


def read(form, folder):  # type: ignore[no-untyped-def]
    """The net as a function of arrays, and the shape of an example."""
    if form == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        (asked,) = session.get_inputs()
        return lambda x: session.run(None, {asked.name: x})[0], asked.shape[1:]
    import torch

    program = torch.export.load(folder / "model.pt2")
    net = program.module()
    (name,) = program.graph_signature.user_inputs
    asked = next(one.meta["val"] for one in program.graph.nodes if one.name == name)

    def run(x):  # type: ignore[no-untyped-def]
        with torch.inference_mode():
            return net(torch.from_numpy(x)).numpy()

    return run, [int(side) for side in asked.shape[1:]]


def main(form, folder, *sizes):  # type: ignore[no-untyped-def]
    """Time each size."""
    run, shape = read(form, Path(folder))
    found = {}
    for size in map(int, sizes):
        x = np.random.default_rng(0).random((size, *shape), np.float32)
        for _ in range(WARM_UP):
            run(x)
        taken, ends = [], time.perf_counter() + SECONDS
        while time.perf_counter() < ends:
            began = time.perf_counter()
            run(x)
            taken.append(time.perf_counter() - began)
        found[f"rate_{size}"] = size / statistics.median(taken)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
