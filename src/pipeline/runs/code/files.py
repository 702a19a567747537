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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from pipeline.machine.regular_file import open_regular
from pipeline.runs.code import paths as code_paths
from pipeline.runs.code.syntax import called

MOST_FOLDERS = 4  # parts of a file's name that stand in the code as strings of their own
MOST_FILES = 1000  # of a folder, by their bytes; of more files or bytes, names, sizes and times of change count
MOST_BYTES = 100 * 2**20  # of a folder
LARGEST = 2**30  # bytes; of a larger file, size and time of change count
LONGEST = 255  # bytes of a part of a path, on Linux
SETTLED_NS = 2 * 10**9  # a file that was changed later than that may change again within one tick of its clock
SYSTEM = ("/proc", "/sys", "/dev", "/run")  # folders whose files show the system's state
DATA = ("/dev/shm", "/run/media")  # but for these
CODE = (".py", ".pyc", *EXTENSION_SUFFIXES)

OPENING = (
    "io",
    "gzip",
    "bz2",
    "lzma",
    "codecs",
    "tarfile",
    "wave",
)  # modules whose `open` takes the built-in one's mode
OPENERS = ("File", "ZipFile", "memmap")  # of which "a" reads what is there
REPLACING = re.compile(r"[bt]*[wx][bt+-]*")  # a mode in which nothing is read but what was written
APPENDING = re.compile(r"[bt]*a[bt]*")
WRITERS = ("write_text", "write_bytes", "touch", "mkdir", "unlink")  # methods of what they write to
SAVERS = (
    *("save", "savez", "savez_compressed", "savetxt", "savefig", "tofile", "mkdir", "makedirs", "basicConfig"),
    *("FileHandler", "WatchedFileHandler", "RotatingFileHandler", "TimedRotatingFileHandler"),
    *("to_csv", "to_json", "to_parquet", "to_pickle", "to_feather", "to_excel", "to_netcdf"),
)
SAVED_AS = ("file", "filename", "fname", "path", "path_or_buf")  # their keywords
COPIERS = ("copy", "copy2", "copyfile")  # to their second argument


@dataclass(frozen=True)
class Names:
    """The strings of a module's code that could name a file; those of them that stand where paths are put together.

    And whether it knows its own folder, and lists folders.
    """

    texts: tuple[str, ...]
    in_paths: frozenset[str] = frozenset()
    knows_its_folder: bool = False
    lists: bool = False


def of_value(value: str, path: Path, here: Path) -> list[tuple[str, Path]]:
    """The files that a setting of a spec names: absolute, in the current folder, beside the spec's module.

    Each with how it is named there: the same wherever the project's folder lies.
    """
    if not _could_name(value) or not value.strip("./"):
        return []
    if value.startswith("/"):
        return [(value, Path(value))] if is_data(Path(value)) else []
    found = [folder / value for folder in dict.fromkeys((here, path.parent)) if is_file(folder / value)]
    return [(f"{value} {number}", file) for number, file in enumerate(found)]


@cache
def names(module: ast.Module) -> Names:
    """What a module's code names, without docstrings and without what it only writes."""
    nodes = list(ast.walk(module))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)} | _written(nodes)
    return Names(
        _texts(node for node in nodes if id(node) not in left_out),
        code_paths.texts(nodes),
        any(isinstance(node, ast.Name) and node.id == "__file__" for node in nodes),
        any(isinstance(node, ast.Call) and called(node) in code_paths.LISTERS for node in nodes),
    )


@cache
def names_elsewhere(module: ast.Module, user: ast.Module) -> Names:
    """What variables of a module name that it only writes itself, as far as `user`, which imports it, uses them."""
    words, nodes = _words(user), list(ast.walk(module))
    values = _values(module.body)
    left_out = _written(nodes)
    found = [value for name, value in values if id(value) in left_out and ("*" in words or name in words)]
    # A path is made of others: HERE / FOLDER / "basis.npy".
    return replace(names(module), texts=_texts(node for value in found for node in _spelled(value, dict(values))))


