"""Contamination by the runs that a training starts from, or that its byte pairs come from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command import done, refused
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets import text_overlap
from pipeline.datasets.duplicates import hashes, in_one_dtype, overlap
from pipeline.datasets.text import Text
from pipeline.datasets.text_overlap import ONE_OF, OPTIMISTIC, WINDOW, Common, common, counted, sampled
from pipeline.runs.json_files import write_json
from pipeline.runs.result import Result, read_result
from pipeline.stages.contamination import UNKNOWN, _contamination, learned_by, lineage, noted

SMALL = (
    "stage=transformer",
    "dataset=text",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "dataset.context=16",
    "stage.baselines=false",
)
SHORT = ("training.steps=4", "schedule.warm_up=1", "stage.attention=false", "tracking=none")


def letters(count: int, seed: int = 0) -> bytes:
    return bytes(np.random.default_rng(seed).integers(97, 105, count, dtype=np.uint8))


@given(st.binary(max_size=300), st.binary(max_size=3000), st.binary(max_size=300))
def test_a_text_has_the_same_windows_wherever_it_stands(before: bytes, text: bytes, after: bytes) -> None:
    here, there = (counted(each, ONE_OF)[0].tolist() for each in (text, before + text + after))
    assert set(here) <= set(there)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_pieces_lose_no_window(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    text = letters(5000)
    windows, counts = counted(text, ONE_OF)
    assert 40 < counts.sum() < 130  # about one in 64
    monkeypatch.setattr(text_overlap, "PIECE", piece)
    for found, whole in zip(counted(text, ONE_OF), (windows, counts), strict=True):
        assert np.array_equal(found, whole)


def test_the_share_that_two_texts_have_in_common() -> None:
    text, other = letters(200_000), letters(200_000, 1)
    most = memoryview(text[50_000:] + other[:50_000])
    assert [one.share for one in common(text, [text, other, most])] == pytest.approx([1, 0, 0.75], abs=0.05)
    assert [one.share for one in common(text, [text[: WINDOW - 1], b"", text])] == [0, 0, 1]
    assert [one.share for one in common(b"", [text])] == [0]


@pytest.mark.parametrize("size", [2_000, 20_000, 1_000_000])
def test_the_share_is_as_sure_of_a_small_text(size: int) -> None:
    """Of 200 bytes it was by three fingerprints: 0 in two of three cases, or 67 %, where 30 % were there."""
    for seed in range(5):
        trained, tested = letters(size - size // 10, seed), letters(size // 10, 100 + seed)
        part = 3 * len(tested) // 10
        (found,) = common(trained, [trained[50 : 50 + part] + tested[part:]])
        windows = len(tested) - WINDOW + 1
        assert found.share == pytest.approx((part - WINDOW + 1) / windows, abs=0.03)
        assert str(found) == f"about {found.share:.0%}"


def test_the_share_of_a_text_whose_few_lines_are_much_of_it_is_exact() -> None:
    """By one window in 16 of 1 MB it was 16 % to 44 % where one line is three tenths of the text, and is there."""
    line = letters(400, 7)
    for seed in range(3):
        lines = [letters(1000, 1000 + 100 * seed + number) for number in range(80)]
        tested = b"".join(one + line for one in lines)
        (found,) = common(letters(900_000, seed) + b"-" + line, [tested])
        windows = len(tested) - WINDOW + 1
        assert found.whole and found.share == 80 * (len(line) - WINDOW + 1) / windows


def test_few_of_the_windows_of_large_texts_are_looked_at() -> None:
    assert [sampled(size) for size in (0, 1_000, 8_000_000, 8_400_000)] == [1, 1, 1, 2]
    assert sampled(50_000_000) == 8 and sampled(10**9) == 64  # the hashes of all windows of a GB are 8 GB


@pytest.mark.parametrize("line", [b"x", b"ab cde\n", b"0123456789,abcdefghij\n" * 3])
def test_of_a_text_that_repeats_itself_enough_is_looked_at(line: bytes) -> None:
    """None of its few different windows was among one in 32: 0 % was found where all of it was there."""
    text = line * (2_000_000 // len(line))
    (found,) = common(text[:1_800_000], [text[1_800_000:]])
    assert found.share == 1 and found.windows >= 1000
    (other,) = common(bytes(reversed(text[:1_800_000])) + b"-", [text[1_800_000:] + line.upper() * 1000])
    assert other.share == 0 or len(set(line)) < 3


def test_the_windows_of_a_text_that_repeats_itself_take_no_memory_each() -> None:
    windows, counts = counted(b"ab cde\n" * 1_000_000, 1)
    assert len(windows) == 7 and counts.sum() == 7_000_000 - WINDOW + 1
    assert str(Common(0.3, 15, whole=False)) == "about 30% (by 15 samples alone)"
    assert str(Common(0.3, 15, whole=True)) == str(Common(0.3, 1500, whole=False)) == "about 30%"


def test_what_a_text_holds_out_of_itself_is_looked_for_in_what_it_trains_on(tmp_path: Path) -> None:
    """A text that is there twice: the one copy is trained on, and the other one held out."""
    text = letters(20_000)
    (tmp_path / "twice.txt").write_bytes(text + text)
    notes = Text(path=str(tmp_path / "twice.txt"), context=8, test=0.3).load(tmp_path, 0).notes
    assert notes == tuple(
        f"about 100% of the {name} text is also in the training text (leakage): {optimistic}"
        for name, optimistic in (
            ("test", "the test result is optimistic"),
            ("validation", "validation is optimistic, and so is what is chosen by it"),
        )
    )
    (tmp_path / "once.txt").write_bytes(text)
    assert Text(path=str(tmp_path / "once.txt"), context=8, test=0.3).load(tmp_path, 0).notes == ()


def test_a_lineage_ends_also_in_a_circle(tmp_path: Path) -> None:
    """Weights and adapters of runs, an export, a file of nobody's."""
    starts: dict[str, dict[str, Any]] = {
        "a": {"start": str(tmp_path / "b/artifacts/model/weights.npz")},
        "b": {"start": None, "adapters": {"start": str(tmp_path / "c/artifacts/export/safetensors/model.safetensors")}},
        "c": {"start": str(tmp_path / "a/artifacts/model/weights.npz")},
    }
    for name, model in starts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({"model": model}))
        (tmp_path / name / "receipt.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("{}")  # of a folder that is not a run
    found, lost = lineage([str(tmp_path / "a/artifacts/model/weights.npz"), str(tmp_path / "elsewhere.npz")])
    assert [one.name for one in found] == ["a", "b", "c"]
    assert lost == [str(tmp_path / "elsewhere.npz")]
    shutil.rmtree(tmp_path / "b")  # a deleted run left the runs before it out, without a word
    found, lost = lineage([str(tmp_path / "a/artifacts/model/weights.npz")])
    assert ([one.name for one in found], lost) == (["a"], [starts["a"]["start"]])


def test_byte_pairs_are_those_of_the_run_that_learned_them(tmp_path: Path) -> None:
    """Not of a run that took them from it."""
    for name, tokens in {"a": "bpe", "b": str(tmp_path / "a/artifacts/model/card.json")}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({"dataset": {"tokens": tokens}}))
        (tmp_path / name / "receipt.json").write_text("{}")
    card = str(tmp_path / "b/artifacts/model/card.json")
    assert learned_by(card) == (tmp_path / "a", None)
    assert learned_by("bpe") == (None, None)
    assert learned_by(str(tmp_path / "copied/card.json")) == (None, str(tmp_path / "copied/card.json"))
    shutil.rmtree(tmp_path / "a")
    assert learned_by(card) == (None, str(tmp_path / "a/artifacts/model/card.json"))


