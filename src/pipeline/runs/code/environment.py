"""The environment's variables that Python source reads, by syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.runs.code.syntax import called, running

COPIERS = ("copy", "dict")


def variables(module: ast.Module) -> dict[str, str | None]:
    """The environment's variables that the code reads, each with the value that it gives to one that is not set.

    `environ["A"]`, `environ.get("A")`, `getenv("A")`, `"A" in environ`, `environ.setdefault("A", "1")`, by a literal
    name or by a constant of the module's that is one; also by another name that the module gives to `environ`, to a
    copy of it, or to what reads it. Without those that it sets itself, whatever they were.
    """
    nodes = list(running(module))
    names = _Names.of(module, nodes)
    read, written = dict[str, str | None](), set[str]()
    for node in nodes:
        for name in names.read_by(node):
            read.setdefault(name)
    for name, default in [pair for node in nodes for pair in names.set_by(node)]:
        if default is None:  # computed: from then on it is set, also in processes that this one starts
            written.add(name)
        else:
            read[name] = default
    return {name: default for name, default in read.items() if name not in written}


@dataclass
class _Names:
    """What a module's own names stand for: texts, `environ`, copies of it, what reads it.

    `guarded`: the assignments that are made only after a look at the same variable.
    """

    constants: dict[str, str]
    environ: set[str] = field(default_factory=lambda: {"environ"})
    copies: set[str] = field(default_factory=set)
    readers: set[str] = field(default_factory=lambda: {"getenv"})
    guarded: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, module: ast.Module, nodes: Sequence[ast.AST]) -> _Names:
        found = cls(_constants(module))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                for alias in node.names:
                    kinds = {"environ": found.environ, "getenv": found.readers}
                    kinds.get(alias.name, set()).add(alias.asname or alias.name)
        for name, value in [pair for node in nodes for pair in _assigned(node)]:
            for kind, fits in (
                (found.environ, found._is_environ),
                (found.copies, found._is_copy),
                (found.readers, found._is_reader),
            ):
                if isinstance(name, ast.Name) and fits(value):
                    kind.add(name.id)
        found.guarded = {id(one) for node in nodes if isinstance(node, ast.If) for one in found._guarded_by(node)}
        return found

    def read_by(self, node: ast.AST) -> Iterator[str]:
        """The names of the variables that this node itself reads, without those inside."""
        name = None
        if isinstance(node, ast.Subscript) and self._is_readable(node.value) and isinstance(node.ctx, ast.Load):
            name = self._text(node.slice)
        elif isinstance(node, ast.Compare) and self._is_readable(node.comparators[0]):
            name = self._text(node.left)
        elif isinstance(node, ast.Call) and node.args and self._is_reader(node.func):
            name = self._text(node.args[0])
        if name is not None:
            yield name

    def set_by(self, node: ast.AST) -> Iterator[tuple[str, str | None]]:
        """The names of the variables that it sets, each with the text that one gets which is not set (None: computed).

        `environ["A"] = ...`; as it is set, and else a text: `environ.setdefault("A", "1")`,
        `environ["A"] = environ.get("A", "1")`, `... or "1"`, `if "A" not in environ: environ["A"] = "1"`.
        """
        for target, value in _assigned(node):
            if isinstance(target, ast.Subscript) and self._is_environ(target.value):
                name = self._text(target.slice)
                if name is not None:
                    yield name, self._text(value) if id(target) in self.guarded else self._default(name, value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            name = self._text(node.args[0])
            if name is not None and node.func.attr == "setdefault" and self._is_environ(node.func.value):
                yield name, self._text(node.args[-1])

    def _default(self, name: str, value: ast.expr) -> str | None:
        """The text in `get(name, text)` or in `... or text`."""
        first = value.values[0] if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or) else value
        if name not in self.read_by(first):
            return None
        if isinstance(value, ast.BoolOp):
            return self._text(value.values[-1])
        return self._text(value.args[-1]) if isinstance(value, ast.Call) and len(value.args) > 1 else None

    def _guarded_by(self, node: ast.If) -> Iterator[ast.AST]:
        asked = {name for one in ast.walk(node.test) for name in self.read_by(one)}
        inside = [one for child in node.body for one in ast.walk(child)]
        for target in (target for one in inside for target, _ in _assigned(one)):
            if isinstance(target, ast.Subscript) and self._text(target.slice) in asked:
                yield target

    def _is_environ(self, node: ast.expr) -> bool:
        return getattr(node, "attr", "") == "environ" or getattr(node, "id", "") in self.environ

    def _is_copy(self, node: ast.expr) -> bool:
        """`environ.copy()`, `dict(environ)`: what is written to it stays in it."""
        if not isinstance(node, ast.Call) or called(node) not in COPIERS:
            return False
        return any(map(self._is_environ, [*node.args, getattr(node.func, "value", node)]))

    def _is_readable(self, node: ast.expr) -> bool:
        return self._is_environ(node) or getattr(node, "id", "") in self.copies

    def _is_reader(self, node: ast.expr) -> bool:
        """`getenv`, `environ.get`, or a name for one of them."""
        if isinstance(node, ast.Attribute):
            return node.attr == "getenv" or (node.attr == "get" and self._is_readable(node.value))
        return isinstance(node, ast.Name) and node.id in self.readers

    def _text(self, node: ast.expr) -> str | None:
        return _text(node, self.constants)


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What it assigns to, each with the value."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
        yield node.target, node.value


def _constants(module: ast.Module) -> dict[str, str]:
    """The texts that the module's own names stand for: `NAME = "A"`."""
    assigned = (pair for node in module.body if not isinstance(node, ast.AugAssign) for pair in _assigned(node))
    found = ((target, _text(value, {})) for target, value in assigned)
    return {target.id: text for target, text in found if isinstance(target, ast.Name) and text is not None}


def _text(node: ast.expr, constants: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
