"""What a user's kernel prints: kept in a file while it is prepared and verified, thrown away while it is timed."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import cut, plural

UNBUFFERED = 2  # _IONBF of stdio.h
KEPT = 2**20  # bytes of each kernel's that outlive the run
LARGEST = 2**26  # bytes of each kernel's in the meantime: a line in an inner loop would fill the disk


class Printed:
    """What each kernel has written to file descriptors 1 and 2, in temporary files."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="printed-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._files: dict[str, Path] = {}

    def file(self, name: str) -> Path:
        """Where it is kept for a kernel."""
        return self._files.setdefault(name, self._folder / str(len(self._files)))

    @contextmanager
    def keeping(self, name: str) -> Iterator[None]:
        """What this process writes meanwhile is kept for a kernel, and shown too where the block raises: a compiler's
        own lines, say."""
        try:
            with redirected(self.file(name)):
                yield
        except BaseException:
            sys.stderr.write(self.file(name).read_text(errors="replace"))
            raise

    @property
    def written(self) -> Mapping[str, Path]:
        """The files of the kernels that printed, by name."""
        return {name: file for name, file in self._files.items() if file.is_file() and file.stat().st_size}

    def notes(self) -> list[str]:
        """Of each kernel that printed: how much, and the first line; the last too, which may say why it ended."""
        return [f"{name}: {_described(file)}" for name, file in self.written.items()]

    def copy_to(self, path: Path) -> None:
        """All that was printed, of each kernel KEPT bytes at most, below its name."""
        with path.open("wb") as copy:
            for name, file in self.written.items():
                copy.write(f"{name}:\n".encode())
                with file.open("rb") as lines:
                    copy.write(lines.read(KEPT))


def _described(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as lines:
        first = last = next(lines)
        n = 1
        for line in lines:
            n, last = n + 1, line
    shown = f"the first: {cut(first.strip())}"
    shown += f"; the last: {cut(last.strip())}" if last != first else ""
    more = " and more" if file.stat().st_size >= LARGEST else ""
    return f"printed {plural(n, 'line')}{more} while it was prepared and verified; {shown}"


def redirect(file: Path | None) -> None:
    """From here on what this process writes to file descriptors 1 and 2 is added to `file`; None: thrown away."""
    _lead_to(file)
    if file is not None:
        _write_at_once()


@contextmanager
def redirected(file: Path | None) -> Iterator[None]:
    """The same for a block of this process, and for all that the processes write that it starts."""
    _flush()
    with _kept(1), _kept(2):
        _lead_to(file)
        try:
            yield
        finally:
            _flush()


@contextmanager
def _kept(descriptor: int) -> Iterator[None]:
    """What a file descriptor leads to is put back afterwards, also where it is closed."""
    try:
        before = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)  # none of the standard ones, which may be free
    except OSError:
        before = None
    try:
        yield
    finally:
        if before is None:
            os.close(descriptor)
        else:
            os.dup2(before, descriptor)
            os.close(before)


def shorten(file: Path | None) -> None:
    """Cut a file that a process still writes to at LARGEST: a limit of the process would hold for all of its files."""
    if file is not None and file.is_file() and file.stat().st_size > LARGEST:
        os.truncate(file, LARGEST)


def _lead_to(file: Path | None) -> None:
    opened = os.open(file or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    if opened > 2:
        os.close(opened)


def _flush() -> None:
    """What Python and C have in their buffers."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _write_at_once() -> None:
    """C's standard output without a buffer, which a process loses that crashes, or that multiprocessing ends."""
    library = ctypes.CDLL(None)
    try:
        stdout = ctypes.c_void_p.in_dll(library, "stdout")
    except ValueError:  # a C library that calls it otherwise
        return
    library.setvbuf(stdout, None, UNBUFFERED, ctypes.c_size_t(0))
