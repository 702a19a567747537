"""Data of the user's own: .npz, a folder of images, torch and TensorFlow datasets, any pairs."""

from __future__ import annotations

import json
import os
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import own_examples
import pytest
from command import done, environment, pipeline, refused, without_place
from PIL import Image

from pipeline.datasets import Data
from pipeline.datasets.check import check_data
from pipeline.datasets.examples import Examples
from pipeline.datasets.huggingface import HuggingFace
from pipeline.datasets.image_folder import ImageFolder
from pipeline.datasets.loading import check_saved
from pipeline.datasets.npz import Npz
from pipeline.datasets.own import class_names
from pipeline.datasets.split import held_out
from pipeline.errors import UserError
from pipeline.machine.regular_file import as_named
from pipeline.runs.json_files import write_json
from pipeline.runs.result import metrics_of
from pipeline.runs.saved import card_sha256
from pipeline.runs.weights import digest
from pipeline.stages.predict_images import model_card, read_images

HERE = Path(__file__).parent
KNOWN = {"PIPELINE_MODULES": "own_examples", "PYTHONPATH": str(HERE)}
QUICK = ("training.epochs=1", "tracking=none", "model=linear")


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_MODULES", "own_examples")
    monkeypatch.setattr("pipeline.allowed._taken", None)


def sizes(data: Data) -> tuple[int, int, int]:
    check_data(data, "mine")
    return len(data.train), len(data.validation), len(data.test)


def digits() -> tuple[np.ndarray, np.ndarray]:
    return own_examples.whole()


def test_no_two_classes_have_one_name(tmp_path: Path) -> None:
    """A report spoke of the class a, and nobody could say of which."""
    np.savez(tmp_path / "two.npz", x=np.zeros((60, 4), np.float32), y=np.arange(60) % 2)
    with pytest.raises(UserError, match=r"two\.npz: two of its classes are called a$"):
        Npz(file=str(tmp_path / "two.npz"), classes=("a", "a")).load(tmp_path, 0)


def test_examples_of_one_class_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.zeros((60, 4), np.float32), y=np.zeros(60, int))
    said = r"one\.npz: all its targets are of one class, 0; give examples of two at least$"
    with pytest.raises(UserError, match=said):
        Npz(file=str(tmp_path / "one.npz")).load(tmp_path, 0)
    Npz(file=str(tmp_path / "one.npz"), classes=("a", "b")).load(tmp_path, 0)  # the other may come in other data


def test_duplicates_and_label_conflicts_are_noted(tmp_path: Path) -> None:
    """A test on examples that were trained on was given as any other."""
    x, y = digits()
    assert len(np.unique(x.reshape(len(x), -1), axis=0)) == len(x)
    parts: dict[str, Any] = {"x_train": x[:200], "y_train": y[:200], "x_val": x[200:300], "y_val": y[200:300]}
    np.savez(tmp_path / "parts.npz", **parts, x_test=x[190:290], y_test=y[190:290])
    of = "of the 100 {} examples are also in train, byte for byte (leakage): results on them are optimistic"
    assert Npz(file=str(tmp_path / "parts.npz")).load(tmp_path, 0).notes == (f"10 {of.format('test')}",)
    parts |= {"x_val": x[197:297], "y_val": (y[197:297] + 1) % 10}
    np.savez(tmp_path / "parts.npz", **parts, x_test=x[300:], y_test=y[300:])
    assert Npz(file=str(tmp_path / "parts.npz")).load(tmp_path, 0).notes == (
        f"3 {of.format('validation')}",
        "3 examples occur more than once, with different classes (label conflict)",
    )
    lengths: dict[str, Any] = {"y_train": np.arange(200.0), "y_val": np.arange(100.0)}  # which may well differ
    np.savez(tmp_path / "parts.npz", **(parts | lengths), x_test=x[300:], y_test=np.arange(100.0))
    found = Npz(file=str(tmp_path / "parts.npz"), targets="numbers").load(tmp_path, 0)
    assert found.notes == (f"3 {of.format('validation')}",)


def test_duplicates_are_found_whatever_the_dtype_of_a_part(tmp_path: Path) -> None:
    """Integers of one part in 32 bits and of another in 64 were never the same."""
    x, y = digits()
    parts: dict[str, Any] = {"x_train": x[:200].astype(np.int64), "y_train": y[:200], "y_test": y[190:290]}
    for dtype in (np.int32, np.float64):
        np.savez(tmp_path / "parts.npz", **parts, x_test=x[190:290].astype(dtype))
        notes = Npz(file=str(tmp_path / "parts.npz"), validation=0.0).load(tmp_path, 0).notes
        assert any(note.startswith("10 of the 100 test examples are also in train") for note in notes), notes


def test_one_file_of_arrays(tmp_path: Path) -> None:
    x, y = digits()
    np.savez(tmp_path / "one.npz", x=x[..., 0], y=y[:, None])
    data = Npz(file=str(tmp_path / "one.npz")).load(tmp_path, 3)
    assert sizes(data) == (288, 32, 80)
    assert data.task.shapes.x == (8, 8, 1)  # grey bytes get their axis
    again = Npz(file=str(tmp_path / "one.npz")).load(tmp_path, 4)
    assert np.array_equal(data.test.x, again.test.x)  # for every seed the same
    assert not np.array_equal(data.train.x, again.train.x)
    assert data.sha256 == again.sha256


def test_bytes_of_0_and_1_are_not_divided_by_255(tmp_path: Path) -> None:
    """They lie in [0, 1] already, images and rows. The data and their hash are the same."""
    x, y = digits()
    black_and_white = (x > 7).astype(np.uint8)
    for images in (black_and_white, black_and_white.reshape(len(x), -1)):
        np.savez(tmp_path / "one.npz", x=images, y=y)
        data = Npz(file=str(tmp_path / "one.npz")).load(tmp_path, 0)
        assert (sizes(data), data.scale, data.inputs(data.train.x).max()) == ((288, 32, 80), 1.0, 1.0)
    np.savez(tmp_path / "parts.npz", x_train=black_and_white, y_train=y, x_test=2 * black_and_white, y_test=y)
    assert Npz(file=str(tmp_path / "parts.npz")).load(tmp_path, 0).scale == 255  # one unit for all parts


