"""The ceilings of this machine, kept in the cache folder: for the machine, the software and our code as they are."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pipeline
from pipeline.errors import UserError
from pipeline.kernels.cpu.compiled import compiler, version_of
from pipeline.kernels.kept import digest
from pipeline.machine import free_memory, host
from pipeline.machine.cache_folder import cache_root, cannot_write_cache, written_folder
from pipeline.machine.ceilings import Ceiling, Ceilings
from pipeline.machine.device import driver_version, gpu_limits, gpus
from pipeline.machine.environment import environment
from pipeline.machine.gpu_support import JAX_CHOICES
from pipeline.machine.own_process import THREADS
from pipeline.runs.code.code_hash import closure, hash_of
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.receipt import version_of as version
from pipeline.stages.devices.sources import SOURCES

DATE = "%Y-%m-%d %H:%M"
SOFTWARE = ("numpy", "torch", "tensorflow", "keras", "jax", "jaxlib")
LIBRARIES = re.compile(r"nvidia-|jax-cuda")  # how distributions begin that hold cuBLAS, cuDNN and JAX's plugins
CODE = ("pipeline.stages.devices.process.main", *(f"{source.module}.measured" for source in SOURCES))
MODULES = (*(name.rpartition(".")[0] for name in CODE), "pipeline.machine.own_process")  # and all that they import
ALSO = ("OMP_WAIT_POLICY", *JAX_CHOICES)  # variables that change no number: how threads wait, and where JAX computes
ROOT = Path(pipeline.__file__).parent
COMPILED = tuple(f"kernels/cpu/{name}" for name in ("probe.cpp", "micro.h", "team.h"))


def kept(of: dict[str, Any] | None = None) -> Ceilings | None:
    """What was measured on this machine; None where nothing was, or where anything is different now. `of`: `facts`."""
    found = read_json(_file(facts() if of is None else of))
    try:
        return Ceilings([Ceiling.read(one) for one in found["rows"]], str(found["date"]))
    except (KeyError, TypeError, ValueError):  # nothing, or not a whole one
        return None


def keep(rows: Sequence[Ceiling], measured_with: dict[str, Any]) -> Ceilings:
    """In one step, so that nobody reads half of it. `measured_with`: the `facts` of before. Raises UserError."""
    ceilings = Ceilings(rows, time.strftime(DATE))
    found = {"date": ceilings.date, "facts": measured_with, "rows": [one.plain() for one in rows]}
    try:
        write_json(folder() / _file(measured_with).name, found)
    except OSError as error:
        raise _cannot_write(error) from error
    return ceilings


def facts() -> dict[str, Any]:
    """What decides the ceilings: a change of any makes those that are kept another machine's."""
    return {
        "host": socket.gethostname(),  # machines may share a home directory
        "cpu": {**host.cpu(), "allowed": sorted(os.sched_getaffinity(0)), "limits": cpu_limits()},
        "memory_gib": memory_gib(),
        "gpus": [asdict(gpu) for gpu in gpus()],
        "gpu_limits": gpu_limits(),
        "driver": driver_version(),
        "python": platform.python_version(),  # of few bytes, or a tiny operation, its call is the larger part
        "versions": {name: version(name) for name in SOFTWARE} | libraries(),
        "compiler": compiler_found(),
        "environment": {name: value for name, value in environment().items() if name not in THREADS}
        | {name: os.environ[name] for name in ALSO if name in os.environ},
        "code": digest([hash_of(closure(MODULES)).encode(), *((ROOT / name).read_bytes() for name in COMPILED)]),
    }


def cpu_limits() -> list[str]:
    """The shares of processor time (`cpu.max`) of this process's control group and of those around it; as far as
    Linux tells them."""
    folder, found = free_memory.GROUPS / free_memory.own_group(), []
    for one in (folder, *folder.parents):
        if one.is_relative_to(free_memory.GROUPS):
            with contextlib.suppress(OSError):
                found.append((one / "cpu.max").read_text().strip())
    return found


def memory_gib() -> int:
    """In whole GiB: another kernel leaves a few MiB more or less of the same memory."""
    return math.ceil(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)


def compiler_found() -> list[str] | None:
    """The C++ compiler that the probe is compiled by, and its version."""
    program = compiler()
    return None if program is None else [program, version_of(program)]


def libraries() -> dict[str, str]:
    """Versions of the distributions that bring a framework NVIDIA's libraries."""
    named = {(one.name or "").lower().replace("_", "-"): one.version for one in importlib.metadata.distributions()}
    return {name: named[name] for name in sorted(named) if LIBRARIES.match(name)}


def folder() -> Path:
    """Where they are kept, and files are measured. Raises UserError where it cannot be written."""
    return written_folder("ceilings")


def _file(of: dict[str, Any]) -> Path:
    return cache_root(None) / "ceilings" / f"{digest([json.dumps(of, sort_keys=True).encode()])[:16]}.json"


def _cannot_write(error: OSError) -> UserError:
    return cannot_write_cache(cache_root(None) / "ceilings", error)
