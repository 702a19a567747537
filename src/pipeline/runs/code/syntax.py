"""Python source as a syntax tree: a text of what it does, equal for every Python, and what it imports."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

IGNORED = ("ctx", "kind", "type_comment", "type_ignores")  # fields that decide nothing, or repeat what the parent says
IMPORTERS = ("import_module", "__import__")


@cache
def tree(path: Path) -> ast.Module | None:
    """The syntax tree of a file; None for what this Python cannot parse, so cannot run either."""
    return parsed(path.read_bytes(), path)


def parsed(content: bytes, path: Path) -> ast.Module | None:
    """The syntax tree of what a file held; None for what this Python cannot parse."""
    try:
        return ast.parse(content, str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def text(node: ast.AST) -> str:
    """What the code does, without comments, docstrings and line breaks.

    `ast.dump` writes another text in Python 3.12 than in 3.11: it lists fields that the older tree lacks
    (`type_params`), and an f-string has other parts. Here an empty field is left out, and neighbouring parts of an
    f-string are joined.
    """
    written: list[str] = []
    _write(node, written)
    return "".join(written)


def _write(root: ast.AST, written: list[str]) -> None:
    """With a stack, since a sum of a thousand terms, or as many `elif`, are nested as deep."""
    waiting: list[tuple[bool, Any]] = [(False, root)]  # whether it is text already, and what is to be written
    while waiting:
        is_text, value = waiting.pop()
        if is_text:
            written.append(value)
        elif isinstance(value, ast.Constant):
            written.append(f"{type(value.value).__name__} {_literal(value.value)}")
        elif isinstance(value, (ast.AST, list)):
            waiting += reversed(_parts(value))
        else:
            written.append(_literal(value))


def _parts(value: ast.AST | list[Any]) -> list[tuple[bool, Any]]:
    """What a node or a list is written as: text, and what is still to be written."""
    if isinstance(value, list):
        return [(True, "["), *(each for item in value for each in ((False, item), (True, ","))), (True, "]")]
    parts: list[tuple[bool, Any]] = [(True, f"{type(value).__name__}(")]
    for name, field in ast.iter_fields(value):
        part = _shown(value, name, field)
        if name not in IGNORED and part is not None and part != []:
            parts += [(True, f"{name}="), (False, part), (True, ",")]
    return [*parts, (True, ")")]


def _literal(value: object) -> str:
    """In ASCII: which letters `repr` escapes depends on Python's version. Hexadecimal: long decimals are refused."""
    return hex(value) if type(value) is int else ascii(value)


def _shown(node: ast.AST, name: str, part: Any) -> Any:
    """A field without docstrings, and an f-string's parts joined."""
    if isinstance(node, ast.JoinedStr) and name == "values":
        return _joined(part)
    if name == "body" and isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [statement for statement in part if not _is_docstring(statement)]
    return part


def _joined(parts: Sequence[ast.expr]) -> list[ast.expr]:
    found: list[ast.expr] = []
    for part in parts:
        if isinstance(part, ast.Constant) and found and isinstance(found[-1], ast.Constant):
            found[-1] = ast.Constant(f"{found[-1].value!s}{part.value!s}")
        elif not (isinstance(part, ast.Constant) and part.value == ""):
            found.append(part)
    return found


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def imports(module: ast.Module, package: str, *, by_call: bool) -> tuple[str, ...]:
    """Every module that the code may import, inside functions too: `from a import b` gives a and a.b.

    `package`: what relative imports start from. `by_call`: also by `import_module("a")`, of a literal name.
    """
    found: list[str] = []
    for node in running(module):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            name = _absolute("." * node.level + (node.module or ""), package)
            found += [name, *(f"{name}.{alias.name}" for alias in node.names)] if name else []
        elif by_call and isinstance(node, ast.Call) and called(node) in IMPORTERS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.append(_absolute(first.value, package))
    return tuple(filter(None, found))


def called(node: ast.Call) -> str:
    """The name of what is called, without what it belongs to."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _absolute(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package) if name.startswith(".") else name
    except ImportError:  # beyond the top-level package: fails when it runs
        return ""


def running(root: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that `if TYPE_CHECKING` guards, which never run."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is not root:
            yield node
        guard = (getattr(node.test, "id", ""), getattr(node.test, "attr", "")) if isinstance(node, ast.If) else ()
        children = node.orelse if "TYPE_CHECKING" in guard else ast.iter_child_nodes(node)  # type: ignore[attr-defined]
        waiting += reversed(list(children))