def test_images_as_large_as_bytes_that_are_not_divided_are_noted(tmp_path: Path) -> None:
    """Whole numbers, and those of images that were resized."""
    x, y = digits()
    for dtype, less in (("int64", 0), ("uint16", 0), ("float32", 0), ("float32", 0.25)):
        np.savez(tmp_path / "one.npz", x=(15 * x - less).astype(dtype), y=y)
        data = Npz(file=str(tmp_path / "one.npz")).load(tmp_path, 0)
        said = f"images of {dtype} up to 240 enter as they are"
        more = "save them as uint8, which is divided by 255, or divide them"
        assert (data.scale, f"{said}: {more}" in data.notes) == (None, True)
    rows = (15 * x).astype("int64").reshape(len(x), -1)
    for plain in ((x > 7).astype("int64"), rows, x.astype("float32"), 300.5 + x.astype("float32")):
        np.savez(tmp_path / "one.npz", x=plain, y=y)
        notes = Npz(file=str(tmp_path / "one.npz")).load(tmp_path, 0).notes
        assert not any("enter as they are" in note for note in notes)


def test_white_in_a_file_is_255_whatever_the_images_hold(tmp_path: Path) -> None:
    """As for stage=predict, which gets one image alone."""
    for name, value in (("cat", 0), ("dog", 1)):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("L", (8, 8), value).save(tmp_path / name / f"{number}.png")
    data = ImageFolder(folder=str(tmp_path), size=(8, 8), validation=0.0, test=0.25).load(tmp_path, 0)
    assert data.scale == 255
    assert "no image has a pixel above 1 of 255: where 1 is white, save it as 255" in data.notes


def test_a_file_of_images_with_their_channels_first(tmp_path: Path) -> None:
    x, y = digits()
    colours = np.concatenate([x, x // 2, x // 4], axis=-1)
    found = []
    for layout, images in (("channels_last", colours), ("channels_first", np.moveaxis(colours, -1, 1))):
        np.savez(tmp_path / f"{layout}.npz", x=images, y=y)
        found.append(Npz(file=str(tmp_path / f"{layout}.npz"), layout=layout).load(tmp_path, 3))  # type: ignore[arg-type]
    assert found[0].task == found[1].task
    assert np.array_equal(found[0].train.x, found[1].train.x)
    path = tmp_path / "grey.npz"
    np.savez(path, x=x[..., 0], y=y)
    with pytest.raises(UserError) as caught:
        Npz(file=str(path), layout="channels_first").load(tmp_path, 0)
    assert str(caught.value) == (
        f"dataset.file={path} with dataset.layout=channels_first: x has shape (400, 8, 8); images are (N, C, H, W)"
    )


def test_parts_of_a_file_have_their_usual_names_and_are_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = digits()
    path = tmp_path / "parts.npz"
    dataset = Npz(file=str(path))
    parts: dict[str, Any] = {"x_train": x[:200], "y_train": y[:200], "x_val": x[200:300], "y_val": y[200:300]}
    parts |= {"x_test": x[300:], "y_test": y[300:]}
    np.savez(path, **parts, x_dev=x[:3], y=np.arange(3))
    assert sizes(dataset.load(tmp_path, 0)) == (200, 100, 100)
    assert capsys.readouterr().err == f"dataset.file={path}: leaves out x_dev, y\n"
    assert dataset.load(tmp_path, 0).notes == ()
    assert Npz(file=str(path), validation=0.3, test=0.5).load(tmp_path, 0).notes == (
        "dataset.validation=0.3: the data have a validation part, so nothing is held out for it",
        "dataset.test=0.5: the data have a test part, so nothing is held out for it",
    )
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"x": x, "y": y}, "has x and x_train; give either x and y, which are split, or the parts: with both, "),
        ({"y_tests": y, "y_test": None}, "has x_test and no y_test; give both, or leave both out"),
        ({"x_train": None}, "has y_train and no x_train; give both, or leave both out"),
        ({"x_test": x[300:] / np.float32(255)}, "x of train uint8 and test float32; give all parts the same dtype, in"),
    )
    for changed, said in cases:
        kept: dict[str, Any] = {name: array for name, array in (parts | changed).items() if array is not None}
        np.savez(path, **kept)
        with pytest.raises(UserError) as caught:
            dataset.load(tmp_path, 0)
        assert str(caught.value).startswith(f"dataset.file={path}: {said}")


def test_a_table_is_refused_with_where_to_read_how_it_becomes_arrays(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("length,kind\n5.1,oak\n")
    with pytest.raises(UserError, match=r"not a .npz file; dataset=csv reads a .csv$"):
        Npz(file=str(tmp_path / "mine.csv")).load(tmp_path, 0)


def test_names_beside_integers_are_refused(tmp_path: Path) -> None:
    """As names, 0 to 10 are in the order 0, 1, 10: the accuracy of the test was 0.14 instead of 1."""
    x, y = np.zeros((22, 4), np.float32), np.arange(22) % 11
    path = tmp_path / "mixed.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y.astype(str))
    with pytest.raises(UserError) as caught:
        Npz(file=str(path)).load(tmp_path, 0)
    dtype = y.astype(str).dtype
    said = f"dataset.file={path}: y of train int64 and test {dtype}; give all parts names, or all of them integers"
    assert str(caught.value) == said
    names = tuple(map(str, range(11)))  # in the order of their numbers
    data = Npz(file=str(path), classes=names).load(tmp_path, 0)
    assert np.array_equal(data.test.y, y)


def test_names_in_bytes_are_text(tmp_path: Path) -> None:
    x, path = np.zeros((4, 2), np.float32), tmp_path / "bytes.npz"
    names = ["köter", "cat"] * 2
    y = np.array([name.encode() for name in names])
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=np.array(names))
    for chosen, classes in (((), ("cat", "köter")), (("köter", "cat"), ("köter", "cat"))):
        data = Npz(file=str(path), validation=0.0, classes=chosen).load(tmp_path, 0)
        assert tuple(data.task.card()["classes"]) == classes
        assert [classes[number] for number in data.test.y] == names
    np.savez(path, x=x, y=np.array(["köter".encode("latin-1"), b"cat"] * 2))
    with pytest.raises(UserError) as caught:
        Npz(file=str(path)).load(tmp_path, 0)
    assert str(caught.value) == f"dataset.file={path}: a target is b'k\\xf6ter', which is not UTF-8"


