"""dataset=csv: a table of the user's, whose columns have names."""

from __future__ import annotations

import gzip
import re
import shlex
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import done, pipeline, refused
from hydra.core.override_parser.overrides_parser import OverridesParser

from pipeline.datasets.csv import Csv
from pipeline.errors import UserError, listed
from pipeline.runs.json_files import read_json
from pipeline.runs.result import metrics_of, read_result

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


@pytest.mark.parametrize(
    ("columns", "largest", "words", "noted"),
    [
        (3, 300.0, (), True),
        (3, 300.0, ("dataset.normalise=true",), False),
        (3, 30.0, (), False),  # times that of the others
        (2, 300.0, (), True),
        (1, 300.0, (), False),
    ],
)
def test_a_column_of_another_scale_is_noted_where_nothing_normalises_it(
    tmp_path: Path, columns: int, largest: float, words: tuple[str, ...], noted: bool
) -> None:
    x = np.random.default_rng(0).normal(size=(100, columns)) * [*[1.0] * (columns - 1), largest]
    lines = [",".join([*(f"{value:.4f}" for value in row), "ash" if row[0] < 0 else "beech"]) for row in x]
    file = written(tmp_path, ",".join([*("length", "width")[: columns - 1], "height", "kind"]), *lines)
    run = done(tmp_path, "dataset=csv", f"dataset.file={file}", "model=linear", "training.epochs=1", *words)
    said = [note for note in read_result(run).notes if "dataset.normalise=true" in note]  # type: ignore[union-attr]
    assert [note.startswith("dataset=csv: height spreads over ") for note in said] == [True] * noted


def test_a_column_that_numbers_the_rows_is_noted(tmp_path: Path) -> None:
    """Trained on, it hides what the others say, or, in a table that is sorted, tells the class."""
    rows = [f"{number + number // 9},{number % 7}.5,{number % 2}" for number in range(60)]  # some were left out
    file = written(tmp_path, "id,width,kind", *rows)
    (note,) = Csv(file=file).load(tmp_path, 0).notes
    assert note.startswith("id rises by whole numbers from row to row") and note.endswith("dataset.features=[width]'")
    assert not Csv(file=file, features=("id", "width")).load(tmp_path, 0).notes  # it was chosen
    assert not Csv(file=written(tmp_path, HEAD, *reversed(ROWS))).load(tmp_path, 0).notes


def test_target_and_features_are_chosen_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD, *ROWS)
    chosen = Csv(file=file, target="width", targets="numbers", features=("length (mm)",), validation=0, test=0)
    data = chosen.load(tmp_path, 0)
    assert data.columns == ("length (mm)",) and data.train.x.shape == (60, 1)
    assert (data.train.y == data.train.x % 7 + 0.5).all()


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    file = written(tmp_path, "x,y", *(f"{number},{number % 12 + 1}" for number in range(60)))
    assert Csv(file=file).load(tmp_path, 0).task.card()["classes"] == [str(number) for number in range(1, 13)]


def test_lines_without_a_cell_are_no_rows(tmp_path: Path) -> None:
    """CRLF, a line of blanks, and no end of the last line."""
    (tmp_path / "trees.csv").write_bytes("\r\n".join([HEAD, "", *ROWS[:30], "   ", *ROWS[30:]]).encode())
    data = Csv(file=str(tmp_path / "trees.csv"), validation=0, test=0).load(tmp_path, 0)
    assert sorted(data.train.x[:, 0].tolist()) == list(range(60))


