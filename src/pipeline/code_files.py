"""The files that a user's code reads, as far as strings in it name them, and a hash of each.

A file that the code only writes is left out: with it every run would change the hash.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from pipeline.code_syntax import called

MOST_FOLDERS = 4  # parts of a file's name that stand in the code as strings of their own
MOST_FILES = 1000  # of a folder, by their bytes; of more, names and sizes count
LARGEST = 2**30  # bytes; of a larger file, size and time of change count
LONGEST = 255  # bytes of a part of a path, on Linux
SETTLED_NS = 2 * 10**9  # a file that was changed later than that may change again within one tick of its clock
SYSTEM = ("proc", "sys", "dev", "run")  # folders of / whose files are not data
CODE = (".py", ".pyc", *EXTENSION_SUFFIXES)

OPENERS = ("open", "File", "ZipFile", "memmap")
WRITING = re.compile(r"[rbt]*[wax+][rwaxbt+]*")  # a mode
WRITERS = ("write_text", "write_bytes", "touch", "mkdir", "unlink")  # methods of what they write to
SAVERS = ("save", "savez", "savez_compressed", "savetxt", "savefig", "to_csv", "tofile", "mkdir", "makedirs")
JOINERS = ("Path", "str", "join", "joinpath", "fspath", "with_suffix", "with_name", "resolve", "absolute", "format")
LISTERS = ("glob", "iglob", "rglob", "iterdir", "listdir", "scandir", "walk")


@dataclass(frozen=True)
class Names:
    """The strings of a module's code that could name a file; whether it knows its own folder, and lists folders."""

    texts: tuple[str, ...]
    knows_its_folder: bool = False
    lists: bool = False


def of_value(value: str, path: Path, here: Path) -> Path | None:
    """The file that a setting of a spec names, if any: absolute, in the current folder or beside the spec's module."""
    if not _could_name(value) or not value.strip("./"):
        return None
    if value.startswith("/"):
        return Path(value) if is_data(Path(value)) else None
    return next((file for file in (here / value, path.parent / value) if is_file(file)), None)


@cache
def names(module: ast.Module) -> Names:
    """What a module's code names, without docstrings and without what it only writes."""
    nodes = list(ast.walk(module))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)} | _written(nodes)
    texts = {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out
    }
    return Names(
        tuple(sorted(text for text in texts if _could_name(text))),
        any(isinstance(node, ast.Name) and node.id == "__file__" for node in nodes),
        any(isinstance(node, ast.Call) and called(node) in LISTERS for node in nodes),
    )


def _could_name(text: str) -> bool:
    return text.isprintable() and 0 < len(text) < 4096 and all(len(one.encode()) <= LONGEST for one in text.split("/"))


def _written(nodes: Sequence[ast.AST]) -> set[int]:
    """The ids of the nodes inside what is written to, by call or by a variable that serves for nothing else."""
    targets = [target for node in nodes if isinstance(node, ast.Call) for target in _targets(node)]
    inside = {id(node) for target in targets if _is_path(target) for node in ast.walk(target)}
    uses, values = defaultdict[str, list[ast.AST]](list), list[tuple[str, ast.expr]]()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id].append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_path(node.value):
            values.append((node.targets[0].id, node.value))
    for name, value in reversed(values):  # from the last, which may be made of those before it
        if uses[name] and all(id(use) in inside for use in uses[name]):
            inside |= {id(node) for node in ast.walk(value)}
    return inside


def _targets(call: ast.Call) -> list[ast.expr]:
    """What a call writes to: `open(x, "a")`, `x.open("a")`, `x.write_text(...)`, `save(x)`."""
    name, owner = called(call), [call.func.value] if isinstance(call.func, ast.Attribute) else []
    found = owner if name in WRITERS else []
    if name in SAVERS:
        found = [*found, *call.args]
    if name in OPENERS:
        modes = [*call.args[not owner :], *(word.value for word in call.keywords if word.arg == "mode")]
        if any(_is_mode(mode) for mode in modes):
            found = [*owner, *(one for one in call.args[:1] if not _is_mode(one))]
    return found


