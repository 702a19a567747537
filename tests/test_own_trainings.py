"""stage=lightning and stage=keras: a user's own training, unchanged, leaves a run like any other."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import done, failed, pipeline, refused, runs, status, without_place

from pipeline.backends.shared.own import Watch, check_weights, numbers
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.runs import listing
from pipeline.runs.receipt import add_layers
from pipeline.runs.result import metrics_of

HERE = Path(__file__).parent
LIT = ("stage=lightning", "stage.module=own_lightning.Lit", "stage.data=own_lightning.Clouds", "stage.epochs=3")
KNOWN = {"PIPELINE_MODULES": "own_lightning", "PYTHONPATH": str(HERE)}


def journal(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def lit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return done(tmp_path_factory.mktemp("lit"), *LIT, "stage.trainer.log_every_n_steps=4", "tracking=none", **KNOWN)


def test_a_lightning_module_runs_as_it_is(lit: Path) -> None:
    """Equal, to the bit, to Lightning alone."""
    import pytorch_lightning as pl
    import torch
    from own_lightning import Clouds, Lit

    torch_threads = torch.get_num_threads()
    pl.seed_everything(0, verbose=False)
    module = Lit()
    alone = pl.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    alone.fit(module, Clouds())
    torch.set_num_threads(torch_threads)
    with np.load(lit / "artifacts/module/weights.npz") as kept:
        np.testing.assert_array_equal(kept["net.0.kernel"], module.state_dict()["net.0.weight"].detach().numpy().T)
    found = {name: metric.value for name, metric in metrics_of(lit).items()}
    assert found["val_loss"] == pytest.approx(alone.callback_metrics["val_loss"].item(), abs=1e-6)
    assert found["test_accuracy"] > 0.9
    assert (found["epochs"], found["steps"]) == (3, 24)
    assert list((lit / "artifacts/module/checkpoints").glob("*.ckpt"))


def test_its_receipt_and_journal(lit: Path) -> None:
    receipt = json.loads((lit / "receipt.json").read_text())
    assert receipt["precision"]["as_requested"]
    assert set(receipt["precision"]["observed"]["matrix_products"]) == {"float32"}
    assert receipt["device"]["effective"] == "cpu"
    assert receipt["parameters"] == 4 * 8 + 8 + 8 * 2 + 2
    times = {*receipt, *metrics_of(lit)} & {"fit_s", "training_s"}
    assert times == {"fit_s"}  # its validations are in it, which are not in other stages' training_s
    lines = journal(lit)
    steps = [line for line in lines if "train_loss_step" in str(line)]
    epochs = [line for line in lines if "train_loss_epoch" in str(line) and "val_loss" in str(line)]
    assert (len(steps) >= 6, len(epochs)) == (True, 3)
    assert lit.name.endswith("lightning-lit-torch-fp32" + lit.name[-5:])
    assert [line["metrics"].get("epoch/number") for line in epochs] == [1, 2, 3]
    assert sum("epoch/number" in line["metrics"] for line in lines) == 3
    shown = pipeline(lit.parents[1], "stage=show", "run=latest").stdout.splitlines()
    rows = shown[shown.index("epochs") + 1 :]
    assert [row.split()[0] for row in rows if row[:1].isdigit()][:3] == ["1", "2", "3"], shown


def test_the_last_epoch_of_a_killed_run_is_found_above_many_steps(
    lit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an epoch's metrics that no step has; in the run list, of a run without a result."""
    run = tmp_path / lit.name
    shutil.copytree(lit, run)
    (run / "result.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        for n in range(90):
            file.write(json.dumps({"step": n, "time": 0.0, "metrics": {"train_loss_step": n}}) + "\n")
    monkeypatch.setattr(listing, "TAIL_BYTES", 200)
    (found,) = listing.listed(tmp_path)
    assert found.metrics["train_loss_step"] == 89
    assert found.metrics["val_loss"] == metrics_of(lit)["val_loss"].value


def test_an_epoch_that_was_not_validated_has_no_metrics_of_the_validation(tmp_path: Path) -> None:
    """Lightning keeps those of an earlier epoch: they would be of other weights."""
    run = done(tmp_path, *LIT, "+stage.trainer.check_val_every_n_epoch=2", "tracking=none", **KNOWN)
    epochs = [one["metrics"] for one in journal(run) if {"train_loss_epoch", "train_accuracy"} <= one["metrics"].keys()]
    assert [(one.keys() >= {"val_loss", "val_accuracy"}) for one in epochs] == [False, True, False]
    assert metrics_of(run)["val_loss"].value == epochs[1]["val_loss"]
    assert all(one["shared"] == one["train_loss_epoch"] for one in epochs)  # which is logged last
    notes = json.loads((run / "result.json").read_text())["notes"]
    assert "val_loss, val_accuracy: of epoch 2, the last of 3 that measured it" in notes


@pytest.mark.parametrize("name", ["val_loss/", "/loss", "a//b"])
def test_a_name_that_no_metric_can_have_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"^metric '{name}': needs a printable name .* nor dots; log it under another"):
        numbers({"val_loss": 1, name: 2})
    assert numbers({"val/loss": 1}) == {"val/loss": 1.0}


