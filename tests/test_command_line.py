"""The command line: what it shows, what it refuses and how, and that neither costs an import of a framework."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from unicodedata import category

import pytest
from command import (
    COMMAND,
    DIGITS,
    done,
    environment,
    failed,
    message,
    pipeline,
    refused,
    runs,
    status,
    with_small_disk,
)
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.streams import between_words, printable, printable_lines, say_at_once
from pipeline.cli.terminal import Terminal
from pipeline.datasets import sources
from pipeline.report.table import show
from pipeline.runs.run import Run

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "tensorflow", "jax", "keras", "pytorch_lightning", "mlflow", "matplotlib", "sklearn", "deepxde")

CHOICES = {
    "backend": "jax, tensorflow, torch",
    **{
        group: ", ".join(sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml")))
        for group in ("model", "dataset", "loss")
    },
}
KEYS = (
    "augmentation, backend, dataset, device, experiment, loader, loss, model, name, optimizer, output_dir, precision, "
    "profiler, resume, run, schedule, seed, solver, stage, sweep, tracking, training"
)
MLP_KEYS = "choose from model.activation, model.dropout, model.layer_dtypes, model.units"
ALL_KEYS = MLP_KEYS.replace("model.activation", "model.activation, model.adapters").replace(
    "model.layer_dtypes", "model.freeze, model.layer_dtypes, model.start, model.start_layers"
)
FLAGS = "flags are -m, --cfg job|hydra|all, --package NAME, --resolve, --config-dir DIR, --help, --version"
LINEAR, JAX, MLP = "pipeline.models.linear.Linear", "pipeline.backends.Jax", "pipeline.models.mlp.Mlp"


def underived(target: str, *contracts: str) -> str:
    names = " or ".join(f"pipeline.contracts.{one}" for one in contracts)
    return f"{target}: does not derive from {names}; CONTRIBUTING.md says what one has to offer"


LONG_GPU = "/job:localhost/replica:0/task:0/device:GPU:"
DEVICES = f"choose from auto, cpu, gpu, gpu:N, cuda, cuda:N, /GPU:N, /device:GPU:N, {LONG_GPU}N"
NO_TF32 = "TF32 exists only in the Tensor Cores of NVIDIA GPUs"

# What is typed -> the message, or its beginning where it ends in "...".
REFUSALS = {
    "model=cnnn": f"model=cnnn: no such choice (did you mean cnn?); choose from {CHOICES['model']}",
    "backend=theano": f"backend=theano: no such choice; choose from {CHOICES['backend']}",
    "dataset=imagenet": (
        f"dataset=imagenet: no such choice (did you mean image_folder?); choose from {CHOICES['dataset']}"
    ),
    "loss=crossentropy": "loss=crossentropy: no such choice (did you mean cross_entropy?); choose from ...",
    "precision=fp8": "precision=fp8: no such choice...",
    "experiment=nothing": "experiment=nothing: no such choice; choose from ...",
    "model.activation=relux": "model.activation='relux': should be 'relu', 'tanh', 'sigmoid', 'gelu', 'silu' or 'elu'",
    "training.metrics=[f2]": "training.metrics=f2: no such choice; choose from accuracy, ...",
    "modle=cnn": f"modle: no such key (did you mean model?); choose from {KEYS}",
    "+modle=cnn": f"modle: no such key (did you mean model?); choose from {KEYS.replace('experiment, ', '')}",
    "model.unit=[3]": f"model.unit: no such key (did you mean model.units?); {ALL_KEYS}",
    "+model.unit=[3]": f"model.unit: no such key (did you mean model.units?); {MLP_KEYS}",
    "++model.unit=[3]": f"model.unit: no such key (did you mean model.units?); {MLP_KEYS}",
    "experimnt=gpt_tiny": f"experimnt: no such key (did you mean experiment?); choose from {KEYS}",
    "model=cnn.yaml": f"model=cnn.yaml: no such choice; choose from {CHOICES['model']}",
    "training.metrics=[mean_squared_error]": (
        "training.metrics=mean_squared_error: takes numbers, and the targets of dataset=fashion_mnist are classes; ..."
    ),
    "training.metrics=[torchmetrics.Accuraccy]": (
        "training.metrics=Accuraccy: torchmetrics has no such metric (did you mean ..."
    ),
    "-m seed=0:3": "seed=0:3: should be a valid integer; for a grid, with -m: range(0,3)",
    "hydra.nothing=1": "hydra.nothing: a key of Hydra that cannot be set here; choose from hydra/launcher, ...",
    "seed=1 seed=2": "seed: set 2 times (seed=1, seed=2); give one value, or a,b with -m",
    "seed=1 ++seed=2": "seed: set 2 times (seed=1, ++seed=2); give one value, or a,b with -m",
    "model=cnn model=mlp": "model: set 2 times (model=cnn, model=mlp); give one value, or a,b with -m",
    "model=cnn,mlp": "model=cnn,mlp: several values; add -m to run each of them, or write a list as key=[a,b]",
    "training.epochs=ten": "training.epochs='ten': should be a valid integer",
    "training.epochs=1.5": "training.epochs=1.5: should be a valid integer",
    "training.epochs=true": "training.epochs=true: should be a valid integer",
    "training.epochs=-1": "training.epochs=-1: should be greater than 0",
    "training.epochs=0": "training.epochs=0: should be greater than 0",
    "training.batch_size=-32": "training.batch_size=-32: should be greater than 0",
    "model.units=[128,-3]": "model.units.1=-3: should be greater than 0",
    "model.units=128": "model.units=128: should be a valid list, such as [128]",
    "model.units={a:1}": "model.units={a:1}: should be a list",
    "model.units=0": "model.units=0: should be a valid list, and each value in it should be greater than 0",
    "model.units=wide": "model.units='wide': should be a valid list, and each value in it should be a valid integer",
    "model.units=null": "model.units=null: should be a valid list, such as []",
    "stage=wmma stage.pad=3": "stage.pad=3: should be a valid list of 3 values",
    "stage=amp stage.precisions=fp16": "stage.precisions='fp16': should be a valid list of 2 values or more",
    "model.units=[true]": "model.units.0=true: should be a valid integer",
    "stage=predict run=x stage.images=shoe.png": "stage.images='shoe.png': should be a valid list, such as [shoe.png]",
    "loader=tfdata backend=tensorflow loader.prefetch=-5": (
        "loader.prefetch=-5: should be greater than or equal to 0, or 'auto'"
    ),
    "loader=tfdata backend=tensorflow loader.map_calls=all": (
        "loader.map_calls='all': should be a valid integer, or 'auto'"
    ),
    "backend=jax +backend.threads=2": "backend.threads: no such key; this choice has no settings",
    "+backend.threds=2": (
        "backend.threds: no such key (did you mean backend.threads?); choose from backend.compile, backend.threads"
    ),
    "backend.threads=100000000": "backend.threads=100000000: this machine has ...",
    "backend=tensorflow backend.threads=1000000": "backend.threads=1000000: this machine has ...",
    "lr=0.1": "lr: no such key (did you mean optimizer.learning_rate or solver.learning_rate?); choose from ...",
    "epochs=3": "epochs: no such key (did you mean training.epochs?); choose from ...",
    "prompt=Call": "prompt: no such key (did you mean stage.prompt of stage=generate?); choose from ...",
    "model.dtypes=[float16]": (
        "model.dtypes: no such key (did you mean model.layer_dtypes or stage.dtypes of stage=matmul?); choose from ..."
    ),
    "optimizer.lr=0.1": "optimizer.lr: no such key (did you mean optimizer.learning_rate?); choose from ...",
    "model.dropout=1.0": "model.dropout=1.0: should be less than 1",
    "optimizer.learning_rate=-0.1": "optimizer.learning_rate=-0.1: should be greater than 0",
    "optimizer.learning_rate=nan": "optimizer.learning_rate=nan: should be a finite number",
    "seed=-1": "seed=-1: should be greater than or equal to 0",
    "seed=null": "seed=null: should be a valid integer",
    "name='two words'": "name=two words: use letters, digits, '.', '_' and '-', 60 at most",
    "name=..": "name=..: use something besides dots",
    "output_dir=": "output_dir=: name a folder; every run gets its own folder in it",
    "run=x": "run=x with stage=classifier: this stage does not start from a saved run; stage=evaluate, predict, "
    "inference, export and generate do",
    "training.metrics=[accuracy,accuracy]": "training.metrics=[accuracy,accuracy]: one of them is named twice",
    "dataset=digits dataset.validation=2000": "dataset.validation=2000: must be at least 0 and less than 1437, ...",
    "model.layer_dtypes=[float16]": "model.layer_dtypes=['float16']: has 1 dtype; give one for each of the ...",
    "precision=bf16 model.layer_dtypes=[float16,float64]": "model.layer_dtypes with precision=bf16: layers ...",
    "precision=tf32": f"precision=tf32 with backend=torch on cpu: {NO_TF32}...",
    "precision=tf32 backend=tensorflow": f"precision=tf32 with backend=tensorflow on cpu: {NO_TF32}...",
    "precision=tf32 backend=jax": f"precision=tf32 with backend=jax on cpu: {NO_TF32}...",
    "precision=mixed_fp16 precision.initial_scale=0": "precision.initial_scale=0: should be greater than 0",
    "precision=mixed_fp16 precision.initial_scale=1e39": (
        "precision.initial_scale=1e+39: should be less than or equal to 100000000000000000000000000000000000000"
    ),
    "precision=mixed_fp16 precision.initial_scale=nan": "precision.initial_scale=nan: should be a finite number",
    "precision=fp16 precision.initial_scale=1024": (
        "precision.initial_scale: no such key (precision=mixed_fp16 has it); choose from precision.name, ..."
    ),
    "precision=fp16 +precision.initial_scale=1024": (
        "precision.initial_scale=1024.0: precision=fp16 does not scale the loss; precision=mixed_fp16 does"
    ),
    "precision=mixed +precision.initial_scale=1024": (
        "precision.initial_scale=1024.0: precision=mixed need not scale the loss; precision=mixed_fp16 does"
    ),
    "stage=devices stage.gpus=all": "stage.gpus=all: no such choice; choose from here, known",
    "stage=devices model=cnn": "model with stage=devices: nothing is trained here; leave it out",
    "stage=devices model=cnn seed=3 optimizer=sgd": (
        "model, seed, optimizer with stage=devices: nothing is trained here; leave them out"
    ),
    "stage=devices stage.gpus=known model=cnn backend=jax": (
        "model with stage.gpus=known: nothing is trained here; backend: the table is of GPUs, not of this machine; "
        "leave them out"
    ),
    "stage=devices device.placement_log=true": (
        "device.placement_log with stage=devices: nothing is trained here; leave it out"
    ),
    "stage=devices stage.gpus=known backend=jax": (
        "backend with stage.gpus=known: the table is of GPUs, not of this machine; leave it out"
    ),
    "stage=amp stage.precisions=[fp32,tf32]": (
        "stage.precisions=[fp32,tf32]: only fp32 runs here, and a comparison needs at least two; precision=tf32 ..."
    ),
    "stage=amp stage.initial_scale=1024": (
        "stage.initial_scale=1024.0: none of the precisions scales the loss; mixed_fp16 does"
    ),
    "stage=amp +precision.initial_scale=1024": (
        "precision.initial_scale=1024.0: precision=fp32 does not scale the loss; precision=mixed_fp16 does"
    ),
    "loader=tfdata": "loader=tfdata with backend=torch: this loader feeds tensorflow; loader=memory and ...",
    "loader=dataloader backend=jax": "loader=dataloader with backend=jax: this loader feeds torch; ...",
    "device.memory_limit=1GB": "device.memory_limit=1GB on cpu: frameworks bound GPU memory only; ...",
    "device.memory_limit=1000000": "device.memory_limit=1000000 on cpu: frameworks bound GPU memory only; ...",
    "device.logical_devices=2": "device.logical_devices=2 with backend=torch on cpu: it cannot split a device; ...",
    "device=tpu": f"device=tpu: no such choice; {DEVICES}",
    "device.name=tpu": f"device.name=tpu: no such choice; {DEVICES}",
    "device.name=cuda:3": "device.name=cuda:3: no NVIDIA GPU found on this machine; ...",
    "training.monitor=5": "training.monitor=5: no such choice; choose from validation/accuracy, validation/loss",
    "loader=dataloader loader.prefetch_factor=1": (
        "loader.prefetch_factor=1: workers prepare batches ahead, and there are none; set loader.workers=1 or more"
    ),
    "device=cpu:1": f"device=cpu:1: the CPU is one device, cpu:0; {DEVICES}",
    "model": "model: not an override; write key=value, ...",
    "=3": "=3: not an override; write key=value, ...",
    "cnn": "cnn: not an override (did you mean model=cnn?); write key=value, with quotes round ...",
    "help": "help: not an override (did you mean --help?); write key=value, with quotes round ...",
    "model==cnn": "model==cnn: not an override; write key=value, with quotes round special characters ('key=\"a b\"')",
    "dataset.file=früchte.csv": "dataset.file=früchte.csv: not an override; write 'dataset.file=\"früchte.csv\"'",
    "~model.units[0]=2": "~model.units[0]=2: not an override; write key=value, with quotes round ...",
    "training.epochs=[1": "training.epochs=[1: not an override; write key=value, with quotes round ...",
    "--batch-size=3": f"--batch-size=3: no such flag; a setting is written training.batch_size=<value>; {FLAGS}",
    "--seed 3": f"--seed: no such flag; a setting is written seed=<value>; {FLAGS}",
    "--epochs=3": f"--epochs=3: no such flag; a setting is written training.epochs=<value>; {FLAGS}",
    "--model cnn": f"--model: no such flag; a choice is written model=<choice>; {FLAGS}",
    "stage=wmma stage.threads=1000": "stage.threads=1000: this machine has ...",
    "experiment=diabetes stage=amp": (
        "experiment=diabetes with stage=amp: the recipe's keys are for model=mlp optimizer=adam, but stage=amp chooses "
        "model=mnist_cnn optimizer=adadelta; add model=mlp optimizer=adam (model.units=[16]: should be a valid integer)"
    ),
    "experiment=two_layer_net stage=ladder": (
        "experiment=two_layer_net with stage=ladder: the recipe sets stage.sizes for its own stage=graph; leave out "
        "experiment or stage, and set what else you want of the recipe by hand (stage.sizes: no such key; ..."
    ),
    "experiment=gpt_tiny model=gru": (
        "experiment=gpt_tiny with model=gru: the recipe sets model.positions for its own model=gpt; leave out "
        "experiment or model, and set what else you want of the recipe by hand (model.positions: no such key; ..."
    ),
    "experiment=gpt_tiny dataset=mnist": (
        "experiment=gpt_tiny with dataset=mnist: the recipe sets dataset.context for its own dataset=moby_dick; ..."
    ),
    "experiment=gpt_tiny schedule=cosine_text training.steps=20": (  # which is the recipe's own
        "schedule.warm_up=50: the training has 20 optimizer steps; choose fewer steps, such as schedule.warm_up=2, ..."
    ),
    "experiment=gpt_tiny dataset=text": "dataset.path=null: name a file, a folder or a pattern, as 'texts/*.txt'",
    "stage=laddr --help": "stage=laddr: no such choice (did you mean ladder?); choose from ...",
    "experiment=diabetes stage=amp optimizer.learning_rate=-1 model=mlp": (
        "optimizer.learning_rate=-1: should be greater than 0"
    ),
    "experiment=diabetes stage=amp model=mlp optimizer=adam stage.repeats=0": (
        "stage.repeats=0: should be greater than 0"
    ),
    "-m seed=1,2 hydra/launcher=nope": (
        "hydra/launcher=nope: no such choice; choose from ray, submitit_local, submitit_slurm, workers"
    ),
    "stage=compare stage.runs=[a,b]": "stage.runs=a: no such run in ...",
    "stage=pinn dataset=digits": "dataset=digits with stage=pinn: not a problem; this stage solves ...",
    "model._target_=os.system": (
        "model._target_=os.system: not on the allow-list (pipeline); "
        "to allow a module of yours set PIPELINE_MODULES=<module>[,<module>]"
    ),
    "model._target_=pipelines.x.Y": "model._target_=pipelines.x.Y: not on the allow-list (pipeline); ...",
    "model._target_=pipeline.models.mlp.MLP": "model._target_=pipeline.models.mlp.MLP: module pipeline.models.mlp ...",
    "model._target_=pipeline.models.Shapes": "model._target_=pipeline.models.Shapes: not a spec (a class marked ...",
    "model._target_=pipeline.backends.keras.fit.X": (
        "model._target_=pipeline.backends.keras.fit.X: module pipeline.backends.keras.fit cannot be imported "
        "(KeyError: 'KERAS_BACKEND')"
    ),
    "-m seed=1,2 --cfg job": "--multirun --cfg: give one of them; --cfg shows the configuration of a single run",
    f"model._target_={JAX}": underived(f"model._target_={JAX}", "Model", "physics.Network"),
    f"loss._target_={LINEAR}": underived(f"loss._target_={LINEAR}", "Loss"),
    f"dataset._target_={JAX}": underived(f"dataset._target_={JAX}", "Dataset", "physics.Problem"),
    f"optimizer._target_={MLP}": underived(f"optimizer._target_={MLP}", "Optimizer"),
    f"stage._target_={MLP}": underived(f"stage._target_={MLP}", "Stage"),
    "tracking.uri=mlruns": "tracking.uri='mlruns': not a tracking server; choose sqlite:///<file>, ...",
    "stage=evaluate": "run=null with stage=evaluate: name the saved run, by its id, its folder or latest",
    "stage=evaluate run=latest": "run=latest: no finished run with artifacts/model/weights.npz in ...",
    "stage=predict run=abc": "run=abc: no such run in ...",
    "stage=evaluate run=20261120": "run=20261120: no such run in ...",
    "stage=evaluate run=1_0": "run=1_0: no such run in ...",
    "model=nope -m seed=1,2": f"model=nope: no such choice; choose from {CHOICES['model']}",
    "model=mlp --package model": "--package: goes with --cfg job, hydra or all",
    "model=mlp --cfg job --package model model=nope": "model: set 2 times (model=mlp, model=nope); ...",
    "--hydra-help": f"--hydra-help: no such flag; {FLAGS}",
    "--no-such-flag": f"--no-such-flag: no such flag; {FLAGS}",
    "--no-such-flag=3 seed=1": f"--no-such-flag=3: no such flag; {FLAGS}",
    "--cfg": "argument --cfg/-c: expected one argument",
    "--resolve": "--resolve: goes with --cfg job, hydra or all",
    "--cfg job --package nope": "--package nope: no such part of the configuration; --cfg job shows all of it",
    "-m seed=1,2 model=mlp,nope": (
        f"model=nope: no such choice; choose from {CHOICES['model']} (cell 2: seed=1 model=nope)"
    ),
}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mine.txt", "a text of yours is dataset=text dataset.path={}"),
        ("mine.npz", "arrays of yours are dataset=npz dataset.file={}"),
        ("pictures", "a folder of images is dataset=image_folder dataset.folder={}"),
        ("nothing.txt", None),
    ],
)
def test_a_path_in_place_of_a_dataset_is_named_whole(name: str, meant: str | None, tmp_path: Path) -> None:
    """`dataset//home/me=mine.txt` was said to be no choice."""
    (tmp_path / "pictures").mkdir()
    for file in ("mine.txt", "mine.npz"):
        (tmp_path / file).touch()
    for path in (str(tmp_path / name), name):
        hint = "" if meant is None else f"; {meant.format(path)}"
        said = refused(tmp_path, f"dataset={path}")
        assert said.startswith(f"dataset={path[:60]}")  # of a long one the beginning, and the length
        assert said.endswith(f": no such choice; choose from {CHOICES['dataset']}{hint}")
    assert refused(tmp_path, "model=a/b").startswith("model=a/b: no such choice; choose from ")


@pytest.mark.parametrize("typed", REFUSALS)
def test_refusal(typed: str, tmp_path: Path) -> None:
    wanted = REFUSALS[typed]
    said = refused(tmp_path, *([typed] if "'" in typed else typed.split()))
    assert said.startswith(wanted[:-3]) if wanted.endswith("...") else said == wanted
    assert len(said) < 600
    assert list(tmp_path.iterdir()) == []


NOTATIONS = [
    "gpu",
    "gpu:0",
    "gpu:3",
    "cuda",
    "cuda:0",
    "/GPU:0",
    "/device:GPU:0",
    LONG_GPU + "0",
]


@pytest.mark.parametrize("notation", NOTATIONS)
def test_gpu_that_is_not_there(notation: str, tmp_path: Path) -> None:
    """In the word that was typed."""
    assert refused(tmp_path, f"device={notation}") == (
        f"device={notation}: no NVIDIA GPU found on this machine; device=cpu or device=auto runs here"
    )


@pytest.mark.parametrize("notation", ["cpu", "CPU", "cpu:0", "/CPU:0", "/job:localhost/replica:0/task:0/device:CPU:0"])
def test_notations_of_the_cpu(notation: str, tmp_path: Path) -> None:
    shown = pipeline(tmp_path, f"device={notation}", "--cfg", "job", "--package", "device")
    assert shown.returncode == 0, shown.stderr
    assert "name: cpu\n" in shown.stdout


def test_flags_and_overrides_in_any_order(tmp_path: Path) -> None:
    shown = pipeline(tmp_path, "model=cnn", "--cfg", "job", "seed=7", "--package", "model", "model.kernel_size=3")
    assert shown.returncode == 0, shown.stderr
    assert "kernel_size: 3\n" in shown.stdout


LIGHT = {
    "--help": 0,
    "--cfg job": 0,
    "--cfg job model=cnn precision=mixed backend=tensorflow": 0,
    "model=nope": 2,
    "+nope=1": 2,
    "backend=tensorflow precision=tf32": 2,
    "backend=jax loader=tfdata": 2,
    "device=gpu:7": 2,
    "stage=evaluate run=nope": 2,
    "model.start=nope": 2,
    "stage=show run=nope": 2,
    "stage=compare stage.runs=[a,b]": 2,
    "stage=delete run=nope": 2,
}
ARRAYS = ("backend=jax loader=tfdata", "stage=evaluate run=nope")  # of which something looked at imports NumPy


@pytest.mark.parametrize("typed", LIGHT)
def test_no_framework_is_imported(typed: str, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", *COMMAND[1:], *typed.split()]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == LIGHT[typed], result.stderr[-2000:]
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "pipeline" in modules  # so that the others would show
    assert modules.isdisjoint(HEAVY if typed in ARRAYS else (*HEAVY, "numpy"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "least"),
    [("device=gpu:7", 10_000), pytest.param("dataset=digits training.epochs=1", 100_000, marks=pytest.mark.wide)],
)
def test_what_a_command_imports_is_not_looked_through_as_it_ends(typed: str, least: int, tmp_path: Path) -> None:
    """By Python's collector, which took a second after each training on torch."""
    ends = f"import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > {least})); "
    command = [sys.executable, "-c", ends + "from pipeline.__main__ import main; main()", *typed.split()]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.stdout.splitlines()[-1:] == ["True"], ended.stderr[-2000:]


