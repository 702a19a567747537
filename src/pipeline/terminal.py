"""The terminal: results on standard output, progress and messages on standard error."""

from __future__ import annotations

import os
import sys

from rich.console import Console


class Terminal(Console):
    """A console whose reader may leave (`| head`): the rest goes nowhere, and the run goes on."""

    def on_broken_pipe(self) -> None:
        leave(self.file.fileno())


def results() -> Terminal:
    """Standard output: what other programs read."""
    return Terminal()


def messages() -> Terminal:
    """Standard error: progress, notes."""
    return Terminal(file=sys.stderr, stderr=True)


def leave(descriptor: int) -> None:
    """Let a file descriptor lead nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
