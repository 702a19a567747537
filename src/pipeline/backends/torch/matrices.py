"""Products of matrices in torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pipeline.backends.shared import matrices as shared
from pipeline.backends.shared.matrices import Memory, of_process
from pipeline.backends.torch import arrays


class Matrices(arrays.Arrays, shared.Matrices):
    """torch.matmul; float32 in float32, as torch has it unless it is asked for TF32."""

    def numbers(self, array: Tensor) -> np.ndarray:
        return self.get(array.cpu().double())  # NumPy has no bfloat16

    def moved(self, array: Tensor) -> Tensor:
        return array.to(self.on, copy=True)

    def memory(self) -> Memory:
        if self.on.type == "cpu":
            return of_process()
        return Memory(torch.cuda.memory_allocated(self.on), torch.cuda.max_memory_allocated(self.on))


def matrices(place: str, limit: int | None) -> Matrices:
    """Products on `place`: `cpu` or `gpu:0`. `limit`: bytes of GPU memory (None: all)."""
    made = Matrices(place)
    if limit is not None:
        total = torch.cuda.get_device_properties(made.on).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), made.on)
    return made


def apart(place: str, limit: int | None) -> tuple[Matrices, Matrices] | str:
    """Products on a GPU and on the CPU, or why there are no two devices."""
    if place == "cpu":
        return "torch has one CPU device; a second one is a GPU"
    return matrices(place, limit), Matrices("cpu")
