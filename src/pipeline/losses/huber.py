"""Huber's loss of real numbers: squared for small errors, linear for large ones (Annals of Mathematical Statistics 35,
1964), which a few wild targets bend less than the squared error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from pipeline.contracts import Loss
from pipeline.spec import spec
from pipeline.tasks import Targets


@spec
class Huber(Loss):
    """e²/2 of an error |e| <= delta, delta·(|e| - delta/2) of a larger one; the mean over all numbers."""

    takes: ClassVar[Targets | None] = "numbers"

    delta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    def torch(self) -> Callable[[Any, Any], Any]:
        from torch.nn import functional

        return lambda outputs, targets: functional.huber_loss(outputs, targets, delta=self.delta)

    def keras(self) -> Callable[[Any, Any], Any]:
        from keras import ops

        def loss(outputs: Any, targets: Any) -> Any:
            error = ops.abs(outputs - targets)
            small = ops.minimum(error, self.delta)  # no branch whose gradient could be NaN
            return ops.mean(small * (error - 0.5 * small))

        return loss

    def numpy(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        error = np.abs(outputs.astype(np.float64) - targets)
        small = np.minimum(error, self.delta)
        return float((small * (error - 0.5 * small)).mean())
