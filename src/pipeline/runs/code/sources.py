"""Where the code of a module lies, whose it is, and what it hashes to; found without importing anything.

Code is the user's own unless it lies in the standard library or in an installed distribution (a folder `site-packages`
or `dist-packages`). An editable install is therefore one's own code, and so is what PIPELINE_MODULES names, wherever it
lies.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

from pipeline.allowed import is_listed
from pipeline.machine.environment import is_users
from pipeline.machine.installed import installed_version
from pipeline.raised import INSTALLED, is_installed
from pipeline.runs.code import environment
from pipeline.runs.code import files as code_files
from pipeline.runs.code import syntax as code_syntax
from pipeline.runs.code.kept import Known, kept

PACKAGE = "pipeline"
SUFFIXES = (".py", *EXTENSION_SUFFIXES)


@cache
def source(name: str) -> Path | None:
    """The file of a module; None for what is not a module (a class, a function), or no file (built in)."""
    top, *rest = name.split(".")
    origin, folders = _top(top)
    if not rest:
        return origin
    for folder in folders:
        path = folder.joinpath(*rest)
        for suffix in SUFFIXES:
            for file in (path / f"__init__{suffix}", path.with_name(path.name + suffix)):
                if file.is_file():
                    return file
    return None


@cache
def _top(name: str) -> tuple[Path | None, tuple[Path, ...]]:
    """The file of a top-level module, and the folders that its submodules lie in (of a namespace package several)."""
    try:
        found = importlib.util.find_spec(name)
    except ImportError:  # left out of this process, as TensorFlow is where Keras runs on JAX
        found = PathFinder.find_spec(name)
    except (ValueError, AttributeError):  # __main__
        return None, ()
    if found is None:
        return None, ()
    origin = Path(found.origin) if found.has_location and found.origin else None
    return origin, tuple(Path(folder) for folder in found.submodule_search_locations or ())


def is_own(name: str, path: Path) -> bool:
    """Whether the module is this package's or the user's."""
    return is_listed(name) or not is_installed(path)


def is_ours(name: str) -> bool:
    """Whether the module is this package's."""
    return name.partition(".")[0] == PACKAGE


@cache
def imports(name: str, path: Path) -> tuple[str, ...]:
    """Every module that may be imported by the module `name`.

    What this package imports by a call is what a spec's class variables name (`modules`), as they are chosen.
    """
    if is_ours(name):
        return _ours(name, path).imports
    tree = _tree(path)
    package = name if path.name.partition(".")[0] == "__init__" else name.rpartition(".")[0]
    return () if tree is None else code_syntax.imports(tree, package, by_call=True)


@cache
def digest(name: str, path: Path, here: Path) -> str:
    """Hash of what a module does: of its code, of the files that it names, and of the variables that it reads.

    `here`: the current folder, in which the user's code may name files too. This package has no such files.
    """
    if is_ours(name):
        return _ours(name, path).digest
    total = _code(path).copy()
    for shown, file in files(name, path, here):
        total.update(f"{shown} {code_files.content(file)}\n".encode())
    for variable, default in variables(name, path).items():
        total.update(f"${variable} {os.environ.get(variable, default)}\n".encode())
    return total.hexdigest()


@cache
def _ours(name: str, path: Path) -> Known:
    """What is known of a module of this package, as it was when this process first asked."""
    return kept().of(name, path)


@cache
def variables(name: str, path: Path) -> dict[str, str | None]:
    """The environment's variables that a module of the user's reads, but for what machines and imports set.

    Each with the value that the module gives to one that is not set, if any.
    """
    tree = None if is_ours(name) else _tree(path)
    found = {} if tree is None else environment.variables(tree)
    return {name: default for name, default in found.items() if is_users(name)}


@cache
def _code(path: Path) -> hashlib._Hash:
    """Hash of a module's syntax tree, of a compiled one of its bytes; kept as it was when it was imported."""
    tree = _tree(path)
    return hashlib.sha256(path.read_bytes() if tree is None else code_syntax.text(tree).encode())


def files(name: str, path: Path, here: Path) -> list[tuple[str, Path]]:
    """The files that the module reads, as far as its strings name them (see code_files), each as it is named there."""
    tree = _tree(path)
    if tree is None:
        return []
    found = _named(code_files.names(tree), name, path, here)
    for module in dict.fromkeys(imports(name, path)):
        place = None if is_ours(module) else source(module)
        other = _tree(place) if place is not None and place != path and is_own(module, place) else None
        if place is not None and other is not None:
            found += _named(code_files.names_elsewhere(other, tree), module, place, here)
    return list(dict.fromkeys(found))


def _named(named: code_files.Names, name: str, path: Path, here: Path) -> list[tuple[str, Path]]:
    folders = path.parents[: _depth(name, path) + 1]
    return code_files.files(named, path, folders, here) if named.texts else []


def root(name: str, path: Path) -> Path:
    """The folder that holds the module's top-level package."""
    return path.parents[: _depth(name, path) + 1][-1]


def _depth(name: str, path: Path) -> int:
    return name.count(".") + (path.name == "__init__.py")


@cache
def distribution(module: str) -> str | None:
    """The installed distribution that brings the module; None for the standard library's, and where none says so."""
    top = module.partition(".")[0]
    origin, folders = _top(top)
    place = next(iter((*([origin] if origin else []), *folders)), None)
    if place is None or not any(part in INSTALLED for part in place.parts):
        return None
    try:
        return str(importlib.metadata.metadata(top)["Name"])
    except importlib.metadata.PackageNotFoundError:
        return _holding(top)


def _holding(top: str) -> str | None:
    """By what the distributions say that they have installed: PIL is pillow's. Some of these lists are long."""
    starts = (f"\n{top}/", f"\n{top}.")
    for one in importlib.metadata.distributions():
        if any(start in f"\n{one.read_text('RECORD') or ''}" for start in starts):
            return str(one.metadata["Name"])
    return None


def brings(package: str) -> str | None:
    """The installed distribution of this name, else the one that brings its module, as tensorflow-cpu does."""
    return package if installed_version(package) is not None else distribution(package.replace("-", "_"))


def _tree(path: Path) -> ast.Module | None:
    return code_syntax.tree(path) if path.suffix == ".py" else None