def test_linux_only(tmp_path: Path) -> None:
    """Before anything that another system might lack is imported."""
    code = "import sys; sys.platform = 'darwin'; from pipeline.__main__ import main; main()"
    command = [sys.executable, "-X", "importtime", "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 2
    times = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    said = [line for line in result.stderr.splitlines() if line not in times]
    assert said == ["error: pipeline runs on Linux only, and this is darwin"]
    modules = {line.rpartition("|")[2].strip() for line in times}
    assert {name for name in modules if name.startswith("pipeline")} == {
        "pipeline",
        "pipeline.__main__",
        "pipeline.cli",
        "pipeline.cli.linux",
    }
    assert modules.isdisjoint({*HEAVY, "pydantic", "hydra", "psutil", "rich"})


JOINED = "\u0645\u06cc\u200c\U0001f469\u200d\U0001f52c"  # a letter of Persian, a woman at a microscope


def test_no_control_characters_reach_the_terminal() -> None:
    """Names come from configs, from files and from the user's modules; rich's own commands stay."""
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, width=100, color_system="truecolor")
    name = "\x1b]0;title\x1b[31mred\x9b\u202e\u200e\u200b\u2028\ufeff" + JOINED
    escaped = r"\x1b]0;title\x1b[31mred\x9b\u202e\u200e\u200b\u2028\ufeff" + JOINED
    run = Run(None, console)  # type: ignore[arg-type]
    run.say(f"{name}\nand a second line")
    show(console, name, [(name, name)])
    console.print("plain", style="bold")
    shown = out.getvalue()
    assert shown.startswith(f"{escaped}\nand a second line\n")
    assert shown.count(escaped) == 4
    assert name not in shown
    assert "\x1b[1mplain\x1b[0m" in shown


