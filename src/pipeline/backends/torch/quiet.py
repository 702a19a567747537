"""Trainings without what Lightning and torch's loader say of themselves."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

LIGHTNING = ("pytorch_lightning", "lightning_fabric")
MANY_WORKERS = "This DataLoader will create"  # more than cores; at length and twice, where we have a line of our own
UNSAID = (
    "The `srun` command is available",  # a run is not Slurm's to start
    "Grad strides do not match bucket view",  # of a convolution
    MANY_WORKERS,
)


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without Lightning's logs and warnings, and those of UNSAID. What the process filters and logs is put back."""
    loggers = [logging.getLogger(name) for name in LIGHTNING]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=LIGHTNING[0])
            for message in UNSAID:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
