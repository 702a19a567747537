"""stage=seeds, and how several seeds are shown beside each other."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import done, pipeline, refused, runs, status
from hypothesis import given
from hypothesis import strategies as st
from in_backend import experiment
from rich.console import Console

from pipeline.errors import UserError
from pipeline.experiment.settings import Sweep
from pipeline.experiment.training import Training
from pipeline.report import comparison
from pipeline.report.canvas import canvas
from pipeline.report.comparison import LEAST_SPAN, Side, interval, span
from pipeline.report.intervals import NOT_FINITE, deviation, half_width, lie_apart, of_share, why_none
from pipeline.report.table import show_result
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics
from pipeline.runs.result import Metric, by_name, rate, read_result
from pipeline.stages.cells import of_data, of_tests
from pipeline.stages.repeated import (
    SEEDS,
    Trained,
    beginnings,
    lacking,
    means,
    metrics,
    of_lengths,
    timings,
    write_csv,
)
from pipeline.stages.seeds import by_one_test
from pipeline.study.outcome import Outcome
from pipeline.study.report import differences, section, table, unlike
from pipeline.sweep.history import History
from pipeline.sweep.plan import Cell, decide

SHORT = ("dataset=digits", "model=linear", "training.epochs=2", "tracking=none")
accuracy = st.floats(0, 1)


@pytest.mark.wide
def test_every_seed_is_a_separate_run_and_the_result_is_their_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = pipeline(tmp_path, "stage=seeds", "seed=5", *SHORT, "training.metrics=[brier]")
    assert result.returncode == 0, result.stderr
    (whole,) = tmp_path.glob("runs/*-seeds-linear-digits-torch-fp32-*")
    runs = [next(tmp_path.glob(f"runs/*-seed-{seed}-*")) for seed in (5, 6, 7)]
    assert all(status(run).state == "FINISHED" for run in (whole, *runs))
    found, each = (
        read_json(whole / "result.json")["scalars"],
        [read_json(run / "result.json")["scalars"] for run in runs],
    )
    for name in ("test/loss", "test/accuracy", "test/brier"):
        values = [one[name] for one in each]
        half = half_width(values)
        assert half is not None
        assert found[name] == statistics.fmean(values)
        assert (found[f"{name}_low"], found[f"{name}_high"]) == (found[name] - half, found[name] + half)
        assert [found[f"seed_{seed}/{name.replace('/', '_')}"] for seed in (5, 6, 7)] == values
    with (whole / "artifacts" / "seeds.csv").open() as file:
        assert [row["seed"] for row in csv.DictReader(file)] == ["5", "6", "7"]
    whole_receipt, first = read_json(whole / "receipt.json"), read_json(runs[0] / "receipt.json")
    assert whole_receipt["data_sha256"] == first["data_sha256"]
    assert whole_receipt["precision"]["observed"] == first["precision"]["observed"]
    epochs = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert len(epochs) == 2
    assert "test accuracy" in result.stdout
    assert "(mean, 95 % interval, n=3; " in result.stdout
    assert "the interval is over seeds, on this machine, with these versions" in result.stderr
    assert (
        "the test examples, the same for all seeds, leave the means uncertain by up to test/accuracy +-"
        in result.stderr
    )
    monkeypatch.chdir(tmp_path)
    assert result.stdout == printed(whole)
    alone = done(tmp_path, "seed=6", *SHORT)
    assert read_json(alone / "receipt.json")["weights_sha256"] == read_json(runs[1] / "receipt.json")["weights_sha256"]


def printed(run: Path) -> str:
    """What a run prints at its end, from its result.json alone."""
    result, text = read_result(run), io.StringIO()
    assert result is not None
    show_result(Console(width=200, file=text), result, run)
    return text.getvalue()


def test_how_far_one_test_set_carries_the_means_is_a_note_of_those_that_have_an_interval() -> None:
    metrics = (Metric("test/loss", 1.0), Metric("test/accuracy", 0.5))
    results, speed = {one.name: one for one in metrics}, rate("images_per_s", 9.0, "images")
    trained = [
        Trained(str(seed), Path(), results, speed, {}, [], (), {"test/accuracy": half})
        for seed, half in enumerate((0.01, 0.02))
    ]
    assert by_one_test(trained) == [
        "the test examples, the same for all seeds, leave the means uncertain by up to test/accuracy +-0.0150 (95 %); "
        "that is not in the interval over seeds, and more seeds do not reduce it"
    ]
    assert by_one_test([*trained, replace(trained[0], by_examples={})]) == []  # a cell of an older version


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_the_mean_over_seeds_is_known_no_worse_by_the_examples_than_the_seeds_are(shared: float) -> None:
    """Models that fail on the same examples (`shared`: on how large a part of them) or on others."""
    generator, n, seeds, right = np.random.default_rng(0), 200, 4, 0.8
    covered = 0
    for _ in range(400):
        common = np.broadcast_to(generator.random(n) < right, (seeds, n))
        correct = np.where(generator.random(n) < shared, common, generator.random((seeds, n)) < right)
        intervals = [of_share(int(one.sum()), n) for one in correct]
        half = statistics.fmean((one.high - one.low) / 2 for one in intervals if one)
        covered += abs(correct.mean() - right) <= half
    assert covered >= 0.92 * 400


@pytest.mark.parametrize(
    ("validate_every", "said"),
    [
        (None, "the seeds ended after 1, 2 epochs: the mean curves end at 1"),
        (50, "the seeds ended after 50, 100 steps: the mean curves end at 50"),
    ],
)
def test_where_seeds_end_is_counted_as_their_training_is(validate_every: int | None, said: str) -> None:
    """A training that is validated by steps counts no epochs."""
    records: list[tuple[int, dict[str, float]]] = [(50, {}), (100, {})]
    speed = rate("images_per_s", 9.0, "images")
    trained = [Trained(str(seed), Path(), {}, speed, {}, records[: seed + 1], ()) for seed in range(2)]
    training = Training(validate_every=validate_every)
    assert of_lengths(trained, training, SEEDS) == [said]
    assert of_lengths(trained[:1] * 2, training, SEEDS) == []


@pytest.mark.wide
def test_seeds_that_end_early_and_keep_their_best_weights_have_a_result(tmp_path: Path) -> None:
    """Their mean validation is that of the weights that were tested; the mean curves end where the first seed did."""
    words = ("stage=seeds", "dataset=digits", "model.units=[16]", "training.epochs=12", "training.patience=1")
    ended = pipeline(tmp_path, *words, "training.weights=best", "optimizer.learning_rate=0.05", "tracking=none")
    assert ended.returncode == 0, ended.stderr
    (run,) = tmp_path.glob("runs/*-seeds-mlp-*")
    folders = [next(tmp_path.glob(f"runs/*-seed-{seed}-*")) for seed in range(3)]
    each = [read_json(folder / "result.json") for folder in folders]
    *lengths, mean = [sum("epoch/number" in one.metrics for one in read_metrics(path)) for path in (*folders, run)]
    assert len(set(lengths)) > 1
    found = read_json(run / "result.json")
    validated = [one["last_epoch"]["validation/loss"] for one in each]
    assert found["last_epoch"]["validation/loss"] == pytest.approx(statistics.fmean(validated), rel=1e-12)
    assert mean == min(lengths)
    each_ended = ", ".join(map(str, lengths))
    assert f"the seeds ended after {each_ended} epochs: the mean curves end at {min(lengths)}" in found["notes"]
    f1 = [one["scalars"]["test/macro_f1"] for one in each]
    assert found["scalars"]["test/macro_f1"] == statistics.fmean(f1)  # whatever its task measures


def test_mistakes_are_named(tmp_path: Path) -> None:
    assert refused(tmp_path, "stage=seeds", "stage.repeats=0", *SHORT).startswith("stage.repeats=0: should be greater ")
    assert refused(tmp_path, "stage=seeds", "profiler=torch", *SHORT).startswith("profiler=torch with stage=seeds: ")


def trained_at(images_per_s: float) -> Metric:
    return rate("images_per_s", images_per_s, "images")


def test_the_time_is_that_of_all_seeds_and_the_memory_the_highest() -> None:
    runs = [
        Trained(
            *("0", Path(), {}, speed),
            {
                "training_s": seconds,
                "compile_s": 0.5 * seconds,
                "first_block_s": 10 + seconds,
                "peak_memory": {"process_bytes": peak},
                "training_rate": {"cold": peak == 9, "cores_of_others": share, "timed_s": 0.5 * seconds},
            },
            *([], ()),
        )
        for seconds, speed, peak, share in (
            (1.0, trained_at(10.0), 7, None),
            (2.0, trained_at(40.0), 9, 0.5),
            (4.0, trained_at(20.0), 8, 0.25),
        )
    ]
    rates = {"unit": "images/s", "median": 20.0, "min": 10.0, "max": 40.0, "n": 3}
    assert timings(runs) == {
        "training_s": 7.0,
        "compile_s": 3.5,
        "first_block_s": 12.0,
        "training_rate": {**rates, "timed_s": 0.5, "cold": True, "cores_of_others": 0.5},
        "peak_memory": {"process_bytes": 9},
    }


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_an_interval_needs_three_seeds(seeds: int) -> None:
    numbers = [{"test/loss": 1.0 + seed, "test/accuracy": 0.5 + 0.1 * seed} for seed in range(seeds)]
    results = [{name: Metric(name, value) for name, value in one.items()} for one in numbers]
    runs = [Trained(str(seed), Path(), one, trained_at(1.0), {}, [], ()) for seed, one in enumerate(results)]
    found = by_name(metrics(runs, SEEDS))
    assert ("test/accuracy_low" in found, "test/loss_high" in found) == (seeds == 3, seeds == 3)


def trained_to(tmp_path: Path, seed: int, results: dict[str, float], **receipt: Any) -> Trained:
    metrics = {name: Metric(name, value) for name, value in results.items()}
    about = {"task": {"score": "accuracy"}, "training_rate": {}, **receipt}
    return Trained(str(seed), tmp_path, metrics, trained_at(1.0), about, [], ())


def test_a_metric_with_the_name_of_an_end_keeps_it_over_seeds(tmp_path: Path) -> None:
    """The whole result was lost after all trainings: two metrics of one name."""
    each = [{"test/accuracy": 0.5 + seed / 10, "test/accuracy_low": seed / 4} for seed in range(3)]
    found = by_name(metrics([trained_to(tmp_path, seed, one) for seed, one in enumerate(each)], SEEDS))
    assert (found["test/accuracy_low"].value, found["test/accuracy_low"].role) == (0.25, "value")
    assert found["test/accuracy_high"].value > 0.6


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1693, 1920, 2205], "1,939 +-637 (mean, 95 % interval, n=3; 1,693 to 2,205)"),
        ([1000.1, 1000.2, 1000.6], "1,000.30 +-0.66 (mean, 95 % interval, n=3; 1,000.10 to 1,000.60)"),
        ([0.97, 0.96, 0.98], "0.9700 +-0.0248 (mean, 95 % interval, n=3; 0.9600 to 0.9800)"),
        ([-3000, 3000, 6], "2 +-7,452 (mean, 95 % interval, n=3; -3,000 to 3,000)"),
        ([998.5, 1001], "999.7500 (mean; n=2, too few runs for an interval)"),
    ],
)
def test_a_mean_and_its_interval_have_digits_alike(tmp_path: Path, values: list[float], said: str) -> None:
    each = [trained_to(tmp_path, seed, {"test/loss": value}) for seed, value in enumerate(values)]
    assert dict(means(each, SEEDS)) == {"test loss": said}


def test_a_result_that_some_seeds_lack_is_of_those_that_have_it(tmp_path: Path) -> None:
    """R² of targets that are all the same is none: the whole result was lost, by a KeyError after all trainings."""
    usual = {"test/loss": 1.0, "test/accuracy": 0.5}
    each = [usual, {**usual, "test/r2": 0.25}, {**usual, "test/r2": 0.75}]
    runs = [trained_to(tmp_path, seed, one) for seed, one in enumerate(each)]
    for order in (runs, runs[::-1]):
        found = by_name(metrics(order, SEEDS))
        assert found["test/r2"].value == 0.5
        assert ("seed_0/test_r2" in found, found["seed_1/test_r2"].value) == (False, 0.25)
        assert dict(means(order, SEEDS))["test r2"].startswith("0.5000 (mean; n=2, ")
        assert lacking(order, SEEDS) == ["test/r2: 2 of 3 seeds have one; the mean is of those"]
        write_csv(tmp_path / "seeds.csv", order, SEEDS)
        with (tmp_path / "seeds.csv").open() as file:
            assert [row["test_r2"] for row in csv.DictReader(file)] == [
                str(one.results["test/r2"].value) if "test/r2" in one.results else "" for one in order
            ]
    assert lacking(runs[1:], SEEDS) == []


def test_what_the_seeds_do_not_share_is_not_the_stages() -> None:
    """Its receipt named the first seed's test, by which others are held to be comparable."""
    same: dict[str, Any] = {"data_sha256": "a", "held_out": {"validation": "v", "test": "t"}}
    other: dict[str, Any] = {"data_sha256": "b", "held_out": {"validation": "w", "test": "u"}}
    one, two, three = same, same | {"data_sha256": "b"}, other
    assert of_data([one, one]) == same and of_tests([one, two]) == []
    assert of_data([one, two]) == same  # the first's hash tells whether the data have changed since
    assert of_data([one, three]) == {"data_sha256": "a", "held_out": {}}
    assert of_tests([one, three]) == ["the seeds were tested on different examples: the interval is of these, too"]


