"""Standard output and error as they may be found: an encoding that lacks letters, a reader that has left."""

from __future__ import annotations

import io
import os
from typing import TextIO


def forgive(stream: TextIO) -> None:
    """Let a stream write ? for what its encoding lacks (a terminal of ASCII), where Python would raise."""
    if isinstance(stream, io.TextIOWrapper):  # a test or a notebook may have put something else there
        stream.reconfigure(errors="replace")


def leave(descriptor: int) -> None:
    """Let a file descriptor lead nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