def test_one_value_is_no_array_of_examples(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    for arrays, single in (({"x": 1.0, "y": np.arange(3)}, "x"), ({"x": np.zeros((3, 2)), "y": "a"}, "y")):
        np.savez(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(UserError) as caught:
            Npz(file=str(path)).load(tmp_path, 0)
        said = f"dataset.file={path}: {single} is one value and not an array of examples; give (N, ...)"
        assert str(caught.value) == said


def test_numbers_that_are_no_classes_are_refused_with_names_too(tmp_path: Path) -> None:
    x, y = digits()
    path = tmp_path / "real.npz"
    np.savez(path, x=x, y=y * 0.3)
    for classes in ((), tuple("0123456789")):
        with pytest.raises(UserError, match="its targets have dtype float64; classes are names or integers from 0 on"):
            Npz(file=str(path), classes=classes).load(tmp_path, 0)


@pytest.mark.parametrize("shape", [(60, 2), (60, 8, 8)])
@pytest.mark.parametrize("classes", [(), ("a", "b")])
def test_targets_that_are_not_one_label_for_each_example_are_refused(
    tmp_path: Path, shape: tuple[int, ...], classes: tuple[str, ...]
) -> None:
    """One-hot labels and masks ended in a traceback of what looks for duplicates."""
    path = tmp_path / "masks.npz"
    np.savez(path, x=np.zeros((60, 8, 8), np.float32), y=np.arange(np.prod(shape)).reshape(shape) % 2)
    with pytest.raises(UserError) as caught:
        Npz(file=str(path), classes=classes).load(tmp_path, 0)
    said = f"dataset.file={path}: train.y has shape {shape}; labels are (N,), one for each example"
    assert str(caught.value) == said


@pytest.mark.parametrize("largest", [1000, 1_000_000, 1_000_000_000])
def test_ids_are_not_taken_for_the_numbers_of_classes(tmp_path: Path, largest: int) -> None:
    """A class for each number up to the largest took all memory, or the run hung."""
    path = tmp_path / "ids.npz"
    np.savez(path, x=np.zeros((60, 4), np.float32), y=np.arange(60) % 2 * largest)
    with pytest.raises(UserError) as caught:
        Npz(file=str(path)).load(tmp_path, 0)
    assert str(caught.value) == (
        f"dataset.file={path}: its targets are 2 different labels, the largest {largest}; number them from 0"
    )


@pytest.mark.parametrize(("present", "largest"), [(2, 999), (101, 1010), (20_000, 20_001)])
def test_numbers_of_classes_may_have_gaps(present: int, largest: int) -> None:
    assert len(class_names([np.array([*range(present - 1), largest])], "mine")) == largest + 1


@pytest.mark.timeout(600)  # it grew with the square of their number: minutes
def test_many_classes_are_read(tmp_path: Path) -> None:
    y = np.arange(200_000)
    np.savez(tmp_path / "many.npz", x=y[:, None].astype(np.float32), y=y)
    assert len(Npz(file=str(tmp_path / "many.npz")).load(tmp_path, 0).task.card()["classes"]) == 200_000


@pytest.mark.parametrize("dtype", ["datetime64[D]", "timedelta64[s]", "complex64"])
def test_examples_that_are_not_numbers_are_refused(tmp_path: Path, dtype: str) -> None:
    """Dates ended in a traceback of what hashes the data."""
    path = tmp_path / "dates.npz"
    np.savez(path, x=np.arange(120).reshape(60, 2).astype(dtype), y=np.arange(60) % 2)
    with pytest.raises(UserError) as caught:
        sizes(Npz(file=str(path)).load(tmp_path, 0))
    said = f"dataset=mine: train.x has dtype {dtype}; give integers or floating-point numbers"
    assert str(caught.value) == f"{said} (see pipeline.datasets.Data)"
    np.savez(path, x=np.zeros((60, 2)), y=np.arange(60).astype(dtype))
    with pytest.raises(UserError) as caught:
        Npz(file=str(path), targets="numbers").load(tmp_path, 0)
    said = f"dataset.file={path}: its targets have dtype {dtype} and shape (60,); dataset.targets=numbers takes real"
    assert str(caught.value) == f"{said} numbers (N,) or (N, D)"


def test_a_file_with_its_own_split_and_named_classes(tmp_path: Path) -> None:
    x, y = digits()
    names = np.array(["even", "odd"])[y % 2]
    np.savez(tmp_path / "two.npz", x_train=x[:300] / 16, y_train=names[:300], x_test=x[300:] / 16, y_test=names[300:])
    data = Npz(file=str(tmp_path / "two.npz"), validation=0.0).load(tmp_path, 0)
    assert (sizes(data), data.task.card()["classes"], data.scale) == ((300, 0, 100), ["even", "odd"], None)


@pytest.mark.wide
def test_a_folder_of_images_trains(tmp_path: Path) -> None:
    """As a command, and after a change of an image the run is another by its code's hash."""
    x, y = digits()
    for number, (image, label) in enumerate(zip(x[:200], y[:200], strict=True)):
        folder = tmp_path / "pictures" / f"digit{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image[..., 0] * 15).astype(np.uint8)).resize((9, 9)).save(folder / f"{number}.png")
    words = ("dataset=image_folder", "dataset.folder=pictures", "dataset.size=[8,8]", "dataset.channels=1")
    run = done(tmp_path, *words, *QUICK)
    assert json.loads((run / "artifacts/model/card.json").read_text())["x"] == [8, 8, 1]
    assert metrics_of(run)["test/accuracy"].value > 0.05
    Image.new("L", (9, 9)).save(tmp_path / "pictures/digit0/new.png")
    again = done(tmp_path, *words, *QUICK)
    first, second = (json.loads((one / "receipt.json").read_text()) for one in (run, again))
    assert first["code_sha256"] != second["code_sha256"]
    assert first["data_sha256"] != second["data_sha256"]


def test_files_of_several_images_are_noted(tmp_path: Path) -> None:
    """stage=predict said so, and the datasets took the first without a word."""
    films = []
    for name in ("a", "b"):
        (tmp_path / "films" / name).mkdir(parents=True)
        for number in range(6):
            frames = [Image.fromarray(np.full((8, 8), 40 * number + shade, np.uint8)) for shade in (9, 19, 29)]
            films.append(tmp_path / "films" / name / f"{number}.{'gif' if number % 2 else 'tiff'}")
            frames[0].save(films[-1], save_all=True, append_images=frames[1:] if number < 3 else [])
    data = ImageFolder(folder=str(tmp_path / "films"), size=(8, 8), validation=0.25, test=0.25).load(tmp_path, 0)
    assert "6 files hold several images; only the first is read" in data.notes
    rows(tmp_path / "hub", [{"bytes": film.read_bytes(), "path": None} for film in films[2:4]])
    assert "1 file holds several images; only the first is read" in of(tmp_path / "hub", channels=1).notes


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hugging Face datasets on disk: the digits as images, whole and split, as bytes, as numbers; of two sizes."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features
    from datasets import Image as ImageColumn

    folder = tmp_path_factory.mktemp("saved")
    x, y = digits()
    names = [f"digit {number}" for number in range(10)]
    of_images = Features({"image": ImageColumn(), "label": ClassLabel(names=names)})
    pictures = [Image.fromarray((image[..., 0] * 15).astype(np.uint8)) for image in x]
    whole = Dataset.from_dict({"image": pictures, "label": y}, features=of_images)
    whole.save_to_disk(folder / "whole")
    split = DatasetDict({"train": whole.select(range(300)), "test": whole.select(range(300, 400))})
    split.save_to_disk(folder / "split")
    DatasetDict({"all": whole}).save_to_disk(folder / "unnamed")
    DatasetDict({"train": whole, "validation": whole.select([])}).save_to_disk(folder / "empty")
    DatasetDict({"train": whole, "test": whole.filter(lambda _: False)}).save_to_disk(folder / "filtered")
    whole.select([]).save_to_disk(folder / "none")
    whole.filter(lambda _: False).save_to_disk(folder / "filtered whole")
    files = [one["bytes"] for one in whole.cast_column("image", ImageColumn(decode=False))["image"]]
    Dataset.from_dict({"picture": files, "digit": y}).save_to_disk(folder / "bytes")
    Dataset.from_dict({"image": x.reshape(400, 64).tolist(), "label": y}).save_to_disk(folder / "numbers")
    uneven = [pictures[0], pictures[1].resize((9, 7))]
    Dataset.from_dict({"image": uneven, "label": [0, 1]}, features=of_images).save_to_disk(folder / "uneven")
    return folder


def test_a_hugging_face_dataset_on_disk(saved: Path, tmp_path: Path) -> None:
    x, y = digits()
    bytes_, name = (x * 15).astype(np.uint8), str(saved / "whole")
    data = HuggingFace(path=str(saved / "split"), validation=0.0).load(tmp_path, 0)
    assert (sizes(data), data.scale) == ((300, 0, 100), 255.0)
    np.testing.assert_array_equal(data.test.x, bytes_[300:])
    np.testing.assert_array_equal(data.test.y, y[300:])
    assert data.task.card()["classes"][3] == "digit 3"
    assert sizes(HuggingFace(path=name).load(tmp_path, 0)) == (288, 32, 80)
    assert [path.name for path in HuggingFace(path=name).user_files] == [
        "data-00000-of-00001.arrow",
        "dataset_info.json",
        "state.json",
    ]
    assert HuggingFace(path=str(saved)).user_files == ()
    by_bytes = HuggingFace(path=str(saved / "bytes"), keys=("picture", "digit"), channels=3, size=(4, 5))
    assert by_bytes.load(tmp_path, 0).train.x.shape == (288, 4, 5, 3)
    numbers = HuggingFace(path=str(saved / "numbers"), validation=0.0, test=0.0).load(tmp_path, 0)
    assert sorted(numbers.train.x.tolist()) == sorted(x.reshape(400, 64).tolist())
    run = done(tmp_path, "dataset=huggingface", f"dataset.path={name}", *QUICK)
    receipt = json.loads((run / "receipt.json").read_text())
    assert (receipt["data_sha256"], "datasets" in receipt["versions"]) == (
        HuggingFace(path=name).load(tmp_path, 0).sha256,
        True,
    )


@pytest.mark.parametrize(
    ("folder", "settings", "said"),
    [
        ("bytes", {}, "train has no column image; it has picture, digit: name those of x and y by dataset.keys"),
        ("unnamed", {}, "has the splits all; one has to be called train"),
        (
            "uneven",
            {},
            "train.image: examples of the shapes (7, 9, 1) and (8, 8, 1); dataset.size=[height,width] resizes images "
            "to one",
        ),
        ("empty", {}, "the split validation has no examples; leave it out"),
        ("filtered", {}, "the split test has no examples; leave it out"),
        *((folder, {}, "has no examples") for folder in ("none", "filtered whole")),
        ("nothing", {}, "not a folder that Dataset.save_to_disk wrote (FileNotFoundError: "),
    ],
)
def test_what_a_hugging_face_dataset_lacks(saved: Path, folder: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        HuggingFace(path=str(saved / folder), **settings).load(saved, 0)
    assert str(caught.value).startswith(f"dataset.path={saved / folder}: {said}")


NUMBERS = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ([[1.0, 2.0], None], [0, 1], "x: example 1 (from 0) has none; leave it out by Dataset.filter"),
        ([[1, 2], [1, None]], [0, 1], "x: holds an example that is not an array of numbers ("),
        (["low", "high"], [0, 1], "x: holds an example that is not an array of numbers (str)"),
        ([date(2026, 1, 1)] * 2, [0, 1], "x: holds an example that is not an array of numbers (date)"),
        ([{"a": 1}, {"a": 2}], [0, 1], "x: holds an example that is not an array of numbers (dict)"),
        ([Decimal("1.5"), Decimal("2.5")], [0, 1], "x: holds an example that is not an array of numbers (Decimal)"),
        (NUMBERS, [[1.0], [1.0, 2.0]], "y: holds lists of several lengths; give each example as many numbers"),
    ],
)
def test_columns_of_a_hugging_face_dataset_that_are_no_arrays(
    x: list[Any], y: list[Any], said: str, tmp_path: Path
) -> None:
    """Dates, structures, decimals and uneven targets ended in a traceback."""
    from datasets import Dataset

    Dataset.from_dict({"x": x * 10, "y": y * 10}).save_to_disk(tmp_path / "odd")
    with pytest.raises(UserError) as caught:
        HuggingFace(path=str(tmp_path / "odd"), keys=("x", "y")).load(tmp_path, 0)
    assert str(caught.value).startswith(f"dataset.path={tmp_path / 'odd'}: train.{said}")


def rows(folder: Path, values: list[Any], column: Any = None, labels: tuple[int | None, int | None] = (0, 1)) -> Any:
    """One Hugging Face split of values with the two labels in turn; saved in `folder`."""
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageColumn

    features = Features({"image": column or ImageColumn(), "label": Value("int64")})
    made = Dataset.from_dict({"image": values, "label": [labels[i % 2] for i in range(len(values))]}, features=features)
    made.save_to_disk(folder)
    return made


def of(folder: Path, **settings: Any) -> Data:
    return HuggingFace(path=str(folder), validation=0.0, test=0.5, **settings).load(folder, 0)


def test_a_hugging_face_dataset_keeps_its_dtype_and_its_axes(tmp_path: Path) -> None:
    from datasets import Array3D

    arrays = list(np.arange(192, dtype=np.uint8).reshape(4, 4, 4, 3))
    rows(tmp_path / "arrays", arrays, Array3D((4, 4, 3), "uint8"))
    data = of(tmp_path / "arrays")
    assert (data.train.x.dtype.name, data.scale, data.train.x.shape) == ("uint8", 255.0, (2, 4, 4, 3))
    made = rows(tmp_path / "images", [Image.fromarray(array[:3]) for array in arrays])
    made.with_format("torch").save_to_disk(tmp_path / "torch")
    assert np.array_equal(of(tmp_path / "torch").train.x, of(tmp_path / "images").train.x)


def test_a_hugging_face_column_of_arrays_with_their_channels_first(tmp_path: Path) -> None:
    """Arrays (3, 32, 32) were taken for 3x32 images of 32 channels, without the note that a .npz file has."""
    from datasets import Array3D

    arrays = list(np.arange(4 * 3 * 4 * 5, dtype=np.uint8).reshape(4, 3, 4, 5))
    rows(tmp_path / "arrays", arrays, Array3D((3, 4, 5), "uint8"))
    as_they_are, turned = (of(tmp_path / "arrays", **layout) for layout in ({}, {"layout": "channels_first"}))
    assert np.array_equal(turned.train.x, np.moveaxis(as_they_are.train.x, 1, -1))
    rows(tmp_path / "images", [Image.new("L", (4, 4), shade) for shade in range(4)])
    with pytest.raises(UserError, match=r": train\.image: holds images and no arrays; leave out dataset\.layout=chan"):
        of(tmp_path / "images", layout="channels_first")


def test_splits_of_other_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from datasets import DatasetDict

    one = rows(tmp_path / "one", [Image.new("L", (4, 4), number) for number in range(4)])
    DatasetDict({"train": one, "val": one.select([3]), "extra": one}).save_to_disk(tmp_path / "all")
    assert of(tmp_path / "all").validation.x.max() == 3
    assert capsys.readouterr().err.endswith(f"dataset.path={tmp_path / 'all'}: leaves out the split extra\n")


def test_splits_that_number_their_classes_otherwise_are_read_by_name(tmp_path: Path) -> None:
    """`class_encode_column` numbers each split by itself. A test split without a class was judged by wrong ones."""
    from datasets import Dataset, DatasetDict

    made = {
        name: Dataset.from_dict({"x": [[float(ord(one))] for one in letters], "label": list(letters)})
        for name, letters in {"train": "abcabcabc", "validation": "cb", "test": "ccb"}.items()
    }
    DatasetDict(made).class_encode_column("label").save_to_disk(tmp_path / "all")
    found = HuggingFace(path=str(tmp_path / "all"), keys=("x", "label")).load(tmp_path, 0)
    assert found.test.y.tolist() == [2, 2, 1] and found.validation.y.tolist() == [2, 1]
    made["test"] = Dataset.from_dict({"x": [[1.0]], "label": ["d"]})
    DatasetDict(made).class_encode_column("label").save_to_disk(tmp_path / "more")
    with pytest.raises(UserError, match=r"test\.label: has the class d, which train does not have; it has a, b, c$"):
        HuggingFace(path=str(tmp_path / "more"), keys=("x", "label")).load(tmp_path, 0)


def test_images_and_rows_that_are_no_bytes_are_refused(tmp_path: Path) -> None:
    from datasets import List, Value

    deep = Image.fromarray(np.full((4, 4), 300, np.uint16))
    mixed = [Image.new(mode, (4, 4)) for mode in ("L", "RGB", "RGB", "RGB")]
    black = [Image.new("L", (4, 4))] * 4
    numbers, nested = List(Value("int64")), List(List(Value("int64")))
    for name, values, column, labels, said in (
        ("deep", [deep] * 4, None, (0, 1), "image: holds an image of Pillow's mode I;16, of more than 8 bits; "),
        ("mixed", mixed, None, (0, 1), "image: holds grey and coloured images; set dataset.channels to 1 or 3"),
        ("none", black, None, (0, None), "label: example 1 (from 0) has none; leave it out by Dataset.filter"),
        ("ragged", [[[1, 2], [3]]] * 4, nested, (0, 1), "image: holds an example that is not an array of numbers ("),
        ("gaps", [[1, None]] * 4, numbers, (0, 1), "image: holds an example that is not an array of numbers ("),
    ):
        rows(tmp_path / name, values, column, labels)
        with pytest.raises(UserError) as caught:
            of(tmp_path / name)
        assert str(caught.value).startswith(f"dataset.path={tmp_path / name}: train.{said}")
    assert of(tmp_path / "mixed", channels=1).train.x.shape == (2, 4, 4, 1)
    for name in ("cat", "dog"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        deep.save(tmp_path / "folder" / name / "0.png")
    with pytest.raises(UserError, match=r"cat/0\.png: holds an image of Pillow's mode I;16, of more than 8 bits; "):
        ImageFolder(folder=str(tmp_path / "folder")).load(tmp_path, 0)


def test_parts_that_the_folder_has(tmp_path: Path) -> None:
    for part, name, count in (("train", "cat", 6), ("train", "dog", 4), ("test", "cat", 2), ("test", "dog", 1)):
        for number in range(count):
            folder = tmp_path / part / name
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (5, 4), (number, 0, 0)).save(folder / f"{number}.jpg")
    data = ImageFolder(folder=str(tmp_path), size=(4, 5), validation=0.2).load(tmp_path, 0)
    assert (sizes(data), data.train.x.shape[1:]) == ((8, 2, 3), (4, 5, 3))
    assert data.task.card()["classes"] == ["cat", "dog"]
    assert not any("resized" in note for note in data.notes)  # to a size that was chosen
    data = ImageFolder(folder=str(tmp_path)).load(tmp_path, 0)
    assert "images of 4x5 pixels are resized to dataset.size=[64,64] (height, width), its default" in data.notes


def test_folders_that_are_left_out_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("train", "val", "more"):
        for name in ("cat", "dog", "dog/old"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(4):
                Image.new("L", (4, 4)).save(tmp_path / part / name / f"{number}.png")
    data = ImageFolder(folder=str(tmp_path), test=0.25).load(tmp_path, 0)
    assert sizes(data) == (6, 8, 2)
    left = "the folder more, the folder train/dog/old, the folder val/dog/old"
    assert capsys.readouterr().err == f"dataset.folder={tmp_path}: leaves out {left}\n"
    (tmp_path / "train/notes.txt").touch()
    (tmp_path / "val/cat/list.csv").touch()
    (tmp_path / "val/cat/.hidden").touch()
    ImageFolder(folder=str(tmp_path), test=0.25).load(tmp_path, 0)
    left += ", the files train/notes.txt, val/cat/list.csv"
    assert capsys.readouterr().err == f"dataset.folder={tmp_path}: leaves out {left}\n"
    (tmp_path / "train").rename(tmp_path / "training")
    with pytest.raises(UserError, match=f"^dataset.folder={tmp_path}: has val and no train$"):
        ImageFolder(folder=str(tmp_path)).load(tmp_path, 0)
    Image.new("L", (4, 4)).save(tmp_path / "val/0.png")  # with which it is a class
    Image.new("L", (4, 4)).save(tmp_path / "more/0.png")
    Image.new("L", (4, 4)).save(tmp_path / "training/0.png")
    data = ImageFolder(folder=str(tmp_path), validation=0.0, test=0.34).load(tmp_path, 0)
    assert data.task.card()["classes"] == ["more", "training", "val"]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    """Its folder was taken for the part, which has "the classes (none)"."""
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("L", (4, 4)).save(tmp_path / name / f"{number}.png")
    with pytest.raises(UserError, match="has the classes "):  # these are parts, whose classes are not known
        ImageFolder(folder=str(tmp_path)).load(tmp_path, 0)
    (tmp_path / "test").rename(tmp_path / "bus")
    data = ImageFolder(folder=str(tmp_path), validation=0.0, test=0.25).load(tmp_path, 0)
    assert (sizes(data), data.task.card()["classes"]) == ((6, 0, 2), ["bus", "train"])


def saved_run(folder: Path, trained: Data, **kept: Any) -> Path:
    """The run of a model without weights: its card, and a receipt of these data that holds `kept` as well."""
    run = folder / "run"
    (run / "artifacts" / "model").mkdir(parents=True)
    (run / "artifacts" / "model" / "card.json").write_text(json.dumps(trained.task.card()))
    write_json(run / "receipt.json", {"weights_sha256": digest({}), "data_sha256": trained.sha256, **kept})
    return run


def test_another_test_of_the_same_data_is_refused(tmp_path: Path) -> None:
    """With x_val renamed to x_test the hash is the same: stage=evaluate measured what the training had chosen by."""
    x, y = digits()
    for name in ("val", "test"):
        held_back: dict[str, Any] = {f"x_{name}": x[200:300], f"y_{name}": y[200:300]}
        np.savez(tmp_path / f"{name}.npz", x_train=x[:200], y_train=y[:200], **held_back)
    trained, renamed = (Npz(file=str(tmp_path / f"{name}.npz")).load(tmp_path, 0) for name in ("val", "test"))
    assert trained.sha256 == renamed.sha256
    run = saved_run(tmp_path, trained, held_out=held_out(trained))
    assert check_saved(run, {}, trained) == ()
    with pytest.raises(UserError) as caught:
        check_saved(run, {}, renamed)
    assert str(caught.value) == (
        "run=run: the test set now holds other examples of the same data than when it was trained, so it may have seen "
        "them; split the data as they were then"
    )


def test_classes_of_other_names_are_not_those_that_were_trained(tmp_path: Path) -> None:
    """The data's hash is of numbers alone: stage=evaluate spoke of classes that the model does not know."""
    x, y = digits()
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["cat", "dog"])[y % 2])
    np.savez(tmp_path / "b.npz", x=x, y=np.array(["ant", "dog"])[y % 2])
    trained, renamed = (Npz(file=str(tmp_path / f"{name}.npz")).load(tmp_path, 0) for name in "ab")
    assert trained.sha256 == renamed.sha256
    run = saved_run(tmp_path, trained, card_sha256=card_sha256(trained.task.card()))
    assert check_saved(run, {}, trained) == ()
    with pytest.raises(UserError) as caught:
        check_saved(run, {}, renamed)
    assert str(caught.value) == (
        "run=run: the data's classes are now ['ant', 'dog'], and were ['cat', 'dog'] when it was trained; restore "
        "their names"
    )
    (run / "artifacts" / "model" / "card.json").write_text(json.dumps(renamed.task.card()))
    with pytest.raises(UserError, match=r"card\.json now differs from what it saved"):
        check_saved(run, {}, trained)


