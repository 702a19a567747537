"""The table at the end of a grid: what is shown, and by what the best is chosen."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from pipeline.datasets.python_docs import PythonDocs
from pipeline.experiment.settings import Sweep
from pipeline.experiment.training import Training
from pipeline.machine.others import Others
from pipeline.report import grid_figure
from pipeline.report.canvas import canvas
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import write_json
from pipeline.runs.result import Direction, Metric, Result, by_name, count, memory, rate
from pipeline.runs.run import Run
from pipeline.stages.cells import caveats, run_cells
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.generate import Generate
from pipeline.stages.graph.stage import Graph
from pipeline.stages.matmul.stage import Matmul
from pipeline.stages.pinn import Pinn
from pipeline.stages.train import Train
from pipeline.sweep.differences import undecided
from pipeline.sweep.differences import write_csv as write_differences
from pipeline.sweep.entries import Entry, measured
from pipeline.sweep.ledger import Ledger, outcome_text
from pipeline.sweep.notes import below_table, notes_of
from pipeline.sweep.pivot import Pivot
from pipeline.sweep.plan import Cell, label_of
from pipeline.sweep.schedule import Outcome
from pipeline.sweep.summary import draw, show, table, write_csv


def entry(number: int, swept: Mapping[str, str], metrics: Mapping[str, float]) -> Entry:
    cell = Cell(number, swept, {}, [], None, None)
    return entry_of(cell, *(Metric(name, value, direction="min") for name, value in metrics.items()))


def entry_of(cell: Cell, *metrics: Metric) -> Entry:
    return Entry(cell, "done", "", None, by_name(metrics), None)


def shown(found: Sequence[Entry], by: Sweep | None = None) -> list[str]:
    written = io.StringIO()
    show(Console(file=written, width=100), found, by)
    return written.getvalue().splitlines()


def test_rate_and_memory_of_two_keys_stand_below_the_table() -> None:
    """They were in grid.csv alone, so that nobody saw what the best cell costs."""

    def one(number: int, model: str, precision: str, speed: float, used: float) -> Entry:
        measured = [Metric("test/loss", 0.5), Metric("images_per_s", speed, "images/s", "time", "max")]
        swept = {"model": model, "precision": precision, "seed": str(number)}
        measured.append(Metric("cell_peak_memory", used, "MiB", "memory", "min"))
        return entry_of(Cell(number, swept, {}, [], None, None), *measured)

    places = [("mlp", "fp32", 900.0, 300.0), ("mlp", "bf16", 100.0, 320.0), ("cnn", "fp32", 50.0, 280.0)]
    found = [one(number, *place) for number, place in enumerate([*places, ("cnn", "bf16", 70.0, 280.0)])]
    found += [one(4, "mlp", "fp32", 500.0, 300.0)]
    lines = shown(found)
    assert "images_per_s (images/s): 50.0 to 700; the most: model=mlp precision=fp32" in lines
    assert "cell_peak_memory (MiB): 280 to 320; the least: model=cnn precision=fp32 and 1 more" in lines
    assert "images_per_s" not in lines[1]
    same = shown([one(number, *place[:3], 300.0) for number, place in enumerate(places)])
    assert "cell_peak_memory (MiB): 300" in same


def test_a_latency_of_another_size_is_not_the_best() -> None:
    """The cell of the smallest batch was, and that of the largest had the highest rate."""

    def one(number: int, sizes: str, *timed: int) -> Entry:
        measured = [Metric("inference/latency_s", 1e-3 * timed[0], "s", "time", "min")]
        measured += [Metric(f"batch_{size}/latency_s", size - 0.1 * number, "s", "time", "min") for size in timed]
        return entry_of(Cell(number, {"stage.batches": sizes}, {}, [], None, None), *measured)

    by = Sweep(best="inference/latency_s")
    apart = "inference/latency_s is not compared across stage.batches=[1],[16]; give all cells a size in common"
    lines = " ".join(shown([one(0, "[1]", 1), one(1, "[16]", 16)], by))
    assert apart in lines and "*" not in lines
    found = [one(0, "[1,8]", 1, 8), one(1, "[8,16]", 8, 16)]
    lines = " ".join(" ".join(shown(found, by)).split())
    assert "stage.batches=[1,8],[8,16]; sweep.best=batch_8/latency_s compares a size that all have" in lines
    assert "* the best by batch_8/latency_s" in " ".join(shown(found, Sweep(best="batch_8/latency_s")))
    alike = [one(number, "[1]", 1) for number in range(2)]
    assert "not compared" not in " ".join(shown(alike, by))


def test_peak_memory_stands_beside_the_rate_where_all_have_it() -> None:
    """That of the GPU, where there is one; those of a command and of a forked cell have two names."""

    def one(number: int, *names: str) -> Entry:
        measured = [Metric("test/loss", 0.5), Metric("images_per_s", 100.0, "images/s", "time", "max")]
        measured += [Metric(name, 3200.5 + number, "MiB", "memory", "min") for name in names]
        return entry_of(Cell(number, {"model": f"m{number}"}, {}, [], None, None), *measured)

    both = ("cell_peak_memory", "device_peak_memory")
    for first, second, heads in (
        (both, both, ("images_per_s (images/s)", "device_peak_memory (MiB)")),
        (both, both[:1], ("images_per_s (images/s)", "cell_peak_memory (MiB)")),
        (both[:1], ("peak_memory",), ("images_per_s (images/s)",)),
    ):
        assert table([one(0, *first), one(1, *second)]).columns == ("model", "test/loss", *heads)
    assert table([one(0, *both), one(1, *both)]).rows[0][-1] == "3,200"


def test_the_best_is_chosen_by_the_validation_figure() -> None:
    found = [
        entry(0, {"model": "a"}, {"test/loss": 0.1, "validation/loss": 0.4}),
        entry(1, {"model": "b"}, {"test/loss": 0.2, "validation/loss": 0.3}),
    ]
    lines = shown(found)
    assert [line.split() for line in lines[2:4]] == [["a", "0.1000"], ["b", "0.2000", "*"]]
    assert lines[4] == "* the best by validation/loss of the weights that were kept"


def test_a_cell_without_the_metric_of_the_table_has_the_one_that_it_is_judged_by() -> None:
    """A classifier beside a regression had the word `done` for its figure."""

    def one(number: int, swept: dict[str, str], *metrics: Metric) -> Entry:
        return entry_of(Cell(number, swept, {}, [], None, None), *metrics)

    regression = Metric("test/mean_absolute_error", 147.3, direction="min")
    accuracies = [Metric("test/accuracy", value, direction="max") for value in (0.85, 0.75)]
    names = ("diabetes", "digits")
    found = [one(0, {"experiment": names[0]}, regression), one(1, {"experiment": names[1]}, accuracies[0])]
    assert table(found).rows == (("diabetes", "147.3000"), ("digits", "test/accuracy 0.8500"))
    seeds = [one(seed, {"experiment": names[0], "seed": str(seed)}, regression) for seed in (0, 1)]
    seeds += [one(2 + seed, {"experiment": names[1], "seed": str(seed)}, accuracies[seed]) for seed in (0, 1)]
    assert table(seeds).rows[1] == ("digits", "test/accuracy 0.8000 (0.7500 to 0.8500, n=2)")
    failed = replace(one(2, {"experiment": "lost"}), state="failed")
    assert table([*found, failed]).rows[2] == ("lost", "failed")


def test_a_median_of_the_seeds_that_did_not_fail_says_so() -> None:
    found = [entry(seed, {"seed": str(seed)}, {"test/loss": 0.1 * seed}) for seed in range(3)]
    whole = shown(found)
    assert whole[-1].startswith("median  0.1000 (")
    lost = [*found, replace(entry(3, {"seed": "3"}, {}), state="failed")]
    assert shown(lost)[-1] == "the median leaves out 1 of 4 seeds, which came to no result"
    alone = [found[0], *(replace(one, metrics={}, state="failed") for one in found[1:])]
    assert "median" not in "".join(shown(alone))


def of_generate(number: int, temperature: str, text: str, folder: Path) -> Entry:
    """A cell of stage=generate that has written a text."""
    stage = Generate(prompt="Call me")
    experiment: Any = SimpleNamespace(stage=stage, dataset=None)
    cell = Cell(number, {"stage.temperature": temperature}, {}, [], experiment, None)
    journal = Journal.begin(folder, "generate", {})
    speed = rate("decode/tokens_per_s", 100 + number, "tokens")
    journal.write_result(Result((speed,), table=(("text", text), ("prefill", "900 tokens/s"))))
    return replace(entry_of(cell, speed), run=journal.folder)


def test_texts_are_shown_and_no_rate_is_the_best(tmp_path: Path) -> None:
    long = "Call me " * 200
    found = [of_generate(at, f"0.{at}", text, tmp_path) for at, text in enumerate(("Call me\n(Ishmael)", long), 1)]
    lines = shown(found)
    assert not any("*" in line or "best" in line for line in lines)
    assert [line.rstrip() for line in lines[4:8]] == [
        "text of each cell",
        "stage.temperature=0.1  Call me",
        f"{'':21}  (Ishmael)",
        lines[7],
    ]
    assert lines[7].startswith("stage.temperature=0.2  Call me Call me")
    assert len(" ".join(lines)) < len(long)
    assert lines[-1] == "some are cut: the result of each run has all of it"
    assert Pivot(found, Sweep(best="decode/tokens_per_s")).best() == {(("0.2",), "")}  # whoever asks for it


def test_each_dataset_has_its_best() -> None:
    """The figures on an easier dataset are no better for that."""
    losses = {("digits", "mlp"): 0.2, ("digits", "cnn"): 0.1, ("mnist", "mlp"): 0.03, ("mnist", "cnn"): 0.04}
    cells = [{"dataset": dataset, "model": model} for dataset, model in losses]
    found = [
        entry(at, cell, {"test/loss": loss}) for at, (cell, loss) in enumerate(zip(cells, losses.values(), strict=True))
    ]
    assert Pivot(found).best() == {(("digits",), "cnn"), (("mnist",), "mlp")}
    assert "* the best on the same data by test/loss, so chosen on the test data: not every" in " ".join(shown(found))
    across = [entry(at, {"dataset.path": f"{at}.txt"}, {"test/loss": at}) for at in range(2)]
    assert Pivot(across).best() == set()
    assert (
        shown(across)[-1] == "no two cells on the same data: none is marked; sweep.best=test/loss compares all of them"
    )
    assert Pivot(across, Sweep(best="test/loss")).best() == {(("0.txt",), "")}
    sizes = [entry(at, {"dataset.train": f"{at}"}, {"test/loss": at}) for at in range(2)]  # of one dataset
    assert Pivot(sizes).best() == {(("0",), "")}


@pytest.mark.parametrize("key", ["dataset.validation", "dataset.test"])
def test_cells_that_other_examples_judge_are_not_compared(key: str) -> None:
    """A model was the best by four images, beside one that was judged by 300."""
    both = [{"test/loss": at, "validation/loss": at} for at in range(2)]
    found = [entry(at, {key: f"{4 + 296 * at}"}, metrics) for at, metrics in enumerate(both)]
    assert Pivot(found).best() == set()
    assert shown(found)[-1].startswith("no two cells on the same data: none is marked; ")
    tested = [entry(at, {key: f"{4 + 296 * at}"}, {"test/loss": at}) for at in range(2)]
    assert Pivot(tested).best() == ({(("4",), "")} if key == "dataset.validation" else set())  # of one test set
    assert Pivot(found, Sweep(best="validation/loss")).best() == {(("4",), "")}


def with_examples(found: Sequence[Entry], folder: Path, *held_out: str) -> list[Entry]:
    """The cells with the receipts of their runs, which say what their examples for validation and test are."""
    entries = []
    for one, name in zip(found, held_out, strict=True):
        run = folder / str(one.cell.number)
        run.mkdir()
        write_json(run / "receipt.json", {"held_out": {"validation": f"v{name}", "test": f"t{name}"}})
        entries.append(replace(one, run=run))
    return entries


def test_receipts_say_which_cells_the_same_examples_judge(tmp_path: Path) -> None:
    """Two symbols are easier to tell apart than eight: both models guessed, and the first was marked."""
    found = [entry(at, {"dataset.symbols": f"{2 + 6 * at}"}, {"test/loss": at}) for at in range(2)]
    assert Pivot(with_examples(found, tmp_path, "a", "b")).best() == set()
    (tmp_path / "same").mkdir()
    assert Pivot(with_examples(found, tmp_path / "same", "a", "a")).best() == {(("2",), "")}
    sizes = [entry(at, {"dataset.size": f"{8 * at}"}, {"test/loss": at}) for at in range(2)]  # the same pictures
    (tmp_path / "sizes").mkdir()
    assert Pivot(with_examples(sizes, tmp_path / "sizes", "a", "b")).best() == {(("0",), "")}


@pytest.mark.parametrize("key", ["experiment", "run"])
def test_a_recipe_or_a_saved_run_may_name_other_data(key: str, tmp_path: Path) -> None:
    """Two recipes on two files of their own were compared, and the easier one was the best."""
    found = [entry(at, {key: name}, {"test/loss": at}) for at, name in enumerate("ab")]
    assert Pivot(with_examples(found, tmp_path, "a", "b")).best() == set()
    (tmp_path / "same").mkdir()
    assert Pivot(with_examples(found, tmp_path / "same", "a", "a")).best() == {(("a",), "")}
    write_json(tmp_path / "1" / "receipt.json", {})  # of a run of before: then the settings say it of all
    third = with_examples([entry(2, {key: "c"}, {"test/loss": 2})], tmp_path, "c")
    judged = [replace(one, run=tmp_path / str(at)) for at, one in enumerate([*found, *third])]
    assert set(Pivot(judged).judged_on.values()) == {()}


def test_what_is_no_number_is_not_the_best_and_spoils_no_median() -> None:
    """The median of values with a NaN among them was that of their order."""
    values = {"a": (math.nan, 0.1, 0.3), "b": (0.5, math.nan, 0.7), "c": (math.nan,) * 3}
    found = [
        entry(3 * at + seed, {"model": name, "seed": str(seed)}, {"test/loss": value})
        for at, (name, each) in enumerate(values.items())
        for seed, value in enumerate(each)
    ]
    lines = shown(found)
    assert "0.2000 (0.1000 to 0.3000, n=2, 1 nan)" in "".join(lines)
    assert "0.6000 (0.5000 to 0.7000, n=2, 1 nan)" in "".join(lines) and "nan (n=3)" in "".join(lines)
    assert Pivot(
        [
            entry(at, {"model": name}, {"test/loss": value})
            for at, (name, value) in enumerate((("a", math.nan), ("b", 0.5), ("c", 0.7)))
        ]
    ).best() == {(("b",), "")}


def test_a_cell_that_failed_is_of_no_other_data(tmp_path: Path) -> None:
    found = [entry(at, {"dataset.train_size": f"{at}"}, {"test/loss": at}) for at in range(3)]
    judged = [*with_examples(found[:2], tmp_path, "a", "a"), replace(found[2], metrics={}, state="failed")]
    assert Pivot(judged).best() == {(("0",), "")}
    assert not Pivot(judged).by_dataset and "same data" not in "".join(shown(judged))


def test_seeds_have_other_examples_each_and_settings_the_same(tmp_path: Path) -> None:
    cells = [{"dataset.train_size": size, "seed": seed} for size in ("10", "90") for seed in ("0", "1")]
    found = [entry(at, cell, {"validation/loss": at}) for at, cell in enumerate(cells)]
    judged = with_examples(found, tmp_path, "a", "b", "a", "b")
    assert Pivot(judged).best() == {(("10",), "")}
    lost = [replace(judged[0], metrics={}, run=None, state="failed"), *judged[1:]]  # the second seed says it as well
    assert len(set(Pivot(lost).judged_on.values())) == 1


def test_a_place_that_has_lost_a_repetition_is_not_marked() -> None:
    """The median of the seeds that went well was the best, beside one of all seeds."""
    cells = [{"optimizer.learning_rate": rate, "seed": seed} for rate in ("1", "5", "9") for seed in ("0", "1", "2")]
    found = [entry(at, cell, {"test/loss": 9.0 - at}) for at, cell in enumerate(cells)]
    assert Pivot(found).best() == {(("9",), "")}
    found[8] = replace(found[8], metrics={}, state="failed")
    assert Pivot(found).best() == {(("5",), "")}
    assert "1 of 3 places lack the result of a repetition, and are not marked" in shown(found)


def test_language_models_of_other_tokens_are_judged_by_bits_per_byte() -> None:
    """A loss is of one token, and a token of two bytes is harder to guess than one of one."""
    experiment: Any = SimpleNamespace(stage=Train(), dataset=PythonDocs())
    metrics = {"bytes": (2.2, 3.2), "bpe": (2.7, 1.6)}
    found = [
        entry_of(
            Cell(number, {"dataset.tokens": tokens}, {}, [], experiment, None),
            Metric("test/loss", loss, "nats", direction="min"),
            Metric("test/bits_per_byte", bits, "bits/byte", direction="min"),
        )
        for number, (tokens, (loss, bits)) in enumerate(metrics.items())
    ]
    assert Pivot(found).name == "test/bits_per_byte"
    assert Pivot(found).best() == {(("bpe",), "")}


def test_numbers_of_different_losses_are_not_compared() -> None:
    """mse of one-hot targets is a small number whatever was learned."""
    cells = [Cell(number, {"loss": name}, {}, [], None, None) for number, name in enumerate(("cross_entropy", "mse"))]
    losses = [Metric("validation/loss", value, direction="min") for value in (0.2, 0.01)]
    scores = [Metric("validation/accuracy", value, direction="max") for value in (0.94, 0.24)]
    alone = [entry_of(cell, loss) for cell, loss in zip(cells, losses, strict=True)]
    assert Pivot(alone).best() == set()
    assert "validation/loss is of another loss in each cell: sweep.best=<metric> with " in " ".join(shown(alone))
    scored = [entry_of(cell, *both) for cell, *both in zip(cells, losses, scores, strict=True)]
    assert Pivot(scored).best() == {(("cross_entropy",), "")}
    assert shown(scored)[-1] == "* the best by validation/accuracy of the weights that were kept"
    assert Pivot(scored, Sweep(best="validation/loss")).best() == {(("mse",), "")}  # as the user says


def test_the_best_of_repeated_cells_has_the_best_median() -> None:
    """Neither its lowest nor its highest is the best: those are the luck of a seed."""
    losses = {"a": (0.10, 0.2, 0.90), "b": (0.30, 0.3, 0.30), "c": (0.05, 0.5, 0.60)}
    found = [
        entry(3 * at + seed, {"model": model, "seed": str(seed)}, {"test/loss": 0.5, "validation/loss": loss})
        for at, (model, each) in enumerate(losses.items())
        for seed, loss in enumerate(each)
    ]
    assert Pivot(found).best() == {(("a",), "")}


def by_model(losses: Mapping[str, Sequence[float]]) -> list[Entry]:
    """A grid over models and seeds."""
    return [
        entry(
            len(each) * at + seed, {"model": model, "seed": str(seed)}, {"validation/loss": loss, "test/loss": loss + 1}
        )
        for at, (model, each) in enumerate(losses.items())
        for seed, loss in enumerate(each)
    ]


def test_what_the_seeds_do_not_tell_from_the_best_is_marked(tmp_path: Path) -> None:
    """The seeds lie far apart, and each of c's is worse than a's with the same seed; b's are so at times."""
    found = by_model({"a": (0.1, 0.5, 0.9), "b": (0.05, 0.55, 0.95), "c": (0.22, 0.61, 1.02)})
    lines = shown(found)
    assert [line.split()[-1][-1] for line in lines[2:5]] == ["*", "~", ")"]
    assert lines[-1] == "~ not shown to be worse than it: paired t tests at 5%, Benjamini-Hochberg"
    write_differences(tmp_path / "differences.csv", found)
    rows = list(csv.DictReader((tmp_path / "differences.csv").open()))
    assert [(row["model"], row["metric"], row["seeds"]) for row in rows] == [
        (model, name, "3") for name in ("validation/loss", "test/loss") for model in "bc"
    ]
    assert float(rows[1]["difference"]) == pytest.approx((0.12 + 0.11 + 0.12) / 3)
    a, b, c = (0.1, 0.5, 0.9), (0.05, 0.55, 0.95), (0.22, 0.61, 1.02)
    sure = scipy.stats.ttest_rel(c, a)
    assert (float(rows[1]["low"]), float(rows[1]["high"])) == pytest.approx(tuple(sure.confidence_interval(0.95)))
    assert float(rows[0]["p"]) == pytest.approx(scipy.stats.ttest_rel(b, a).pvalue)  # the larger of two stays
    assert float(rows[1]["p"]) == pytest.approx(2 * sure.pvalue)


