"""stage.samples: text that the model writes while it is trained, which changes no bit of the training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import TORCH_THEN_WIDE, done, pipeline, refused, runs
from test_adapters import TINY, losses

from pipeline.runs.json_files import read_json
from pipeline.stages.training_samples import Sampler

SMALL = (*TINY, "model.dropout=0.2", "training.steps=20", "schedule.warm_up=1", "training.ema=0.5")
SAMPLED = ("stage.samples.prompt=[The,def]", "stage.samples.tokens=40")


@pytest.mark.wide
@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_samples_are_written_at_each_validation_and_change_no_bit(tmp_path: Path, backend: str) -> None:
    words = (*SMALL, f"backend={backend}")
    plain = done(tmp_path, *words)
    said = pipeline(tmp_path, *words, *SAMPLED)
    assert said.returncode == 0, said.stderr
    run = runs(tmp_path)[-1]
    assert not (plain / "artifacts" / "samples").exists()
    receipts: list[Any] = [read_json(one / "receipt.json") for one in (plain, run)]
    for key in ("weights_sha256", "config_sha256"):
        assert receipts[0][key] == receipts[1][key]
    assert losses(plain) == losses(run)
    assert 0 < receipts[1]["samples_s"] < receipts[1]["wall_time_s"]
    paths = sorted((run / "artifacts" / "samples").iterdir())
    assert [path.name for path in paths] == ["step-0000010.txt", "step-0000020.txt"]
    texts = [path.read_text() for path in paths]
    assert all(text.startswith("The") and "\n\ndef" in text and len(text) >= 40 + 3 + 40 + 3 for text in texts)
    assert texts[0] != texts[1]
    assert "sample at step 10: The" in said.stdout + said.stderr
    # The last sample is what stage=generate writes with the saved weights.
    same = ("stage.prompt=[The,def]", "stage.tokens=40", "tracking=none")
    made = done(tmp_path, "stage=generate", f"run={run.name}", *same)
    both = [(made / "artifacts" / "generated" / f"{number}.txt").read_text() for number in (1, 2)]
    assert texts[1] == "\n\n".join(both) + "\n"


@pytest.mark.wide
def test_prompts_that_the_model_could_not_go_on_with_are_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, *SMALL, "stage.samples.prompt=\u4e16")
    assert said.startswith("stage.samples.prompt='\u4e16': the character")
    said = refused(tmp_path, *SMALL, f"stage.samples.prompt={'a' * 33}")
    assert "has 33 tokens, and the model was trained on sequences of 32; give a shorter one" in said
    said = refused(tmp_path, *SMALL, *SAMPLED, "stage.samples.temperature=0", "stage.samples.seed=4")
    assert said == "stage.samples.seed with stage.samples.temperature=0: nothing is drawn at random"
    said = refused(tmp_path, *SMALL, "stage.samples.tokens=5")
    assert said == "stage.samples.tokens: without stage.samples.prompt no samples are written; give a text there"
    said = refused(tmp_path, *SMALL, "stage.samples.tokens=0")
    assert said.startswith("stage.samples.tokens=0: should be greater than 0")


def test_what_fails_in_a_sample_ends_the_samples_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    sampler = object.__new__(Sampler)
    sampler.over, sampler.run = False, SimpleNamespace(note=notes.append)  # type: ignore[assignment]

    def full(*_: object) -> None:
        notes.append("tried")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Sampler, "_write", full)
    for step in (10, 20):
        sampler(step, {})
    assert notes == [
        "tried",
        "stage.samples: [Errno 28] No space left on device; from step 10 on none is written",
    ]
