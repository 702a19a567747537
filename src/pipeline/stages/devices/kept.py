"""The ceilings of this machine, kept in the cache folder: for the machine, the software and our code as they are."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pipeline
from pipeline.datasets.fetch import CACHE_VARIABLE, cache_root
from pipeline.errors import UserError
from pipeline.machine import host
from pipeline.machine.ceilings import Ceiling, Ceilings
from pipeline.machine.device import driver_version, gpus
from pipeline.machine.environment import environment
from pipeline.machine.own_process import THREADS
from pipeline.runs.json_files import read_json, write_json
from pipeline.stages.devices.sources import SOURCES

SOFTWARE = ("numpy", "torch", "tensorflow", "keras", "jax", "jaxlib")
CODE = ("pipeline.stages.devices.process.main", *(f"{source.module}.measured" for source in SOURCES))
ROOT = Path(pipeline.__file__).parent
FILES = (
    *(f"{source.module.replace('.', '/').removeprefix('pipeline/')}.py" for source in SOURCES),
    *("backends/shared/ceiling_bench.py", "machine/energy.py", "machine/own_process.py", "machine/resident.py"),
    *(f"kernels/cpu/{name}" for name in ("ceilings.py", "probe.cpp", "micro.h", "team.h")),
)


def kept() -> Ceilings | None:
    """What was measured on this machine; None where nothing was, or where anything is different now."""
    found = read_json(_file(facts()))
    try:
        return Ceilings([Ceiling.read(one) for one in found["rows"]], str(found["date"]))
    except (KeyError, TypeError, ValueError):  # nothing, or not a whole one
        return None


def keep(rows: Sequence[Ceiling], measured_with: dict[str, Any]) -> Ceilings:
    """In one step, so that nobody reads half of it. `measured_with`: the `facts` of before. Raises UserError."""
    ceilings = Ceilings(rows, time.strftime("%Y-%m-%d %H:%M"))
    found = {"date": ceilings.date, "facts": measured_with, "rows": [one.plain() for one in rows]}
    try:
        write_json(folder() / _file(measured_with).name, found)
    except OSError as error:
        raise _cannot_write(error) from error
    return ceilings


def facts() -> dict[str, Any]:
    """What decides the ceilings: a change of any makes those that are kept another machine's."""
    return {
        "cpu": {**host.cpu(), "allowed": sorted(os.sched_getaffinity(0))},
        "gpus": [asdict(gpu) for gpu in gpus()],
        "driver": driver_version(),
        "versions": {name: version(name) for name in SOFTWARE},
        "environment": {name: value for name, value in environment().items() if name not in THREADS},
        "code": _digest([(ROOT / name).read_bytes() for name in FILES]),
    }


def folder() -> Path:
    """Where they are kept, and files are measured. Raises UserError where it cannot be written."""
    found = cache_root(None) / "ceilings"
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(error) from error
    if not os.access(found, os.W_OK):
        raise _cannot_write(PermissionError("Permission denied"))
    return found


def version(distribution: str) -> str | None:
    """Of what is installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _file(of: dict[str, Any]) -> Path:
    return cache_root(None) / "ceilings" / f"{_digest([json.dumps(of, sort_keys=True).encode()])[:16]}.json"


def _digest(parts: Sequence[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def _cannot_write(error: OSError) -> UserError:
    where = cache_root(None) / "ceilings"
    return UserError(
        f"cache folder {where}: cannot write: {error.strerror or error}; name another with {CACHE_VARIABLE}"
    )
