"""The import of a framework, and what a training leaves of Lightning's silence."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from command import DIGITS, pipeline
from in_backend import Bench

from pipeline.errors import UserError
from pipeline.machine.collector import importing
from pipeline.machine.quiet import import_for

LIGHTNING = ("pytorch_lightning", "lightning_fabric")


def said_by_process() -> tuple[list[object], list[int]]:
    """What this process filters of warnings, and from which level on Lightning's loggers write."""
    return [*warnings.filters], [logging.getLogger(name).level for name in LIGHTNING]


def test_a_training_leaves_the_process_as_talkative_as_it_was(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """The loader's filter and three of the Trainer's stayed."""
    bench = Bench("torch", tmp_path)
    bench.experiment().backend.load()  # what an import of Lightning sets is not meant
    before = said_by_process()
    workers = len(os.sched_getaffinity(0)) + 1  # of which torch warns
    bench.fit(training=("default", {"epochs": 1, "batch_size": 256}), loader=("dataloader", {"workers": workers}))
    assert said_by_process() == before
    assert [str(one.message) for one in recwarn if "DataLoader" in str(one.message)] == []


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_nothing_is_collected_during_an_import_and_again_after_it(modules: Path) -> None:
    (modules / "own_framework.py").write_text("import gc\n\ncollects = gc.isenabled()\n")
    assert import_for("own", "own_framework").collects is False
    assert gc.isenabled()
    del sys.modules["own_framework"]


def test_what_the_first_import_makes_is_left_alone_and_what_comes_later_is_not(modules: Path) -> None:
    """Python's collector looked through all of a framework as each process ended: a quarter of its import."""
    (modules / "own_first.py").write_text("made = [[] for _ in range(1000)]\n")
    before = gc.get_freeze_count()
    with importing("own_first"):
        importlib.import_module("own_first")
    first = gc.get_freeze_count()
    assert first >= before + 1000
    later = [[0] for _ in range(1000)]  # of a training
    with importing("own_first"):
        importlib.import_module("own_first")
    assert gc.get_freeze_count() <= first and len(later) == 1000


def test_the_end_of_a_process_prints_nothing_of_what_was_left_alone() -> None:
    """Triton 3.9 prints 35 lines of leaks after each run on torch, where the end does not look through its import."""
    pytest.importorskip("triton")
    program = "from pipeline.machine.collector import importing\nwith importing('triton'): import triton._C.libtriton"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_framework_that_cannot_be_imported_is_one_message_and_garbage_is_collected_again(modules: Path) -> None:
    (modules / "own_broken.py").write_text('raise RuntimeError("no such\\n  driver")\n')
    with pytest.raises(UserError, match=r"^backend=own cannot be imported: .*no such driver"):
        import_for("own", "own_broken")
    assert gc.isenabled()


@pytest.mark.wide
def test_a_bound_beyond_float16_bounds_nothing_and_warns_of_nothing(tmp_path: Path) -> None:
    """NumPy's own warning of an overflow stood twice in the output."""
    words = ("backend=jax", "precision=fp16", "model=linear", *DIGITS, "optimizer=sgd")
    plain, bounded = (pipeline(tmp_path, *words, *more) for more in ((), ("training.clip_value=1e30",)))
    assert bounded.returncode == 0 and "Warning" not in bounded.stderr, bounded.stderr
    loss = [line for line in bounded.stdout.splitlines() if line.startswith("test loss")]
    assert loss and loss[0] in plain.stdout
