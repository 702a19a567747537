"""The user's modules that a run has imported and whose names no code spells out: `import_module(f"lab.{part}")`.

They are known only when they are imported. A checkpoint has the files and hashes so far, which `resume` compares; the
receipt has them when the run ends, and the next sweep compares.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.runs.code import code_hash as code
from pipeline.runs.code import sources as code_sources
from pipeline.runs.code.files import edited_since, is_file
from pipeline.runs.json_files import read_json
from pipeline.runs.noted_path import noted_path

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

EDITED = "edited while it ran"
OURS = Path(__file__).absolute().parents[1]
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # torch itself sets the first one when it compiles


def imported_beside(experiment: Experiment) -> dict[str, dict[str, str]]:
    """Of each such module in this process its file and the hash of its code; nothing where no code is the user's."""
    known = code.own_modules(experiment)
    if not known:
        return {}
    found, paths, start = dict[str, dict[str, str]](), set(known.values()), _start()
    roots = {Path.cwd(), *(code_sources.root(name, path) for name, path in known.items())}
    for name, module in sorted(sys.modules.items()):
        path = _file(name, module, roots)
        if path is not None and name not in known and path not in paths:
            digest = EDITED if edited_since(path, start) else code_sources.digest(name, path, Path.cwd())
            found[name] = {"file": str(path), "sha256": digest}
    return found


class DynamicImports:
    """`imported_beside` of a run so far, and of the processes that it goes on from, by the checkpoint (`before`).

    Looked for anew only where modules have come since, so that each checkpoint can have it; a digest stays the first
    one, of the code that was imported.
    """

    def __init__(self, experiment: Experiment, before: Mapping[str, Mapping[str, str]]) -> None:
        self.experiment, self.before = experiment, before
        self.modules, self.found = 0, dict[str, dict[str, str]]()

    def __call__(self) -> dict[str, dict[str, str]]:
        if len(sys.modules) != self.modules:
            self.found = {**imported_beside(self.experiment), **self.found}
            self.modules = len(sys.modules)
        return {name: dict(one) for name, one in {**self.before, **self.found}.items()}

    def of_all(self) -> dict[str, dict[str, str]]:
        """For the receipt: what differs between the processes was edited."""
        return merged([self.before, self()])


def imported_by_cells(folder: Path) -> dict[str, dict[str, str]]:
    """The same of the cells that the run in `folder` has started, from their receipts."""
    return imported_by([noted_path(note) for note in sorted((folder / "cells").glob("*.run"))])


def imported_by(runs: Iterable[Path | None]) -> dict[str, dict[str, str]]:
    """The same of several runs, from their receipts. None: of a cell that never became a run."""
    return merged(read_json(run / "receipt.json").get("imported_beside", {}) for run in runs if run is not None)


def merged(several: Iterable[Mapping[str, Mapping[str, str]]]) -> dict[str, dict[str, str]]:
    """What several runs have imported, as one run's. A module that differs between two of them was edited meanwhile."""
    found: dict[str, dict[str, str]] = {}
    for imported in several:
        for name, one in imported.items():
            same = name not in found or found[name]["sha256"] == one["sha256"]
            found[name] = dict(one) if same else {**one, "sha256": EDITED}
    return found


def edited(imported: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The names of the modules that were edited while a run had them, or between runs."""
    return sorted(name for name, one in imported.items() if one["sha256"] == EDITED)


def changed(then: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of such modules in a receipt that are no longer what they were."""
    return [name for name, one in then.items() if _digest(name, Path(str(one.get("file")))) != one.get("sha256")]


def _digest(name: str, path: Path) -> str | None:
    found = path if is_file(path) else code_sources.source(name)
    return None if found is None else code_sources.digest(name, found, Path.cwd())


def _file(name: str, module: object, roots: Collection[Path]) -> Path | None:
    """The file of a module of the user's; a lazy module is not woken, and what a framework generates is left out.

    `roots`: the folders of the user's code.
    """
    try:
        path = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None
    if not isinstance(path, str) or name.startswith("__") or code_sources.is_ours(name):
        return None
    file, top = Path(path).absolute(), code_sources.source(name.partition(".")[0])
    if not file.name.endswith(code_sources.SUFFIXES) or not is_file(file) or not code_sources.is_own(name, file):
        return None
    if file.is_relative_to(OURS):  # under another name, as hydra_plugins.pipeline
        return None
    if top is not None:
        return file if code_sources.is_own(name, top) else None
    # Of a namespace package, which has no file; or loaded by its file, by the user or by a compiler (torch's inductor).
    return file if code_sources.source(name) is not None or _is_written_by_hand(file, roots) else None


def _is_written_by_hand(file: Path, roots: Collection[Path]) -> bool:
    """Whether a file lies in one of the folders, and in no hidden folder there and in no compiler's cache."""
    caches = [Path(os.environ[name]).absolute() for name in CACHES if os.environ.get(name)]
    inside = [file.relative_to(root).parts for root in roots if file.is_relative_to(root)]
    visible = any(not any(part.startswith(".") for part in parts) for parts in inside)
    return visible and not any(file.is_relative_to(cache) for cache in caches)


def _start() -> float:
    import psutil

    return float(psutil.Process().create_time())
