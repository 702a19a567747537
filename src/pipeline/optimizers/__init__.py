"""Optimizers: one file each, a spec with its torch and Keras builders side by side, the same update in both."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

LearningRate = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Epsilon = Annotated[float, Field(gt=0, lt=1)]
Decayed = Literal["all", "matrices"]  # see contracts.Optimizer
WeightDecay = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
