"""The usual slips in a part of the user's own: each is one message that names the part and what it has to give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import done, pipeline, refused, write_files

from pipeline.errors import UserError
from pipeline.kernels.cuda.source import CudaSource
from pipeline.spec import build, spec

MINE = """
from pipeline.contracts import Loader, Loss, Optimizer, Profiler, Stage
from pipeline.datasets.loading import load_data
from pipeline.profilers import Tool
from pipeline.runs.result import Result, Table, count
from pipeline.spec import spec


@spec
class Forgotten(Optimizer):
    learning_rate: float = 0.1

    def slots(self):
        return 0

    def torch(self, parameters):
        pass

    def keras(self):
        pass


@spec
class Unmade(Optimizer):
    learning_rate: float = 0.1

    def slots(self):
        return 0

    def torch(self, parameters):
        import torch

        return torch.optim.SGD

    def keras(self):
        import keras

        return keras.optimizers.SGD


class Squares(Loss):
    def numpy(self, outputs, targets):
        return float((outputs**2).mean())


@spec
class Severed(Squares):
    def torch(self):
        return lambda outputs, targets: (outputs.detach() ** 2).mean()


@spec
class Scaled(Squares):
    def torch(self):
        return lambda outputs, targets: outputs.mul_(1.0).square().mean()


@spec
class Uncalled(Squares):
    def torch(self):
        import torch

        return torch.nn.CrossEntropyLoss

    def keras(self):
        import keras

        return keras.losses.MeanSquaredError


@spec
class Watch(Profiler):
    backends = ("torch",)
    skip: int = 1
    steps: int = 2

    def tool(self, experiment, run):
        return Tool


@spec
class Idle(Loader):
    backends = ("torch",)
    steps_per_execution: int = 8

    def stream(self, data, dtype, batch_size, seed, start=(0, 0)):
        pass


@spec
class Bare(Loader):
    backends = ("torch",)
    steps_per_execution: int = 8


@spec
class Empty(Stage):
    def run(self, experiment, resolved, run):
        pass


@spec
class Plain(Stage):
    def run(self, experiment, resolved, run):
        return {"examples": 1}


@spec
class Numbers(Stage):
    def run(self, experiment, resolved, run):
        return Result((count("examples", 1),), table=(("examples", 1),))


@spec
class Columns(Stage):
    def run(self, experiment, resolved, run):
        return Result((count("examples", 1),), tables=(Table("sizes", ("part", "size"), (("train", 1),)),))


@spec
class Misread(Stage):
    reads = ("datset",)

    def run(self, experiment, resolved, run):
        return Result((count("examples", 1),))


@spec
class Sizes(Stage):
    reads = ("dataset", "seed")

    def run(self, experiment, resolved, run):
        found = len(load_data(experiment).train)
        return Result((count("examples", found),), table=(("examples", str(found)),))
"""
CHOICES = {
    "optimizer": ("Forgotten", "Unmade"),
    "loss": ("Severed", "Scaled", "Uncalled"),
    "profiler": ("Watch",),
    "loader": ("Idle", "Bare"),
    "stage": ("Empty", "Plain", "Numbers", "Columns", "Misread", "Sizes"),
}
WORDS = ("--config-dir", "conf", "dataset=digits", "training.epochs=1", "tracking=none")
KNOWN = {"PIPELINE_MODULES": "mine", "PYTHONPATH": "."}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    choices = {
        f"conf/{group}/{name.lower()}.yaml": f"_target_: mine.{name}\n"
        for group, names in CHOICES.items()
        for name in names
    }
    write_files(tmp_path, {"mine.py": MINE, **choices})
    return tmp_path


REFUSED = {
    "optimizer=forgotten": "optimizer=forgotten: torch() gives None; give a torch.optim.Optimizer",
    "optimizer=unmade": "optimizer=unmade: torch() gives a class; give a torch.optim.Optimizer",
    "loss=severed": "loss=severed with dataset=digits: torch() fails on random outputs: ValueError: gives a number "
    "without a gradient; compute it from the outputs in torch alone, without detach() or item()",
    "loss=uncalled": "loss=uncalled: torch() gives a class; give a function of outputs and targets, or an instance",
    "loader=bare": "loader._target_=mine.Bare: has no stream(data, dtype, batch_size, seed, start)",
    "stage=misread": "stage=misread: reads=datset: no such choice (did you mean dataset?); choose from ",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_slip_is_refused_before_the_run(mine: Path, word: str) -> None:
    assert refused(mine, *WORDS, word, **KNOWN).startswith(REFUSED[word])


def test_a_loss_that_changes_the_outputs_in_their_place_is_taken(mine: Path) -> None:
    """As a training does: a net's outputs are no leaves of the graph."""
    done(mine, *WORDS, "loss=scaled", **KNOWN)


