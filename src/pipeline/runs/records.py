"""What a run's folder holds, for those who read it: its status, its config, the records of its metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pipeline.machine.regular_file import open_regular, read_regular
from pipeline.runs.json_files import parsed, read_json

State = Literal["RUNNING", "FINISHED", "FAILED", "KILLED", "PRUNED"]

CHUNK_BYTES = 1 << 18
SMALL_CONFIG = 20_000  # bytes, too few for a depth that does harm
DEEPEST, MOST_VALUES = 100, 1_000_000  # of a config
GROUPS = re.compile(rb"(?<=\n)(?=[A-Za-z_])")  # a line that is not indented begins the next one
EPOCH = "epoch/number"  # the metric that an epoch's record has, and a step's has not
TOO_LONG = "took longer than "  # begins the error of a run that was stopped for its time


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
    cell_of: str | None = None  # the run of the grid, or of the stage, that started it as a cell


class Record(NamedTuple):
    """One line of `metrics.jsonl`."""

    step: int
    time: float
    metrics: dict[str, float]


def read_status(folder: Path) -> Status | None:
    """The run's status, or None where there is none to be read."""
    try:
        status = Status(**parsed(read_regular(folder / "status.json")))
    except (OSError, ValueError, TypeError):
        return None
    times = (status.started, status.ended or 0.0)
    return status if status.state in get_args(State) and all(isinstance(one, int | float) for one in times) else None


def duration(folder: Path, status: Status, now: float | None = None) -> float | None:
    """Seconds that a run took; of one that has not ended, until `now`, or None without that.

    The wall time that the receipt has, of all processes of a run that went on: it may have lain dead for days between
    them. Of a run without one, from the folder's first moment to its last, or since it last went on and what its
    checkpoint had taken before.
    """
    ended = status.ended or now
    if ended is None:
        return None
    receipt = read_json(folder / "receipt.json")
    wall = receipt.get("wall_time_s")
    if status.ended and isinstance(wall, int | float):
        return float(wall)
    whole = {"time": status.started, "earlier_s": 0.0}
    last = [whole, *(one for one in receipt.get("resumed", []) if "earlier_s" in one)][-1]  # older receipts have none
    return float(last["earlier_s"] + max(0.0, ended - last["time"]))  # the clock may have been set back


def read_config(folder: Path, load: Callable[[bytes], Any] | None = None) -> dict[str, Any]:
    """The resolved config that the run was started with; `load` reads its YAML, else `loaded`."""
    try:
        value = (load or loaded)(read_regular(folder / "config.yaml"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) and _is_written_out(value) else {}


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value of nested settings at a dotted key; None where there is none."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def loaded(text: str | bytes) -> Any:
    """What a text of YAML holds. Raises ValueError for what is none, or nests too deeply."""
    import yaml

    # libyaml's, where PyYAML was built with it, is nine times as fast. Both are the safe ones.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if len(text) > SMALL_CONFIG and _is_deep(yaml.parse(text, Loader=loader)):
            raise ValueError("nests too deeply")
        return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None


def loaded_by_groups(text: bytes) -> Any:
    """What `loaded` gives, where many texts share most of their groups, as runs of a folder do: each is parsed once.

    The values are shared, too: they are not to be changed. Raises ValueError.
    """
    try:
        groups = [_loaded_group(group) for group in GROUPS.split(text)]
    except ValueError:  # a group that cannot stand alone, such as one with an alias
        return loaded(text)
    if all(isinstance(group, dict) and len(group) == 1 for group in groups):
        return {key: value for group in groups for key, value in group.items()}
    return loaded(text)


@lru_cache(maxsize=10_000)
def _loaded_group(text: bytes) -> Any:
    return loaded(text)


def _is_deep(events: Iterable[Any]) -> bool:
    """Whether a YAML text nests too deeply: libyaml's loader goes down level by level, and ends the process at last."""
    import yaml

    now = 0
    for event in events:
        now += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if now > DEEPEST:
            return True
    return False


def _is_written_out(config: dict[str, Any]) -> bool:
    """Whether a config is of a sane size: by aliases a few lines of YAML stand for millions of values."""
    level: list[Any] = [config]
    left = MOST_VALUES
    for _ in range(DEEPEST):
        groups = [one for one in level if isinstance(one, dict | list)]
        left -= sum(map(len, groups))
        if not groups or left < 0:
            return left >= 0
        level = [item for one in groups for item in (one.values() if isinstance(one, dict) else one)]
    return False


def read_chunk(folder: Path, offset: int) -> tuple[list[Record], int]:
    """Some hundred kilobytes of records from byte `offset` on, and the offset after them. A half line is left."""
    try:
        with open_regular(folder / "metrics.jsonl") as file:
            file.seek(offset)
            data = file.read(CHUNK_BYTES) + file.readline()
    except OSError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    records = [record for line in whole.splitlines() if (record := parse(line)) is not None]
    return records, offset + len(whole)


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
    return [record for line in lines if (record := parse(line)) is not None]


def parse(line: bytes) -> Record | None:
    """None for a line that a crash or a bad disk left unreadable: one lost record must not cost the rest."""
    try:
        value = parsed(line)
        metrics = {name: float(number) for name, number in value["metrics"].items()}
        return Record(int(value["step"]), float(value["time"]), metrics)
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None