def test_where_all_others_differ_from_the_best_that_is_said() -> None:
    """Also beside a cell that has come to no result: nothing is said of that one."""
    found = by_model({"a": (0.1, 0.5, 0.9), "c": (0.22, 0.61, 1.02)})
    for lost in ([], [replace(entry(9, {"model": "d", "seed": "0"}, {}), state="failed")]):
        lines = shown([*found, *lost])
        assert "~" not in lines[3]
        assert lines[-1] == "all other results are worse: paired t tests at 5%, Benjamini-Hochberg"


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=3))
@example([[0.1, 0.5, 0.9], [0.22, 0.61, 1.0]])
@example([[0.0, 0.0, 5e-324], [0.0, 5e-324, 5e-324]])
def test_what_is_marked_where_less_is_better_is_marked_where_more_of_its_opposite_is(losses: list[list[float]]) -> None:
    found = by_model(dict(zip("abc", losses, strict=False)))
    turned = [
        replace(one, metrics=by_name(Metric(name, -each.value, direction="max") for name, each in one.metrics.items()))
        for one in found
    ]
    less, more = Pivot(found), Pivot(turned)
    assert (less.best(), undecided(less)) == (more.best(), undecided(more))


def test_among_many_cells_that_are_equally_good_chance_names_none() -> None:
    """Each by itself, one of twenty was "worse" by chance in half of the grids. What is much worse is still found."""
    generator, chance, missed = np.random.default_rng(0), [], []
    for number in range(40):
        equal = {f"a{cell}": generator.normal(size=3).tolist() for cell in range(20)}
        chance.append(len(undecided(Pivot(by_model(equal)))) < 19)
        if number < 8:
            worse = {f"b{cell}": (generator.normal(size=3) + 20).tolist() for cell in range(10)}
            missed += [row for row, _ in undecided(Pivot(by_model({**equal, **worse}))) if row[0].startswith("b")]
    assert sum(chance) <= 8 and len(missed) <= 4


