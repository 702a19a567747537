"""An exception of a run that the user's code is the cause of: one line says where, a file has the traceback."""

from __future__ import annotations

import traceback
from pathlib import Path

from pipeline.errors import RunError
from pipeline.passwords import without_password
from pipeline.raised import in_words, is_of_this_package, place

TRACEBACK = "traceback.txt"


def as_run_error(error: Exception, whose: str | None, artifacts: Path) -> RunError | None:
    """As one message; None for one that no code of the user's had a part in.

    `whose`: what of the user's is trained, where a framework trains it without us: then whatever it raises is about
    that, unless it was raised in this package. The traceback is written to `artifacts`.
    """
    if place(error) is None and (whose is None or is_of_this_package(error)):
        return None
    said = f"{whose} raises {in_words(error)}" if whose else in_words(error)
    try:
        artifacts.mkdir(exist_ok=True)
        text = without_password("".join(traceback.format_exception(error)))
        (artifacts / TRACEBACK).write_text(text, encoding="utf-8")
    except OSError:  # the disk may be full; PIPELINE_TRACEBACK=1 shows it still
        return RunError(said)
    return RunError(f"{said}; artifacts/{TRACEBACK} has the traceback")
