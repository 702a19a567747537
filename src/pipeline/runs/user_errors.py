"""An exception that the user's own code raised while a run was under way: one line says where, a file has all of it."""

from __future__ import annotations

import contextlib
import re
import traceback
from pathlib import Path

from pipeline.errors import RunError, cut
from pipeline.passwords import without_password
from pipeline.runs.code.sources import is_ours, is_own

TRACEBACK = "traceback.txt"
HERE = Path(__file__).parents[1]
LONGEST = 300  # characters of an exception's message that are shown
QUOTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\w+)')
RAISED = re.compile(r"^\s*([\w.]*(?:Error|Exception): .*\S)", re.MULTILINE)
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # Keras's


def as_run_error(error: Exception, artifacts: Path) -> RunError | None:
    """`training_step (mine.py, line 12) raises ValueError: ...`; None where no code of the user's was running.

    The traceback is written to `artifacts`.
    """
    where = place(error)
    if where is None:
        return None
    said = f"{where} raises {_message(error)}"
    try:
        artifacts.mkdir(exist_ok=True)
        text = without_password("".join(traceback.format_exception(error)))
        (artifacts / TRACEBACK).write_text(text, encoding="utf-8")
    except OSError:  # the disk may be full; PIPELINE_TRACEBACK=1 shows it still
        return RunError(said)
    return RunError(f"{said}; artifacts/{TRACEBACK} has the traceback")


def place(error: Exception) -> str | None:
    """The user's function, file and line that raised, or that called what did: the innermost there is."""
    called = [
        (frame.f_globals.get("__name__", ""), frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    quoted = [("", one["file"], int(one["line"]), one["function"]) for one in QUOTED.finditer(str(error))]
    return next((found for one in (*reversed(quoted), *reversed(called)) if (found := _users(*one))), None)


def _users(module: str, file: str, line: int, function: str) -> str | None:
    path = Path(file)
    if is_ours(module) or path.is_relative_to(HERE) or not path.is_file() or not is_own(module, path):
        return None
    with contextlib.suppress(ValueError, OSError):  # it lies elsewhere, or the current folder is gone
        path = path.relative_to(Path.cwd())
    return f"{function} ({path}, line {line})"


def _message(error: Exception) -> str:
    """`ValueError: ...` on one line.

    A loader's worker and TensorFlow's graphs quote a traceback in the message, and what was raised below it.
    """
    text = COLOURS.sub("", str(error))
    raised = RAISED.findall(text) if QUOTED.search(text) else []
    said = raised[-1] if raised else f"{type(error).__name__}: {' '.join(text.split())}"
    return cut(said, LONGEST)
