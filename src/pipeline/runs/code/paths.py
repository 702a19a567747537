"""The strings of a module's code that stand where a path is put together, by syntax."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from pipeline.runs.code.syntax import called

JOINERS = ("Path", "str", "join", "joinpath", "fspath", "with_suffix", "with_name", "resolve", "absolute", "format")
LISTERS = ("glob", "iglob", "rglob", "iterdir", "listdir", "scandir", "walk")
OWN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def texts(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Those that `/` joins, or a call that makes paths, lists folders or calls what the module itself defines.

    A variable, an attribute, a parameter's default and what a loop goes through stand for their values. A dictionary's
    key does not count.
    """
    nodes = list(nodes)
    values, own = _values(nodes), {node.name for node in nodes if isinstance(node, OWN)}
    waiting, found = [part for node in nodes for part in _parts(node, {*JOINERS, *LISTERS, *own})], set[str]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            waiting += values.pop(node.id if isinstance(node, ast.Name) else node.attr, [])
        elif isinstance(node, ast.Dict):
            waiting += node.values
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Starred, ast.IfExp, ast.BoolOp)):
            waiting += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    return frozenset(found)


def _parts(node: ast.AST, callers: set[str]) -> list[ast.expr]:
    """What a node puts a path together of, if it does."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [node.left, node.right]
    if isinstance(node, ast.Call) and called(node) in callers:
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*owner, *node.args, *(word.value for word in node.keywords)]
    return []


def _values(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """By the name of a variable, an attribute or a parameter what it is given."""
    found = defaultdict[str, list[ast.expr]](list)
    for name, value in (pair for node in nodes for pair in _given(node)):
        found[name].append(value)
    return found


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.arguments):
        every = [*node.posonlyargs, *node.args]
        last = every[len(every) - len(node.defaults) :]
        pairs = [*zip(last, node.defaults, strict=True), *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        yield from ((one.arg, value) for one, value in pairs if value is not None)
        return
    value = getattr(node, "iter" if isinstance(node, (ast.For, ast.comprehension)) else "value", None)
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    for one in (one for target in targets if target is not None for one in ast.walk(target)):
        if isinstance(value, ast.expr) and isinstance(one, (ast.Name, ast.Attribute)):
            yield (one.id if isinstance(one, ast.Name) else one.attr), value
