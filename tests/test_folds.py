"""Cross-validation: dataset.folds and dataset.fold, stage=folds, and how sure a mean over folds is."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import done, pipeline, refused, runs, status
from hypothesis import given
from hypothesis import strategies as st
from in_backend import experiment
from PIL import Image
from scipy import stats
from sklearn.metrics import f1_score, r2_score

from pipeline.contracts import Dataset
from pipeline.datasets import Data, Split
from pipeline.datasets.diabetes import Diabetes
from pipeline.datasets.digits import Digits
from pipeline.datasets.folds import division, fold_of
from pipeline.datasets.image_folder import ImageFolder
from pipeline.datasets.loading import load_data, loaded
from pipeline.datasets.normalisation import Normalisation
from pipeline.datasets.npz import Npz
from pipeline.datasets.pool import Pool, pool_of, read
from pipeline.errors import RunError, UserError
from pipeline.experiment.settings import Inputs
from pipeline.report.fold_intervals import half_width_over_folds, paired_by_fold, widening
from pipeline.report.intervals import half_width, paired
from pipeline.runs.code.code_hash import modules
from pipeline.runs.differences import Account
from pipeline.runs.json_files import read_json
from pipeline.runs.result import Metric, by_name, rate, read_result
from pipeline.spec import spec
from pipeline.stages.about_runs import by_training
from pipeline.stages.about_runs.compare import measured_otherwise
from pipeline.stages.cells import without_result
from pipeline.stages.folds import Folds, of_other_data
from pipeline.stages.repeated import SEEDS, Over, Trained, trained_of
from pipeline.sweep.entries import Entry
from pipeline.sweep.pivot import Pivot
from pipeline.sweep.plan import Cell
from pipeline.sweep.summary import notes
from pipeline.tasks.classification import Classification
from pipeline.tasks.regression import Regression

SHORT = ("dataset=csv", "dataset.file=mine.csv", "model=linear", "training.epochs=3", "training.batch_size=8")
ROWS = 60


OVER_FOLDS = Over("fold", "dataset.fold", partial(half_width_over_folds, folds=5), spread=True)


def table(folder: Path, copies: int = 1, *, numbers: bool = False) -> None:
    """mine.csv: two columns, and a class (50 of a, 10 of b) or a number that follows from them."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 2)).round(4)
    names = ["a"] * 50 + ["b"] * 10
    target = [f"{one:.4f}" for one in x @ [1.0, -1.0]] if numbers else names
    lines = [f"{row[0]},{row[1]},{one}" for row, one in zip(x.tolist(), target, strict=True)]
    (folder / "mine.csv").write_text("\n".join(["p,q,kind", *lines * copies]) + "\n")


def pool(y: np.ndarray, task: Classification | Regression, validation: int | float = 0.2) -> Pool:
    """Examples whose x is their number."""
    x = np.arange(len(y), dtype=np.float64)[:, None]
    none = Split(x[:0], y[:0])
    return Pool(Data(Split(x, y), none, none, task, "hash"), validation, None)


@given(sizes=st.lists(st.integers(5, 30), min_size=2, max_size=4), folds=st.integers(2, 5), seed=st.integers(0, 9))
def test_every_example_is_tested_once_and_every_class_in_every_fold(sizes: list[int], folds: int, seed: int) -> None:
    y = np.repeat(np.arange(len(sizes)), sizes)
    task = Classification((1,), tuple(map(str, range(len(sizes)))))
    each = [fold_of(pool(y, task), folds, fold, seed) for fold in range(folds)]
    assert sorted(np.concatenate([one.test.x[:, 0] for one in each])) == list(range(len(y)))
    for one in each:
        together = np.concatenate([split.x[:, 0] for split in (one.train, one.validation, one.test)])
        assert sorted(together) == list(range(len(y)))
        assert (np.diff(one.test.x[:, 0]) > 0).all()  # in the pool's order, as its predictions are
        assert len(one.validation) == round(0.2 * (len(y) - len(one.test)))
        for label, size in enumerate(sizes):
            assert abs((one.test.y == label).sum() - size / folds) < 1


@given(n=st.integers(10, 60), folds=st.integers(2, 10))
def test_folds_of_numbers_differ_in_size_by_one_at_most(n: int, folds: int) -> None:
    of = division(pool(np.zeros((n, 1)), Regression((1,), 1)), folds, "stage.folds")
    sizes = np.bincount(of, minlength=folds)
    assert sizes.sum() == n and np.ptp(sizes) <= 1


