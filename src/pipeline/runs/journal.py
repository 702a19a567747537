"""A run's own folder: what was asked, what was measured, how it ended. It is written first; MLflow is fed from it.

    runs/<YYYYMMDD-HHMMSS-name-4hex>/
      config.yaml     the resolved config            status.json    RUNNING FINISHED FAILED KILLED PRUNED, whose process
      metrics.jsonl   {"step", "time", "metrics"}    receipt.json   what really happened    result.json   what came out
      artifacts/      figures/, model/, ...          mlflow.json    how far MLflow has it (tracking/record.py)

JSON has no NaN and no infinity. They are written as the strings "NaN", "Infinity" and "-Infinity", which every JSON
reader takes and which `float()` turns back.
"""

from __future__ import annotations

from pipeline.spec import Config

import json
import math
import os
import re
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

from pipeline.errors import UserError
from pipeline.passwords import without_password, without_passwords
from pipeline.runs.result import Result
from pipeline.runs.process import machine, pid_namespace, process_started
from pipeline.machine.regular_file import open_regular, read_regular
from pipeline.runs.slurm import this_job

State = Literal["RUNNING", "FINISHED", "FAILED", "KILLED", "PRUNED"]

FLUSH_SECONDS = 0.5
ERROR_LENGTH = 2000  # keeps status.json within one disk block, so that a full disk can still take the last word
CHUNK_BYTES = 1 << 18

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, kw_only=True)
class Status:
    """What `status.json` holds. Times are seconds since 1970."""

    id: str
    name: str
    state: State
    pid: int
    process_started: str | None  # distinguishes this process from a later one with the same pid
    host: str
    pid_namespace: str | None  # a pid means nothing in another container
    started: float
    ended: float | None = None
    error: str | None = None
    machine: str | None = None  # distinguishes hosts of one name (process.machine)
    job: str | None = None  # the Slurm job it runs in (slurm.this_job)


class Record(NamedTuple):
    """One line of `metrics.jsonl`."""

    step: int
    time: float
    metrics: dict[str, float]


class Known(NamedTuple):
    """A record that is on the disk already: its step, its metrics but for their times, and the bytes that it takes."""

    step: int
    metrics: dict[str, str]
    begin: int
    end: int


class Journal:
    """The writer of one run's folder. One process writes; any number may read."""

    def __init__(self, folder: Path, status: Status) -> None:
        self.folder = folder
        self.status = status
        self._pending: list[tuple[int, float, dict[str, float]]] = []
        self._flushed = 0.0
        self._lock = threading.Lock()
        self._size = 0  # bytes of metrics.jsonl that are whole
        self._known: list[Known] = []  # records of before, which a run that goes on makes again
        self._file: int | None = os.open(folder / "metrics.jsonl", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)

    @classmethod
    def begin(cls, root: Path, name: str, config: Config) -> Journal:
        """Make the run's folder below `root` with its config and the status RUNNING."""
        folder = _new_folder(_whole(Path(root)), name)
        try:
            (folder / "artifacts").mkdir()
            (folder / "config.yaml").write_text(_yaml(config), encoding="utf-8")
            status = _first_status(folder.name, name)
            write_json(folder / "status.json", asdict(status))
            return cls(folder, status)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)  # made a moment ago, by us: half a run helps nobody
            raise cannot_write(folder, error) from error

    @classmethod
    def reopen(cls, folder: Path, size: int, *, exact: bool = True) -> Journal:
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
                again = replace(_first_status(folder.name, status.name), started=status.started)
                write_json(folder / "status.json", asdict(again))
        except filelock.Timeout as error:
            raise UserError(f"resume={folder.name}: another process holds its status.lock") from error
        journal = cls(folder, again)
        if not exact:
            os.truncate(folder / "metrics.jsonl", size)
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

    def flush(self, *, sync: bool = False) -> None:
        """Write what is pending. At the end of an epoch, so that whoever follows sees it. `sync`: to the disk itself."""
        with self._lock, self._guard("metrics.jsonl"):
            count = len(self._pending)
            if count:
                assert self._file is not None, "log() after finish()"
                data = "".join(_line(*record) for record in self._pending[:count]).encode()
                # Always at the end of the last whole line: a write that failed or was interrupted is written over.
                _write_all(self._file, data, self._size)
                self._size += len(data)
                del self._pending[:count]
            self._flushed = time.time()
            if sync and self._file is not None:
                os.fsync(self._file)

    def write_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Write `receipt.json`; a second call replaces it."""
        with self._guard("receipt.json"):
            write_json(self.folder / "receipt.json", without_passwords(receipt))

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
        with self._guard(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def finish(self, state: State, error: BaseException | str | None = None) -> None:
        """Flush, sync to disk, and write how the run ended. The first call counts.

        A run that otherwise succeeded learns by a UserError that its records could not be kept. Where the run already
        failed, a second failure is only printed, so that it does not hide the first.
        """
        if self._file is None:
            return
        trouble = self._close_metrics()
        if trouble is not None and state == "FINISHED":
            state, error = "FAILED", trouble
        text = _error_text(error)
        self.status = replace(self.status, state=state, ended=time.time(), error=text)
        trouble = self._write_last_status() or trouble
        if trouble is None:
            return
        if error is None or error is trouble:
            raise trouble
        print(f"pipeline: {trouble}", file=sys.stderr)

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
                _overwrite(path, asdict(self.status))
            except OSError:
                return cannot_write(path, error)
        return None

    @contextmanager
    def _guard(self, name: str | Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self.folder / name, error) from error


def cannot_write(path: Path, error: OSError, key: str = "output_dir: ") -> UserError:
    """The message for a file that the system refused: which, why, and how much room is left. `key`: what moves it."""
    place = next((parent for parent in (path, *path.parents) if parent.is_dir()), Path("/"))
    try:
        room = f"; {shutil.disk_usage(place).free / 1e6:,.0f} MB free"
    except OSError:
        room = ""
    return UserError(f"{key}cannot write {path}: {error.strerror or error}{room}")


def read_status(folder: Path) -> Status | None:
    """The run's status, or None where there is none to be read."""
    try:
        return Status(**json.loads(read_regular(folder / "status.json")))
    except (OSError, ValueError, TypeError):
        return None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object such as the receipt; empty where the file does not exist (yet) or is not one."""
    try:
        value = json.loads(read_regular(path))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_config(folder: Path) -> dict[str, Any]:
    """The resolved config that the run was started with."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where PyYAML was built with it: nine times as fast
    try:
        value = yaml.load(read_regular(folder / "config.yaml"), Loader=loader)  # noqa: S506  # both are the safe ones
    except (OSError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}


