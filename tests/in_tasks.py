"""Trains every task of own_tasks.py in one framework, in its own process, and brings back the loss of each step.

python tests/in_tasks.py <backend> <folder>      what test_tasks.py starts, once for each backend
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from pipeline.command_line import composed
from pipeline.runs import weights
from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import run_folders
from pipeline.runs.records import read_metrics
from pipeline.runs.result import metrics_of
from pipeline.runs.result import values as values_of

STEPS = 20
SETTINGS = (
    *("precision=fp64", "training.batch_size=7", "training.steps=24", "training.accumulate=3"),
    *("training.validate_every=5", "training.clip_value=0.05", "training.clip_norm=0.1"),
    *("training.ema=0.9", "training.weights=best", "training.patience=99", "loss.label_smoothing=0.1"),
    *("schedule=cosine", "schedule.warm_up=3", "optimizer=adamw", "optimizer.decay=matrices"),
    "optimizer.weight_decay=0.1",
)
TOKENS = ("dataset=counting", "model=tiny", "loss.class_weights=[1,2,0.3,1,1,0,1,1,1,0.7,1]")
IMAGES = ("dataset=digits", "model=cnn", "model.filters=[4]", "loss.class_weights=[1,2,0.3,1,1,0,1,1,1,0.7]")
AUGMENTED = ("augmentation=images", "augmentation.crop=0.7", "augmentation.flip=true", "augmentation.cutout=3")
TRAININGS = {
    "language_modelling": ("dataset=counting", "model=tiny", "training.metrics=[bits_per_token,accuracy]"),
    "tied": ("dataset=counting", "model=tiny", "model.tied=true"),
    "streamed": ("dataset=counting", "model=tiny", "loader=threads"),
    "regression": (
        *("dataset=plane", "model=dense", "loss=squared"),
        "training.metrics=[root_mean_squared_error,own_tasks.Within,{_target_: own_tasks.Within, distance: 1000.0}]",
    ),
    "narrow": ("dataset=plane", "model=dense", "loss=squared", "precision=bf16"),
    "weighted": ("dataset=plane", "dataset.normalise=true", "model=subclassed", "loss=weighted", "precision=fp64"),
    "sequence_to_sequence": ("dataset=reversed", "model=mixing"),
    "stage": ("dataset=counting", "model=tiny", "stage=noted"),
    "everything": (*SETTINGS, *TOKENS),
    "everything_augmented": (*SETTINGS, *IMAGES, *AUGMENTED, "dataset.normalise=true"),  # streamed too
    "momentum": (
        *("dataset=counting", "model=tiny", "precision=fp64", "optimizer=momentum", "optimizer.nesterov=true"),
        *("optimizer.learning_rate=0.1", "schedule=cosine", "schedule.warm_up=3"),
    ),
    "scaled": (
        *("dataset=counting", "model=tiny", "precision=mixed_fp16", "training.accumulate=2", "training.clip_norm=0.1"),
        "precision.initial_scale=1e9",  # too large: the first steps are skipped
    ),
}
USUAL = ("stage=train", "training.epochs=2", "training.batch_size=16", "training.log_every_n_steps=1", "tracking=none")


def main(backend: str, folder: Path) -> None:
    """Write facts.json: for each training its losses, metrics, task and notes, and its weights' names and norms."""
    found = {}
    for name, words in TRAININGS.items():
        usual = [word for word in USUAL if not any(word.split("=")[0] == own.split("=")[0] for own in words)]
        where = f"hydra.searchpath=[file://{folder / 'conf'}]"
        status = composed([where, f"backend={backend}", f"output_dir={folder / name}", *usual, *words])
        assert status == 0, name
        (run,) = run_folders(folder / name)
        found[name] = facts(run)
    (folder / "facts.json").write_text(json.dumps(found))


def facts(run: Path) -> dict[str, object]:
    """Of a finished run."""
    kept = weights.load(run / "artifacts" / "model" / "weights.npz")
    losses = [record.metrics["train/loss"] for record in read_metrics(run) if "train/loss" in record.metrics]
    records = [record.metrics for record in read_metrics(run)]
    return {
        "losses": losses[:STEPS],
        "rates": [record["train/learning_rate"] for record in records if "train/learning_rate" in record],
        "norms": [record["train/gradient_norm"] for record in records if "train/gradient_norm" in record],
        "validation": [record["validation/loss"] for record in records if "validation/loss" in record],
        "augmentation": read_json(run / "receipt.json")["augmentation"],
        "normalisation": read_json(run / "receipt.json").get("normalisation"),
        "kept": read_json(run / "receipt.json")["kept_weights"],
        "metrics": values_of(metrics_of(run).values()),
        "declared": read_json(run / "result.json")["declared"],
        "task": read_json(run / "receipt.json")["task"],
        "observed": read_json(run / "receipt.json")["precision"]["observed"]["matrix_products"],
        "notes": read_json(run / "result.json")["notes"],
        "weights": {name: float(np.linalg.norm(array)) for name, array in kept.items()},
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
