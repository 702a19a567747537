"""What the user's own code raised, in words: the exception, and in which function, file and line of theirs."""

from __future__ import annotations

import contextlib
import re
import sysconfig
import traceback
from functools import cache
from pathlib import Path

from pipeline.allowed import is_listed

INSTALLED = ("site-packages", "dist-packages")
HERE = Path(__file__).parent
LONGEST = 300  # characters of an exception's message that are shown
ROW = 200  # of one in a row of a table
QUOTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\w+)')
RAISED = re.compile(r"^\s*([\w.]*(?:Error|Exception): .*\S)", re.MULTILINE)
OF_A_LAYER = re.compile(  # Keras's words around what is raised while a layer is called
    r"(?:(?<![\w.])(?P<kind>[\w.]*(?:Error|Exception)): ['\"]?)?Exception encountered when calling \S+\s+"
    r"(?P<said>.*?)\s+Arguments received by ",
    re.DOTALL,
)
GENERATED = "__autograph_generated_file"  # what TensorFlow makes of a function, whoever wrote it
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # Keras's


def in_words(error: BaseException) -> str:
    """`ValueError: a label is damaged, in training_step (mine.py, line 12)`, on one line."""
    return f"{message(error)}{where(error)}"


def where(error: BaseException) -> str:
    """`, in training_step (mine.py, line 12)`, to end a message with; empty where the user's code had no part."""
    found = place(error)
    return "" if found is None else f", in {found}"


def place(error: BaseException) -> str | None:
    """The user's function, file and line that raised, or that called what did: the innermost there is; None: none."""
    called = [
        (frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    quoted = [(one["file"], int(one["line"]), one["function"]) for one in QUOTED.finditer(str(error))]
    return next((found for one in (*reversed(quoted), *reversed(called)) if (found := _users(*one))), None)


def is_of_this_package(error: BaseException) -> bool:
    """Whether it was raised by this package itself, and not by what it calls."""
    frames = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].is_relative_to(HERE)


def _users(file: str, line: int, function: str) -> str | None:
    path = Path(file)
    if path.name.startswith(GENERATED):
        return None
    if path.is_relative_to(HERE) or not path.is_file() or (is_installed(path) and not _is_named(path)):
        return None
    with contextlib.suppress(ValueError, OSError):  # it lies elsewhere, or the current folder is gone
        path = path.relative_to(Path.cwd())
    return f"{function} ({path}, line {line})"


def _is_named(path: Path) -> bool:
    """Whether it lies in an installed package that PIPELINE_MODULES names: that is the user's code, too."""
    folders = [place for place, part in enumerate(path.parts[:-1]) if part in INSTALLED]
    return bool(folders) and is_listed(path.parts[folders[-1] + 1])


def message(error: BaseException) -> str:
    """`ValueError: ...` on one line; of a long message beginning and end, where the reason often stands.

    A loader's worker and TensorFlow's graphs quote a traceback in the message, and what was raised below it; Keras puts
    it between the layer that was called and what with.
    """
    text = COLOURS.sub("", str(error))
    layer = OF_A_LAYER.search(COLOURS.sub("", _unquoted(str(error))))
    if layer is not None:
        return shortened(f"{layer['kind'] or type(error).__name__}: {' '.join(layer['said'].split()).rstrip('.')}")
    raised = RAISED.findall(text) if QUOTED.search(text) else []
    return shortened(raised[-1] if raised else f"{type(error).__name__}: {' '.join(text.split())}")


def _unquoted(text: str) -> str:
    """A KeyError shows its message as Python writes a string."""
    return text.replace("\\n", "\n").replace("\\x1b", "\x1b")


def in_one_line(error: BaseException) -> str:
    """The first line of an error's text; of an error without one its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def first_line(error: BaseException) -> str:
    """`raised ValueError: ...`, by the first line of what a framework says, for the row of a table."""
    lines = str(error).strip().splitlines() or [""]
    return f"raised {type(error).__name__}: {lines[0][:ROW]}"


def shortened(text: str) -> str:
    """Beginning and end of a long text."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


@cache
def is_installed(path: Path) -> bool:
    """Whether it lies in the standard library or in an installed distribution."""
    return any(part in INSTALLED for part in path.parts) or any(path.is_relative_to(folder) for folder in _standard())


@cache
def _standard() -> tuple[str, ...]:
    """Where the standard library lies; asked for anew for each module of a run, it takes a second."""
    return sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
