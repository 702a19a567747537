"""A run's own folder: what was asked, what was measured, how it ended. It is written first; MLflow is fed from it.

runs/<YYYYMMDD-HHMMSS-name-4hex>/
  config.yaml     the resolved config            status.json    RUNNING FINISHED FAILED KILLED PRUNED, whose process
  metrics.jsonl   {"step", "time", "metrics"}    receipt.json   what really happened    result.json   what came out
  artifacts/      figures/, model/, ...          mlflow.json    how far MLflow has it (tracking/record.py)
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.cli.exits import stop_held_back
from pipeline.cli.streams import say_at_once
from pipeline.errors import UserError
from pipeline.machine.regular_file import read_regular
from pipeline.passwords import without_password, without_passwords
from pipeline.runs.checkpoint import remove as remove_checkpoints
from pipeline.runs.json_files import cannot_write, overwrite, plain, write_all, write_json
from pipeline.runs.process import machine, pid_namespace, process_started
from pipeline.runs.records import State, Status, parse, read_status
from pipeline.runs.result import Result
from pipeline.runs.slurm import this_job
from pipeline.spec import Config

FLUSH_SECONDS = 0.5
OVER = ("FINISHED", "PRUNED")  # what nobody goes on with
ERROR_LENGTH = 2000  # keeps status.json within one disk block, so that a full disk can still take the last word

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Known(NamedTuple):
    """A record that is on the disk already: its step, its metrics but for their times, and the bytes that it takes."""

    step: int
    metrics: dict[str, str]
    begin: int
    end: int


class Journal:
    """The writer of one run's folder. One process writes; any number may read."""

    def __init__(self, folder: Path, status: Status) -> None:
        self.folder = _whole(folder)  # whoever names it: artifact_path compares its parts
        self.status = status
        self._pending: list[tuple[int, float, dict[str, float]]] = []
        self._flushed = 0.0
        self._lock = threading.Lock()
        self._size = 0  # bytes of metrics.jsonl that are whole
        self._known: list[Known] = []  # records of before, which a run that goes on makes again
        self._file: int | None = os.open(folder / "metrics.jsonl", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)

    @classmethod
    def begin(cls, root: Path, name: str, config: Config, cell_of: str | None = None) -> Journal:
        """Make the run's folder below `root` with its config and the status RUNNING.

        `cell_of`: the run that started this one as a cell.
        """
        folder = _new_folder(Path(root).absolute(), name)
        try:
            (folder / "artifacts").mkdir()
            (folder / "config.yaml").write_text(_yaml(config), encoding="utf-8")
            status = replace(_first_status(folder.name, name), cell_of=cell_of)
            write_json(folder / "status.json", asdict(status))
            return cls(folder, status)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)  # made a moment ago, by us: half a run helps nobody
            raise cannot_write(folder, error) from error

    @classmethod
    def reopen(cls, folder: Path, size: int, *, exact: bool = True, cell_of: str | None = None) -> Journal:
        """Go on with the run in `folder`, which has ended without a result; `size`: bytes of metrics.jsonl to begin at.

        The records after those are made again. As long as they are the same, what is written stays as it is, so that
        whoever has read it (MLflow) need not read it again. Not `exact`: they will differ, and are cut off.
        """
        import filelock

        try:
            with filelock.FileLock(folder / "status.lock", timeout=5):
                status = read_status(folder)
                if status is None or status.state in ("RUNNING", "FINISHED"):
                    raise UserError(f"resume={folder.name}: it is {status.state if status else 'damaged'}")
                if not exact:  # first: where it fails, the run is KILLED as before
                    os.truncate(folder / "metrics.jsonl", size)
                again = _first_status(folder.name, status.name)
                again = replace(again, started=status.started, cell_of=cell_of or status.cell_of)
                write_json(folder / "status.json", asdict(again))
            journal = cls(folder, again)
        except filelock.Timeout as error:
            raise UserError(f"resume={folder.name}: another process holds its status.lock") from error
        except OSError as error:
            raise cannot_write(folder, error, f"resume={folder.name}: ") from error
        journal._known = _steps_after(folder, size)
        journal._size = journal._known[-1].end if journal._known else size
        return journal

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def size(self) -> int:
        """Bytes of metrics.jsonl that are written, or were written of this part before."""
        return self._known[0].begin if self._known else self._size

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep one record; it reaches the disk with the next flush, at most every half second.

        There is no flushing thread: the tail of a burst waits for the next record, `flush` or `finish`.
        """
        now = time.time()
        if self._known and self._is_known(metrics, int(step)):
            return
        self._pending.append((int(step), now, {name: float(value) for name, value in metrics.items()}))
        if not 0.0 <= now - self._flushed < FLUSH_SECONDS:  # also after the clock was set back
            self.flush()

    def _is_known(self, metrics: Mapping[str, float], step: int) -> bool:
        """Whether the next record is there from before; where another one is, the rest of what is there goes."""
        known = self._known.pop(0)
        if (known.step, known.metrics) == (step, _untimed(metrics)):
            return True
        self._size, self._known = known.begin, []
        if self._file is not None:
            os.ftruncate(self._file, self._size)
        return False

    def flush(self) -> None:
        """Write what is pending. At the end of an epoch, so that whoever follows sees it."""
        with self._lock, self._guard("metrics.jsonl"):
            count = len(self._pending)
            if count:
                assert self._file is not None, "log() after finish()"
                self._check_place(self._file)
                data = "".join(_line(*record) for record in self._pending[:count]).encode()
                # Always at the end of the last whole line: a write that failed or was interrupted is written over.
                write_all(self._file, data, self._size)
                self._size += len(data)
                del self._pending[:count]
            self._flushed = time.time()

    def _check_place(self, file: int) -> None:
        """Raise OSError where the run's folder is gone: what is written would be lost, or in two places, for hours
        perhaps.

        Some file systems count no links: a file that its path leads to is there.
        """
        try:
            (self.folder / "metrics.jsonl").stat()
        except FileNotFoundError:
            what = "moved" if os.fstat(file).st_nlink else "deleted"
            raise OSError(errno.ENOENT, f"it was {what} while the run wrote to it") from None
        except OSError:  # a disk that does not answer now
            return

    def sync(self) -> None:
        """Wait until what was flushed is on the disk itself; from another thread, too."""
        with self._guard("metrics.jsonl"):
            if self._file is not None:
                os.fsync(self._file)

    def write_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Write `receipt.json`; a second call replaces it."""
        with self._guard("receipt.json"):
            write_json(self.folder / "receipt.json", without_passwords(receipt))

    def write_code(self, modules: Mapping[str, str]) -> None:
        """Write `code.json`: the modules that decide the result, each with its hash; the receipt has one of all."""
        with self._guard("code.json"):
            write_json(self.folder / "code.json", dict(modules))

    def write_result(self, result: Result) -> None:
        """Write `result.json`, which runs/result.py describes; a second call replaces it."""
        with self._guard("result.json"):
            write_json(self.folder / "result.json", without_passwords(result.plain()))

    def artifact_path(self, relative: str | Path) -> Path:
        """Where to write an artifact (`figures/loss.png`); its parents exist when this returns."""
        root = self.folder / "artifacts"
        path = Path(os.path.normpath(root / relative))
        if not path.is_relative_to(root) or path == root:
            raise ValueError(f"artifact path {str(relative)!r}: not a path below the run's artifacts folder")
        if self._file is not None:
            with self._guard("metrics.jsonl"):
                self._check_place(self._file)  # or the folders that it was in would be made again
        with self._guard(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @stop_held_back()
    def finish(self, state: State, error: BaseException | str | None = None) -> None:
        """Flush, sync to disk, and write how the run ended. The first call counts. A run that is over needs no
        checkpoints.

        A run that otherwise succeeded learns by a UserError that its records could not be kept. Where the run already
        failed, a second failure is only printed, so that it does not hide the first.
        """
        if self._file is None:
            return
        if state in OVER:  # it ended before records of before, and they are not part of it
            self._size, self._known = self.size, []
        lost = self._close_metrics()
        if lost is not None and state == "FINISHED":
            state, error = "FAILED", lost
        text = _error_text(error)
        self.status = replace(self.status, state=state, ended=time.time(), error=text)
        unwritten = self._write_last_status()
        trouble = lost or unwritten
        if trouble is None:
            if state in OVER:
                remove_checkpoints(self.folder)
            return
        if error is None or error is trouble:
            raise trouble
        if str(error) != str(trouble):  # whoever calls says that
            say_at_once(f"pipeline: {trouble}")

    def _close_metrics(self) -> UserError | None:
        assert self._file is not None
        trouble = None
        try:
            self.flush()
            with self._guard("metrics.jsonl"):
                os.fsync(self._file)
        except UserError as error:
            trouble = error
        try:
            os.ftruncate(self._file, self._size)  # no half line stays behind
            os.close(self._file)
        except OSError:
            pass  # whatever is wrong with the file has been reported by the flush
        self._file = None
        return trouble

    def _write_last_status(self) -> UserError | None:
        path = self.folder / "status.json"
        try:
            write_json(path, asdict(self.status), sync=True)
        except OSError as error:
            try:  # a full disk has no room for a second file, but the first one already has its block
                overwrite(path, asdict(self.status))
            except OSError:
                return cannot_write(path, error)
        return None

    @contextmanager
    def _guard(self, name: str | Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self.folder / name, error) from error


def _steps_after(folder: Path, size: int) -> list[Known]:
    """The whole records of metrics.jsonl from byte `size` on."""
    found, begin = [], size
    for line in read_regular(folder / "metrics.jsonl")[size:].splitlines(keepends=True):
        record = parse(line) if line.endswith(b"\n") else None
        if record is None:
            break
        found.append(Known(record.step, _untimed(record.metrics), begin, begin + len(line)))
        begin += len(line)
    return found


def _untimed(metrics: Mapping[str, float]) -> dict[str, str]:
    """As text, in which a NaN is equal to a NaN. A rate is another one each time."""
    return {name: "" if name.endswith("_per_s") else repr(float(value)) for name, value in metrics.items()}


def _new_folder(root: Path, name: str) -> Path:
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:40] or "run"
    while True:
        folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{safe}-{secrets.token_hex(2)}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            return folder
        except FileExistsError as error:
            if not root.is_dir():
                raise cannot_write(root, error) from error
        except OSError as error:
            raise cannot_write(folder, error) from error


def _whole(root: Path) -> Path:
    """`root` without `..`, whose parts `artifact_path` can compare. A link is followed only where that needs it."""
    return Path(os.path.realpath(root)) if ".." in root.parts else root.absolute()


def _first_status(run_id: str, name: str) -> Status:
    return Status(
        id=run_id,
        name=name,
        state="RUNNING",
        pid=os.getpid(),
        process_started=process_started(os.getpid()),
        host=socket.gethostname(),
        pid_namespace=pid_namespace(),
        started=time.time(),
        machine=machine(),
        job=this_job(),
    )


def _yaml(config: Config) -> str:
    """By OmegaConf's own dumper: it quotes a string such as 1e-3 that its loader would read back as a number."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(without_passwords(config)))


def _line(step: int, when: float, metrics: dict[str, float]) -> str:
    try:
        return _encode({"step": step, "time": when, "metrics": metrics}) + "\n"
    except ValueError:  # NaN or infinity: rare, so that only they pay for the look at every value
        return _encode({"step": step, "time": when, "metrics": plain(metrics)}) + "\n"


def _error_text(error: BaseException | str | None) -> str | None:
    if isinstance(error, BaseException):
        error = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return without_password(error)[:ERROR_LENGTH] if error else None
