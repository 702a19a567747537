"""stage=export: every format is read back by a process without this package; what a format cannot hold is named."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import DIGITS, contents, done, environment, refused, write_files

import pipeline
from pipeline.backends.shared.exported import READER, Exported
from pipeline.backends.torch.export import WRITERS
from pipeline.datasets.normalisation import Normalisation
from pipeline.errors import RunError, UserError
from pipeline.runs.json_files import read_json
from pipeline.stages.export import WRITTEN_BY, Export, compare, said_of_rounding
from pipeline.stages.export_read import read_back, write_array

TORCH = ("safetensors", *(pytest.param(name, marks=pytest.mark.wide) for name in ("torch_export", "torch", "onnx")))
KERAS = [(name, form) for name in ("jax", "tensorflow") for form in WRITTEN_BY[name]]


@pytest.fixture(scope="module")
def torch_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolutional net with batches of channels-last images, normalised, trained narrowly."""
    words = (*DIGITS[:2], "dataset.normalise=true", "training.epochs=1", "tracking=none", "model=cnn")
    return done(tmp_path_factory.mktemp("torch"), *words, "precision=mixed_bf16")


def exported(run: Path, form: str, *arguments: str) -> dict[str, Any]:
    """The receipt's account of an export of the run; its files are there, with these hashes."""
    made = done(run.parents[1], "stage=export", f"run={run.name}", f"stage.format={form}", "tracking=none", *arguments)
    found: dict[str, Any] = read_json(made / "receipt.json")["export"]
    notes, of_torch = read_json(made / "result.json")["notes"], "backend=" not in " ".join(arguments)
    assert any(note.startswith("x is (N, 8, 8, 1): rows, columns, channels") for note in notes) == of_torch
    assert any("flattens channels first" in note for note in notes) == (of_torch and form in ("torch", "safetensors"))
    assert found["format"] == form
    assert all((made / "artifacts" / "export" / form / name).is_file() for name in found["files"])
    return found


@pytest.mark.parametrize("form", TORCH)
def test_a_torch_model_is_read_without_this_package(torch_run: Path, form: str) -> None:
    """Compared on 64 test examples and on one alone, which it normalises itself; the dtype is float32, whatever the run
    computed in.
    """
    found = exported(torch_run, form)
    assert "normalisation.json" in found["files"]
    assert found["computes_in"] == ["float32"]
    assert 0 <= found["largest_difference"] < 1e-4


def test_a_torchscript_file_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    """Its debug files did, which are compressed."""
    net, example = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval(), torch.ones(2, 4)
    WRITERS["torch"](net, example, tmp_path)
    with zipfile.ZipFile(tmp_path / "model.torchscript.pt") as records:
        inside = b"".join(records.read(one) for one in records.namelist())
    places = [str(place).encode() for place in (sys.prefix, Path(pipeline.__file__).parent, Path(__file__).parent)]
    assert not [place for place in places if place in inside]
    torch.testing.assert_close(torch.jit.load(tmp_path / "model.torchscript.pt")(example), net(example))
    assert {one.name for one in tmp_path.iterdir()} == {"state_dict.pt", "model.torchscript.pt"}


