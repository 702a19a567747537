"""TensorFlow parses no function of ours before the first step; what the user writes may branch over tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import DIGITS, pipeline, runs, write_files

from pipeline.runs.result import metrics_of

PARSED = "__autograph_generated_file"
LOSS = """
import numpy as np
from pipeline.contracts import Loss
from pipeline.spec import spec

@spec
class Branching(Loss):
    def keras(self):
        import keras, tensorflow as tf

        def loss(outputs, y):
            found = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True))
            if found > 1.0:
                found = 1.0 + tf.math.log(found)
            return found

        return loss

    def numpy(self, outputs, y):
        from scipy.special import log_softmax

        found = -log_softmax(outputs.astype(float), 1)[np.arange(len(y)), y].mean()
        return float(1 + np.log(found) if found > 1 else found)
"""


@pytest.mark.wide
@pytest.mark.parametrize(
    "words",
    [
        DIGITS,
        (*DIGITS, "loader=tfdata", "augmentation=images"),
        (*DIGITS, "training.accumulate=2", "training.clip_norm=1", "precision=mixed_fp16"),
        (*DIGITS, "model=vit", "optimizer=muon", "training.ema=0.9"),
    ],
)
def test_nothing_of_ours_is_parsed(words: tuple[str, ...], tmp_path: Path) -> None:
    """It was, by AutoGraph: 16 functions in each process, and a second or two before the first step."""
    (tmp_path / "temporary").mkdir()
    # Python's compiled copies stay behind; without them this would see nothing where a process removes its files.
    changes = {"TMPDIR": str(tmp_path / "temporary"), "PYTHONDONTWRITEBYTECODE": ""}
    result = pipeline(tmp_path, "backend=tensorflow", *words, **changes)
    assert result.returncode == 0, result.stderr
    assert not [path.name for path in (tmp_path / "temporary").rglob(f"{PARSED}*")]


@pytest.mark.wide
def test_a_loss_of_the_users_branches_over_tensors(tmp_path: Path) -> None:
    write_files(
        tmp_path, {"branching.py": LOSS, "conf/loss/branching.yaml": "# branches\n_target_: branching.Branching\n"}
    )
    words = (f"--config-dir={tmp_path / 'conf'}", "loss=branching", "backend=tensorflow", *DIGITS)
    result = pipeline(tmp_path, *words, PIPELINE_MODULES="branching", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    (run,) = runs(tmp_path)
    assert 0 < metrics_of(run)["test/loss"].value < 2


MODEL = """
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Mapped(Model):
    def keras(self, shapes):
        import keras, tensorflow as tf

        def half(row):
            if tf.reduce_sum(row) > 3:
                return row / 2
            return row

        return keras.Sequential([
            keras.Input(shapes.x), keras.layers.Flatten(),
            keras.layers.Lambda(lambda x: tf.map_fn(half, x)), keras.layers.Dense(shapes.outputs[0]),
        ])
"""


@pytest.mark.wide
def test_what_a_layer_of_the_users_maps_branches_over_tensors(tmp_path: Path) -> None:
    """Keras leaves out a layer's call, and not what tf.map_fn is given in it; XLA has no such loop."""
    write_files(tmp_path, {"mapped.py": MODEL, "conf/model/mapped.yaml": "# maps\n_target_: mapped.Mapped\n"})
    words = (f"--config-dir={tmp_path / 'conf'}", "model=mapped", "backend=tensorflow", "backend.xla=false", *DIGITS)
    result = pipeline(tmp_path, *words, PIPELINE_MODULES="mapped", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