def test_a_model_of_four_channels_sees_the_transparency(tmp_path: Path) -> None:
    """As it is stored, and no ground; stage.invert leaves it."""
    stored = np.arange(8 * 8 * 4, dtype=np.uint8).reshape(8, 8, 4)
    Image.fromarray(stored).save(tmp_path / "a.png")
    Image.new("L", (8, 8), 51).save(tmp_path / "grey.png")
    files = (str(tmp_path / "a.png"), str(tmp_path / "grey.png"))
    _, (one, grey), _ = read_images(files, (8, 8, 4), invert=False)
    assert np.array_equal(one, stored / 255)
    assert np.array_equal(grey[0, 0], (0.2, 0.2, 0.2, 1))
    _, (one, _), _ = read_images(files, (8, 8, 4), invert=True)
    assert np.array_equal(one[..., :3], 1 - stored[..., :3] / 255)
    assert np.array_equal(one[..., 3], stored[..., 3] / 255)


@pytest.mark.parametrize("channels", [2, 5])
def test_predict_refuses_a_model_of_channels_that_no_image_has(tmp_path: Path, channels: int) -> None:
    folder = tmp_path / "artifacts" / "model"
    folder.mkdir(parents=True)
    card = {"task": "classification", "x": [8, 8, channels], "outputs": [2], "classes": ["a", "b"]}
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(UserError) as caught:
        model_card(tmp_path)
    assert str(caught.value) == (
        f"run={tmp_path.name}: this model takes {channels} channels; stage=predict gives images of 1 (grey), "
        "3 (colours) or 4 (colours and transparency)"
    )


