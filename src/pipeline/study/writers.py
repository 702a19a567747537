"""The modules that write what DVC keeps of a stage, beside those that decide its result.

A run's hash of code leaves out what changes no result (runs/code/code_hash.py): figures, tables, the receipt, the
journal, the notes on cells. They make the files in study/<stage>/, so DVC tracks their hashes too. Imports are
followed within PACKAGES alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.runs.code import code_hash as code
from pipeline.runs.code import sources as code_sources

PACKAGES = (
    "pipeline.machine.environment",
    "pipeline.machine.gpu_table",
    "pipeline.machine.host",
    "pipeline.machine.others",
    "pipeline.pinn.figures",
    "pipeline.ready",
    "pipeline.report",
    "pipeline.runner",
    "pipeline.runs",
    "pipeline.study",
    "pipeline.sweep.notes",
)
ALWAYS = ("pipeline.runner", "pipeline.study.outcome")  # by which every stage is run and its files are kept
SAVING = "pipeline.study.saved"  # by which the run is kept from which others start


def writers_of(deciding: Iterable[str], *, saves: bool = False) -> dict[str, str]:
    """The modules that write the files of a stage whose result the modules `deciding` decide, with their hashes.

    `saves`: another stage starts from its run.
    """
    return writers([*ALWAYS, *([SAVING] if saves else []), *deciding])


def writers(starts: Iterable[str]) -> dict[str, str]:
    """The modules of PACKAGES that `starts` import, directly or by way of each other, with the hash of their code.

    `starts` are names of modules; those of PACKAGES among them count as well.
    """
    waiting, found = list(starts), set[str]()
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        if _counts(name):
            found.add(name)
        new = {one for one in _imports(name) if _counts(one)} - seen
        seen |= new
        waiting += new
    return code.own_code(sorted(found))


def _counts(name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in PACKAGES)


def _imports(name: str) -> tuple[str, ...]:
    """Every module that `name` may import; none of what is not a module (a class, a function)."""
    path = code_sources.source(name)
    return () if path is None else code_sources.imports(name, path)