def test_a_large_table_takes_little_more_than_its_numbers(tmp_path: Path) -> None:
    """A list of the cells took ten times as much."""
    rows = [",".join(map(str, row)) for row in np.random.default_rng(0).normal(size=(20_000, 20))]
    file = written(tmp_path, ",".join(f"c{number}" for number in range(20)), *rows)
    tracemalloc.start()
    Csv(file=file, targets="numbers").load(tmp_path, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 20_000 * 20 * 8


@pytest.mark.parametrize("content", ["größe,b\n1,2\n".encode("latin-1"), gzip.compress(b"a,b\n1,2\n", mtime=0)])
def test_a_file_that_is_no_text_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "trees.csv").write_bytes(content)
    with pytest.raises(UserError, match="is not text in UTF-8; save it as such, and not compressed"):
        Csv(file=str(tmp_path / "trees.csv")).load(tmp_path, 0)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("0", "1", "1.0"), "the target kind has 1 and 1.0, which would be two classes; write a number in one way"),
        (("0", "nan", "1"), "row 2 has nan for kind, the target; leave the row out"),
        (('"ash', 'oak"', "elm"), "the target kind has 'ash\\n2,oak', of several lines; is a quote not closed?"),
    ],
)
def test_labels_that_would_be_wrong_classes_are_refused(labels: tuple[str, ...], said: str, tmp_path: Path) -> None:
    file = written(tmp_path, "x,kind", *(f"{number},{label}" for number, label in enumerate(labels, start=1)))
    with pytest.raises(UserError, match=re.escape(said)):
        Csv(file=file, validation=0, test=0).load(tmp_path, 0)


def test_classes_that_may_be_none_are_noted(tmp_path: Path) -> None:
    """Labels that R leaves out as NA, and a number that is measured."""
    file = written(tmp_path, "x,kind", *(f"{number},{('NA', 'ash')[number % 2]}" for number in range(60)))
    assert (
        "a class of kind is called NA; if it stands for a label that is missing"
        in Csv(file=file).load(tmp_path, 0).notes[0]
    )
    file = written(tmp_path, "x,kind", *(f"{number},{('Ash', 'ash', 'oak')[number % 3]}" for number in range(60)))
    assert Csv(file=file).load(tmp_path, 0).notes == (
        "kind has the classes Ash, ash; if they are one, write it in one way",
    )
    file = written(tmp_path, "x,price", *(f"{number},{number % 200}" for number in range(400)))
    (note,) = Csv(file=file).load(tmp_path, 0).notes
    assert note.startswith("price has 200 different whole numbers, each of them a class; for a regression stage=train ")


def test_large_numbers_that_are_one_in_float_are_classes_in_their_order(tmp_path: Path) -> None:
    file = written(tmp_path, "x,y", *(f"{number},{2**53 + 1 - number % 2}" for number in range(60)))
    assert Csv(file=file).load(tmp_path, 0).task.card()["classes"] == ["9007199254740992", "9007199254740993"]


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
        (
            [HEAD, *ROWS],
            {"target": "width", "features": ("length (mm)",)},
            "the target width has 0.5, a number; for a regression stage=train ",
        ),
        (
            [HEAD, *ROWS, "1,,ash"],
            {},
            "{file}: row 61 has '' for width, which is not a number; leave such rows out; without such columns: "
            "'dataset.features=[\"length (mm)\"]'",
        ),
        ([HEAD, *ROWS, "1_5,2,ash"], {}, "{file}: row 61 has '1_5' for length (mm), which is not a number; without "),
        ([HEAD, *ROWS, "1,nan,ash"], {}, "{file}: row 61 has nan for width, which is not a finite number of float32 "),
        ([HEAD, *ROWS, "1e400,1,ash"], {}, "{file}: row 61 has inf for length (mm), which is not a finite number of "),
        ([HEAD, *ROWS, "1,-1e40,ash"], {}, "{file}: row 61 has -1e+40 for width, which is not a finite number of "),
        (
            ["x,y", *(f"{row},{row}" for row in range(9)), "1,nan"],
            {"targets": "numbers"},
            "{file}: row 10 has nan for y, which is not a finite number of float32 (up to 3.4e38); leave such rows out",
        ),
        ([HEAD, *ROWS], {"features": ("width", "width")}, "dataset.features names width twice"),
        ([HEAD, *ROWS, "1,2,"], {}, "{file}: row 61 has no kind, the target; leave the row out"),
        ([HEAD, *ROWS, "1,2"], {}, "{file}: row 61 has 2 cells, and the first row names 3 columns"),
        (ROWS, {}, "{file}: its first row is 0, 0.5, ash; the first row has to name each column"),
        (["a,a,kind", *ROWS], {}, "{file}: two columns are called a; the first row has to name each column"),
        ([HEAD], {}, "{file}: holds no rows below the line of names"),
        ([], {}, "{file}: is empty; columns are separated by commas, and numbers have a decimal point"),
        (["a;b", "1,5;2,5"], {}, "{file}: its first row is 'a;b'; columns are separated by commas, and numbers have "),
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