@given(st.lists(st.lists(accuracy, min_size=1, max_size=5), min_size=1, max_size=4))
def test_the_axis_of_accuracies_holds_every_seed_and_interval_and_magnifies_none(found: list[list[float]]) -> None:
    sides = [Side("one", [(1, 0.5, 0.5, 0.5)], accuracies, (1.0, 1.0, 1.0)) for accuracies in found]
    low, high = span(sides)
    assert all(low <= end <= high for side in sides for end in (*side.accuracies, *interval(side)))
    assert high - low >= LEAST_SPAN


def outcome(*accuracies: float) -> Outcome:
    """What a stage of so many seeds left."""
    each = {f"seed_{seed}/test_accuracy": value for seed, value in enumerate(accuracies)}
    receipt: dict[str, Any] = {"backend": "torch"}
    receipt |= {"device": {"effective": "cpu"}, "precision": {"effective": "fp32"}}
    receipt |= {"roles": dict.fromkeys(each, "seed"), "data_sha256": "d", "held_out": {"test": "t"}}
    return Outcome({"test/accuracy": statistics.fmean(accuracies), **each}, {"run_s": 1.0}, receipt, [], "")


def test_a_difference_is_of_the_same_seeds_and_shown_only_beyond_its_interval() -> None:
    """The seeds move both by 0.1, and the second is 0.01 above the first in every one: shown, though they overlap."""
    first, above = (0.70, 0.80, 0.90), (0.7101, 0.8100, 0.9099)
    result = differences({"a": outcome(*first), "b": outcome(*above), "c": outcome(0.8, 0.7, 0.9)})
    rows = [line.split(" | ") for line in result.splitlines()[2:]]
    assert [row[0].removeprefix("| ") for row in rows] == ["a - b", "a - c", "b - c"]
    assert rows[0][1:4] == ["-0.0100", "-0.0102 to -0.0098", "3"]
    assert [row[4].removesuffix(" |") for row in rows] == ["b is higher, here", "none shown", "none shown"]
    longer = differences({"a": outcome(*first, 0.1), "b": outcome(*above)})  # by a seed that the other has not
    assert longer.splitlines()[2].split(" | ")[1:4] == rows[0][1:4]
    text = section({"a": outcome(*first), "b": outcome(*above)})
    assert "It does not show what another machine, other versions or a longer training would give." in text
    assert differences({"a": outcome(0.7, 0.8), "b": outcome(0.7, 0.8)}) == ""  # two seeds have no interval


