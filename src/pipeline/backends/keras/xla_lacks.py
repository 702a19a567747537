"""What XLA cannot compile of TensorFlow's operations: in one message."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from pipeline.errors import RunError, cut
from pipeline.raised import where

# TensorFlow has no type of error for it. It names every operation of which XLA has no kernel, or none for its dtype.
LACKS = re.compile(r"No registered '(\w+)' OpKernel for XLA_")


@contextlib.contextmanager
def xla_explained() -> Iterator[None]:
    """Around a call that may compile. Raises RunError in place of TensorFlow's error for what XLA has no kernel of."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        lacks = dict.fromkeys(LACKS.findall(str(error)))
        if not lacks:
            raise
        operations = f"TensorFlow's operation{'s' if len(lacks) > 1 else ''} {cut(', '.join(lacks))}"
        raise RunError(f"XLA cannot compile {operations}{where(error)}; backend.xla=false runs without XLA") from error