def test_a_transparent_image_lies_on_a_ground(tmp_path: Path) -> None:
    """As for stage=predict: what is below a transparent pixel is any colour."""
    picture = Image.new("RGBA", (8, 8), (255, 255, 255, 0))
    picture.paste((200, 100, 0, 255), (2, 2, 6, 6))
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            picture.save(tmp_path / name / f"{number}.png")
    seen = ImageFolder(folder=str(tmp_path), size=(4, 4), validation=0.0, test=0.25).load(tmp_path, 0).train.x[0]
    assert seen[0, 0].max() < 50
    _, predicted, _ = read_images((str(tmp_path / "cat/0.png"),), (4, 4, 3), invert=False)
    assert np.array_equal(predicted[0], seen / 255)


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        ("as_torch", {"layout": "channels_first"}),
        ("streamed", {"layout": "channels_first"}),
        ("as_mappings", {"keys": ("pixels", "digit")}),
        pytest.param("as_tf", {}, marks=pytest.mark.wide),
    ],
)
def test_examples_of_the_users_code(tmp_path: Path, function: str, settings: dict[str, Any]) -> None:
    x, y = digits()
    data = Examples(
        train=f"own_examples.{function}", validation=0.0, test_share=0.0, test=f"own_examples.{function}", **settings
    ).load(tmp_path, 0)
    assert sizes(data) == (400, 0, 400)
    assert "dataset.test_share=0.0: the data have a test part, so nothing is held out for it" in data.notes
    np.testing.assert_array_equal(data.test.x, x / np.float32(16))
    np.testing.assert_array_equal(data.test.y, y)