@pytest.mark.parametrize("dataset", [Diabetes(), Digits()])
def test_the_seed_draws_the_validation_alone(dataset: Dataset) -> None:
    one, same, other = (loaded(dataset, seed, Inputs(folds=5, fold=1)) for seed in (0, 0, 1))
    for name in ("train", "validation", "test"):
        assert (getattr(one, name).x == getattr(same, name).x).all()
    assert (one.test.x == other.test.x).all() and (one.test.y == other.test.y).all()
    assert not (one.validation.x == other.validation.x).all()
    assert len(one.validation) == len(read(dataset, 0).validation)  # its own number
    assert one.sha256 == other.sha256 == read(dataset, 0).sha256  # of what is read, however it is divided
    assert (pool_of(dataset, "stage.folds").data.train.x[:9] == _first(dataset)).all()


def _first(dataset: Dataset) -> np.ndarray:
    """The first examples in the order in which scikit-learn has them."""
    from sklearn import datasets

    if isinstance(dataset, Digits):
        return datasets.load_digits().images[:9, ..., np.newaxis]
    return datasets.load_diabetes(scaled=False).data[:9].astype(np.float32)


def test_a_fold_trains_on_as_many_as_its_train_size() -> None:
    data = loaded(Diabetes(train_size=100), 0, Inputs(folds=10, fold=0))
    assert [len(split) for split in (data.train, data.validation, data.test)] == [100, 54, 45]
    with pytest.raises(UserError, match=r"dataset\.validation=250: must be at least 0 and less than 221, the training"):
        loaded(Diabetes(validation=250), 0, Inputs(folds=2, fold=0))


