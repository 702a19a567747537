"""pipeline.open_run and pipeline.list_runs: what Python has of saved runs is what the commands have."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from command import DIGITS, LONG, TORCH_THEN_WIDE, done, environment, write_files
from command import pipeline as command

import pipeline
from pipeline.errors import UserError
from pipeline.runs.weights import load, save

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def digits(folder: Path) -> Path:
    return done(folder, *DIGITS)


def python(folder: Path, code: str, **changes: str) -> str:
    """What a script of the user's prints, in a process that begins without a framework."""
    variables = environment(**changes)
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr, result.stderr
    return result.stdout.strip()


def refusal(folder: Path, code: str) -> str:
    """The message of the UserError by which the script's last line is refused."""
    *before, last = code.strip().splitlines()
    script = [*before, "try:", f"    {last}", "except UserError as error:", "    print(error)"]
    return python(folder, "from pipeline.errors import UserError\n" + "\n".join(script))


def test_the_package_is_imported_in_a_moment() -> None:
    code = "import sys, pipeline; print(*sorted(name for name in sys.modules if name.startswith('pipeline')))"
    assert python(Path.cwd(), f"{code}; print({{'numpy', 'yaml', 'pydantic'}} & set(sys.modules))").splitlines() == [
        "pipeline",
        "set()",
    ]


def test_a_run_is_what_its_files_say(digits: Path) -> None:
    run = pipeline.open_run("latest", digits.parent)
    assert (run.id, run.folder, run.state) == (digits.name, digits, "finished")
    result = json.loads((digits / "result.json").read_text())
    assert run.metrics == {**result["last_epoch"], **result["scalars"]}
    assert run.receipt == json.loads((digits / "receipt.json").read_text())
    assert run.config["dataset"]["_target_"] == "pipeline.datasets.digits.Digits"
    assert [row["epoch/number"] for row in run.epochs] == [1.0, 2.0]
    assert run.epochs[1]["validation/loss"] == result["last_epoch"]["validation/loss"]
    assert run.classes == [str(number) for number in range(10)]
    assert repr(run) == f"<SavedRun {digits.name}: finished, test/accuracy {run.metrics['test/accuracy']:.4g}>"
    for other in (digits, str(digits), digits.name[:15]):
        assert pipeline.open_run(other, digits.parent).folder == digits


def test_the_list_is_the_csv_of_the_command(digits: Path, folder: Path) -> None:
    printed = command(folder, "stage=runs", "stage.format=csv", "stage.columns=[model,seed]").stdout
    for row, said in zip(
        pipeline.list_runs(digits.parent, ["model", "seed"]), csv.DictReader(io.StringIO(printed)), strict=True
    ):
        assert {name: str(value) for name, value in row.items()} == {name: text for name, text in said.items() if text}


def test_what_cannot_be_opened_is_one_message(digits: Path, folder: Path) -> None:
    with pytest.raises(UserError, match=r"^run=nope: no such run in .*; the latest are \d"):
        pipeline.open_run("nope", digits.parent)
    with pytest.raises(UserError, match=r"^run=latest: no finished run with artifacts/model/weights.npz in "):
        pipeline.open_run(root=folder / "empty")
    with pytest.raises(UserError, match=r"^output_dir=.*empty: no such folder"):
        pipeline.list_runs(folder / "empty")
    with pytest.raises(UserError, match=r"^columns=mdel: .*did you mean model"):
        pipeline.list_runs(digits.parent, ["mdel"])
    with pytest.raises(UserError, match=r"^columns=model: needs a list of names, as columns=\['model'\]$"):
        pipeline.list_runs(digits.parent, "model")  # type: ignore[arg-type]


