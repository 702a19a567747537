"""The loss scale of mixed float16: steps that overflow are seen, skipped and counted, alike in every backend.

The overflow is planted by a first scale of 2^40. What is counted is held against the weights: a skipped step leaves
them as they were.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import in_backend
import numpy as np
import pytest
from command import DIGITS, TORCH_THEN_WIDE, done, pipeline
from findings import LossScales
from hypothesis import given
from hypothesis import strategies as st
from in_backend import LARGE, Outcomes, outcomes

from pipeline.machine.precision import GROWTH_STEPS, INITIAL_SCALE, SQUARES_VANISH, UNSCALED
from pipeline.runs.json_files import read_json
from pipeline.runs.loss_scale import LossScale
from pipeline.runs.records import read_metrics

WAYS = ("planted", "in blocks", "streamed")


@pytest.fixture(scope="module")
def found() -> Outcomes[LossScales]:
    return outcomes(in_backend.loss_scale)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_the_steps_that_left_the_weights_alone_are_those_counted(found: Outcomes[LossScales], backend: str) -> None:
    result, trail = found[backend].ways["planted"].scale, found[backend].trail
    still = [step for step in range(1, len(trail)) if (trail[step] == trail[step - 1]).all()]
    assert len(trail) == 41
    assert np.isfinite(trail).all()
    assert still[:20] == list(range(1, 21))  # 2^40 is that far off
    assert len(still) < 30  # and then it learned
    assert result["skipped_steps"] == len(still)
    assert [change["step"] for change in result["changes"]] == still
    assert [change["scale"] for change in result["changes"]] == [LARGE / 2**count for count in range(1, len(still) + 1)]
    assert (result["initial"], result["final"]) == (LARGE, LARGE / 2 ** len(still))


def test_a_block_without_a_step_changes_nothing() -> None:
    """Of batches whose gradients are part of a later step."""
    scale = LossScale(1024.0)
    assert scale.take(np.array([512.0]), 0) == [(1, 512.0)]
    assert scale.take(np.array([]), 1) == []
    assert (scale.final, scale.skipped_steps, scale.changes) == (512.0, 1, [(1, 512.0)])


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_every_backend_skips_the_same_steps_however_it_is_fed(found: Outcomes[LossScales], backend: str) -> None:
    first = found["torch"].ways["planted"].scale["changes"]
    assert all(found[backend].ways[way].scale["changes"] == first for way in WAYS)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.parametrize("way", [*WAYS, "long"])
def test_the_journal_has_the_history(found: Outcomes[LossScales], way: str, backend: str) -> None:
    result, journal = found[backend].ways[way].scale, found[backend].ways[way].journal
    changes = [{"step": step, "scale": kept["loss_scale/scale"]} for step, kept in journal if len(kept) == 1]
    ends = [kept for _, kept in journal if "epoch/number" in kept]
    assert changes == result["changes"]
    assert len(ends) == (82 if way == "long" else 1)
    assert ends[-1]["loss_scale/scale"] == result["final"]
    assert ends[-1]["loss_scale/skipped_steps"] == result["skipped_steps"]


@pytest.mark.wide
def test_clipped_gradients_that_have_overflowed_are_skipped_on_all_backends(tmp_path: Path) -> None:
    """Infinite numbers, clipped, were taken for gradients on TensorFlow and JAX; on torch they had a norm."""
    clipped = ("training.clip_value=0.01", "training.log_gradient_norm=true", "training.log_every_n_steps=1")
    words = ("precision=mixed_fp16", "precision.initial_scale=1e9", "training.steps=40", "dataset=digits", *clipped)
    scales, with_a_norm = [], []
    for backend in ("torch", "tensorflow", "jax"):
        run = done(tmp_path, *words, f"backend={backend}")
        scales.append(read_json(run / "receipt.json")["precision"]["loss_scale"])
        records = read_metrics(run)
        with_a_norm.append([record.step for record in records if "train/gradient_norm" in record.metrics])
    assert [one["skipped_steps"] for one in scales] == [12, 12, 12]
    assert [one["final"] for one in scales] == [1e9 / 2**12] * 3
    assert with_a_norm == [[*range(13, 41)]] * 3


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_all_begin_with_the_scale_that_is_documented(found: Outcomes[LossScales], backend: str) -> None:
    result = found[backend].ways["as shipped"].scale
    assert (result["initial"], result["final"], result["skipped_steps"]) == (INITIAL_SCALE, INITIAL_SCALE, 0)
    assert in_backend.experiment(backend, precision="mixed_fp16").precision.loss_scale == INITIAL_SCALE


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_it_doubles_after_so_many_steps_without_an_overflow(found: Outcomes[LossScales], backend: str) -> None:
    result = found[backend].ways["long"].scale
    assert result["changes"] == [{"step": GROWTH_STEPS, "scale": 2048.0}]
    assert (result["skipped_steps"], result["final"]) == (0, 2048.0)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_other_precisions_have_none(found: Outcomes[LossScales], backend: str) -> None:
    assert found[backend].others == [None] * 3


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=60), st.integers(1, 9), st.floats(1e-3, 1e9))
def test_blocks_of_any_length_tell_the_same(factors: list[float], size: int, initial: float) -> None:
    scales = (np.float32(initial) * np.cumprod(factors)).astype(np.float32)
    result = LossScale(initial)
    for first in range(0, len(scales), size):
        result.take(scales[first : first + size].astype(np.float64), first)
    assert result.skipped_steps == factors.count(0.5)
    wanted = [(step, float(scales[step - 1])) for step, factor in enumerate(factors, 1) if factor != 1]
    assert result.changes == wanted
    assert result.final == float(scales[-1])


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_run_tells_of_it(tmp_path: Path, backend: str) -> None:
    words = ["precision=mixed_fp16", f"precision.initial_scale={LARGE}", f"backend={backend}", "tracking=none"]
    outcome = pipeline(tmp_path, *DIGITS, *words)
    assert outcome.returncode == 0, outcome.stderr
    (run,) = (tmp_path / "runs").iterdir()
    receipt, result = (json.loads((run / f"{name}.json").read_text()) for name in ("receipt", "result"))
    kept = receipt["precision"]["loss_scale"]
    assert receipt["precision"]["observed"]["matrix_products"].keys() == {"float16"}
    assert kept["initial"] == LARGE
    assert 20 <= kept["skipped_steps"] == len(kept["changes"]) < 30
    assert result["scalars"]["loss_scale/skipped_steps"] == kept["skipped_steps"]
    assert result["scalars"]["loss_scale/final"] == kept["final"] == LARGE / 2 ** kept["skipped_steps"]
    (row,) = re.findall(r"loss scale +(.*?) *$", outcome.stdout, re.MULTILINE)
    final = f"{kept['final']:,.6g}"
    assert row == f"1.09951e+12 -> {final}; {kept['skipped_steps']} of 80 steps skipped (overflow)"
    assert "no loss scaling" not in outcome.stderr
    assert "loss_scaling" not in receipt["precision"]


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_training_whose_every_step_was_skipped_has_failed(tmp_path: Path, backend: str) -> None:
    """It ended well, with the numbers of the initial weights."""
    words = ["precision=mixed_fp16", f"precision.initial_scale={LARGE}", f"backend={backend}", "tracking=none"]
    result = pipeline(tmp_path, "dataset=digits", "training=quick", "training.steps=10", *words)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(
        "error: all 10 steps were skipped, so nothing was trained: gradients overflowed float16 at every loss scale "
        "from 1.09951e+12 down (each overflow halves it); train longer, start lower (precision.initial_scale; "
    )


@pytest.mark.wide
def test_float16_without_scaling_says_so(tmp_path: Path) -> None:
    words = ["training.epochs=1", "backend=torch", "tracking=none"]
    result = pipeline(tmp_path, *DIGITS[:2], *words, "precision=fp16", "optimizer=sgd")
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stderr.splitlines() if "loss scaling" in line] == [f"precision=fp16: {UNSCALED}"]
    assert result.stderr.index(UNSCALED) < result.stderr.index("epoch 1/1")
    (run,) = (tmp_path / "runs").iterdir()
    precision = json.loads((run / "receipt.json").read_text())["precision"]
    assert precision["loss_scaling"] == UNSCALED
    assert "loss_scale" not in precision
    # what follows trains nothing, so there is nothing to scale
    again = pipeline(tmp_path, "stage=evaluate", f"run={run.name}", "tracking=none")
    assert again.returncode == 0, again.stderr
    assert "loss scaling" not in again.stderr


@pytest.mark.wide
@pytest.mark.parametrize(
    ("by", "optimizer", "said"),
    [
        ("precision=fp16", "adam", True),
        ("precision=fp16", "sgd", False),
        ("model.layer_dtypes=[float16,float32]", "adam", True),
        ("model.layer_dtypes=[float16,float32]", "adam optimizer.epsilon=1e-4", True),
        ("precision=fp16", "adagrad", False),
        ("precision=fp16", "adagrad optimizer.initial_accumulator=0", True),
    ],
)
def test_an_optimizer_whose_squares_vanish_in_float16_is_named(
    tmp_path: Path, by: str, optimizer: str, said: bool
) -> None:
    """With Adam a training ended at a loss of 1,300, and the note spoke of gradients alone; of a layer of float16
    nothing was said."""
    words = (*DIGITS[:2], "model=mlp", "training.steps=5", by, *f"optimizer={optimizer}".split())
    notes = json.loads((done(tmp_path, *words) / "result.json").read_text())["notes"]
    assert any(SQUARES_VANISH in note for note in notes) is said
    assert (f"{by}: optimizer={optimizer.split()[0]} {SQUARES_VANISH}" in notes) is said


def test_float32_says_nothing(tmp_path: Path) -> None:
    run = done(tmp_path, *DIGITS, "tracking=none")
    precision = json.loads((run / "receipt.json").read_text())["precision"]
    assert not {"loss_scale", "loss_scaling"} & precision.keys()
