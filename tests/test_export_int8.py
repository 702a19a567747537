"""stage.format=onnx_int8: what runs in integers is counted, and what that costs is measured on the whole test set."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from command import DIGITS, done, environment, pipeline, refused, runs, status, write_files
from in_backend import experiment
from sklearn.datasets import load_digits

from pipeline.backends.shared.onnx_int8 import OnnxPasses, Operators, Scheme, operators_in, quantize, scheme_for
from pipeline.errors import Impossible, RunError, UserError
from pipeline.runs.json_files import read_json
from pipeline.runs.result import metrics_of
from pipeline.stages.export import Export
from pipeline.stages.export_int8 import (
    CALIBRATED,
    calibration_rows,
    check_int8,
    check_numbers,
    difference,
    judged,
    times_faster,
)
from pipeline.stages.inference.bench import Timed
from pipeline.tasks import Judge
from pipeline.tasks.classification import Classification, ClassificationJudge
from pipeline.tasks.regression import Regression

INT8 = ("stage=export", "stage.format=onnx_int8")
FAR = 50.0  # what every fourth test example is multiplied by, and no training example
VNNI = Scheme("uint8", False, "")

# A pass of the file by nothing but onnxruntime.
ALONE = """
import sys
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
np.save("outputs.npy", session.run(None, {session.get_inputs()[0].name: np.load("x.npy")})[0])
"""


def passed_alone(folder: Path, program: Path, x: np.ndarray) -> np.ndarray:
    np.save(folder / "x.npy", x)
    command = [sys.executable, "-I", "-c", ALONE, str(program)]
    subprocess.run(command, cwd=folder, env=environment(ORT_DISABLE_TELEMETRY="1"), check=True)
    found: np.ndarray = np.load(folder / "outputs.npy")
    return found


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with digits.npz, whose test examples lie partly far outside of the others."""
    folder, found = tmp_path_factory.mktemp("int8"), load_digits()
    x, y = (found.images[..., None] / 16).astype(np.float32), found.target
    x[1400::4] *= FAR
    np.savez(folder / "digits.npz", x_train=x[:1400], y_train=y[:1400], x_test=x[1400:], y_test=y[1400:])
    return folder


@pytest.fixture(scope="module")
def both(digits: Path) -> tuple[Path, Path]:
    """A trained net, and the run of its export."""
    words = ("stage=train", "dataset=npz", "dataset.file=digits.npz", "dataset.validation=0.2", "model=mlp")
    source = done(digits, *words, "training.epochs=5", "training.batch_size=32")
    return source, done(digits, *INT8, f"run={source.name}")