def test_too_few_seeds_are_not_compared_and_a_line_says_so(tmp_path: Path) -> None:
    """Without a mark and a word the other looked as one that is shown to be worse."""
    found = by_model({"a": (0.1, 0.5), "b": (0.2, 0.6)})
    experiment: Any = SimpleNamespace(stage=Train(), solver=SimpleNamespace(seeds=1), dataset=None)
    trained = [replace(one, cell=replace(one.cell, experiment=experiment)) for one in found]
    assert shown(trained)[-2:] == [
        "* the best by validation/loss of the weights that were kept",
        "at most 2 seeds each: a small difference may be chance; seed=0,1,2 shows whether it is",
    ]
    write_differences(tmp_path / "differences.csv", found)
    assert not (tmp_path / "differences.csv").exists()
    one = [one for one in trained if one.cell.swept["seed"] == "0"]
    skipped = Entry(Cell(9, {"model": "c", "seed": "0"}, {}, [], None, None), "skipped", "no GPU", None, {}, None)
    assert shown([*one, skipped])[-1].startswith("one seed each: a small difference may be chance")
    peaks = [
        replace(each, metrics=by_name([Metric("cell_peak_memory", 255.1, "MiB", "memory", "min")])) for each in one
    ]
    assert shown(peaks, Sweep(best="cell_peak_memory"))[-1].startswith(
        "one seed each: a small difference may be chance"
    )
    saved: Any = SimpleNamespace(stage=Evaluate(), solver=SimpleNamespace(seeds=1), dataset=None)
    evaluated = [replace(each, cell=replace(each.cell, experiment=saved)) for each in one]
    timed = [replace(each, metrics=by_name([rate("speed", 5.0 + at, "images")])) for at, each in enumerate(one)]
    assert shown(evaluated)[-1].startswith("* the best by ")  # another seed would end no otherwise
    assert shown(timed, Sweep(best="speed"))[4:] == ["* the best by speed"]