def test_what_normalises_is_of_the_training_part_of_each_fold() -> None:
    """Mean and deviation of all examples would tell the training something of its test."""
    found = set()
    for fold in range(3):
        node: dict[str, Any] = {"_target_": "pipeline.datasets.diabetes.Diabetes", "normalise": True}
        data = load_data(experiment("torch", dataset=node | {"folds": 3, "fold": fold}, loss="squared_error"))
        assert data.normalisation is not None
        np.testing.assert_allclose(data.normalisation.mean, data.train.x.astype(np.float64).mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(data.normalisation.std, data.train.x.astype(np.float64).std(axis=0), rtol=1e-6)
        found.add(data.normalisation.mean)
    assert len(found) == 3


@spec
class Divides(Dataset):
    """A dataset of the user's, which divides by the seed: 60, 20 and 20 of 100 examples."""

    task = Regression

    def load(self, root: Path, seed: int) -> Data:  # noqa: ARG002  # it needs no files
        order = np.random.default_rng(seed).permutation(100)
        x, y = order[:, None].astype(np.float64), np.ones((100, 1))
        parts = [Split(x[rows], y[rows]) for rows in (slice(0, 60), slice(60, 80), slice(80, 100))]
        return Data(parts[0], parts[1], parts[2], Regression((1,), 1), "hash")


def test_a_dataset_of_the_users_is_pooled_as_it_divides_itself() -> None:
    """It knows no folds: the order of one seed counts, and the share that it holds out of what is not its test."""
    one, other = (loaded(Divides(), seed, Inputs(folds=4, fold=2)) for seed in (0, 5))
    assert [len(split) for split in (one.train, one.validation, one.test)] == [56, 19, 25]
    assert (one.test.x == other.test.x).all() and not (one.train.x == other.train.x).all()


@spec
class Normalises(Divides):
    """The same, normalised by the training part of the division that it makes itself."""

    def load(self, root: Path, seed: int) -> Data:
        data = Divides().load(root, seed)
        return replace(data, normalisation=Normalisation.measured(data.train.x, None))


def test_numbers_that_normalise_every_fold_alike_are_noted() -> None:
    (note,) = loaded(Normalises(), 0, Inputs(folds=4, fold=2)).notes
    assert note.startswith("dataset=normalises: it normalises its examples by the same numbers in every fold: where ")


def test_images_in_a_folder_have_folds(tmp_path: Path) -> None:
    """In the order of their classes and names."""
    for name, colour in (("cat", 40), ("dog", 200)):
        (tmp_path / name).mkdir()
        for number in range(10):
            Image.new("L", (4, 4), colour + number).save(tmp_path / name / f"{number}.png")
    dataset = ImageFolder(folder=str(tmp_path), size=(4, 4), channels=1)
    whole = pool_of(dataset, "stage.folds").data.train
    assert whole.x[:, 0, 0, 0].tolist() == [*range(40, 50), *range(200, 210)]
    found = loaded(dataset, 0, Inputs(folds=5, fold=4))
    assert [np.bincount(split.y).tolist() for split in (found.train, found.validation, found.test)][2] == [2, 2]
    assert len(found.validation) == round(0.1 * 16)


def test_folds_of_data_that_are_drawn_anew_do_not_belong_together(tmp_path: Path) -> None:
    """Code of the user's that draws without a seed gives each fold other examples."""
    speed = rate("examples_per_s", 1.0, "examples")
    each = [Trained(str(fold), tmp_path, {}, speed, {"data_sha256": one}, [], ()) for fold, one in enumerate("aba")]
    assert of_other_data(each[::2], "a") is None
    assert str(of_other_data(each, "a")).startswith("fold 1: the data were others than when they were divided (another")
    assert str(of_other_data(each, "c")).startswith("fold 0, 1, 2: the data were others than")


def test_examples_of_the_test_that_are_trained_on_are_noticed(tmp_path: Path) -> None:
    """Twice in one pool, they are mostly in two folds."""
    x, y = np.random.default_rng(0).random((40, 3)), np.arange(40) % 2
    for name, copies in (("once", 1), ("twice", 2)):
        np.savez(tmp_path / f"{name}.npz", x=np.tile(x, (copies, 1)), y=np.tile(y, copies))
    once, twice = (
        loaded(Npz(file=str(tmp_path / f"{name}.npz")), 0, Inputs(folds=4, fold=0)).notes for name in ("once", "twice")
    )
    assert once == ()
    assert any("test examples are also in train, byte for byte (leakage)" in note for note in twice)


def test_too_few_examples_are_refused() -> None:
    task = Classification((1,), ("cat", "dog", "owl", "none"))
    few = pool(np.repeat([0, 1, 2], [3, 50, 4]), task)
    with pytest.raises(UserError) as refusal:
        division(few, 5, "stage.folds=5")
    assert str(refusal.value) == (
        "stage.folds=5: class cat has 3 examples (1 other also fewer than 5), and each fold tests some of every class; "
        "choose 3 folds at most, or leave such classes out"
    )
    with pytest.raises(UserError, match=r"stage\.folds=9: there are 8 examples; choose 8 folds at most"):
        division(pool(np.zeros((8, 1)), Regression((1,), 1)), 9, "stage.folds=9")
    assert set(division(few, 3, "stage.folds=3").tolist()) == {0, 1, 2}  # a class without any example is in none


def test_data_with_a_test_of_their_own_are_refused(tmp_path: Path) -> None:
    x, y = np.zeros((20, 3)), np.arange(20) % 2
    for part, name in (("test", "test"), ("val", "validation")):
        arrays: dict[str, Any] = {"x_train": x, "y_train": y, f"x_{part}": x, f"y_{part}": y}
        np.savez(tmp_path / "parts.npz", **arrays)
        with pytest.raises(UserError, match=f"stage.folds=5 with dataset=npz: the data have a {name} part, which "):
            pool_of(Npz(file=str(tmp_path / "parts.npz")), "stage.folds=5")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("dataset.folds=5", "dataset.folds=5: which of them is the test? Set dataset.fold to 0 to 4, or use "),
        ("dataset.fold=7", "dataset.fold=7: of how many? Set dataset.folds=8, or another number"),
        ("dataset.folds=5 dataset.fold=5", "dataset.fold=5 with dataset.folds=5: choose from 0 to 4"),
        ("dataset.folds=1 dataset.fold=0", "dataset.folds=1: should be greater than or equal to 2"),
        ("stage=folds stage.folds=1", "stage.folds=1: should be greater than or equal to 2"),
        ("stage=folds dataset.folds=3 dataset.fold=0", "dataset.folds=3 with stage=folds: it sets them; use stage.fol"),
        ("stage=folds", "stage=folds with dataset=fashion_mnist: its authors fixed the test set, and results of folds"),
        ("stage=folds dataset=moby_dick model=gpt", "stage=folds with dataset=moby_dick: its examples are tokens, "),
        (
            "stage=folds dataset=dates",
            "stage=folds with dataset=dates: its examples are pairs of sequences, and folds ",
        ),
        ("stage=folds dataset=recall", "stage=folds with dataset=recall: its examples are tokens, and folds are for"),
        ("stage=folds dataset=ode", "dataset=ode with stage=folds: is a problem; use stage=pinn model=fnn, or "),
        ("stage=pinn dataset=ode model=fnn dataset.folds=2 dataset.fold=0", "dataset.folds with stage=pinn: it would "),
        ("dataset=csv dataset.folds=2 dataset.fold=0 dataset.test=0.3", "dataset.test=0.3 with dataset.folds=2: each "),
        ("dataset=digits dataset.folds=200 dataset.fold=0", "dataset.folds=200: class 8 has 174 examples (9 others al"),
        ("stage=folds dataset=digits stage.folds=200", "stage.folds=200: class 8 has 174 examples (9 others also few"),
        ("stage=folds dataset=digits profiler=torch", "profiler=torch with stage=folds: "),
        ("stage=folds dataset=diabetes loss=squared_error model=cnn", "model=cnn with dataset=diabetes: takes images "),
        ("stage=seeds dataset=diabetes loss=squared_error model=cnn", "model=cnn with dataset=diabetes: takes images "),
    ],
)
def test_mistakes_are_named_before_a_run_begins(tmp_path: Path, words: str, said: str) -> None:
    assert refused(tmp_path, *words.split()).startswith(said)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_fold_is_a_separate_run_and_all_examples_are_predicted(tmp_path: Path) -> None:
    table(tmp_path)
    result = pipeline(tmp_path, "stage=folds", "stage.folds=3", *SHORT, "tracking=none", COLUMNS="80")
    assert result.returncode == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    whole, *each = sorted(runs(tmp_path), key=lambda run: (not (run / "cells").exists(), run.name))
    assert [status(run).name for run in each] == [f"fold-{fold}-linear-csv-torch-fp32" for fold in range(3)]
    receipts = [read_json(run / "receipt.json") for run in (whole, *each)]
    assert receipts[0]["wall_time_s"] > sum(receipt["training_s"] for receipt in receipts[1:])
    found = read_json(whole / "result.json")["scalars"]
    accuracies = [read_json(run / "result.json")["scalars"]["test/accuracy"] for run in each]
    half = half_width_over_folds(accuracies, 3)
    assert half is not None
    assert found["test/accuracy"] == pytest.approx(np.mean(accuracies), rel=1e-12)
    assert found["test/accuracy_high"] - found["test/accuracy"] == pytest.approx(half, rel=1e-9)
    assert [found[f"fold_{fold}/test_accuracy"] for fold in range(3)] == accuracies
    rows = rows_of(whole / "artifacts" / "predictions.csv")
    assert [row["example"] for row in rows] == [str(number) for number in range(ROWS)]
    assert [row["actual"] for row in rows] == ["a"] * 50 + ["b"] * 10  # as the file has them
    assert found["pooled/accuracy"] == np.mean([row["actual"] == row["predicted"] for row in rows])
    for fold, run in enumerate(each):
        own = [(row["actual"], row["predicted"]) for row in rows_of(run / "artifacts" / "predictions.csv")]
        assert own == [(row["actual"], row["predicted"]) for row in rows if row["fold"] == str(fold)]
    assert (whole / "artifacts" / "figures" / "confusion_matrix.png").is_file()
    assert "1.6 times as wide as for independent results (Nadeau and Bengio, 2003)" in result.stderr
    assert "of the same kind, 2/3 of as many to train and validate on, and this seed; folds" in result.stderr
    shares = [read_json(run / "receipt.json")["held_out"] for run in each]
    assert len({one["test"] for one in shares}) == 3
    listed = pipeline(tmp_path, "stage=runs", "stage.best=test/accuracy")  # else the luckiest fold is the best run
    assert "test/accuracy is not compared across dataset.folds=" in listed.stderr
    of_all = pipeline(tmp_path, "stage=runs", "stage.best=test/accuracy", "stage.where=stage.folds=3")
    assert (whole.name in of_all.stdout, "not compared" in of_all.stderr) == (True, False)
    beside = pipeline(tmp_path, "stage=compare", f"stage.runs=[{whole.name},{each[0].name}]").stdout
    assert [len(line.split()) for line in beside.splitlines() if line.startswith("test/accuracy ")] == [3]  # no b - a
    (worst,) = (text for name, text in kept_table(whole) if name == "worst class")
    actual, predicted = ([row[name] for row in rows] for name in ("actual", "predicted"))
    f1 = f1_score(actual, predicted, average=None, zero_division=0)
    assert worst.startswith(f"{'ab'[f1.argmin()]}: precision ") and worst.endswith(f"f1 {f1.min():.4f}")
    of_a_cell(tmp_path, whole, each)


