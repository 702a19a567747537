"""The git repositories that a result comes from: this package's, those of the user's own code, and the current one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

PACKAGE = Path(__file__).parents[1]
UNKNOWN: dict[str, Any] = {"commit": None, "dirty": None}


def repositories(own: Mapping[str, Path], read: Mapping[str, Sequence[Path]] = MappingProxyType({})) -> dict[str, Any]:
    """The state of each: `pipeline`; `own_code`, by repository; `current_folder`, where it is none of those.

    `own`: the user's modules that decide the result, and where they lie; `read`: the files that each of them reads. A
    repository is named by its folder's name.
    """
    own = {module: path.resolve() for module, path in own.items()}
    named: dict[str, Any] = {"pipeline": git_state()}
    known = {_root(PACKAGE)} if named["pipeline"]["commit"] else set()
    roots: dict[Path | None, dict[str, Path]] = {}
    folders = {folder: _root(folder) for folder in {path.parent for path in own.values()}}
    for module, path in own.items():
        roots.setdefault(folders[path.parent], {})[module] = path
    if roots:
        named["own_code"] = {
            root.name if root else "no repository": {
                **own_state(root, found.values(), _within(root, found, read)),
                "modules": " ".join(found),
            }
            for root, found in roots.items()
        }
    here = _root(Path.cwd())
    if here is not None and here not in {*known, *roots}:
        state = current_state(Path.cwd())
        if state["commit"]:
            named["current_folder"] = {"repository": here.name, **state}
    return named


def git_state() -> dict[str, Any]:
    """Commit of the checkout this package runs from, and whether it is dirty: changed files, or new ones that count."""
    try:
        _git(PACKAGE, "ls-files", "--error-unmatch", "__init__.py")  # a repository may only contain us, in its .venv
        commit, changes = _git(PACKAGE, "rev-parse", "HEAD"), _changes(PACKAGE)
        conf = str(PACKAGE.parents[1] / "conf")
        new = _git(PACKAGE, "ls-files", "--others", "--exclude-standard", "--", str(PACKAGE), conf)
    except (OSError, subprocess.SubprocessError):
        return dict(UNKNOWN)
    return {"commit": commit, "dirty": bool(changes or new)}


def own_state(root: Path | None, files: Iterable[Path], read: Iterable[Path]) -> dict[str, Any]:
    """Commit of the repository of the user's modules, and whether it is dirty: changed files, or some not in it.

    `read`: files within the repository that the modules read, which its commit should have too. No commit where git
    has none of the modules: what lies in the folder of another repository is not its code.
    """
    if root is None:
        return dict(UNKNOWN)
    names, data = {str(file) for file in files}, {str(file) for file in read}
    try:
        tracked = _git(root, "ls-files", "--full-name", "--", *names).splitlines()
        kept = _git(root, "ls-files", "--full-name", "--", *data).splitlines() if data else []
        commit, changes = _git(root, "rev-parse", "HEAD"), _changes(root)
    except (OSError, subprocess.SubprocessError):
        return dict(UNKNOWN)
    lacks = len(tracked) < len(names) or len(kept) < len(data)
    return {"commit": commit, "dirty": bool(changes) or lacks} if tracked else dict(UNKNOWN)


def _within(root: Path | None, modules: Iterable[str], read: Mapping[str, Sequence[Path]]) -> set[Path]:
    """The files that the modules read and that lie in the repository; of a link, the link."""
    files = {file.parent.resolve() / file.name for module in modules for file in read.get(module, ())}
    return {file for file in files if root is not None and file.is_relative_to(root) and not file.is_dir()}


def current_state(folder: Path) -> dict[str, Any]:
    """Commit of the repository that has files of the folder, and whether a file of it was changed.

    New files do not count: what a run reads of them, its config, is in the run.
    """
    try:
        if not _git(folder, "ls-files"):
            return dict(UNKNOWN)
        return {"commit": _git(folder, "rev-parse", "HEAD"), "dirty": bool(_changes(folder))}
    except (OSError, subprocess.SubprocessError):
        return dict(UNKNOWN)


def _root(folder: Path) -> Path | None:
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel"))
    except (OSError, subprocess.SubprocessError):
        return None


def _changes(folder: Path) -> str:
    return _git(folder, "status", "--porcelain", "--untracked-files=no")


def _git(folder: Path, *words: str) -> str:
    command = ["git", "--literal-pathspecs", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
