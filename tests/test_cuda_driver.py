"""Launches on a GPU against a stand-in for CUDA's driver library: real calls of cuda-bindings, computed by NumPy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.kernels import nvrtc
from pipeline.kernels.cpu.compiled import compiler

TESTS = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    nvrtc.missing_packages() is not None or compiler() is None, reason="needs the extra `kernels` and a C++ compiler"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("driver")
    build = [str(compiler()), "-O1", "-std=c++17", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*build, str(TESTS / "cuda_driver.cpp"), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, str(TESTS / "in_cuda_driver.py")],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.mark.wide
def test_a_kernel_is_verified_and_its_launches_are_replayed(found: Any) -> None:
    kernels = found["kernels"]
    assert kernels["fp16"] == 52 and kernels["int8"] == 50  # problems, all of them right
    assert (kernels["launches"], kernels["graphs"]) == (250, 2)  # one of 100, which is replayed, and one of 50
    assert kernels["launch"] == ["gemm_naive", [4, 2, 1, 128, 4, 1, 0]] and kernels["seconds"]
    assert kernels["dynamic"] == 162816  # more than 48 KiB: the function's attribute was set before
    assert kernels["facts"] == {"card": "gpu:0 a stand-in", "occupancy": 0.5, "blocks_per_multiprocessor": 2}


@pytest.mark.wide
def test_ceilings_are_measured_by_every_probe_of_a_dtype(found: Any) -> None:
    assert found["fp16"]["ways"] == ["mma", "wgmma"] and found["int8"]["ways"] == ["mma"]
    assert found["fp32"]["ways"] == ["fma"]
    assert found["fp16"]["entries"] == ["probe", "probe_wgmma", "triad"]
    for dtype in ("fp16", "fp32", "int8"):
        assert found[dtype]["enough"] and found[dtype]["n"] == 30


@pytest.mark.wide
def test_a_memorys_ceiling_that_may_be_the_caches_is_doubted(found: Any) -> None:
    """What others have left of a GPU's memory may fit into its L2 cache."""
    assert found["doubts"] == [None, "an array has 1.0 MiB, less than 4 times the 1.0 MiB of the caches"]


@pytest.mark.wide
def test_rounds_left_out_and_memory_that_is_not_there_are_one_message(found: Any) -> None:
    said = found["faults"]["rounds"]
    assert said.startswith("the probe mma on a stand-in: ") and "sums are wrong: that of team 0, row 0" in said
    said = found["faults"]["memory"]
    assert said.startswith("naive: cuMemAlloc: out of memory; A takes ") and said.endswith("use smaller stage.sizes")


@pytest.mark.wide
def test_all_that_was_made_on_the_card_is_freed(found: Any) -> None:
    assert found["held"] == dict.fromkeys(("stream", "graph", "event", "module", "retain", "memory"), 0)
