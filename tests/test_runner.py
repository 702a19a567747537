"""The runner: what it makes of the machine's errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipeline.capability import Resolved
from pipeline.device import Place
from pipeline.runner import explained

RESOLVED = Resolved(Place("cpu"), "fp32", "as requested", "as requested")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("runs/one/artifacts/model.npz", "output_dir: cannot write {tmp}/runs/one/artifacts/model.npz: "),
        (None, "output_dir: cannot write {tmp}/runs/one: "),
        ("elsewhere/shared-memory", "cannot write {tmp}/elsewhere/shared-memory: "),
    ],
)
def test_a_full_disk_is_named_as_what_it_is(tmp_path: Path, name: str | None, told: str) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([] if name is None else [str(tmp_path / name)]))
    said = str(explained(error, RESOLVED, tmp_path / "runs" / "one"))
    assert said.startswith(told.format(tmp=tmp_path) + "No space left on device; ")


@pytest.mark.parametrize(("solves", "key"), [(False, "training.batch_size"), (True, "dataset.interior")])
def test_too_little_memory_names_a_key_that_the_stage_has(tmp_path: Path, solves: bool, key: str) -> None:
    said = str(explained(MemoryError(), RESOLVED, tmp_path, solves=solves))
    assert said.startswith("out of memory: ") and said.endswith(f"use a smaller {key}, model or precision")


def test_another_error_stays_as_it_is(tmp_path: Path) -> None:
    error = OSError(errno.ENOENT, os.strerror(errno.ENOENT), "x")
    assert explained(error, RESOLVED, tmp_path) is error
