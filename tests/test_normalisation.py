"""dataset.normalise: the training examples' mean and deviation, in training and where the model is taken up again."""

from __future__ import annotations

import csv
import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import done, message, pipeline, refused
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from in_backend import experiment
from test_classifier import idx

from pipeline.datasets import Data, Split
from pipeline.datasets.check import check_data
from pipeline.datasets.loading import check_saved, load_data
from pipeline.datasets.normalisation import LEAST_SPREAD, Normalisation
from pipeline.errors import UserError
from pipeline.experiment import load
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.result import metrics_of
from pipeline.runs.saved import card_sha256
from pipeline.runs.weights import digest
from pipeline.stages.export import write_normalisation
from pipeline.stages.predict_images import check_range
from pipeline.stages.start import card_of, said_of_inputs
from pipeline.sweep.history import History
from pipeline.tasks.classification import Classification

QUICK = ("dataset=npz", "dataset.file=digits.npz", "model=linear", "optimizer.learning_rate=0.02", "tracking=none")

SHAPES = arrays.array_shapes(min_dims=2, max_dims=4, max_side=6)
BYTES = arrays.arrays(np.uint8, SHAPES)
REALS = arrays.arrays(np.float32, SHAPES, elements=st.floats(-1e3, 1e3, width=32))


@given(x=BYTES | REALS, scale=st.sampled_from([None, 255.0]), batch=st.integers(1, 200))
def test_the_statistics_are_numpys_however_the_examples_are_cut(x: np.ndarray, scale: float | None, batch: int) -> None:
    found = Normalisation.measured(x, scale, batch)
    divided = x.reshape(-1, x.shape[-1]).astype(np.float64) / (scale or 1.0)
    constant = np.ptp(x.reshape(-1, x.shape[-1]).astype(np.float64), axis=0) < LEAST_SPREAD
    np.testing.assert_allclose(found.mean, divided.mean(axis=0), rtol=1e-9, atol=1e-9)
    # A deviation loses by what is subtracted: half of the digits where it is as small as the rounding of the values.
    np.testing.assert_allclose(found.std, np.where(constant, 1, divided.std(axis=0)), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("value", [0.1, 1e-30, 3e7, 0.0])
def test_a_constant_channel_becomes_zero(value: float) -> None:
    x = np.stack([np.full((50, 7), value), np.random.default_rng(0).normal(size=(50, 7))], axis=-1)
    data = normalised(x, None)
    assert data.normalisation is not None
    assert data.normalisation.std[0] == 1
    made = data.inputs(x, "float64")
    assert not made[..., 0].any()
    np.testing.assert_allclose([made[..., 1].mean(), made[..., 1].std()], [0, 1], atol=1e-12)


def normalised(x: np.ndarray, scale: float | None) -> Data:
    split, task = Split(x, np.zeros(len(x), np.int64)), Classification(x.shape[1:], ("one",))
    return Data(split, split, split, task, "", scale, normalisation=Normalisation.measured(x, scale))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inputs_are_normalised_as_by_hand(dtype: str) -> None:
    """Also of values whose spread is far below them, in float32 too: they are subtracted before they are rounded."""
    generator = np.random.default_rng(1)
    sets: dict[float | None, np.ndarray] = {
        255.0: generator.integers(0, 256, (40, 5, 4, 3)).astype(np.uint8),
        None: 1e6 + generator.normal(size=(40, 5, 4, 3)),
    }
    for scale, x in sets.items():
        data, whole = normalised(x, scale), x.astype(np.float64) / (scale or 1.0)
        by_hand = (whole - whole.mean(axis=(0, 1, 2))) / whole.std(axis=(0, 1, 2))
        made = data.inputs(x, dtype)
        assert made.dtype == dtype
        np.testing.assert_allclose(made, by_hand, rtol=0, atol=1e-6 if dtype == "float32" else 1e-8)
        assert np.array_equal(made[3], data.inputs(x[3], dtype))  # one example, as torch's DataLoader asks for it
        assert np.array_equal(data.scaled(x, dtype), replace(data, normalisation=None).inputs(x, dtype))


def test_a_mapped_file_is_read_a_batch_at_a_time(tmp_path: Path) -> None:
    stored = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (2000, 32, 32, 1))
    stored[:] = np.arange(2000, dtype=np.uint16)[:, None, None, None] % 251
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    tracemalloc.start()
    found = Normalisation.measured(mapped, 255.0, batch=1 << 14)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < mapped.nbytes / 4
    assert found.mean[0] == pytest.approx((np.arange(2000) % 251).mean() / 255)


