"""Mean squared error of real numbers. Of class probabilities it is `mse`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from pipeline.contracts import Loss
from pipeline.spec import spec
from pipeline.tasks import Targets


@spec
class SquaredError(Loss):
    """No settings."""

    takes: ClassVar[Targets | None] = "numbers"

    def torch(self) -> Callable[[Any, Any], Any]:
        from torch.nn import functional

        return functional.mse_loss

    def keras(self) -> Callable[[Any, Any], Any]:
        from keras import ops

        def loss(outputs: Any, targets: Any) -> Any:
            return ops.mean(ops.square(outputs - targets))

        return loss

    def numpy(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        return float(np.square(outputs.astype(np.float64) - targets).mean())
