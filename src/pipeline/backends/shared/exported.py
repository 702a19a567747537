"""What an export wrote, as the stage compares it with what another process reads back."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

OF_WEIGHTS = ("model.safetensors", "state_dict.pt")  # files that hold weights and no program
READER = Path(__file__).with_name("read_back.py")  # a script for another process
# onnxruntime sends its maker the name and hashes of a model; what the user sets stands.
QUIET = {"ORT_DISABLE_TELEMETRY": "1"}


@dataclass(frozen=True)
class Exported:
    """`program`: it computes outputs. `tensors`: those that it holds by name, where it is read by name; bfloat16, which
    NumPy lacks, as float32, as `read_back` has it.

    `dtypes`: in which it computes.
    """

    program: bool
    dtypes: tuple[str, ...]
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the warnings and logs of libraries about their internals, a graph of the whole model among them."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
