"""The result of a saved run on other data under other names: it would stand in one column with those of tests."""

from __future__ import annotations

from dataclasses import replace

from pipeline.runs.judged_on import OTHER_DATA
from pipeline.runs.result import Result

SHOWN = OTHER_DATA.replace("_", " ")


def of_other_data(result: Result) -> Result:
    """The same with `other_data/` for `test/`, and with words like that in its tables."""
    return replace(
        result,
        metrics=tuple(replace(one, name=_begun(one.name, "test/", f"{OTHER_DATA}/")) for one in result.metrics),
        table=tuple((_begun(name, "test ", f"{SHOWN} "), text) for name, text in result.table),
        details=tuple(replace(one, title=_begun(one.title, "the test set ", f"{SHOWN} ")) for one in result.details),
        failed=result.failed and result.failed.replace("test/", f"{OTHER_DATA}/"),
    )


def _begun(text: str, old: str, new: str) -> str:
    """A text that begins by `new` where it began by `old`."""
    return f"{new}{text.removeprefix(old)}" if text.startswith(old) else text