def test_examples_in_another_dtype_are_the_same_ones() -> None:
    x = np.arange(12).reshape(4, 3)
    trained, tested = in_one_dtype([x.astype(np.uint8), x[2:].astype(np.float32)])
    assert overlap(hashes(tested), hashes(trained)) == 2


def test_a_run_whose_data_are_not_known(tmp_path: Path) -> None:
    """Of stage=lightning: its config has a dataset, which it did not read."""
    (tmp_path / "receipt.json").write_text('{"data": "the user\'s own; pipeline has not read them"}')
    nothing: Any = None
    said = [*_contamination(tmp_path, nothing, nothing, {})]
    assert said == [f"data that its receipt does not identify: {UNKNOWN}"]


def notes(folder: Path, *words: str) -> tuple[str, list[str]]:
    """The run's name, and what was said of its test."""
    run = done(folder, *words, *SHORT)
    result = read_result(run)
    assert result is not None
    return run.name, [note for note in result.notes if " was trained on " in note or " were learned from " in note]


@pytest.mark.wide
def test_text_that_was_trained_on_by_a_run_before_the_last(tmp_path: Path) -> None:
    """Another division was refused only of the very same data, and of the last run alone."""
    text = letters(40_000)
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "longer.txt").write_bytes(text + letters(4000, 1))
    first, said = notes(tmp_path, *SMALL, "dataset.path=a.txt")
    assert said == []
    words = (f"dataset.tokens={first}", f"model.start={first}")
    second, said = notes(tmp_path, *SMALL, "dataset.path=longer.txt", *words)
    assert said == []  # what it is tested on comes after the training text of the first
    words = (f"dataset.tokens={second}", f"model.start={second}")
    _, said = notes(tmp_path, *SMALL, "dataset.path=a.txt", *words, "dataset.test=0.4")
    said, of_validation = ([one for one in said if f" this {name} text " in one] for name in ("test", "validation"))
    assert all(" about 100% " in one for one in of_validation)
    assert [[one.split()[1] for one in each] for each in (said, of_validation)] == [[second, first]] * 2
    of_text = "% of this test text (contamination): the test result is optimistic"
    shares = [int(one.partition(of_text)[0].split()[-1]) for one in said]
    assert shares == [pytest.approx(13_400 / 160, abs=8), pytest.approx(10_000 / 160, abs=8)]
    (tmp_path / "longer.txt").write_bytes(letters(40_000, 2))
    _, said = notes(tmp_path, *SMALL, "dataset.path=longer.txt", *words)
    assert said[:1] == [
        f"model.start: {second} was trained on data that cannot be loaded as they were (they have changed since): "
        "contamination of what is held out here cannot be ruled out"
    ]
    export = done(tmp_path, "stage=export", f"run={first}", "tracking=none")
    start = f"model.start={export}/artifacts/export/safetensors/model.safetensors"
    (tmp_path / "other.txt").write_bytes(letters(40_000).translate(bytes((*range(105), *range(106, 256), 105))) + b"z")
    assert "it was trained with another vocabulary (" in refused(
        tmp_path, *SMALL, *SHORT, "dataset.path=other.txt", start
    )
    _, said = notes(tmp_path, *SMALL, "dataset.path=a.txt", start, "dataset.test=0.5")
    assert [one.split()[1] for one in said] == [export.name] * 2  # of the test and of the validation
    shutil.copy(tmp_path / "runs" / first / "artifacts/model/weights.npz", tmp_path / "best.npz")
    _, (one,) = notes(tmp_path, *SMALL, "dataset.path=a.txt", "model.start=best.npz")
    assert one == (
        f"model.start: {tmp_path}/best.npz is in no run's folder; what it was trained on is not known: "
        "contamination of what is held out here cannot be ruled out"
    )


