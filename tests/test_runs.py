"""stage=runs: what it lists, in which order and format; what it refuses. The runs are written by the journal itself."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from command import COMMAND, environment, pipeline, refused
from rich.console import Console

from pipeline.cli.conf_path import conf_path
from pipeline.errors import UserError
from pipeline.experiment.settings import Settings, Sought
from pipeline.experiment.training import Checkpoints
from pipeline.report.table import digits, markdown_rows, of_words, show, show_result, show_table, small
from pipeline.runs import listing, lookup, records
from pipeline.runs.checkpoint import Writer
from pipeline.runs.conditions import check_where, lacking, matching, misspelt
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.keeping import resume_words, where_it_goes_on
from pipeline.runs.listing import listed
from pipeline.runs.lookup import find_run, run_folders
from pipeline.runs.records import State
from pipeline.runs.result import Metric, Result, Table, count, rate
from pipeline.spec import build_as
from pipeline.stages.about_runs.runs import Runs, _as_csv

CONF = conf_path()
CONFIG = {
    "stage": {"_target_": "pipeline.stages.train.Train"},
    "model": {"_target_": "pipeline.models.mlp.Mlp", "units": [128, 64]},
    "backend": {"_target_": "pipeline.backends.Torch"},
    "seed": 0,
}


def a_run(
    root: Path, accuracy: float, loss: float = 1.0, state: State = "FINISHED", ago: float = 0.0, **config: object
) -> Path:
    """A run of the real journal, begun `ago` seconds ago."""
    journal = Journal.begin(root, f"a-{accuracy}", {**CONFIG, **config})
    journal.log({"validation/accuracy": accuracy - 0.5}, 1)
    if state != "KILLED":
        metrics = (Metric("test/accuracy", accuracy, direction="max"), Metric("test/loss", loss, direction="min"))
        last = (Metric("validation/accuracy", accuracy, direction="max"), rate("images_per_s", 5.0, "images"))
        journal.write_result(Result(metrics=(*metrics, count("gpus", 0)), last_epoch=last, title="a"))
    journal.finish(state, None if state == "FINISHED" else "it broke")
    kept = read_json(journal.folder / "status.json")
    write_json(journal.folder / "status.json", {**kept, "started": kept["started"] - ago})
    return journal.folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs: two that finished, one that failed, one that was killed."""
    folder = tmp_path_factory.mktemp("runs")
    cnn = {"_target_": "pipeline.models.cnn.Cnn", "units": [8]}
    a_run(folder / "runs", 0.9, 0.3, ago=3 * 86400)
    a_run(folder / "runs", 0.8, float("nan"), ago=7200, model=cnn, seed=7)
    a_run(folder / "runs", 0.7, 0.1, state="FAILED", ago=60)
    a_run(folder / "runs", 0.6, state="KILLED")
    return folder


def names(folder: Path, *arguments: str) -> list[str]:
    """The names of the runs that are listed, in order: `a-<accuracy>`."""
    found = pipeline(folder, "stage=runs", "stage.format=json", *arguments)
    assert found.returncode == 0, found.stderr
    return [one["id"].split("-")[3] for one in json.loads(found.stdout)]


def test_runs_are_listed_newest_first_and_filtered_by_what_they_are(folder: Path) -> None:
    every = listing.listed(folder / "runs")
    assert [run.metrics["validation/accuracy"] for run in every] == [pytest.approx(0.1), 0.7, 0.8, 0.9]
    assert names(folder) == ["0.6", "0.7", "0.8", "0.9"]
    assert names(folder, "stage.status=[failed,killed]", "stage.limit=1") == ["0.6"]
    assert names(folder, "stage.newer=1d", "stage.older=1h") == ["0.8"]
    assert names(folder, 'stage.where=["test/accuracy>=0.8","model=mlp"]') == ["0.9"]
    assert names(folder, "stage.where=[test/accuracy>=0.8,model=mlp]") == ["0.9"]


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        (["seed=7"], [0.8]),
        (["seed != 0"], [0.8]),
        (["model.units=[128,64]", "test/loss<0.2"], [0.7]),
        (["stage=train", "backend=Torch", "validation/accuracy>0.85"], [0.9]),
        (["test/loss<9"], [0.7, 0.9]),  # a NaN is in no bounds
        (["test/loss=nan"], [0.8]),
        (["test/loss!=NaN"], [0.7, 0.9]),
        (["gpus=nan"], []),
        (["seed=0.0", "test/accuracy!=0.70"], [0.9]),
    ],
)
def test_conditions_compare_numbers_texts_and_lists(folder: Path, conditions: list[str], left: list[float]) -> None:
    found = matching(listing.listed(folder / "runs"), conditions)
    assert [run.metrics["test/accuracy"] for run in found] == left


def test_runs_of_before_a_group_existed_have_its_choice_that_does_nothing(tmp_path: Path) -> None:
    images = {"_target_": "pipeline.augmentations.images.Images"}
    a_run(tmp_path / "runs", 0.5)
    a_run(tmp_path / "runs", 0.6, augmentation={"_target_": "pipeline.augmentations.none.Off"})
    a_run(tmp_path / "runs", 0.7, augmentation=images)
    assert names(tmp_path, "stage.where=augmentation=none") == ["0.6", "0.5"]
    assert names(tmp_path, "stage.where=augmentation!=none") == ["0.7"]


def test_runs_that_lack_a_setting_are_left_out_in_so_many_words(tmp_path: Path) -> None:
    """Whether it was then what it is now where it is unset, no file says. Another model just has no such setting.

    A newer run may lack one, too: "saved before training.max_hours existed" was said of runs after it had gone.
    """
    relu = {"_target_": "pipeline.models.mlp.Mlp", "units": [128, 64], "activation": "relu"}
    old, new = {"epochs": 3, "max_hours": 2}, {"epochs": 3, "accumulate": 1}
    a_run(tmp_path / "runs", 0.5, training=old)
    a_run(tmp_path / "runs", 0.6, training=new, model=relu)
    a_run(tmp_path / "runs", 0.7, training=new, model={"_target_": "pipeline.models.cnn.Cnn"})
    every = listed(tmp_path / "runs")
    for where, left in (
        (["training.accumulate=1"], 1),
        (["training.accumulate!=1"], 1),
        (["model.activation=relu"], 1),
        (["training.accumulate=1", "test/accuracy>0.5"], 0),
        (["training.epochs=3"], 0),
        (["test/accuracy>0.6"], 0),
        (["training.max_hours=2"], 2),
    ):
        key = where[0].partition("=")[0].rstrip("!")
        said = [f"{left} left out for lack of {key}, perhaps saved by a version without it"] if left else []
        assert lacking(every, where) == said, where
    keras = {"_target_": "pipeline.stages.keras.Keras"}
    for arguments in ({"width": 64}, {"depth": 2}, {}):
        a_run(tmp_path / "runs", 0.1, stage={**keras, "arguments": arguments})
    a_run(tmp_path / "runs", 0.2, model={**relu, "adapters": None})
    a_run(tmp_path / "runs", 0.3, model={**relu, "adapters": {"rank": 4}})
    every = listed(tmp_path / "runs")
    assert lacking(every, ["stage.arguments.width=64"]) == []  # the user's name
    assert lacking(every, ["model.adapters.rank=4", "stage=train"])[0].startswith("2 left out")  # and not the null
    shown = pipeline(tmp_path, "stage=runs", "stage.where=training.accumulate=1")
    assert "1 left out for lack of training.accumulate" in shown.stderr


def test_a_metric_may_have_a_name_of_several_words(tmp_path: Path) -> None:
    """`name` of a user's metric may: asked for, such a one was "not a condition"."""
    for value in (0.25, 0.75):
        journal = Journal.begin(tmp_path, "of", CONFIG)
        journal.write_result(Result((Metric("test/balanced error rate", value, direction="min"),)))
        journal.finish("FINISHED")
    every = listing.listed(tmp_path)
    check_where(every, ["test/balanced error rate<0.5"])
    (found,) = matching(every, [" test/balanced error rate < 0.5 "])
    assert found.value("test/balanced error rate") == 0.25


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("test/AP@IoU=0.5>0.5", [0.75]),
        ("test/AP@IoU=0.5 = 0.25", [0.25]),
        ("test/AP@IoU=0.5:0.95<=0.2", [0.25]),  # the longer name
        ("test/AP@IoU=0.5!=0.25", [0.75]),
        ("test/AP=0.1", [0.25]),
    ],
)
def test_a_metric_may_have_a_sign_in_its_name(tmp_path: Path, condition: str, left: list[float]) -> None:
    """What a LightningModule logs may: `0.5>0.5` was taken for the value of `test/AP@IoU`, which no run has."""
    for value in (0.25, 0.75):
        journal = Journal.begin(tmp_path, "of", CONFIG)
        numbers = {"AP@IoU=0.5": value, "AP@IoU=0.5:0.95": value - 0.1, "AP": 0.4 * value}
        journal.write_result(Result(tuple(Metric(f"test/{name}", number) for name, number in numbers.items())))
        journal.finish("FINISHED")
    every = listing.listed(tmp_path)
    check_where(every, [condition])
    assert misspelt(every, [condition]) == []
    assert [run.value("test/AP@IoU=0.5") for run in matching(every, [condition])] == left


