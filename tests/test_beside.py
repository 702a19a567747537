"""What is measured and drawn beside a training: where that fails, the training's result is kept."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command import status, write_files
from test_language_models import TINY
from test_seq2seq import WORDS

from pipeline.command_line import composed
from pipeline.datasets.recall import Recall
from pipeline.errors import Stopped, UserError
from pipeline.models.gpt import Gpt
from pipeline.models.gru import Gru
from pipeline.runs.beside import beside
from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import run_folders
from pipeline.runs.result import Result, metrics_of
from pipeline.stages import course
from pipeline.stages.transformer_extras import baselines, draw_attention, utilization


def no_space() -> Result:
    raise OSError(errno.ENOSPC, "No space left on device", "attention.png")


def no_memory() -> Result:
    raise MemoryError


def no_text() -> Result:
    raise UserError("dataset.path=x.txt: no such file")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (no_space, "xz: not measured: [Errno 28] No space left on device: 'attention.png'"),
        (no_memory, "xz: not measured: MemoryError"),
        (no_text, "xz: not measured: dataset.path=x.txt: no such file"),
    ],
)
def test_what_the_machine_refuses_is_a_note(work: Any, said: str) -> None:
    found = beside("xz: not measured", work)
    assert (found.notes, found.failed, found.metrics) == ((said,), None, ())


def test_a_fault_of_ours_is_no_note() -> None:
    found = beside("xz: not measured", lambda: Result((1 / 0,)))  # type: ignore[arg-type]
    assert found.notes == ()
    assert found.failed is not None
    assert found.failed.startswith("xz: not measured: ZeroDivisionError: ")
    assert Path(__file__).name in found.failed


def test_what_another_model_or_dataset_has_not_is_said() -> None:
    """A run of a module of the user's had neither the row nor the figure, and no word of it."""
    asked: Any = SimpleNamespace(model=Gru(), data_source=Recall(), dataset=Recall())
    alone = "model=gru: for model=gpt alone"
    assert utilization(asked, *[cast(Any, None)] * 3).notes == (f"utilization: not measured with {alone}",)
    assert draw_attention(asked, cast(Any, None)).notes == (f"attention: not drawn with {alone}",)
    asked.model = Gpt()
    ours = "dataset=recall: for the texts of this package and dataset=text alone"
    assert draw_attention(asked, cast(Any, None)).notes == (f"attention: not drawn with {ours}",)
    assert baselines(asked, cast(Any, None)).notes == (f"baselines: not measured with {ours}",)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Stopped("SIGTERM", 143), SystemExit(1)])
def test_who_stops_the_run_stops_it(stop: BaseException) -> None:
    def stopped() -> Result:
        raise stop

    with pytest.raises(type(stop)):
        beside("xz: not measured", stopped)


def test_a_text_that_changes_meanwhile_is_not_measured_and_the_result_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's file is written anew between the training and what is measured beside it."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"mine.txt": "A whale is no fish. " * 300})
    train = course.train

    def train_then_write(*given: Any, **more: Any) -> Result:
        result = train(*given, **more)
        (tmp_path / "mine.txt").write_text("A whale was no fish. " * 300)
        return result

    monkeypatch.setattr(course, "train", train_then_write)
    monkeypatch.setattr("sys.argv", ["pipeline"])  # which the command changes
    assert composed(["stage=transformer", "dataset=text", "dataset.path=mine.txt", "device=cpu", *TINY]) == 0
    (run,) = run_folders(tmp_path / "runs")
    assert status(run).state == "FINISHED"
    changed = "the text has changed since the training began"
    notes = read_json(run / "result.json")["notes"]
    assert f"baselines: not measured: {changed}" in notes
    assert f"attention: not drawn: {changed}" in notes
    found = metrics_of(run)
    assert found["test/bits_per_byte"].value > 0
    assert not [name for name in found if name.startswith("baseline/")]


def test_figures_that_cannot_be_drawn_cost_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stage=seq2seq: neither the curves nor the attention."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pipeline"])

    def refused(*given: Any, **more: Any) -> Result:  # noqa: ARG001
        return no_space()

    for name in ("figures.training_curves", "attention.figure"):
        monkeypatch.setattr(f"pipeline.report.{name}", refused)
    assert composed([*WORDS, "device=cpu"]) == 0
    (run,) = run_folders(tmp_path / "runs")
    assert status(run).state == "FINISHED"
    notes = read_json(run / "result.json")["notes"]
    for what in ("training curves", "attention"):
        assert f"{what}: not drawn: [Errno 28] No space left on device: 'attention.png'" in notes
    assert "test/exact_match" in metrics_of(run)


@pytest.mark.wide
def test_pages_that_cannot_be_written_cost_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stage=amp: after all trainings an error in a text page left no result, and no figure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pipeline"])

    def fault(*_: Any) -> None:
        raise TypeError("no page")

    monkeypatch.setattr("pipeline.stages.amp.tables.write_csv", fault)
    words = ("stage=amp", "stage.precisions=[fp32,mixed]", "stage.repeats=1", "dataset=digits", "model=mlp")
    assert composed([*words, "model.units=[16]", "training.epochs=1", "tracking=none", "device=cpu"]) == 1
    study = next(run for run in run_folders(tmp_path / "runs") if (run / "artifacts/summary.md").exists())
    assert str(read_json(study / "result.json")["failed"]).startswith("pages: not written: TypeError: no page (")
    assert "mixed/speedup" in metrics_of(study)
    assert (study / "artifacts/figures/memory.png").exists()