PIXELS = """
import numpy as np, pipeline
x = np.random.default_rng(0).integers(0, 17, (5, 8, 8, 1), np.uint8)
run = pipeline.open_run()
given = run.predict(x)
assert given.shape == (5, 10) and given.dtype == np.float64
np.testing.assert_array_equal(given, run.predict(x[..., 0].astype(np.int64)))
np.testing.assert_array_equal(given, run.predict(x / 16))
outputs = np.exp(run.predict(x, logits=True))
np.testing.assert_allclose(given, outputs / outputs.sum(1, keepdims=True), rtol=1e-12)
from PIL import Image
Image.fromarray(np.round(x[0, ..., 0] / 16 * 255).astype(np.uint8)).save("digit.png")
as_file = np.asarray(Image.open("digit.png"))[None] / 255
print(*run.predict(as_file)[0])
"""


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_images_are_predicted_as_the_command_predicts_them(backend: str, tmp_path: Path) -> None:
    made = done(tmp_path, *DIGITS, f"backend={backend}")
    printed = [float(word) for word in python(tmp_path, PIXELS).split()]
    predicted = done(tmp_path, "stage=predict", f"run={made.name}", "stage.images=[digit.png]")
    (row,) = csv.DictReader((predicted / "artifacts/probabilities.csv").read_text().splitlines())
    np.testing.assert_allclose(printed, [float(row[str(number)]) for number in range(10)], atol=1e-6)


ROWS = """
import numpy as np, pandas, pipeline
table = pandas.read_csv("rows.csv")
run = pipeline.open_run()
given = run.predict(table)
np.testing.assert_array_equal(given, run.predict(table[table.columns[::-1]].assign(other=1.0)))
np.testing.assert_array_equal(given, run.predict(table.to_numpy()))
print(*given[:, 0])
"""


def test_rows_are_predicted_as_the_command_predicts_them(tmp_path: Path) -> None:
    """A table's columns are found by name, so that another order is not another prediction."""
    rows = np.random.default_rng(0).normal(size=(100, 3)) * [1, 10, 100]
    np.savetxt(tmp_path / "rows.csv", rows[:5], delimiter=",", header="a,b,c", comments="")
    learned = np.column_stack([rows, rows @ [1, 0.1, 0.01]])
    np.savetxt(tmp_path / "learned.csv", learned, delimiter=",", header="a,b,c,y", comments="")
    data = ("dataset=csv", "dataset.file=learned.csv", "dataset.targets=numbers", "dataset.normalise=true")
    made = done(tmp_path, "stage=train", "loss=squared_error", *data, "training.epochs=2")
    printed = [float(word) for word in python(tmp_path, ROWS).split()]
    predicted = done(tmp_path, "stage=predict", f"run={made.name}", "stage.rows=rows.csv")
    lines = csv.DictReader((predicted / "artifacts/predictions.csv").read_text().splitlines())
    np.testing.assert_allclose(printed, [float(row["predicted"]) for row in lines], rtol=1e-6)
    said = refusal(tmp_path, "import pipeline, pandas\npipeline.open_run().predict(pandas.DataFrame({'b': [1.0]}))")
    assert said == "x: has no column a, c; its run takes a, b, c"
    named = "pandas.DataFrame({'a': [1.0], 'b': ['one'], 'c': [1]})"
    said = refusal(tmp_path, f"import pipeline, pandas\npipeline.open_run().predict({named})")
    assert said == "x: column b: object; give an array of numbers"


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ("np.zeros((8, 8))", "x: shape (8, 8); run={run} takes (N, 8, 8, 1); x[None] makes a batch of the one example"),
        ("np.zeros((2, 9, 8, 1))", "x: shape (2, 9, 8, 1); run={run} takes (N, 8, 8, 1)"),
        ("np.zeros((0, 8, 8, 1))", "x: shape (0, 8, 8, 1): no examples"),
        (
            "np.full((1, 8, 8), 16.0)",
            "x: real numbers from 16 to 16; images of real numbers lie in 0 to 1, and integers are taken from 0 to 16",
        ),
        ("np.full((1, 8, 8), np.nan)", "x: example 0 holds numbers that are not finite"),
        ("np.full((1, 8, 8), 17)", "x: integers from 17 to 17; its run's data have 0 to 16"),
        ("[['a']]", "x: <U1; give an array of numbers"),
    ],
)
def test_examples_that_the_model_does_not_take(x: str, said: str, digits: Path, folder: Path) -> None:
    code = f"import numpy as np, pipeline\npipeline.open_run('{digits.name}').predict({x})"
    assert refusal(folder, code) == said.format(run=digits.name)


