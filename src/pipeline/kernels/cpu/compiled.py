"""C++ compiled by the system's compiler when it is needed, and loaded into this process.

What was compiled is kept in the user's cache folder under the hash of all that decides it: sources, flags, the
compiler's version and the processor, which `-march=native` compiles for.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.cli.streams import say
from pipeline.cli.terminal import messages
from pipeline.errors import UserError
from pipeline.kernels.kept import digest
from pipeline.machine import host
from pipeline.machine.cache_folder import cache_root, cannot_write_cache

COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-Wall", "-shared", "-fPIC", "-pthread")
LIMIT_S = 120.0
ERROR = re.compile(r"\b(?:[eE]rror|fatal) *:")  # of a compiler, and of CUDA's assembler: "ptxas error   : ..."


@dataclass(frozen=True)
class Library:
    """A compiled source: the file that was made, and what it was made by and of. `warnings`: a line each.

    They are kept beside the file, since a source is compiled once.
    """

    file: Path
    compiler: str
    flags: tuple[str, ...]
    source_sha256: str
    warnings: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, object]:
        """For the receipt."""
        return {"compiler": self.compiler, "flags": " ".join(self.flags), "source_sha256": self.source_sha256}

    def loaded(self) -> ctypes.CDLL:
        """Its functions."""
        return _loaded(self.file)


@cache
def _loaded(file: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(file))


def missing_compiler() -> str | None:
    """What is missing, in words; None where there is a compiler."""
    if compiler() is not None:
        return None
    named = os.environ.get("CXX")
    found = f"CXX={named} is not one" if named else f"none of {', '.join(COMPILERS)} is on the path"
    return f"a C++ compiler ({found}; apt install g++ brings one)"


def compiler() -> str | None:
    """The system's C++ compiler: the one that CXX names, else the first of COMPILERS."""
    names = (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS
    return next((found for name in names if (found := shutil.which(name))), None)


def named() -> str:
    """The compiler and its version, for a receipt: a path alone may lead to another one next year."""
    program = compiler()
    return "none" if program is None else f"{program}, {version_of(program)}"


def compiled(
    source: Path, beside: Sequence[Path] = (), flags: Sequence[str] = (), name: str = "", system: Sequence[Path] = ()
) -> Library:
    """`source` as a shared library; `beside`: the files that it includes; `flags`: beside FLAGS. `name`: what messages
    call it, if not by its file. `system`: headers that are no part of it and decide what is compiled, as Eigen's.

    Raises UserError with the compiler's own lines where it does not compile.
    """
    program = compiler()
    if program is None:
        raise UserError(f"{source.name}: needs {missing_compiler()}")
    version, every = version_of(program), (*FLAGS, *flags)
    content = content_hash((source, *beside))
    beside_them = [content_hash(system)] if system else []
    around = (host.cpu_name(), str(host.cpu().get("vector")), _target(program), *beside_them)
    key = digest(text.encode() for text in (content, version, *every, *around))
    folder = cache_root(None) / "kernels"
    file = folder / f"{source.stem}-{key[:16]}.so"
    if not (file.is_file() and _warnings_of(file).is_file()):
        _compile(program, every, source, file, name or source.name, lambda: content_hash((source, *beside)) == content)
    return Library(file, version, every, content, _kept_warnings(file))


def _compile(
    program: str, flags: Sequence[str], source: Path, file: Path, name: str, unchanged: Callable[[], bool]
) -> None:
    """Compile into the cache: under another name first, so that no other process loads half a file.

    `unchanged`: whether the compiler has read what `file` is called by.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            command = [program, *flags, os.path.relpath(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
            said = done.stderr.decode(errors="replace")  # it shows lines of a source, whatever their encoding
            if done.returncode:
                raise refused(name, Path(program).name, said.strip() or _without_a_reason(program, done.returncode))
            if not unchanged():
                raise UserError(f"{name}: was changed while it was compiled; run the command again")
            _warnings_of(file).write_text(said, encoding="utf-8")
            made.replace(file)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{name}: {Path(program).name} has not ended after {LIMIT_S:.0f} s") from error
    except OSError as error:
        raise cannot_write_cache(file.parent, error) from error


def _without_a_reason(program: str, code: int) -> str:
    """In words, of a compiler that has failed and has said nothing."""
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    named = ", which CXX names," if os.environ.get("CXX") else ""
    return f"{program}{named} {ended} and gave no reason"


def _warnings_of(file: Path) -> Path:
    """The file beside a library with the compiler's messages."""
    return file.with_suffix(".txt")


def _kept_warnings(file: Path) -> tuple[str, ...]:
    said = _warnings_of(file).read_text(encoding="utf-8")
    return tuple(line for line in said.splitlines() if "warning: " in line)


def refused(name: str, compiler: str, said: str, *, aloud: bool = True) -> UserError:
    """All that the compiler has said goes to standard error (`aloud`); the message has the first of its errors."""
    if aloud:
        say(messages(), said.strip())
    first = next((line for line in said.splitlines() if ERROR.search(line)), said.strip().partition("\n")[0])
    return UserError(f"{name}: does not compile ({compiler}): {first}")


@cache
def version_of(program: str) -> str:
    """The first line of what the compiler says of itself."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return (done.stdout.splitlines() or [program])[0]


def included(source: Path, flags: tuple[str, ...] = (), *, system: bool = False) -> tuple[Path, ...]:
    """The headers that a source includes; none where it cannot be read that far.

    `flags`: macros and folders that decide what is included. `system`: also those of the system.
    """
    program = compiler()
    if program is None or not source.is_file():
        return ()
    return _included(program, source, (*flags, "-M" if system else "-MM"), digest([_read(source)]))


@cache
def _included(program: str, source: Path, flags: tuple[str, ...], _content: str) -> tuple[Path, ...]:
    """By the compiler's own list for make, with the flags that it is compiled with, as these define macros."""
    command = [program, *FLAGS, *flags, str(source)]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        return ()
    listed = os.fsdecode(done.stdout).replace("\\\n", " ").partition(":")[2]
    names = [name.replace("\\ ", " ") for name in re.findall(r"(?:\\.|\S)+", listed)]
    return tuple(found for name in dict.fromkeys(names) if (found := Path(name).absolute()) != source)


@cache
def _target(program: str) -> str:
    """What the compiler takes `-march=native` for; empty of a compiler that does not say."""
    command = [program, "-march=native", "-Q", "--help=target"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.stdout if done.returncode == 0 else ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def content_hash(files: Iterable[Path]) -> str:
    """A hash of files and their names."""
    return digest(path.name.encode() + b"\n" + _read(path) for path in files)