def kept_table(run: Path) -> list[tuple[str, str]]:
    """The rows of a run's result."""
    kept = read_result(run)
    assert kept is not None
    return [(name, text) for name, text in kept.table]


def of_a_cell(folder: Path, whole: Path, each: list[Path]) -> None:
    """`latest` is a fold's model, of which the result says so; the whole has none, and the message says where they
    are."""
    (folder / "rows.csv").write_text("p,q\n0.1,0.2\n")
    made = done(folder, "stage=predict", "run=latest", "stage.rows=rows.csv")
    rows = dict(kept_table(made))
    assert rows["run"] == each[2].name
    assert rows["which is"] == f"dataset.fold=2, one of 3 folds, a cell of {whole.name}"
    said = refused(folder, "stage=predict", f"run={whole.name}", "stage.rows=rows.csv")
    assert said == (
        f"run={whole.name}: has no artifacts/model/weights.npz; it has a model for each fold: "
        f"{', '.join(f'{run.name} (dataset.fold={fold})' for fold, run in enumerate(each))}; the same command without "
        "stage=folds trains a single one"
    )


@pytest.mark.wide
def test_a_fold_is_an_experiment_by_itself(tmp_path: Path) -> None:
    """The same to the bit as below stage=folds; measured again on its own test, and on no other fold's."""
    table(tmp_path)
    assert pipeline(tmp_path, "stage=folds", "stage.folds=3", *SHORT, "tracking=none").returncode == 0
    (below,) = tmp_path.glob("runs/*-fold-1-*")
    alone = done(tmp_path, *SHORT, "stage=train", "dataset.folds=3", "dataset.fold=1", "tracking=none")
    digests = [read_json(run / "receipt.json")["weights_sha256"] for run in (alone, below)]
    assert digests[0] == digests[1]
    accuracy = read_json(below / "result.json")["scalars"]["test/accuracy"]
    again = done(tmp_path, "stage=evaluate", f"run={alone.name}", "tracking=none")
    assert read_json(again / "result.json")["scalars"]["test/accuracy"] == accuracy
    said = refused(tmp_path, "stage=evaluate", f"run={alone.name}", "dataset.fold=2")
    assert said.startswith("dataset.fold=2 with stage=evaluate: run ")


