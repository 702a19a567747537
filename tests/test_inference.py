"""stage=inference: right before timed, the same operations counted on every backend, one message for each mistake."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import in_backend
import numpy as np
import pytest
from command import DIGITS, LONG, TORCH_THEN_WIDE, done, failed, pipeline, refused, runs, write_files
from hypothesis import given
from hypothesis import strategies as st

from pipeline.backends.keras.hlo import flop
from pipeline.backends.shared.step_breakdown import Machine
from pipeline.runs.code import code_hash
from pipeline.runs.fit import Observation, Predictor
from pipeline.runs.receipt import UNSET_THREADS
from pipeline.stages.inference.bench import TAIL, WARM_UP, Bench, Timed
from pipeline.stages.inference.stage import title_of
from pipeline.stages.inference.tables import Found

SHORT = ("stage.rounds=2", "stage.seconds=0.02")
UNITS = 128

OWN = '''
from pipeline.contracts import Model
from pipeline.spec import spec

def net(forward):
    """A linear layer in a module that is called as `forward` has it."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 10)
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x):
            return forward(self, x.flatten(1))

    return Net()

@spec
class Centred(Model):
    """Takes the mean of the batch off, so that an example's outputs depend on the others."""

    def torch(self, shapes):
        return net(lambda module, x: module.layer(x - x.mean(0, keepdim=True)))

@spec
class Counting(Model):
    """Counts its forward passes in a buffer, which its outputs show."""

    def torch(self, shapes):
        def counted(module, x):
            module.passes += 1
            return module.layer(x) / module.passes

        return net(counted)

@spec
class Narrow(Model):
    """Multiplies large batches in bfloat16."""

    def torch(self, shapes):
        import torch

        def narrow(module, x):
            with torch.autocast("cpu", torch.bfloat16, enabled=len(x) > 100):
                return module.layer(x).float()

        return net(narrow)

@spec
class Rows(Model):
    """torch's own encoder, which is one operation where no gradient is asked for, as its attention alone is."""

    def torch(self, shapes):
        import torch

        class Attend(torch.nn.MultiheadAttention):
            def forward(self, x):
                return super().forward(x, x, x, need_weights=False)[0]

        encode = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        attend = Attend(8, 2, batch_first=True)
        return torch.nn.Sequential(torch.nn.Flatten(2), encode, attend, torch.nn.Flatten(), torch.nn.Linear(64, 10))
'''

HALVES = """
import torch
from pipeline.contracts import Model
from pipeline.spec import spec

class Net(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer, self.how, self.calls = torch.nn.Linear(64, 10), how, "."

    def forward(self, x):
        x = x.flatten(1)
        if self.how == "parts":
            return self.by_hand(x)
        if self.how in ("changes", "both"):
            self.calls += "."  # which torch compiles in
            return (self.by_hand if self.how == "both" else self.layer)(x) + 1e-9 * len(self.calls)
        return self.layer(x) * (2 if torch.compiler.is_compiling() else 1)

    @torch.compiler.disable
    def by_hand(self, x):
        return self.layer(x)

@spec
class Halves(Model):
    how: str

    def torch(self, shapes):
        return Net(self.how)
"""

ON_THE_HOST = '''
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Host(Model):
    """Has an operation in Python, which TensorFlow runs and XLA does not."""

    def keras(self, shapes):
        import keras
        import tensorflow as tf

        @keras.saving.register_keras_serializable("mine")
        class Doubled(keras.layers.Layer):
            def call(self, x):
                return x + tf.ensure_shape(tf.numpy_function(lambda a: a, [tf.stop_gradient(x)], x.dtype), x.shape)

            def compute_output_shape(self, shape):
                return shape

        x = keras.Input(shapes.x)
        hidden = Doubled()(keras.layers.Dense(16)(keras.layers.Flatten()(x)))
        return keras.Model(x, keras.layers.Dense(10)(hidden))
