"""The files of a dataset: fetched once into the user's cache, verified on the way in and at every load.

The cache holds the raw content, so that loading needs no gunzip, and a file is hashed raw, because mirrors compress the
same content differently. Sources are tried in order until every file is there. What fails its hash never enters.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipeline.datasets.idx import unzipped
from pipeline.datasets.sources import File, Source, SourceError, find, say
from pipeline.errors import UserError, plural
from pipeline.machine.cache_folder import CACHE_VARIABLE
from pipeline.machine.regular_file import open_regular

INCOMING = "incoming"  # below the cache: what is on its way, compressed and not yet verified


def ensure(files: Sequence[File], sources: Sequence[Source], cache: Path, offline: str | None = None) -> None:
    """See to it that the folder `cache` holds every one of `files`. Raises UserError when it cannot.

    `offline`: the dataset like it that needs no network, which the message names.
    """
    try:
        if _missing(files, cache):  # a cache that is complete may be read-only: no lock is taken there
            cache.mkdir(parents=True, exist_ok=True)
            with _locked(cache):
                _fetch_missing(files, sources, cache, offline)
    except OSError as error:
        raise UserError(
            f"cache folder {cache}: cannot write {error.filename or cache}: {error.strerror or error}; "
            f"name another folder with dataset.cache=<path> or {CACHE_VARIABLE}"
        ) from error


def read_cached(file: File, cache: Path) -> np.ndarray:
    """The content of `file`, uint8, from the folder `cache`, verified."""
    path = cache / file.name
    try:
        with open_regular(path) as stream:
            content = np.fromfile(stream, dtype=np.uint8, count=file.size + 1)  # one byte too many shows one too long
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    fault = file.fault(content.data)
    if fault:
        raise UserError(f"{path}: damaged: {fault}; delete it and it will be fetched again")
    return content


def read_folder(file: File, folder: Path) -> np.ndarray:
    """The content of `file`, uint8, from a user's `folder`, raw or gzipped, verified. The cache has no part in it."""
    if not folder.is_dir():
        raise UserError(f"dataset.folder={folder}: no such folder")
    path = find(folder, file)
    if path is None:
        raise UserError(f"dataset.folder={folder}: holds neither {file.name} nor {file.name}.gz")
    try:
        content = _verified(file, path)
    except OSError as error:
        raise UserError(f"dataset.folder={folder}: {path.name} cannot be read: {error.strerror or error}") from error
    except SourceError as error:
        raise UserError(f"dataset.folder={folder}: {error}") from error
    return np.frombuffer(bytearray(content), np.uint8)  # a bytearray, so that the arrays can be written to


def _missing(files: Sequence[File], cache: Path) -> list[File]:
    return [file for file in files if not (cache / file.name).exists()]


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Only one process at a time fetches into `cache`; one that has to wait says so."""
    import filelock

    lock = filelock.FileLock(cache / ".lock")
    try:
        lock.acquire(timeout=1)
    except filelock.Timeout:
        say(f"waiting for another process that is fetching into {cache}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch_missing(files: Sequence[File], sources: Sequence[Source], cache: Path, offline: str | None) -> None:
    reasons: list[str] = []
    missing = _missing(files, cache)  # asked under the lock: the process before this one may have fetched them
    wanted = missing
    for source in sources:
        if not missing:
            break
        say(f"fetching {plural(len(missing), 'file')} of {cache.name} from {source}")
        refused = _fetch_from(source, missing, cache)
        for reason in refused:
            say(f"  {reason}")
        reasons += [f"{source}: {reason}" for reason in refused]
        missing = _missing(files, cache)
    if missing:
        names = ", ".join(file.name for file in missing)
        instead = [] if offline is None else [f"dataset={offline} needs no network"]
        instead.append("dataset.folder=<path> reads the files from a folder of yours")
        raise UserError(f"cannot fetch {names}; tried {'; '.join([*reasons, *instead])}")
    if wanted:
        size = sum(file.size for file in wanted) / 1e6
        say(f"{plural(len(wanted), 'file')} of {cache.name} verified and kept in {cache} ({size:.1f} MB)")
    shutil.rmtree(cache / INCOMING, ignore_errors=True)  # pieces that mirrors sent before another source had it all


def _fetch_from(source: Source, missing: Sequence[File], cache: Path) -> list[str]:
    """Put what `source` gives of `missing` into `cache`; the reasons why not all of it came."""
    reasons = []
    try:
        with contextlib.closing(source.fetch(missing, cache / INCOMING)) as given:
            for file, path in given:
                try:
                    _store(_verified(file, path), cache / file.name)
                except SourceError as error:
                    reasons.append(str(error))
    except SourceError as error:
        reasons.append(str(error))
    return reasons


def _verified(file: File, path: Path) -> bytes:
    """The raw content of `path`, raw or gzipped, if it is that of `file`."""
    try:
        with open_regular(path) as raw:
            content = unzipped(raw).read(file.size + 1)  # one byte too many is enough to see that it is too long
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"{path.name} is damaged: {error}") from error
    except OSError as error:
        if path.is_file():
            raise
        raise SourceError(f"{path.name}: {error.strerror}") from error  # a named pipe where a piece was being fetched
    fault = file.fault(content)
    if fault:
        raise SourceError(f"{path.name} is not the published file: {fault}")
    return content


def _store(content: bytes, path: Path) -> None:
    """Write in one step, as others see it: whoever reads `path` without the lock finds all of it or nothing."""
    temporary = path.with_name(path.name + ".tmp")
    if temporary.is_fifo():  # to open it would wait for ever
        temporary.unlink()
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
