"""Attention block by block in Keras: equal to the plain one, and memory that grows with the length."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import done

from bench import memory
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics

KERAS = ("tensorflow", "jax")
LONG = (
    *("stage=transformer", "dataset=python_docs", "dataset.context=1024", "model.layers=1", "model.heads=2"),
    *("model.width=16", "training.batch_size=2", "training.steps=6", "training.validate_every=6"),
    *("training.evaluation_batch_size=4", "training.log_every_n_steps=1", "schedule.warm_up=1"),
    *("stage.baselines=false", "stage.attention=false", "tracking=none"),
)


@pytest.mark.wide
@pytest.mark.parametrize("backend", KERAS)
def test_it_is_the_plain_one_with_its_gradients(tmp_path: Path, backend: str) -> None:
    script = Path(__file__).with_name("in_blockwise.py")
    command = [sys.executable, str(script), backend, str(tmp_path / "found")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = pickle.loads((tmp_path / "found").read_bytes())
    assert len(found) == 4
    for name, (plain, by_blocks) in found.items():
        for one, other in zip(plain, by_blocks, strict=True):
            assert np.isfinite(one).all() and np.abs(one).max() > 0.1, name
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-12, err_msg=name)
    assert not found["padding"][1][0][1].any()
    assert not found["some queries see nothing"][1][0][:, :, [0, 5, -1]].any()


def outcome(run: Path) -> tuple[list[float], dict[str, int]]:
    """The loss of each step, and the layers of attention by how they were computed."""
    losses = [record.metrics["train/loss"] for record in read_metrics(run) if "train/loss" in record.metrics]
    assert len(losses) == 6
    return losses, read_json(run / "receipt.json")["precision"]["observed"]["attention"]


@pytest.mark.wide
@pytest.mark.parametrize("backend", KERAS)
def test_long_sequences_are_trained_as_by_torchs_fused_attention(tmp_path: Path, backend: str) -> None:
    """With grouped keys too, and where each block of the model is computed anew."""
    more = ("precision=fp64", "model.positions=rotary", "model.key_heads=1")
    fused, way = outcome(done(tmp_path, *LONG, *more, "backend=torch"))
    assert way == {"scaled_dot_product_flash_attention_for_cpu": 1}
    for words in (more, (*more, "model.recompute=true")):
        losses, way = outcome(done(tmp_path, *LONG, *words, f"backend={backend}"))
        assert way == {"blockwise": 1}
        np.testing.assert_allclose(losses, fused, rtol=0, atol=1e-10)


@pytest.mark.wide
@pytest.mark.parametrize("backend", KERAS)
def test_shorter_sequences_are_computed_plainly_and_mixed_precision_holds(tmp_path: Path, backend: str) -> None:
    words = (*LONG, f"backend={backend}", "precision=mixed")
    run = done(tmp_path, *words)
    shorter = ["dataset.context=1023" if word.startswith("dataset.context") else word for word in words]
    assert outcome(done(tmp_path, *shorter))[1] == {"plain": 1}
    assert set(read_json(run / "receipt.json")["precision"]["observed"]["matrix_products"]) == {"bfloat16"}


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", *KERAS])
def test_memory_grows_with_the_length(backend: str) -> None:
    """From 2,048 to 4,096 tokens: scores of every pair, of one layer's 4 heads, would add 192 MiB by themselves.

    Not the growth that `python -m bench memory` judges: of one layer a compiler's own memory hides the shorter one's,
    and at times the longer one's too.
    """
    shorter, longer = (memory.peak(backend, length, "model.layers=1")["MiB"] for length in (2048, 4096))
    scores = 4 * (4096**2 - 2048**2) * 4 / 2**20
    assert abs(longer - shorter) < scores / 2, (shorter, longer)
