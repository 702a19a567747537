"""What XLA makes of a training step of a GPT on JAX: what each block adds to the stream is added up once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

WORDS = (
    *("stage=transformer", "backend=jax", "tracking=none", "stage.baselines=false", "stage.attention=false"),
    *("dataset=python_docs", "dataset.context=8", "model.width=16", "model.heads=2"),
    *("training.steps=2", "training.batch_size=3", "schedule.warm_up=1"),
)
# Of a block's backward pass.
LOOP = re.compile(r"fusion\((.*?)\), kind=kLoop.*op_name=\"[^\"]*transpose\(jvp\(blocks\.")


def program(folder: Path, layers: int, *more: str) -> str:
    """The training step as XLA has made it, with `more` of its flags."""
    flags = " ".join((f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*run_block.*", *more))
    command = [sys.executable, "-m", "pipeline", *WORDS, f"model.layers={layers}"]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*run_block*cpu_after_optimizations.txt")
    return file.read_text(encoding="utf-8")


def widest(folder: Path, layers: int) -> int:
    """The most values that one loop of a block's backward pass reads."""
    loops = LOOP.findall(program(folder, layers))
    assert len(loops) > layers
    return max(operands.count("%") for operands in loops)


@pytest.mark.wide
def test_no_block_adds_up_what_all_later_ones_give_back(tmp_path: Path) -> None:
    """A loop that did would read some values of every later block: with six, more than with three."""
    few, many = tmp_path / "3", tmp_path / "6"
    few.mkdir()
    many.mkdir()
    assert widest(many, 6) == widest(few, 3)


@pytest.mark.wide
def test_passes_that_the_user_leaves_out_are_left_out_too(tmp_path: Path) -> None:
    """An option of ours has the name of this flag."""
    usual, without = tmp_path / "usual", tmp_path / "without"
    usual.mkdir()
    without.mkdir()
    assert "kind=kLoop, calls=%fused_computation" in program(usual, 1)
    assert "kind=kLoop, calls=%fused_computation" not in program(without, 1, "--xla_disable_hlo_passes=fusion")