@pytest.mark.wide
@pytest.mark.parametrize("form", ["torch_export", "onnx"])
def test_a_test_set_of_one_example_is_enough(tmp_path: Path, form: str) -> None:
    """A batch of one was taken for a size that is fixed, and the message blamed an operation of the model."""
    generator = np.random.default_rng(0)
    x, y = generator.random((41, 4)).astype(np.float32), np.arange(41) % 3
    np.savez(tmp_path / "one.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    words = ("stage=train", "dataset=npz", "dataset.file=one.npz", "model=linear", "training.epochs=1", "tracking=none")
    run = done(tmp_path, *words, "dataset.validation=0.2")
    made = done(tmp_path, "stage=export", f"run={run.name}", f"stage.format={form}", "tracking=none")
    assert read_json(made / "receipt.json")["export"]["largest_difference"] < 1e-5
    # Where the code lies on this machine is nobody's business, and would make another file of it on each.
    places = [str(place).encode() for place in (sys.prefix, Path(pipeline.__file__).parent)]
    files = [one.read_bytes() for one in (made / "artifacts/export" / form).iterdir()]
    assert files and not any(place in file for place in places for file in files)


@pytest.mark.wide
@pytest.mark.parametrize(("backend", "form"), KERAS)
def test_a_keras_model_is_read_without_this_package(keras_runs: dict[str, Path], backend: str, form: str) -> None:
    """Its convolutions and its gelu are classes and functions of ours: Keras's own file gets Keras's in their place."""
    found = exported(keras_runs[backend], form, f"backend={backend}")
    assert found["computes_in"] == ["float32"]
    assert 0 <= found["largest_difference"] < 1e-4


@pytest.fixture(scope="module")
def keras_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keras")
    arguments = (*DIGITS[:2], "training.epochs=1", "tracking=none", "model=cnn", "model.activation=gelu")
    run = done(folder, "backend=jax", *arguments)
    return {"jax": run, "tensorflow": run}


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_layers_in_bfloat16_are_read_back(tmp_path: Path, backend: str) -> None:
    """NumPy has no name for it. ONNX Runtime has no product in it on a CPU, and the run says so."""
    words = (*DIGITS[:2], "training.epochs=1", "model.layer_dtypes=[bfloat16,null]", f"backend={backend}")
    run = done(tmp_path, *words)
    for form in set(WRITTEN_BY[backend]) - {"onnx", "onnx_int8"}:
        made = done(tmp_path, "stage=export", f"run={run.name}", f"stage.format={form}")
        assert read_json(made / "receipt.json")["export"]["largest_difference"] < 0.1


@pytest.mark.wide
def test_a_double_precision_model_computes_in_double_precision(tmp_path: Path) -> None:
    run = done(tmp_path, *DIGITS[:2], "training.epochs=1", "tracking=none", "precision=fp64")
    for form in ("torch", "onnx"):
        found = exported(run, form)
        assert found["computes_in"] == ["float64"]
        assert found["largest_difference"] < 1e-12


def test_what_cannot_be_exported_is_refused_before_the_run(torch_run: Path, tmp_path: Path) -> None:
    folder, run = torch_run.parents[1], f"run={torch_run.name}"

    def said(*arguments: str) -> str:
        return refused(folder, "stage=export", run, *arguments)

    assert (
        "stage.format=keras with backend=torch: it writes safetensors, torch, torch_export, onnx, onnx_int8; "
        "backend=tensorflow" in said("stage.format=keras")
    )
    assert "stage.format=saved_model with backend=jax: it writes safetensors, keras; backend=tensorflow writes" in (
        said("stage.format=saved_model", "backend=jax")
    )
    assert "stage.format=h5: no such choice; choose from keras, onnx, onnx_int8, safetensors" in said("stage.format=h5")
    assert f"stage.path={tmp_path}: exists already" in said(f"stage.path={tmp_path}")
    assert "precision=bf16 with stage=export: what is written computes in fp32" in said("precision=bf16")


def test_an_export_lies_where_it_is_wanted(torch_run: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "model"
    made = done(torch_run.parents[1], "stage=export", f"run={torch_run.name}", f"stage.path={target}", "tracking=none")
    assert {path.name for path in target.iterdir()} == {"model.safetensors", "normalisation.json"}
    table = dict(read_json(made / "result.json")["table"])
    assert table["read back"] == "without this package: the tensors are the same"  # it said: differ by 0.0e+00
    assert not list((made / "artifacts").rglob("*.safetensors"))


@pytest.mark.wide
def test_onnxruntime_sends_nobody_what_it_read(
    torch_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would send its maker the name and hashes of a model, for which it keeps files in the user's folder."""
    words = ("stage=export", f"run={torch_run.name}", "stage.format=onnx", "tracking=none")
    made = done(torch_run.parents[1], *words)
    for name in [name for name in os.environ if name in ("CI", "ORT_DISABLE_TELEMETRY") or name.endswith("_ACTIONS")]:
        monkeypatch.delenv(name)  # where tests are run for each commit it sends nothing anyway
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    read = read_back("onnx", made / "artifacts" / "export" / "onnx", np.zeros((3, 8, 8, 1), np.float32), "torch")
    assert read["outputs"].shape == (3, 10)
    assert list(tmp_path.iterdir()) == []


def test_an_export_for_which_a_disk_has_no_room_leaves_no_part_of_it_there(tmp_path: Path) -> None:
    """The first file lay there, and the same command again was refused: the folder was taken."""
    disk, run = Path("/dev/shm"), tmp_path / "run"  # mostly another than that of the run
    write_files(run, {"a.json": "{}", "b.bin": "b" * 100_000, "c.json": "{}"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tempfile.TemporaryDirectory(dir=disk if disk.is_dir() else None) as other:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
            with pytest.raises(UserError, match=r"^stage\.path: cannot write .*/new: File too large$"):
                Export(path=f"{other}/new")._moved(run)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(Path(other).iterdir()) == []
        assert len(list(run.iterdir())) == 3
        Export(path=f"{other}/new")._moved(run)
        assert set(contents(Path(other))) == {"new", "new/a.json", "new/b.bin", "new/c.json"}


def test_inputs_for_which_a_disk_has_no_room_are_one_message(tmp_path: Path) -> None:
    """They were written by a memory map, in which a full disk kills the process."""
    parts, path = [np.full((100, 8), number, np.float32) for number in range(4)], tmp_path / "x.npy"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
        with pytest.raises(UserError, match=r"^cannot write .*/x\.npy: File too large$"):
            write_array(path, "float32", (400, 8), parts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    write_array(path, "float32", (400, 8), parts)
    assert np.array_equal(np.load(path), np.concatenate(parts)) and np.load(path).dtype == np.float32


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"file": "", "run/a.json": "{}"})
    with pytest.raises(UserError, match=r"^stage\.path: cannot write .*/file: it is a file, not a folder$"):
        Export(path=f"{tmp_path}/file/new")._moved(tmp_path / "run")
    assert (tmp_path / "run" / "a.json").is_file()


# The real command, which another one overtakes when it has written and compared.
MEANWHILE = """
import sys
from pathlib import Path
from pipeline.stages.export import Export

moved = Export._moved
def overtaken(self, folder):
    Path(self.path).mkdir()
    (Path(self.path) / "of another").write_text("theirs")
    return moved(self, folder)
Export._moved = overtaken

from pipeline.__main__ import main
sys.exit(main())
"""


@pytest.mark.wide
def test_a_folder_that_another_export_has_made_meanwhile_is_left_alone(torch_run: Path, tmp_path: Path) -> None:
    shutil.copytree(torch_run, tmp_path / "runs" / torch_run.name)
    target = tmp_path / "model"
    command = [sys.executable, "-c", MEANWHILE, "stage=export", f"run={torch_run.name}", f"stage.path={target}"]
    ended = subprocess.run(
        [*command, "tracking=none"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert f"error: stage.path={target}: exists already; name a new folder" in ended.stderr
    assert list(contents(target)) == ["of another"]
    (kept,) = tmp_path.glob("runs/*/artifacts/export/safetensors")
    assert (kept / "model.safetensors").exists()


def test_our_package_is_not_there_where_an_export_is_read() -> None:
    code = f"import runpy, sys; sys.meta_path.insert(0, runpy.run_path({str(READER)!r})['Without']())"
    result = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}; import pipeline"], capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError: pipeline: not in this process" in result.stderr


EXPECTED = np.array([[1.0, -2.0], [0.5, 4.0]])


@pytest.mark.parametrize(
    ("outputs", "alone", "said"),
    [
        (EXPECTED + 1e-3, EXPECTED[:1], "differ by up to 1.00e-03 from the run's, more than rounding explains"),
        (EXPECTED * np.nan, EXPECTED[:1], "differ by up to nan"),
        (EXPECTED, EXPECTED[:1] + 1, r"differ by up to 1.00e\+00"),
        (EXPECTED[:, :1], EXPECTED[:1], r"outputs of shape \(2, 1\) read back, expected \(2, 2\)"),
    ],
)
def test_other_outputs_fail_the_export(outputs: np.ndarray, alone: np.ndarray, said: str) -> None:
    wrote = Exported(program=True, dtypes=("float32",))
    assert compare(wrote, {"outputs": EXPECTED + 1e-6, "alone": EXPECTED[:1]}, EXPECTED, "onnx") == pytest.approx(1e-6)
    with pytest.raises(RunError, match=said):
        compare(wrote, {"outputs": outputs, "alone": alone}, EXPECTED, "onnx")


def test_normalising_loosens_no_comparison() -> None:
    """A channel of which float32 keeps little (mean 3e5, std 1) is said, and outputs of the wrong sign fail."""
    by = Normalisation((0.5, 3e5), (0.2, 1.0))
    whole = np.array([[0.7, 3e5 + 0.11], [0.1, 3e5 - 0.97]])
    expected = by.of_rounded(whole.astype(np.float32))
    assert expected.dtype == np.float32
    own = ((whole - by.mean) / by.std).astype(np.float32)
    wrote = Exported(program=True, dtypes=("float32",))
    assert compare(wrote, {"outputs": expected, "alone": expected[:1]}, expected, "onnx") == 0
    with pytest.raises(RunError, match="more than rounding explains"):
        compare(wrote, {"outputs": -expected, "alone": -expected[:1]}, expected, "onnx")
    (note,) = said_of_rounding(wrote, own, expected)
    assert note.startswith("the run's own outputs differ from the program's by up to 1.5e-02 (of 2.0e+00)")
    assert said_of_rounding(wrote, own, own) == said_of_rounding(Exported(False, ("float32",)), own, expected) == ()


def test_other_tensors_fail_the_export() -> None:
    wrote = Exported(program=False, dtypes=("float32",), tensors={"a": EXPECTED})
    assert compare(wrote, {"tensor/a": EXPECTED}, EXPECTED, "safetensors") == 0.0
    for read, said in (
        ({"tensor/a": EXPECTED + 1e-9}, "a read back is not what was written"),
        ({"tensor/a": EXPECTED.astype("float32")}, "a read back is not what was written"),
        ({}, r"other names of tensors \(a\)"),
    ):
        with pytest.raises(RunError, match=said):
            compare(wrote, read, EXPECTED, "safetensors")


@pytest.mark.wide
def test_an_operation_that_a_format_cannot_hold_is_named_with_its_layer(tmp_path: Path) -> None:
    import torch

    from pipeline.backends.torch.export import WRITERS

    class Branching(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    class Bessel(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(x)

    def said(form: str, inner: torch.nn.Module) -> str:
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), inner).eval().requires_grad_(False)
        with pytest.raises(RunError) as error:
            WRITERS[form](net, torch.ones(2, 3), tmp_path)
        return str(error.value)

    branch = said("torch_export", Branching())
    assert branch.startswith(
        "stage.format=torch_export: cannot hold 'return x if x.sum() > 0 else -x' (test_export.py,"
    )
    assert "of layer 1 (Branching); " in branch
    bessel = said("onnx", Bessel())
    assert bessel.endswith("cannot hold prims.bessel_j0 of layer 1 (Bessel); ONNX has no such operator")


REFUSED_BY_KERAS = """
import sys
from pathlib import Path
import keras
from pipeline.backends.keras.export import WRITERS
from pipeline.datasets import Data
from pipeline.errors import RunError, UserError

class Own(keras.layers.Layer):
    def call(self, x):
        if sys.argv[1] == "keras":
            return 2 * x
        import tensorflow as tf
        return tf.ensure_shape(tf.py_function(lambda x: 2 * x, [x], x.dtype), x.shape)

try:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3), Own(name="mine")])
    WRITERS[sys.argv[1]](model, Path.cwd(), Data(None, None, None, None, ""))
except RunError as error:
    print(error)
"""


@pytest.mark.wide
@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("keras", "cannot hold layer mine (__main__.Own): the file names a class that a process without its code"),
        (
            "saved_model",
            "cannot hold EagerPyFunc of sequential_1/mine_1: it calls Python, which the file does not hold",
        ),
    ],
)
def test_what_a_format_of_keras_cannot_hold_is_named_with_its_layer(tmp_path: Path, form: str, wanted: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", REFUSED_BY_KERAS, form],
        cwd=tmp_path,
        env=environment(KERAS_BACKEND="tensorflow"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"stage.format={form}: {wanted}" in result.stdout


WRITES_A_RESNET = """
from pathlib import Path
import numpy as np
from pipeline.backends.keras.export import WRITERS
from pipeline.datasets import Data
from pipeline.models.keras_resnet import resnet

model = resnet([[(2, 1)], [(4, 2)]], (5, 3, 1), 3, 0.9, 1e-5)
x = np.random.default_rng(0).normal(size=(6, 5, 3, 1)).astype(np.float32)
model(x, training=True)  # whose running statistics move
np.savez("seen.npz", x=x, outputs=model(x))
WRITERS["keras"](model, Path.cwd(), Data(None, None, None, None, ""))
"""
READS_IT = """
import sys
import keras
import numpy as np

seen = np.load("seen.npz")
print(np.abs(keras.saving.load_model("model.keras")(seen["x"]) - seen["outputs"]).max(), "pipeline" in sys.modules)
"""


@pytest.mark.wide
def test_a_residual_net_is_in_the_file_of_keras(tmp_path: Path) -> None:
    """It was refused; but its normalisation differs from Keras's in training alone, and Keras can make its shortcut."""
    alone, found = environment(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu"), ""
    for script in (WRITES_A_RESNET, READS_IT):
        command = [sys.executable, "-c", script]
        found = subprocess.run(command, cwd=tmp_path, env=alone, stdout=subprocess.PIPE, text=True, check=True).stdout
    difference, ours = found.split()
    assert float(difference) < 1e-6 and ours == "False"