@pytest.mark.wide
def test_a_fold_without_a_result_leaves_those_of_the_others(tmp_path: Path) -> None:
    """One row is so large that each training diverges but that of the fold in which it is tested."""
    table(tmp_path, numbers=True)
    lines = (tmp_path / "mine.csv").read_text().splitlines()
    (tmp_path / "mine.csv").write_text("\n".join([*lines[:30], "1e30,1e30,1e30", *lines[31:]]) + "\n")
    words = ("dataset.targets=numbers", "loss=squared_error", "optimizer=sgd", "optimizer.learning_rate=0.1")
    result = pipeline(tmp_path, "stage=folds", "stage.folds=3", *SHORT, *words, "tracking=none")
    assert result.returncode == 1
    (whole,) = (run for run in runs(tmp_path) if (run / "cells").exists())
    kept = read_result(whole)
    assert kept is not None and status(whole).state == "FAILED"
    assert str(kept.failed).startswith("2 of 3 cells have no result: dataset.fold=")
    assert "; dataset.fold=" in str(kept.failed) and ": RunError: the loss became " in str(kept.failed)
    assert "predictions.csv: 20 of 60 examples have been tested" in kept.notes
    rows = rows_of(whole / "artifacts" / "predictions.csv")
    assert len(rows) == 20 and len({row["fold"] for row in rows}) == 1
    assert "29" in [row["example"] for row in rows]  # the large one, which was left out of the training


@pytest.mark.parametrize("over", [SEEDS, OVER_FOLDS])
def test_where_no_training_has_a_result_the_message_says_why(over: Over) -> None:
    cells = [Cell(number, {over.key: str(number)}, {}, [], None, None) for number in range(2)]
    lost = [Entry(cell, "failed", f"because {cell.number}", None, {}, None) for cell in cells]
    with pytest.raises(RunError) as raised:
        trained_of(lost, [], over)
    assert str(raised.value) == f"none of the 2 {over.word}s has a result; {over.key}=0: because 0"
    assert without_result(lost) == f"2 of 2 cells have no result: {over.key}=0, {over.key}=1; {over.key}=0: because 0"
    unknown = [replace(one, reason="") for one in lost]
    assert str(without_result(unknown)).endswith(f"{over.key}=1")