@pytest.mark.wide
def test_byte_pairs_that_were_learned_from_what_is_tested(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(letters(40_000))
    words = (*SMALL, "dataset.path=a.txt", "dataset.validation=0.02")
    run, _ = notes(tmp_path, *words, "dataset.tokens=bpe", "dataset.vocabulary=300", "dataset.test=0.02")
    _, said = notes(tmp_path, *words, f"dataset.tokens={run}", "dataset.test=0.02")
    assert said == []
    _, said = notes(tmp_path, *words, f"dataset.tokens={run}", "dataset.test=0.5")
    (test, validation) = said
    assert test.startswith(f"dataset.tokens: those of {run} were learned from about 9")
    assert validation == (
        f"dataset.tokens: those of {run} were learned from about 100% of this validation text (contamination): "
        "validation is optimistic, and so is what is chosen by it"
    )


@pytest.mark.wide
def test_linear_positions_of_another_context(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(letters(20_000))
    small = [word for word in SMALL if not word.startswith("dataset.context")]
    words = (*small, *SHORT, "dataset.path=a.txt", "model.positions=linear")
    first = done(tmp_path, *words, "dataset.context=16")
    result = read_result(done(tmp_path, *words, f"model.start={first.name}", "dataset.context=32"))
    assert result is not None
    said = "model.start: that model was trained with dataset.context=16, this run has 32: with model.positions=linear, "
    assert any(note.startswith(said) for note in result.notes)


@pytest.mark.wide
def test_pairs_that_were_trained_on(tmp_path: Path) -> None:
    words = ("stage=seq2seq", "dataset=reversals", "dataset.validation=50", "model.width=16", "model.heads=2")
    run, _ = notes(tmp_path, *words, "dataset.train=400", "dataset.test=50")
    second, said = notes(tmp_path, *words, "dataset.train=400", "dataset.test=200", f"model.start={run}")
    test, validation = said
    again = read_result(done(tmp_path, "stage=evaluate", f"run={second}", "tracking=none"))
    assert again is not None and test in again.notes and validation not in again.notes
    assert " of the 50 validation examples (contamination): " in validation
    count = int(
        test.partition(f"model.start: {run} was trained on ")[2].partition(
            " of the 200 test examples (contamination): the test result is optimistic"
        )[0]
    )
    assert 100 < count <= 150


def test_what_runs_of_older_versions_noted_of_their_test_is_said_again(tmp_path: Path) -> None:
    then = "model.start: one was trained on data that cannot be loaded: contamination of this test cannot be ruled out"
    write_json(tmp_path / "result.json", Result((), notes=(then, "another note")).plain())
    assert noted(tmp_path) == (then,)


def test_a_run_of_a_version_that_did_not_look_for_contamination(tmp_path: Path) -> None:
    (tmp_path / "artifacts" / "model").mkdir(parents=True)
    write_json(tmp_path / "result.json", Result(()).plain())
    for config, kind, keys in (
        ("model: {start: first/weights.npz}", "characters", ("model.start",)),
        ("dataset: {tokens: first/card.json}", "bpe", ("dataset.tokens",)),
        ("dataset: {tokens: first/card.json}", "characters", ()),
        ("{model: {start: null}, dataset: {tokens: bpe}}", "bpe", ()),
    ):
        write_json(tmp_path / "receipt.json", {})
        write_json(tmp_path / "artifacts" / "model" / "card.json", {"tokens": {"kind": kind}})
        (tmp_path / "config.yaml").write_text(config)
        said = noted(tmp_path)
        assert len(said) == len(keys) and all(key in note for key, note in zip(keys, said, strict=True))
        assert all(note.endswith(UNKNOWN) for note in said)
        write_json(tmp_path / "receipt.json", {"held_out": {}})
        assert noted(tmp_path) == ()


def test_what_was_noted_of_a_test_is_said_also_where_the_receipt_is_damaged(tmp_path: Path) -> None:
    """What is known to be contaminated was called something that cannot be ruled out."""
    then = f"model.start: one was trained on 9 of the 10 test examples (contamination): {OPTIMISTIC['test']}"
    write_json(tmp_path / "result.json", Result((), notes=(then,)).plain())
    (tmp_path / "receipt.json").write_text("{")
    (tmp_path / "config.yaml").write_text("model: {start: first/weights.npz}")
    assert noted(tmp_path) == (then,)
