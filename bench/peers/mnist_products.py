"""What the net of row B1 cannot do without: its convolutions and products, forward and backward, and nothing else.

In float32, batches of 64, in the memory format that the recipe has (channels last), all by oneDNN through torch on all
cores, without biases. The last line is the images/s that they alone would allow.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional

from pipeline.machine.allocator import keep_freed_memory
from pipeline.models.torch_quick import worth_onednn

BATCH, STEPS = 64, 100
GRADIENTS = torch.ops.aten.convolution_backward


def convolution(inputs: int, filters: int, side: int, *, first: bool) -> Callable[[], object]:
    """A 3x3 convolution of `side` x `side` images, then its gradients; the first one needs none of its images."""
    x = torch.randn(BATCH, inputs, side, side).to(memory_format=torch.channels_last)
    kernel = torch.randn(filters, inputs, 3, 3)
    y = functional.conv2d(x, kernel)
    as_it_was = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    def run() -> object:
        return functional.conv2d(x, kernel), GRADIENTS(y, x, kernel, *as_it_was, [not first, True, False])

    return run


def dense(inputs: int, units: int) -> Callable[[], object]:
    """A Dense layer's product and its two gradients; by oneDNN where that is quicker."""
    x, kernel = torch.randn(BATCH, inputs), torch.randn(units, inputs)
    y = x @ kernel.T
    if not worth_onednn(x.numel() * units):
        return lambda: (x @ kernel.T, y.T @ x, y @ kernel)
    X, Y, K = x.to_mkldnn(), y.to_mkldnn(), kernel.to_mkldnn()
    turned, Yt, Xt = kernel.T.contiguous().to_mkldnn(), y.T.contiguous().to_mkldnn(), x.T.contiguous().to_mkldnn()
    return lambda: (functional.linear(X, K), functional.linear(Y, turned), functional.linear(Yt, Xt))


def main() -> None:
    keep_freed_memory()
    step = [convolution(1, 32, 28, first=True), convolution(32, 64, 26, first=False), dense(9216, 128), dense(128, 10)]
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        for part in step:
            part()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"images_per_s": BATCH / statistics.median(seconds[STEPS // 5 :])}))


if __name__ == "__main__":
    main()
