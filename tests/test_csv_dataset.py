"""dataset=csv: a table of the user's, whose columns have names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import done, refused

from pipeline.datasets.csv import Csv
from pipeline.errors import UserError
from pipeline.runs.json_files import read_json
from pipeline.runs.result import metrics_of

HEAD = "length (mm),width,kind"
ROWS = [f"{number},{number % 7}.5,{'ash' if number < 30 else 'beech'}" for number in range(60)]


def written(folder: Path, *lines: str) -> str:
    (folder / "trees.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "trees.csv")


def test_a_table_is_read_by_its_columns(tmp_path: Path) -> None:
    data = Csv(file=written(tmp_path, "\ufeff" + HEAD, *ROWS), validation=0, test=0).load(tmp_path, 0)
    assert data.columns == ("length (mm)", "width") and data.task.card()["classes"] == ["ash", "beech"]
    assert data.train.x.dtype == np.float64  # fp64 trains on the numbers that predict reads
    found = sorted((*x, y) for x, y in zip(data.train.x.tolist(), data.train.y.tolist(), strict=True))
    assert found == [(number, number % 7 + 0.5, int(number >= 30)) for number in range(60)]


def test_target_and_features_are_chosen_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD, *ROWS)
    chosen = Csv(file=file, target="width", targets="numbers", features=("length (mm)",), validation=0, test=0)
    data = chosen.load(tmp_path, 0)
    assert data.columns == ("length (mm)",) and data.train.x.shape == (60, 1)
    assert (data.train.y == data.train.x % 7 + 0.5).all()


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    file = written(tmp_path, "x,y", *(f"{number},{number % 12 + 1}" for number in range(60)))
    assert Csv(file=file).load(tmp_path, 0).task.card()["classes"] == [str(number) for number in range(1, 13)]


@pytest.mark.parametrize(
    ("lines", "settings", "said"),
    [
        (
            [HEAD, *ROWS],
            {"target": "sort"},
            "dataset.target: {file} has no column sort; it has length (mm), width, kind",
        ),
        (
            [HEAD, *ROWS],
            {"features": ("width", "kind")},
            "dataset.features has the target, kind: it would be predicted ",
        ),
        ([HEAD, *ROWS], {"target": "width", "targets": "numbers"}, "row 1 has 'ash' for kind, which is not a number; "),
        ([HEAD, *ROWS], {"target": "width"}, "the target width has 0.5, a number; for a regression stage=train "),
        ([HEAD, *ROWS, "1,,ash"], {}, "{file}: row 61 has '' for width, which is not a number; columns of numbers: "),
        ([HEAD, *ROWS, "1,2,"], {}, "{file}: row 61 has no kind, the target; leave the row out"),
        ([HEAD, *ROWS, "1,2"], {}, "{file}: row 61 has 2 cells, and there are 3 columns"),
        (ROWS, {}, "{file}: its first row is 0, 0.5, ash; the first row has to name each column"),
        (["a,a,kind", *ROWS], {}, "{file}: two columns are called a; the first row has to name each column"),
        ([HEAD], {}, "{file}: holds no rows below a line of names, separated by commas"),
        (["a;b", "1;2"], {}, "{file}: holds no rows below a line of names, separated by commas"),
        (["kind", "ash"], {}, "{file}: has one column, kind; give others that it is predicted from"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(
    lines: list[str], settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = written(tmp_path, *lines)
    with pytest.raises(UserError) as raised:
        Csv(file=file, **settings).load(tmp_path, 0)
    assert said.format(file=f"dataset.file={file}") in str(raised.value)


def test_columns_in_another_order_are_found_by_their_names(tmp_path: Path) -> None:
    """By predict and by evaluate: the model would see widths for lengths."""
    file = written(tmp_path, HEAD, *ROWS)
    trained = ("dataset=csv", f"dataset.file={file}", "dataset.normalise=true", "model=mlp", "model.units=[8]")
    run = done(tmp_path, *trained, "training.epochs=20", "optimizer.learning_rate=0.05", "training.batch_size=8")
    assert read_json(run / "artifacts/model/card.json")["columns"] == ["length (mm)", "width"]
    turned = [",".join((row.split(",")[1], row.split(",")[0], row.split(",")[2])) for row in ROWS]
    (tmp_path / "later.csv").write_text("\n".join(("width,length (mm),kind", *turned)))
    (tmp_path / "rows.csv").write_text("\n".join(("width,length (mm)", *(row.rpartition(",")[0] for row in turned))))
    (tmp_path / "other.csv").write_text("\n".join((HEAD.replace("width", "height"), *ROWS)))
    said = refused(tmp_path, "stage=predict", f"run={run.name}", "stage.rows=other.csv")
    assert "its columns are length (mm), height, kind; a row is (length (mm), width)" in said
    predicted = done(tmp_path, "stage=predict", f"run={run.name}", "stage.rows=rows.csv")
    lines = (predicted / "artifacts/predictions.csv").read_text().splitlines()[1:]
    right = np.mean([line.split(",")[1] == row.split(",")[2] for line, row in zip(lines, ROWS, strict=True)])
    again = done(tmp_path, "stage=evaluate", f"run={run.name}", "dataset=csv", "dataset.file=later.csv")
    assert metrics_of(again)["test/accuracy"].value == right > 0.9
    said = refused(tmp_path, "stage=evaluate", f"run={run.name}", "dataset=csv", "dataset.file=other.csv")
    assert "the model takes the columns length (mm), width; dataset.features names columns, and here they are" in said
