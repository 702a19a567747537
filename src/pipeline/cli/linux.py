"""The systems that this runs on: Linux."""

from __future__ import annotations

import sys


def refuse_elsewhere() -> None:
    """End with one line on another system: processes, signals, memory and files are asked about as Linux has them."""
    if sys.platform != "linux":
        print(f"error: pipeline runs on Linux only, and this is {sys.platform}", file=sys.stderr)
        sys.exit(2)