def read_chunk(folder: Path, offset: int) -> tuple[list[Record], int]:
    """Some hundred kilobytes of records from byte `offset` on, and the offset after them. A half line is left."""
    try:
        with open_regular(folder / "metrics.jsonl") as file:
            file.seek(offset)
            data = file.read(CHUNK_BYTES) + file.readline()
    except OSError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    records = [record for line in whole.splitlines() if (record := _parse(line)) is not None]
    return records, offset + len(whole)


def _steps_after(folder: Path, size: int) -> list[Known]:
    """The whole records of metrics.jsonl from byte `size` on."""
    found, begin = [], size
    for line in read_regular(folder / "metrics.jsonl")[size:].splitlines(keepends=True):
        record = _parse(line) if line.endswith(b"\n") else None
        if record is None:
            break
        found.append(Known(record.step, _untimed(record.metrics), begin, begin + len(line)))
        begin += len(line)
    return found


def _untimed(metrics: Mapping[str, float]) -> dict[str, str]:
    """As text, in which a NaN is equal to a NaN. A rate is another one each time."""
    return {name: "" if name.endswith("_per_s") else repr(float(value)) for name, value in metrics.items()}


def read_metrics(folder: Path) -> Iterator[Record]:
    """Every record of the run, in the order of writing."""
    offset, end = -1, 0
    while offset != end:
        offset = end
        records, end = read_chunk(folder, offset)
        yield from records


def records_until(folder: Path, size: int) -> list[Record]:
    """The records in the first `size` bytes."""
    lines = read_regular(folder / "metrics.jsonl")[:size].splitlines()
    return [record for line in lines if (record := _parse(line)) is not None]


def write_json(path: Path, value: Mapping[str, Any], *, sync: bool = False, mode: int = 0o666) -> None:
    """Replace `path` in one step, so that no reader sees half of it; `mode` as for a new file. Raises OSError."""
    data = json.dumps(plain(value), indent=1, allow_nan=False).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: NumPy and tensor values become numbers and lists, NaN and infinities strings."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _name_of(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in the journal: {value!r}")


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


def _parse(line: bytes) -> Record | None:
    """None for a line that a crash or a bad disk left unreadable: one lost record is no reason to lose the rest."""
    try:
        value = json.loads(line)
        metrics = {name: float(number) for name, number in value["metrics"].items()}
        return Record(int(value["step"]), float(value["time"]), metrics)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _name_of(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count


def _overwrite(path: Path, value: Mapping[str, Any]) -> None:
    data = json.dumps(plain(value)).encode()
    file = os.open(path, os.O_WRONLY)
    try:
        _write_all(file, data, 0)
        os.ftruncate(file, len(data))
    finally:
        os.close(file)


def _error_text(error: BaseException | str | None) -> str | None:
    if isinstance(error, BaseException):
        error = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return without_password(error)[:ERROR_LENGTH] if error else None
