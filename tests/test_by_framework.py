"""Stages that compare frameworks: the device is that of those which are named, whatever `backend` could use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import done
from in_backend import experiment

from pipeline import backends
from pipeline.errors import Impossible, UserError
from pipeline.machine import device
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Gpu
from pipeline.ready import ready
from pipeline.runs.result import read_result

WHY = "torch is built without CUDA"
STAGES = ("graph", "matmul", "loading")


@pytest.fixture
def only_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU, which torch and JAX cannot use as they are installed."""
    monkeypatch.setattr(device, "gpus", lambda: (Gpu(0, "NVIDIA A100-SXM4-40GB", 40 << 30, (8, 0)),))
    for kind, why in ((backends.Torch, WHY), (backends.Jax, "JAX has no CUDA plugin"), (backends.TensorFlow, None)):
        monkeypatch.setattr(kind, "no_gpu_because", lambda *_, why=why: why)


def resolved(stage: str, name: str, *frameworks: str) -> Resolved:
    """Where a stage computes with these frameworks."""
    config: Any = experiment("torch", stage=stage, dataset="digits").config
    parts = {"stage": {**config["stage"], "frameworks": [*frameworks]}, "device": {**config["device"], "name": name}}
    return ready({**config, **parts}, [])[1]


@pytest.mark.usefixtures("only_tensorflow")
@pytest.mark.parametrize("stage", STAGES)
def test_the_frameworks_that_are_named_decide_on_the_device(stage: str) -> None:
    for name in ("auto", "gpu"):
        assert str(resolved(stage, name, "tensorflow").place) == "gpu:0"
        assert str(resolved(stage, name, "torch", "tensorflow").place) == "gpu:0"
    found = resolved(stage, "auto", "torch")
    assert (str(found.place), found.device_reason) == ("cpu", f"auto: {WHY}")
    with pytest.raises(Impossible) as error:
        resolved(stage, "gpu", "torch")
    assert str(error.value) == f"device=gpu: {WHY}; device=cpu runs here"


@pytest.mark.usefixtures("only_tensorflow")
def test_numpy_alone_computes_on_the_cpu() -> None:
    found = resolved("matmul", "auto", "numpy")
    assert (str(found.place), found.device_reason) == ("cpu", "auto: no framework that is named uses a GPU")
    with pytest.raises(Impossible, match=r"^device=gpu: no framework that is named uses a GPU; device="):
        resolved("matmul", "gpu", "numpy")


@pytest.mark.parametrize("stage", STAGES)
def test_a_device_that_is_split_is_refused_without_naming_a_backend(stage: str) -> None:
    config: Any = experiment("torch", stage=stage, dataset="digits").config
    with pytest.raises(UserError) as error:
        ready({**config, "device": {**config["device"], "logical_devices": 2}}, [])
    assert str(error.value) == f"device.logical_devices=2 with stage={stage}: has no effect there; leave it out"


@pytest.mark.wide
def test_threads_that_a_variable_asks_for_in_vain_are_noted(tmp_path: Path) -> None:
    """The receipt had OMP_NUM_THREADS=7, and what was measured had a thread for each core."""
    words = ("stage=matmul", "stage.frameworks=[numpy]", "stage.dtypes=[float64]", "stage.sizes=[8]", "stage.cores=1")
    few = ("stage.placed=null", "stage.starts=1", "stage.rounds=1", "tracking=none")
    said = "OMP_NUM_THREADS=7: ignored: what is measured runs in processes of 1 thread, one for each core"
    for threads, notes in (("7", [said]), ("1", []), ("", [])):
        result = read_result(done(tmp_path, *words, *few, OMP_NUM_THREADS=threads, MKL_NUM_THREADS="1"))
        assert result is not None and [one for one in result.notes if "THREADS" in one] == notes