def test_the_accuracy_is_that_of_the_file(both: tuple[Path, Path], digits: Path) -> None:
    """Of the whole test set, passed through the file by onnxruntime alone; predictions.csv has the same answers."""
    source, made = both
    with np.load(digits / "digits.npz") as data:
        x, y = data["x_test"], data["y_test"]
    program = made / "artifacts/export/onnx_int8/model_int8.onnx"
    answers = passed_alone(digits, program, x).argmax(axis=1)
    found = metrics_of(made)
    assert found["test/accuracy"].value == np.mean(answers == y) > 0.6
    assert found["float32/test/accuracy"].value == metrics_of(source)["test/accuracy"].value
    assert found["int8/bytes"].value == program.stat().st_size < 0.6 * found["float32/bytes"].value
    with (made / "artifacts/predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(int(one["actual"]), int(one["predicted"])) for one in rows] == list(zip(y, answers, strict=True))
    with (source / "artifacts/predictions.csv").open(encoding="utf-8") as file:
        before = [int(one["predicted"]) for one in csv.DictReader(file)]
    assert found["int8/answers_that_differ"].value == np.sum(answers != before)


def test_the_result_says_what_runs_in_integers_and_how_fast(both: tuple[Path, Path]) -> None:
    made = both[1]
    kept, receipt = read_json(made / "result.json"), read_json(made / "receipt.json")
    about, rows = receipt["export"], dict(kept["table"])
    assert about["computes_in"] == ["int8"] and about["operators"]["in_integers"] == {"QGemm": 2}
    assert rows["in integers"] == "2 of 2 matrix products and convolutions (2 QGemm)"
    assert "2 of 2" not in rows["other operators"] and "DequantizeLinear" in rows["other operators"]
    assert about["calibration"] == {"examples": CALIBRATED, "of": "training", "seed": 0}
    assert about["made_of"]["computes_in"] == ["float32"] and 0 <= about["made_of"]["largest_difference"] < 1e-4
    assert list(about["files"]) == ["model_int8.onnx"] and set(receipt["versions"]) > {"onnx", "onnxruntime"}
    assert about["largest_difference"] == metrics_of(made)["int8/largest_difference"].value > 1e-3
    (table,) = kept["tables"]
    names = [row[0] for row in table["rows"]]
    assert names[:3] == ["test loss", "test accuracy", "size"]
    timed = [name for name in names if name.startswith(("ms, ", "µs, "))]
    assert [name.partition(", ")[2] for name in timed] == [f"batch of {size}" for size in (1, 16, 256)]
    assert timed[0] == "µs, batch of 1"
    assert all(metrics_of(made)[f"{form}/batch_16/latency_s"].value > 0 for form in ("float32", "int8"))
    assert any(note.startswith("weights in ") for note in kept["notes"])


def test_no_test_example_calibrates(both: tuple[Path, Path], digits: Path) -> None:
    """The range of x in the file is that of the training examples: many of the test lie far outside of it."""
    program = onnx.load(both[1] / "artifacts/export/onnx_int8/model_int8.onnx")
    first = next(node for node in program.graph.node if node.op_type == "QuantizeLinear")
    scale = onnx.numpy_helper.to_array(next(one for one in program.graph.initializer if one.name == first.input[1]))
    with np.load(digits / "digits.npz") as data:
        assert data["x_test"].max() > 40 * data["x_train"].max()
        assert 255 * float(scale) == pytest.approx(data["x_train"].max(), rel=0.01)


def test_calibration_is_seeded_and_of_as_many_as_there_are() -> None:
    first, again, other = (calibration_rows(5000, seed) for seed in (0, 0, 1))
    assert len(first) == CALIBRATED == len(set(first)) and first.max() < 5000
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert np.array_equal(calibration_rows(7, 0), np.arange(7))


def program(path: Path, *operators: str) -> Path:
    """A float32 program: x (N, 4), then these operators, `Gemm` with weights that fill the range of a byte."""
    weights = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    names = ["x", *(f"h{number}" for number in range(1, len(operators))), "outputs"]
    nodes = [
        onnx.helper.make_node(operator, [names[at], *(["w"] if operator == "Gemm" else [])], [names[at + 1]])
        for at, operator in enumerate(operators)
    ]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 4]) for name in ("x", "outputs")]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weights, "w")])
    opset = [onnx.helper.make_opsetid("", 20)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


X = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)


def weights_of(path: Path) -> np.ndarray:
    kept = onnx.load(path).graph.initializer
    return next(onnx.numpy_helper.to_array(one) for one in kept if one.name.startswith("w") and one.dims == [4, 4])


@pytest.mark.parametrize(("scheme", "most"), [(VNNI, 127), (replace(VNNI, reduced=True), 64)])
def test_a_processor_without_vnni_gets_weights_of_seven_bits(tmp_path: Path, scheme: Scheme, most: int) -> None:
    """Twice the same file, and its outputs are near those in float32."""
    source, target = program(tmp_path / "float.onnx", "Gemm", "Relu"), tmp_path / "int8.onnx"
    quantize(source, target, X, scheme)
    written = target.read_bytes()
    quantize(source, target, X, scheme)
    assert target.read_bytes() == written
    weights = weights_of(target)
    assert weights.dtype == np.int8 and most - 2 < np.abs(weights).max() <= most
    outputs, wanted = OnnxPasses(target).forward(X), OnnxPasses(source).forward(X)
    assert 0 < np.abs(outputs - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("machine", "vector", "scheme"),
    [
        ("x86_64", "avx avx2 avx512f", ("uint8", True)),
        ("x86_64", "avx avx2 avx_vnni", ("uint8", False)),
        ("x86_64", "avx2 avx512_vnni avx512f", ("uint8", False)),
        ("x86_64", "", ("uint8", True)),  # where the system does not list them
        ("aarch64", "asimd", ("int8", False)),
    ],
)
def test_the_processor_decides_on_the_integers(machine: str, vector: str, scheme: tuple[str, bool]) -> None:
    found = scheme_for(machine, vector)
    assert (found.activations, found.reduced) == scheme