def test_stages_that_hold_out_other_examples_are_not_compared() -> None:
    """Of one dataset: the hash of all of it is the same, and the test sets are not."""
    one = outcome(0.7, 0.8, 0.9)
    fifth, half = (replace(one, receipt={**one.receipt, "held_out": {"test": sha256}}) for sha256 in ("a", "b"))
    assert differences({"a": fifth, "b": fifth}) and differences({"a": fifth, "b": half}) == ""


@pytest.mark.wide
def test_what_the_seeds_note_of_the_data_is_the_results_too(tmp_path: Path) -> None:
    """That the test examples are training examples was printed once, and kept nowhere."""
    x, y = np.random.default_rng(0).random((90, 4)).astype(np.float32), np.arange(90) % 3
    parts: dict[str, Any] = {
        "x_train": x,
        "y_train": y,
        "x_val": 1 + x[:30],
        "y_val": y[:30],
        "x_test": x[:30],
        "y_test": y[:30],
    }
    np.savez(tmp_path / "leak.npz", **parts)
    words = ("dataset=npz", "dataset.file=leak.npz", "model=linear", "training.epochs=2", "tracking=none")
    assert pipeline(tmp_path, "stage=seeds", "stage.repeats=2", *words).returncode == 0
    (run,) = (one for one in runs(tmp_path) if (one / "cells").exists())
    (note,) = (one for one in read_json(run / "result.json")["notes"] if "leakage" in one)
    assert note.startswith("2 of 2 cells: 30 of the 30 test examples are also in train")