def test_each_metric_and_each_place_has_its_own_differences(tmp_path: Path) -> None:
    """By the validation adam is worse than sgd, and by the test data better: wherever the model is the same."""
    losses = {("mlp", "sgd"): (1.0, 9.0), ("mlp", "adam"): (2.0, 7.0), ("cnn", "sgd"): (4.0, 5.0)}
    found = [
        entry(
            3 * at + seed,
            {"model": model, "optimizer": optimizer, "seed": str(seed)},
            {"validation/loss": validation * (1 + seed), "test/loss": test * (1 + seed)},
        )
        for at, ((model, optimizer), (validation, test)) in enumerate(losses.items())
        for seed in range(3)
    ]
    write_differences(tmp_path / "differences.csv", found)
    rows = [[*row.values()] for row in csv.DictReader((tmp_path / "differences.csv").open())]
    names = ("validation/loss", "test/loss")
    assert [row[:5] for row in rows] == [
        [model, optimizer, name, "3", repr(2 * (losses[model, optimizer][at] - losses["mlp", "sgd"][at]))]
        for at, name in enumerate(names)
        for model, optimizer in (("mlp", "adam"), ("cnn", "sgd"))
    ]


def test_a_place_that_lost_a_seed_is_not_worse_than_the_best(tmp_path: Path) -> None:
    """Nor does a line say so of all of them: the seeds that came to a result are not those that the others have."""
    found = by_model({"a": (0.1, 0.5, 0.9, 1.3), "b": (0.22, 0.61, 1.02, 1.4), "c": (0.22, 0.61, 1.02, 1.4)})
    experiment: Any = SimpleNamespace(stage=Train(), solver=SimpleNamespace(seeds=1), dataset=None)
    trained = [replace(one, cell=replace(one.cell, experiment=experiment)) for one in found]
    assert shown(trained)[-1].startswith("all other results are worse: ")
    lost = [*trained[:7], replace(trained[7], metrics={}, state="failed"), *trained[8:]]
    text = " ".join(shown(lost))
    assert "worse" not in text and "~" not in text
    assert "seeds each" not in text  # there are enough of them
    write_differences(tmp_path / "differences.csv", lost)
    assert {row["model"] for row in csv.DictReader((tmp_path / "differences.csv").open())} == {"c"}


