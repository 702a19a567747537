"""What an export wrote, as the stage compares it with what another process reads back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

OF_WEIGHTS = ("model.safetensors", "state_dict.pt")  # files that hold weights and no program
READER = Path(__file__).with_name("read_back.py")  # a script for another process


@dataclass(frozen=True)
class Exported:
    """`program`: it computes outputs. `tensors`: those that it holds by name, where it is read by name; bfloat16, which
    NumPy lacks, as float32, as `read_back` has it.

    `dtypes`: in which it computes.
    """

    program: bool
    dtypes: tuple[str, ...]
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