def test_a_program_left_in_float_is_not_called_int8(tmp_path: Path) -> None:
    float32 = program(tmp_path / "float.onnx", "Gemm", "Relu", "Gemm")
    with pytest.raises(RunError, match=r"quantized program runs in integers: .*Gemm.* in float; use stage.format=onnx"):
        Operators.of(OnnxPasses(float32).operators)
    bare = program(tmp_path / "bare.onnx", "Relu")
    with pytest.raises(RunError, match=r"runs in integers; it has none; use stage.format=onnx"):
        Operators.of(OnnxPasses(bare).operators)
    found = Operators.of({"QGemm": 2, "Conv": 1, "Relu": 3})
    assert (found.in_integers, found.in_float, found.others) == ({"QGemm": 2}, {"Conv": 1}, {"Relu": 3})


def test_operators_in_a_branch_are_counted(tmp_path: Path) -> None:
    inner = onnx.load(program(tmp_path / "inner.onnx", "Gemm")).graph
    del inner.input[:]
    flag = onnx.numpy_helper.from_array(np.array(True), "flag")
    node = onnx.helper.make_node("If", ["flag"], ["y"], then_branch=inner, else_branch=inner)
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [], [flag])), tmp_path / "if.onnx")
    assert operators_in(tmp_path / "if.onnx") == {"If": 1, "Gemm": 2}


SENDS_NOTHING = """
import sys
from pathlib import Path
from pipeline.backends.shared.onnx_int8 import OnnxPasses

OnnxPasses(Path(sys.argv[1]))
"""


def test_quantizing_sends_nobody_what_it_read(tmp_path: Path) -> None:
    """ONNX Runtime keeps what it sends in the user's folder; where tests are run for each commit it sends nothing."""
    home, file = tmp_path / "home", program(tmp_path / "float.onnx", "Gemm")
    home.mkdir()
    unset = [name for name in os.environ if name in ("CI", "ORT_DISABLE_TELEMETRY") or name.endswith("_ACTIONS")]
    kept = {name: value for name, value in environment().items() if name not in unset}
    command = [sys.executable, "-c", SENDS_NOTHING, str(file)]
    subprocess.run(command, env={**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home)}, check=True)
    assert list(home.iterdir()) == []


def test_what_onnx_runtime_cannot_quantize_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "damaged.onnx").write_bytes(b"no program")
    with pytest.raises(RunError, match=r"^stage.format=onnx_int8: ONNX Runtime cannot quantize this model \(.*32$"):
        quantize(tmp_path / "damaged.onnx", tmp_path / "int8.onnx", X, VNNI)


def test_a_nan_fails() -> None:
    outputs = np.ones((4, 3))
    check_numbers("int8", outputs, 0)
    outputs[2, 1] = np.nan
    with pytest.raises(RunError, match="the program in int8 gives nan for test example 34"):
        check_numbers("int8", outputs, 32)


def test_a_judge_that_asks_the_model_is_refused() -> None:
    """Only the test set goes through the files: any other question would get the answers of other examples."""

    class Asking(ClassificationJudge):
        def ask(self, predict: Any, x: np.ndarray, y: np.ndarray) -> None:
            predict(x[np.argsort(y)])

    class Asked(Classification):
        def judge(self, loss: Any) -> Judge:
            return Asking(self, loss)

    config: Any = experiment("torch")
    data: Any = SimpleNamespace(task=Asked((8, 8, 1), ("a", "b")))
    with pytest.raises(RunError, match=r"^stage.format=onnx_int8: the judge of Asked asks the model about other"):
        judged(config, config, data, config, "int8", np.zeros((3, 2)))


def test_answers_and_numbers_that_differ() -> None:
    float32, int8 = np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([[0.5, 0.0], [2.0, 1.0]])
    of_classes = {one.name: one.value for one in difference(Classification((2,), ("a", "b")), float32, int8)}
    assert of_classes["int8/answers_that_differ"] == 1
    assert of_classes["int8/largest_difference"] == 1.0
    of_numbers = {one.name: one.value for one in difference(Regression((2,), 2), float32, int8)}
    assert of_numbers["int8/root_mean_squared_difference"] == pytest.approx(np.sqrt(1.25 / 4))
    assert "int8/answers_that_differ" not in of_numbers


def test_times_that_overlap_show_no_gain() -> None:
    def timed(*latencies: float) -> Timed:
        return Timed(1, 0.0, {}, None, [[each] for each in latencies])

    slow = timed(4.0, 4.1, 3.9, 4.2, 4.0)
    assert times_faster(slow, timed(2.0, 2.1, 1.9, 2.0, 2.2)) == "x 0.50"
    assert times_faster(slow, timed(2.0, 2.1, 1.9, 4.0, 2.2)) == "overlap"


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.machine.installed.is_installed", lambda name: name != "onnxruntime")
    with pytest.raises(Impossible, match=r"^stage.format=onnx_int8: onnxruntime is not installed; .*\[export\]'$"):
        Export(format="onnx_int8").check(experiment("torch"))


