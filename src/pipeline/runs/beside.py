"""What is measured or drawn beside a result that is there already."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeline.errors import RunError, UserError, cut
from pipeline.machine.memory import is_out_of_memory
from pipeline.raised import in_one_line
from pipeline.runs.result import Result


def beside(what: str, work: Callable[[], Result | None]) -> Result:
    """What `work` gives, if anything. The result is kept in any case: a note says what failed here.

    That is for what the data, the disk or the memory refuse. Any other error is a fault: the run has its result, too,
    and is FAILED.
    """
    try:
        return work() or Result(())
    except Exception as error:
        said = cut(in_one_line(error), 300)
        if isinstance(error, (UserError, RunError, OSError)) or is_out_of_memory(error):
            return Result((), notes=(f"{what}: {said}",))
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Result((), failed=f"{what}: {type(error).__name__}: {said} ({at.filename}:{at.lineno})")


def joined(results: Sequence[Result]) -> Result:
    """Of several: all their metrics, notes and rows, and the first fault."""
    return Result(
        tuple(metric for one in results for metric in one.metrics),
        table=tuple(row for one in results for row in one.table),
        notes=tuple(note for one in results for note in one.notes),
        failed=next((one.failed for one in results if one.failed), None),
    )


def with_figures(result: Result, *draw: Callable[[], None], what: str = "figures: not drawn") -> Result:
    """A result, and what hindered its figures, or whatever `what` names, if anything."""
    drawn = joined([beside(what, one) for one in draw])
    return replace(result, notes=(*result.notes, *drawn.notes), failed=result.failed or drawn.failed)


def with_pages(result: Result, *write: Callable[[], None]) -> Result:
    """The same of its pages of text."""
    return with_figures(result, *write, what="pages: not written")
