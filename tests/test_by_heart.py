"""A GPT on one batch through the engine: it begins with the loss of a guess, and learns the batch by heart."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from command import TORCH_THEN_WIDE, done

from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics

CONTEXT, SEQUENCES, STEPS = 16, 4, 150
WORDS = (
    *("stage=transformer", "dataset=text", "dataset.path=mine.txt", f"dataset.context={CONTEXT}"),
    *("dataset.validation=0", "dataset.test=0.4", "model.layers=2", "model.heads=2", "model.width=32"),
    *(f"training.batch_size={SEQUENCES}", f"training.steps={STEPS}", "training.validate_every=null"),
    *("training.log_every_n_steps=1", "optimizer.learning_rate=0.01", "schedule.warm_up=5"),
    *("stage.baselines=false", "stage.attention=false", "tracking=none"),
)


def text() -> str:
    """Random characters; each sequence of the training text begins with one of its own, so that the rest follows."""
    trained = CONTEXT * SEQUENCES + 1
    drawn = np.random.default_rng(0).choice(list("abcdefgh"), round(trained / 0.6))
    drawn[:trained:CONTEXT] = list("ABCDE")
    return "".join(drawn)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_one_batch_is_learned_by_heart_from_the_loss_of_a_guess(tmp_path: Path, backend: str) -> None:
    (tmp_path / "mine.txt").write_text(text())
    run = done(tmp_path, *WORDS, f"backend={backend}")
    losses = [record.metrics["train/loss"] for record in read_metrics(run) if "train/loss" in record.metrics]
    assert len(losses) == STEPS
    (_, vocabulary) = read_json(run / "artifacts" / "model" / "card.json")["outputs"]
    assert losses[0] == pytest.approx(math.log(vocabulary), rel=0.02)
    assert losses[-1] < 0.01