def test_what_is_not_quantized_is_refused_by_name(both: tuple[Path, Path]) -> None:
    source = both[0]
    folder, run = source.parents[1], f"run={source.name}"
    said = refused(folder, *INT8, run, "precision=fp64")
    assert said == "stage.format=onnx_int8 with precision=fp64: is made of a program in float32; add precision=fp32"
    said = refused(folder, *INT8, run, "backend=jax")
    assert said.startswith(
        "stage.format=onnx_int8 with backend=jax: it writes safetensors, keras; backend=torch writes"
    )
    for dataset, model, loss in (
        ("recall", "conv1d", "cross_entropy"),
        ("reversals", "encoder_decoder", "cross_entropy"),
    ):
        with pytest.raises(UserError, match=rf"^stage.format=onnx_int8 with dataset={dataset}: takes models of images"):
            check_int8(experiment("torch", stage="train", dataset=dataset, model=model, loss=loss))


OWN = '''
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Weighted(Model):
    """Multiplies the pixels by weights one by one: no matrix product."""

    def torch(self, shapes):
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.rand(10, 64))

            def forward(self, x):
                return (x.flatten(1)[:, None] * self.weight).sum(-1)

        return Net()
'''


@pytest.mark.wide
def test_a_model_without_a_product_is_not_exported(tmp_path: Path) -> None:
    write_files(tmp_path, {"own.py": OWN, "conf/model/weighted.yaml": "# Mine.\n_target_: own.Weighted\n"})
    own = {"PIPELINE_MODULES": "own", "PYTHONPATH": str(tmp_path)}
    source = done(
        tmp_path, "--config-dir=conf", *DIGITS, "stage=train", "model=weighted", "precision.strict=false", **own
    )
    ended = pipeline(tmp_path, *INT8, f"run={source.name}", **own)
    assert ended.returncode != 0 and "Traceback" not in ended.stderr
    assert "no matrix product or convolution of the quantized program runs in integers" in ended.stderr
    (made,) = set(runs(tmp_path)) - {source}  # both may have begun in one second
    assert status(made).state == "FAILED" and not list(made.rglob("*.onnx"))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("words", "integers"),
    [
        (("model=cnn", "dataset=digits", "dataset.normalise=true"), {"QLinearConv": 2, "QGemm": 1}),
        (("model=mnist_cnn", "dataset=digits", "precision=mixed_bf16"), {"QLinearConv": 2, "QGemm": 2}),
        (("model=resnet", "dataset=digits", "model.blocks=1"), {"QLinearConv": 7, "QGemm": 1}),
        (("model=vit", "dataset=digits", "model.layers=1"), {"QLinearMatMul": 9, "QGemm": 1}),
        (("model=mlp", "dataset=digits", "backend=jax"), {"QGemm": 2}),
        (("model=mlp", "dataset=diabetes", "loss=squared_error", "dataset.normalise=true"), {"QGemm": 2}),
    ],
)
def test_other_models_run_in_integers(tmp_path: Path, words: tuple[str, ...], integers: dict[str, int]) -> None:
    source = done(tmp_path, "stage=train", "training.epochs=3", "training.batch_size=32", *words)
    made = done(tmp_path, *INT8, f"run={source.name}", "backend=torch", f"stage.path={tmp_path / 'mine'}")
    about, found = read_json(made / "receipt.json")["export"], metrics_of(made)
    assert about["operators"]["in_integers"] == integers and about["operators"]["in_float"] == {}
    assert set(about["files"]) == {one.name for one in (tmp_path / "mine").iterdir()} >= {"model_int8.onnx"}
    if "dataset.normalise=true" in words:
        said: dict[str, Any] = json.loads((tmp_path / "mine/normalisation.json").read_text())
        assert said["take_x"] == ["model_int8.onnx"]
    assert (made / "artifacts/predictions.csv").is_file()
    if "dataset=diabetes" in words:
        before, after = (found[f"{form}test/mean_absolute_error"].value for form in ("float32/", ""))
        assert 0 < found["int8/root_mean_squared_difference"].value < 0.1 * before
        assert abs(after - before) < 0.1 * before
    else:
        assert abs(found["test/accuracy"].value - found["float32/test/accuracy"].value) < 0.05
