"""The result of stage=wmma: of what was timed, of the machine code, and of the sizes around one."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.runs.result import Result
from pipeline.stages.wmma import machine_code, padding, tables
from pipeline.stages.wmma.found import Found


def result_of(bench: Found, code: machine_code.Built, around: padding.Around | None) -> Result:
    """Metrics, tables and rows; failed where a kernel was wrong, or its machine code not what it claims."""
    wrong = {name: str(verdict.fault) for name, verdict in bench.verdicts.items() if verdict.fault}
    faults = [f"not timed, because wrong: {_the_first_of(wrong)}"] if wrong else []
    refused = machine_code.refused(code)
    faults += [f"machine code refused: {_the_first_of(refused)}"] if refused else []
    return Result(
        metrics=(
            *tables.metrics(bench),
            *machine_code.metrics(code),
            *(() if around is None else padding.metrics(around)),
        ),
        tables=(
            *tables.timed(bench),
            *machine_code.table(code),
            *(() if around is None else padding.tables(around)),
        ),
        table=(
            *tables.summary(bench),
            *(() if around is None else padding.summary()),
            *tables.not_timed(bench),
            *machine_code.summary(code),
        ),
        failed="; ".join(faults) or None,
    )


def _the_first_of(faults: Mapping[str, str]) -> str:
    """What is wrong with the first of them, and which others there are: the table says what is wrong with each."""
    first, *others = faults
    also = f"; also {', '.join(others)} (the table says what is wrong with each)" if others else ""
    return f"{first}: {faults[first]}{also}"
