"""The terminal: results on standard output, progress and messages on standard error."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from pipeline.cli.notebook import in_notebook
from pipeline.cli.streams import forgive, leave, printable_lines


class Terminal(Console):
    """A console whose reader may leave (`| head`): the rest goes nowhere, and the run goes on.

    What is printed are texts, in which what nobody would see is written out; rich adds its own controls after that.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"force_terminal": False if in_notebook() else None, **settings})
        self.push_render_hook(_Printable())

    def on_broken_pipe(self) -> None:
        leave(self.file.fileno())


def results() -> Terminal:
    """Standard output: what other programs read."""
    forgive(sys.stdout)
    return Terminal()


def messages() -> Terminal:
    """Standard error: progress, notes."""
    return Terminal(file=sys.stderr, stderr=True)


class _Printable(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(each) for each in renderables]


class _Escaped:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)
