"""The runner: what it makes of the machine's errors."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.runner import explained
from pipeline.runs import saved
from pipeline.stages.classifier import Classifier
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.pinn import Pinn
from pipeline.stages.predict import Predict

RESOLVED = Resolved(Place("cpu"), "fp32", "as requested", "as requested")


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("runs/one/artifacts/model.npz", "output_dir: cannot write {tmp}/runs/one/artifacts/model.npz: "),
        (None, "output_dir: cannot write {tmp}/runs/one: "),
        ("elsewhere/shared-memory", "cannot write {tmp}/elsewhere/shared-memory: "),
    ],
)
def test_a_full_disk_is_named_as_what_it_is(tmp_path: Path, name: str | None, result: str) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([] if name is None else [str(tmp_path / name)]))
    said = str(explained(error, RESOLVED, tmp_path / "runs" / "one", Classifier()))
    assert said.startswith(result.format(tmp=tmp_path) + "No space left on device; ")


ADVICE = [
    (Classifier(), "use a smaller training.batch_size, model or precision"),
    (Pinn(), "use a smaller dataset.interior, model or precision"),
    (Evaluate(), "use a smaller training.evaluation_batch_size or precision"),
    (Predict(images=("x.png",)), "use a smaller training.evaluation_batch_size or precision"),
    (Predict(points="x.csv"), "name fewer points in stage.points"),
]


@pytest.mark.parametrize(("stage", "advice"), ADVICE)
def test_too_little_memory_names_a_key_that_the_stage_takes(tmp_path: Path, stage: Any, advice: str) -> None:
    said = str(explained(MemoryError(), RESOLVED, tmp_path, stage))
    assert said.startswith("out of memory: ") and said.endswith(f"; {advice}")
    for key in re.findall(r"training\.\w+", advice) if stage.starts_from_run else ():
        assert key in saved.SINGLE  # do not advise what a stage refuses


# As the libraries say it, through the framework that calls them.
FULL = [
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("INTERNAL: failed to create cublas handle: the resource allocation failed"),
    RuntimeError("CUDA_ERROR_OUT_OF_MEMORY"),
    RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes."),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
]


@pytest.mark.parametrize("error", FULL, ids=lambda error: str(error)[:40])
def test_a_full_memory_is_named_whoever_says_it(tmp_path: Path, error: Exception) -> None:
    said = explained(error, RESOLVED, tmp_path, Classifier())
    assert isinstance(said, UserError) and str(said).startswith("out of memory: ")


@pytest.mark.parametrize("text", ["CUBLAS_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_EXECUTION_FAILED", "device-side assert"])
def test_a_librarys_other_errors_stay_as_they_are(tmp_path: Path, text: str) -> None:
    error = RuntimeError(text)
    assert explained(error, RESOLVED, tmp_path, Classifier()) is error


def test_another_error_stays_as_it_is(tmp_path: Path) -> None:
    error = OSError(errno.ENOENT, os.strerror(errno.ENOENT), "x")
    assert explained(error, RESOLVED, tmp_path, Classifier()) is error


def test_seconds_since_a_process_began_are_no_more_than_have_passed() -> None:
    """By the wall time of boot, of which the kernel tells whole seconds, they were up to one more."""
    code = "import time; from pipeline.runs.run import seconds_since_start as s; time.sleep(0.3); print(s())"
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    passed = time.monotonic() - before
    assert 0.3 <= float(done.stdout) <= passed + 0.02  # a clock tick, and another of rounding
