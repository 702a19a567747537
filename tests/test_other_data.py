"""stage=evaluate on other data than a saved run's: classes by their names, inputs by the statistics of the training."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import numpy as np
import pytest
from command import done, pipeline, refused
from PIL import Image

from pipeline.runs.json_files import read_json
from pipeline.runs.other_data import other_dataset
from pipeline.runs.result import judged_by, metrics_of, read_result
from pipeline.stages.evaluate import Evaluate
from pipeline.tasks.classification import Classification

NEW = ("dataset=npz", "dataset.file=new.npz")
TRAINED = ("dataset=npz", "dataset.normalise=true", "model=mlp", "model.units=[8]", "training.epochs=2")
CLASSES = np.array(["ash", "beech", "cedar"])


def rows(count: int, seed: int) -> np.ndarray:
    """Of other means and spreads in each column, so that other statistics give other predictions."""
    return np.random.default_rng(seed).normal(size=(count, 4)) * [1, 5, 20, 100] + [3, 0, 50, -9] + seed


def labels(x: np.ndarray) -> np.ndarray:
    return CLASSES[(x[:, 0] > 3).astype(int) + (x[:, 1] > 2)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, in whose folder's folder new.npz holds two of its three classes."""
    folder = tmp_path_factory.mktemp("trees")
    x = rows(300, 0)
    np.savez(folder / "old.npz", x=x, y=labels(x))
    x = rows(90, 1)
    x = x[labels(x) != "ash"]
    np.savez(folder / "new.npz", x=x, y=labels(x))
    np.savetxt(folder / "new.csv", x, delimiter=",")
    return done(folder, *TRAINED, "dataset.file=old.npz")


def predictions(run: Path) -> list[str]:
    predicted = done(run.parents[1], "stage=predict", f"run={run.name}", "stage.rows=new.csv")
    with (predicted / "artifacts" / "predictions.csv").open() as file:
        return [row["predicted"] for row in csv.DictReader(file)]


def test_all_examples_of_other_data_are_measured_as_predict_has_them(classifier: Path) -> None:
    folder = classifier.parents[1]
    again = done(folder, "stage=evaluate", f"run={classifier.name}", *NEW)
    y = np.load(folder / "new.npz")["y"]
    assert metrics_of(again)["other_data/accuracy"].value == np.mean(np.array(predictions(classifier)) == y)
    table = dict(read_result(again).table)  # type: ignore[union-attr]  # it has a result
    said = f"dataset=npz dataset.normalise=true dataset.file=new.npz: all {len(y)} examples; not the run's own test set"
    assert table["measured on"] == said
    assert "  its own test set, when trained: " in table["other data accuracy"]
    assert not [name for name in metrics_of(again) if name.startswith("test/")]
    with (again / "artifacts/predictions.csv").open() as file:
        assert [row["predicted"] for row in csv.DictReader(file)] == predictions(classifier)
    assert (again / "artifacts/figures/confusion_matrix.png").is_file()
    then, now = (read_json(run / "receipt.json") for run in (classifier, again))
    assert now["held_out"]["test"] != then["held_out"]["test"] and now["data_sha256"] != then["data_sha256"]


def test_the_test_of_other_data_alone(classifier: Path) -> None:
    folder = classifier.parents[1]
    again = done(folder, "stage=evaluate", f"run={classifier.name}", *NEW, "stage.split=test", "dataset.test=0.5")
    half = round(len(np.load(folder / "new.npz")["y"]) / 2)
    (on,) = (text for name, text in read_result(again).table if name == "measured on")  # type: ignore[union-attr]
    assert f" dataset.test=0.5: the test set: {half} examples; " in on


def test_other_data_without_a_test_are_refused_by_that_word(classifier: Path) -> None:
    """They were said to have no example to train on, which nobody had asked for."""
    folder = classifier.parents[1]
    x = rows(20, 2)
    np.savez(folder / "empty.npz", x_train=x, y_train=labels(x), x_test=x[:0], y_test=labels(x[:0]))
    words = ("stage=evaluate", f"run={classifier.name}", "stage.split=test", "dataset=npz")
    said = "dataset.test=0.0: leaves no example for the test; choose a share above 0"
    assert refused(folder, *words, "dataset.file=new.npz", "dataset.test=0") == said
    assert refused(folder, *TRAINED, "dataset.file=old.npz", "dataset.test=0") == said
    empty = refused(folder, *words, "dataset.file=empty.npz")
    assert empty.startswith("dataset=npz: test holds no example; "), empty