@pytest.mark.parametrize(
    ("dtype", "most", "said"),
    [
        (
            "int64",
            1,
            "x: int64 of 0 and 1; its run's data were numbers from 0 to 1 without a scale, and bytes are divided by "
            "255: give x.astype(float), or bytes as x / 255",
        ),
        pytest.param(
            "int16",
            999,
            "x: int16; its run's data were numbers from 0 to 999 without a scale, and bytes would be others: where x "
            "is as they were, give x.astype(float)",
            marks=pytest.mark.wide,
        ),
    ],
)
def test_integers_that_may_be_bytes_are_not_guessed(dtype: str, most: int, said: str, tmp_path: Path) -> None:
    """Integers other than bytes enter as they are, and a card does not say that they were integers."""
    x = np.random.default_rng(0).integers(0, most, (100, 4, 4, 1), dtype, endpoint=True)
    x[0, 0, 0], x[1, 0, 0] = 0, most
    np.savez(tmp_path / "x.npz", x_train=x, y_train=np.arange(100) % 2, x_test=x, y_test=np.arange(100) % 2)
    done(tmp_path, "dataset=npz", "dataset.file=x.npz", "training.epochs=1")
    code = "import numpy as np, pipeline\nrun, x = pipeline.open_run(), np.load('x.npz')['x_test']\n"
    assert refusal(tmp_path, f"{code}run.predict(x)") == said
    assert python(tmp_path, f"{code}print(run.predict(x.astype(float)).shape)") == "(100, 2)"


def test_other_weights_are_refused(digits: Path, folder: Path) -> None:
    file = digits / "artifacts/model/weights.npz"
    before, saved = file.read_bytes(), load(file)
    save(file, {name: array + 1 for name, array in saved.items()})
    said = refusal(
        folder, f"import numpy as np, pipeline\npipeline.open_run('{digits.name}').predict(np.zeros((1, 8, 8)))"
    )
    file.write_bytes(before)
    assert said.startswith(f"run={digits.name}: artifacts/model/weights.npz now differs from what it saved")


def test_a_run_whose_folder_is_gone_says_so(digits: Path, tmp_path: Path) -> None:
    """Its config and its receipt were empty, as those of a run that has not written them yet."""
    shutil.copytree(digits, tmp_path / "copy")
    run = pipeline.open_run(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    for name in ("state", "metrics", "config", "receipt", "epochs", "classes"):
        with pytest.raises(UserError) as result:
            getattr(run, name)
        assert str(result.value) == f"run=copy: {tmp_path / 'copy'} is gone; it was deleted or moved after open_run"
    assert repr(run) == "<SavedRun copy: gone>"


OWN = """
from pipeline.contracts import Model
from pipeline.spec import spec


@spec
class Wide(Model):
    width: int = 16

    def torch(self, shapes):
        from torch import nn

        return nn.Sequential(nn.Linear(shapes.x[0], self.width), nn.Tanh(), nn.Linear(self.width, shapes.outputs[0]))
"""


@pytest.mark.wide
def test_low_rank_adapters_and_a_model_of_the_users_predict_as_the_command_does(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(100, 3))
    learned = np.column_stack([rows, rows @ [1, 0.1, 0.01]])
    np.savetxt(tmp_path / "rows.csv", rows[:5], delimiter=",", header="a,b,c", comments="")
    np.savetxt(tmp_path / "learned.csv", learned, delimiter=",", header="a,b,c,y", comments="")
    write_files(tmp_path, {"mine.py": OWN, "own/model/wide.yaml": "_target_: mine.Wide\n"})
    data = ("stage=train", "loss=squared_error", "dataset=csv", "dataset.file=learned.csv", "dataset.targets=numbers")
    allowed = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(tmp_path)}
    base = done(tmp_path, *data, "model=mlp", "training.epochs=2")
    adapted = (f"model.start={base.name}", "model.adapters.rank=1", "training.epochs=2")
    for words in (
        ("model=mlp", "backend=torch", *adapted),
        ("model=mlp", "backend=jax", *adapted),
        ("--config-dir", "own", "model=wide", "training.epochs=2"),
    ):
        made = done(tmp_path, *data, *words, **allowed)
        predicted = done(tmp_path, "stage=predict", f"run={made.name}", "stage.rows=rows.csv", **allowed)
        lines = csv.DictReader((predicted / "artifacts/predictions.csv").read_text().splitlines())
        code = ROWS.replace("open_run()", f"open_run('{made.name}')")
        printed = [float(word) for word in python(tmp_path, code, **allowed).split()]
        np.testing.assert_allclose(printed, [float(row["predicted"]) for row in lines], rtol=1e-6)