@given(st.floats(0.5, 0.9), st.sampled_from([0.0, 1 / 1024, -1 / 360]), st.integers(3, 8))
def test_equal_differences_have_no_interval(base: float, change: float, seeds: int) -> None:
    """Their interval would be of width zero, and anything above 0 "higher" by it."""
    values = [base + 0.01 * seed for seed in range(seeds)]
    result = differences({"a": outcome(*values), "b": outcome(*(value + change for value in values))})
    _, mean, interval, n, shown = result.splitlines()[2].split(" | ")
    assert (interval, n, shown.strip(" |")) == ("the same each time, too little for an interval", str(seeds), "")
    assert float(mean) == pytest.approx(-change, abs=1e-4)
    assert half_width([change] * seeds) is None


@pytest.mark.parametrize(("role", "by"), [("seed", ""), ("fold", "over folds: "), ("value", "by the test examples: ")])
def test_the_report_says_what_an_interval_is_over(role: str, by: str) -> None:
    """Of folds it said that the interval is by the test examples."""
    metrics = {"test/accuracy": 0.8, "test/accuracy_low": 0.7, "test/accuracy_high": 0.9, "part_0/test_accuracy": 0.8}
    roles = {"test/accuracy_low": "low", "test/accuracy_high": "high", "part_0/test_accuracy": role}
    one = outcome(0.8)
    found = table({"a": replace(one, metrics=metrics, receipt={**one.receipt, "roles": roles})})
    assert f"| 0.8000 ({by}0.7000 to 0.9000) |" in found