def test_a_torch_dataset_trains_on_its_backend(tmp_path: Path) -> None:
    words = ("dataset=examples", "dataset.train=own_examples.as_torch", "dataset.layout=channels_first")
    done(tmp_path, *words, *QUICK, **KNOWN)


WRONG = {
    "uneven": "dataset.train=own_examples.uneven: gives examples of the shapes (3,) and (4,); give all the same shape",
    "triples": "dataset.train=own_examples.triples: gives a tuple; give pairs (x, y)",
    "real": "dataset.train=own_examples.real: its targets have dtype float64; classes are names or integers from 0 on "
    "(dataset.targets=numbers for real numbers; for other tasks write a dataset: docs/own.md)",
    "number": "dataset.train=own_examples.number: gives a int; give a torch Dataset, a tf.data.Dataset or pairs (x, y)",
    "in_batches": "dataset.train=own_examples.in_batches: gives a DataLoader, which makes batches; give its Dataset",
    "as_mappings": "dataset.train=own_examples.as_mappings: an example has pixels, digit; name x and y by dataset.keys",
    "nothing": "dataset.train=own_examples.nothing: module own_examples has no nothing",
    "missing": "dataset.train=own_examples.missing raises FileNotFoundError: [Errno 2] No such file or directory: "
    "'/nowhere/x.csv'",
    "Broken": "dataset.train=own_examples.Broken raises ValueError: example 0 is damaged",
    "needs_more": "dataset.train=own_examples.needs_more raises TypeError: needs_more() missing 1 required positional "
    "argument: 'where'; PIPELINE_TRACEBACK=1 shows where",
    "uneven_targets": "dataset.train=own_examples.uneven_targets: gives targets of the shapes (1,) and (2,); give all "
    "the same shape",
    "columns": "dataset.train=own_examples.columns: gives a dict of image, label; give pairs (x, y), as list(zip(x, "
    "y))",
}


