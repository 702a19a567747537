"""A command that a cell of a notebook has started (`!python -m pipeline`, `%%bash`, subprocess)."""

from __future__ import annotations

import os
from functools import cache

FROM_KERNEL = "module://"  # begins a backend of matplotlib that a notebook's kernel has set
# Seconds for a stop. IPython kills what it interrupts half a second later; what is started by a shell lives on.
GRACE_SECONDS = 60.0


@cache
def in_notebook() -> bool:
    """Whether a notebook's kernel started this process; as it was when first asked.

    The kernel sets FORCE_COLOR too, and `!` makes a terminal of 80 columns. But a notebook keeps every state of a bar,
    does not move its cursor up, and lets nobody type: it is written to like a file.
    """
    return "JPY_PARENT_PID" in os.environ or _has_notebook_backend()


def unset_notebook_backend() -> None:
    """Unset a notebook's backend of matplotlib, which only the notebook's own environment need have installed."""
    if _has_notebook_backend():
        del os.environ["MPLBACKEND"]


def _has_notebook_backend() -> bool:
    return os.environ.get("MPLBACKEND", "").startswith(FROM_KERNEL)