FAILED = {
    "profiler=watch": "profiler=watch: tool() gives a class; give a pipeline.profilers.Tool, or None",
    "loader=idle": "loader=idle: stream() gives None; give what can be iterated over, batches (x, y)",
    "stage=empty": "stage=empty: run() gives None; give a pipeline.runs.result.Result",
    "stage=plain": "stage=plain: run() gives a dict; give a pipeline.runs.result.Result",
    "stage=numbers": "TypeError: a result's table: ('examples', 1): give a row of texts, in run (mine.py, line ",
    "stage=columns": "TypeError: table 'sizes': ('train', 1): give a row of texts, in run (mine.py, line ",
}


@pytest.mark.parametrize("word", FAILED)
def test_a_slip_ends_the_run_in_one_message(mine: Path, word: str) -> None:
    result = pipeline(mine, *WORDS, word, **KNOWN)
    assert result.returncode in (1, 2) and "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"error: {FAILED[word]}")


@pytest.mark.parametrize("backend", ["jax", pytest.param("tensorflow", marks=pytest.mark.wide)])
@pytest.mark.parametrize("name", ["forgotten", "unmade"])
def test_an_optimizer_of_keras_that_is_none(mine: Path, backend: str, name: str) -> None:
    result = pipeline(mine, *WORDS, f"backend={backend}", f"optimizer={name}", **KNOWN)
    made = "None" if name == "forgotten" else "a class"
    said = f"error: optimizer={name}: keras() gives {made}; give a keras.optimizers.Optimizer"
    assert result.stderr.splitlines()[-1] == said


def test_a_stage_that_writes_no_receipt_has_one(mine: Path) -> None:
    """Its runs had none, and so a grid ran every cell again, without a word."""
    run = done(mine, *WORDS, "stage=sizes", **KNOWN)
    receipt = json.loads((run / "receipt.json").read_text())
    assert receipt["config_sha256"] and receipt["code_sha256"] and receipt["wall_time_s"] > 0
    grid = (*WORDS, "-m", "stage=sizes", "seed=0,1")
    assert "2 cells: 1 to run, 1 finished before" in pipeline(mine, *grid, **KNOWN).stderr
    assert "2 cells: 2 finished before" in pipeline(mine, *grid, **KNOWN).stderr


def test_a_module_that_is_not_there_is_named_with_the_line_that_imports_it(mine: Path) -> None:
    write_files(mine, {"mine.py": "import helper\n", "helper.py": "\nimport nowhere_to_be_found\n"})
    said = refused(mine, *WORDS, "stage=sizes", **KNOWN)
    assert (
        said == "stage._target_=mine.Sizes: no module nowhere_to_be_found on the path, in <module> (helper.py, line 2)"
    )


@spec
class Unbounded(CudaSource):
    """A kernel of a GPU that does not say how many registers it may take."""

    dtypes = ("fp32",)
    sources = ("naive.cu",)
    entry = "gemm"
    block = (256, 1, 1)
    tile = (16, 16)
    architectures = {"fp32": 75}  # noqa: RUF012


def test_what_a_base_class_asks_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was an AttributeError, when the kernel was compiled."""
    from pipeline.contracts.kernels import Kernel

    monkeypatch.setenv("PIPELINE_MODULES", __name__)
    monkeypatch.setattr("pipeline.allowed._taken", None)
    with pytest.raises(UserError) as caught:
        build({"_target_": f"{__name__}.Unbounded"}, "stage.kernels", (Kernel,))
    said = "has no registers; pipeline.kernels.cuda.function.CudaFunction says what it is"
    assert str(caught.value) == f"stage.kernels._target_={__name__}.Unbounded: {said}"