def cell_of_folds(number: int, swept: dict[str, str], value: float) -> Entry:
    """A cell of a grid over stage=folds."""
    stage = Folds(folds=int(swept.get("stage.folds", 5)))
    folds: Any = SimpleNamespace(stage=stage, solver=SimpleNamespace(seeds=1), dataset=None)
    cell = Cell(number, swept, {}, [], folds, None)
    return Entry(cell, "done", "", None, {"test/loss": Metric("test/loss", value, direction="min")}, None)


def test_a_grid_marks_the_best_of_as_many_folds_and_says_how_two_are_compared() -> None:
    """With more folds each trains on more examples, so that the better number says nothing of the setting."""
    swept = [{"stage.folds": folds, "optimizer": name} for folds in ("5", "10") for name in ("adam", "sgd")]
    found = [
        cell_of_folds(number, one, value) for number, (one, value) in enumerate(zip(swept, (4, 3, 1, 2), strict=True))
    ]
    assert Pivot(found).best() == {(("5",), "sgd"), (("10",), "adam")}
    best, chance = notes(found)
    assert best.startswith("* the best with as many folds by test/loss")
    assert chance == (
        "each is a mean over folds: a small difference may be chance; stage=compare stage.runs=[a,b] compares two "
        "with as many folds, fold by fold"
    )
    alone = [cell_of_folds(number, {"stage.folds": str(folds)}, 1.0 + folds) for number, folds in enumerate((5, 10))]
    assert notes(alone) == (
        "no two cells with as many folds: none is marked; sweep.best=test/loss compares all of them",
    )
    data = [cell_of_folds(number, {"dataset": name, **one}, 1.0) for name in "ab" for number, one in enumerate(swept)]
    assert notes(data)[0].startswith("* the best on the same data with as many folds, several being equal, by ")


@pytest.mark.wide
@pytest.mark.parametrize("stage", ["folds", "seeds"])
def test_a_grid_says_nothing_of_intervals_that_it_does_not_show(tmp_path: Path, stage: str) -> None:
    table(tmp_path)
    words = ("stage.folds=3,4",) if stage == "folds" else ()
    result = pipeline(tmp_path, "-m", f"stage={stage}", *SHORT, *words, "optimizer=adam,sgd", "tracking=none")
    assert result.returncode == 0, result.stderr
    said = result.stdout + result.stderr
    assert "the interval is" not in said
    assert ("compares two with as many folds, fold by fold" in said) is (stage == "folds")
    (grid,) = tmp_path.glob("runs/*-grid-*")
    assert not any("the interval is" in note for note in read_result(grid).notes)  # type: ignore[union-attr]
    (first, *_) = tmp_path.glob(f"runs/*-{stage}-linear-*")
    assert any(note.startswith("the interval is") for note in read_result(first).notes)  # type: ignore[union-attr]


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_other_backends_have_the_same_folds(tmp_path: Path, backend: str) -> None:
    table(tmp_path, numbers=True)
    words = (*SHORT, "dataset.targets=numbers", "loss=squared_error", "stage.folds=3", "tracking=none")
    wholes = []
    for name in ("torch", backend):
        assert pipeline(tmp_path, "stage=folds", *words, f"backend={name}").returncode == 0
        (whole,) = (run for run in runs(tmp_path) if (run / "cells").exists() and run not in wholes)
        wholes.append(whole)
    each = [rows_of(whole / "artifacts" / "predictions.csv") for whole in wholes]
    for name in ("example", "fold", "actual"):
        assert [row[name] for row in each[0]] == [row[name] for row in each[1]]
    predicted = [np.array([float(row["predicted"]) for row in rows]) for rows in each]
    np.testing.assert_allclose(predicted[0], predicted[1], rtol=1e-4, atol=1e-5)
    actual = [float(row["actual"]) for row in each[0]]
    found = [read_json(whole / "result.json")["scalars"]["pooled/r2"] for whole in wholes]
    assert found == pytest.approx([r2_score(actual, one) for one in predicted], rel=1e-9)