def test_the_best_run_is_first_by_the_direction_that_runs_declare(folder: Path) -> None:
    every = listing.listed(folder / "runs")

    def order(metric: str) -> list[str]:
        return [run.id.split("-")[3] for run in listing.best_first(every, metric)]

    assert order("validation/accuracy") == ["0.9", "0.8", "0.7", "0.6"]
    assert order("test/loss") == ["0.7", "0.9", "0.8"]  # NaN is last; the killed run has none
    with pytest.raises(UserError) as caught:
        listing.best_first(every, "gpus")
    assert str(caught.value).startswith(
        "stage.best=gpus: no run says whether more or less is better; give stage.direction=maximize or "
        "stage.direction=minimize, or choose from im"
    )
    with pytest.raises(UserError) as caught:
        listing.best_first(every, "test/loss", "maximize")
    assert str(caught.value) == (
        "stage.direction=maximize with stage.best=test/loss: less is better; use stage.direction=minimize"
    )
    with pytest.raises(UserError, match=r"stage.best=test/acc: no such choice \(did you mean test/accuracy"):
        listing.best_first(every, "test/acc")


def test_losses_and_data_that_are_not_the_same_are_named(tmp_path: Path) -> None:
    """By a loss of another kind the worse model came first, without a word."""
    root = tmp_path / "runs"
    for number, (loss, data) in enumerate((("cross_entropy", "digits"), ("hinge", "digits"), ("hinge", "mnist"))):
        kinds = {"loss": f"pipeline.losses.{loss}.Loss", "dataset": f"pipeline.datasets.{data}.Data"}
        made = a_run(root, 0.5 + number / 10, ago=9 - number)
        config = CONFIG | {group: {"_target_": target} for group, target in kinds.items()}
        (made / "config.yaml").write_text(json.dumps(config))
    every = listing.listed(root)
    chooses = "; choose among them by stage.where=<key>=<value>"
    assert listing.unlike(every, "test/loss") == [
        f"test/loss is not compared across loss=hinge,cross_entropy; dataset=mnist,digits{chooses}"
    ]
    assert listing.unlike(every[1:], "test/accuracy") == []
    listed = pipeline(tmp_path, "stage=runs", "stage.best=test/accuracy")
    assert listed.stderr.splitlines()[-1] == f"test/accuracy is not compared across dataset=mnist,digits{chooses}"


def test_what_a_condition_weighs_is_of_the_loss(tmp_path: Path) -> None:
    """A problem whose conditions weigh nothing has a small loss, and no solution."""
    root = tmp_path / "runs"
    for number, weight in enumerate((1.0, 1e-6)):
        made = a_run(root, 0.5, ago=9 - number)
        solver = {"_target_": "pipeline.pinn.solvers.gauss_newton.GaussNewton", "condition_weight": weight}
        (made / "config.yaml").write_text(json.dumps(CONFIG | {"solver": solver}))
    (line,) = listing.unlike(listing.listed(root), "test/loss")
    assert line.startswith("test/loss is not compared across solver.condition_weight=1e-06,1.0;")


def test_settings_of_a_loss_and_other_examples_are_named(tmp_path: Path) -> None:
    """By the loss a smoothed one came last, its model as good; and by the accuracy the easier task first."""
    root = tmp_path / "runs"
    chooses = "; choose among them by stage.where=<key>=<value>"
    for number, (smoothing, symbols, examples) in enumerate(((0, 2, "a"), (0.5, 2, "a"), (0.5, 8, "b"))):
        made = a_run(root, 0.5 + number / 10, ago=9 - number)
        write_json(made / "receipt.json", {"held_out": {"test": examples, "validation": examples}})
        loss = {"_target_": "pipeline.losses.cross_entropy.CrossEntropy", "label_smoothing": smoothing}
        recall = {"_target_": "pipeline.datasets.recall.Recall", "symbols": symbols, "channels": number}
        (made / "config.yaml").write_text(json.dumps(CONFIG | {"loss": loss, "dataset": recall}))
    every = listing.listed(root)
    assert listing.unlike(every[1:], "test/loss") == [
        f"test/loss is not compared across loss.label_smoothing=0.5,0{chooses}"
    ]
    assert listing.unlike(every[1:], "test/accuracy") == []
    assert listing.unlike(every, "test/accuracy") == [
        f"test/accuracy is not compared across dataset.symbols=8,2{chooses}"
    ]


def test_runs_are_alike_by_their_examples_where_all_say_which_and_else_by_their_settings(tmp_path: Path) -> None:
    """A run without the metric counts to neither: what it was trained by is nobody's difference."""
    root, chooses = tmp_path / "runs", "; choose among them by stage.where=<key>=<value>"
    states: tuple[State, ...] = ("FINISHED", "FAILED", "KILLED")
    for number, state in enumerate(states):
        npz = {"_target_": "pipeline.datasets.npz.Npz", "file": f"{number}.npz"}
        made = a_run(root, 0.5, state=state, ago=9 - number)
        config = CONFIG | {"dataset": npz, "loss": {"_target_": f"mine.Loss{number // 2}"}}
        (made / "config.yaml").write_text(json.dumps(config))
        write_json(made / "receipt.json", {"held_out": {"test": "the same", "validation": "the same"}})
    killed, second, first = listing.listed(root)
    assert "test/loss" not in killed.metrics
    assert listing.unlike([killed, second, first], "test/loss") == []
    (first.folder / "receipt.json").unlink()
    said = f"test/loss is not compared across dataset.file=1.npz,0.npz{chooses}"
    assert listing.unlike([killed, second, first], "test/loss") == [said]


def test_a_metric_measured_by_other_versions_is_named(tmp_path: Path) -> None:
    """By the same name the validation loss of one version was another number, and the rate of other steps."""
    root, task = tmp_path / "runs", "pipeline.tasks.sequence_to_sequence"
    for number, version in enumerate("aab"):
        made = a_run(root, 0.5, ago=9 - number)
        own = {task: version, "pipeline.backends.torch.fit": str(number), "mine": str(number)}
        write_json(made / "code.json", own | ({"pipeline.metrics.total": version} if number else {}))
    newest, second, first = listing.listed(root)
    assert listing.unlike([second, first], "test/accuracy") == []
    assert listing.unlike([newest, second, first], "images_per_s") == []
    said = (
        "test/accuracy was measured by several versions of the code, which differ in "
        "tasks.sequence_to_sequence, metrics.total: what it means may have changed; "
        "stage=compare says how two runs differ"
    )
    assert listing.unlike([newest, second, first], "test/accuracy") == [said]
    write_json(first.folder / "code.json", {"pipeline.backends.shared.progress": "older"})
    write_json(second.folder / "code.json", {"pipeline.backends.shared.progress": "newer"})
    assert "differ in backends.shared.progress:" in listing.unlike([second, first], "images_per_s")[0]
    assert listing.unlike([second, first], "wall_time_s") == []


def test_a_metric_of_the_users_that_means_something_else_is_named(tmp_path: Path) -> None:
    """By a margin that was doubled in an edit the newest run came first, and by the recall that of an easier digit."""
    root = tmp_path / "runs"
    for number, (digit, own) in enumerate(((0, "a"), (0, "b"), (3, "b"))):
        made = a_run(root, 0.5, ago=9 - number)
        nodes = [{"_target_": "mine.Margin"}, {"_target_": "mine.other.Recall", "digit": digit}]
        loss = {"_target_": "mine.losses.Loss"}
        config = CONFIG | {"training": {"metrics": nodes}, "loss": loss}
        (made / "config.yaml").write_text(json.dumps(config))
        write_json(made / "code.json", {"mine": own, "mine.losses": own, "mine.other": "a"})
        result = read_json(made / "result.json")
        write_json(made / "result.json", result | {"scalars": result["scalars"] | {"test/margin": 1, "test/recall": 1}})
    newest, second, first = listing.listed(root)
    edited = "was measured by several versions of the code, which differ in {}: what it means may have changed; {}"
    compare = "stage=compare says how two runs differ"
    assert listing.unlike([second, first], "test/margin") == [f"test/margin {edited.format('mine', compare)}"]
    assert listing.unlike([second, first], "test/loss") == [f"test/loss {edited.format('mine.losses', compare)}"]
    for metric in ("test/accuracy", "test/recall"):
        assert listing.unlike([second, first], metric) == []
    assert listing.unlike([newest, second], "test/margin") == []
    (line,) = listing.unlike([newest, second], "test/recall")
    shown = "[{_target_: 'mine.Margin'}, {_target_: 'mine.other.Recall', digit: 3}]"
    assert line.startswith(f"test/recall is not compared across training.metrics={shown},[")


