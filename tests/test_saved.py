"""What of a saved run can be chosen anew: one key changes that key, a group's name the whole group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command import message, pipeline, write_files
from hydra import initialize_config_dir
from test_compose import composer

from pipeline.cli.conf_path import conf_path
from pipeline.datasets.loading import load_data
from pipeline.errors import UserError
from pipeline.experiment import Experiment, hash_of, load
from pipeline.machine.capability import Resolved
from pipeline.models.mlp import Mlp
from pipeline.ready import ready
from pipeline.runs import choices, receipt, weights
from pipeline.runs.journal import Journal
from pipeline.runs.saved import check_hashes
from pipeline.runs.start import SAVED
from pipeline.sweep.history import History
from pipeline.sweep.plan import compose_cell
from pipeline.variables import filled


def composed(folder: Path, *overrides: str) -> dict[str, Any]:
    """The config that the command composes."""
    result = pipeline(folder, *overrides, "--cfg", "job", "--resolve")
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = yaml.safe_load(result.stdout)
    return found


def saved(folder: Path, *overrides: str) -> str:
    """The id of a finished run that was made so; its weights are not looked at here."""
    data = () if any(one.startswith("dataset=") for one in overrides) else ("dataset=digits",)
    journal = Journal.begin(folder / "runs", "saved", composed(folder, *data, "device=cpu", *overrides))
    journal.artifact_path("model/weights.npz").touch()
    journal.finish("FINISHED")
    return journal.id


def evaluated(folder: Path, *overrides: str) -> tuple[Experiment, Resolved]:
    """What `stage=evaluate run=latest <overrides>` comes to."""
    config = composed(folder, "stage=evaluate", "run=latest", *overrides)
    return ready({**config, "output_dir": str(folder / "runs")}, [text.partition("=")[0] for text in overrides])


def refusal(folder: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        evaluated(folder, *overrides)
    return str(caught.value)


def test_one_key_of_a_group_leaves_the_rest_of_it_as_saved(tmp_path: Path) -> None:
    saved(tmp_path, "precision=fp64")
    experiment, resolved = evaluated(tmp_path, "precision.strict=false")
    assert (experiment.precision.name, experiment.precision.strict, resolved.precision) == ("fp64", False, "fp64")


@pytest.mark.parametrize(
    ("words", "group", "key"),
    [(["stage=evaluate", "run=latest"], None, "run"), (["model.start=latest"], "model", "start")],
)
def test_all_cells_have_the_run_that_was_the_latest_at_first(
    tmp_path: Path, words: list[str], group: str | None, key: str
) -> None:
    """What a cell looks up when it starts, or a search for its next trial, may be a run that has ended since."""
    first = saved(tmp_path)
    fixed = [*words, "device=cpu", "tracking=none", f"output_dir={tmp_path / 'runs'}"]
    found = []
    with initialize_config_dir(str(conf_path()), version_base="1.3", job_name="pipeline"):
        made = composer()
        for number, precision in enumerate(("fp32", "fp64")):
            cell = compose_cell(made, number, {"precision": precision}, [*fixed, f"precision={precision}"])
            assert cell.impossible is None and cell.experiment is not None
            found += [config[group][key] if group else config[key] for config in (cell.config, cell.experiment.config)]
            saved(tmp_path)
    assert [first in Path(text).parts for text in found] == [True] * 4, found


def test_a_key_that_the_saved_group_does_not_have_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "backend=jax")
    words = ("stage=evaluate", "run=latest")
    said = message(pipeline(tmp_path, *words, "backend.threads=1"))
    wanted = "backend.threads: no such key (backend=tensorflow, torch have it); this choice has no settings"
    assert said == wanted
    assert message(pipeline(tmp_path, *words, "dataset.cache=elsewhere")).startswith("dataset.cache: no such key")


@pytest.mark.wide
def test_the_name_of_a_group_brings_the_whole_group(tmp_path: Path) -> None:
    saved(tmp_path, "precision=fp64", "precision.strict=false", "backend=tensorflow", "backend.xla=false")
    experiment, _ = evaluated(tmp_path, "precision=bf16", "backend=torch", "backend.threads=1")
    assert (experiment.precision.name, experiment.precision.strict) == ("bf16", True)
    assert (experiment.backend.name, experiment.backend.threads) == ("torch", 1)
    kept, _ = evaluated(tmp_path)
    assert (kept.precision.name, kept.backend.name, kept.backend.xla) == ("fp64", "tensorflow", False)


@pytest.mark.parametrize("loader", ["threads", pytest.param("tfdata", marks=pytest.mark.wide)])
def test_a_loader_is_refused_since_nothing_is_trained(tmp_path: Path, loader: str) -> None:
    run = saved(tmp_path, "backend=tensorflow")
    result = f"loader={loader} with stage=evaluate: run {run} was made with loader=memory and keeps it; "
    assert refusal(tmp_path, f"loader={loader}").startswith(result)


def test_a_run_made_with_tfdata_is_evaluated_on_another_backend(tmp_path: Path) -> None:
    saved(tmp_path, "backend=tensorflow", "loader=tfdata")
    experiment, _ = evaluated(tmp_path, "backend=torch")
    assert experiment.backend.name == "torch"


def test_what_only_a_training_step_has_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    for words in (["backend.compile=true"], ["backend=tensorflow", "backend.xla=true"]):
        result = f"{words[-1]} with stage=evaluate: is for training steps, and for passes with stage=inference"
        assert refusal(tmp_path, *words) == result
    evaluated(tmp_path, "backend.compile=false")


def test_choices_and_keys_are_named_as_they_are_written(tmp_path: Path) -> None:
    """It said model=mnistcnn, and offered dataset.cache of data that are not fetched."""
    run = saved(tmp_path, "optimizer=adamw_text")
    kept = "and keeps it; what can be changed is backend, device, precision, training.evaluation_batch_size, "
    said = refusal(tmp_path, "model=mnist_cnn")
    assert f"model=mnist_cnn with stage=evaluate: run {run} was made with model=mlp {kept}training.metrics, " in said
    said = refusal(tmp_path, "optimizer=adamw")
    assert f"optimizer=adamw with stage=evaluate: run {run} was made with optimizer=adamw_text {kept}" in said
    saved(tmp_path, f"model.start={tmp_path / 'runs' / 'early' / SAVED}")
    assert " was made with model.start=early and keeps it; " in refusal(tmp_path, "model.start=null")


def test_neither_a_problem_s_run_takes_data_nor_another_run_a_problem(tmp_path: Path) -> None:
    """The first ended in a traceback, and of the second it was said that the run had solved a problem."""
    saved(tmp_path)
    said = "dataset=function with stage=evaluate: is a problem, which has no examples; choose data"
    assert refusal(tmp_path, "dataset=function") == said
    saved(tmp_path, "stage=pinn", "dataset=function", "model=fnn", "solver=adam", "backend=jax")
    assert refusal(tmp_path, "dataset=npz").startswith("stage=evaluate with a run that solved a problem: its errors ")


def test_a_recipe_or_a_key_that_neither_has_is_refused(tmp_path: Path) -> None:
    run = saved(tmp_path)
    result = f"experiment with stage=evaluate: run {run} has its own settings; what can be changed is "
    assert refusal(tmp_path, "experiment=fashion_linear").startswith(result)
    with pytest.raises(UserError, match=r"^modle: no such key \(did you mean model\?\)"):
        evaluated(tmp_path, "+modle=cnn")


def test_an_evaluation_does_not_answer_for_a_model_that_was_swapped(tmp_path: Path) -> None:
    """A grid leaves out an evaluation that has run; not one of another model in the folder of the same run."""
    source = tmp_path / "runs" / saved(tmp_path) / "artifacts/model/weights.npz"
    weights.save(source, {"1.kernel": np.zeros((2, 3))})
    card = source.with_name("card.json")
    card.write_text('{"classes": ["boot"]}')
    experiment, resolved = evaluated(tmp_path)
    journal = Journal.begin(tmp_path / "runs", "evaluate", experiment.config)
    journal.write_receipt(receipt.of_saved(experiment, resolved, weights.load(source), load_data(experiment).sha256))
    journal.finish("FINISHED")
    history = History(tmp_path / "runs")
    assert [past.differs for past in history.of(experiment, resolved)] == [()]
    card.write_text('{"classes": ["ankle boot"]}')
    assert [past.differs for past in history.of(experiment, resolved)] == [("the saved run's card",)]
    weights.save(source, {"1.kernel": np.ones((2, 3))})
    assert [past.differs for past in history.of(experiment, resolved)] == [("the saved run's weights",)]
    source.unlink()
    assert [past.differs for past in history.of(experiment, resolved)] == [("the saved run's weights",)]


def test_a_variable_with_another_value_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = composed(tmp_path, "model=mlp", "dataset=digits", "device=cpu")
    config["model"]["activation"], config["precision"]["name"] = "${oc.env:ACT}", "${oc.env:FORMAT}"
    monkeypatch.setenv("ACT", "relu")
    monkeypatch.setenv("FORMAT", "fp32")
    journal = Journal.begin(tmp_path / "runs", "saved", config)
    journal.artifact_path("model/weights.npz").touch()
    journal.write_receipt({"config_sha256": load(config).config_sha256()})
    journal.finish("FINISHED")
    experiment, _ = evaluated(tmp_path)
    assert isinstance(experiment.model, Mlp) and experiment.model.activation == "relu"
    result = (
        f"run={journal.id}: its settings read ACT, FORMAT from the environment; with the present values its config "
        "is not the one its receipt names (another config_sha256); set ACT, FORMAT to what they were when it was "
        "trained"
    )
    monkeypatch.setenv("ACT", "tanh")
    assert refusal(tmp_path) == result
    assert refusal(tmp_path, "precision=fp64") == result
    monkeypatch.delenv("ACT")
    assert refusal(tmp_path) == result


def test_a_run_from_before_a_group_existed_has_the_config_that_its_receipt_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one whose settings read a variable, another hash is refused."""
    config = composed(tmp_path, "model=mlp", "dataset=digits", "device=cpu")
    config["model"]["activation"] = "${oc.env:ACT}"
    monkeypatch.setenv("ACT", "relu")
    then = hash_of(filled({k: v for k, v in load(config).deciding().items() if k != "schedule"}, ""))
    del config["schedule"], config["augmentation"]
    journal = Journal.begin(tmp_path / "runs", "saved", config)
    journal.artifact_path("model/weights.npz").touch()
    journal.write_receipt({"config_sha256": then})
    journal.finish("FINISHED")
    assert check_hashes(journal.folder, {}) == ()
    experiment, _ = evaluated(tmp_path)
    assert isinstance(experiment.model, Mlp) and experiment.model.activation == "relu"


def test_the_choices_of_a_saved_run_are_read_by_the_fast_loader_to_the_same_values() -> None:
    """Python's loader took a seventh of `stage=evaluate`."""
    for file in conf_path().glob("*/*.yaml"):
        assert choices._values(file) == yaml.safe_load(file.read_text(encoding="utf-8"))


def test_a_choice_that_nests_too_deeply_or_is_no_yaml_is_not_among_those_of_a_saved_run(tmp_path: Path) -> None:
    """It ended the command by a RecursionError."""
    write_files(tmp_path, {"deep.yaml": "[" * 20_000 + "]" * 20_000, "cut.yaml": "{", "mine.yaml": "width: 3"})
    assert choices._choices(tmp_path) == {"mine": {"width": 3}}