@pytest.mark.wide
def test_two_settings_are_compared_fold_by_fold(tmp_path: Path) -> None:
    """Also with other columns of the same table; not where the folds are of other examples."""
    table(tmp_path)
    changes = ("learning_rate=0.001", "learning_rate=0.03", "features=[p]", "folds=4")
    for group, change in zip(("optimizer", "optimizer", "dataset", "stage"), changes, strict=True):
        folds = () if group == "stage" else ("stage.folds=3",)
        words = (*folds, *SHORT, f"{group}.{change}", "tracking=none")
        assert pipeline(tmp_path, "stage=folds", *words).returncode == 0
    wholes = sorted(run.name for run in runs(tmp_path) if (run / "cells").exists())
    for other, n in zip(wholes[1:], ("3", "3", None), strict=True):
        result = pipeline(tmp_path, "stage=compare", f"stage.runs=[{wholes[0]},{other}]")
        assert result.returncode == 0, result.stderr
        if n is None:
            assert "not compared fold by fold: the two do not test the same examples in each fold" in result.stdout
            continue
        (title,) = (at for at, line in enumerate(result.stdout.splitlines()) if line == "b minus a, fold by fold")
        lines = result.stdout.splitlines()[title + 2 :]
        assert [line.split()[:2] for line in lines[:2]] == [["test/loss", n], ["test/accuracy", n]]


def of_folds(folder: Path, values: Sequence[float], **parts: Any) -> Account:
    """What a run of stage=folds with a metric of the user's says of itself."""
    (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    (folder / "artifacts" / "predictions.csv").write_text("example,fold,actual,predicted\n0,0,a,a\n1,1,a,b\n2,2,b,b\n")
    metrics = [
        Metric(f"fold_{fold}/test_{name}", one, role="fold") for name in NAMES for fold, one in enumerate(values)
    ]
    config = {"stage.folds": 3, "training.metrics": [{"_target_": "lab.Own", "at": 1}], "loss": "cross_entropy"}
    config |= parts.pop("config", {})
    return Account(folder, {"config": config}, None, by_name(metrics), (), **parts)


NAMES = ("loss", "accuracy", "own")


def test_what_was_measured_otherwise_is_not_compared_fold_by_fold(tmp_path: Path) -> None:
    """A metric of the user's with other settings, or whose code was edited, and another loss: they were compared."""
    first = of_folds(tmp_path / "a", [0.5, 0.6, 0.8], modules={"lab": "1"})
    for changed, left in (
        ({"modules": {"lab": "1"}}, ["test/loss", "test/accuracy", "test/own"]),
        ({"modules": {"lab": "2"}}, ["test/loss", "test/accuracy"]),
        ({"config": {"training.metrics": [{"_target_": "lab.Own", "at": 2}]}}, ["test/loss", "test/accuracy"]),
        ({"config": {"loss": "focal"}}, ["test/accuracy", "test/own"]),
    ):
        found = by_training.by_fold(first, of_folds(tmp_path / "b", [0.7, 0.6, 0.9], **changed), measured_otherwise)
        assert isinstance(found, list)
        assert [name for name, _ in found] == left


@pytest.mark.parametrize(
    ("size", "said"), [(100, "100 to train on"), (None, "2/3 of as many to train and validate on")]
)
def test_the_note_on_the_interval_says_how_many_are_trained_on(size: int | None, said: str) -> None:
    (note,) = Folds(folds=3)._said(3, experiment("torch", dataset=("digits", {"train_size": size})))
    assert f"other examples of the same kind, {said}, and this seed; folds share" in note


def test_settings_and_seeds_are_no_other_code_of_the_stage() -> None:
    """Two runs of other settings were said to be of edited code, and runs of several seeds were not put together."""
    digits: dict[str, Any] = {"_target_": "pipeline.datasets.digits.Digits", "validation": 180, "train_size": None}
    undivided = {**digits, "normalise": False, "folds": None, "fold": None}
    one, other = (
        modules(experiment("torch", seed, stage="folds", optimizer=by, dataset=undivided))
        for seed, by in ((0, "adam"), (1, "sgd"))
    )
    fold = experiment("torch", stage="train", dataset={**undivided, "folds": 5, "fold": 0})
    assert one.keys() ^ other.keys() == {"pipeline.optimizers.adam", "pipeline.optimizers.sgd"}
    assert all(one[name] == other[name] for name in one.keys() & other.keys())
    assert modules(fold).items() <= one.items()  # what decides a fold decides the whole


def test_predictions_of_folds_that_are_damaged_are_a_line_and_no_traceback(tmp_path: Path) -> None:
    both = [of_folds(tmp_path / name, [0.5, 0.6, 0.8]) for name in "ab"]
    path = both[1].folder / "artifacts" / "predictions.csv"
    path.write_text(path.read_text() + "x" * (csv.field_size_limit() + 1))
    assert by_training.by_fold(both[0], both[1], measured_otherwise) == by_training.OTHER_FOLDS


# How sure a mean over folds is


@pytest.mark.parametrize("folds", [3, 5, 10])
def test_the_corrected_interval_is_nadeau_and_bengios(folds: int) -> None:
    """Variance times 1/k + n_test/n_train, Student's quantile of k - 1 degrees of freedom, written out once more."""
    values = np.random.default_rng(folds).normal(size=folds).tolist()
    n_test, n_train = 1, folds - 1
    expected = stats.t.ppf(0.975, folds - 1) * np.sqrt((1 / folds + n_test / n_train) * np.var(values, ddof=1))
    assert half_width_over_folds(values, folds) == pytest.approx(expected, rel=1e-12)
    assert half_width_over_folds(values[:2], folds) is None  # as of any two values
    theirs = dict(zip("abcdefghij", values, strict=False))
    ours = {fold: 0.3 + 0.5 * value for fold, value in theirs.items()}
    found = paired_by_fold(ours, theirs, folds)
    differences = np.array(list(ours.values())) - values
    t = differences.mean() / np.sqrt((1 / folds + n_test / n_train) * differences.var(ddof=1))
    assert found is not None and found.half is not None
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), folds - 1), rel=1e-9)
    assert found.shown == (found.p < 0.05)
    plain = paired(ours, theirs)
    assert plain is not None and plain.half is not None
    assert found.half == pytest.approx(plain.half * widening(folds, folds), rel=1e-12)