CHANGED = """
import shutil
import numpy as np, pipeline
from pipeline.runs.weights import load, save
run, x = pipeline.open_run("./copy"), np.zeros((1, 8, 8))
run.predict(x)
file = run.folder / "artifacts/model/weights.npz"
{change}
run.predict(x)
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "save(file, {name: array + 1 for name, array in load(file).items()})",
            "run=copy: artifacts/model/weights.npz now differs from what it saved",
        ),
        pytest.param("shutil.rmtree(run.folder)", "run=copy: {folder}/copy is gone; ", marks=pytest.mark.wide),
    ],
)
def test_a_model_that_was_replaced_or_deleted_predicts_no_more(
    change: str, said: str, digits: Path, tmp_path: Path
) -> None:
    """What was loaded before is not what the run has now."""
    shutil.copytree(digits, tmp_path / "copy")
    assert refusal(tmp_path, CHANGED.replace("{change}", change)).startswith(said.format(folder=tmp_path))


KEPT = """
import os, random, signal, sys, warnings
import numpy as np
{before}
import pipeline

warnings.filterwarnings("ignore", message="mine")
signals = {{number: signal.getsignal(number) for number in signal.valid_signals()}}
state = lambda: (dict(os.environ), list(warnings.filters), random.getstate(), sys.excepthook,
    str(np.random.get_state()), np.geterr(), {{number: signal.getsignal(number) for number in signals}}, {own})
found = state()
run = pipeline.open_run()
given = run.predict(np.zeros((3, 8, 8)))
assert given.shape == (3, 10)
now = state()
assert found == now, [number for number, (a, b) in enumerate(zip(found, now)) if a != b]
assert not [one for one in sys.meta_path if type(one).__module__.startswith("pipeline")]
np.testing.assert_array_equal(run.predict(np.zeros((3, 8, 8))), given)
assert found == state()
print(*given[0])
"""
TORCH = (
    "import torch; torch.set_default_dtype(torch.float64); torch.set_default_device('meta'); torch.set_num_threads(2)\n"
    "torch.set_float32_matmul_precision('medium'); torch.manual_seed(3)",
    "torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(), torch.initial_seed(), "
    "torch.get_rng_state().tolist(), torch.get_float32_matmul_precision(), torch.is_grad_enabled()",
)
KERAS = (
    "import os; os.environ['KERAS_BACKEND'] = '{backend}'\n"
    "import keras; keras.config.set_floatx('float16'); keras.config.set_dtype_policy('mixed_bfloat16')",
    "keras.config.floatx(), keras.config.dtype_policy().name, keras.config.backend()",
)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_the_users_process_is_as_before(backend: str, tmp_path: Path) -> None:
    """And what it is set to changes no prediction."""
    done(tmp_path, *DIGITS, f"backend={backend}")
    before, own = TORCH if backend == "torch" else KERAS
    plain = python(tmp_path, KEPT.format(before="", own="None"))
    assert python(tmp_path, KEPT.format(before=before.format(backend=backend), own=own)) == plain


SCOPES = """
import numpy as np, torch, pipeline
x, run = np.full((3, 8, 8), 0.37), pipeline.open_run("{run}")
with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
    given = run.predict(x)
    assert torch.zeros(1).device.type == "meta" and torch.is_autocast_enabled("cpu")
