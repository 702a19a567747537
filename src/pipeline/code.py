"""Which modules decide an experiment's result, and a hash of what they do.

Starting from the modules of the experiment's specs, every import of this package (or of the user's own modules on the
allow-list) is followed, those inside functions too. Left out are the modules that only watch or tell (WITNESSES) and,
by their names, the builders of the other frameworks (torch_*.py in a Keras run). The hash is of the syntax tree without
docstrings: a comment, a docstring or a line break changes nothing.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.spec import allowed_modules

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

PARTS = (
    "stage",
    "backend",
    "device",
    "precision",
    "model",
    "dataset",
    "loader",
    "optimizer",
    "loss",
    "solver",
    "training",
)
ALWAYS = ("pipeline.experiment", "pipeline.capability")
WITNESSES = (
    "pipeline.code",
    "pipeline.command_line",
    "pipeline.errors",
    "pipeline.exits",
    "pipeline.journal",
    "pipeline.process",
    "pipeline.profilers",
    "pipeline.quiet",
    "pipeline.receipt",
    "pipeline.report",
    "pipeline.run",
    "pipeline.runner",
    "pipeline.runs",
    "pipeline.saved",
    "pipeline.streams",
    "pipeline.study",
    "pipeline.sweep",
    "pipeline.terminal",
    "pipeline.tracking",
)
OTHERS = {"torch": ("keras",), "keras": ("torch",)}  # builder -> how the modules of the other builders begin


def code_sha256(experiment: Experiment) -> str:
    """Hash of the code that decides the experiment's result."""
    return hash_of(modules(experiment))


def hash_of(found: Mapping[str, str]) -> str:
    """One hash for modules and their hashes."""
    total = hashlib.sha256()
    for name, digest in found.items():
        total.update(f"{name} {digest}\n".encode())
    return total.hexdigest()


def modules(experiment: Experiment) -> dict[str, str]:
    """The deciding modules by name, each with the hash of its code."""
    reads = getattr(experiment.stage, "reads", None)
    parts = PARTS if reads is None else ("stage", *reads)
    if experiment.solver.solve is None:  # no part of an experiment that solves nothing
        parts = tuple(part for part in parts if part != "solver")
    starts = [*ALWAYS, *(type(getattr(experiment, part)).__module__ for part in parts)]
    if "backend" in parts and not getattr(experiment.stage, "solves", False):  # a solver trains by itself
        starts += experiment.backend.modules
        if getattr(experiment.stage, "probe", False):
            starts.append(experiment.backend.probe)
    return closure(starts, experiment.backend.builder)


def closure(starts: Iterable[str], builder: str = "") -> dict[str, str]:
    """The modules `starts` and what they import, each with the hash of its code."""
    return {name: _digest(path) for name, path in _closure(tuple(sorted(set(starts))), builder)}


def own_code(names: Iterable[str]) -> dict[str, str]:
    """The modules `names` themselves, each with the hash of its code."""
    paths = {name: _source(name) for name in names}
    return {name: _digest(path) for name, path in paths.items() if path is not None}


@cache
def _closure(starts: tuple[str, ...], builder: str) -> tuple[tuple[str, Path], ...]:
    waiting, found = list(starts), dict[str, Path]()
    while waiting:
        name = waiting.pop()
        if name in found or not _counts(name, builder):
            continue
        path = _source(name)
        if path is None:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imports(name, path)]
    return tuple(sorted(found.items()))


def _counts(name: str, builder: str) -> bool:
    if name.partition(".")[0] not in allowed_modules():
        return False
    if any(name == one or name.startswith((f"{one}.", f"{one}_")) for one in WITNESSES):
        return False
    last = name.rpartition(".")[2]
    return not any(last.startswith(f"{other}_") for other in OTHERS.get(builder, ()))


@cache
def _source(name: str) -> Path | None:
    """The file of a module, found without importing anything; None for what is no module (a class, a function)."""
    top, *rest = name.split(".")
    found = importlib.util.find_spec(top)
    if found is None:
        return None
    if not found.submodule_search_locations:
        return Path(found.origin) if found.origin and not rest else None
    path = Path(next(iter(found.submodule_search_locations))).joinpath(*rest)
    return next((file for file in (path / "__init__.py", path.with_name(f"{path.name}.py")) if file.is_file()), None)


@cache
def _imports(name: str, path: Path) -> tuple[str, ...]:
    """Every module that may be imported by `name`: `from a import b` gives a and a.b."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: list[str] = []
    for node in _running(_tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return tuple(found)


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below `if TYPE_CHECKING`, which never run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _running(node)


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(ast.dump(_without_docstrings(_tree(path))).encode()).hexdigest()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