def test_the_report_has_how_fast_each_stage_trained_in_its_own_unit() -> None:
    timings = {"run_s": 1.25, "training_rate": {"unit": "tokens/s", "median": 12_345.6}}
    lines = table({"a": outcome(0.7), "b": replace(outcome(0.7), timings=timings)}).splitlines()
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found = [dict(zip(heads, row, strict=True)) for row in rows]
    assert [(row["tokens/s"], row["time"]) for row in found] == [("", "1.0 s"), ("12,346", "1.2 s")]


def test_the_report_has_what_a_run_noted() -> None:
    """That others had the cores stood in the run's own folder alone."""
    one = outcome(0.7, 0.8, 0.9)
    noted = replace(
        one, receipt={**one.receipt, "notes": ["other processes had 40% of the cores", "1 of 3 cells failed"]}
    )
    text = section({"a": noted, "b": one})
    assert "\n- a: other processes had 40% of the cores\n- a: 1 of 3 cells failed\n" in text and "- b:" not in text


def test_the_report_says_what_stages_did_not_share() -> None:
    """It said "on this machine with these versions" of whatever receipts it read."""
    one = outcome(0.7, 0.8, 0.9)
    about = {"device": {"hardware": {"name": "AMD EPYC", "family": "25", "model": "1"}}, "versions": {"jax": "0.11.0"}}
    other = {"device": {"hardware": {"name": "NVIDIA H200"}}, "versions": {"jax": "0.11.0", "torch": "2.13.0"}}
    later = {**about, "versions": {"jax": "0.12.0"}}
    a, b, c = (replace(one, receipt={**one.receipt, **each}) for each in (about, other, later))
    assert unlike({"a": a, "b": replace(a)}) == ""
    assert unlike({"a": a, "b": b, "c": c}).splitlines()[3:] == [
        "- hardware: AMD EPYC 25 1 (a, c); NVIDIA H200 (b)",
        "- jax: 0.11.0 (a, b); 0.12.0 (c)",
    ]