'''


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inference")


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    return done(place, *DIGITS, f"model.units=[{UNITS}]")


@pytest.fixture(scope="module")
def saved_text(place: Path) -> Path:
    """A language model of few steps."""
    words = ("stage=transformer", "training.steps=2", "training.validate_every=2", "schedule=constant")
    small = ("model.layers=1", "model.width=32", "model.heads=2", "dataset.context=32", "dataset=python_docs")
    return done(place, *words, *small, "stage.baselines=false", "stage.attention=false")


@pytest.fixture(scope="module")
def saved_loop(place: Path) -> Path:
    """A recurrent net of few steps, of one layer."""
    words = ("stage=transformer", "training.steps=2", "training.validate_every=2", "schedule=constant")
    small = ("model=gru", "model.width=32", "dataset.context=16", "dataset=python_docs")
    return done(place, *words, *small, "stage.baselines=false", "stage.attention=false")


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_the_passes_of_a_saved_run(trained: Path, place: Path, backend: str) -> None:
    sizes = [1, 7, 512]
    words = (f"backend={backend}", f"stage.batches={sizes}".replace(" ", ""))
    run = done(place, "stage=inference", f"run={trained.name}", *words, *SHORT)
    found, then = read(run / "result.json"), read(trained / "result.json")["scalars"]
    scalars, receipt = found["scalars"], read(run / "receipt.json")
    assert scalars["test/accuracy"] == then["test/accuracy"]
    assert scalars["test/loss"] == pytest.approx(then["test/loss"], rel=1e-5)
    for size in sizes:
        rate = size / scalars[f"batch_{size}/latency_s"]
        assert scalars[f"batch_{size}/images_per_s"] == pytest.approx(rate, rel=0.9)
        assert scalars[f"batch_{size}/matmul_share"] > 0
        assert scalars[f"batch_{size}/first_call_s"] > 0
        assert 100 < scalars[f"batch_{size}/peak_memory"] < 10_000  # MiB
    assert scalars["inference/latency_s"] == scalars["batch_1/latency_s"]
    rates = [scalars[f"batch_{size}/images_per_s"] for size in sizes]
    assert scalars["inference/images_per_s"] == max(rates)
    each = 2 * (64 * UNITS + UNITS * 10)
    assert [one["flop"] for one in receipt["passes"]] == [each * size for size in sizes]
    threads = [one["cpu_threads"] for one in receipt["passes"]]
    assert threads == ([1, 1, 1] if backend == "torch" else [UNSET_THREADS] * 3)
    assert [row[0] for row in found["tables"][0]["rows"]] == ["1", "7", "512"]
    assert set(receipt["precision"]["observed"]["matrix_products"]) == {"float32"}
    assert (run / "artifacts/figures/inference.png").is_file()
    assert "the test has 360 examples: larger batches hold some of them twice" in found["notes"]


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_every_backend_counts_the_same_of_a_language_model(saved_text: Path, place: Path, backend: str) -> None:
    """Its attention too, which torch and Keras compute in ways of their own."""
    words = (f"backend={backend}", "stage.batches=[2,64]")
    run = done(place, "stage=inference", f"run={saved_text.name}", *words, *SHORT)
    width, context, vocabulary = 32, 32, read(saved_text / "artifacts/model/card.json")["vocabulary"]
    weights = 12 * width**2 + width * vocabulary
    token = 2 * weights + 4 * context * width  # all positions, also those that a token does not see
    assert [one["flop"] for one in read(run / "receipt.json")["passes"]] == [token * context * n for n in (2, 64)]
    found = read(run / "result.json")
    assert any(note.startswith("a pass reads whole sequences of 32 tokens") for note in found["notes"]), found["notes"]


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_products_in_a_loop_are_counted_or_not_known(place: Path, saved_loop: Path, backend: str) -> None:
    """A loop of XLA's does not say how often it runs; counted once, a pass would have a third of its operations."""
    run = done(place, "stage=inference", f"run={saved_loop.name}", f"backend={backend}", "stage.batches=[2]", *SHORT)
    width, context, vocabulary = 32, 16, read(saved_loop / "artifacts/model/card.json")["vocabulary"]
    every = 2 * 2 * context * (2 * 3 * width**2 + width * vocabulary)
    (found,) = read(run / "receipt.json")["passes"]
    assert found["flop"] == (every if backend == "torch" else None)
    assert ("batch_2/matmul_share" in read(run / "result.json")["scalars"]) == (backend == "torch")


TWICE = """HloModule it

_layer.1 {
  x = f32[2,3]{1,0} parameter(0)
  w = f32[3,3]{1,0} parameter(1)
  ROOT dot.1 = f32[2,3]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY main.2 {
  x.1 = f32[2,3]{1,0} parameter(0)
  w.1 = f32[3,3]{1,0} parameter(1)
  call.1 = f32[2,3]{1,0} call(x.1, w.1), to_apply=_layer.1
  ROOT call.2 = f32[2,3]{1,0} call(call.1, w.1), to_apply=_layer.1
}
"""


def test_what_a_program_calls_twice_counts_twice() -> None:
    assert flop(TWICE) == 2 * (2 * 2 * 3 * 3)
    assert flop(TWICE.replace("dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "add(x, x)")) is None


@pytest.mark.wide
def test_a_model_that_xla_cannot_compile_has_no_flop(tmp_path: Path) -> None:
    write_files(tmp_path, {"mine.py": ON_THE_HOST, "own/model/host.yaml": "_target_: mine.Host\n"})
    variables = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(tmp_path)}
    words = ("model=host", "backend=tensorflow", "backend.xla=false", "--config-dir", "own")
    done(tmp_path, *DIGITS, *words, **variables)
    run = done(tmp_path, "stage=inference", "run=latest", "stage.batches=[2]", *SHORT, **variables)
    (found,) = read(run / "receipt.json")["passes"]
    assert found["flop"] is None
    assert found["calls"] > 0


def test_a_pass_in_another_precision(trained: Path, place: Path) -> None:
    words = ("precision=mixed", "device=cpu", "stage.batches=[4]")
    run = done(place, "stage=inference", f"run={trained.name}", *words, *SHORT)
    assert set(read(run / "receipt.json")["precision"]["observed"]["matrix_products"]) == {"bfloat16"}


def test_a_grid_of_passes(trained: Path, place: Path) -> None:
    words = ("-m", "precision=fp32,fp64", "stage.batches=[2]", "output_dir=grid")
    result = pipeline(place, "stage=inference", f"run={trained}", *words, *SHORT)
    assert result.returncode == 0, result.stderr
    assert "inference/latency_s (s) over the grid" in result.stdout
    for cell in (place / "grid").glob("*inference*"):
        scalars = read(cell / "result.json")["scalars"]
        (memory,) = (name for name in scalars if "memory" in name)
        assert memory == "batch_2/cell_peak_memory"  # lower than that of a command, which has the imports in it
        assert 50 < scalars[memory] < 2000  # MiB


@pytest.mark.wide
def test_compiled_passes_beside_those_that_are_not(trained: Path, place: Path) -> None:
    """Each size is compiled with its first call, and no later one; the test set by the same program."""
    words = ("-m", "backend.compile=false,true", "stage.batches=[1,7,512]", "output_dir=compiled")
    result = pipeline(place, "stage=inference", f"run={trained}", *words, *SHORT)
    assert result.returncode == 0, result.stderr
    cells = {read(one / "receipt.json")["compiled_by"]: one for one in (place / "compiled").glob("*-inference-*")}
    plain, compiled = (read(cells[how] / "result.json")["scalars"] for how in (None, "torch.compile"))
    assert compiled["test/loss"] == pytest.approx(plain["test/loss"], rel=1e-5)
    assert compiled["test/accuracy"] == plain["test/accuracy"]
    assert compiled["batch_1/first_call_s"] > 100 * compiled["batch_1/latency_s"]
    before, after = (read(cells[how] / "receipt.json") for how in (None, "torch.compile"))
    assert [one["cpu_threads"] for one in before["passes"]] == [one["cpu_threads"] for one in after["passes"]]
    assert [one["flop"] for one in before["passes"]] == [one["flop"] for one in after["passes"]]
    seen = before["precision"]["observed"]
    assert after["precision"]["observed"] == seen | {"how": f"{seen['how']}; the compiled passes are not observed"}
    found = read(cells["torch.compile"] / "result.json")
    assert ["passes", "compiled by torch.compile"] in found["table"]
    assert not [note for note in found["notes"] if "compile" in note]


@pytest.mark.wide
def test_a_size_is_compiled_with_its_first_pass_and_never_again() -> None:
    """Of batches of one, and of all others; and of each number of CPU threads."""
    import torch

    from pipeline.backends.torch.compiled_pass import CompiledPass
    from pipeline.backends.torch.compilers import compilations

    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
    made, compiled, count = CompiledPass(net.eval()), [], 0
    with torch.inference_mode():
        for size in (1, 2, 16, 5, 100, 1, 2, 100, 16):
            x = torch.randn(size, 1, 8, 8)
            torch.testing.assert_close(made(x), net(x))
            compiled += [size] if compilations() > count else []
            count = compilations()
    assert compiled[:2] == [1, 2]
    assert len(compiled) <= 3, compiled
    assert len(set(compiled)) == len(compiled), compiled
    assert made.notes == []


@pytest.mark.wide
def test_passes_by_xla(trained: Path, place: Path) -> None:
    words = ("backend=tensorflow", "backend.xla=true", "precision=mixed", "device=cpu", "stage.batches=[1,16]")
    run = done(place, "stage=inference", f"run={trained.name}", *words, *SHORT)
    receipt = read(run / "receipt.json")
    assert receipt["compiled_by"] == "XLA"
    assert set(receipt["precision"]["observed"]["matrix_products"]) == {"bfloat16"}
    assert receipt["precision"]["observed"]["matrix_products_after_compilation"] == {"float32": 2}
    assert ["passes", "compiled by XLA"] in read(run / "result.json")["table"]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("parts", "the pass is compiled in pieces, not as a whole: Skip inlining `torch.compiler.disable()`d function"),
        ("changes", "the pass is compiled more than once, because this has changed: "),
        ("both", "the pass is compiled in pieces, not as a whole: "),
    ],
)
def test_a_model_that_is_not_compiled_once_and_as_a_whole(tmp_path: Path, how: str, said: str) -> None:
    ended, notes = halves(tmp_path, how)
    assert ended.returncode == 0, ended.stderr
    assert notes[0].startswith(f"backend.compile: {said}")
    (run,) = (tmp_path / "runs").glob("*inference*")
    receipt = read(run / "receipt.json")
    if how != "parts":
        assert any("the model runs uncompiled: torch has reached its limit of recompilations" in one for one in notes)
    assert receipt["compiled_by"] == ("torch.compile" if how == "parts" else None)


@pytest.mark.parametrize(("by", "backend"), [(None, "torch"), ("torch.compile", "torch compiled by torch.compile")])
def test_the_figure_says_that_its_passes_are_compiled(by: str | None, backend: str) -> None:
    assert title_of("a run", "torch", by, "fp32", "a CPU") == f"a run: {backend}, fp32, on a CPU"


BRANCHED = """
import torch
from pipeline.backends.torch.compiled_pass import CompiledPass

class Net(torch.nn.Module):
    def forward(self, x):
        x = 2 * x
        if BRANCH:
            return torch.relu(x)
        return torch.tanh(x)

made = CompiledPass(Net().eval())
with torch.inference_mode():
    for sign in (1, 1, -1, 1):
        made(sign * torch.ones(2, 3))
print("\\n".join(made.notes))
"""


@pytest.mark.wide
@pytest.mark.parametrize(
    ("branch", "whole", "anew"),
    [
        ("x.mean() > 0", "Data-dependent branching, in forward", "a part of it runs for the first time"),
        ("bool((x > 0).any())", "Could not guard on data-dependent expression ", "this has changed: ___stack0 == True"),
    ],
)
def test_a_branch_on_the_data_is_in_the_notes_alone(tmp_path: Path, branch: str, whole: str, anew: str) -> None:
    """Each with its reason, and not in the log of torch as well."""
    write_files(tmp_path, {"branched.py": BRANCHED.replace("BRANCH", branch)})
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import branched"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, check=True)
    pieces, again = ended.stdout.splitlines()
    assert pieces.startswith(f"backend.compile: the pass is compiled in pieces, not as a whole: {whole}")
    assert "branched.py, line 8)" in pieces
    assert again.startswith(f"backend.compile: the pass is compiled more than once, because {anew}")
    assert ended.stderr == ""


@pytest.mark.wide
def test_a_compiled_pass_that_is_another_is_not_timed(tmp_path: Path) -> None:
    """All compiled passes agree, whatever their batches: only one that is not compiled shows it."""
    ended, _ = halves(tmp_path, "differs")
    assert ended.returncode == 1
    assert "batches of 2: outputs differ by up to" in ended.stderr
    assert "from those of the same examples in passes that are not compiled, more than" in ended.stderr


def halves(place: Path, how: str) -> tuple[Any, list[str]]:
    """A saved model's compiled passes, and what the result notes."""
    write_files(place, {"mine.py": HALVES, "own/model/halves.yaml": f"_target_: mine.Halves\nhow: {how}\n"})
    variables = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(place)}
    done(place, *DIGITS, "model=halves", "--config-dir", "own", **variables)
    words = ("stage=inference", "run=latest", "backend.compile=true", "stage.batches=[2,5]")
    ended = pipeline(place, *words, *SHORT, **variables)
    (run,) = (place / "runs").glob("*inference*")
    return ended, read(run / "result.json")["notes"]


def test_that_the_steps_were_compiled_says_nothing_of_passes(tmp_path: Path) -> None:
    """Nor are they refused without a compiler, until the user asks for it."""
    few = ("dataset=digits", "model=linear", "training.epochs=1", "training.batch_size=32", "training.steps=1")
    saved = done(tmp_path, *few, "backend.compile=true")
    run = done(tmp_path, "stage=inference", f"run={saved.name}", "stage.batches=[2]", *SHORT, CXX="none-here")
    assert read(run / "receipt.json")["compiled_by"] is None
    said = f"run={saved.name}: backend.compile=true compiled its training steps; give it again to compile the passes"
    assert said in read(run / "result.json")["notes"]
    words = ("stage=inference", f"run={saved.name}", "backend.compile=true", "device=cpu")
    assert refused(tmp_path, *words, CXX="none-here").startswith(
        "backend.compile=true: needs a compiler (none-here on the PATH); install one"
    )


@pytest.mark.wide
def test_a_run_of_an_earlier_version_is_rerun_as_it_ran(trained: Path, place: Path) -> None:
    """It kept backend.compile of the training, by which no pass was compiled, and its receipt does not say so."""
    run = done(place, "stage=inference", f"run={trained}", "stage.batches=[2]", *SHORT)
    config = (run / "config.yaml").read_text()
    assert "compile: false" in config
    (run / "config.yaml").write_text(config.replace("compile: false", "compile: true"))
    receipt = read(run / "receipt.json")
    del receipt["compiled_by"]
    (run / "receipt.json").write_text(json.dumps(receipt))
    before = set(runs(place))
    ended = pipeline(place, "stage=rerun", f"run={run.name}", CXX="none-here")
    assert ended.returncode == 0, ended.stderr
    (again,) = set(runs(place)) - before
    assert read(again / "receipt.json")["compiled_by"] is None


@pytest.mark.wide
def test_a_compiler_that_is_switched_off(trained: Path, place: Path) -> None:
    words = ("stage=inference", f"run={trained.name}", "backend.compile=true")
    ended = pipeline(place, *words, TORCHDYNAMO_DISABLE="1")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "error: backend.compile=true: torch compiled nothing of this pass (TORCHDYNAMO_DISABLE=1 is set); "
        "use backend.compile=false"
    )


WRITES = """
import keras
import tensorflow as tf

from pipeline.contracts import Model
from pipeline.spec import spec


class Written(keras.layers.Layer):
    def call(self, x):
        return x + 0 * tf.strings.to_number(tf.strings.as_string(x))


@spec
class Writes(Model):
    def keras(self, shapes):
        layers = [keras.Input(shapes.x), keras.layers.Flatten(), Written(), keras.layers.Dense(shapes.outputs[0])]
        return keras.Sequential(layers)
"""


@pytest.mark.wide
def test_an_operation_that_xla_lacks_is_one_message(tmp_path: Path) -> None:
    """TensorFlow's own is a page, which ends in how its developers find out more."""
    write_files(tmp_path, {"mine.py": WRITES, "own/model/writes.yaml": "_target_: mine.Writes\n"})
    variables = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(tmp_path)}
    train = (*DIGITS, "model=writes", "backend=tensorflow", "--config-dir", "own")
    done(tmp_path, *train, "backend.xla=false", **variables)
    infer = ("stage=inference", "run=latest", "stage.batches=[2]", *SHORT)
    for words in (train, (*train, "loader=tfdata"), (*infer, "backend.xla=true")):
        ended = pipeline(tmp_path, *words, **variables)
        assert ended.returncode == 1
        said = ended.stderr.splitlines()[-1].replace(", in call (mine.py, line 11)", "")  # TensorFlow may leave it out
        assert said == ("error: XLA cannot compile TensorFlow's operation AsString; backend.xla=false runs without XLA")
    done(tmp_path, *infer, "backend.xla=false", **variables)


def test_a_model_that_mixes_the_examples_of_a_batch_is_not_timed(tmp_path: Path) -> None:
    write_files(tmp_path, {"mine.py": OWN, "own/model/centred.yaml": "_target_: mine.Centred\n"})
    variables = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(tmp_path)}
    done(tmp_path, *DIGITS, "model=centred", "--config-dir", "own", **variables)
    ended = pipeline(tmp_path, "stage=inference", "run=latest", "stage.batches=[1,360]", *SHORT, **variables)
    assert ended.returncode == 1
    assert "batches of 1: outputs differ by up to" in ended.stderr
    assert "batches of 360" not in ended.stderr
    (run,) = (tmp_path / "runs").glob("*inference*")
    found = read(run / "result.json")
    assert [row[0] for row in found["tables"][0]["rows"]] == ["360"]
    assert "batch_1/latency_s" not in found["scalars"]


@pytest.mark.wide
def test_choosing_the_threads_leaves_the_saved_buffers(tmp_path: Path) -> None:
    """A pass by which they are chosen had changed them before the first batch."""
    write_files(tmp_path, {"mine.py": OWN, "own/model/counting.yaml": "_target_: mine.Counting\n"})
    variables = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(tmp_path)}
    saved = done(tmp_path, *DIGITS, "model=counting", "--config-dir", "own", **variables)
    losses = [
        read(done(tmp_path, "stage=evaluate", f"run={saved.name}", *words, **variables) / "result.json")["scalars"]
        for words in ((), ("backend.threads=1",))
    ]
    assert losses[0]["test/loss"] == pytest.approx(losses[1]["test/loss"], rel=1e-6)


@pytest.mark.wide
def test_the_largest_batch_is_observed(tmp_path: Path) -> None:
    """The smallest said that all were multiplied in float32."""
    write_files(tmp_path, {"mine.py": OWN, "own/model/narrow.yaml": "_target_: mine.Narrow\n"})
    variables = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(tmp_path)}
    done(tmp_path, *DIGITS, "model=narrow", "--config-dir", "own", **variables)
    ended = pipeline(tmp_path, "stage=inference", "run=latest", "stage.batches=[1,320]", *SHORT, **variables)
    assert ended.returncode == 1
    assert "precision=fp32 asks for float32 but the matrix products ran in bfloat16 (1)" in ended.stderr


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_what_measures_a_pass_decides_its_result(backend: str) -> None:
    """Also the bare matmul of which its rate is a share: after an edit of it a grid has no result yet."""
    found = code_hash.modules(in_backend.experiment(backend, stage="inference"))
    probe = in_backend.experiment(backend).backend.probe
    assert {"pipeline.stages.inference.bench", "pipeline.backends.shared.step_breakdown", probe} <= set(found)


def test_products_of_torchs_own_encoder_are_seen_and_counted(tmp_path: Path) -> None:
    """Only those of the layer behind it were: a fourteenth of the FLOP."""
    write_files(tmp_path, {"mine.py": OWN, "own/model/rows.yaml": "_target_: mine.Rows\n"})
    variables = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(tmp_path)}
    done(tmp_path, *DIGITS, "model=rows", "--config-dir", "own", **variables)
    run = done(tmp_path, "stage=inference", "run=latest", "stage.batches=[1,4]", *SHORT, **variables)
    receipt = read(run / "receipt.json")
    rows, width, hidden = 8, 8, 16
    attention = rows * 2 * 4 * width**2 + 4 * rows**2 * width
    flop = 2 * attention + rows * 2 * 2 * width * hidden + 2 * 64 * 10
    assert [one["flop"] for one in receipt["passes"]] == [flop, 4 * flop]
    assert receipt["precision"]["observed"]["matrix_products"] == {"float32": 3}


def test_operations_are_counted_by_a_torch_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose layers have no name there: it was a traceback."""
    import torch

    from pipeline.backends.torch.flop import flop as counted

    x, layer = torch.ones(3, 5), torch.nn.Linear(5, 7)
    monkeypatch.setattr(torch.ops, "mkldnn", torch._ops._OpNamespace("no_such_library"))
    assert counted(lambda: layer(x)) == 2 * 3 * 5 * 7


def test_a_share_of_more_than_the_whole_is_explained() -> None:
    limit = Machine(1e9, 1e9, 64)
    for count, said in ((1e5, False), (3e6, True)):
        found = Found([Timed(1, 1.0, {}, count, [[1e-3]])], "images", 1, (limit, limit))
        assert any(note.startswith("of a matmul above 100 %: ") for note in found.notes()) == said


REFUSED = {
    "stage.batches=[]": "stage.batches=[]: give one size at least, as 'stage.batches=[1,16,256]'",
    "stage.batches=[4,1,4]": "stage.batches=[4,1,4]: 4 is there twice",
    "stage.batches=[0]": "stage.batches.0=0: should be greater than 0",
    "stage.seconds=0": "stage.seconds=0: should be greater than 0",
}


@pytest.mark.parametrize("word", REFUSED)
def test_bad_input(trained: Path, place: Path, word: str) -> None:
    assert refused(place, "stage=inference", f"run={trained.name}", word) == REFUSED[word]


def test_a_batch_beyond_memory(trained: Path, place: Path) -> None:
    said = failed(place, "stage=inference", f"run={trained.name}", "stage.batches=[2000000000]")
    assert said.startswith("out of memory: ")
    assert said.endswith("use smaller stage.batches, a smaller training.evaluation_batch_size or precision")


class Sums(Predictor):
    """A model that takes a millisecond, and whose first outputs may be wrong by `by`."""

    def __init__(self, by: float = 0.0) -> None:
        self.by, self.sizes = by, list[int]()

    def settings(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def forward(self, x: np.ndarray) -> np.ndarray:
        time.sleep(0.001)
        self.sizes.append(len(x))
        found: np.ndarray = x.sum(axis=1, keepdims=True) + self.by
        return found.astype(np.float32)

    def observe(self, x: np.ndarray) -> Observation:  # noqa: ARG002
        return Observation(how="")

    def flop(self, x: np.ndarray) -> float | None:  # noqa: ARG002
        return None

    def cpu_threads(self, batch: int) -> int:
        return batch

    def peak_memory(self) -> dict[str, int]:
        return {"process_bytes": len(self.sizes)}


X = np.random.default_rng(0).normal(size=(8, 3))


def test_sizes_are_begun_in_rising_order_and_measured_in_whole_batches() -> None:
    model = Sums()
    bench = Bench(model, X, (3, 1))
    assert [one.batch for one in bench.found] == [1, 3] == model.sizes
    bench.verify(X.sum(axis=1, keepdims=True), "fp32")
    bench.warm_up()
    bench.measure(bench.found[1], seconds=0.01)
    assert model.sizes[2:8] == [1] * WARM_UP + [3] * WARM_UP
    assert set(model.sizes[8:]) == {3}
    (taken,) = bench.found[1].rounds
    assert len(taken) > 1
    assert all(seconds >= 0.001 for seconds in taken)
    bench.measure(bench.found[0], seconds=1e-9)
    assert len(bench.found[0].calls) == 1


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "mixed_fp16", "bf16"])
def test_wrong_outputs_are_found(precision: str) -> None:
    expected = X.sum(axis=1, keepdims=True)
    for by, right in ((0.0, True), (np.nan, False), (float(np.max(np.abs(expected))) / 4, False)):
        bench = Bench(Sums(by), X, (2, 4))
        bench.verify(expected.astype(np.float32).astype(np.float64), precision)
        assert [one.fault is None for one in bench.found] == [right, right]


def test_a_fault_says_beside_which_passes() -> None:
    """The first that was found: a later one may follow from it."""
    bench, expected = Bench(Sums(9.0), X, (2,)), X.sum(axis=1, keepdims=True)
    bench.verify(expected + 9.0, "fp32")
    assert bench.right
    bench.verify(expected, "fp32", where="in passes that are not compiled")
    bench.verify(expected, "fp32")
    assert "those of the same examples in passes that are not compiled, more than" in str(bench.found[0].fault)


def test_the_narrowest_layer_decides_what_rounding_explains() -> None:
    expected = X.sum(axis=1, keepdims=True)
    for layers, right in (((), False), ((None, "bfloat16"), True)):
        bench = Bench(Sums(float(np.max(np.abs(expected))) / 1000), X, (2, 4))
        bench.verify(expected, "fp32", layers)
        assert [one.fault is None for one in bench.found] == [right, right]


@given(st.lists(st.lists(st.floats(1e-6, 10), min_size=1, max_size=80), min_size=1, max_size=4))
def test_times_of_calls(rounds: list[list[float]]) -> None:
    one = Timed(4, 1.0, {}, None, rounds)
    every = sorted(seconds for taken in rounds for seconds in taken)
    assert every[0] <= one.latency_s <= every[-1]
    assert (one.tail_s is None) == (len(every) < TAIL)
    assert one.tail_s is None or one.latency_s <= one.tail_s <= every[-1]
    assert all(
        math.isclose(rate * math.fsum(taken), 4 * len(taken))
        for rate, taken in zip(one.examples_per_s, rounds, strict=True)
    )
