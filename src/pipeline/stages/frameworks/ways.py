"""The graphs that stage=graph makes of a step, read off the code of a framework's ways without importing it."""

from __future__ import annotations

import ast
from typing import NamedTuple

from pipeline.runs.code.sources import source
from pipeline.stages.graph.bench import MODULES


class Graphs(NamedTuple):
    """`made`: by what, such as torch.compile. `saved`: as what, such as torch_export."""

    made: tuple[str, ...]
    saved: tuple[str, ...]


def graphs_of(backend: str) -> Graphs:
    """Of the classes in WAYS that are not `eager`."""
    path = source(MODULES[backend])
    assert path is not None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
    ways = [_settings(one.id, classes) for one in _ways(tree) if isinstance(one, ast.Name)]
    graphs = [one for one in ways if not one.get("eager")]
    saved = dict.fromkeys(str(one["saved_as"]) for one in graphs if "saved_as" in one)
    return Graphs(tuple(str(one["how"]) for one in graphs), tuple(saved))


def _ways(tree: ast.Module) -> list[ast.expr]:
    for one in tree.body:
        if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == "WAYS" and isinstance(one.value, ast.Tuple):
            return one.value.elts
    raise AssertionError("a module of ways has no tuple WAYS")


def _settings(name: str, classes: dict[str, ast.ClassDef]) -> dict[str, object]:
    """What a class, and those above it in its module, set to a constant."""
    if name not in classes:
        return {}
    found: dict[str, object] = {}
    for base in classes[name].bases:
        found |= _settings(ast.unparse(base), classes)
    for one in classes[name].body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.value, ast.Constant):
            found[ast.unparse(one.target)] = one.value.value
    return found
