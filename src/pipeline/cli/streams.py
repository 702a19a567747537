"""Standard output and error as they may be found: an encoding that lacks letters, a reader that has left."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import textwrap
from typing import IO, TYPE_CHECKING, Any, TextIO
from unicodedata import category

from pipeline.cli.notebook import in_notebook

if TYPE_CHECKING:
    from rich.console import Console

# Unicode's categories of controls (ESC starts a command to the terminal), of marks of format (the direction of writing,
# what has no width), of halves of letters and of separators of lines and paragraphs.
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
JOINERS = "\u200c\u200d"  # seen by how the letters beside them are joined: in Persian, in Hindi, in emoji
NARROWEST = 20  # columns of a terminal that messages are folded for
MESSAGES = 2  # the descriptor of standard error
FULL = (errno.ENOSPC, errno.EDQUOT)


class _Escapes(dict[int, str]):
    """What is written for each character, by its number. `but`: those that are written as they are."""

    def __init__(self, but: str = "") -> None:
        super().__init__({ord(letter): letter for letter in but})

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        self[code] = repr(letter)[1:-1] if category(letter) in UNSEEN else letter
        return self[code]


_IN_A_LINE, _IN_LINES = _Escapes(JOINERS), _Escapes(JOINERS + "\n\t")


def printable(text: str) -> str:
    """A text as one line, with what nobody would see written out: names and values come from anywhere."""
    return text.translate(_IN_A_LINE)


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return text.translate(_IN_LINES)


def between_words(text: str, width: int, indent: str = "") -> list[str]:
    """The lines of a text, folded between words: what has to be copied stays whole. `indent`: of what goes on."""
    fold = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line for each in printable_lines(text).splitlines() for line in fold.wrap(each) or [""]] or [""]


def say(console: Console, text: str) -> None:
    """A message for the person at the terminal, word for word."""
    console.print(for_reader(text, console.file), highlight=False, markup=False, soft_wrap=True)


def for_reader(text: str, stream: IO[str]) -> str:
    """A message with what nobody would see written out; folded for a terminal, but not for a notebook."""
    text = printable_lines(text)
    if in_notebook():
        return text
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # not a terminal, or a stream without a descriptor
        return text
    return "\n".join(between_words(text, width, "  ")) if width > NARROWEST else text


def say_at_once(text: str) -> None:
    """A message on standard error, without a console."""
    print(for_reader(text, sys.stderr), file=sys.stderr, flush=True)


def reopen_closed() -> None:
    """Let a standard stream that was closed (`>&-`) lead nowhere: Python has none then, and the next file that is
    opened would get its number, and what any library prints."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def outlive_readers() -> None:
    """Let both streams go on where their reader has left (`| head`, a closed terminal): the rest goes nowhere, and the
    run goes on. Messages go nowhere too where their disk is full: they are no result.

    So a BrokenPipeError that is seen anywhere is about another pipe.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # a test or a notebook may have put something else there
            stream.flush()
            buffer = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
            lines = stream.line_buffering
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=lines))


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            gone = error.errno == errno.EPIPE or (error.errno == errno.EIO and _was_terminal(self.fileno()))
            if not (gone or (error.errno in FULL and self.fileno() == MESSAGES)):
                raise
            leave(self.fileno())
            return memoryview(data).nbytes


def _was_terminal(descriptor: int) -> bool:
    """Whether it led to a terminal, which may be gone: EIO of a file is a disk's error, and is said."""
    return stat.S_ISCHR(os.fstat(descriptor).st_mode)


def forgive(stream: TextIO) -> None:
    """Let a stream write ? for what its encoding lacks (a terminal of ASCII), where Python would raise."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def leave(descriptor: int) -> None:
    """Let a file descriptor lead nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
