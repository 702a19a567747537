"""User code that decides a result and that the code's hash cannot see: a module loaded by its file.

What is imported by its name is followed (code_hash.py), and what is imported by a computed name is known when the run
has ended (runs/dynamic_imports.py).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.runs.code import code_hash
from pipeline.runs.code import sources as code_sources
from pipeline.runs.code import syntax as code_syntax

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

LOADERS = ("spec_from_file_location", "SourceFileLoader", "run_path", "load_source")
READERS = ("open", "read", "read_text", "read_bytes")


def check_seen(experiment: Experiment) -> None:
    """Refuse user code that loads code by a file that nothing names. Raises UserError.

    A file that a string of the module or a spec's `user_files` names counts, so that such a module is left alone.
    """
    specs = code_hash.specs(experiment)
    if all(code_sources.is_ours(type(one).__module__) and not one.user_code for one in specs):
        return
    if any(one.user_files and not code_sources.is_ours(type(one).__module__) for one in specs):
        return
    for name, path in code_hash.own_modules(experiment).items():
        found = unseen(name, path)
        if found:
            raise UserError(found)


def unseen(name: str, path: Path) -> str | None:
    """What is wrong with a module that loads code by a file that it does not name; None where nothing is."""
    found = _loading(path)
    if found is None or any(file.suffix == ".py" for _, file in code_sources.files(name, path, Path.cwd())):
        return None
    return (
        f"{path.name}, line {found.lineno}: {code_syntax.called(found)}() loads code by its file, which the code's "
        "hash does not see; import it by its name, or name the file in a string of that module, as "
        'FILES = ("lib/helper.py",)'
    )


def _loading(path: Path) -> ast.Call | None:
    """The first call in a file that loads code by a file."""
    tree = code_syntax.tree(path) if path.suffix == ".py" else None
    calls = (node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.Call))
    return next((call for call in calls if _loads(call)), None)


def _loads(call: ast.Call) -> bool:
    name = code_syntax.called(call)
    if name != "exec":
        return name in LOADERS
    inside = (node for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Call))
    return any(code_syntax.called(node) in READERS for node in inside)