@pytest.mark.parametrize("name", ["epochs", "steps", "fit_s", "epoch/number"])
def test_a_name_that_every_run_has_is_refused(name: str) -> None:
    """It took the result of a training with it, at its end."""
    with pytest.raises(
        UserError, match=f"the metric {name}: the run itself has one of this name; log it under another"
    ):
        numbers({name: 1.0})


def test_a_test_under_a_name_of_the_training_takes_none_from_it() -> None:
    watch = object.__new__(Watch)
    watch.epochs, watch.last, watch.epoch_of = 3, {"loss": 0.5}, {"loss": 3}
    found = {one.name: one.value for one in watch.metrics({"loss": 0.7, "accuracy": 0.9})}
    assert found == {"loss": 0.5, "test_loss": 0.7, "accuracy": 0.9}


def test_a_value_for_each_class_is_a_metric_each() -> None:
    found = numbers({"f1_score": np.array([0.5, 0.25]), "loss": np.float32(2), "auc": np.array([1.0])})
    assert found == {"f1_score/0": 0.5, "f1_score/1": 0.25, "loss": 2.0, "auc": 1.0}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0.1x", "0.1x: is a str"),
        (None, "None: is a NoneType"),
        (np.ones((2, 3)), r"\[\[.*\]\]: has the shape \(2, 3\)"),
        (np.array(["a", "b"]), ".*: is a ndarray"),
    ],
)
def test_what_is_no_number_is_refused_by_its_name(value: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^the metric lr={said}; log a number, or a row of them$") as error:
        numbers({"loss": 1, "lr": value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("precision", "found", "problem"),
    [
        ("fp32", {("float32", "float32"): 2}, None),
        ("mixed_bf16", {("bfloat16", "float32"): 2}, None),
        ("fp32", {}, None),  # a model without matrices
        ("fp32", {("float32", "float32"): 1, ("bfloat16", "bfloat16"): 1}, "bfloat16 (1), float32 (1)"),
        ("mixed_bf16", {("float32", "float32"): 2}, "float32 (2)"),
        ("bf16", {("bfloat16", "float32"): 2}, "bfloat16 with float32 weights (2)"),
    ],
)
def test_layers_in_other_dtypes_are_not_as_requested(
    precision: str, found: dict[tuple[str, str], int], problem: str | None
) -> None:
    """Keras takes the dtypes of the model's own layers, whatever the run asks for."""
    resolved = Resolved(Place("cpu"), precision, "", "")
    receipt: dict[str, Any] = {"precision": {}}
    said = add_layers(receipt, resolved, found)
    if problem is None:
        assert said == ""
        assert "as_requested" not in receipt["precision"]  # the step itself is not observed
        return
    assert said.startswith(f"precision={precision} asks for ") and said.endswith(
        f" but the layers compute in {problem}"
    )
    assert receipt["precision"]["problem"] == said and receipt["precision"]["as_requested"] is False


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_keras_layer_in_another_dtype_is_noted(tmp_path: Path, backend: str) -> None:
    words = ("stage.model=own_keras.narrow", "stage.data=own_keras.arrays", "stage.epochs=1", f"backend={backend}")
    run = done(tmp_path, "stage=keras", *words, "tracking=none", **KERAS)
    receipt = json.loads((run / "receipt.json").read_text())["precision"]
    assert receipt["layers"] == {"bfloat16": 1, "float32": 1} and receipt["as_requested"] is False
    result = json.loads((run / "result.json").read_text())
    assert ["precision", "fp32 asked for; layers compute in bfloat16, float32"] in result["table"]
    assert [one for one in result["notes"] if one.startswith("precision=fp32 asks for float32 but the layers compute")]


@pytest.mark.wide
def test_a_keras_metric_of_each_class_is_logged_by_class(tmp_path: Path) -> None:
    words = ("stage.model=own_keras.by_class", "stage.data=own_keras.one_hot", "stage.epochs=2", "backend=jax")
    run = done(tmp_path, "stage=keras", *words, **KERAS)
    assert {"f1_score/0", "val_f1_score/1", "test_f1_score/1"} <= metrics_of(run).keys()


@pytest.mark.wide
def test_a_module_that_logs_such_a_name_ends_with_one_message(tmp_path: Path) -> None:
    words = ("stage.module=own_lightning.Misnamed", *(word for word in LIT if "module" not in word))
    assert failed(tmp_path, *words, **KNOWN).startswith("metric 'val_loss/': needs a printable name")


@pytest.mark.wide
def test_weights_that_are_not_finite_fail_the_run(tmp_path: Path) -> None:
    """Also where no metric shows it."""
    words = ("stage.module=own_lightning.Quiet", *(word for word in LIT if "module" not in word))
    result = pipeline(tmp_path, *words, "precision.strict=false", **KNOWN)
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    (run,) = runs(tmp_path)
    assert status(run).state == "FAILED"
    assert "the weight net.0.kernel holds numbers that are not finite" in str(status(run).error)


RAISES = r"stage\.m\w+=\S+ raises {}(, in \w+ \(\S+\.py, line \d+\))?; artifacts/traceback\.txt has the traceback"


def raised(folder: Path, *words: str, **changes: str) -> str:
    """The message of a run that the user's code has ended; its traceback lies in the run."""
    result = pipeline(folder, "tracking=none", *words, **changes)
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    (run,) = runs(folder)
    (said,) = (line.removeprefix("error: ") for line in result.stderr.splitlines() if line.startswith("error: "))
    assert status(run).state == "FAILED" and str(status(run).error).endswith(said)
    assert (run / "artifacts/traceback.txt").read_text().startswith("Traceback (most recent call last)")
    return said


def test_an_exception_of_the_users_is_one_message_with_its_place(tmp_path: Path) -> None:
    words = ("stage.module=own_lightning.Broken", *(word for word in LIT if "module" not in word))
    found = raised(tmp_path, *words, **KNOWN)
    assert re.fullmatch(RAISES.format("ValueError: a label is damaged"), found)
    assert ", in training_step (" in found and "own_lightning.py, line " in found


@pytest.mark.wide
@pytest.mark.parametrize(
    ("word", "where", "what"),
    [
        ("stage.module=own_lightning.Narrow", "training_step", "RuntimeError: mat1 and mat2 shapes .*"),
        ("stage.data=own_lightning.FromWorkers", "__getitem__", "KeyError: 'image 40'"),
        ("stage.module=own_lightning.Monitors", None, "RuntimeError: Early stopping conditioned on metric `val_los`.*"),
    ],
)
def test_so_is_what_a_library_or_another_process_raises_for_it(
    tmp_path: Path, word: str, where: str | None, what: str
) -> None:
    words = (word, *(one for one in LIT if one.partition("=")[0] != word.partition("=")[0]))
    found = raised(tmp_path, *words, **KNOWN)
    assert re.fullmatch(RAISES.format(what), found) and (where is None or f", in {where} (" in found)


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize(
    ("model", "data", "where", "what"),
    [
        ("broken", "arrays", "call", "ValueError: .*no such column.*"),
        ("model", "damaged", "__getitem__", "OSError: image 64"),
        ("misnamed", "arrays", None, "ValueError: Could not interpret metric identifier: acuracy"),
    ],
)
def test_so_is_one_of_a_keras_training(
    tmp_path: Path, backend: str, model: str, data: str, where: str | None, what: str
) -> None:
    """TensorFlow's graphs quote the traceback in the message."""
    words = (f"stage.model=own_keras.{model}", f"stage.data=own_keras.{data}", f"backend={backend}", "stage.epochs=1")
    found = raised(tmp_path, "stage=keras", *words, **KERAS)
    assert re.fullmatch(RAISES.format(what), found) and "\\x1b" not in found
    assert where is None or f", in {where} (" in found


@pytest.mark.wide
@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_steps_that_change_no_weight_are_noted(tmp_path: Path, framework: str) -> None:
    if framework == "lightning":
        words = ("stage.module=own_lightning.Still", *(word for word in LIT if "module" not in word))
        run = done(tmp_path, *words, "tracking=none", **KNOWN)
    else:
        words = ("stage.model=own_keras.still", "stage.data=own_keras.arrays", "backend=jax", "stage.epochs=3")
        run = done(tmp_path, "stage=keras", *words, "tracking=none", **KERAS)
    notes = json.loads((run / "result.json").read_text())["notes"]
    assert framework == "keras" or any(one.startswith("Lightning: `training_step` returned `None`") for one in notes)
    (note,) = (one for one in notes if "no weight" in one)
    assert note.startswith("24 optimizer steps have changed no weight: the learning rate is 0")


@pytest.mark.parametrize(
    ("value", "trained", "wrong"),
    [(1.0, True, False), (np.inf, True, True), (-np.inf, False, False), (np.nan, False, True)],
)
def test_a_mask_of_infinities_is_no_weight_that_diverged(value: float, trained: bool, wrong: bool) -> None:
    """No optimizer changes it."""
    found = check_weights({"first": np.arange(3), "mask": np.array([0, value])}, ["mask"] if trained else [])
    assert (found is not None and found.startswith("the weight mask holds")) == wrong


@pytest.mark.wide
@pytest.mark.parametrize(
    "word", ["+stage.data_arguments.examples=0", "+stage.trainer.max_steps=0", "+stage.trainer.max_time=00:00:00:00"]
)
def test_a_training_without_a_step_fails(tmp_path: Path, word: str) -> None:
    """Its numbers would be the initial weights'."""
    result = pipeline(tmp_path, *LIT, word, **KNOWN)
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    (run,) = runs(tmp_path)
    assert status(run).state == "FAILED"
    assert "nothing was trained: 0 epochs, 0 optimizer steps: the training split" in str(status(run).error)


@pytest.mark.wide
def test_a_grid_of_its_arguments(tmp_path: Path) -> None:
    """Its metrics declare nothing: all are shown, and the same command again marks the best by what the user says."""
    words = ("-m", *LIT, "stage.arguments.width=4,6", "precision=fp32,mixed_bf16", "tracking=none")
    result = pipeline(tmp_path, *words, **KNOWN)
    assert result.returncode == 0, result.stderr
    assert "metrics over the grid" in result.stdout and "val_loss" in result.stdout.splitlines()[1]
    again = pipeline(tmp_path, *words, "sweep.best=val_loss", "sweep.direction=minimize", **KNOWN)
    assert "* the best by val_loss" in again.stdout and "4 finished before" in again.stderr
    cells = [run for run in runs(tmp_path) if (run / "artifacts/module").exists()]
    assert {status(run).state for run in cells} == {"FINISHED"}
    seen = [
        set(json.loads((run / "receipt.json").read_text())["precision"]["observed"]["matrix_products"]) for run in cells
    ]
    assert sorted(map(sorted, seen)) == [["bfloat16"], ["bfloat16"], ["float32"], ["float32"]]


def wide(words: list[str]) -> list[Any]:
    """Each imports Lightning, or Keras."""
    return [pytest.param(word, marks=pytest.mark.wide) for word in words]


WRONG = {
    "stage.module=null": "stage.module=null: name a LightningModule, as stage.module=mine.Lit",
    "stage.module=os.getcwd": "stage.module=os.getcwd: not on the allow-list (pipeline, own_lightning); to "
    "allow a module of yours set PIPELINE_MODULES=<module>[,<module>]",
    "stage.module=own_lightning.Clouds": "stage.module=own_lightning.Clouds: gives a Clouds; name a LightningModule",
    "stage.data=own_lightning.Lit": "stage.data=own_lightning.Lit: gives a Lit; name a LightningDataModule",
    "stage.module=own_lightning.Little": "stage.module=own_lightning.Little: module own_lightning has no Little "
    "(did you mean Lit?)",
    "stage.module=own_lightning.torch": "stage.module=own_lightning.torch: is a module; name a class or a function",
    "+stage.arguments.depth=3": "stage.module=own_lightning.Lit: Lit.__init__() got an unexpected keyword argument "
    "'depth'",
    "stage.data=null": "stage.module=own_lightning.Lit: has no train_dataloader(); name its data, as "
    "stage.data=mine.Data",
    "backend.compile=true": "backend.compile with stage=lightning: it would be ignored; leave it out",
    "+stage.trainer.callbacks=1": "stage.trainer.callbacks=1: leave it out and use configure_callbacks() of the module",
    "+stage.trainer.precision=16": "stage.trainer.precision=16: leave it out and use precision",
    "+stage.trainer.accumulate_grad_batches=0": "stage.trainer.accumulate_grad_batches=0: give a whole number, "
    "1 or more",
    "+stage.trainer.check_val_every_n_epoch=0": "stage.trainer.check_val_every_n_epoch=0: give a whole number, "
    "1 or more",
    "+stage.trainer.min_epochs=4": "stage.trainer.min_epochs=4: give 0 to 3: stage.epochs=3 ends the training",
    "+stage.trainer.gradient_clip_val=abc": "stage.trainer.gradient_clip_val=abc: Lightning refuses it: "
    "`gradient_clip_val` should be an int or a float. Got abc.",
    "+stage.trainer.max_time=abc": "stage.trainer.max_time=abc: Lightning refuses it: `Timer(duration='abc')` is not a "
    "valid duration. Expected a string in the format DD:HH:MM:SS.",
    "+stage.arguments.width=-1": "stage.module=own_lightning.Lit raises RuntimeError: Trying to create tensor with "
    "negative dimension -1: [-1, 4]",
    "model=cnn": "model with stage=lightning: here your own code decides what is trained, on what and how",
    "backend=jax": "stage=lightning with backend=jax: use backend=torch",
}


@pytest.mark.parametrize("word", [*list(WRONG)[:1], *wide(list(WRONG)[1:])])
def test_what_lightning_would_not_run_is_refused(tmp_path: Path, word: str) -> None:
    key = word.partition("=")[0]
    said = refused(tmp_path, *(one for one in LIT if not one.startswith(f"{key}=")), word, **KNOWN)
    assert without_place(said) == WRONG[word]


@pytest.mark.wide
def test_arguments_that_the_trainer_refuses_are_named_together(tmp_path: Path) -> None:
    words = ("+stage.trainer.strategy=foo", "+stage.trainer.log_every_n_steps=4")
    said = refused(tmp_path, *LIT, *words, **KNOWN)
    assert said.startswith("stage.trainer.strategy=foo, stage.trainer.log_every_n_steps=4: Lightning refuses it: ")


@pytest.mark.wide
def test_what_lightning_finds_wrong_when_it_begins_is_one_message(tmp_path: Path) -> None:
    """A module that steps its optimizer itself has no gradients for the Trainer to clip."""
    words = ("stage.module=own_lightning.Manual", *(word for word in LIT if "module" not in word))
    said = failed(tmp_path, *words, "+stage.trainer.gradient_clip_val=1", **KNOWN)
    assert said.startswith(
        "stage.module=own_lightning.Manual with stage.trainer.gradient_clip_val=1: Lightning refuses it: Automatic"
    )


OF_KERAS = ("stage=keras", "stage.model=own_keras.model", "stage.callbacks=own_keras.callbacks", "stage.epochs=9")
KERAS = {"PIPELINE_MODULES": "own_keras", "PYTHONPATH": str(HERE)}


@pytest.mark.parametrize(
    ("backend", "data"), [("jax", "arrays"), pytest.param("tensorflow", "batches", marks=pytest.mark.wide)]
)
def test_a_compiled_keras_model_runs_as_it_is(tmp_path: Path, backend: str, data: str) -> None:
    """Its own callback ends it in its third epoch of nine."""
    run = done(tmp_path, *OF_KERAS, f"stage.data=own_keras.{data}", f"backend={backend}", "tracking=none", **KERAS)
    found = {name: metric.value for name, metric in metrics_of(run).items()}
    assert (found["epochs"], found["steps"]) == (3, 24)
    assert found["test_accuracy"] > 0.9
    epochs = [line for line in journal(run) if "val_loss" in str(line)]
    assert len(epochs) == 3
    receipt = json.loads((run / "receipt.json").read_text())
    assert receipt["precision"]["observed"] is None
    assert receipt["parameters"] == 4 * 8 + 8 + 8 * 2 + 2
    with np.load(run / "artifacts/module/weights.npz") as kept:
        assert kept["dense.kernel"].shape == (4, 8)


@pytest.mark.wide
def test_weights_that_a_callback_puts_back_are_said_to_be_others_than_those_measured(tmp_path: Path) -> None:
    """The metrics of the last epoch stood beside the saved weights of the best one."""
    words = (
        "stage=keras",
        "stage.model=own_keras.model",
        "stage.data=own_keras.arrays",
        "stage.epochs=9",
        "backend=jax",
    )
    plain = done(tmp_path, *words, **KERAS)
    assert not any("a callback has replaced the weights" in note for note in notes(plain))
    run = done(tmp_path, *words, "stage.callbacks=own_keras.first_put_back", **KERAS)
    assert any("a callback has replaced the weights after the last epoch" in note for note in notes(run))


def notes(run: Path) -> list[str]:
    return list(json.loads((run / "result.json").read_text())["notes"])


KERAS_WRONG = {
    "stage.model=null": "stage.model=null: name a function of yours, as stage.model=mine.model",
    "stage.model=own_keras.loose": "stage.model=own_keras.loose: gives a model that is not compiled; give a compiled "
    "keras.Model",
    "stage.data=own_keras.callbacks": "stage.data=own_keras.callbacks: gives a list; give a dict with train, and "
    "validation and test if any",
    "stage.callbacks=own_keras.arrays": "stage.callbacks=own_keras.arrays: gives no list of keras.callbacks.Callback",
    "+stage.fit.epochs=1": "stage.fit.epochs=1: leave it out and use stage.epochs",
    "+stage.fit.validation_split=0.5": "stage.fit.validation_split=0.5: stage.data=own_keras.arrays has a validation "
    "split; leave one of them out",
    "+stage.fit.batch_size=0": "stage.fit.batch_size=0: give a whole number, 1 or more",
    "+stage.fit.steps_per_epoch=0": "stage.fit.steps_per_epoch=0: give a whole number, 1 or more",
    "stage.data=own_keras.listed": "stage.data=own_keras.listed: its train is a list; give a "
    "pair (x, y) of arrays, or a dataset that fit takes",
    "stage.data=own_keras.absent": "stage.data=own_keras.absent: its validation is None; leave it out",
    "stage.data=own_keras.empty": "stage.data=own_keras.empty: its train has no examples; give some",
    "stage.data=own_keras.unequal": "stage.data=own_keras.unequal: its test has arrays of 256 and 255 examples; "
    "give each the same",
    "stage.data=own_keras.from_one": "stage.data=own_keras.from_one: its train has the label 2; the model's 2 outputs "
    "are for 0 to 1",
    "+stage.arguments.width=-1": "stage.model=own_keras.model raises ValueError: Received an invalid value for "
    "`units`, expected a positive integer. Received: units=-1",
    "+stage.fit.initial_epoch=9": "stage.fit.initial_epoch=9: give 0 to 8: stage.epochs=9 ends the training",
    "backend=torch": "stage=keras with backend=torch: use backend=tensorflow or backend=jax",
}


@pytest.mark.wide
def test_a_misspelt_argument_of_fit_is_refused_with_the_choices(tmp_path: Path) -> None:
    words = (*OF_KERAS, "stage.data=own_keras.arrays", "backend=jax", "+stage.fit.batchsize=8")
    said = refused(tmp_path, *words, **KERAS)
    assert said.startswith(
        "stage.fit.batchsize: no such key (did you mean stage.fit.batch_size?); choose from stage.fit."
    )
    assert "stage.fit.self" not in said and "stage.fit.epochs" not in said


@pytest.mark.parametrize("word", [*list(KERAS_WRONG)[:1], *wide(list(KERAS_WRONG)[1:])])
def test_what_keras_would_not_fit_is_refused(tmp_path: Path, word: str) -> None:
    key = word.partition("=")[0]
    words = (*OF_KERAS, "stage.data=own_keras.arrays", "backend=jax")
    said = refused(tmp_path, *(one for one in words if not one.startswith(f"{key}=")), word, **KERAS)
    assert without_place(said) == KERAS_WRONG[word]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "said"),
    [("test", ""), ("validation", ", or set stage.fit.validation_steps")],
)
def test_a_split_without_end_that_nothing_bounds_is_refused(tmp_path: Path, name: str, said: str) -> None:
    """Keras would read it for ever."""
    data = f"stage.data=own_keras.endless_{name}"
    wrong = f"{data}: its {name} has no end; leave out its repeat(){said}"
    assert refused(tmp_path, *OF_KERAS, data, "backend=tensorflow", "+stage.fit.steps_per_epoch=2", **KERAS) == wrong
