"""Whatever is typed, the check answers: it takes the config, or says in one line what is wrong, and writes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from command import write_files
from override_sets import sets

from pipeline.allowed import allowed_modules
from pipeline.cli.conf_path import conf_path
from pipeline.cli.exits import LONGEST_MESSAGE, status_of
from pipeline.cli.for_hydra import chosen_by_cell, whole_numbers
from pipeline.cli.help import choices
from pipeline.command_line import composed
from pipeline.datasets.mnist_like import MnistLike
from pipeline.errors import UserError, bad_choice, nearest
from pipeline.experiment import GROUPS, Experiment
from pipeline.ready import ready
from pipeline.spec import take_allow_list

SEED = 14

pytestmark = pytest.mark.usefixtures("nowhere")


def only_checked(config: Mapping[str, Any], overridden: Sequence[str]) -> int:
    """In place of the run: all that is done before it."""
    ready(config, overridden)
    return 0


def said(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status and standard error of a command that ends with the check; grids are listed, not run."""
    listed = ["sweep.dry_run=true"] if "-m" in words and not any("dry_run" in word for word in words) else []
    try:
        status = status_of(lambda: composed([*words, *listed], only_checked))
    except SystemExit as end:  # of --cfg and the like
        status = int(end.code or 0)
    return status, capsys.readouterr().err


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, without a GPU; the environment is put back."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("PIPELINE_", "MLFLOW_", "HYDRA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # profiler=torch sets it before torch is imported
    monkeypatch.setattr("pipeline.allowed._taken", None)
    return tmp_path


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=[pytest.mark.wide, pytest.mark.timeout(3600)])])
def test_any_override_set_is_taken_or_refused_in_one_line(
    count: int, nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = 0
    for words in sets(SEED, count):
        before = dict(os.environ)
        status, err = said(words, capsys)  # a traceback is an exception here, and ends the test
        assert dict(os.environ) == before, words
        assert (Path.cwd(), list(nowhere.iterdir())) == (nowhere, []), words
        taken += not status
        if status:
            line = err.removesuffix("\n")
            assert status == 2, (words, err)
            assert line.startswith("error: "), (words, err)
            assert len(line.removeprefix("error: ").strip()) > 10, (words, err)
            assert line.isprintable(), (words, err)  # one line, no control characters
            assert len(line) <= LONGEST_MESSAGE, (words, err)
    assert count / 400 < taken < count / 2  # the sets are neither all nonsense nor all sense


@pytest.mark.parametrize(
    ("wrong", "names", "meant"),
    [
        ("lr", ["learning_rate", "beta_1"], "learning_rate"),
        ("optimizer.lr", ["optimizer.learning_rate"], "optimizer.learning_rate"),
        ("optimizer.weight_decay", ["optimizer.beta_2", "optimizer.epsilon"], None),
        ("a.epoch", ["b.epoch", "a.epochs"], "a.epochs"),  # under several groups: whole names
        ("gaus", ["adam", "gauss_newton", "lbfgs"], "gauss_newton"),
        ("nweton", ["adam", "gauss_newton", "lbfgs"], "gauss_newton"),
        ("MulticlassF1", ["MulticlassF1Score", "MulticlassAUROC"], "MulticlassF1Score"),
        ("CNN", ["cnn", "mlp"], "cnn"),
        ("x", ["xs"], "xs"),
        ("", ["a"], None),
        ("anything", [], None),
    ],
)
def test_the_name_that_was_meant(wrong: str, names: list[str], meant: str | None) -> None:
    assert nearest(wrong, names) == meant


def test_choices_stand_in_their_order() -> None:
    """Numbers by their value: 90 before 100."""
    error = bad_choice("stage.architectures", 85, ["100", "90", "120", "75"])
    assert str(error) == "stage.architectures=85: no such choice; choose from 75, 90, 100, 120"
    assert "; choose from 9, 10, cnn, mlp; " in str(bad_choice("model", 1, ["mlp", "10", "cnn", "9"]))
    none = "training.monitor=loss: no such choice; there is nothing to choose from"
    assert str(bad_choice("training.monitor", "loss", [])) == none  # it said: choose from nothing: none exist


def test_of_many_choices_those_are_listed_that_are_like_what_was_typed() -> None:
    """2,270 characters of choices followed `did you mean`."""
    names = [f"{size}x{size}x{size}/numpy/{what}" for size in range(1, 30) for what in ("burst", "share")]
    names += ["test/accuracy", "test/loss", "validation/accuracy"]
    said = str(bad_choice("stage.best", "test/accurancy", names))
    begin = "stage.best=test/accurancy: no such choice (did you mean test/accuracy?); choose from "
    assert said.startswith(f"{begin}test/accuracy, validation/accuracy, ") and said.endswith(" and 53 more")
    few, many = (str(bad_choice("model", "ccn", ["cnn", *("x" * 30 + str(one) for one in range(n))])) for n in (9, 40))
    assert few.count(",") == 9 and "more" not in few
    assert many.count(",") == 7 and many.endswith(" and 33 more")
    assert str(bad_choice("model", "?", names)).count(",") == len(names) - 1  # none is like it


# What is typed -> the message, or its beginning where it ends in "...".
NAMED = {
    "schedule.warm_up=5": (
        "schedule.warm_up: no such key (schedule=cosine, cosine_text, linear have it); this choice has no settings"
    ),
    "optimizer.weight_decay=1": (
        "optimizer.weight_decay: no such key (optimizer=adamw, adamw_text, momentum, muon, sgd have it)..."
    ),
    "solver.graded=true": (  # files that set other groups too were not looked into
        "solver.graded: no such key (solver=adam, gauss_newton, lbfgs, ssbroyden have it); this choice has no settings"
    ),
    "stage.attention=true": "stage.attention: no such key (stage=seq2seq, transformer have it); choose from ...",
    "stage.images=[shoe.png]": "stage.images: no such key (stage=predict has it); choose from stage.probe",
    "stage=loading loader.workers=2": (
        "loader.workers: no such key (stage=loading has stage.workers); choose from loader.steps_per_execution"
    ),
    "device.placement_log=maybe": "device.placement_log='maybe': should be true or false",
    "output_dir={null:1}": "output_dir: no such key...",
    "stage.see=1": "stage.see: no such key; choose from stage.probe",
    "loader.batch_size=64": "loader.batch_size: no such key (did you mean training.batch_size?); choose from ...",
    "batch_size=64": "batch_size: no such key (did you mean training.batch_size?); choose from ...",
    "training.optimizer=sgd": "training.optimizer: no such key (optimizer=<choice> is a group); choose from ...",
    "solver=gaus": "solver=gaus: no such choice (did you mean gauss_newton?); choose from adam, ...",
    "model=MLP": "model=MLP: no such choice (did you mean mlp?); choose from cnn, ...",
    "backend=null": "backend=null: no such choice; choose from jax, tensorflow, torch",
    "optimizer=0": "optimizer=0: no such choice; choose from adadelta, ...",
    "backend=1e3": (
        "backend=1000.0: no such choice; choose from jax, tensorflow, torch; a file of that name is chosen by "
        "\"backend='<name>'\""
    ),
    "dataset=image_folder dataset.folder=10": (
        "dataset.folder=10: should be a valid string; in quotes it is one: \"dataset.folder='10'\""
    ),
    "experiment=null": "experiment=null: no such choice; choose from amp_ladder, ...",
    "stage=[1,2]": "stage=[1, 2]: no such choice; choose from amp, ...",
    "model={a:1}": "model={a: 1}: no such choice; choose from cnn, ...",
    "-m model=mlp,1": "model=1: no such choice; choose from cnn, ...",
    "model=${loss}": "model=${loss}: no such choice; choose from cnn, ...",
    "profiler=${..}": "profiler=${..}: no such choice; choose from memory, ...",
    "optimizer.learning_rate=${a.b}": "optimizer.learning_rate=${a.b}: Interpolation key 'a.b' not found",
    "seed=${oc.env:NOPE}": "seed=${oc.env:NOPE}: Environment variable 'NOPE' not found",
    "seed=${seed}": "seed=${seed}: refers to itself",
    "seed=${nope:1}": "seed=${nope:1}: Unsupported interpolation type nope",
    "output_dir=???": "output_dir: no value given",
    f"{'x' * 2000}=1": f"{'x' * 80}... (2,000 characters): no such key",
    f"model={'x' * 2000}": f"model={'x' * 80}... (2,000 characters): no such choice; choose from cnn, ...",
    f"name={'x' * 2000}": f"name={'x' * 80}... (2,000 characters): use letters, digits, ...",
    "-m hydra.launcher._target_=os.system": "hydra.launcher._target_: a key of Hydra that cannot be set here; ...",
    "-m seed=range(1,5,0)": "seed=range(1,5,0): range() arg 3 must not be zero",
    "-m seed=range(1e9)": "a grid of more than 100,000 cells: give fewer values, or search them",
    "-m experiment=keras_search seed=range(1e9)": (
        "seed=range(1e9): more than 1,000 values; interval(a,b) is searched as a whole"
    ),
    "-m experiment=keras_search ++hydra.sweeper.params.seed='range(1,5,0)'": (
        "seed=range(1,5,0): range() arg 3 must not be zero"
    ),
    "hydra.searchpath=[file:///nope]": "hydra.searchpath: /nope is not there; write file://<folder>",
    "--config-path x.yaml": "--config-path x.yaml: cannot be composed (ValueError: Using config_path to specify ...",
    "-m -- seed=1,2": "--: leave it out; flags and overrides may stand in any order, and no key begins with -",
    "--shell-completion": "--shell-completion: cannot be composed (ValueError: Expecting one subcommand ...",
    "-m seed=1 hydra.sweeper.trials=1,2": "Sweeping over Hydra's configuration is not supported : ...",
    # nonsense that was taken
    "training.evaluation_batch_size=99999999999999999999": (
        "training.evaluation_batch_size=99999999999999999999: too large; an integer goes up to 4,294,967,295"
    ),
    "training.log_every_n_steps=9999999999": "training.log_every_n_steps=9999999999: too large; an integer ...",
    "model.units=[99999999999999999999]": "model.units.0=99999999999999999999: too large; ...",
    f"model.units=[1{'0' * 400}]": "model.units.0=an integer of 1,329 bits: too large; ...",
    "training.epochs=1.5e0": "training.epochs=1.5: should be a valid integer",
    "training.epochs=1000.0": "training.epochs=1000.0: should be a valid integer; write 1000",
    "training.patience=0.0": "training.patience=0.0: should be a valid integer, greater than 0",  # it said: write 0
    "model.units=[8,0.0]": "model.units.1=0.0: should be a valid integer, greater than 0",
    "model.units=0.0": "model.units=0.0: should be a valid list, and each value in it should be a valid integer",
    "loader=tfdata loader.map_calls=2.0": "loader.map_calls=2.0: should be a valid integer; write 2, or 'auto'",
    "optimizer.learning_rate=1e20": "optimizer.learning_rate=1e+20: should be less than or equal to 1000",
    "optimizer=adagrad optimizer.initial_accumulator=inf": (
        "optimizer.initial_accumulator=inf: should be a finite number, up to 1e+38"
    ),
    "training.epochs=1000001": "training.epochs=1000001: should be less than or equal to 1000000",
    "loader=threads loader.workers=1000000": "loader.workers=1000000: should be less than or equal to 1024",
    "~training.epochs": "~training.epochs: removes a key that every experiment needs; give it a value instead",
    "~seed": "~seed: removes a key that every experiment needs; give it a value instead",
    "~model": "~model: removes a key that every experiment needs; give it a value instead",
    "+solver=[]": "+solver=[]: this group already has a choice; write solver=<choice>",
    "++solver=adam": "++solver=adam: this group already has a choice; write solver=<choice>",
    "hydra.sweeper._target_=os.system": "hydra.sweeper._target_: a key of Hydra that cannot be set here; ...",
    "hydra.sweeper.trials=3": "hydra.sweeper.trials=3: this is for grids; add -m",
    "hydra/launcher=ray": "hydra/launcher=ray: this is for grids; add -m",
    "hydra.run.dir=x": "hydra.run.dir: a key of Hydra that cannot be set here; choose from hydra/launcher, ...",
    "hydra.output_subdir=x": "hydra.output_subdir: a key of Hydra that cannot be set here; ...",
}


@pytest.mark.parametrize("typed", NAMED)
def test_what_is_said(typed: str, nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = NAMED[typed]
    status, err = said(typed.split() if typed.startswith("-m") or " " in typed else [typed], capsys)
    line = err.removeprefix("error: ").removesuffix("\n")
    assert status == 2, err
    assert line.startswith(wanted[:-3]) if wanted.endswith("...") else line == wanted
    assert list(nowhere.iterdir()) == []


def test_entries_of_a_mapping_can_still_be_taken_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["stage=ladder", "~stage.rungs.compiled", "~stage.rungs.amp"], capsys) == (0, "")


# What no config can do: import or call what is not on the allow-list, leave files, write down the environment

EVIL = """
from pathlib import Path
Path(__file__).with_name("imported").touch()

def call(**_):
    Path(__file__).with_name("called").touch()
"""
RECIPES = {
    "callbacks": "hydra: {callbacks: {x: {_target_: evil.call}}}",
    "env_set": "hydra: {job: {env_set: {PIPELINE_MODULES: evil}}}",
    "launcher": "hydra: {launcher: {_target_: evil.call}}",
    "sweeper": "hydra: {sweeper: {_target_: evil.call}}",
    "nested": "hydra: {launcher: {x: {y: [{_target_: evil.call}]}}}",
    "interpolated": "thing: {_target_: evil.call}\nhydra: {launcher: {x: '${thing}'}}",
    "job_log": "hydra: {job_logging: {root: {handlers: [x]}, handlers: {x: {(): evil.call}}}}",
    "hydra_log": "hydra: {hydra_logging: {root: {handlers: [x]}, handlers: {x: {(): evil.call}}}}",
    "folder": "hydra: {run: {dir: left}}",
    "subfolder": "hydra: {output_subdir: left}",
}
UNSAFE = {
    "+hydra.job.env_set.PIPELINE_MODULES=evil model._target_=evil.X": "hydra.job.env_set.PIPELINE_MODULES: a key of "
    "Hydra",
    "+hydra.callbacks.x._target_=evil.call": "hydra.callbacks.x._target_: a key of Hydra",
    "-m +hydra.launcher.x._target_=evil.call": "hydra.launcher.x._target_: a key of Hydra",
    "-m +hydra.launcher.x={_target_:evil.call}": "hydra.launcher.x: settings are values",
    "+hydra.job_logging.handlers.x.class=evil.call": "hydra.job_logging.handlers.x.class: a key of Hydra",
    "hydra.searchpath=[pkg://evil]": "pkg://evil: not on the allow-list (pipeline); to allow a package of yours set ",
    "--config-path pkg://evil": "pkg://evil: not on the allow-list (pipeline)",
    "--experimental-rerun evil.pickle": "--experimental-rerun: no such flag; flags are ",
    "-m hydra/launcher=basic": "hydra.launcher._target_='hydra._internal.core_plugins.basic_launcher.Basic",
    "experiment=callbacks": "hydra.callbacks={x: {_target_: 'evil.call'}}: cannot be set; ",
    "experiment=env_set model._target_=evil.X": "hydra.job.env_set={PIPELINE_MODULES: 'evil'}: cannot be set; ",
    "-m experiment=launcher": "hydra.launcher._target_='evil.call': not a launcher of the pipeline; choose ",
    "-m experiment=sweeper": "hydra.sweeper._target_='evil.call': not a sweeper of the pipeline; choose ",
    "-m experiment=nested": "hydra.launcher.x: settings are values",
    "-m experiment=interpolated": "hydra.launcher.x: settings are values",
    "experiment=job_log": "hydra.job_logging: cannot be set; ",
    "experiment=hydra_log": "hydra.hydra_logging: cannot be set; ",
    "experiment=folder": "hydra.run.dir='left': cannot be set; ",
    "experiment=subfolder": "hydra.output_subdir='left': cannot be set; ",
}


@pytest.mark.parametrize("typed", UNSAFE)
def test_nothing_of_others_is_imported_or_called(
    typed: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (nowhere / "evil.py").write_text(EVIL)
    recipes = {f"{name}.yaml": f"# @package _global_\n{text}\n" for name, text in RECIPES.items()}
    write_files(nowhere / "mine/experiment", recipes)
    monkeypatch.syspath_prepend(nowhere)
    before = sorted(nowhere.rglob("*"))
    mine = ["--config-dir", "mine"] if "experiment=" in typed else []
    status, err = said([*mine, *typed.split()], capsys)
    assert status == 2
    assert err.startswith(f"error: {UNSAFE[typed]}")
    assert sorted(path for path in nowhere.rglob("*") if "__pycache__" not in path.parts) == before
    assert "evil" not in sys.modules


def test_the_allow_list_is_that_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is when the command begins; what changes the environment later, changes no list."""
    seen: list[tuple[str, ...]] = []

    def note(_config: Mapping[str, Any], _overridden: Sequence[str]) -> int:
        monkeypatch.setenv("PIPELINE_MODULES", "json,ast")
        seen.append(allowed_modules())
        return 0

    monkeypatch.setenv("PIPELINE_MODULES", "json")
    composed(["model=linear"], note)
    composed(["model=linear"], note)
    assert seen == [("pipeline", "json"), ("pipeline", "json", "ast")]


def test_what_the_environment_holds_stays_out_of_the_config(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.setenv("EPOCHS", "3")
    words = ["dataset=mnist", "dataset.folder=/x/${oc.env:SECRET}"]
    words += ["training.epochs='${oc.decode:${oc.env:EPOCHS}}'"]
    seen: list[tuple[Experiment, Mapping[str, Any]]] = []

    def keep(config: Mapping[str, Any], overridden: Sequence[str]) -> int:
        seen.append((ready(config, overridden)[0], config))
        return 0

    assert composed([*words, "name=${oc.env:SECRET}"], keep) == 0
    ((experiment, config),) = seen
    assert isinstance(experiment.dataset, MnistLike)
    assert (experiment.dataset.folder, experiment.name, experiment.training.epochs) == ("/x/hunter2", "hunter2", 3)
    assert config["dataset"]["folder"] == "/x/${oc.env:SECRET}"
    assert config["training"]["epochs"] == 3
    assert "hunter2" not in repr((config, experiment.config))
    monkeypatch.setenv("EPOCHS", "4")
    composed(words, keep)
    assert seen[0][0].config_sha256() != seen[1][0].config_sha256()
    assert said(["output_dir=${oc.env:NO_SUCH}"], capsys)[1].startswith("error: output_dir=${oc.env:NO_SUCH}: ")
    assert said(["output_dir='\\${x}'"], capsys)[1].startswith("error: output_dir=${x}: ${ begins an interpolation")


def test_the_hash_is_that_of_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes: dict[str, str] = {}

    def keep(config: Mapping[str, Any], overridden: Sequence[str]) -> int:
        activation = config["model"]["activation"]
        hashes[f"{activation} {os.environ.get('ACTIVATION')}"] = ready(config, overridden)[0].config_sha256()
        return 0

    composed(["model.activation=tanh"], keep)
    for activation in ("relu", "tanh"):
        monkeypatch.setenv("ACTIVATION", activation)
        composed(["model.activation=${oc.env:ACTIVATION}"], keep)
    known, relu, tanh = hashes.values()
    assert known == tanh != relu


def test_a_module_that_is_not_there_cannot_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_MODULES", "json,mine_nowhere.models")
    with pytest.raises(UserError) as refusal:
        take_allow_list()
    assert str(refusal.value) == "PIPELINE_MODULES=json,mine_nowhere.models: no module mine_nowhere on the path"
    monkeypatch.setenv("PIPELINE_MODULES", "json,mine.py")
    with pytest.raises(UserError, match=r"^PIPELINE_MODULES=json,mine\.py: write the module's name, mine$"):
        take_allow_list()


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("optimizer=adamw,sgd optimizer.decay=matrices", {"optimizer.decay": "choice(matrices)"}),
        (
            "model=mlp,cnn model.freeze=[1,2] model.units=",
            {"model.freeze": "choice([1,2])", "model.units": "choice('')"},
        ),
        ("model=mlp,cnn model.units=[8],[9] optimizer.decay=all seed=3 ~model.x", {}),
        ("experiment=a,b optimizer.rate=1 sweep.timeout=5", {"optimizer.rate": "choice(1)"}),
        ("optimizer=adamw optimizer.decay=all seed=1,2", {}),
    ],
)
def test_a_value_below_a_group_of_the_grid_is_composed_with_each_cell(words: str, changed: dict[str, str]) -> None:
    before = dict(word.partition("=")[::2] for word in words.split())
    after = [f"{key}={value}" if key[0] != "~" else key for key, value in {**before, **changed}.items()]
    assert chosen_by_cell(words.split(), GROUPS) == after


WHOLE = [(stage, group) for stage in ("transformer", "seq2seq") for group in ("optimizer", "schedule")]
COSTLY = [
    ("amp", "optimizer"),
    ("amp", "schedule"),
    ("long_range", "optimizer"),
]  # stages that check each of their cells


@pytest.mark.parametrize(
    ("stage", "group"), [*WHOLE, *(pytest.param(*each, marks=pytest.mark.wide) for each in COSTLY)]
)
def test_what_a_stage_chooses_can_be_replaced(stage: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage sets no key below a group: another choice would lack it."""
    for choice in choices([conf_path()])[group]:
        assert said([f"stage={stage}", f"{group}={choice}", "device=cpu", "tracking=none"], capsys)[0] == 0, choice


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("training.epochs=1e3", "training.epochs=1000"),
        ("seed=1E1,2.5e+1,3", "seed=10,25,3"),
        ("model.units=[1e2,64]", "model.units=[100,64]"),
        ("optimizer.learning_rate=1e-3,.5e1,-.25e2", "optimizer.learning_rate=1e-3,5,-25"),
        ("optimizer.learning_rate=1e3.5", "optimizer.learning_rate=1e3.5"),
        ("optimizer.learning_rate=1e-3", "optimizer.learning_rate=1e-3"),
        ("optimizer.learning_rate=1e20", "optimizer.learning_rate=1e20"),
        ("training.epochs=1.25e1", "training.epochs=1.25e1"),
        ("name='1e3'", "name='1e3'"),
        ("model=1e3", "model=1e3"),
        ("stage.prompt=Of 1e3, or 1e4", "stage.prompt=Of 1e3, or 1e4"),
        ("stage.prompt=1e3", "stage.prompt=1e3"),
        ("optimizer.learning_rate=interval(1e0,1e2)", "optimizer.learning_rate=interval(1e0,1e2)"),
        ("++stage.arguments.rate=1e0", "++stage.arguments.rate=1e0"),
        ("hydra.sweeper.timeout=1e3", "hydra.sweeper.timeout=1e3"),
    ],
)
def test_a_whole_number_in_scientific_notation_is_one(given: str, meant: str) -> None:
    assert whole_numbers(given) == meant


def test_a_count_in_scientific_notation_is_recorded_as_one() -> None:
    kept: dict[str, Any] = {}

    def keep(config: Mapping[str, Any], _: Sequence[str]) -> int:
        kept.update(config)
        return 0

    composed(["dataset=digits", "training.epochs=1e3", "model.units=[1e2]", "seed=1e1"], keep)
    assert (kept["training"]["epochs"], kept["model"]["units"], kept["seed"]) == (1000, [100], 10)
    assert type(kept["training"]["epochs"]) is int