def _spelled(value: ast.expr, values: Mapping[str, ast.expr]) -> Iterator[ast.AST]:
    for node in ast.walk(value):
        yield node
        if isinstance(node, ast.Name) and node.id in values and values[node.id] is not value:
            yield from ast.walk(values[node.id])


def _words(module: ast.Module) -> set[str]:
    """The names that a module takes from others: attributes, and what it imports."""
    nodes = list(ast.walk(module))
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return imported | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _texts(nodes: Iterable[ast.AST]) -> tuple[str, ...]:
    found = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return tuple(sorted(text for text in found if _could_name(text)))


def _could_name(text: str) -> bool:
    return text.isprintable() and 0 < len(text) < 4096 and all(len(one.encode()) <= LONGEST for one in text.split("/"))


def _written(nodes: Sequence[ast.AST]) -> set[int]:
    """The ids of the nodes inside what is written to, by call or by a variable that serves for nothing else."""
    targets = [target for node in nodes if isinstance(node, ast.Call) for target in _targets(node)]
    inside = {id(node) for target in targets if _is_path(target) for node in ast.walk(target)}
    uses = defaultdict[str, list[ast.AST]](list)
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id].append(node)
    for name, value in reversed(_values(nodes)):  # from the last, which may be made of those before it
        if uses[name] and all(id(use) in inside for use in uses[name]):
            inside |= {id(node) for node in ast.walk(value)}
    return inside


def _values(nodes: Iterable[ast.AST]) -> list[tuple[str, ast.expr]]:
    """The variables that are given a path, and the path."""
    found = list[tuple[str, ast.expr]]()
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_path(node.value):
            found.append((node.targets[0].id, node.value))
    return found


def _targets(call: ast.Call) -> list[ast.expr]:
    """What a call writes to: `open(x, "a")`, `x.open("a")`, `x.write_text(...)`, `save(x)`, `copy(y, x)`."""
    name, owner = called(call), call.func.value if isinstance(call.func, ast.Attribute) else None
    if name in (*WRITERS, *SAVERS):
        saved = [*call.args, *(word.value for word in call.keywords if word.arg in SAVED_AS)]
        return [*([owner] if owner and name in WRITERS else []), *(saved if name in SAVERS else [])]
    if name in COPIERS:
        return call.args[1:2]
    if name == "open" and (owner is None or getattr(owner, "id", "") in OPENING):
        return call.args[:1] if _is_mode(call, call.args[1:], REPLACING, APPENDING) else []
    if name == "open" and owner:
        return [owner] if _is_mode(call, call.args[:1], REPLACING, APPENDING) else []
    return call.args[:1] if name in OPENERS and _is_mode(call, call.args[1:], REPLACING) else []


def _is_mode(call: ast.Call, given: Sequence[ast.expr], *kinds: re.Pattern[str]) -> bool:
    """Whether one of the arguments that may be a call's mode is of one of these kinds."""
    modes = [*given, *(word.value for word in call.keywords if word.arg == "mode")]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return any(kind.fullmatch(text) for kind in kinds for text in texts)


def _is_path(node: ast.AST) -> bool:
    """Whether nothing is called in it but what puts a path together: what is read there is read."""
    return all(called(one) in code_paths.JOINERS for one in ast.walk(node) if isinstance(one, ast.Call))