assert torch.zeros(1).device.type == "cpu" and not torch.is_autocast_enabled("cpu")
np.testing.assert_array_equal(given, run.predict(x))
np.testing.assert_array_equal(given, pipeline.open_run(run.id).predict(x))
"""


def test_a_block_of_the_users_changes_no_prediction(digits: Path, folder: Path) -> None:
    """`with torch.device(...)` and `with torch.autocast(...)` hold for their block, and not for the model in it."""
    python(folder, SCOPES.format(run=digits.name))


@pytest.mark.wide
def test_keras_on_another_backend_is_refused(tmp_path: Path) -> None:
    done(tmp_path, *DIGITS, "backend=jax")
    code = "import os; os.environ['KERAS_BACKEND'] = 'tensorflow'\nimport numpy as np, keras, pipeline\n"
    said = refusal(tmp_path, f"{code}pipeline.open_run().predict(np.zeros((1, 8, 8)))")
    assert said.startswith(
        "backend=jax: Keras has been imported on tensorflow in this process, where it stays; restart"
    )


@pytest.mark.wide
@pytest.mark.skipif(find_spec("triton") is None, reason="crashes only where Triton is installed")
def test_torch_after_tensorflow_is_refused(digits: Path, folder: Path) -> None:
    """It would end the process: a notebook would lose what its cells have computed."""
    code = f"import numpy as np, pipeline\npipeline.open_run('{digits.name}').predict(np.zeros((1, 8, 8)))"
    said = refusal(folder, f"import torch, tensorflow\n{code}")
    assert said.startswith("backend=torch: TensorFlow has been imported in this process, and Triton, which torch loads")
    assert said.endswith("and import triton first")
    assert python(folder, f"import triton, tensorflow, torch\n{code}") == ""


@pytest.mark.wide
def test_a_language_model_gives_logits_and_a_solved_problem_its_values(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    words = (
        "stage=transformer",
        "dataset=text",
        "dataset.path=text.txt",
        "dataset.context=16",
        "training.steps=3",
        "schedule=constant",
    )
    language = done(tmp_path, *words)
    code = f"import numpy as np, pipeline\nrun = pipeline.open_run('{language.name}')\n"
    card = json.loads((language / "artifacts/model/card.json").read_text())
    assert (
        python(tmp_path, f"{code}print(run.predict(np.ones((2, 16), int)).shape)") == f"(2, 16, {card['vocabulary']})"
    )
    beyond = refusal(tmp_path, f"{code}run.predict(np.full((2, 16), {card['vocabulary']}))")
    assert beyond.endswith(f"the vocabulary is 0 to {card['vocabulary'] - 1}")
    assert refusal(tmp_path, f"{code}run.predict(['the fox'])") == (
        f"x: <U7; give an array of numbers; stage=generate run={language.name} goes on with a text"
    )

    solved = done(tmp_path, "stage=pinn", "dataset=ode", "solver=adam", "solver.steps=20")
    np.save(tmp_path / "points.npy", np.linspace(0, 10, 5)[:, None])
    predicted = done(tmp_path, "stage=predict", f"run={solved.name}", "stage.points=points.npy")
    lines = list(csv.reader((predicted / "artifacts/predictions.csv").read_text().splitlines()))[1:]
    code = f"import numpy as np, pipeline\nrun = pipeline.open_run('{solved.name}')\n"
    values = python(tmp_path, f"{code}print(run.predict(np.load('points.npy')).tolist())")
    assert json.loads(values) == [[float(word) for word in line[1:]] for line in lines]
    assert refusal(tmp_path, f"{code}run.predict([[11.0]])").startswith("x: 1 of 1 points lie outside the domain")