def test_what_nobody_sees_is_written_out_wherever_a_text_is_printed() -> None:
    """By Unicode's categories: controls, marks of format (direction, of no width), line and paragraph separators and
    halves of letters. Spaces of other widths, as Chinese has them, are seen, and joiners by their neighbours."""
    letters = {letter for letter in map(chr, range(0x110000)) if category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    unseen = letters - set(JOINED)
    assert {"\x00", "\xad", "\u200e", "\u200f", "\u2066", "\u2029", "\ud800", "\U000e0001"} < unseen
    for letter in unseen:
        assert printable(letter) == repr(letter)[1:-1]
        assert printable_lines(letter) == (letter if letter in "\n\t" else repr(letter)[1:-1])
    seen = "Ä e\u0301 世界\u3000\xa0🙂 \\n"
    assert printable(seen) == printable_lines(seen) == seen


@pytest.mark.parametrize("said", [say_at_once, sources.say])
def test_what_nobody_sees_is_written_out_on_standard_error(
    said: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """What datasets say, with the names of files, did not pass the console."""
    said("b\u202e.txt\u200f\nand more")
    assert capsys.readouterr().err == "b\\u202e.txt\\u200f\nand more\n"


@pytest.mark.parametrize("columns", [60, 80, 0])
def test_a_message_is_as_wide_as_the_terminal(columns: int, tmp_path: Path) -> None:
    """A terminal that does not say how wide it is gets it in one line, as programs do."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    try:
        subprocess.run([*COMMAND, "modle=cnn"], cwd=tmp_path, env=environment(), stderr=theirs, check=False)
        said = os.read(ours, 10_000).decode().replace("\r\n", "\n").removesuffix("\n")
    finally:
        os.close(ours)
        os.close(theirs)
    plain = message(pipeline(tmp_path, "modle=cnn"))
    assert " ".join(said.split()) == f"error: {plain}"
    assert ("\n" in said) == (columns > 0) and max(map(len, said.split("\n"))) <= (columns or 1000)


@given(st.lists(st.text("ab/.-", min_size=1, max_size=30)), st.integers(3, 40))
def test_what_is_folded_keeps_its_words_whole(words: list[str], width: int) -> None:
    lines = between_words(" ".join(words), width, "  ")
    assert " ".join(lines).split() == words
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)


def test_help_names_groups_choices_and_examples(tmp_path: Path) -> None:
    result = pipeline(tmp_path, "--help", COLUMNS="80")
    assert result.returncode == 0
    listed = result.stdout.partition("\n\naugmentation: ")[2].partition("\n\n")[0].splitlines()
    assert len(listed) > 20 and max(map(len, result.stdout.splitlines())) <= 80
    said = " ".join(result.stdout.split())
    for folder in sorted((ROOT / "conf").iterdir()):
        if folder.is_dir() and folder.name != "hydra":
            choices = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
            assert f"{folder.name}: {choices} " in said
    assert "hydra/launcher: ray, submitit_local, submitit_slurm, workers\n" in result.stdout
    examples = [line.strip().partition("  ")[0] for line in result.stdout.splitlines() if line.startswith("  ")]
    assert "stage=evaluate run=latest" in examples
    for example in (one for one in examples if "=" in one and not one.startswith("-m") and "latest" not in one):
        assert pipeline(tmp_path, *example.split(), "--cfg", "job").returncode == 0, example


def test_help_lists_the_choices_of_a_folder_of_yours(tmp_path: Path) -> None:
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "wide.yaml").write_text("# Four times as wide.\nunits: [512]\n")
    result = pipeline(tmp_path, "--config-dir=mine", "-h")
    models = ", ".join(sorted([*CHOICES["model"].split(", "), "wide"]))
    assert f"model: {models}\n" in result.stdout
    assert message(pipeline(tmp_path, "--help", "--config-dir", "nope")) == "--config-dir nope: no such folder"


@pytest.mark.parametrize("flag", ["--cfg=job", "--help"])
def test_a_choice_of_yours_that_a_shipped_one_would_hide_is_refused(flag: str, tmp_path: Path) -> None:
    """Hydra takes the shipped one without a word. The same settings in both change nothing."""
    mine = tmp_path / "mine" / "model"
    mine.mkdir(parents=True)
    text = (ROOT / "conf/model/cnn.yaml").read_text()
    (mine / "cnn.yaml").write_bytes(f"# as shipped\n\n{text}".replace("\n", "\r\n").encode())
    (mine.parent / "config.yaml").write_text("seed: 3\n")  # which chooses nothing
    words = ("--config-dir", "mine", "model=mlp", *flag.split("="))
    assert pipeline(tmp_path, *words).returncode == 0
    (mine / "mlp.yaml").write_text("_target_: pipeline.models.mlp.Mlp\nunits: [7]\n")
    assert message(pipeline(tmp_path, *words)) == (
        "--config-dir mine: model/mlp has the name of a shipped choice, which would be taken in its place; rename the "
        f"file, or set PIPELINE_CONF to an edited copy of {ROOT}/conf"
    )


@pytest.mark.parametrize("name", ["10", "1e3", "true"])
def test_a_choice_whose_name_reads_as_a_number_is_chosen_in_quotes(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "model"
    mine.mkdir(parents=True)
    (mine / f"{name}.yaml").write_text("_target_: pipeline.models.mlp.Mlp\nunits: [77]\n")
    words = ("--config-dir=mine", "--cfg=job", "--package=model.units")
    assert message(pipeline(tmp_path, f"model={name}", *words)).endswith(
        "; a file of that name is chosen by \"model='<name>'\""
    )
    assert "77" in pipeline(tmp_path, f"model='{name}'", *words).stdout


@pytest.mark.parametrize("schema", ["file", "pkg"])
def test_so_is_one_on_hydras_search_path(schema: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "model"
    mine.mkdir(parents=True)
    (mine.parent / "__init__.py").touch()
    (mine / "wide.yaml").write_text("_target_: pipeline.models.mlp.Mlp\nunits: [512]\n")
    where = f"file://{mine.parent}" if schema == "file" else "pkg://mine"
    words = (f"hydra.searchpath=[{where}]", "model=wide", "--cfg=job")
    changes = {"PIPELINE_MODULES": "mine", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    assert pipeline(tmp_path, *words, **changes).returncode == 0
    (mine / "mlp.yaml").write_text("_target_: pipeline.models.mlp.Mlp\nunits: [7]\n")
    assert message(pipeline(tmp_path, *words, **changes)) == (
        f"hydra.searchpath: {where}: model/mlp has the name of a shipped choice, which would be taken in its place; "
        f"rename the file, or set PIPELINE_CONF to an edited copy of {ROOT}/conf"
    )


def test_help_beside_choices_shows_their_keys(tmp_path: Path) -> None:
    """`stage=wmma --help` showed what `--help` shows."""
    test_help_lists_the_choices_of_a_folder_of_yours(tmp_path)
    shown = pipeline(tmp_path, "stage=wmma", "model=wide", "--config-dir=mine", "--help")
    assert shown.returncode == 0
    wmma = (ROOT / "conf/stage/wmma.yaml").read_text()
    assert shown.stdout == (
        f"stage=wmma, in {ROOT}/conf/stage/wmma.yaml; a key is set by stage.<key>=<value>\n\n{wmma}\n"
        "model=wide, in mine/model/wide.yaml; a key is set by model.<key>=<value>\n\n"
        "# Four times as wide.\nunits: [512]\n\npython -m pipeline --help shows what else there is to choose.\n"
    )
    assert "; a key is set by <group>.<key>=<value>\n" in pipeline(tmp_path, "experiment=diabetes", "-h").stdout
    two = pipeline(tmp_path, "-m", "optimizer=adamw_text,sgd", "+hydra/launcher=workers", "--help").stdout
    assert [line.partition(", in ")[0] for line in two.splitlines() if ", in /" in line] == [
        "optimizer=adamw_text", "optimizer=adamw", "optimizer=sgd", "hydra/launcher=workers",
    ]  # fmt: skip
    assert "a key is set by hydra.launcher.<key>=<value>" in two
    assert "\naugmentation: " in pipeline(tmp_path, "name=nope", "experiment=null", "--help").stdout


def test_traceback_on_request(tmp_path: Path) -> None:
    result = pipeline(tmp_path, "model=nope", PIPELINE_TRACEBACK="1")
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert "pipeline.errors.UserError: model=nope: no such choice" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: model=nope: no such choice")


def test_the_tab_key_completes_words(tmp_path: Path) -> None:
    """By Hydra's own query, which what `pipeline -sc install=bash` prints makes of the line that is being typed."""
    mixed = sorted(f"precision={path.stem}" for path in (ROOT / "conf/precision").glob("mi*.yaml"))
    for typed, choices in (
        ("pipeline precision=mi", mixed),
        ("pipeline stage=wmma stage.al", ["stage.alpha="]),
    ):
        line = {"COMP_LINE": typed, "COMP_POINT": str(len(typed))}
        assert pipeline(tmp_path, "-sc", "query=bash", **line).stdout.split() == choices


def test_console_script(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("pipeline")
    result = subprocess.run(
        [script, "model=nope"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert message(result) == f"model=nope: no such choice; choose from {CHOICES['model']}"


@pytest.mark.parametrize("typed", ["--help", "--cfg job", pytest.param("stage=devices", marks=pytest.mark.wide)])
def test_a_reader_that_leaves(typed: str, tmp_path: Path) -> None:
    result = subprocess.Popen(
        [*COMMAND, *typed.split()], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert result.stdout is not None
    assert result.stderr is not None
    result.stdout.close()
    assert (result.stderr.read(), result.wait(600)) == (b"", 0)
    result.stderr.close()


@pytest.mark.wide
def test_an_output_that_knows_only_ascii(tmp_path: Path) -> None:
    result = pipeline(tmp_path, "stage=devices", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "torch cpu ? Keras /CPU:0" in result.stdout
    result = pipeline(tmp_path, 'output_dir="\u00e9"', "--cfg", "job", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "output_dir: ?" in result.stdout


@pytest.mark.wide
def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*COMMAND, *DIGITS, "tracking=none"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert ended.returncode == 0
    assert [status(run).state for run in runs(tmp_path)] == ["FINISHED"]


@pytest.mark.wide
def test_standard_output_on_a_full_disk(tmp_path: Path) -> None:
    def result(*arguments: str) -> tuple[int, str]:
        with Path("/dev/full").open("w") as full:
            ended = subprocess.run(
                [*COMMAND, *arguments], cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE,
                text=True, timeout=600, check=False,
            )  # fmt: skip
        return ended.returncode, ended.stderr.splitlines()[-1]

    refusal = "error: standard output: No space left on device; the output is lost"
    for typed in (["--help"], ["--cfg", "hydra"], ["stage=devices"], [*DIGITS, "tracking=none"]):
        assert result(*typed) == (1, refusal)
    assert [status(run).state for run in runs(tmp_path)] == ["FINISHED"]


# Where the configs are found


def seed_shown(folder: Path, **changes: str) -> str:
    shown = pipeline(folder, "--cfg", "job", **changes)
    assert shown.returncode == 0, shown.stderr
    return next(line for line in shown.stdout.splitlines() if line.startswith("seed:"))


def configs(where: Path, seed: int) -> Path:
    """The shipped configs with another default seed, to tell them by."""
    shutil.copytree(ROOT / "conf", where)
    main = where / "config.yaml"
    main.write_text(main.read_text().replace("seed: 0", f"seed: {seed}"))
    return where


def test_configs_by_the_environment_then_here_then_the_checkout(tmp_path: Path) -> None:
    assert seed_shown(tmp_path) == "seed: 0"
    configs(tmp_path / "conf", 11)
    assert seed_shown(tmp_path) == "seed: 11"
    named = configs(tmp_path / "elsewhere", 12)
    assert seed_shown(tmp_path, PIPELINE_CONF=str(named)) == "seed: 12"
    assert refused(tmp_path, PIPELINE_CONF="nowhere") == "PIPELINE_CONF=nowhere: holds no config.yaml"


@pytest.mark.wide
def test_configs_of_the_installed_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_text((ROOT / name).read_text() if (ROOT / name).exists() else "")
    build = "import os, setuptools.build_meta as build; os.makedirs('out'); build.build_wheel('out')"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, timeout=600, check=True)
    (wheel,) = (source / "out").glob("*.whl")
    site = tmp_path / "site"
    shutil.unpack_archive(wheel, site, "zip")
    shutil.rmtree(source)
    (tmp_path / "here").mkdir()
    said = refused(tmp_path / "here", "backend=nope", PYTHONPATH=str(site))
    assert said == f"backend=nope: no such choice; choose from {CHOICES['backend']}"
    assert seed_shown(tmp_path / "here", PYTHONPATH=str(site)) == "seed: 0"
    installed = site / "pipeline/conf"
    assert files(installed, "*.yaml") == files(ROOT / "conf", "*.yaml")
    assert files(site / "pipeline", "*.py") == files(ROOT / "src/pipeline", "*.py")
    (installed / "config.yaml").unlink()
    said = refused(tmp_path / "here", PYTHONPATH=str(site))
    assert said.startswith("no conf/config.yaml here, in the checkout or in the package; set PIPELINE_CONF")


def files(top: Path, pattern: str) -> set[Path]:
    """The files below a folder, as paths from it."""
    return {path.relative_to(top) for path in top.rglob(pattern)}


# What a run is called and where it lies


@pytest.mark.wide
def test_names_made_of_digits(tmp_path: Path) -> None:
    made = done(tmp_path, *DIGITS, "name=1_0", "tracking=none")
    assert status(made).name == "1_0"
    again = done(tmp_path, "stage=evaluate", f"run={made.name[:8]}", "name=20", "tracking=none")
    assert (status(again).name, again.name.split("-")[2]) == ("20", "20")


def test_an_output_folder_above(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    result = pipeline(tmp_path / "here", *DIGITS, "tracking=none", "output_dir=../runs")
    assert result.returncode == 0, result.stderr
    (run,) = runs(tmp_path)
    assert (run / "artifacts/model/weights.npz").is_file()
    assert str(run) not in result.stdout
    lines = result.stderr.splitlines()
    assert lines[:2] == ["mlp-digits-torch-fp32 on cpu at fp32", f"run {run.name}"]


@pytest.mark.wide
def test_an_even_kernel_brings_no_warning(tmp_path: Path) -> None:
    result = pipeline(tmp_path, *DIGITS, "model=cnn", "model.kernel_size=4", "tracking=none")
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr


# What shows once the data are read, before a run begins


def test_batch_larger_than_the_data(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=digits", "training.batch_size=1258")
    assert said == "training.batch_size=1258: larger than the 1,257 training examples; choose 1 to 1257"


def test_convolution_that_does_not_fit(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=digits", "model=cnn", "model.filters=[4,4,4,4]")
    assert said == "model.filters=[4, 4, 4, 4]: 4 pools leave nothing of 8x8 images; use at most 3"


# What only shows once a run has begun


def test_data_missing_truncated_or_flipped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    wanted = ("dataset=mnist", f"dataset.folder={data}")
    images = data / "train-images-idx3-ubyte"
    said = failed(tmp_path, *wanted)
    assert "train-images-idx3-ubyte" in said
    assert str(data) in said
    images.write_bytes(b"\0\0\x08\x03" + bytes(1000))
    assert "expected 47,040,016 bytes, found 1,004" in failed(tmp_path, *wanted)
    with images.open("r+b") as file:
        file.truncate(47_040_016)
    assert "expected sha256 ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db" in failed(
        tmp_path, *wanted
    )


def test_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place, reason in (
        ("file/runs", "Not a directory"),
        ("file", "it is a file, not a folder"),
        ("/proc/runs", "No such file"),
    ):
        said = refused(tmp_path, *DIGITS, f"output_dir={place}")
        assert said.startswith("output_dir: cannot write ")
        assert reason in said
    assert (tmp_path / "file").read_text() == "mine"


def test_an_output_folder_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    """It was said to exist, by one command, and not to exist, by the other."""
    (tmp_path / "runs").symlink_to("unmounted/runs")
    why = f"{tmp_path / 'runs'} is a link to unmounted/runs, which does not exist"
    assert refused(tmp_path, *DIGITS) == f"output_dir: cannot write {tmp_path / 'runs'}: {why}"
    assert refused(tmp_path, "stage=runs") == f"output_dir=runs: {why}"


def test_an_output_folder_of_which_nothing_can_be_asked(tmp_path: Path) -> None:
    """A name that is too long ended in a traceback, as did a folder that one may not enter."""
    name = "a" * 300
    said = refused(tmp_path, *DIGITS, f"output_dir={name}")
    assert said.startswith(f"output_dir: cannot write {tmp_path / name}/") and said.endswith(": File name too long")
    assert refused(tmp_path, "stage=runs", f"output_dir={name}") == f"output_dir={name}: File name too long"


@pytest.mark.parametrize("size", ["16k", pytest.param("80k", marks=pytest.mark.wide)])
def test_full_disk(size: str, tmp_path: Path) -> None:
    """16k: full before training. 80k: full when the model and its figures are written."""
    disk = tmp_path / "runs"
    disk.mkdir()
    prefix = with_small_disk(size, disk)
    if prefix is None:
        pytest.skip("no user namespace with mounts here")
    script = '"$@"; code=$?; cat runs/*/status.json; exit $code'
    command = [*prefix, "sh", "-c", script, "sh", *COMMAND, *DIGITS, "tracking=none"]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"error: output_dir: cannot write {disk}")
    assert "No space left on device; 0 MB free" in result.stderr
    assert '"FAILED"' in result.stdout or size == "16k"
    assert "RUNNING" not in result.stdout


@pytest.mark.wide
def test_tracking_address_in_the_environment(tmp_path: Path) -> None:
    result = pipeline(tmp_path, *DIGITS, MLFLOW_TRACKING_URI="./mlruns")
    assert message(result).startswith("MLFLOW_TRACKING_URI=./mlruns: not a tracking server; choose sqlite:///<file>, ")
    assert [status(run).state for run in runs(tmp_path)] == ["FAILED"]
    result = pipeline(tmp_path, "-m", "seed=0,1", *DIGITS, MLFLOW_TRACKING_URI="./mlruns")
    assert message(result).startswith("MLFLOW_TRACKING_URI=./mlruns: not a tracking server; choose sqlite:///<file>, ")
    grid = runs(tmp_path)[-1]
    assert (status(grid).name, status(grid).state) == ("grid", "FAILED")