def _is_mode(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(WRITING.fullmatch(node.value))


def _is_path(node: ast.AST) -> bool:
    """Whether nothing is called in it but what puts a path together: what is read there is read."""
    return all(called(one) in JOINERS for one in ast.walk(node) if isinstance(one, ast.Call))


def files(named: Names, path: Path, bases: Sequence[Path], here: Path) -> list[tuple[str, Path]]:
    """The files that the module at `path` names, each with how it is named there.

    Of a relative name, whole ("kernels/fast.cu") or folder by folder, the file lies in one of `bases` (the module's
    folder and those above it, as far as that which holds its top-level package); if in none of them, in `here`. A name
    that begins with a dot (".npy") is also tried as the module's own with that suffix. A folder counts with the files
    directly in it, where the code lists folders or names no file in it.
    """
    texts = [text for text in named.texts if text.strip("./") and not text.startswith("/")]
    found = {file: shown for base in bases for shown, file in _in(base, texts, named)}
    beside = set(found.values())
    if here not in bases:
        inside = _in(here, texts, Names(()))
        found |= {file: shown for shown, file in inside if shown not in beside and file not in found}
    if named.knows_its_folder:
        stem = path.name.partition(".")[0]
        own = [path.with_name(stem + text) for text in texts if text.startswith(".") and "/" not in text]
        found |= {file: file.name for file in own if is_file(file) and not file.name.endswith(CODE)}
    found |= {Path(text): text for text in named.texts if is_data(Path(text))}
    return sorted((shown, file) for file, shown in found.items() if file != path)


def _in(base: Path, texts: Sequence[str], named: Names) -> Iterator[tuple[str, Path]]:
    folders = [base]
    for _ in range(MOST_FOLDERS):
        deeper = list[Path]()
        for folder in folders:
            kinds = [(one, _kind(one)) for one in (folder / text for text in texts)]
            inside = [one for one, kind in kinds if kind and stat.S_ISREG(kind.st_mode)]
            below = [one for one, kind in kinds if kind and stat.S_ISDIR(kind.st_mode)]
            if folder != base and (named.lists or (named.knows_its_folder and not inside and not below)):
                inside += _listed(folder)
            yield from ((str(file.relative_to(base)), file) for file in inside)
            deeper += below
        folders = deeper


def _listed(folder: Path) -> list[Path]:
    """The files directly in a folder, without code and hidden ones; of too many the folder itself, for all of them."""
    try:
        found = [one for one in folder.iterdir() if not one.name.startswith(".") and not one.name.endswith(CODE)]
    except OSError:
        return []
    found = [one for one in found if is_file(one)]
    return found if len(found) <= MOST_FILES else [folder]


def is_data(path: Path) -> bool:
    """Whether an absolute path is that of a file with something in it that does not show the system's state."""
    kind = _kind(path) if path.is_absolute() and path.parts[1:2] not in [(one,) for one in SYSTEM] else None
    return kind is not None and stat.S_ISREG(kind.st_mode) and kind.st_size > 0


def is_file(path: Path) -> bool:
    """Whether it is a regular file; what cannot be asked for (a name too long, a closed folder) is none."""
    kind = _kind(path)
    return kind is not None and stat.S_ISREG(kind.st_mode)


def _kind(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


_known: dict[tuple[str, int, int, int, int], str] = {}  # hashes of files, by what changes with their bytes


def content(file: Path) -> str:
    """Hash of a file's bytes, taken again when its size, its times or its inode change; why, of one that is not read.

    Of a folder, the names and sizes in it.
    """
    try:
        state = file.stat()
        if stat.S_ISDIR(state.st_mode):
            sizes = sorted(f"{one.name} {one.stat().st_size}" for one in file.iterdir() if is_file(one))
            return hashlib.sha256("\n".join(sizes).encode(errors="surrogateescape")).hexdigest()
        if state.st_size > LARGEST:
            return f"{state.st_size} bytes of {state.st_mtime_ns}"
        key = (str(file), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
        if key not in _known:
            with file.open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) < SETTLED_NS:
                return found
            _known[key] = found
        return _known[key]
    except OSError as error:
        return f"not read: {error.strerror}"