def colours() -> np.ndarray:
    """Coloured images of real numbers, whose channels differ."""
    return np.random.default_rng(2).random((120, 6, 5, 3)).astype(np.float32) * [0.2, 0.5, 1] + [0.5, 0.1, 0]


def test_the_training_split_alone_is_measured(tmp_path: Path) -> None:
    x = colours()
    np.savez(tmp_path / "colours.npz", x=x, y=np.arange(120) % 4)
    node = {"_target_": "pipeline.datasets.npz.Npz", "file": str(tmp_path / "colours.npz"), "normalise": True}
    data = load_data(experiment("torch", dataset=node))
    assert (len(data.train), len(data.validation), len(data.test)) == (86, 10, 24)
    assert data.normalisation is not None
    np.testing.assert_allclose(data.normalisation.mean, data.train.x.mean(axis=(0, 1, 2), dtype=np.float64))
    np.testing.assert_allclose(data.normalisation.std, data.train.x.std(axis=(0, 1, 2), dtype=np.float64))
    assert data.normalisation.mean != pytest.approx(x.mean(axis=(0, 1, 2)), rel=1e-6)  # of all images
    another = load_data(replace(experiment("torch", seed=1, dataset=node)))
    assert another.normalisation != data.normalisation  # other images are held out


def test_a_grid_reads_the_data_and_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wants the hash alone, of every cell that has run."""
    np.savez(tmp_path / "colours.npz", x=colours(), y=np.arange(120) % 4)
    node = {"_target_": "pipeline.datasets.npz.Npz", "file": str(tmp_path / "colours.npz"), "normalise": True}
    asked = experiment("torch", dataset=node)
    wanted = load_data(asked).sha256
    monkeypatch.setattr(Normalisation, "measured", None)
    history = History(tmp_path / "runs")
    assert history._same_data(asked, wanted) and not history._same_data(asked, "another")


def test_without_it_a_config_has_the_hash_that_it_had() -> None:
    plain = experiment("torch")
    unset = {**plain.config["dataset"], "normalise": False}
    assert load({**plain.config, "dataset": unset}).config_sha256() == plain.config_sha256()
    asked = load({**plain.config, "dataset": {**unset, "normalise": True}})
    assert asked.config_sha256() != plain.config_sha256()


@pytest.mark.parametrize(
    ("mean", "std", "said"),
    [
        ((0.1,), (1.0, 1.0, 1.0), "for each of 3"),
        ((0.0,) * 3, (1.0, 0.0, 1.0), "std above 0"),
        ((np.nan,) * 3, (1.0,) * 3, "finite"),
    ],
)
def test_a_datasets_own_normalisation_has_to_suit_its_channels(mean: Any, std: Any, said: str) -> None:
    x = np.zeros((3, 2, 2, 3), np.uint8)
    data = replace(normalised(x, 255.0), normalisation=Normalisation(mean, std))
    with pytest.raises(UserError, match=f"^dataset=mine: normalisation has mean=.*{said}"):
        check_data(data, "mine")


def saved_card(folder: Path, card: dict[str, Any]) -> Path:
    """A saved run of which only the card and its receipt are there."""
    (folder / "artifacts/model").mkdir(parents=True)
    (folder / "artifacts/model/card.json").write_text(json.dumps(card))
    write_json(folder / "receipt.json", {"card_sha256": card_sha256(card), "weights_sha256": digest({})})
    return folder


def test_a_dataset_that_now_normalises_otherwise_is_refused(tmp_path: Path) -> None:
    """Its class can be edited while its files, and so their hash, stay as they are."""
    data = normalised(np.random.default_rng(0).random((9, 2, 2, 1)), None)
    own = {by: replace(data, normalisation=Normalisation((by,), (0.25,))) for by in (0.5, 0.4)}
    then = saved_card(tmp_path / "then", {"normalisation": own[0.5].normalisation.plain()})  # type: ignore[union-attr]
    check_saved(then, {}, own[0.5])
    check_saved(then, {}, replace(data, normalisation=Normalisation(np.array([0.5]), [0.25])))  # type: ignore[arg-type]
    old = "run=then: its dataset normalised its examples by mean 0.5 and standard deviation 0.25, and load() now by "
    nothing = replace(data, normalisation=None)
    for changed, now in ((own[0.4], "mean 0.4 and standard deviation 0.25"), (nothing, "nothing")):
        with pytest.raises(UserError) as error:
            check_saved(then, {}, changed)
        assert str(error.value) == f"{old}{now}; restore that, or train again"
    never = saved_card(tmp_path / "never", {"task": "classification"})
    check_saved(never, {}, replace(data, normalisation=None))
    with pytest.raises(UserError, match=r"^run=never: its dataset normalised its examples by nothing, and load"):
        check_saved(never, {}, own[0.5])


def test_weights_to_start_from_that_know_other_inputs_are_noted(tmp_path: Path) -> None:
    """Of a saved run its card says so, of an export the file beside its weights."""
    by, other = Normalisation((0.5, 0.25), (1.0, 2.0)), Normalisation((0.5, 0.75), (1.0, 2.0))
    source = saved_card(tmp_path / "saved", {"task": "classification", "normalisation": by.plain()})
    exported = tmp_path / "export"
    exported.mkdir()
    write_normalisation(exported, normalised(np.zeros((1, 1, 1, 2)), None), by)
    trained = "model.start: that model was trained on examples"
    for weights in (source / "artifacts/model/weights.npz", exported / "model.safetensors"):
        card = card_of(weights)
        assert said_of_inputs(card, by, True) is None
        assert said_of_inputs(card, None, False) == (
            f"{trained} normalised, this one takes them as they are; "
            "dataset.normalise=true normalises them by this run's own examples"
        )
        assert said_of_inputs(card, other, True) == (
            f"{trained} normalised by mean 0.5, 0.25 and standard deviation 1, 2, "
            "this run normalises by mean 0.5, 0.75 and standard deviation 1, 2"
        )
    plain = {"task": "classification"}
    said = f"{trained} as they are, this one takes them normalised"
    assert said_of_inputs(plain, by, True) == f"{said}; dataset.normalise=false leaves them so"
    assert said_of_inputs(plain, by, False) == said  # the dataset's own, which no key takes away
    assert said_of_inputs(plain, None, False) is said_of_inputs(card_of(tmp_path / "x.npz"), by, True) is None


def test_a_range_is_taken_with_the_rounding_of_resized_images(tmp_path: Path) -> None:
    for number, taken in enumerate(({}, {"range": [0.0, 1.0000001]}, {"range": [-1e-7, 1.0019]})):
        check_range(saved_card(tmp_path / str(number), taken))
    for name, card, said in (
        (
            "wide",
            {"range": [0, 1.01]},
            "was trained on images from 0 to 1.01, and stage=predict gives images from 0 to 1; ",
        ),
        ("number", {"range": 5}, "artifacts/model/card.json is damaged (range: 5)"),
        ("three", {"range": [0, 1, 2]}, "artifacts/model/card.json is damaged (range: [0, 1, 2])"),
    ):
        source = saved_card(tmp_path / name, card)
        with pytest.raises(UserError) as error:
            check_range(source)
        assert str(error.value).startswith(f"run={name}: {said}")
        write_json(source / "receipt.json", {"card_sha256": "9" * 64})
        check_range(source)  # the run refuses the card by its hash


# A run


def grey() -> dict[str, Any]:
    """Digits as bytes, (N, 8, 8)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = (bunch.images * 15).astype(np.uint8), bunch.target
    return {"x_train": x[:600], "y_train": y[:600], "x_test": x[600:800], "y_test": y[600:800]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on normalised grey bytes."""
    folder = tmp_path_factory.mktemp("normalised")
    np.savez(folder / "digits.npz", **grey())
    return done(folder, *QUICK, "training.epochs=2", "dataset.normalise=true")


def test_a_run_keeps_what_normalises_its_images(run: Path) -> None:
    found = read_json(run / "receipt.json")["normalisation"]
    assert read_json(run / "artifacts/model/card.json")["normalisation"] == found
    order = np.random.default_rng(0).permutation(600)[60:]  # a tenth is held out by the seed
    train = grey()["x_train"][order] / 255
    np.testing.assert_allclose([found["mean"], found["std"]], [[train.mean()], [train.std()]], rtol=1e-12)
    rows = dict(read_json(run / "result.json")["table"])
    assert rows["normalised"] == (
        f"by the training examples: mean {train.mean():.4f}; standard deviation {train.std():.4f}"
    )


def test_a_saved_run_is_evaluated_and_predicts_by_its_own_statistics(run: Path) -> None:
    folder, accuracy = run.parents[1], metrics_of(run)["test/accuracy"].value
    assert accuracy > 0.8
    again = done(folder, "stage=evaluate", f"run={run.name}", "tracking=none")
    assert {name: one.value for name, one in metrics_of(again).items()}.items() >= {
        "test/loss": metrics_of(run)["test/loss"].value,
        "test/accuracy": accuracy,
    }.items()
    (folder / "test.idx").write_bytes(idx(grey()["x_test"]))
    predicted = done(folder, "stage=predict", f"run={run.name}", "stage.images=[test.idx]", "tracking=none")
    with (predicted / "artifacts/probabilities.csv").open() as file:
        classes = [int(row["predicted"]) for row in csv.DictReader(file)]
    assert np.mean(np.array(classes) == grey()["y_test"]) == accuracy


@pytest.mark.wide  # tests/test_export.py has a format of torch's
@pytest.mark.parametrize(
    ("backend", "form"),
    [("torch", "torch"), ("torch", "safetensors"), ("jax", "keras"), ("tensorflow", "saved_model")],
)
def test_what_is_exported_normalises_by_itself(run: Path, backend: str, form: str) -> None:
    """The stage compares what another process reads back, fed with images that are not normalised, with the run."""
    words = ("stage=export", f"run={run.name}", f"stage.format={form}", f"backend={backend}", "tracking=none")
    made = done(run.parents[1], *words)
    found = read_json(made / "receipt.json")["export"]
    about = read_json(made / "artifacts/export" / form / "normalisation.json")
    weights = {"model.safetensors", "state_dict.pt"}
    written = {name for name in found["files"] if name.partition("/")[0] != "normalisation.json"}
    assert set(about["take_x_minus_mean_by_std"]) == written & weights
    assert set(about["take_x"]) == {name.partition("/")[0] for name in written - weights}
    assert (about["mean"], about["x"]) == (
        read_json(run / "receipt.json")["normalisation"]["mean"],
        "as the dataset has it, divided by 255",
    )
    assert found["largest_difference"] < 1e-4


@pytest.mark.wide
def test_an_export_of_keras_normalises_in_double_precision(tmp_path: Path) -> None:
    np.savez(tmp_path / "digits.npz", **grey())
    words = ("backend=tensorflow", "precision=fp64", "dataset.normalise=true", "training.epochs=1")
    saved = done(tmp_path, *QUICK, *words)
    for form in ("keras", "saved_model"):
        made = done(tmp_path, "stage=export", f"run={saved.name}", f"stage.format={form}", "tracking=none")
        found = read_json(made / "receipt.json")["export"]
        assert found["computes_in"] == ["float64"]
        assert found["largest_difference"] < 1e-10


@pytest.mark.wide
def test_an_export_of_years_is_compared_without_allowance(tmp_path: Path) -> None:
    """Rounding x to float32 costs a mean of 2000 with a deviation of 1 much: that is said, and allows for nothing."""
    generator = np.random.default_rng(4)
    y = generator.integers(0, 3, 300)
    x = np.stack([2000.3 + 0.7 * y + generator.normal(size=300) / 3, np.full(300, 0.1)], axis=1)[:, None, None]
    np.savez(tmp_path / "digits.npz", x=x, y=y)
    saved = done(tmp_path, *QUICK, "training.epochs=1", "dataset.normalise=true")
    made = done(tmp_path, "stage=export", f"run={saved.name}", "stage.format=torch", "tracking=none")
    assert read_json(made / "receipt.json")["export"]["largest_difference"] < 1e-5
    assert any(note.startswith("the run's own outputs differ") for note in read_json(made / "result.json")["notes"])


def test_a_card_that_was_changed_is_refused(run: Path) -> None:
    folder = run.parents[1]
    copied = folder / "runs" / f"{run.name[:-4]}copy"
    shutil.copytree(run, copied)
    path = copied / "artifacts/model/card.json"
    card = read_json(path)
    for normalisation, said in (
        ({"mean": [0.5, 0.5], "std": [1.0]}, " now differs from what it saved (another sha256)"),
        ({"mean": 0.5}, ", which says how x is normalised, is missing or damaged"),
    ):
        path.write_text(json.dumps({**card, "normalisation": normalisation}))
        ended = pipeline(folder, "stage=evaluate", f"run={copied}", "tracking=none")
        assert message(ended) == f"run={copied.name}: artifacts/model/card.json{said}"


@pytest.mark.wide
def test_starting_from_weights_of_the_other_kind_is_said(run: Path) -> None:
    words = (*QUICK, "training.epochs=1", f"model.start={run.name}")
    said = "model.start: that model was trained on examples normalised, this one takes them as they are; "
    other = pipeline(run.parents[1], *words)
    assert f"{said}dataset.normalise=true normalises them by this run's own examples" in " ".join(other.stderr.split())
    same = pipeline(run.parents[1], *words, "dataset.normalise=true")
    assert same.returncode == other.returncode == 0
    assert "model.start:" not in same.stderr


# Refused


def test_what_cannot_be_normalised_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "stage=pinn", "dataset=ode", "dataset.normalise=true") == (
        "dataset.normalise with stage=pinn: it would be ignored; leave it out"
    )
    assert refused(tmp_path, "dataset=digits", "dataset.normalize=true") == (
        "dataset.normalize: no such key (did you mean dataset.normalise?); choose from dataset.fold, dataset.folds, "
        "dataset.normalise, dataset.train_size, dataset.validation"
    )


def test_a_field_of_that_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_MODULES", "own_examples")
    monkeypatch.setattr("pipeline.allowed._taken", None)
    plain = experiment("torch")
    with pytest.raises(
        UserError, match=r"^dataset=taken: Taken has a field normalise, and dataset\.normalise is a key "
    ):
        load({**plain.config, "dataset": {"_target_": "own_examples.Taken"}})


def test_images_that_no_scale_brings_to_0_to_1_are_not_predicted(tmp_path: Path) -> None:
    """A picture is from 0 to 1 for `stage=predict`: what that is to a model of other images nobody has said."""
    stored = grey()
    for name in ("x_train", "x_test"):
        stored[name] = stored[name][..., None].astype(np.float32) / 128 - 1
    np.savez(tmp_path / "digits.npz", **stored)
    saved = done(tmp_path, *QUICK, "training.epochs=1")
    (tmp_path / "test.idx").write_bytes(idx(grey()["x_test"]))
    assert refused(tmp_path, "stage=predict", f"run={saved.name}", "stage.images=[test.idx]", "tracking=none") == (
        f"run={saved.name}: was trained on images from -1 to 0.875, and stage=predict gives images from 0 to 1; "
        "train it on bytes, or on images from 0 to 1"
    )
