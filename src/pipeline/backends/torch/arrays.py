"""torch's arrays on one device, as `pipeline.backends.shared.arrays` wants them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pipeline.backends.shared import arrays as shared


class Arrays(shared.Arrays):
    """torch's, on one device."""

    def __init__(self, place: str) -> None:
        self.on = torch.device(place.replace("gpu", "cuda"))
        if self.on.type == "cuda":
            torch.cuda.set_device(self.on)  # whose streams a capture takes

    def put(self, array: np.ndarray, dtype: str | None = None) -> Tensor:
        return torch.tensor(array, dtype=None if dtype is None else getattr(torch, dtype), device=self.on)

    def get(self, array: Tensor) -> np.ndarray:
        return array.detach().cpu().numpy()

    def wait(self, arrays: Sequence[Tensor]) -> None:
        """On a CPU an operation is done when its call returns."""
        if self.on.type == "cuda":
            torch.cuda.synchronize(self.on)

    def ready(self, arrays: Sequence[Tensor]) -> bool:
        return self.on.type == "cpu" or torch.cuda.current_stream(self.on).query()

    def dtype(self, array: Tensor) -> str:
        return str(array.dtype).removeprefix("torch.")

    def device(self, array: Tensor) -> str:
        return str(array.device).replace("cuda", "gpu")