def test_of_what_no_seed_decides_no_seeds_are_asked_for() -> None:
    """A grid over stage=graph said "one seed each": there a seed draws the operands, and no more."""
    found = by_model({"a": (0.1,), "b": (0.2,)})
    for stage, asks in ((Graph(), False), (Matmul(), False), (Pinn(), True), (Train(), True)):
        experiment: Any = SimpleNamespace(stage=stage, solver=SimpleNamespace(seeds=1), dataset=None)
        measured = [replace(one, cell=replace(one.cell, experiment=experiment)) for one in found]
        assert shown(measured)[-1].startswith("one seed each: ") is asks
    three: Any = SimpleNamespace(stage=Pinn(), solver=SimpleNamespace(seeds=3), dataset=None)  # in each cell
    assert "seed" not in shown([replace(one, cell=replace(one.cell, experiment=three)) for one in found])[-1]


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_a_seed_without_a_finite_value_shows_nothing(lost: float, tmp_path: Path) -> None:
    """Its place had no mark, as one that is shown to be worse."""
    a, b, c, d = (0.1, 0.5, 0.9), (0.11, 0.51, lost), (lost, 0.51, 0.91), (0.22, 0.61, 1.02)
    found = by_model({"a": a, "b": b, "c": c, "d": d})
    lines = shown(found)
    assert [line.split()[-1][-1] for line in lines[2:6]] == ["*", "~", "~", ")"]
    write_differences(tmp_path / "differences.csv", found)
    rows = [row for row in csv.DictReader((tmp_path / "differences.csv").open()) if row["metric"] == "validation/loss"]
    assert [(row["difference"], row["low"], row["high"]) for row in rows[:2]] == [("nan", "", "")] * 2


def test_what_has_the_better_mean_is_not_shown_to_be_worse() -> None:
    """The best has the better median; four of its ten seeds went wrong."""
    found = by_model({"a": (1.0,) * 6 + (10.0,) * 4, "b": (1.01,) * 6 + (2.0,) * 4})
    lines = shown(found)
    assert [line.split()[-1] for line in lines[2:4]] == ["*", "~"]


def test_differences_that_are_all_the_same_show_nothing() -> None:
    """Three times one image of 64: equal differences have no interval and do not show a difference."""
    found = by_model({"a": (0.25, 0.5, 0.75), "b": (0.265625, 0.515625, 0.765625)})
    assert shown(found)[3].rstrip().endswith("~")


def test_what_has_no_number_with_one_seed_is_not_the_best() -> None:
    """NaN has no place in an order, so that the median is another for each order of the seeds."""
    for lost in ((0.1, 0.2, math.nan), (0.1, math.nan, 0.2), (math.nan, 0.1, 0.2)):
        assert Pivot(by_model({"a": (0.3, 0.3, 0.3), "b": lost, "c": (0.4, 0.4, 0.4)})).best() == {(("a",), "")}


def test_several_that_are_the_best_are_said_to_be_equal() -> None:
    """One with a worse test beside it was marked, by a validation on 16 examples that both had 7 of right."""
    both = [entry(at, {"model": name}, {"test/loss": at, "validation/loss": 0.5}) for at, name in enumerate("ab")]
    assert shown(both)[-1] == "* the best, several being equal, by validation/loss of the weights that were kept"


def test_a_choice_by_the_test_data_is_said() -> None:
    found = [
        entry(0, {"model": "a"}, {"test/loss": 0.1, "validation/loss": 0.4}),
        entry(1, {"model": "b"}, {"test/loss": 0.2}),
    ]
    lines = shown(found)
    assert lines[2].split() == ["a", "0.1000", "*"]
    assert (
        lines[4]
        == "* the best by test/loss, so chosen on the test data: not every result has it of the validation data"
    )


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9))
def test_seeds_alone_are_a_median_and_a_range(losses: list[float]) -> None:
    found = [entry(n, {"seed": str(n)}, {"test/loss": x, "validation/loss": x}) for n, x in enumerate(losses)]
    lines = shown(found)
    assert Pivot(found).best() == set()
    assert "*" not in "".join(lines)
    assert len(lines) == 2 + len(losses) + 1
    name, middle, low, _, high, count = lines[-1].replace("(", "").replace(")", "").replace(",", "").split()
    assert (name, count) == ("median", f"n={len(losses)}")
    for text, value in ((middle, statistics.median(losses)), (low, min(losses)), (high, max(losses))):
        assert abs(float(text) - value) <= 0.00005 + 1e-3 * value


@pytest.mark.parametrize(("direction", "best"), [("min", ["a"]), ("max", ["b"]), ("none", [])])
def test_the_best_is_that_of_the_declared_direction(direction: Direction, best: list[str]) -> None:
    found = [
        entry_of(Cell(at, {"model": name}, {}, [], None, None), Metric("test/loss", value, "nats", direction=direction))
        for at, (name, value) in enumerate({"a": 0.1, "b": 0.2}.items())
    ]
    lines = shown(found)
    assert lines[0].rstrip() == "test/loss (nats) over the grid"
    assert [line.split()[0] for line in lines[2:4] if line.rstrip().endswith("*")] == best