def test_the_report_says_that_nothing_is_corrected() -> None:
    text = " ".join(section({name: outcome(0.7, 0.8, last) for name, last in (("a", 0.9), ("b", 0.91))}).split())
    assert "where it contains 0, no difference is shown, which does not mean that there is none." in text
    assert "without a correction for several comparisons" in text


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10), True),
        ((1, 2, 3, 4, 5), (5, 7, 8, 9, 10), False),
        ((1, 2, 3, 4, 9), (6, 7, 8, 9, 10), False),
        ((1, 2, 3, 4), (6, 7, 8, 9, 10), False),
    ],
)
def test_ranges_lie_apart_where_they_share_no_value(
    ours: tuple[float, ...], theirs: tuple[float, ...], apart: bool
) -> None:
    """Four values lie apart by chance too often."""
    assert lie_apart(ours, theirs) is lie_apart(theirs, ours) is apart


@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), float("nan")])
def test_values_that_are_not_finite_have_no_interval_and_lose_no_result(odd: float) -> None:
    """A perplexity may be infinite: the statistics of it raised an AttributeError when all seeds were trained."""
    values = [1.0, odd, 2.0]
    assert (half_width(values), deviation(values), why_none(values)) == (None, None, NOT_FINITE)
    assert deviation([1.0, 3.0]) == pytest.approx(2**0.5) and deviation([1.0]) is None


@pytest.mark.wide
def test_seeds_whose_perplexity_is_infinite_have_a_result(tmp_path: Path) -> None:
    words = ("dataset=digits", "model=mlp", "training.epochs=1", "optimizer.learning_rate=100")
    result = pipeline(tmp_path, "stage=seeds", *words, "training.metrics=[perplexity]")
    assert result.returncode == 0, result.stderr
    (whole,) = (run for run in runs(tmp_path) if (run / "artifacts/seeds.csv").is_file())
    found = read_result(whole)
    assert found is not None and {metric.name: metric.value for metric in found.metrics}["test/perplexity"] == math.inf
    seeds = ",".join(run.name for run in runs(tmp_path) if run != whole)
    compared = pipeline(tmp_path, "stage=compare", f"stage.runs=[{seeds}]")
    assert compared.returncode == 0, compared.stderr


def test_more_stages_than_colours_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The eighth stage had the colour of the first, and the same dots."""
    drawn = canvas(11, 6)
    monkeypatch.setattr(comparison, "canvas", lambda *_: drawn)
    epochs = [(1, 0.5, 0.4, 0.6), (2, 0.7, 0.6, 0.8)]
    sides = [Side(f"stage {number}", epochs, [0.7, 0.71, 0.72], (100, 90, 110)) for number in range(12)]
    comparison.draw(tmp_path / "comparison.png", sides, "twelve")
    assert len(drawn.axes) == 3
    for axes in drawn.axes:
        looks = {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() != "None"}
        assert len(looks) == len(sides)


def verdicts(folder: Path, swept: Sequence[Mapping[str, str]]) -> list[str]:
    """Of a grid's cells that train three seeds each."""
    cells = []
    for number, values in enumerate(swept):
        rate = {"learning_rate": float(values["optimizer.learning_rate"])}
        asked = experiment("torch", int(values["seed"]), stage=("seeds", {"repeats": 3}), optimizer=("adam", rate))
        cells.append(Cell(number, values, dict(asked.config), [], asked, None))
    return [decision.verdict for decision in decide(cells, Sweep(), History(folder))]


def test_cells_that_share_a_seed_are_refused_where_nothing_else_tells_them_apart(tmp_path: Path) -> None:
    """Two rates that messages write alike were taken for one: "both cells train seed 0" of `seed=0,0`."""
    rates, cell = ("0.00123451", "0.00123452"), "optimizer.learning_rate"
    apart = [{cell: rate, "seed": seed} for rate in rates for seed in ("3", "0")]
    assert verdicts(tmp_path, apart) == ["run"] * 4
    with pytest.raises(UserError, match=r"seed=3,5 with stage\.repeats=3: both cells train seed 5; leave 3"):
        verdicts(tmp_path, [*apart, {cell: rates[1], "seed": "5"}])


def test_a_run_is_named_by_the_beginning_that_no_other_has() -> None:
    """Whole ids of seeds and folds were broken over two lines at 80 columns, where nobody can copy them."""
    names = ["20261201-174642-seed-0-mlp-6299", "20261201-174642-seed-1-mlp-88bd", "20261201-174650-seed-2-mlp-a5a7"]
    assert beginnings(names) == ["20261201-174642-seed-0", "20261201-174642-seed-1", "20261201-174650"]
    assert beginnings(names[:1]) == ["20261201-174642"]