def files(named: Names, path: Path, bases: Sequence[Path], here: Path) -> list[tuple[str, Path]]:
    """The files that the module at `path` names, each with how it is named there.

    Of a relative name, whole ("kernels/fast.cu") or folder by folder, the file lies in one of `bases` (the module's
    folder and those above it, as far as that which holds its top-level package), in `here`, or in several of them: all
    count. A name that begins with a dot (".npy") is also tried as the module's own with that suffix. A folder below
    `bases` counts with the files directly in it, where the code lists folders or names no file in it.
    """
    # `f"{HERE}/table.json"` and `HERE + "/table.json"` name what lies below a folder by a text with a slash before it.
    texts = [text.lstrip("/") for text in named.texts if text.strip("./")]
    found = {file: shown for base in bases for shown, file in _in(base, texts, named)}
    if here not in bases:
        found = {file: shown for shown, file in _in(here, texts, Names(()))} | found
    if named.knows_its_folder:
        stem = path.name.partition(".")[0]
        own = [path.with_name(stem + text) for text in texts if text.startswith(".") and "/" not in text]
        found |= {file: file.name for file in own if is_file(file) and not file.name.endswith(CODE)}
    found |= {Path(text): text for text in named.texts if is_data(Path(text))}
    # By how they are named alone, and else in the order of the folders: where the project lies decides nothing.
    return sorted(((shown, file) for file, shown in found.items() if file != path), key=lambda one: one[0])


def _in(base: Path, texts: Sequence[str], named: Names) -> Iterator[tuple[str, Path]]:
    folders = {base: False}  # and whether the files directly in it may count
    for _ in range(MOST_FOLDERS):
        deeper = dict[Path, bool]()
        for folder, may_list in folders.items():
            kinds = {text: (folder / text, _kind(folder / text)) for text in texts}
            below = dict[Path, bool]()
            inside = [one for one, kind in kinds.values() if kind and stat.S_ISREG(kind.st_mode)]
            for text, (one, kind) in kinds.items():
                if kind and stat.S_ISDIR(kind.st_mode):
                    below[one] = below.get(one, False) or text in named.in_paths
            if may_list and (named.lists or (named.knows_its_folder and not inside and not below)):
                inside += _listed(folder)
            yield from ((str(file.relative_to(base)), file) for file in inside)
            deeper |= below
        folders = deeper


def _listed(folder: Path) -> list[Path]:
    """The files directly in a folder, without code and hidden ones; of too much the folder itself, for all of them."""
    try:
        found = [one for one in folder.iterdir() if not one.name.startswith(".") and not one.name.endswith(CODE)]
    except OSError:
        return []
    sizes = {one: kind.st_size for one in found if (kind := _kind(one)) and stat.S_ISREG(kind.st_mode)}
    return list(sizes) if len(sizes) <= MOST_FILES and sum(sizes.values()) <= MOST_BYTES else [folder]


def is_data(path: Path) -> bool:
    """Whether an absolute path is that of a file with something in it that does not show the system's state."""
    is_system = any(map(path.is_relative_to, SYSTEM)) and not any(map(path.is_relative_to, DATA))
    kind = _kind(path) if path.is_absolute() and not is_system else None
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


def edited_since(file: Path, since: float) -> bool:
    """Whether a file was written, or put in its place, after this time.

    One of a time to come was not: the clock has been set back since, or the file is from a machine that is ahead.
    """
    state, now = file.stat(), time.time()
    return any(since < moment <= now for moment in (state.st_mtime, state.st_ctime))


_known: dict[tuple[str, int, int, int, int], str] = {}  # hashes of files, by what changes with their bytes


def content(file: Path) -> str:
    """Hash of a file's bytes, taken again when its size, its times or its inode change; why, of one that is not read.

    Of a folder, the names, sizes and times of change in it.
    """
    try:
        state = file.stat()
        if stat.S_ISDIR(state.st_mode):
            states = sorted((one.name, one.stat()) for one in file.iterdir() if is_file(one))
            lines = [f"{name} {one.st_size} {one.st_mtime_ns}" for name, one in states]
            return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
        if state.st_size > LARGEST:
            return f"{state.st_size} bytes of {state.st_mtime_ns}"
        key = (str(file), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
        if key not in _known:
            with open_regular(file) as opened:  # a pipe would keep it waiting, and a device has no end
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) < SETTLED_NS:
                return found
            _known[key] = found
        return _known[key]
    except OSError as error:
        return f"not read: {error.strerror}"
