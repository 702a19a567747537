"""What a sweep's process imports: all of an experiment's code, as it was hashed; and what may not start meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UserError, plural
from pipeline.sweep import reads

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

# Packages that start threads when they are imported, and survive a fork: numbers of threads say nothing beside them.
POOLS = ("cv2", "jaxlib", "numexpr", "numpy", "polars", "pyarrow", "scipy", "sklearn", "tensorflow", "torch")
COUNTED = (0, 100)  # CUDA_SUCCESS and CUDA_ERROR_NO_DEVICE of cuda.h; before cuInit it is CUDA_ERROR_NOT_INITIALIZED


def import_code(experiment: Experiment, known: Collection[str], since: float) -> None:
    """Import every module that the code's hash is taken of, also those that are imported within functions.

    What a later edit changes then neither runs nor is hashed. The files that the user's code reads are hashed as they
    are now. `known`: modules that were imported before the time `since`. Raises UserError where one of the others was
    edited after it, and where a file that a module has read when it was imported has been edited since: either would be
    hashed as another than it runs.
    """
    from pipeline.runs.code import sources as code_sources
    from pipeline.runs.code.code_hash import modules, own_modules
    from pipeline.runs.code.files import edited_since

    if known and own_modules(experiment):  # its code is kept as it was imported; the state of its files is asked anew
        code_sources.digest.cache_clear()
    names = modules(experiment)
    with reads.watched():
        for name in names:
            with contextlib.suppress(Exception):  # what needs a package that is not installed, imported if need be
                importlib.import_module(name)
    for name in names:
        path = getattr(sys.modules.get(name), "__file__", None)
        if name not in known and path and edited_since(Path(path), since):
            raise UserError(f"{path}: edited while it was imported; give the command again")
    _check_files(experiment, first=not known)


# Of the user's modules, as this process or the worker that it was forked from first imported them: what they had read
# by then, with the hash of each file's content.
_read: dict[str, dict[Path, str]] = {}


def _check_files(experiment: Experiment, *, first: bool) -> None:
    """Refuse a file that a module has read when it was imported, and that has another content since.

    `first`: in the process that has imported all of it just now.
    """
    from pipeline.runs.code.code_hash import own_modules
    from pipeline.runs.code.sources import files
    from pipeline.runs.dynamic_imports import imported_beside

    here = Path.cwd()
    beside = imported_beside(experiment)  # hashed now: a cell that is forked later runs them as they are here
    places = own_modules(experiment) | {name: Path(one["file"]) for name, one in beside.items()}
    for name, path in places.items():
        now = _read_at_import([file for _, file in files(name, path, here)])
        then = _read.setdefault(name, now)
        for file in sorted(now) if first else ():
            if reads.edited(file):
                raise UserError(f"{file}: edited while {name} was imported; give the command again")
        edited = sorted(file for file in {*then, *now} if then.get(file) != now.get(file))
        if edited:
            raise UserError(
                f"{edited[0]} was edited since {name} was imported, which read it; give the command again "
                "(where the run itself writes it: read it in a function)"
            )


def _read_at_import(files: Sequence[Path]) -> dict[Path, str]:
    """Those that were read, by the hash of their content now; those in a folder that was listed, as being there."""
    from pipeline.runs.code.files import content

    found = dict[Path, str]()
    for file in files:
        if reads.opened(file) or reads.listed(file):
            found[file] = content(file)
        elif reads.listed(file.parent):
            found[file] = "there"
    return found


@contextlib.contextmanager
def forkable() -> Iterator[None]:
    """Refuse what the user's own modules start when they are imported, and a forked cell would not have.

    A thread does not live on in a forked process; CUDA, JAX and TensorFlow fail or hang there once they have started.
    """
    threads, modules = _threads(), set(sys.modules)
    yield
    found = started()
    if not found and threading.active_count() > 1:
        found = f"a thread ({', '.join(thread.name for thread in threading.enumerate()[1:])})"
    new = {name.partition(".")[0] for name in sys.modules.keys() - modules}
    more = _threads() - threads
    if not found and more and not new & set(POOLS):
        found = f"{plural(len(more), 'thread')} ({', '.join(sorted(map(_thread_name, more)))})"
    if found:
        own = ", ".join(sorted(new & set(_users()))) or "the experiment's modules"
        raise UserError(
            f"{own}: starts {found} when it is imported; a sweep forks its cells from a process that has imported it, "
            "where that fails; start it in a function, or give every cell a new Python: "
            "hydra/launcher=submitit_local"
        )


def started() -> str | None:
    """Which runtime has started in this process that a forked one cannot use."""
    if _cuda_started():
        return "CUDA"
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        return "JAX"
    context = sys.modules.get("tensorflow.python.eager.context")
    made = context and context.context_safe()
    return "TensorFlow" if made and made._initialized else None


def _cuda_started() -> bool:
    """Whether CUDA's driver is at work in this process: once it is, a device can be counted.

    Open files of the driver's would not say: NVML, which only asks, has the same ones.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) in COUNTED
    except (OSError, AttributeError):  # not loaded; or a system without such drivers
        return False


def _users() -> tuple[str, ...]:
    from pipeline.allowed import allowed_modules

    return tuple(name.partition(".")[0] for name in allowed_modules() if name != "pipeline")


def _threads() -> set[str]:
    """Threads of this process, those that Python does not know included; none where the system does not say."""
    try:
        return {path.name for path in Path("/proc/self/task").iterdir()}
    except OSError:
        return set()


def _thread_name(thread: str) -> str:
    """What the system calls a thread."""
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:  # it has ended
        return thread