def errors_by_fold(x: np.ndarray, y: np.ndarray, folds: int) -> list[float]:
    """The mean absolute error of least squares on each fold."""
    found = []
    for rows in np.array_split(np.arange(len(x)), folds):
        left = np.setdiff1d(np.arange(len(x)), rows)
        weights = np.linalg.lstsq(x[left], y[left], rcond=None)[0]
        found.append(float(np.abs(x[rows] @ weights - y[rows]).mean()))
    return found


def drawn(generator: np.random.Generator, n: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """A number that follows from the first column, with noise of deviation 1."""
    x = generator.normal(size=(n, columns))
    return x, x[:, 0] + generator.normal(size=n)


def test_the_interval_covers_about_as_often_as_it_claims_and_the_plain_one_does_not() -> None:
    """Least squares on 60 examples with 20 columns, five folds, 1,000 draws: the expected error of trainings on 48."""
    generator, n, columns, folds = np.random.default_rng(0), 60, 20, 5
    expected = []
    for _ in range(2000):
        x, y = drawn(generator, n - n // folds, columns)
        # The error of a new example is normal, with the variance 1 + |wrong|^2.
        wrong = np.linalg.lstsq(x, y, rcond=None)[0] - np.eye(columns)[0]
        expected.append(np.sqrt(2 / np.pi * (1 + wrong @ wrong)))
    truth, plain, corrected = np.mean(expected), 0, 0
    for _ in range(1000):
        values = errors_by_fold(*drawn(generator, n, columns), folds)
        off = abs(np.mean(values) - truth)
        plain += off <= (half_width(values) or 0)
        corrected += off <= (half_width_over_folds(values, folds) or 0)
    assert 930 <= corrected <= 985  # 95 % of 1,000: 936 to 964 is four standard errors
    assert plain <= 915


def equally_good(generator: np.random.Generator) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """Errors by fold of two models that are equally good: each sees the one column that counts, and 40 others."""
    for _ in range(1000):
        x, y = drawn(generator, 60, 81)
        each = (errors_by_fold(x[:, columns], y, 5) for columns in (np.arange(41), np.r_[0, 41:81]))
        yield tuple({str(fold): value for fold, value in enumerate(one)} for one in each)  # type: ignore[misc]


def test_the_paired_comparison_seldom_shows_a_difference_where_there_is_none() -> None:
    shown = {"plain": 0, "corrected": 0}
    for ours, theirs in equally_good(np.random.default_rng(1)):
        for name, found in (("plain", paired(ours, theirs)), ("corrected", paired_by_fold(ours, theirs, 5))):
            assert found is not None
            shown[name] += found.shown
    assert shown["corrected"] <= 65  # 5 % of 1,000, and two standard errors
    assert shown["plain"] >= 80