@pytest.mark.parametrize("function", WRONG)
def test_what_gives_no_examples_is_refused(tmp_path: Path, function: str) -> None:
    with pytest.raises(UserError) as caught:
        Examples(train=f"own_examples.{function}").load(tmp_path, 0)
    assert without_place(str(caught.value)) == WRONG[function]


@pytest.mark.wide
@pytest.mark.parametrize("name", ["endless", "endless_filtered", "endless_behind"])
def test_a_dataset_without_end_is_refused(tmp_path: Path, name: str) -> None:
    """It was read until memory was full; behind a filter TensorFlow does not say that it has no end."""
    with pytest.raises(UserError) as caught:
        Examples(train=f"own_examples.{name}").load(tmp_path, 0)
    said = "repeats without end; leave out its repeat(), or end it by take()"
    assert str(caught.value) == f"dataset.train=own_examples.{name}: {said}"


@pytest.mark.wide
@pytest.mark.parametrize("name", ["filtered_and_repeated", "taken_of_endless", "taken_by_tensorflow_1"])
def test_a_dataset_that_ends_is_read_though_its_length_is_not_known(tmp_path: Path, name: str) -> None:
    assert len(Examples(train=f"own_examples.{name}").load(tmp_path, 0).train.y)


def test_files_that_hold_no_data_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, a=np.zeros(3))
    cases = {
        Npz(file=str(path)): f"dataset.file={path}: has the arrays a; give x and y, or x_train and y_train",
        Npz(): "dataset.file=null: name a .npz file with x and y, or x_train, y_train, x_test and y_test",
        ImageFolder(folder=str(tmp_path)): f"dataset.folder={tmp_path}: has the classes (none); give a subfolder of "
        "images for each class, two at least",
        ImageFolder(folder="/nowhere"): "dataset.folder=/nowhere: no such folder",
    }
    for dataset, wanted in cases.items():
        with pytest.raises(UserError) as caught:
            dataset.load(tmp_path, 0)
        assert str(caught.value) == wanted