def test_a_run_s_own_data_by_their_name_are_its_test(classifier: Path) -> None:
    again = done(classifier.parents[1], "stage=evaluate", f"run={classifier.name}", "dataset=npz")
    assert metrics_of(again)["test/loss"].value == metrics_of(classifier)["test/loss"].value
    assert "measured on" not in dict(read_result(again).table)  # type: ignore[union-attr]


def test_examples_that_the_model_was_trained_on_are_counted(classifier: Path) -> None:
    folder = classifier.parents[1]
    old, new = (np.load(folder / name) for name in ("old.npz", "new.npz"))
    x, y = (np.concatenate([old[name], new[name]]) for name in ("x", "y"))
    np.savez(folder / "mixed.npz", x=x, y=y)
    words = ("stage=evaluate", f"run={classifier.name}", "dataset=npz", "dataset.file=mixed.npz")
    result = read_result(done(folder, *words))
    assert result is not None
    trained = 300 - 60 - 24  # a fifth was the test, a tenth of the rest the validation
    of = f"{trained} of these {len(y)} examples (contamination): the result is optimistic"
    assert f"{classifier.name} was trained on {of}" in result.notes


def test_runs_of_several_seeds_are_measured_on_the_same_few_examples(classifier: Path) -> None:
    """Of three examples no share can be held out, and none has to be; the order does not depend on the run's seed."""
    folder, x = classifier.parents[1], rows(3, 5)
    np.savez(folder / "few.npz", x=x, y=CLASSES[[0, 1, 1]])
    other = done(folder, *TRAINED, "dataset.file=old.npz", "seed=1")
    words = ("stage=evaluate", "dataset=npz", "dataset.file=few.npz", "dataset.test=0.5")
    measured = [done(folder, *words, f"run={run.name}") for run in (classifier, other)]
    first, second = (read_json(run / "receipt.json")["held_out"]["test"] for run in measured)
    assert first == second and first.startswith("3-")
    (on,) = (text for name, text in read_result(measured[0]).table if name == "measured on")  # type: ignore[union-attr]
    assert "dataset.file=few.npz: all 3 examples" in on  # and nothing of a share that is not held out


def test_the_words_for_other_data_can_be_typed_again(tmp_path: Path) -> None:
    """A list of columns and a name with a blank in it, as a shell takes them."""
    table = ["length,width,kind", *(f"{n % 7},{n % 5},{'ab'[n % 2]}" for n in range(90))]
    for name in ("a.csv", "the other.csv"):
        (tmp_path / name).write_text("\n".join(table[: 60 if name == "a.csv" else None]) + "\n")
    words = ("dataset=csv", "dataset.target=kind", "dataset.features=[width,length]")
    run = done(tmp_path, *words, "dataset.file=a.csv", "model=linear", "training.epochs=1")
    other = ("stage=evaluate", f"run={run.name}")
    measured = done(tmp_path, *other, *words, "dataset.file=the other.csv")
    said = dict(read_result(measured).table)["measured on"]  # type: ignore[union-attr]
    typed = shlex.split(said.partition(": all 90 examples")[0])
    assert said.count("'dataset.features=[width,length]'") == 1
    again = done(tmp_path, *other, *typed)
    assert dict(read_result(again).table)["measured on"] == said  # type: ignore[union-attr]


