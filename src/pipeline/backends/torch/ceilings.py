"""torch's ceilings on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from pipeline.backends.shared.ceiling_bench import Bench, Call, Operations
from pipeline.backends.torch.arrays import Arrays
from pipeline.machine import energy
from pipeline.machine.ceilings import Ceiling


class Torch(Arrays, Operations):
    """On `cpu` or `gpu:0`."""

    name: ClassVar[str] = "torch"

    def cast(self, array: Tensor, dtype: str) -> Tensor:
        return array.to(getattr(torch, dtype))

    def product(self, a: Tensor, b: Tensor) -> Call:
        return lambda: a @ b

    def add(self, a: Tensor, b: Tensor) -> Call:
        return lambda: a + b

    def convolution(self, x: Tensor, w: Tensor) -> Call:
        """In torch's own order of axes, and channels last in memory."""
        images, filters = x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        return lambda: torch.nn.functional.conv2d(images, filters, padding=1).permute(0, 2, 3, 1)


def measured(place: str, rounds: int) -> Iterator[list[Ceiling]]:
    """Everything in the dtype that it says: without TF32, and without sums in float16."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    with torch.inference_mode():
        yield from Bench(Torch(place), place, energy.meter(place)).measured(rounds)