def test_a_file_that_is_missing_is_refused_before_the_run(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=npz", "dataset.file=gone.npz", *QUICK)
    assert said == "dataset.file=gone.npz: no such file or directory"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dataset=npz",), "dataset.file=null: name a .npz file with x and y, or x_train, y_train, x_test and y_test"),
        (("dataset=examples",), "dataset.train=null: name a function of yours that gives a Dataset, as mine.train"),
        (
            ("dataset=npz", "dataset.file=table.npz", "model=cnn"),
            "model=cnn with dataset=npz: takes images (height, width, channels); the examples of this dataset have "
            "shape (144,); model=mlp and model=linear take any shape",
        ),
        (
            ("dataset=examples", "dataset.train=own_examples.as_torch", "model=cnn", "model.filters=[8]"),
            "model.filters=[8]: 1 pool leaves nothing of 1x8 images; use at most 0; if they are (channels, height, "
            "width), set dataset.layout=channels_first",
        ),
    ],
)
def test_data_that_the_model_is_not_for_are_refused_before_the_run(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    np.savez(tmp_path / "table.npz", x=np.zeros((60, 144), np.float32), y=np.arange(60) % 2)
    assert refused(tmp_path, *QUICK[:2], *words, **KNOWN) == said


@pytest.mark.wide
def test_images_that_look_turned_are_noted(tmp_path: Path) -> None:
    """Trained as they are, since 12 channels may be meant; a table is trained by a model that takes any shape."""
    from datasets import Array3D

    x = np.random.default_rng(0).random((60, 3, 12, 12), np.float32)
    np.savez(tmp_path / "turned.npz", x=x, y=np.arange(60) % 2)
    np.savez(tmp_path / "table.npz", x=x.reshape(60, -1)[:, :144], y=np.arange(60) % 2)
    rows(tmp_path / "turned", list(x), Array3D((3, 12, 12), "float32"))
    run = done(tmp_path, "dataset=huggingface", "dataset.path=turned", *QUICK)
    hub = json.loads((run / "result.json").read_text())["notes"]
    notes = []
    for file in ("turned.npz", "table.npz"):
        run = done(tmp_path, "dataset=npz", f"dataset.file={file}", *QUICK)
        notes.append(json.loads((run / "result.json").read_text())["notes"])
    assert notes == [
        [
            "dataset=npz: examples of shape (3, 12, 12) are taken as 3x12 images of 12 channels; if they are "
            "(channels, height, width), set dataset.layout=channels_first"
        ],
        [],
    ]
    assert hub == [notes[0][0].replace("npz", "huggingface")]


def test_a_function_that_is_not_allowed(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=examples", "dataset.train=os.listdir", *QUICK)
    assert said.startswith("dataset.train=os.listdir: not on the allow-list (pipeline); ")
    words = ("dataset=examples", "dataset.train=own_examples", *QUICK)
    assert refused(tmp_path, *words, **KNOWN) == (
        "dataset.train=own_examples: is a module; name what is in it, as own_examples.<name>"
    )
    words = ("dataset=examples", "dataset.train=own_examples.nubmer", *QUICK)
    assert refused(tmp_path, *words, **KNOWN) == (
        "dataset.train=own_examples.nubmer: module own_examples has no nubmer (did you mean number?)"
    )


def test_a_home_of_nobody_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    """pathlib's RuntimeError ended the command with a traceback."""
    assert as_named("~nobody-of-that-name/x.npz") == Path("~nobody-of-that-name/x.npz")
    assert as_named("~/x.npz") == Path.home() / "x.npz"
    said = refused(tmp_path, "dataset=npz", "dataset.file='~nobody-of-that-name/x.npz'", "model=linear")
    assert said.startswith("dataset.file=~nobody-of-that-name/x.npz: ")


@pytest.mark.wide
def test_a_file_of_the_users_function_is_named_where_it_changed(tmp_path: Path) -> None:
    """It was "code of mine, or files that it reads", and which of them nobody said."""
    pairs = np.array([(np.float32(at % 2), at % 2) for at in range(80)], dtype=[("x", "f4", (1,)), ("y", "i8")])
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\ndef train(file): return [(x, y) for x, y in np.load(file)]\n"
    )
    np.save(tmp_path / "table.npy", pairs)
    words = ("-m", "stage=train", "dataset=examples", "dataset.train=mine.train", "+dataset.arguments.file=table.npy")
    path = os.pathsep.join((str(tmp_path), environment().get("PYTHONPATH", "")))
    mine = {"PIPELINE_MODULES": "mine", "PYTHONPATH": path}
    ended = pipeline(tmp_path, *words, "model=linear", "training.epochs=1", "seed=0,1", **mine)
    assert ended.returncode == 0, ended.stderr
    pairs["x"] += 1
    np.save(tmp_path / "table.npy", pairs)
    dry = pipeline(tmp_path, *words, "model=linear", "training.epochs=1", "seed=0,1", "sweep.dry_run=true", **mine)
    assert ": code of mine, or files that it reads: table.npy\n" in dry.stdout, dry.stdout


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe kept the command waiting for ever; /dev/zero took all of the memory, since zipfile looks for its end."""
    pipe = tmp_path / "images" / "a" / "1.png"
    other = tmp_path / "images" / "b" / "1.png"
    for one in (pipe, other):
        one.parent.mkdir(parents=True)
        os.mkfifo(one)
    for path in (pipe, Path("/dev/zero")):
        said = without_place(refused(tmp_path, "dataset=npz", f"dataset.file={path}"))
        assert said == f"dataset.file={path}: not a regular file"
    said = refused(tmp_path, "dataset=image_folder", "dataset.folder=images")
    assert said.startswith("dataset.folder=images: images/a/1.png: not a readable image ([Errno 22] not a regular file")


def test_a_batch_whose_channels_have_one_value_is_refused(tmp_path: Path) -> None:
    """torch ended with a traceback, Keras with a loss of NaN and the advice to lower the learning rate."""
    words = ("dataset=digits", "dataset.train_size=33", "model=resnet", "model.blocks=1", "model.filters=[2,2,2,2]")
    assert refused(tmp_path, *words) == (
        "training.batch_size=32: the last batch of an epoch has 1 example, and model=resnet needs 2 of this "
        "shape, to have a variance; choose training.batch_size=33, for example"
    )


@pytest.mark.parametrize(
    ("examples", "size", "said", "better"),
    [
        (67, 32, "the last batch of an epoch has 3 examples, 1 of them in a process", 34),  # 1 and 2
        (64, 2, "a batch has 2 examples, 1 of them in a process", 4),
        (
            65,
            32,
            "the last batch of an epoch has 1 example, 1 of them in a process",
            33,
        ),  # the other has it too, uncounted
    ],
)
def test_a_process_has_as_many_examples_as_a_variance_needs(
    tmp_path: Path, examples: int, size: int, said: str, better: int
) -> None:
    """Each process normalises its part of a batch by itself: one row in one of them ended in a traceback."""
    words = ("dataset=digits", f"dataset.train_size={examples}", f"training.batch_size={size}", "device.processes=2")
    net = ("model=resnet", "model.blocks=1", "model.filters=[2,2,2,2]")
    assert refused(tmp_path, *words, *net).startswith(
        f"training.batch_size={size}: {said}, and model=resnet needs 2 of this shape, to have a variance; choose "
        f"training.batch_size={better}, for example"
    )