def test_latencies_of_batches_of_other_sizes_are_not_ranked(tmp_path: Path) -> None:
    """The smallest size of each run stood beside the others', whatever it was."""
    root = tmp_path / "runs"
    for number, sizes in enumerate(([1, 16], [64], [64])):
        made = a_run(root, 0.5, ago=9 - number)
        (made / "config.yaml").write_text(json.dumps(CONFIG | {"stage": {"batches": sizes}}))
        result = read_json(made / "result.json")
        write_json(made / "result.json", result | {"scalars": {"inference/latency_s": 1, "batch_64/latency_s": 1}})
    newest, second, first = listing.listed(root)
    assert listing.unlike([newest, second], "inference/latency_s") == []
    assert listing.unlike([newest, first], "batch_64/latency_s") == []
    (line,) = listing.unlike([newest, first], "inference/latency_s")
    assert line.startswith(
        "inference/latency_s is not compared across stage.batches=[64],[1, 16]; choose among them by "
    )


def test_a_choice_by_the_test_data_is_said_with_the_metric_that_would_not_be(tmp_path: Path) -> None:
    """Of many runs the first by a test's metric flatters, which a grid says and a list did not."""
    root = tmp_path / "runs"
    for accuracy in (0.5, 0.6):
        a_run(root, accuracy)
    said = "the first of 2 runs is the best by {}, so chosen on the test data"
    both = pipeline(tmp_path, "stage=runs", "stage.best=test/accuracy").stderr
    assert f"{said.format('test/accuracy')}; stage.best=validation/accuracy chooses without them\n" in both
    typed = pipeline(tmp_path, "stage=runs", "stage.best=validation/accuracy")
    assert typed.returncode == 0 and "chosen" not in typed.stderr
    assert f"{said.format('test/loss')}\n" in pipeline(tmp_path, "stage=runs", "stage.best=test/loss").stderr
    assert "chosen" not in pipeline(tmp_path, "stage=runs", "stage.best=test/accuracy", "stage.where=seed=1").stderr


def test_rates_of_others_load_of_a_cold_epoch_and_of_several_machines_are_noted(tmp_path: Path) -> None:
    """By the rate a run of another machine came first, and one beside which others had the cores came last."""
    root = tmp_path / "runs"
    kinds: list[tuple[dict[str, object], str, int]] = [
        ({"cores_of_others": 0.5, "timed_s": 9.0, "cold": False}, "a CPU", 2),
        ({"cores_of_others": 0.0, "timed_s": 0.02, "cold": True}, "another", 2),
        ({"cores_of_others": None, "timed_s": 9.0, "cold": False}, "a CPU", 64),
    ]
    for number, (timed, name, cores) in enumerate(kinds):
        made = a_run(root, 0.5, ago=9 - number)
        hardware = {"name": name, "cores": cores}
        write_json(made / "receipt.json", {"training_rate": timed, "device": {"hardware": hardware}})
    alone = pipeline(tmp_path, "stage=runs", "stage.best=images_per_s", "stage.limit=1")
    assert alone.stderr.splitlines()[-4:] == [
        "other processes had 50% of the cores at most, in 1 of 3 runs, which slowed them",
        "the rates of 1 of 3 runs are of one epoch or period, which starts cold; train for two or more",
        "the rates of 1 of 3 runs are uncertain: timed over 20.0 ms at least; train longer for surer ones",
        "the rates are of several machines: a CPU, 64 cores (1 run); another, 2 cores (1 run); a CPU, 2 cores (1 run)",
    ]
    by_accuracy = pipeline(tmp_path, "stage=runs", "stage.best=test/accuracy")
    assert "the rates" not in by_accuracy.stderr


def test_other_datasets_are_named_whatever_their_seeds_and_other_sizes_are_not(tmp_path: Path) -> None:
    root, data = tmp_path / "runs", "pipeline.datasets."
    chooses = "; choose among them by stage.where=<key>=<value>"
    for seed, (kind, size) in enumerate((("digits.Digits", None), ("image_folder.ImageFolder", 8))):
        made = a_run(root, 0.5, ago=9 - seed, seed=seed, dataset={"_target_": data + kind, "size": size})
        write_json(made / "receipt.json", {"held_out": {"test": kind, "validation": kind}})
    every = listing.listed(root)
    said = f"validation/accuracy is not compared across dataset=image_folder,digits{chooses}"
    assert listing.unlike(every, "validation/accuracy") == [said]
    other = a_run(root, 0.6, seed=1, dataset={"_target_": data + "image_folder.ImageFolder", "size": 16})
    write_json(other / "receipt.json", {"held_out": {"test": "larger", "validation": "larger"}})
    pictures = [run for run in listing.listed(root) if run.config["dataset"] == "image_folder"]
    assert len(pictures) == 2 and listing.unlike(pictures, "test/accuracy") == []


@pytest.mark.parametrize(("direction", "order"), [("maximize", [3, 2, 1]), ("minimize", [1, 2, 3])])
def test_the_user_says_what_is_better_of_a_metric_that_declares_nothing(
    tmp_path: Path, direction: Sought, order: list[int]
) -> None:
    for value in (2, 3, 1):
        journal = Journal.begin(tmp_path, "own", {})
        journal.write_result(Result((Metric("val_loss", value),)))
        journal.finish("FINISHED")
    found = listing.best_first(listing.listed(tmp_path), "val_loss", direction)
    assert [run.metrics["val_loss"] for run in found] == order
    assert refused(tmp_path, "stage=runs", "stage.direction=maximize").startswith("stage.direction=maximize: of which ")


def test_a_setting_is_shown_as_it_was_set(tmp_path: Path) -> None:
    """An average of 0.99999 was 1.0000, which no run can have, and two rates looked the same."""
    for ema, step in ((0.99999, 0.00012345), (0.9999, 0.00012444)):
        a_run(tmp_path / "runs", 0.5, training={"ema": ema}, optimizer={"learning_rate": step})
    shown = pipeline(tmp_path, "stage=runs", "stage.columns=[training.ema,optimizer.learning_rate]").stdout.split()
    assert {"0.99999", "0.9999", "0.00012345", "0.00012444", "0.5000"} <= {*shown}


def test_a_run_that_another_started_from_is_named_as_it_was_typed(tmp_path: Path) -> None:
    """It was the path of its weights, which no column of 80 has room for, and by its id no condition found it."""
    first = a_run(tmp_path / "runs", 0.5)
    elsewhere = tmp_path / "others" / "one"
    for start in (first, elsewhere):
        model = {"_target_": "pipeline.models.mlp.Mlp", "start": f"{start}/artifacts/model/weights.npz"}
        a_run(tmp_path / "runs", 0.6, model=model)
    words = ("stage.columns=[model.start]", "stage.format=csv")
    found = pipeline(tmp_path, "stage=runs", *words, f"stage.where=model.start={first.name}").stdout
    (run,) = csv.DictReader(found.splitlines())
    assert run["model.start"] == first.name
    every = csv.DictReader(pipeline(tmp_path, "stage=runs", *words).stdout.splitlines())
    assert {one["model.start"] for one in every} == {"", first.name, str(elsewhere)}
    shown = pipeline(tmp_path, "stage=show", f"run={run['id']}").stdout
    assert re.search(rf"^model.start +{first.name}$", shown, re.MULTILINE)


def test_a_table_of_80_columns_keeps_a_run_to_a_line(folder: Path) -> None:
    shown = pipeline(folder, "stage=runs", "stage.columns=seed", COLUMNS="80")
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 1 + 4
    assert lines[-1].split()[1:] == ["finished", "3d", "0.9000", "0"]
    assert "killed" in lines[1] and shown.stderr == f"4 runs in {folder / 'runs'}\n"


def test_an_id_is_never_folded_and_a_metric_is_named_where_runs_have_several(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "runs", 0.123456789012345, name="long"), a_run(tmp_path / "runs", 0.5)]
    a_run(tmp_path / "runs", 0.25)
    result = read_json(runs[1] / "result.json")
    del result["scalars"]["test/accuracy"], result["declared"]["test/accuracy"]
    write_json(runs[1] / "result.json", result)
    for length, first in ((48, "run"), (80, "status")):
        long = runs[0].rename(runs[0].with_name("20261122-214814-" + "a" * (length - 16)))
        runs[0] = long
        lines = pipeline(tmp_path, "stage=runs", COLUMNS="80").stdout.splitlines()
        assert (max(map(len, lines)) <= 80) is (first == "run")
        head, rows = lines[-5], [line.split() for line in lines[-4:-1]]
        assert head.split()[0 if first == "run" else -1] == "run"
        assert [row for row in rows if long.name in row and "0.1235" in row]
        assert [row for row in rows if runs[1].name in row and row[row.index("[1]") + 1] == "1.0000"]
        assert lines[-1] == "[1] test/loss"


