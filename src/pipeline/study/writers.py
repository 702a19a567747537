"""The modules that write what DVC keeps of a stage, beside those that decide its result.

A run's hash of code leaves out what changes no result (runs/code/code_hash.py): figures, tables, the receipt, the
journal. They make the files in study/<stage>/, so DVC tracks their hashes too. Imports are followed within PACKAGES
alone.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from pipeline.runs.code import code_hash as code

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
)
ALWAYS = ("pipeline.runner", "pipeline.study.outcome")  # by which every stage is run and its files are kept


def writers_of(deciding: Iterable[str]) -> dict[str, str]:
    """The modules that write the files of a stage whose result the modules `deciding` decide, with their hashes."""
    return writers([*ALWAYS, *deciding])


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


@cache
def _imports(name: str) -> tuple[str, ...]:
    """Every module that `name` may import, inside functions too: `from a import b` gives a and a.b."""
    spec = _spec(name)
    if spec is None or spec.origin is None:
        return ()
    package = name if spec.submodule_search_locations else name.rpartition(".")[0]
    found: list[str] = []
    for node in _running(ast.parse(Path(spec.origin).read_bytes())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return tuple(found)


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Where a module lies; None for what is not a module (a class, a function)."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:  # `name` is inside a module that is not a package
        return None


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below `if TYPE_CHECKING`, which never run."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from _running(node)