@pytest.mark.parametrize(
    "names", [("length", "width_2"), ("length (mm)", "true", 'a "b"', "Ann's"), ("größe", "7", "")]
)
def test_a_list_in_a_message_can_be_typed(names: tuple[str, ...]) -> None:
    """It had been written as Python writes it, which a shell and Hydra do not take."""
    (word,) = shlex.split(listed("dataset.features", names))
    (override,) = OverridesParser.create().parse_overrides([word])
    value = override.value()
    assert isinstance(value, list) and tuple(getattr(one, "text", one) for one in value) == names


def test_columns_in_another_order_are_found_by_their_names(tmp_path: Path) -> None:
    """By predict and by evaluate: the model would see widths for lengths."""
    file = written(tmp_path, HEAD, *ROWS)
    trained = ("dataset=csv", f"dataset.file={file}", "dataset.normalise=true", "model=mlp", "model.units=[8]")
    run = done(tmp_path, *trained, "training.epochs=20", "optimizer.learning_rate=0.05", "training.batch_size=8")
    assert read_json(run / "artifacts/model/card.json")["columns"] == ["length (mm)", "width"]
    turned = [",".join((row.split(",")[1], row.split(",")[0], row.split(",")[2])) for row in ROWS]
    (tmp_path / "later.csv").write_text("\n".join(("width,length (mm),kind", *turned)))
    beside = [f"tree {number},{row}" for number, row in enumerate(turned)]  # a new table has more than the model takes
    (tmp_path / "rows.csv").write_text("\n".join(("name,width,length (mm),kind", *beside)))
    (tmp_path / "other.csv").write_text("\n".join((HEAD.replace("width", "height"), *ROWS)))
    said = refused(tmp_path, "stage=predict", f"run={run.name}", "stage.rows=other.csv")
    assert "its columns are length (mm), height, kind; a row is (length (mm), width)" in said
    predicted = done(tmp_path, "stage=predict", f"run={run.name}", "stage.rows=rows.csv")
    taken = read_result(predicted)
    assert taken is not None and any(
        "not read, since the model does not take them: name, kind" in note for note in taken.notes
    )
    lines = (predicted / "artifacts/predictions.csv").read_text().splitlines()[1:]
    result = read_result(whole := done(tmp_path, "stage=predict", f"run={run.name}", "stage.rows=later.csv"))
    assert (whole / "artifacts/predictions.csv").read_text().splitlines()[1:] == lines
    said = "stage.rows=later.csv: not read, since the model does not take them: kind"
    assert result is not None and said in result.notes
    right = np.mean([line.split(",")[1] == row.split(",")[2] for line, row in zip(lines, ROWS, strict=True)])
    again = done(tmp_path, "stage=evaluate", f"run={run.name}", "dataset=csv", "dataset.file=later.csv")
    assert metrics_of(again)["other_data/accuracy"].value == right > 0.9
    start = (*trained[2:], "dataset=csv", f"model.start={run.name}", "training.epochs=1")
    failed = pipeline(tmp_path, *start, "dataset.file=later.csv")
    said = (
        "takes the columns length (mm), width, and here they come as width, length (mm); 'dataset.features=[\"length "
    )
    assert failed.returncode == 2 and said in failed.stderr
    result = read_result(done(tmp_path, *start, "dataset.file=other.csv"))
    assert result is not None
    was = "was trained on the columns length (mm), width, and this one is on length (mm), height; rows that it was "
    assert any(was in note for note in result.notes)
    said = refused(tmp_path, "stage=evaluate", f"run={run.name}", "dataset=csv", "dataset.file=other.csv")
    assert "the model takes the columns length (mm), width; dataset.features names columns, and here they are" in said