def test_a_metric_of_a_condition_is_shown_where_runs_are_judged_by_another(tmp_path: Path) -> None:
    """Language models were listed by their bits per byte where test/accuracy>0.7 was asked for, seemingly in error."""
    run = a_run(tmp_path / "runs", 0.5)
    result = read_json(run / "result.json")
    result["scalars"]["test/bits_per_byte"] = 5.25
    result["declared"]["test/bits_per_byte"] = result["declared"]["test/loss"]
    write_json(run / "result.json", result)
    assert "5.2500" in pipeline(tmp_path, "stage=runs").stdout
    head, row = pipeline(tmp_path, "stage=runs", "stage.where=[test/accuracy>0.4,test/loss<2]").stdout.splitlines()
    assert "test/accuracy" in head and "test/loss" in head and "0.5000" in row and "1.0000" in row
    assert "5.2500" not in row


def test_into_a_pipe_each_run_is_a_line(tmp_path: Path) -> None:
    """`[1] 42.7892` and the names of columns were folded, for a terminal that was not there."""
    runs = [a_run(tmp_path / "runs", 0.5, name="a-name-of-some-length"), a_run(tmp_path / "runs", 0.25)]
    a_run(tmp_path / "runs", 0.75)
    result = read_json(runs[1] / "result.json")
    del result["scalars"]["test/accuracy"], result["declared"]["test/accuracy"]
    write_json(runs[1] / "result.json", result)
    columns = ("backend", "seed", "model.units", "validation/accuracy", "test/loss")
    shown = pipeline(tmp_path, "stage=runs", f"stage.columns=[{','.join(columns)}]", COLUMNS="80")
    lines = shown.stdout.splitlines()
    assert len(lines) == 1 + 3 + 1
    assert lines[0].split() == ["status", "age", "test/accuracy", *columns, "run"]
    assert {line.split()[-1] for line in lines[1:-1]} == {one.name for one in (tmp_path / "runs").glob("2*")}


def test_ids_are_shortened_on_a_narrow_terminal_to_what_names_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their ends went over the edge, where a terminal folds them, so that a run took two lines."""
    for name in ("14-gpt-text-jax-fp32-aaaa", "14-mlp-digits-jax-fp32-bbbb", "15-mlp-jax-cccc"):
        run = a_run(tmp_path / "runs", 0.5)
        run.rename(run.with_name(f"20261122-2148{name}"))
    terminal = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    monkeypatch.setattr("pipeline.stages.about_runs.runs.results", lambda: terminal)
    Runs().act(build_as(Settings, {"output_dir": str(tmp_path / "runs")}, ""), {})
    lines = terminal.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert {line.split()[0] for line in lines} == {
        "run",
        "20261122-214814-gpt",
        "20261122-214814-mlp",
        "20261122-214815",
    }
    assert "3 runs in " in (said := capsys.readouterr().err) and "; ids are shortened to" in " ".join(said.split())
    monkeypatch.chdir(tmp_path)
    assert find_run(Path("runs"), "20261122-214815").name == "20261122-214815-mlp-jax-cccc"


@pytest.mark.parametrize("best", ["best/sustained", "best/rate"])
def test_a_run_of_matrix_products_is_listed_by_its_best_rate(tmp_path: Path, best: str) -> None:
    """It was by the first result, NumPy's rounding error."""
    a_run(tmp_path / "runs", 0.5)
    journal = Journal.begin(tmp_path / "runs", "wmma-fp32", CONFIG)
    found = (
        Metric("64x64x64/numpy/sustained", 12.5, "GFLOP/s", "time", "max"),
        Metric("64x64x64/numpy/relative_error", 1.4e-7, direction="min"),
        Metric(best, 12.5, "GFLOP/s", "time", "max"),
        Metric("best/share", 1.0, "", "time", "max"),
    )
    journal.write_result(Result(metrics=found, title="wmma-fp32"))
    journal.finish("FINISHED", None)
    assert {run.headline for run in listing.listed(tmp_path / "runs")} == {best, "test/accuracy"}


def test_a_narrow_table_is_folded_between_the_parts_of_names_and_cells() -> None:
    table = Table(
        "test/accuracy over the grid",
        ("optimizer.learning_rate", "mlp", "cnn (x)"),
        (("0.001", "0.9 (0.8 to 0.95, n=3)", "0.9 (0.8 to 0.95, n=3) *"), ("0.01", "failed", "")),
    )
    assert printed(60, lambda console: show_table(console, table)) == [
        "test/accuracy over the grid",
        "optimizer.",
        "learning_rate                 mlp               cnn (x)",
        "0.001                         0.9                   0.9",
        "               (0.8 to 0.95, n=3)  (0.8 to 0.95, n=3) *",
        "0.01                       failed",
    ]
    wide = printed(200, lambda console: show_table(console, table))
    assert len(wide) == 4 and wide[2].endswith("  0.9 (0.8 to 0.95, n=3)  0.9 (0.8 to 0.95, n=3) *")


def test_keys_and_paths_are_folded_behind_a_sign() -> None:
    rows = (("optimizer.learning_rate", "0.001", "0.01"), ("model.start", "null", "/runs/2026-base-a39b/weights.npz"))
    lines = printed(40, lambda console: show_table(console, Table("", ("", "a", "b"), rows), left=("a", "b")))
    assert [line.split() for line in lines[1:]] == [
        ["optimizer.", "0.001", "0.01"],
        ["learning_rate"],
        ["model.start", "null", "/runs/2026-base-"],
        ["a39b/weights.npz"],
    ]


def test_settings_are_folded_between_words_and_read_from_the_left() -> None:
    """`map_` stood above `calls=auto`, and all settings at the right."""
    name = "map_calls=auto cache=true prefetch=auto batch=256"
    rows = (("torch", "batch=256", "19.9", "0.1 %"), ("tensorflow", name, "27.3", ""))
    table = Table("", ("framework", "setting", "median", "of copying"), rows)
    lines = printed(60, lambda console: show_table(console, table, of_words(table)))
    assert [line[12:38].rstrip() for line in lines] == [
        "",  # beside `of`, which stands over `copying`
        "setting",
        "batch=256",
        "map_calls=auto cache=true",
        "prefetch=auto batch=256",
    ]


def test_a_table_of_a_users_stage_may_have_rows_of_fewer_cells(tmp_path: Path) -> None:
    """A sum below, say, with a name and a number alone."""
    table = Table("", ("layer", "parameters", "kind"), (("dense", "640", "matrix"), ("sum", "640")))
    result = Result((), tables=(table,), title="layers")
    lines = printed(60, lambda console: show_result(console, result, tmp_path))
    assert [line.split() for line in lines[:3]] == [
        ["layer", "parameters", "kind"],
        ["dense", "640", "matrix"],
        ["sum", "640"],
    ]


def test_a_number_with_an_exponent_is_not_folded() -> None:
    """`1.4e-` and `07` stood below each other."""
    rows = (("20261127-120000-wmma-fp32-ab12cd", "[1] 1.4e-07", "1.5e-05"), ("b", "0.5000", "2"))
    table = Table("", ("run", "test/accuracy", "optimizer.learning_rate"), rows)
    words = " ".join(printed(48, lambda console: show_table(console, table, whole=("run",)))).split()
    assert {"1.4e-07", "1.5e-05"} <= set(words)


def test_brackets_and_colons_of_a_cell_are_printed() -> None:
    rows = [["[]", "0.1"], ["[conv1]", "[/a/b.png]"], ["[conv1,conv2]", ":fire:"]]
    table = Table("", ("model.freeze", "[relu]"), tuple(map(tuple, rows)))
    lines = printed(80, lambda console: show_table(console, table))
    assert [line.split() for line in lines[-3:]] == rows
    assert lines[-4].split()[-1] == "[relu]"


def test_what_has_to_be_copied_is_not_folded() -> None:
    folder, note = f"runs/{'a' * 90}", "a long note, " * 9
    lines = printed(60, lambda console: show(console, "", [("run folder", folder), ("note", note)]))
    assert lines[0] == f"run folder  {folder}"
    assert max(map(len, lines[1:])) <= 60 and " ".join(" ".join(lines[1:]).split()) == f"note {note.strip()}"
    table = Table("", ("run", "value"), ((folder, "1 2"), ("b", "0.5")))
    assert printed(60, lambda console: show_table(console, table, whole=("run",)))[1].split() == [folder, "1", "2"]


def test_a_long_name_has_its_own_line() -> None:
    """A kernel of 41 letters left 36 beside it for every row of the table."""
    name = "a_matrix_product_of_forty_one_letters_xxx"
    rows = [("threads", "2; 1 for cpu_naive"), (name, "not run at 512 fp32, column-major: " + "long " * 10)]
    assert printed(80, lambda console: show(console, "", rows)) == [
        "threads  2; 1 for cpu_naive",
        name,
        "         not run at 512 fp32, column-major: long long long long long long long",
        "         long long long",
    ]


def test_a_number_in_the_name_of_a_column_is_not_cut() -> None:
    """`0.` stood over `1` for 0.1, so that the columns seemed to be 0 and 1."""
    rates = ("0.1", "0.01", "0.003", "2.5e-4", "1.5")
    cells = tuple("2.1000 (2.0900 to 2.1100, n=3)" for _ in rates)
    table = Table("", ("schedule.warm_up", *rates), (("10", *cells),))
    words = " ".join(printed(80, lambda console: show_table(console, table))).split()
    assert [rate for rate in rates if rate not in words] == []


