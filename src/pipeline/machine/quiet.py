"""Imports that talk: TensorFlow and XLA write a dozen lines to file descriptor 2, whatever their settings."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType

from pipeline import raised
from pipeline.errors import UserError
from pipeline.machine.collector import importing

FRAMEWORKS = ("torch", "tensorflow", "jax")


def quiet_import(name: str) -> ModuleType:
    """Import a module; what it writes to standard error is shown only if the import fails."""
    with quiet_imports():
        return importlib.import_module(name)


def import_for(backend: str, name: str) -> ModuleType:
    """Import a module of a backend. UserError where its framework cannot be, as for a variable that it refuses."""
    try:
        with importing(*FRAMEWORKS):
            return importlib.import_module(name)
    except Exception as error:  # whatever a framework raises while it starts
        if raised.is_of_this_package(error):
            raise
        raise UserError(f"backend={backend} cannot be imported: {raised.message(error)}") from error


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """The same for imports written out: modules of this package, which pipeline.runs.code.code_hash then sees."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with captured_stderr():
        yield


@contextlib.contextmanager
def captured_stderr() -> Iterator[None]:
    """Hold back file descriptor 2; give it out if the block raises."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            caught.seek(0)
            os.write(2, caught.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
