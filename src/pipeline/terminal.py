"""The terminal: results on standard output, progress and messages on standard error."""

from __future__ import annotations

import sys

from rich.console import Console

from pipeline.streams import forgive, leave


class Terminal(Console):
    """A console whose reader may leave (`| head`): the rest goes nowhere, and the run goes on."""

    def on_broken_pipe(self) -> None:
        leave(self.file.fileno())


def results() -> Terminal:
    """Standard output: what other programs read."""
    forgive(sys.stdout)
    return Terminal()


def messages() -> Terminal:
    """Standard error: progress, notes."""
    return Terminal(file=sys.stderr, stderr=True)