def test_ranges_that_a_terminal_has_no_room_for_are_left_out_and_that_is_said() -> None:
    """Six columns of them took five lines a row."""
    names = ("model.units", *"abcdef")
    rows = (("[16]", *("0.1444 (0.0611 to 0.2278, n=2)",) * 5, "0.9000 (0.8 to 0.95, n=12, 1 nan) *"),)
    lines = printed(80, lambda console: show_table(console, Table("", names, rows)), terminal=True)
    assert [line.split() for line in lines[:2]] == [[*names], ["[16]", *["0.1444"] * 5, "0.9000", "*"]]
    assert lines[2:] == ["without ranges, which need a terminal 161 columns wide; this one has 80"]
    whole = printed(80, lambda console: show_table(console, Table("", names, rows)))  # to a file, or another program
    assert len(whole) > 3 and "without ranges" not in " ".join(whole)
    assert len(printed(200, lambda console: show_table(console, Table("", names, rows)), terminal=True)) == 3


def test_the_names_of_columns_are_folded_no_more_than_is_needed() -> None:
    """Six lines stood above a table that took half of the terminal."""
    names = ("test/bits_per_byte (bits/byte)", "train/tokens_per_s (tokens/s)")
    table = Table("", ("model.layers", "optimizer.learning_rate", *names), (("1", "0.1", "2.1000 *", "12,345"),))
    assert printed(80, lambda console: show_table(console, table)) == [
        "                 optimizer.  test/bits_per_byte  train/tokens_per_s",
        "model.layers  learning_rate         (bits/byte)          (tokens/s)",
        "1                       0.1            2.1000 *              12,345",
    ]


def test_a_number_is_not_cut_where_the_names_of_columns_can_be_folded_between_words() -> None:
    """`(1,204,76` stood over `9`, under names wider than their numbers."""
    names = ("batch", "first call", "latency", "p99", "calls", "images/s", "of a matmul", "memory")
    few = ("1", "0.40 ms", "0.019 ms", "0.078 ms", "1,341", "17,160 (6,167 to 46,747, n=5)", "0.8 %", "880.6 MiB")
    many = ("2,000,000", "1.54 s", "1.50 s", "", "5", "1,331,354 (1,204,769 to 1,336,164, n=5)", "19.6 %", "1.9 GiB")
    lines = printed(80, lambda console: show_table(console, Table("", names, (few, many))))
    words = " ".join(lines).split()
    assert {word for cell in (*few, *many) for word in cell.split()} <= set(words)
    assert max(map(len, lines)) <= 80


def test_a_word_of_several_is_folded_after_the_parts_of_a_path() -> None:
    """`test/tokens_` stood over `per_s`."""
    table = Table("", ("model.layers", "test/tokens_per_s"), (("1", "12,345"),))
    heads = {width: printed(width, lambda console: show_table(console, table))[:-1] for width in (31, 27, 20)}
    assert {width: [line.split() for line in lines] for width, lines in heads.items()} == {
        31: [["model.layers", "test/tokens_per_s"]],
        27: [["test/"], ["model.layers", "tokens_per_s"]],
        20: [["test/"], ["model.", "tokens_"], ["layers", "per_s"]],
    }


def test_the_end_of_a_run_names_what_there_is_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a profile's table lay, and that there was a picture, a run did not say."""
    monkeypatch.chdir(tmp_path)
    for name in ("figures/b.png", "figures/a.png", "profile/operations.txt", "model/model.txt", "predictions.csv"):
        path = tmp_path / "runs/x/artifacts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    last = lambda: printed(80, lambda console: show_result(console, Result(()), Path("runs/x")))  # noqa: E731
    assert last() == [
        "run folder  runs/x",
        "to look at  artifacts/figures: a.png, b.png; artifacts/profile: operations.txt",
    ]
    (tmp_path / "runs/x/artifacts/tensorboard").mkdir()
    assert last()[-1] == "TensorBoard  tensorboard --logdir runs"
    (tmp_path / "my runs/z/artifacts/tensorboard").mkdir(parents=True)
    spaced = printed(80, lambda console: show_result(console, Result(()), Path("my runs/z")))
    assert spaced[-1] == "TensorBoard  tensorboard --logdir 'my runs'"
    assert printed(80, lambda console: show_result(console, Result(()), Path("runs/y"))) == ["run folder  runs/y"]
    for step in range(1000):  # a validation each
        path = tmp_path / f"runs/y/artifacts/samples/step-{step:03}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert printed(200, lambda console: show_result(console, Result(()), Path("runs/y")))[1] == (
        f"to look at  artifacts/samples: {', '.join(f'step-00{step}.txt' for step in range(6))} and 994 more"
    )