def test_other_examples_take_the_arguments_of_the_run_s_and_not_its_test() -> None:
    target = "pipeline.datasets.examples.Examples"
    saved = {"_target_": target, "train": "lab.a", "test": "lab.b", "arguments": {"size": 8, "year": 1}, "keys": ["x"]}
    plain: dict[str, object] = {
        "_target_": target,
        "train": None,
        "test": None,
        "arguments": {},
        "keys": ["image", "label"],
    }

    def chosen(**settings: object) -> dict[str, object]:
        keys = ["dataset", *(f"dataset.{name}" for name in settings)]
        return other_dataset(Path(), {"dataset": saved}, {"dataset": plain | settings}, keys)

    assert chosen() == saved
    assert chosen(train="lab.c") == saved | {"train": "lab.c", "test": None}
    assert chosen(arguments={"year": 2}) == saved | {"arguments": {"size": 8, "year": 2}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dataset=digits",), "the model has no class 0, 1, 2, 3, 4, 5, 6, 7, 8, 9; its classes are ash, beech, cedar"),
        (("dataset=image_folder", "dataset.folder=trees"), " on dataset=image_folder: the model has no class oak; "),
        (
            ("dataset=npz", "dataset.file=wide.npz"),
            "the shape of an example is [5] there, and the model ",
        ),
        (
            ("dataset=npz", "dataset.file=one.npz"),
            "of one class, ash; give examples of two at least; here 'dataset.classes=[ash,beech,cedar]', those of the ",
        ),
        (
            ("dataset=image_folder", "dataset.folder=wood"),
            "two at least; here an empty subfolder for another class will ",
        ),
        (
            (*NEW, "dataset.normalise=false"),
            "was made with dataset.normalise=true and keeps it; what ",
        ),
        (("stage.split=all",), "stage.split=all without dataset: is for other data than the run's, of which the test "),
        (
            ("stage.split=test", "dataset=npz"),
            "stage.split=test: these data are the run's own, of which the test is measured without it; leave it out",
        ),
    ],
)
def test_other_data_that_the_model_does_not_take_are_refused(
    classifier: Path, words: tuple[str, ...], said: str
) -> None:
    folder = classifier.parents[1]
    x = rows(60, 2)
    np.savez(folder / "wide.npz", x=np.concatenate([x, x[:, :1]], axis=1), y=labels(x))
    np.savez(folder / "one.npz", x=x, y=np.full(len(x), "ash"))
    for name in ("trees/ash", "trees/oak", "wood/ash"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / name / "1.png")
    before = sorted((folder / "runs").iterdir())
    assert said in refused(folder, "stage=evaluate", f"run={classifier.name}", *words)
    assert sorted((folder / "runs").iterdir()) == before  # refused before the run begins


def test_a_regression_on_other_data(tmp_path: Path) -> None:
    weights = np.array([1, -2, 0.5, 0.1])
    for name, seed, count in (("old", 0, 200), ("new", 1, 50)):
        np.savez(tmp_path / f"{name}.npz", x=rows(count, seed), y=rows(count, seed) @ weights)
    np.savetxt(tmp_path / "new.csv", rows(50, 1), delimiter=",")
    words = (*TRAINED, "stage=train", "loss=squared_error", "dataset.targets=numbers")
    run = done(tmp_path, *words, "dataset.file=old.npz")
    again = done(tmp_path, "stage=evaluate", f"run={run.name}", *NEW)
    errors = np.array(predictions(run), float) - rows(50, 1) @ weights
    assert metrics_of(again)["other_data/mean_absolute_error"].value == pytest.approx(np.abs(errors).mean(), rel=1e-5)


def test_images_in_another_unit_are_noted(tmp_path: Path) -> None:
    """Digits are 0 to 16 and were divided by 16; the same values as bytes are divided by 255, without a word."""
    images = np.random.default_rng(0).integers(0, 17, (30, 8, 8, 1)).astype(np.uint8)
    np.savez(tmp_path / "new.npz", x=images, y=np.arange(30) % 10)
    run = done(tmp_path, "dataset=digits", "model=mlp", "model.units=[8]", "training.epochs=1")
    result = read_result(done(tmp_path, "stage=evaluate", f"run={run.name}", *NEW))
    assert result is not None
    said = "x is divided by 255 here, and was divided by 16 when the model was trained; is it in the same unit?"
    assert said in result.notes


def test_a_search_over_evaluations_is_judged_by_the_other_data(classifier: Path) -> None:
    """The message named a metric of the validation data, which no evaluation has."""
    searched = ("-m", "hydra/sweeper=optuna", "stage=evaluate", f"run={classifier.name}", "stage.split=all,test")
    said = refused(classifier.parents[1], *searched, *NEW)
    asked = "hydra.sweeper.metric=other_data/accuracy: nothing declares before the first trial whether more or less"
    assert said.startswith(asked)
    found = pipeline(classifier.parents[1], *searched, *NEW, "hydra.sweeper.direction=maximize")
    assert found.returncode == 0 and "the best of 2 finished trials" in found.stdout, found.stderr
    assert "other_data/accuracy is of 2 different sets of examples" in found.stderr


def test_a_listing_and_a_grid_know_what_other_data_are(classifier: Path) -> None:
    """The best of the tests is none of other data; a grid judges by the accuracy on them."""
    folder = classifier.parents[1]
    again = done(folder, "stage=evaluate", f"run={classifier.name}", *NEW)
    listed = pipeline(folder, "stage=runs", "stage.best=test/accuracy", "stage.format=csv").stdout
    assert classifier.name in listed and again.name not in listed
    judges = (Classification.headline, Evaluate.headline, *Evaluate.otherwise)  # as a grid asks for them
    assert judged_by(metrics_of(again), *map(str, judges)) == "other_data/accuracy"