def test_the_figure_of_a_grid_names_its_keys_and_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows were values of nobody knew what, and a cell that had failed a blank one."""
    losses = {("8", "sgd"): 0.5, ("8", "adam"): 0.4, ("16", "sgd"): 0.3, ("16", "adam"): None, ("32", "sgd"): None}
    found = [
        entry(at, {"model.width": width, "optimizer": name}, {} if loss is None else {"test/loss": loss})
        for at, ((width, name), loss) in enumerate(losses.items())
    ]
    found = [one if one.metrics else replace(one, state="failed") for one in found]
    drawn = canvas(7, 3)
    monkeypatch.setattr(grid_figure, "canvas", lambda *_: drawn)
    draw(tmp_path / "grid.png", found, "a run")
    (axes,) = drawn.axes
    assert axes.get_title() == "test/loss over model.width, optimizer\na run"
    assert axes.get_xlabel() == "test/loss"
    grid_figure.dots(tmp_path / "seeds.png", ["a"], {"": [[1.0, 2.0]]}, axis="loss", rows="", legend="", title="")
    assert drawn.axes[1].get_xlabel() == "loss (pale: each run; full: their median)"
    heading, *remarks = axes.texts
    assert heading.get_text() == "model.width"
    assert [remark.get_text() for remark in remarks] == ["", "adam: failed", "sgd: failed"]
    rows = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert heading.get_window_extent().y0 > rows[0].y1
    for row, remark in zip(rows[1:], remarks[1:], strict=True):  # beside its row
        assert row.y0 < remark.get_window_extent().get_points()[:, 1].mean() < row.y1


def test_what_the_machine_took_is_known_by_its_kind(tmp_path: Path) -> None:
    """It stands beside the result where no key goes across, and columns of a kind stand together in the file."""
    found = [
        entry_of(
            Cell(at, {"model": name}, {}, [], None, None),
            memory("peak", 9.0),
            rate("speed", 12.345 + 12_000.0 * at, "images"),
            Metric("test/loss", 0.5 + at, direction="min"),
        )
        for at, name in enumerate("ab")
    ]
    lines = [line.split() for line in shown(found)]
    assert lines[1:4] == [
        ["model", "test/loss", "speed", "(images/s)"],
        ["a", "0.5000", "*", "12.3"],
        ["b", "1.5000", "12,012"],
    ]
    write_csv(tmp_path / "grid.csv", found)
    with (tmp_path / "grid.csv").open() as file:
        assert next(csv.reader(file))[-3:] == ["test/loss", "speed", "peak"]


def test_columns_of_the_file_of_a_grid_have_different_heads(tmp_path: Path) -> None:
    """A metric called `run` had the head of the cell's run, and was read in its place."""
    found = [entry(0, {"run": "a", "seed": "7"}, {"run": 1.0, "seconds": 2.0, "seed": 3.0, "metric/run": 4.0})]
    write_csv(tmp_path / "grid.csv", [replace(found[0], run=Path("runs/cell-0"), seconds=5.0)])
    with (tmp_path / "grid.csv").open() as file:
        heads, row = csv.reader(file)
    assert len(set(heads)) == len(heads)
    read = dict(zip(heads, row, strict=True))
    assert (read["run"], read["seconds"], read["seed"]) == ("cell-0", "5.000", "7")
    assert (read["setting/run"], read["metric/run"], read["metric/seconds"], read["metric/seed"]) == (
        "a",
        "1.0",
        "2.0",
        "3.0",
    )
    assert read["metric/metric/run"] == "4.0"


def own(*, more: Direction = "none") -> list[Entry]:
    """Cells of a module whose metrics declare nothing; `more`: what one of them declares all the same."""
    found = []
    for at, x in enumerate((0.1, 0.2, 0.3)):
        losses = [Metric("train_loss", 1 - x), Metric("val_loss", x), Metric("val_acc", 1 - x, direction=more)]
        cell = Cell(at, {"rate": str(x), "width": "4"}, {}, [], None, None)
        found.append(entry_of(cell, *losses, count("epochs", 2)))
    return found


def test_metrics_that_declare_no_direction_stand_side_by_side() -> None:
    """None is chosen by a guess; the line below says how to have the best marked."""
    lines = shown(own())
    assert lines[0].rstrip() == "metrics over the grid"
    assert [line.split() for line in lines[1:3]] == [
        ["rate", "width", "val_loss", "val_acc", "train_loss"],
        ["0.1", "4", "0.1000", "0.9000", "0.9000"],
    ]
    assert "*" not in "".join(lines)
    assert " ".join(" ".join(lines[-2:]).split()) == (
        "no metric here declares whether more or less is better; sweep.best=<metric> with sweep.direction=maximize or "
        "sweep.direction=minimize marks the best"
    )


@pytest.mark.parametrize(
    ("by", "best", "last"),
    [
        (Sweep(best="val_acc", direction="maximize"), "0.1", "* the best by val_acc"),
        (Sweep(best="val_loss", direction="minimize"), "0.1", "* the best by val_loss"),
        (Sweep(best="train_loss", direction="minimize"), "0.3", "* the best by train_loss"),
        (Sweep(best="val_acc"), "", "sweep.best=val_acc: declares no direction; sweep.direction=maximize or minimize"),
        (Sweep(best="acc"), "", "sweep.best=acc: no cell has it; choose from val_loss, val_acc, train_loss"),
    ],
)
def test_the_user_says_what_the_best_is_the_best_by(by: Sweep, best: str, last: str) -> None:
    lines = shown(own(), by)
    assert [line.split()[0] for line in lines[2:5] if "*" in line] == ([best] if best else [])
    assert last in lines


def test_a_direction_against_the_declared_one_is_not_followed() -> None:
    lines = shown(own(more="max"), Sweep(best="val_acc", direction="minimize"))
    assert [line.split()[0] for line in lines if line.rstrip().endswith(" *")] == ["0.1"]
    assert "sweep.direction=minimize is ignored: val_acc declares that more is better" in lines


def test_a_metric_of_an_own_module_called_as_ours_is_read_once(tmp_path: Path) -> None:
    """It is in the result and, as the metric of an epoch, among those of the last one."""
    journal = Journal.begin(tmp_path, "own", {})
    loss = Metric("validation/loss", 0.5)
    journal.write_result(Result((loss,), last_epoch=(loss,)))
    assert measured(journal.folder) == {"validation/loss": loss}


@pytest.mark.parametrize(
    ("sought", "text"),
    [
        (None, "test/loss 0.2500 nats"),  # the stage's own, of the result
        ("validation/accuracy", "validation/accuracy 0.7500"),  # of the last epoch
        ("train/loss", "train/loss 0.5000"),  # the last that the journal has
        ("test/beauty", ""),
    ],
)
def test_the_line_of_a_cell_has_its_metric_and_unit(tmp_path: Path, sought: str | None, text: str) -> None:
    journal = Journal.begin(tmp_path, "cell", {})
    for step, loss in enumerate((1.0, 0.5)):
        journal.log({"train/loss": loss, "validation/accuracy": 0.75}, step)
    epoch = Metric("validation/accuracy", 0.75, direction="max")
    journal.write_result(Result((Metric("test/loss", 0.25, "nats"),), last_epoch=(epoch,)))
    journal.finish("FINISHED")
    cell = Cell(0, {"seed": "0"}, {}, [], None, None, sought=sought)
    assert outcome_text(Outcome(cell, "FINISHED", "", 1.0, journal.folder)) == text