def printed(width: int, show: Callable[[Console], None], *, terminal: bool = False) -> list[str]:
    """What is printed in so many columns."""
    file = io.StringIO()
    show(Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue().splitlines()


def write_checkpoint(run: Path, step: int) -> None:
    writer = Writer(run, Checkpoints(), 0, print)
    progress = {"step": step, "journal_bytes": 0}
    writer.write(step, progress, {"state": lambda path: path.write_bytes(b"weights")}, first=lambda: None)
    writer.close()


def test_a_run_whose_status_is_damaged_is_one_message(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs", 0.6)
    (run / "status.json").write_text("[1, 2]")
    assert refused(tmp_path, "stage=show", f"run={run.name}") == f"run={run.name}: status.json is damaged"


def test_runs_whose_status_is_damaged_are_named_below_the_others(tmp_path: Path) -> None:
    good, *bad = [a_run(tmp_path / "runs", 0.9) for _ in range(4)]
    for run, change in zip(bad, ({"started": None}, {"state": None}, None), strict=True):
        text = json.dumps(read_json(run / "status.json") | change) if change else ""
        (run / "status.json").write_text(text)
    shown = pipeline(tmp_path, "stage=runs", "stage.format=csv")
    assert [row["id"] for row in csv.DictReader(shown.stdout.splitlines())] == [good.name]
    lost = ", ".join(sorted(run.name for run in bad))
    assert shown.stderr.splitlines()[-1] == f"3 not listed, since their status.json is damaged: {lost}"


def test_finished_runs_whose_result_is_damaged_are_named_below_the_others(tmp_path: Path) -> None:
    """Among them may be the best."""
    good, *bad = [a_run(tmp_path / "runs", accuracy) for accuracy in (0.6, 0.9, 0.8)]
    (bad[0] / "result.json").write_bytes((bad[0] / "result.json").read_bytes()[:-1])
    (bad[1] / "result.json").unlink()
    a_run(tmp_path / "runs", 0.7, state="KILLED")  # which never had one
    shown = pipeline(tmp_path, "stage=runs", "stage.best=test/accuracy", "stage.format=csv")
    assert [row["id"] for row in csv.DictReader(shown.stdout.splitlines())] == [good.name]
    lost = ", ".join(sorted(run.name for run in bad))
    why = "since their result.json is missing, damaged or of an early version"
    assert shown.stderr.splitlines()[-1] == f"2 without a result, {why}: {lost}"


def test_a_killed_run_is_listed_as_killed_where_that_cannot_be_written(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs", 0.6)
    write_json(run / "status.json", read_json(run / "status.json") | {"state": "RUNNING", "process_started": "before"})
    (run / "status.lock").unlink(missing_ok=True)
    (run / "status.lock").mkdir()  # a folder without permission to write would not stop root
    (one,) = listing.listed(tmp_path / "runs")
    assert (one.status.state, "ended without a message" in str(one.status.error)) == ("KILLED", True)
    assert "ended without a message" in pipeline(tmp_path, "stage=show", f"run={run.name}").stdout
    assert read_json(run / "status.json")["state"] == "RUNNING"


def test_a_choice_that_is_no_yaml_costs_those_who_do_not_ask_for_it_nothing(tmp_path: Path) -> None:
    shutil.copytree(CONF, tmp_path / "conf")
    for group in ("model", "stage"):
        (tmp_path / "conf" / group / "wip.yaml").write_text("_target_: [\n")
        (tmp_path / "conf" / group / "begun.yaml").write_text("defaults:\n")
    run = a_run(tmp_path / "runs", 0.9)
    assert pipeline(tmp_path, "stage=show", "run=latest").stdout.startswith(run.name)
    assert names(tmp_path, "stage.where=model=mlp") == ["0.9"]
    assert refused(tmp_path, "stage=evaluate", "run=latest").startswith("run=latest: no finished run with ")
    assert f"{tmp_path}/conf/model/wip.yaml, line 2: not YAML: " in refused(tmp_path, "model=wip")


def test_how_a_killed_run_goes_on_is_said(tmp_path: Path) -> None:
    killed = a_run(tmp_path / "elsewhere", 0.6, state="KILLED")
    assert "killed with" not in pipeline(tmp_path, "stage=runs", "output_dir=elsewhere").stderr
    assert "resumes" not in pipeline(tmp_path, "stage=show", "run=" + killed.name, "output_dir=elsewhere").stdout
    for step in (8, 1200):
        write_checkpoint(killed, step)
    words = f"resume={killed.name} output_dir={tmp_path / 'elsewhere'}"
    shown = pipeline(tmp_path, "stage=runs", "output_dir=elsewhere")
    said = f"1 was killed with a checkpoint: {words} resumes; a grid resumes when its command is given again"
    assert shown.stderr.splitlines()[1:] == [said]
    shown = pipeline(tmp_path, "stage=show", "run=" + killed.name, "output_dir=elsewhere")
    assert f"resumes  from step 1,200: {words}\n" in shown.stdout
    assert where_it_goes_on(killed, 1200) == f"{words} resumes from there"
    assert where_it_goes_on(killed, 1300) == f"{words} resumes from step 1,200, its newest checkpoint"
    (killed / "checkpoints/step-0000001200/state").write_bytes(b"damaged")
    damaged = "step-0000001200 is damaged (state has another sha256)"
    shown = pipeline(tmp_path, "stage=show", "run=" + killed.name, "output_dir=elsewhere")
    assert f"resumes from step 8: {words}; {damaged}; the one before it is used " in " ".join(shown.stdout.split())
    assert where_it_goes_on(killed, 1300) == f"{words} resumes from step 8, its newest checkpoint"
    (killed / "checkpoints/step-0000000008/state").unlink()
    shown = pipeline(tmp_path, "stage=show", "run=" + killed.name, "output_dir=elsewhere")
    assert "resumes  not: its checkpoints are damaged\n" in shown.stdout
    a_run(tmp_path / "elsewhere", 0.7, state="KILLED").joinpath("checkpoints", "step-0000000001").mkdir(parents=True)
    shown = pipeline(tmp_path, "stage=runs", "output_dir=elsewhere")
    assert "2 were killed with a checkpoint: resume=<id> output_dir=" in shown.stderr
    anew = "its state could not be written, and it has no other checkpoint: it has to be run again"
    assert where_it_goes_on(a_run(tmp_path, 0.5), 9) == anew


@pytest.mark.parametrize("name", ["my runs", "it's  (a), {b}", 'a "b\\" \\', "größe=1", "$HOME"])
def test_how_a_run_goes_on_can_be_typed_back(tmp_path: Path, name: str) -> None:
    killed = a_run(tmp_path / name, 0.6, state="KILLED")
    (word, where) = typed = shlex.split(resume_words(killed))
    assert (word, where.partition("=")[0]) == (f"resume={killed.name}", "output_dir")
    assert refused(tmp_path, *typed) == f"{word}: {killed.name} has no checkpoint; run it again"


def test_a_copy_says_which_run_it_is(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs", 0.9)
    assert "\nrun " not in pipeline(tmp_path, "stage=show", "run=latest").stdout
    shutil.copytree(run, tmp_path / "runs" / "kept")
    assert f"\nrun      a copy of {run.name}\n" in pipeline(tmp_path, "stage=show", "run=kept").stdout
    shutil.rmtree(run)
    assert f"\nrun      {run.name}, copied or renamed\n" in pipeline(tmp_path, "stage=show", "run=kept").stdout


def test_a_run_that_mlflow_does_not_have_yet_is_not_called_untracked(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs", 0.9)

    def said() -> str:
        (line,) = re.findall(r"^MLflow +(.*)", pipeline(tmp_path, "stage=show", "run=latest").stdout, re.MULTILINE)
        return line

    assert said() == "not tracked"
    write_json(run / "mlflow.json", {"run_id": None, "error": "no answer"})
    assert said() == f"not there yet (no answer); `python -m pipeline.tracking sync {run.parent}` sends it"


def test_how_long_a_run_took_is_the_wall_time_of_its_receipt(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs", 0.9)
    assert " of wall time" not in pipeline(tmp_path, "stage=show", "run=latest").stdout
    write_json(run / "receipt.json", {"wall_time_s": 75.5})
    shown = pipeline(tmp_path, "stage=show", "run=latest").stdout.splitlines()
    assert [line for line in shown if line.startswith("took")] == [
        "took     75.5 s of wall time, the start of the program included"
    ]


def test_csv_has_every_metric_and_the_reason_of_an_end(folder: Path) -> None:
    shown = pipeline(folder, "stage=runs", "stage.format=csv", "stage.columns=[seed]")
    rows = list(csv.DictReader(shown.stdout.splitlines()))
    assert [row["seed"] for row in rows] == ["0", "0", "7", "0"]
    assert [row["error"] for row in rows] == ["it broke", "it broke", "", ""]
    assert [row["test/loss"] for row in rows] == ["", "0.1", "NaN", "0.3"]


def test_the_time_that_a_run_lay_dead_is_none_that_it_took(tmp_path: Path) -> None:
    """Of one that went on a day later the receipt has the time of both processes."""
    went_on, plain = a_run(tmp_path / "runs", 0.9, ago=86400), a_run(tmp_path / "runs", 0.8, ago=60)
    write_json(went_on / "receipt.json", {"wall_time_s": 2.5})
    killed = a_run(tmp_path / "runs", 0.8, ago=86400)  # once more, after it had gone on
    resumed = {"step": 10, "time": time.time() - 30, "earlier_s": 5.0}
    write_json(killed / "receipt.json", {"resumed": [{**resumed, "time": 0.0}, resumed]})
    found = pipeline(tmp_path, "stage=runs", "stage.format=json")
    took = {run["id"]: run["seconds"] for run in json.loads(found.stdout)}
    assert took == {
        went_on.name: 2.5,
        plain.name: pytest.approx(60, abs=10),
        killed.name: pytest.approx(35, abs=10),
    }
    (line,) = [
        one
        for one in pipeline(tmp_path, "stage=show", f"run={killed.name}").stdout.splitlines()
        if one.startswith("took ")
    ]
    assert re.fullmatch(r"took +(3|4)\d(\.\d)? s", line)


def test_a_csv_names_a_folder_as_it_is(tmp_path: Path) -> None:
    """A program opens what it reads there, where no reader needs to see each character."""
    place = tmp_path / "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"  # in Persian, with a joiner of no width
    run = a_run(place / "runs", 0.5)
    shown = pipeline(place, "stage=runs", "stage.format=csv")
    (row,) = csv.DictReader(shown.stdout.splitlines())
    assert place / row["folder"] == run


def test_columns_of_a_csv_have_different_heads(tmp_path: Path) -> None:
    """A metric called `error` stood where the reason of an end does."""
    journal = Journal.begin(tmp_path / "runs", "a", CONFIG)
    metrics = (Metric("error", 0.5), Metric("seconds", 0.25), Metric("id", 3.0))
    journal.write_result(Result(metrics=metrics, title="a"))
    journal.finish("FAILED", "it broke")
    for columns in ("seed", "seed,seconds"):
        shown = pipeline(tmp_path, "stage=runs", "stage.format=csv", f"stage.columns=[{columns}]")
        heads, row = csv.reader(shown.stdout.splitlines())
        assert len(set(heads)) == len(heads)
        read = dict(zip(heads, row, strict=True))
        assert (read["id"], read["error"], read["seed"]) == (journal.id, "it broke", "0")
        assert (read["metric/error"], read["metric/seconds"], read["metric/id"]) == ("0.5", "0.25", "3.0")


def test_a_run_whose_process_is_gone_is_listed_as_killed(tmp_path: Path) -> None:
    begin = (
        "from pathlib import Path; from pipeline.runs.journal import Journal; import os; "
        "Journal.begin(Path('runs'), 'gone', {}); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", begin], cwd=tmp_path, check=False)
    assert [run.status.state for run in listing.listed(tmp_path / "runs")] == ["KILLED"]


@pytest.mark.parametrize("block", [listing.TAIL_BYTES, *range(100, 1000, 50)])
def test_the_last_epoch_of_a_killed_run_is_found_above_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Wherever the blocks begin in which its journal is read."""
    monkeypatch.setattr(listing, "TAIL_BYTES", block)
    monkeypatch.setattr(listing, "LINE_BYTES", 150)
    journal = Journal.begin(tmp_path, "long", CONFIG)
    for epoch in (1, 2):
        journal.log({"epoch/number": epoch, "validation/loss": 1 / epoch, "train/loss": 9.0}, epoch)
    for step in range(3, 20 + block // 40):
        journal.log({"train/loss": 1 / step}, step)
    journal.finish("KILLED")
    assert (journal.folder / "metrics.jsonl").stat().st_size > block
    (run,) = listing.listed(tmp_path)
    assert run.metrics == {"epoch/number": 2, "validation/loss": 0.5, "train/loss": 1 / step}


def test_a_damaged_run_spoils_no_list(tmp_path: Path) -> None:
    good, bad = a_run(tmp_path, 0.9), a_run(tmp_path, 0.8)
    (bad / "result.json").write_text('{"scalars": {"test/accuracy": [')
    (bad / "config.yaml").write_text("a: [")
    unreadable = a_run(tmp_path, 0.7)
    (unreadable / "status.json").write_text("{}")
    found = {run.folder: run for run in listing.listed(tmp_path)}
    assert set(found) == {good, bad}
    assert found[bad].metrics == {"validation/accuracy": pytest.approx(0.3)} and found[bad].config == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stage.status=dead"], "stage.status=dead: no such choice; choose from failed, finished, killed,"),
        (["stage.newer=2"], "stage.newer=2: not an age; write a number with one of s, min, h, d, w"),
        (["stage.format=xml"], "stage.format=xml: no such choice; choose from csv, json, table"),
        (['stage.where="test/acuracy>1"'], "no run has a setting or metric test/acuracy (did you mean test/accuracy"),
        (['stage.where="test/accuracy>0_5"'], "'0_5' is not a number; = and != compare texts"),
        (['stage.where="test/accuracy>x"'], "'x' is not a number; = and != compare texts"),
        (["stage.where=cnn"], "stage.where=cnn: not a condition; write model=cnn"),
        (["stage.where=status=failed"], "no run has a setting or metric status; stage.status=finished chooses by it"),
        (["stage.columns=lr"], "stage.columns=lr: no run has a setting or metric lr"),
        (
            ["stage.columns=[training]"],
            "stage.columns=training: a run keeps the settings of training and not the name of",
        ),
        (["model=cnn"], "model with stage=runs: this stage works on saved runs"),
        (["run=latest"], "run with stage=runs: this stage works on saved runs"),
        (["output_dir=none"], "output_dir=none: no such folder"),
        (["-m", "stage.limit=1,2"], "stage=runs: works on saved runs, not on an experiment; run it alone, without -m"),
    ],
)
def test_what_cannot_be_listed_is_refused(folder: Path, arguments: list[str], said: str) -> None:
    assert said in refused(folder, "stage=runs", *arguments)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        (["device.name=cuda:1"], ["device.name=cuda:1: no run has that (did you mean cuda:0?); device.name of these"]),
        (["seed=7", "precision.name=bf16"], []),  # fp32 is not like it
        (["device.name!=cuda:1", "model=cnn", "device.name=cuda:0"], []),
        (["model=mpl"], ["model=mpl: no run has that (did you mean mlp?); model of these runs: mlp"]),
    ],
)
def test_a_filter_that_no_run_passes_gives_none_and_says_what_is_like_it(
    tmp_path: Path, conditions: list[str], said: list[str]
) -> None:
    a_run(tmp_path, 0.9, device={"name": "cuda:0"}, precision={"name": "fp32"})
    runs = listing.listed(tmp_path)
    assert matching(runs, conditions) == []
    found = misspelt(runs, conditions)
    assert len(found) == len(said)
    assert all(line.startswith(f"stage.where={start}") for line, start in zip(found, said, strict=True))


def test_an_empty_list_is_an_answer(folder: Path) -> None:
    assert names(folder, "stage.where=model=mpl") == []
    shown = pipeline(folder, "stage=runs", "stage.where=model=mpl")
    assert (shown.returncode, shown.stdout) == (0, "")
    said = "stage.where=model=mpl: no run has that (did you mean mlp?); model of these runs: cnn, mlp"
    assert shown.stderr.splitlines()[1:] == [said]


def test_a_group_is_named_by_its_choice(tmp_path: Path) -> None:
    """Also where one class has all the choices: precision, device. `conf` says what a run of that choice has."""
    for precision, device, tracking in (("fp32", "cpu", "mlflow"), ("mixed", "auto", "none")):
        choice = {
            group: yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
            for group, name in (("precision", precision), ("device", device), ("tracking", tracking))
        }
        a_run(tmp_path, 0.9, **choice, training={"_target_": "pipeline.experiment.training.Training", "epochs": 1})
    runs = listing.listed(tmp_path)
    for condition in ("precision=mixed", "device=auto", "tracking=none", "precision!=fp32"):
        check_where(runs, [condition])
        assert [run.value("precision.name") for run in matching(runs, [condition])] == ["mixed"], condition
    assert {run.value("device") for run in runs} == {"cpu", "auto"}


def test_a_class_of_the_users_is_named_whole(tmp_path: Path) -> None:
    """Two modules may each have a Net. The name of a choice in the user's own folder is not kept."""
    for at, module in enumerate(("lab.a", "lab.b")):
        a_run(tmp_path, 0.5 + 0.1 * at, model={"_target_": f"{module}.Net"})
    runs = listing.listed(tmp_path)
    assert {run.value("model") for run in runs} == {"lab.a.Net", "lab.b.Net"}
    assert [run.value("model") for run in matching(runs, ["model=lab.b.Net"])] == ["lab.b.Net"]
    for wanted in ("net", "Net"):
        (said,) = misspelt(runs, [f"model={wanted}"])
        assert said.endswith("model of these runs: lab.a.Net, lab.b.Net"), said


@pytest.mark.parametrize(
    ("condition", "use"),
    [
        ("training=quick", "training.epochs=1 and training.batch_size=128"),
        ("optimizer=momentum", "it is optimizer=sgd and optimizer.learning_rate=0.01 and optimizer.momentum=0.9"),
        ("training=fast", "use training.epochs"),
        ("precision.nmae=fp32", "no run has a setting or metric precision.nmae"),
    ],
)
def test_a_choice_whose_name_no_run_keeps_is_refused(tmp_path: Path, condition: str, use: str) -> None:
    a_run(tmp_path, 0.9, training={"_target_": "pipeline.experiment.training.Training", "epochs": 1})
    with pytest.raises(UserError, match=re.escape(use)):
        check_where(listing.listed(tmp_path), [condition])


@pytest.mark.parametrize("guess", ["list", "ls", "history"])
def test_a_guessed_name_is_answered_with_the_choices(folder: Path, guess: str) -> None:
    assert "choose from amp, classifier," in (said := refused(folder, f"stage={guess}")) and ", runs," in said


def test_no_framework_and_no_numpy_is_imported(folder: Path) -> None:
    code = (
        "import sys; from pipeline.command_line import composed; composed(sys.argv[1:]); "
        "print(sorted({'numpy', 'torch', 'jax', 'tensorflow', 'mlflow', 'matplotlib'} & set(sys.modules)))"
    )
    arguments = ["stage=runs", "stage.format=csv"]
    found = subprocess.run(
        [COMMAND[0], "-c", code, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1] == "[]"


def test_a_choice_is_called_as_its_spec_calls_it() -> None:
    """`choice_of` knows a `_target_` by its text what spec.choice knows by the class."""
    from pipeline.cli.conf_path import conf_path
    from pipeline.spec import _spec_class, choice

    for path in [
        *conf_path().glob("stage/*.yaml"),
        *conf_path().glob("model/*.yaml"),
        *conf_path().glob("loss/*.yaml"),
    ]:
        node = yaml.safe_load(path.read_text())
        node = node.get(path.parent.name, node)
        if "_target_" not in node:
            continue
        cls = _spec_class(node["_target_"], path.parent.name)
        assert listing.choice_of(node["_target_"]) == choice(object.__new__(cls)), path
    assert os.fspath(conf_path())


def sections(text: str) -> dict[str, str]:
    """What stage=show printed, by the first line of each section."""
    return {part.strip().partition("\n")[0].strip(): part for part in text.split("\n\n")}


def test_show_has_all_of_a_run_and_first_what_differs_from_the_defaults(tmp_path: Path) -> None:
    shown = pipeline(tmp_path, "--cfg", "job", "model=cnn", "optimizer.learning_rate=0.01", "precision=bf16")
    journal = Journal.begin(tmp_path / "runs", "shown", {**yaml.safe_load(shown.stdout), "seed": 3})
    for epoch in range(1, 21):
        journal.log({"epoch/number": epoch, "validation/loss": 1 / epoch}, 10 * epoch)
    journal.write_receipt({"device": {"hardware": {"name": "a card"}}, "weights_sha256": "abc"})
    metrics = (Metric("test/loss", 0.25, direction="min"), Metric("peak", 2**21, "bytes", "memory", "min"))
    journal.write_result(Result(metrics=metrics, table=(("test loss", "0.25"),), notes=("mind the gap",)))
    journal.artifact_path("model/weights.npz").write_bytes(bytes(3000))
    journal.finish("FAILED", "cell 3 failed")

    shown = pipeline(tmp_path, "stage=show", f"run={journal.id}", COLUMNS="80")
    assert shown.returncode == 0, shown.stderr
    assert max(len(line) for line in shown.stdout.splitlines() if not line.startswith("folder ")) <= 80
    found = sections(shown.stdout)
    assert "failed" in found[journal.id] and "cell 3 failed" in found[journal.id]
    changed = [line.split() for line in found["config: what differs from the defaults"].splitlines()[1:]]
    assert sorted(changed) == [
        ["model", "cnn"],
        ["optimizer.learning_rate", "0.01"],
        ["precision.name", "bf16"],
        ["seed", "3"],
    ]
    assert "adam learning_rate=0.01 beta_1=0.9" in found["config: all of it"]
    assert "hardware.name: a card" in found["receipt: what really ran"]
    assert "peak       2.0 MiB  bytes  less" in found["results"] and "mind the gap" in found["notes"]
    numbers = [line.split()[0] for line in found["epochs"].splitlines()[2:]]
    assert numbers == ["1", "2", "3", "...", *map(str, range(12, 21))]
    assert "model/weights.npz  2.9 KiB" in found["artifacts"]


def test_show_of_a_grid_says_what_varies_what_its_cells_have_and_which_they_are(tmp_path: Path) -> None:
    """It said that nothing differs from the defaults, and None."""
    shown = pipeline(tmp_path, "--cfg", "job", "model=cnn", "precision=bf16", "training.steps=30")
    root, config = tmp_path / "runs", yaml.safe_load(shown.stdout)
    cells = [a_run(root, 0.5 + seed / 10) for seed in range(2)]
    for seed, cell in enumerate(cells):
        (cell / "config.yaml").write_text(yaml.safe_dump({**config, "seed": seed}))
    grid = Journal.begin(root, "grid", {"grid": {"seed": "0,1"}, "sweep": {}, "cells": 2})
    (grid.folder / "cells.txt").write_text("".join(f"{cell}\n" for cell in cells))
    grid.finish("FINISHED")
    found = sections(pipeline(tmp_path, "stage=show", f"run={grid.id}").stdout)
    assert found["grid: what varies"].split()[-2:] == ["seed", "0,1"]
    same = found["config of its cells: what else differs from the defaults"].splitlines()[1:]
    assert sorted(line.split() for line in same) == [
        ["model", "cnn"],
        ["precision.name", "bf16"],
        ["training.steps", "30"],
    ]
    assert [line.split() for line in found["cells"].splitlines()[1:]] == [[cell.name, "finished"] for cell in cells]
    again = Journal.begin(root, "grid", {"grid": {"training.steps": "30"}, "sweep": {}, "cells": 2})
    (again.folder / "cells.txt").write_text(f"{cells[1]}\n")
    again.artifact_path("grid.csv").write_text("cell,run\n" + "".join(f"1,{cell.name}\n" for cell in cells))
    again.finish("FINISHED")
    found = sections(pipeline(tmp_path, "stage=show", f"run={again.id}").stdout)
    listed = [line.split() for line in found["cells"].splitlines()[1:]]
    assert listed == [[cells[1].name, "finished"], [cells[0].name, "finished", "before"]]
    assert "training" not in found["config of its cells: what else differs from the defaults"]


def test_show_says_in_words_which_commits_made_a_run_and_shortens_lists(tmp_path: Path) -> None:
    """`own_code.no repository.commit: null`, and every weight by name, those that were frozen twice."""
    own: dict[str, dict[str, object]] = {"no repository": {"commit": None, "dirty": None, "modules": "mine"}}
    own |= {"lab": {"commit": "abc", "dirty": True, "modules": "lab.nets"}}
    names = [f"blocks.{number}.kernel" for number in range(9)]
    journal = Journal.begin(tmp_path / "runs", "shown", {})
    git = {"pipeline": {"commit": "def", "dirty": False}, "own_code": own}
    journal.write_receipt({"git": git, "initial_weights": {"loaded": names, "frozen": names[:2]}})
    journal.finish("FINISHED")
    shown = pipeline(tmp_path, "stage=show", f"run={journal.id}").stdout
    lines = [line.strip() for line in sections(shown)["receipt: what really ran"].splitlines()[1:]]
    assert lines == [
        "git              pipeline: def",
        "mine (no repository): no commit has it",
        "lab.nets (lab): abc, and changes",
        "initial_weights  loaded: blocks.0.kernel, blocks.1.kernel, blocks.2.kernel and 6 more",
        "frozen: ['blocks.0.kernel', 'blocks.1.kernel']",
    ]


def test_show_of_a_search_says_what_is_searched(tmp_path: Path) -> None:
    """Nothing differed from the defaults."""
    asked = {"search": {"trials": "8", "study": "None"}, "fixed": ["dataset=digits"], "space": {"model": "mlp,cnn"}}
    journal = Journal.begin(tmp_path / "runs", "search", asked)
    journal.finish("FINISHED")
    shown = pipeline(tmp_path, "stage=show", f"run={journal.id}").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    for line in ("search: what varies", "model mlp,cnn", "dataset digits", "trials 8"):
        assert line in lines, shown
    assert "defaults" not in shown


def test_show_takes_a_run_that_left_nothing_but_its_status(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs", 0.5, state="KILLED")
    (run / "config.yaml").unlink()
    shown = pipeline(tmp_path, "stage=show", f"run={run}")
    assert shown.returncode == 0, shown.stderr
    for text in ("killed", "it broke", "config.yaml is missing", "none was written", "no result.json", "1 records"):
        assert text in shown.stdout
    assert "run=null with stage=show: name the saved run" in refused(tmp_path, "stage=show")
    assert "no such run in" in refused(tmp_path, "stage=show", "run=2020")
    assert "stage=show: this stage works on saved runs" in refused(tmp_path, "stage=show", "run=latest", "seed=1")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234"),
        (12.34, "12.3"),
        (0.5, "0.50"),
        (0.0996, "0.10"),
        (0.04, "0.040"),
        (0.0034, "0.0034"),
        (0, "0.00"),
    ],
)
def test_what_is_small_keeps_its_digits(value: float, text: str) -> None:
    """Of a product of one number stage=matmul showed 0.00 (0.00 to 0.00) GFLOP/s."""
    assert digits(value) == text


@pytest.mark.parametrize(
    ("error", "text"), [(1.44e-7, "1.4e-07"), (0.0, "0"), (-0.0, "0"), (12.5, "1.2e+01"), (None, "")]
)
def test_an_error_that_is_nothing_is_shown_as_0(error: float | None, text: str) -> None:
    """It was 0.0e+00."""
    assert small(error) == text


def test_a_cell_of_several_lines_stays_in_its_row() -> None:
    """The study's report had half of a row of stage=loading outside of its table."""
    text = markdown_rows(("name", "gain"), [("a|b", "too few rounds:\n1.95")])
    assert text.splitlines()[2:] == ["| a\\|b | too few rounds: 1.95 |"]


def test_a_folder_that_may_not_be_read_hides_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a disk with a lost+found no run was found at all."""
    journal = Journal.begin(tmp_path, "mine", {})
    (tmp_path / "lost+found").mkdir()
    exists = Path.exists

    def refused(path: Path) -> bool:
        if path.parent.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refused)
    assert run_folders(tmp_path) == [journal.folder]


def test_what_many_configs_share_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 runs the YAML took most of the time of a list."""
    parsed = []
    whole = records.loaded

    def counted(text: str | bytes) -> object:
        parsed.append(len(text))
        return whole(text)

    monkeypatch.setattr(records, "loaded", counted)
    for seed in range(30):
        a_run(tmp_path, 0.5, seed=seed, model={"_target_": "my.Net", "units": list(range(100))})
    every = listed(tmp_path)
    assert [run.value("seed") for run in every] == list(range(29, -1, -1))
    assert all(run.config["model.units"] == list(range(100)) for run in every)
    assert sum(parsed) < 2 * (every[0].folder / "config.yaml").stat().st_size


@pytest.mark.parametrize(
    "text",
    [
        "a: &one [1, 2]\nb: *one\n",
        "a: &one {c: 1}\n<<: *one\nb: 2\n",
        "<<: {b: 1}\nb: 2\n",
        "b: 1\nc: 2\n<<: {b: 3}\n",
        "a: |+\n  b\n\n\nc: 2\n",
        'a: "one\n  b: two"\nc: 3\n',
        "a: |\n  b: 1\n\n  c: 2\nd:\n- e\n- f: 1\n# g: 2\nh: {i: 1,\n j: 2}\n",
        "a: 1\na: 2\n",
        "a\nb\n",
        "- a\n- b\n",
        "",
    ],
)
def test_a_config_read_by_its_groups_is_what_yaml_says(text: str) -> None:
    assert records.loaded_by_groups(text.encode()) == records.loaded(text)


def test_metrics_of_a_csv_are_read_without_the_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric that some runs lack was sought among their settings."""
    a_run(tmp_path, 0.9)
    a_run(tmp_path, 0.8, state="KILLED")
    monkeypatch.setattr(listing, "config_of", None)
    rows = list(csv.DictReader(_as_csv(listed(tmp_path), ()).splitlines()))
    assert [row["test/accuracy"] for row in rows] == ["", "0.9"]


def test_a_run_named_whole_is_found_without_a_look_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 runs to delete, among 10,000, each was sought among all."""
    run, other = a_run(tmp_path, 0.9), a_run(tmp_path, 0.8)
    longer = shutil.copytree(run, tmp_path / f"{run.name}-copy")
    monkeypatch.setattr(lookup, "run_folders", None)
    assert [find_run(tmp_path, folder.name) for folder in (run, other, longer)] == [run, other, longer]
