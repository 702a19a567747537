"""Regression: real numbers as targets, of a shipped data set and of the user's own files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import done, message, pipeline, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from pipeline.datasets import number_files
from pipeline.datasets.check import check_data
from pipeline.datasets.diabetes import Diabetes
from pipeline.datasets.npz import Npz
from pipeline.errors import UserError
from pipeline.losses.squared_error import SquaredError
from pipeline.runs.json_files import read_json
from pipeline.runs.result import metrics_of, values
from pipeline.tasks import Judge
from pipeline.tasks.regression import Regression

RECIPE = ("experiment=diabetes", "training.epochs=2")


def judged(actual: np.ndarray, predicted: np.ndarray, batch: int = 7) -> Judge:
    judge = Regression((3,), actual.shape[1]).judge(SquaredError())
    for first in range(0, len(actual), batch):
        rows = slice(first, first + batch)
        judge.add(np.zeros((len(actual[rows]), 3)), predicted[rows], actual[rows])
    return judge


@settings(max_examples=40)
@given(st.integers(2, 40), st.integers(1, 3), st.floats(-1e3, 1e3), st.integers(0, 99))
def test_errors_are_those_of_scikit_learn(n: int, outputs: int, offset: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    actual = offset + generator.normal(size=(n, outputs))
    predicted = actual + generator.normal(size=(n, outputs))
    judge = judged(actual, predicted)
    found = values((*judge.metrics(), *judge.details().metrics))
    assert found["test/loss"] == pytest.approx(np.square(actual - predicted).mean())
    assert found["test/mean_absolute_error"] == pytest.approx(mean_absolute_error(actual, predicted))
    of_outputs = root_mean_squared_error(actual, predicted, multioutput="raw_values")
    assert found["test/root_mean_squared_error"] == pytest.approx(np.sqrt(np.square(of_outputs).mean()))
    assert found["test/r2"] == pytest.approx(r2_score(actual, predicted), rel=1e-6, abs=1e-6)
    assert Regression.tested.keys() == {name.removeprefix("test/") for name in found}


def test_of_several_outputs_each_has_a_row() -> None:
    actual = np.array([[0.0, 10.0], [2.0, 30.0]])
    (table,) = judged(actual, actual + np.array([1.0, 0.0])).details().tables
    assert table.rows == (
        ("0", "1.0000", "1.0000", "0.0000; no better than the targets' mean for every example"),
        ("1", "0.0000", "0.0000", "1.0000"),
    )


def test_the_score_of_an_epoch_is_the_error_of_the_test() -> None:
    """With three targets it was three times as large."""
    generator = np.random.default_rng(0)
    outputs, y = generator.normal(size=(2, 20, 3))
    ops: Any = np
    each = Regression((3,), 3).scores(ops, outputs, y)
    assert each.shape == (20,)
    assert each.mean() == pytest.approx(values(judged(y, outputs).metrics())["test/mean_absolute_error"])


def test_targets_that_are_all_the_same_have_no_r2() -> None:
    """It would be a division by zero, and then infinite, or by the rounding of a mean."""
    details = judged(np.full((9, 1), 0.1), np.zeros((9, 1))).details()
    assert [metric.name for metric in details.metrics] == ["test/root_mean_squared_error"]
    assert ("test r2", "none: all targets are the same") in details.rows
    several = judged(np.array([[0.0, 0.1], [2.0, 0.1]]), np.array([[0.0, 0.0], [2.0, 0.0]])).details()
    assert ("test r2", "none: all targets of output 1 are the same") in several.rows
    assert [row[3] for row in several.tables[0].rows] == ["1.0000", "none: all targets are the same"]


def test_what_the_mean_would_do_as_well_is_said() -> None:
    actual = np.arange(9.0)[:, None]
    assert dict(judged(actual, actual[::-1]).details().rows)["test r2"] == (
        "-3.0000; no better than the targets' mean for every example"
    )


@pytest.mark.parametrize(
    ("y", "wrong"),
    [
        (np.zeros((4, 2)), "shape (4, 2) and dtype float64; targets are (N, 1) floating-point numbers"),
        (np.zeros(4), "shape (4,) and dtype float64; targets are (N, 1) floating-point numbers"),
        (np.zeros((4, 1), int), "shape (4, 1) and dtype int64; targets are (N, 1) floating-point numbers"),
        (np.array([[np.nan]]), "holds numbers that are not finite"),
        (np.zeros((4, 1)), None),
    ],
)
def test_targets_are_checked(y: np.ndarray, wrong: str | None) -> None:
    assert Regression((3,), 1).check(y) == wrong


def test_diabetes_is_that_of_scikit_learn(tmp_path: Path) -> None:
    data, other = (Diabetes().load(tmp_path, seed) for seed in (0, 1))
    check_data(data, "diabetes")
    splits = (data.train, data.validation, data.test)
    assert [len(split) for split in splits] == [300, 54, 88]
    assert np.array_equal(data.test.x, other.test.x) and data.sha256 == other.sha256
    assert not np.array_equal(data.validation.x, other.validation.x)
    x, y = load_diabetes(return_X_y=True, scaled=False)
    theirs = np.column_stack([x, y]).astype(np.float32)
    ours = np.column_stack([np.concatenate([getattr(split, part) for split in splits]) for part in "xy"])
    assert np.array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])
    assert list(tmp_path.iterdir()) == []


def load(folder: Path, y: np.ndarray, n: int = 60, **more: Any) -> Any:
    arrays = {name: more.pop(name) for name in [*more] if name[:2] in ("x_", "y_")}
    np.savez(folder / "own.npz", **(arrays or {"x": np.zeros((n, 4), np.float32), "y": y}))
    return Npz(file=str(folder / "own.npz"), targets="numbers", **more).load(folder, 0)


@pytest.mark.parametrize(
    ("y", "dtype", "outputs"),
    [
        (np.linspace(0, 1, 60, dtype=np.float32), "float32", 1),
        (np.linspace(0, 1, 120).reshape(60, 2), "float64", 2),
        (np.arange(60), "float64", 1),
        (np.linspace(0, 1, 60, dtype=np.float16)[:, None], "float64", 1),
    ],
)
def test_numbers_of_a_file(tmp_path: Path, y: np.ndarray, dtype: str, outputs: int) -> None:
    data = load(tmp_path, y)
    check_data(data, "npz")
    assert data.task == Regression((4,), outputs)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [43, 5, 12]
    together = np.concatenate([split.y for split in (data.train, data.validation, data.test)])
    assert together.dtype == dtype
    assert np.array_equal(np.sort(together, axis=0), y.reshape(60, -1).astype(dtype))


@pytest.mark.parametrize(
    ("y", "more", "said"),
    [
        (
            np.full(60, "a"),
            {},
            "its targets have dtype <U1 and shape (60,); dataset.targets=numbers takes real numbers",
        ),
        (
            np.zeros((60, 2, 2)),
            {},
            "its targets have dtype float64 and shape (60, 2, 2); dataset.targets=numbers takes",
        ),
        (np.zeros(60, bool), {}, "its targets have dtype bool and shape (60,); dataset.targets=numbers takes"),
        (np.r_[np.inf, np.zeros(59)], {}, "its targets hold numbers that are not finite in float32; leave these"),
        (np.r_[1e39, np.zeros(59)], {}, "its targets hold numbers that are not finite in float32; leave these"),
        (np.zeros(59), {}, "train has 60 x and 59 y; give one y for each x"),
        (
            np.zeros(60),
            {"classes": ("a", "b")},
            "dataset.classes with dataset.targets=numbers: numbers have no classes",
        ),
        (
            np.zeros(0),
            {
                "x_train": np.zeros((9, 2)),
                "y_train": np.zeros((9, 2)),
                "x_test": np.zeros((9, 2)),
                "y_test": np.zeros(9),
            },
            "y of 1 and 2 numbers; give all parts the same number",
        ),
    ],
)
def test_targets_that_are_no_numbers_are_refused(tmp_path: Path, y: np.ndarray, more: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, y, **more)
    assert said in str(caught.value)


def test_real_numbers_as_classes_are_refused_with_the_setting_that_takes_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((60, 4)), y=np.linspace(0, 1, 60))
    with pytest.raises(
        UserError, match=r"have dtype float64; classes are .* \(dataset\.targets=numbers for real numbers"
    ):
        Npz(file=str(tmp_path / "own.npz")).load(tmp_path, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stage=train", "dataset=diabetes"), "and the targets of this dataset are numbers; use loss=squared_error"),
        (("loss=huber", "dataset=digits"), "and the targets of this dataset are classes; use loss=cross_entropy"),
        (("dataset=diabetes",), "not Classification; use stage=train loss=squared_error; or dataset=digits"),
        ((*RECIPE, "training.metrics=[accuracy]"), "takes classes, and the targets of dataset=diabetes are numbers"),
        ((*RECIPE, "loss=huber", "loss.delta=0"), "loss.delta=0: should be greater than 0"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused(tmp_path, *words)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return done(tmp_path_factory.mktemp("regression"), "experiment=diabetes")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_recipe_as_it_ships(recipe: Path) -> None:
    found = values(metrics_of(recipe).values())
    assert found["test/r2"] > 0.45  # least squares: 0.51
    rows = table(recipe / "artifacts/predictions.csv")
    actual, predicted = (np.array([float(row[name]) for row in rows]) for name in ("actual", "predicted"))
    assert np.array_equal(actual, Diabetes().load(recipe, 0).test.y[:, 0])
    assert found["test/mean_absolute_error"] == pytest.approx(np.abs(actual - predicted).mean())
    assert found["test/r2"] == pytest.approx(r2_score(actual, predicted))
    assert (recipe / "artifacts/figures/predicted_against_actual.png").stat().st_size > 5000


def test_rows_of_a_file_are_predicted_as_those_of_the_test_set(recipe: Path) -> None:
    x = Diabetes().load(recipe, 0).test.x
    head = ",".join(("age", "sex", "bmi", "bp", *(f"s{number}" for number in range(1, 7))))
    folder = recipe.parents[1]
    np.savetxt(folder / "rows.csv", x, delimiter=",", header=head, comments="", fmt="%.9g")
    np.save(folder / "rows.npy", x)
    tested = [row["predicted"] for row in table(recipe / "artifacts/predictions.csv")]
    for name in ("rows.csv", "rows.npy"):
        run = done(folder, "stage=predict", f"run={recipe.name}", f"stage.rows={name}")
        rows = table(run / "artifacts/predictions.csv")
        assert [row["row"] for row in rows] == [str(number) for number in range(1, 89)]
        np.testing.assert_allclose([float(row["predicted"]) for row in rows], [float(one) for one in tested], rtol=1e-6)
        assert read_json(run / "receipt.json")["data_sha256"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.zeros((4, 3)), "holds an array of shape (4, 3); the model takes rows of 10 numbers"),
        (np.zeros((0, 10)), "holds no rows"),
        (np.full((2, 10), np.nan), "row 1 holds numbers that are not finite"),
        (np.full((2, 10), "a"), "no readable rows ("),
    ],
)
def test_rows_that_the_model_does_not_take_are_refused(recipe: Path, rows: np.ndarray, said: str) -> None:
    folder = recipe.parents[1]
    np.save(folder / "wrong.npy", rows)
    assert said in refused(folder, "stage=predict", f"run={recipe.name}", "stage.rows=wrong.npy")


def test_rows_beyond_float32_are_refused(recipe: Path) -> None:
    np.save(recipe.parents[1] / "large.npy", np.full((2, 10), 1e300))
    said = pipeline(recipe.parents[1], "stage=predict", f"run={recipe.name}", "stage.rows=large.npy").stderr
    assert "row 1 holds numbers that float32 cannot hold" in said and "Warning" not in said


@pytest.mark.parametrize(
    ("head", "note"),
    [("0,1,2", "the first row, 0 to 2, is read as the names of the columns"), ("a,blood pressure,1st", ""), ("", "")],
)
def test_the_first_row_of_a_table_may_be_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], head: str, note: str
) -> None:
    """Names that are numbers, as pandas writes them, were a row: each prediction stood one too low."""
    rows = ["0,1.5,2", "0,1,4"]
    (tmp_path / "rows.csv").write_text("\n".join([head, *rows] if head else rows))
    found = number_files.read("stage.rows", str(tmp_path / "rows.csv"), "row", 3, "")
    assert found.tolist() == [[0, 1.5, 2], [0, 1, 4]]
    assert note in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("N/A,N/A\n1,2\n", "row 1 has 'N/A', which is not a number"),  # it was taken for names
        ("a,b\n1,2\n1,2,3\n", "row 2 has 3 numbers, the first row 2"),
        ("1,2\n1_5,2\n", "row 2 has '1_5', which is not a number"),
        ("1_5,2_5\n1,2\n", "row 1 has '1_5', which is not a number"),
        ("1,2\n１,2\n", "row 2 has '１', which is not a number"),
        ("1;2\n3;4\n", "row 1 is '1;2'; numbers in a .csv are separated by commas"),
        ("a b\n1 2\n", "row 1 is '1 2'; numbers in a .csv are separated by commas"),
        ("1,2\n3,oops\n", "row 2 has 'oops', which is not a number"),
        ("1,2\n3,\n", "row 2 has '', which is not a number"),
        ("1,2\ninf,-nan\n", "row 2 holds numbers that are not finite: inf, nan"),
        ("1,2,3\n", "holds an array of shape (1, 3); rows of two"),
        ("a,b\n", "holds no rows"),
    ],
)
def test_a_mistake_in_a_table_is_named_by_its_row(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(UserError) as refusal:
        number_files.read("stage.rows", str(tmp_path / "rows.csv"), "row", 2, "rows of two")
    assert str(refusal.value) == f"stage.rows={tmp_path / 'rows.csv'}: {said}"


def test_other_examples_than_rows_are_refused(recipe: Path) -> None:
    folder = recipe.parents[1]
    for words, said in (
        (("stage.rows=none.csv",), "stage.rows=none.csv: no such file"),
        (
            ("stage.images=[a.png]",),
            "its task is Regression; stage.images is for classes; give it rows of numbers: stage.rows=rows.csv",
        ),
        (("stage.points=a.csv",), "stage.points=a.csv: this run solved no problem; leave it out"),
        (("stage.rows=a.csv", "stage.images=[a.png]"), "with stage.images or stage.invert: a model takes one of them"),
    ):
        assert said in message(pipeline(folder, "stage=predict", f"run={recipe.name}", *words))


def test_rows_of_bytes_are_divided_as_they_were_in_training(tmp_path: Path) -> None:
    """The model was trained on x / 255: rows that were not divided would be far from all that it has seen."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (200, 6), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=(x[:, 0] > 127).astype(int))
    run = done(tmp_path, "dataset=npz", "dataset.file=own.npz", "model=linear", "training.epochs=20")
    tested = [row["predicted"] for row in table(run / "artifacts/predictions.csv")]
    data = Npz(file=str(tmp_path / "own.npz")).load(tmp_path, 0)
    np.savetxt(tmp_path / "rows.csv", data.test.x, delimiter=",")
    again = done(tmp_path, "stage=predict", f"run={run.name}", "stage.rows=rows.csv")
    rows = table(again / "artifacts/predictions.csv")
    assert [row["predicted"] for row in rows] == tested and len(set(tested)) == 2
    assert float(rows[0]["0"]) + float(rows[0]["1"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.wide
@pytest.mark.parametrize("loss", ["squared_error", "huber"])
def test_the_backends_agree(tmp_path: Path, loss: str) -> None:
    words = (*RECIPE, "precision=fp64", f"loss={loss}")
    made = [done(tmp_path, *words, f"backend={one}") for one in ("torch", "tensorflow", "jax")]
    found = [{**values(metrics_of(run).values()), **read_json(run / "result.json")["last_epoch"]} for run in made]
    for name in ("test/loss", "test/mean_absolute_error", "test/r2", "epoch/train_mean_absolute_error"):
        assert [one[name] for one in found[1:]] == pytest.approx([found[0][name]] * 2, rel=1e-9)


@pytest.mark.wide
def test_a_grid_over_losses_is_judged_by_the_validation_data(tmp_path: Path) -> None:
    shown = pipeline(tmp_path, "-m", *RECIPE, "loss=squared_error,huber")
    assert shown.returncode == 0
    assert "* the best by validation/mean_absolute_error" in " ".join(shown.stdout.split())