def test_what_the_cells_note_is_said_once_with_how_many_cells_note_it(tmp_path: Path) -> None:
    found = []
    for number, notes in enumerate((("a", "b"), ("a",), ())):
        journal = Journal.begin(tmp_path, "cell", {})
        journal.write_result(Result((), notes=notes))
        found.append(replace(entry(number, {}, {}), run=journal.folder))
    found += [replace(entry(3, {}, {}), state="failed"), replace(entry(4, {}, {}), state="skipped")]
    assert notes_of(found) == ["2 of 4 cells: a", "1 of 4 cells: b"]
    assert notes_of(found, 1) == ["2 of 4 cells: a", "and 1 other note, in the cells' results"]
    assert notes_of(found, 0) == ["and 2 other notes, in the cells' results"]


def test_notes_that_differ_in_numbers_are_one_and_say_whose_they_are(tmp_path: Path) -> None:
    """Each was one by itself, and fell behind the five commonest."""
    found = []
    for number, notes in enumerate((("it is 2.5e-3 off",), ("it is 10 off", "all"), ("all",))):
        journal = Journal.begin(tmp_path, "cell", {})
        journal.write_result(Result((), notes=notes))
        swept = {"row": "ab"[number // 2], "seed": str(number)}
        found.append(replace(entry(number, swept, {}), run=journal.folder))
    assert notes_of(found) == ["2 of 3 cells (row=a), such as: it is 2.5e-3 off", "2 of 3 cells: all"]
    assert notes_of(found[:2])[1] == "1 of 2 cells (seed=1): all"


@pytest.mark.parametrize("names", [("fp16", "fp32"), ("gpu:0", "gpu:1"), ("seed=1", "seed=2"), ("run-1", "run-2")])
def test_notes_that_differ_in_a_name_are_several(tmp_path: Path, names: tuple[str, str]) -> None:
    found = []
    for number, name in enumerate(names):
        journal = Journal.begin(tmp_path, "cell", {})
        journal.write_result(Result((), notes=(f"{name}: cannot be had",)))
        found.append(replace(entry(number, {}, {}), run=journal.folder))
    assert notes_of(found) == [f"1 of 2 cells: {name}: cannot be had" for name in names]


def test_cells_that_were_timed_beside_others_are_noted(tmp_path: Path) -> None:
    found = []
    for number, share in enumerate((0.02, 0.5, None, 0.25)):
        found.append(_with_receipt(tmp_path, number, {"training_rate": {"cores_of_others": share}}))
    assert caveats(found) == ("other processes had 50% of the cores at most, in 2 of 4 cells, which slowed them",)
    assert caveats(found[:1]) == ()


def test_cells_that_a_clock_ended_are_noted(tmp_path: Path) -> None:
    """stage=amp compared accuracies of trainings of different lengths without a word."""
    ends = enumerate((None, "training.max_time", "training.max_time"))
    found = [_with_receipt(tmp_path, number, {"kept_weights": {"ended_by": by}}) for number, by in ends]
    (note,) = caveats(found)
    assert note.startswith(
        "training.max_time ended 2 of 3 cells: test results and times of whole trainings are of different"
    )
    assert caveats(found[:1]) == ()
    assert below_table(found, []) == [note]  # of a grid, too


def test_rates_of_cold_epochs_are_noted(tmp_path: Path) -> None:
    """stage=amp compared the images/s of first epochs; warm they were three times as many."""
    found = [_with_receipt(tmp_path, at, {"training_rate": {"cold": at > 0}}) for at in range(3)]
    assert caveats(found) == ("the rates of 2 of 3 cells are of one epoch, which starts cold; train for two or more",)


def test_rates_of_several_machines_are_noted(tmp_path: Path) -> None:
    """On a cluster a node's processor may be any: the fastest cell was that of the fastest node."""
    kinds = [{"name": "a GPU", "host": {"name": host}} for host in ("one", "other", "one")]
    found = [
        _with_receipt(tmp_path, at, {"training_rate": {}, "device": {"hardware": kind}})
        for at, kind in enumerate(kinds)
    ]
    said = "the rates are of several machines: a GPU, host one (2 cells); a GPU, host other (1 cell)"
    assert caveats(found) == (said,)
    assert caveats([found[0], found[2]]) == ()


def test_rates_of_milliseconds_are_noted(tmp_path: Path) -> None:
    found = [
        _with_receipt(tmp_path, at, {"training_rate": {"timed_s": s}}) for at, s in enumerate((0.5, 0.026, 0.0026))
    ]
    said = "the rates of 2 of 3 cells are uncertain: timed over 2.60 ms at least; train longer for surer ones"
    assert caveats(found) == (said,)
    assert caveats(found[:1]) == ()


@pytest.mark.parametrize("timed", [True, False])
def test_what_is_said_of_times_is_said_once(tmp_path: Path, timed: bool) -> None:
    """A grid over stage=seeds said that rates are cold for the stage's cells, and again for its own."""
    cold = "the rates of 3 of 3 cells are of one epoch, which starts cold; train for two or more"
    found = []
    for number in range(2):
        journal = Journal.begin(tmp_path, "seeds", {})
        journal.write_result(Result((), notes=("another", cold)))
        write_json(journal.folder / "receipt.json", {"training_rate": {"cold": True}})
        found.append(replace(entry(number, {}, {}), run=journal.folder, metrics={"speed": rate("speed", 1.0, "x")}))
    of_times = cold.replace("3 of 3", "2 of 2") if timed else f"2 of 2 cells: {cold}"
    assert below_table(found, ["speed"] if timed else []) == ["2 of 2 cells: another", of_times]


def test_what_only_a_cell_says_of_its_times_is_kept(tmp_path: Path) -> None:
    """Of a grid over stage=amp nothing was said of cold rates: the receipt of a comparison has no rate to judge by."""
    cold = "the rates of 3 of 3 cells are of one epoch, which starts cold; train for two or more"
    journal = Journal.begin(tmp_path, "amp", {})
    journal.write_result(Result((), notes=(cold,)))
    write_json(journal.folder / "receipt.json", {"data_sha256": "a"})
    found = replace(entry(0, {}, {}), run=journal.folder, metrics={"speed": rate("speed", 1.0, "x")})
    assert below_table([found], ["speed"]) == [f"1 of 1 cells: {cold}"]


def test_rates_of_a_cold_period_name_its_key(tmp_path: Path) -> None:
    """With training.steps another epoch does not help: 60 steps may be a third of one."""
    experiment: Any = SimpleNamespace(training=Training(steps=20, validate_every=50))
    found = _with_receipt(tmp_path, 0, {"training_rate": {"cold": True}})
    found = replace(found, cell=replace(found.cell, experiment=experiment))
    assert caveats([found]) == (
        "the rates of 1 of 1 cell are of one period (training.validate_every=50), which starts cold; "
        "a smaller training.validate_every gives more of them",
    )


@pytest.mark.parametrize(
    ("rates", "noted"),
    [
        (({"cores_of_others": 0.01}, {"cores_of_others": None}), True),
        (({"cores_of_others": 0.5}, {"cores_of_others": None}), False),
        (({"cores_of_others": 0.5}, {"cores_of_others": 0.5}), False),
        (({"cores_of_others": None},), True),
        ((None, None), True),
        ((), False),
    ],
)
def test_cells_too_short_to_count_their_others_are_noted_together(
    rates: tuple[dict[str, Any] | None, ...], noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ladder of trainings of 0.05 s on a busy machine showed its gains plainly, and so did solvers side by side."""
    found = [
        _with_receipt(tmp_path, number, {} if rate is None else {"training_rate": rate})
        for number, rate in enumerate(rates)
    ]
    monkeypatch.setattr("pipeline.sweep.session.run_below", lambda *_, **__: ([], 0))
    monkeypatch.setattr("pipeline.stages.cells.entries_of", lambda *_: found)
    monkeypatch.setattr(Others, "share", lambda _: 0.4)
    run = Run(Journal.begin(tmp_path, "cells", {}), Console(file=io.StringIO()))
    assert run_cells(run, []) == found
    said = "other processes had 40% of the cores while the cells ran, which slowed them"
    assert [note.startswith(said) for note in run.notes] == [True] * noted


def _with_receipt(folder: Path, number: int, receipt: Mapping[str, Any]) -> Entry:
    run = folder / f"{number}"
    run.mkdir()
    write_json(run / "receipt.json", receipt)
    return Entry(Cell(number, {"seed": f"{number}"}, {}, [], None, None), "done", "", run, {}, None)


def test_a_cell_that_was_stopped_is_killed_and_has_not_failed(tmp_path: Path) -> None:
    """The same command goes on with it, and leaves one that failed."""
    ledger = Ledger(Console(file=io.StringIO()), tmp_path, [], 3)
    for number, state in enumerate(("FINISHED", "KILLED")):
        ledger.ended(Outcome(Cell(number, {"seed": f"{number}"}, {}, [], None, None), state, "", 1.0, None))
    assert ledger.counts().plain.startswith("1 done · 0 failed · 1 killed · 0 skipped · 0 running · 1 waiting")


def test_a_cell_in_a_cluster_s_queue_waits_and_does_not_run(tmp_path: Path) -> None:
    """A grid of fifty cells on two nodes said that fifty were running."""
    for queues, counts in ((True, "0 running · 2 waiting"), (False, "1 running · 1 waiting")):
        ledger = Ledger(Console(file=io.StringIO()), tmp_path, [], 2, queues=queues)
        cell = Cell(0, {"seed": "0"}, {}, [], None, None)
        ledger.started(cell)
        assert counts in ledger.counts().plain
        ledger.became(cell, tmp_path)
        assert "1 running · 1 waiting" in ledger.counts().plain
        for again, now in (({0}, "0 running · 2 waiting"), (set[int](), "1 running · 1 waiting")):
            ledger.queued_again(again)
            assert now in ledger.counts().plain


def test_off_a_terminal_it_is_said_at_once_how_many_cells_run(tmp_path: Path) -> None:
    """A grid whose output went into a file said nothing of that until its first cell had ended."""
    for queues, expected in ((False, "0 done · 0 failed · 0 skipped · 1 running · 2 waiting\n"), (True, "")):
        written = io.StringIO()
        ledger = Ledger(Console(file=written, width=200), tmp_path, [], 3, queues=queues)
        ledger.started(Cell(0, {"seed": "0"}, {}, [], None, None))
        for _ in range(3):
            ledger.tick()
        assert written.getvalue() == expected


def test_each_line_of_a_running_grid_fits_and_its_time_left_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns "left" stood alone on the next line, and 51 s became 66 s while the second of six cells ran."""
    now = 0.0
    monkeypatch.setattr("pipeline.sweep.ledger.time.monotonic", lambda: now)
    shown = io.StringIO()
    console = Console(file=shown, width=80, force_terminal=True, color_system=None)
    ledger = Ledger(console, tmp_path, [], 6)
    first, second = (Cell(number, {"optimizer.learning_rate": "1" * 80}, {}, [], None, None) for number in range(2))
    with ledger:
        ledger.started(first)
        now = 100.0
        ledger.ended(Outcome(first, "FINISHED", "", 100.0, None))
        ledger.started(second)
        for passed, left in ((110.0, "8 min 10 s"), (190.0, "6 min 50 s"), (300.0, "6 min 40 s")):
            now = passed
            shown.truncate(0)
            ledger.tick()
            lines = shown.getvalue().splitlines()
            assert lines[-2] == f"  about {left} left" and len(lines[-1]) <= 80 and lines[-1].endswith("…"), lines


def test_a_line_of_a_search_names_its_trial(tmp_path: Path) -> None:
    """The first to end, in [1/3], need not be the first trial. A grid's cells were trials with sweep.best."""
    written = io.StringIO()
    ledger = Ledger(Console(file=written), tmp_path, [], 3)
    for of_search in (True, False):
        cell = Cell(1, {"seed": "4"}, {}, [], None, None, sought="loss", of_search=of_search)
        ledger.ended(Outcome(cell, "FAILED", "no", 1.0, None))
    search, grid = written.getvalue().splitlines()
    assert search.startswith("[1/3] failed  trial 2  seed=4  no") and grid.startswith("[2/3] failed  seed=4  no")


def test_the_cells_of_a_large_grid_stand_below_each_other(tmp_path: Path) -> None:
    """From the tenth on, all words of a line stood a letter further to the right."""
    for total, heads in ((10, ["[ 1/10] done", "[10/10] done"]), (None, ["[1] done", "[10] done"])):
        written = io.StringIO()
        ledger = Ledger(Console(file=written), tmp_path, [], total)
        for number in range(10):
            ledger.ended(Outcome(Cell(number, {"seed": f"{number}"}, {}, [], None, None), "FINISHED", "", 1.0, None))
        lines = written.getvalue().splitlines()
        assert [line.partition("done")[0] + "done" for line in (lines[0], lines[-1])] == heads


def test_a_drawn_number_is_short_in_messages_and_what_a_user_writes_stays() -> None:
    swept = {"optimizer.learning_rate": "0.00018255254802399022", "model.dropout": "0.125", "model.units": "[64]"}
    assert label_of(swept) == "optimizer.learning_rate=0.0001826 model.dropout=0.125 model.units=[64]"
