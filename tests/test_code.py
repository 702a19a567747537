"""The hash of the code that decides a result: what it follows and what it leaves out."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

import pytest
from command import refused, write_files

from pipeline.runs.code import code_hash as code
from pipeline.runs.code import files as code_files
from pipeline.runs.code import sources as code_sources
from pipeline.runs.code import syntax as code_syntax
from pipeline.runs.code.environment import variables
from pipeline.runs.code.unseen import unseen

SOURCE = Path(__file__).parents[1] / "src"
ASK = """
import sys
from pipeline import experiment
from pipeline.runs.code import code_hash as code
from pipeline.backends import Jax, TensorFlow, Torch
from pipeline.cli.conf_path import conf_path
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from pipeline.sweep import hydra_plugins
hydra_plugins.register()
with initialize_config_dir(str(conf_path()), version_base="1.3"):
    config = OmegaConf.to_container(compose("config", overrides=sys.argv[1:]), resolve=True)
found = experiment.load(config)
print(code.code_sha256(found), *code.modules(found))
print(*getattr(code, "packages", lambda found: found.packages)(found))
assert not {"torch", "keras", "tensorflow", "jax"} & set(sys.modules)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the package that may be edited, with what is compiled: Python compiles only what was edited."""
    unfinished = shutil.ignore_patterns("*.pyc.*")  # what another process compiles at the moment
    shutil.copytree(SOURCE / "pipeline", tmp_path / "src" / "pipeline", ignore=unfinished)
    shutil.copytree(SOURCE.parent / "conf", tmp_path / "conf")
    return tmp_path / "src" / "pipeline"


def ask(source: Path, *overrides: str, **environment: str) -> tuple[str, set[str]]:
    """The hash, and the deciding modules and packages of an experiment, as the package in `source` names them."""
    variables = {"PYTHONPATH": f"{source.parent}:{source.parents[1]}", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, "-c", ASK, *overrides]
    done = subprocess.run(command, cwd=source.parents[1], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    digest, *names = done.stdout.splitlines()[0].split()
    packages = {f"package {name}" for name in done.stdout.splitlines()[1].split()}
    return digest, {name.removeprefix("pipeline.") for name in names} | packages


def test_what_decides_and_what_does_not(source: Path) -> None:
    _, torch = ask(source)
    _, jax = ask(source, "backend=jax", "model=cnn")
    assert {"backends.torch.fit", "models.mlp", "models.torch_layers", "datasets.idx", "optimizers.adam"} <= torch
    assert {"backends.keras.fit", "backends.keras.engine_jax", "models.cnn", "models.keras_layers"} <= jax
    assert not any("keras" in name or name == "models.cnn" for name in torch)
    assert not any("torch" in name or name in ("models.mlp", "backends.keras.engine_tensorflow") for name in jax)
    for name in ("report.figures", "tracking.tracker", "runs.journal", "runs.run", "cli.terminal", "runs.receipt"):
        assert name not in torch | jax


@pytest.mark.parametrize(
    ("backend", "found"),
    [
        ("jax", {"package flax", "package optax"}),
        pytest.param("tensorflow", {"package tensorflow-probability", "package tf_keras"}, marks=pytest.mark.wide),
    ],
)
def test_what_a_solver_computes_with_on_a_backend_counts(source: Path, backend: str, found: set[str]) -> None:
    """With another L-BFGS of TensorFlow Probability, a grid gave the results of the one before."""
    words = ("stage=pinn", "dataset=function", "solver=deepxde_adam")
    assert found <= ask(source, *words, f"backend={backend}")[1]
    assert not found & ask(source, *words)[1]


@pytest.mark.parametrize(
    "words", ["stage=matmul", pytest.param("stage=devices stage.measure=true", marks=pytest.mark.wide)]
)
def test_the_program_that_measures_the_ceilings_counts(source: Path, words: str) -> None:
    before, _ = ask(source, *words.split())
    with (source / "kernels/cpu/team.h").open("a") as file:
        file.write("// another one\n")
    assert ask(source, *words.split())[0] != before


BY_NAME = {
    "experiment=gpt_tiny dataset.tokens=bytes": "tokens.byte",
    "experiment=gpt_tiny dataset.tokens=bpe backend=jax": "tokens.bpe",
    "stage=generate run=x": "backends.torch.generate",
    "stage=generate run=x backend=jax": "backends.keras.generate",
    "stage=export run=x": "backends.torch.export",
    "stage=export run=x backend=tensorflow": "backends.keras.export",
    "stage=lightning stage.module=own_lightning.Lit": "backends.torch.own",
    "stage=keras backend=jax stage.model=own_keras.model stage.data=own_keras.data": "backends.keras.own",
}


@pytest.mark.parametrize(
    "words", [next(iter(BY_NAME)), *(pytest.param(words, marks=pytest.mark.wide) for words in [*BY_NAME][1:])]
)
def test_what_is_imported_by_name_counts(source: Path, words: str) -> None:
    """An edit of a tokenizer passed a run's old result off as today's, and the study's too."""
    _, found = ask(source, *words.split(), PIPELINE_MODULES="own_lightning,own_keras")
    assert BY_NAME[words] in found


@pytest.mark.parametrize(
    "words",
    [
        "stage=lightning stage.module=mine.Lit +stage.arguments.table=table.txt",
        pytest.param(
            "stage=lightning stage.module=mine.Lit +stage.data_arguments.a.b=[table.txt]", marks=pytest.mark.wide
        ),
        pytest.param(
            "dataset=examples dataset.train=mine.train +dataset.arguments.f=table.txt", marks=pytest.mark.wide
        ),
    ],
)
def test_a_file_that_the_arguments_of_the_users_code_name_counts(source: Path, words: str) -> None:
    """A grid over a LightningModule that reads a table gave the results of the table before."""
    place = source.parents[1]
    (place / "mine.py").write_text("class Lit: pass\n\ndef train(f): pass\n")
    (place / "table.txt").write_text("1")
    before, _ = ask(source, *words.split(), PIPELINE_MODULES="mine")
    (place / "table.txt").write_text("2")
    after, _ = ask(source, *words.split(), PIPELINE_MODULES="mine")
    assert after != before


PINN = ("stage=pinn", "dataset=ode", "backend=jax", "precision=fp64")


@pytest.mark.wide
def test_a_solvers_code_decides_and_no_solver_is_no_part(source: Path) -> None:
    """Imports that wait until JAX is wanted are followed too: a change below them changes the hash."""
    before, found = ask(source, *PINN, "solver=ssbroyden")
    steps = {"training", "system", "ssbroyden_step", "quasi_newton", "line_search"}
    assert {f"pinn.solvers.{name}" for name in ("ssbroyden", "own", *steps)} <= found
    assert "pinn.solvers.adam_step" not in found
    _, classifier = ask(source)
    assert not any(name.startswith(("pinn.solvers", "pinn.problems")) for name in classifier)
    changed = source / "pinn/solvers/line_search.py"
    changed.write_text(changed.read_text().replace("TRIALS = 40", "TRIALS = 41"))
    assert ask(source, *PINN, "solver=ssbroyden")[0] != before


@pytest.mark.parametrize(
    ("solver", "step"),
    [
        ("adam", "adam_step"),
        pytest.param("lbfgs", "quasi_newton", marks=pytest.mark.wide),
        pytest.param("gauss_newton", "gauss_newton_step", marks=pytest.mark.wide),
    ],
)
def test_every_solver_of_our_own_is_followed(source: Path, solver: str, step: str) -> None:
    _, found = ask(source, *PINN, f"solver={solver}")
    assert {"pinn.solvers.training", "pinn.solvers.system", f"pinn.solvers.{step}"} <= found


@pytest.mark.wide
def test_a_stage_that_says_not_what_it_reads_has_its_solver(source: Path) -> None:
    _, found = ask(source, "stage=pinn_comparison")
    assert "pinn.solvers.gauss_newton_step" in found


def test_a_comment_changes_nothing_and_a_statement_does(source: Path) -> None:
    before, _ = ask(source)
    model = source / "models" / "mlp.py"
    text = model.read_text()
    model.write_text("# a comment\n" + text.replace('"""A multi-layer perceptron', '"""Another word for it'))
    assert ask(source)[0] == before
    model.write_text(text.replace("= (128,)", "= (129,)"))
    assert ask(source)[0] != before
    model.write_text(text)
    (source / "models" / "cnn.py").write_text("raise SystemExit\n")
    (source / "report" / "table.py").write_text((source / "report" / "table.py").read_text() + "\nMORE = 1\n")
    assert ask(source)[0] == before


def test_the_users_own_module_counts(source: Path) -> None:
    module = source.parents[1] / "mine.py"
    module.write_text(
        "from pipeline.models.mlp import Mlp\nfrom pipeline.spec import spec\n\n@spec\nclass Own(Mlp):\n    pass\n"
    )
    words = ("model._target_=mine.Own",)
    before, names = ask(source, *words, PIPELINE_MODULES="mine")
    assert {"mine", "models.mlp"} <= names
    module.write_text(module.read_text() + "\nNEW = 1\n")
    assert ask(source, *words, PIPELINE_MODULES="mine")[0] != before


@pytest.mark.wide
def test_a_file_that_a_setting_of_the_users_names_counts(source: Path) -> None:
    place = source.parents[1]
    (place / "mine.py").write_text(
        "from pipeline.models.mlp import Mlp\nfrom pipeline.spec import spec\n\n@spec\nclass Own(Mlp):\n"
        "    files: tuple[str, ...] = ()\n    text: str = 'relu'\n"
    )
    (place / "start.npy").write_text("1")
    words = ("model._target_=mine.Own", f"+model.files=[{place}/start.npy,gone.npy]")
    before, names = ask(source, *words, PIPELINE_MODULES="mine")
    assert before == ask(source, *words, PIPELINE_MODULES="mine")[0]
    (place / "start.npy").write_text("2")
    after, same = ask(source, *words, PIPELINE_MODULES="mine")
    assert before != after and names == same
    (place / "gone.npy").write_text("1")
    last = ask(source, *words[:1], "+model.files=[gone.npy]", PIPELINE_MODULES="mine")[0]
    assert last != after
    moved = place.rename(place.with_name(f"{place.name}-moved")) / "src" / "pipeline"
    assert ask(moved, *words[:1], "+model.files=[gone.npy]", PIPELINE_MODULES="mine")[0] == last


# Stages with cells of their own


@pytest.mark.wide
@pytest.mark.parametrize("module", ["compose", "entries"])
def test_seeds_have_the_code_that_composes_their_configs_and_takes_their_results(source: Path, module: str) -> None:
    before, found = ask(source, "stage=seeds")
    assert f"sweep.{module}" in found and {"sweep.plan", "sweep.summary", "sweep.notes"}.isdisjoint(found)
    changed = source / "sweep" / f"{module}.py"
    changed.write_text(changed.read_text() + "\nNEW = 1\n")
    assert ask(source, "stage=seeds")[0] != before


@pytest.mark.wide
def test_a_ladder_has_the_code_and_the_configs_of_its_rungs(source: Path) -> None:
    words = ("stage=ladder", "loader=memory")
    before, found = ask(source, *words)
    assert {"loaders.dataloader", "loaders.threads", "loaders.memory", "stages.train"} <= found
    changed = source.parents[1] / "conf" / "loader" / "threads.yaml"
    text = changed.read_text()
    assert "workers: 1" in text
    changed.write_text(text.replace("workers: 1", "workers: 2"))
    assert ask(source, *words)[0] != before


@pytest.mark.wide
def test_a_ladder_has_the_files_that_the_settings_of_every_rung_name(source: Path) -> None:
    place = source.parents[1]
    (place / "mine.py").write_text(
        "from pipeline.models.mlp import Mlp\nfrom pipeline.spec import spec\n\n@spec\nclass Own(Mlp):\n"
        "    file: str = ''\n"
    )
    words = ("stage=ladder", "model._target_=mine.Own", "+model.file=a.npy", "stage.rungs.amp='model.file=b.npy'")
    for name in ("a.npy", "b.npy"):
        (place / name).write_text("1")
    before, _ = ask(source, *words, PIPELINE_MODULES="mine")
    for name in ("a.npy", "b.npy"):
        (place / name).write_text("2")
        after, _ = ask(source, *words, PIPELINE_MODULES="mine")
        assert after != before, name
        before = after


@pytest.mark.wide
def test_a_rung_that_runs_nowhere_hides_none_of_those_above_it(source: Path) -> None:
    """They stand on the last rung that goes together, as when the ladder is climbed."""
    never = "stage.rungs.transfer='backend=jax'"  # loader=dataloader, of the rung below, feeds torch alone
    _, found = ask(source, "stage=ladder", "model=mlp", never, "stage.rungs.workers='model=linear'")
    assert {"models.linear", "backends.torch.fit", "loaders.memory"} <= found
    assert not any("keras" in name for name in found)


@pytest.mark.wide
def test_a_comparison_has_the_code_and_the_packages_of_its_rows(source: Path) -> None:
    _, found = ask(source, "stage=pinn_comparison", "stage.rows.adam='solver=deepxde backend=torch'")
    assert {"pinn.solvers.deepxde", "pinn.solvers.gauss_newton_step", "pinn.solvers.lbfgs_step"} <= found
    assert {f"package {name}" for name in ("deepxde", "torch", "jax", "scipy")} <= found


# The user's own code


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's package, a module of which is on the allow-list; helpers beside it, and something installed."""
    files = {
        "lab/__init__.py": "",
        "lab/models.py": "from typing import TYPE_CHECKING\nfrom .torch_parts import part\nif TYPE_CHECKING:\n"
        "    import lab.never\nelse:\n    import lab.always\n",
        "lab/torch_parts.py": "def part():\n    import keras_helper\n    return 'tables', 'start.csv'\n",
        "lab/always.py": "SOURCE = 'kernels/fast.cu'\n",
        "lab/never.py": "",
        "lab/unused.py": "",
        "keras_helper.py": "import importlib\nimportlib.import_module('spaces.deep')\nimport installed_one, gone\n",
        "spaces/deep.py": "import json, numpy\nopen('here.json')\n",
        "lab/kernels/fast.cu": "1",
        "lab/kernels/slow.cu": "1",
        "lab/tables/start.csv": "1",
        "here.json": "1",
        "site-packages/installed_one/__init__.py": "import installed_two",
        "site-packages/installed_two.py": "",
        "site-packages/Lab_Tools-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: Lab-Tools\nVersion: 2.0\n",
        "site-packages/Lab_Tools-2.0.dist-info/RECORD": "installed_one/__init__.py,,\n",
    }
    write_files(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    for folder in ("site-packages", "."):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    monkeypatch.setenv("PIPELINE_MODULES", "lab.models")
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """What was read of the code is kept for a process's life."""
    for module in (code, code_files, code_sources, code_syntax):
        for each in vars(module).values():
            if hasattr(each, "cache_clear"):
                each.cache_clear()


OWN = {"lab", "lab.models", "lab.torch_parts", "lab.always", "keras_helper", "spaces.deep"}


@pytest.mark.usefixtures("lab")
def test_the_users_code_is_followed_and_nothing_that_is_installed() -> None:
    assert code.closure(["lab.models"], "keras").keys() == OWN


@pytest.mark.parametrize(
    ("file", "decides"),
    [
        ("lab/torch_parts.py", True),
        ("lab/always.py", True),
        ("keras_helper.py", True),
        ("spaces/deep.py", True),
        ("lab/never.py", False),
        ("lab/unused.py", False),
        ("site-packages/installed_one/__init__.py", False),
        ("lab/kernels/fast.cu", True),
        ("lab/kernels/slow.cu", False),
        ("lab/tables/start.csv", True),
        ("here.json", True),
    ],
)
def test_a_change_of_a_file_of_the_users(lab: Path, file: str, decides: bool) -> None:
    """Of a module, or of a file that a module names: whole, folder by folder, or in the current folder."""
    before = code.hash_of(code.closure(["lab.models"]))
    (lab / file).write_text((lab / file).read_text() + "\nNEW = 1\n")
    forget()
    assert (code.hash_of(code.closure(["lab.models"])) != before) == decides


def test_a_variable_that_the_users_code_reads_counts(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab / "lab" / "always.py").write_text(
        "import os\nfrom os import environ, getenv\n"
        "WIDTH = os.environ['WIDTH'], environ.get('DEPTH', 2), getenv('ACT')\n"
        "os.environ['MADE'] = '1'\nos.environ.setdefault('QUIET', '1')\nMADE = os.environ['MADE'], environ['QUIET']\n"
        "TEMPORARY = os.environ['TMPDIR'], os.environ['KERAS_BACKEND'], 'NAMED', os.environ[__name__]\n"
        "OTHER = {}.get('OTHER')\n"
        "FAST = 'FAST' in os.environ\n"
        "NAME: str = 'BIAS'\nos.environ.setdefault('HEADS', '4')\nos.environ.setdefault('KEPT', NAME.lower())\n"
        "HEADS = os.environ['HEADS'], os.environ['KEPT'], environ.get(NAME)\n"
    )

    def found() -> str:
        forget()
        return code.hash_of(code.closure(["lab.models"]))

    counts = ("WIDTH", "DEPTH", "ACT", "FAST", "HEADS", "BIAS", "QUIET")
    for name in (*counts, "MADE", "KEPT", "TMPDIR", "KERAS_BACKEND", "NAMED", "OTHER"):
        monkeypatch.delenv(name, raising=False)
        before = found()
        monkeypatch.setenv(name, "20")
        assert (found() != before) == (name in counts), name
    before = found()
    monkeypatch.setenv("HEADS", "4")  # as the module sets it where it is not set, for the processes that follow too
    monkeypatch.delenv("QUIET")
    after = found()
    monkeypatch.delenv("HEADS")
    assert found() == after != before


SET_BY_ITSELF = [
    ("import os\nE = os.environ\nX = E.get('X')\n", {"X": None}),
    ("from os import environ as e, getenv as g\nX, Y = e['X'], g('Y')\n", {"X": None, "Y": None}),
    ("import os\nget = os.environ.get\nX = get('X')\n", {"X": None}),
    (
        "import os\nc = os.environ.copy()\nd = dict(os.environ)\nc['X'] = '1'\nX, Y = c['X'], d['Y']\n",
        {"X": None, "Y": None},
    ),
    ("import os\nos.environ['X'] = os.environ.get('X', '1')\n", {"X": "1"}),
    ("import os\nos.environ['X'] = os.environ.get('X') or '1'\n", {"X": "1"}),
    ("import os\nif 'X' not in os.environ:\n    os.environ['X'] = '1'\nX = os.environ['X']\n", {"X": "1"}),
    ("import os\nos.environ.setdefault('X', '')\n", {"X": ""}),
    ("import os\nos.environ['X'] = '1'\nX = os.environ['X']\n", {}),
    ("import os\nos.environ['X'] = str(len(os.environ.get('X', '1')))\n", {}),
    ("import os\nos.environ['X'] += ':a'\nX = os.environ['X']\n", {}),
    ("import os\nNAME = 'X'\nX = os.environ[NAME]\nNAME += 'Y'\n", {"X": None}),
    ("d = {}\nX = d.get('X')\nd['X'] = dict(d)['X']\n", {}),
]


@pytest.mark.parametrize(("source", "expected"), SET_BY_ITSELF)
def test_a_variable_counts_by_any_name_and_as_it_is_set(source: str, expected: dict[str, str | None]) -> None:
    """An alias of os.environ was not seen, and a variable that was given its own value was left out."""
    assert variables(ast.parse(source)) == expected


@pytest.mark.parametrize("named", ["HERE + '/t.json'", "f'{HERE}/t.json'", "HERE + '/tables/t.json'"])
def test_a_file_below_the_modules_folder_by_a_text_with_a_slash(tmp_path: Path, named: str) -> None:
    (tmp_path / "tables").mkdir()
    for folder in (tmp_path, tmp_path / "tables"):
        (folder / "t.json").write_text("0.01")
    module = ast.parse(f"import os\nHERE = os.path.dirname(__file__)\nRATE = float(open({named}).read())\n")
    found = code_files.files(code_files.names(module), tmp_path / "mine.py", [tmp_path], tmp_path)
    assert [shown for shown, _ in found] == [named.split("/", 1)[1].rstrip("'")]


def test_a_module_that_cannot_be_parsed_counts_by_its_bytes(lab: Path) -> None:
    before = code.closure(["lab.models"])
    (lab / "lab" / "always.py").write_text("print 'of Python 2'\n")
    forget()
    assert code.closure(["lab.models"]).keys() == before.keys()
    assert code.closure(["lab.models"]) != before


@pytest.mark.usefixtures("lab")
def test_the_distribution_that_brings_a_module() -> None:
    assert code_sources.distribution("installed_one") == "Lab-Tools"
    assert code_sources.distribution("numpy") == "numpy"
    assert code_sources.distribution("PIL.Image") == "pillow"
    assert [code_sources.distribution(name) for name in ("json", "lab", "gone")] == [None] * 3


# The hash on every Python

SNIPPET = '''
"""A docstring."""
from a import b as c
class One(Two, metaclass=Three):
    "Another."
    x: int = -1_000
    async def f(self, a, /, *b, c=None, **d) -> "str":
        return f"{a!r:>{b}} {c:%H:%M} x" f"{d}" + u"\\u00e9" + b"\\x00".decode() + "\\U0001fae8"
match [1.5, 2j, None, ..., {**x, 'y': True}]:
    case [One(x=1), *rest] if (y := lambda: 0xff): del y
    case None: pass
'''
# Of this text by Python 3.11.7, 3.12.1 and 3.13.0, where ast.dump gives three. The whole of this package, of the
# standard library and of six installed packages (3,899 files) gave the same on the first two.
SNIPPET_SHA256 = "f73c5b4dcbf8f101cea785c2f8fe70315d0c7ba8fc5f7aa45d90f89be49ab366"


def test_the_hash_is_that_of_other_pythons() -> None:
    assert hashlib.sha256(code_syntax.text(ast.parse(SNIPPET)).encode()).hexdigest() == SNIPPET_SHA256


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("x = 1 # one", "x = (\n1)", True),
        ("def f():\n  'of this'\n  return 1", "def f(): return 1", True),
        ("f'a' 'b'", "f'ab'", True),
        ("x = 1", "x = 1.0", False),
        ("x = 1", "x = True", False),
        ("x = None", "x: None", False),
        ("return_ = f'{x!r}'", "return_ = f'{x}'", False),
        ("f(None)", "f()", False),
        ("def f(): return 'of this'", "def f(): return", False),
    ],
)
def test_what_changes_the_text_of_code(one: str, other: str, same: bool) -> None:
    assert (code_syntax.text(ast.parse(one)) == code_syntax.text(ast.parse(other))) == same


@pytest.mark.parametrize(
    "text",
    [
        "x = " + " + ".join(f"a[{number}]" for number in range(1200)) + "\nimport keras_helper\n",
        "if x == 0: pass\n" + "".join(f"elif x == {number}: pass\n" for number in range(599)) + "import keras_helper\n",
        "x = "
        + "(" * 150
        + "1"
        + ")" * 150
        + "".join(f".f({number})" for number in range(900))
        + "\nimport keras_helper\n",
    ],
)
def test_long_code_is_hashed_and_followed(lab: Path, text: str) -> None:
    """Nested deeper than Python's stack."""
    before = code.closure(["lab.always"])
    (lab / "lab" / "always.py").write_text(text)
    forget()
    assert code.closure(["lab.always"])["lab.always"] != before["lab.always"]
    assert "keras_helper" in code.closure(["lab.always"])


def changes(lab: Path, text: str, *files: str) -> list[bool]:
    """Whether a change of each of `files` counts for a module of this text; their folders are made."""
    (lab / "lab" / "always.py").write_text(text)
    found = []
    for name in files:
        (lab / name).parent.mkdir(parents=True, exist_ok=True)
        (lab / name).write_text("1")
        forget()
        before = code.closure(["lab.always"])
        (lab / name).write_text("another")
        forget()
        found.append(code.closure(["lab.always"]) != before)
    return found


MESSAGE = "Размер скрытого слоя должен быть положительным целым числом, а число классов не меньше двух; " * 2


def test_what_cannot_name_a_file_is_no_file(lab: Path) -> None:
    """Longer than a name may be in bytes, not in letters; of two names the other still counts."""
    assert len(MESSAGE) < 200 < 255 < len(MESSAGE.encode())
    long = "é" * 120 + ".csv"
    text = f"TEXTS = {MESSAGE!r}, {'x/' * 3000!r}, 'here.json/below', '/etc/shadow/x', {long!r}\n"
    assert changes(lab, text, f"lab/{long}") == [True]


def test_a_file_that_cannot_be_read_counts_by_that(lab: Path) -> None:
    (lab / "lab" / "memory.bin").symlink_to("/proc/self/mem")  # of which even root reads no first byte
    (lab / "lab" / "always.py").write_text("open('memory.bin')\n")
    before = code.closure(["lab.always"])
    assert code_files.content(lab / "lab" / "memory.bin") == "not read: Input/output error"
    (lab / "lab" / "memory.bin").unlink()
    (lab / "lab" / "memory.bin").write_text("1")
    forget()
    assert code.closure(["lab.always"]) != before


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("open('sizes.log', 'a')", False),
        ("open('sizes.log', mode='w')", False),
        ("open('sizes.log')", True),
        ("open('sizes.log', 'rb')", True),
        ("from pathlib import Path\n(Path(__file__).parent / 'sizes.log').open('a')", False),
        ("from pathlib import Path\n(Path(__file__).parent / 'sizes.log').open()", True),
        (
            "from pathlib import Path\nHERE = Path(__file__).parent\nLOG = HERE / 'sizes.log'\nLOG.write_text('1')",
            False,
        ),
        ("LOG = 'sizes.log'\ndef f():\n    with open(LOG, 'a') as file: file.write('1')", False),
        ("LOG = 'sizes.log'\nopen(LOG, 'a')\nopen(LOG)", True),
        ("import numpy as np\nnp.save('sizes.log', [1])", False),
        ("import numpy as np\nx = np.load('sizes.log')\nnp.save('other.npy', x)", True),
        ("import numpy as np\nnp.save('other.npy', np.load('sizes.log'))", True),
        ("from pathlib import Path\nOUT = Path(__file__).with_suffix('.log')\nOUT.touch()\nopen('sizes.log')", True),
        ("open('sizes.log', 'r+')", True),
        ("open('sizes.log', 'a+')", True),
        ("open('sizes.log', 'w+b')", False),
        ("import numpy as np\nnp.memmap('sizes.log')", True),
        ("import numpy as np\nnp.memmap('sizes.log', mode='r+')", True),
        ("import numpy as np\nnp.memmap('sizes.log', 'float32', 'w+')", False),
        ("import h5py\nh5py.File('sizes.log', 'a')", True),
        ("import h5py\nh5py.File('sizes.log', 'w')", False),
        ("import gzip\ngzip.open('sizes.log', 'ab')", False),
        ("import shelve\nshelve.open('sizes.log', 'w')", True),  # which keeps what is there
        ("import zarr\nzarr.open('sizes.log', mode='a')", True),
        ("import logging\nlogging.FileHandler('sizes.log')", False),
        ("import logging\nlogging.basicConfig(filename='sizes.log')", False),
        ("import shutil\nshutil.copy('other.log', 'sizes.log')", False),
        ("import shutil\nshutil.copy('sizes.log', 'other.log')", True),
        ("import polars\npolars.DataFrame().to_parquet('sizes.log')", False),
        ("import os\nos.makedirs('sizes.log')", False),
    ],
)
def test_a_file_that_the_code_only_writes_does_not_count(lab: Path, text: str, counts: bool) -> None:
    assert changes(lab, text, "lab/sizes.log") == [counts]


STUB = "from pathlib import Path\nFOLDER = 'bank'\nFILE = Path(__file__).parent / FOLDER / 'basis.npy'\nFILE.touch()\n"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("from lab.stub import FILE\nopen(FILE)\n", True),
        ("import lab.stub as stub\nopen(stub.FILE)\n", True),
        ("from .stub import *\nopen(FILE)\n", True),
        ("import lab.stub\nFILE = 1\n", False),
    ],
)
def test_a_file_that_one_module_writes_counts_where_another_takes_its_name(lab: Path, text: str, counts: bool) -> None:
    (lab / "lab" / "stub.py").write_text(STUB)
    assert changes(lab, text, "lab/bank/basis.npy") == [counts]


def test_a_file_of_the_current_folder_counts_and_one_of_its_name_beside_the_module(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab / "elsewhere").mkdir()
    monkeypatch.chdir(lab / "elsewhere")
    text = "SOURCE = 'kernels/fast.cu', 'own.txt'\n"
    names = ("elsewhere/own.txt", "elsewhere/kernels/fast.cu", "lab/kernels/fast.cu")
    assert changes(lab, text, *names) == [True, True, True]


def test_files_that_are_named_in_other_ways(lab: Path) -> None:
    """By an absolute path, by the module's own name with another suffix, by their folder."""
    far = lab / "far" / "start.npy"
    assert changes(lab, f"open({str(far)!r})\nopen('/proc/uptime')\n", "far/start.npy") == [True]
    own = "from pathlib import Path\nopen(Path(__file__).with_suffix('.npy'))\n"
    assert changes(lab, own, "lab/always.npy", "lab/other.npy") == [True, False]
    folder = "from pathlib import Path\nlist((Path(__file__).parent / 'bank').glob('*.npy'))\n"
    assert changes(lab, folder, "lab/bank/new.npy", "lab/bank/below/deep.npy", "lab/bank/.hidden") == [
        True,
        False,
        False,
    ]
    (lab / "lab" / "bank" / "more.npy").write_text("1")
    forget()
    before = code.closure(["lab.always"])
    (lab / "lab" / "bank" / "more.npy").unlink()
    forget()
    assert code.closure(["lab.always"]) != before
    one = "from pathlib import Path\nopen(Path(__file__).parent / 'kernels' / 'fast.cu')\n"
    assert changes(lab, one, "lab/kernels/fast.cu", "lab/kernels/slow.cu") == [True, False]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("BANKS = {'bank': 1}\nprint(BANKS['bank'] / 255)\n", False),
        ("import logging\nlogging.getLogger('bank')\n", False),
        ("print(HERE / 'bank')\n", True),
        ("import os\nos.path.join(HERE, 'bank')\n", True),
        ("NAME = 'bank'\nprint(HERE / NAME)\n", True),
        ("class One:\n    folder: str = 'bank'\n    def f(self): return HERE / self.folder\n", True),
        ("def f(name): return HERE / name\nf('bank')\n", True),
        ("def f(name='bank'): return HERE / name\n", True),
        ("for name in ('bank', 'other'): print(HERE / name)\n", True),
        ("ALL = 'bank', 'other'\nprint([HERE / one for one in ALL])\n", True),
    ],
)
def test_a_folder_counts_where_its_name_stands_in_a_path(lab: Path, text: str, counts: bool) -> None:
    start = "from pathlib import Path\nHERE = Path(__file__).parent\n"
    assert changes(lab, start + text, "lab/bank/new.npy") == [counts]


def test_of_a_large_folder_names_sizes_and_times_count(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its bytes, which take seconds a gigabyte to hash; an array that changes keeps its size."""
    monkeypatch.setattr(code_files, "MOST_BYTES", 5)
    text = "from pathlib import Path\nlist((Path(__file__).parent / 'bank').glob('*'))\n"
    assert changes(lab, text, "lab/bank/a.npy", "lab/bank/b.npy") == [True, True]
    file = lab / "lab" / "bank" / "a.npy"
    named = code_sources.files("lab.always", lab / "lab" / "always.py", lab)
    assert named == [("bank", file.parent)]
    before = code_files.content(file.parent)
    assert code_files.content(file.parent) == before
    os.utime(file, (1, 1))
    assert code_files.content(file.parent) != before


def test_what_shows_the_systems_state_is_no_data() -> None:
    assert not any(
        code_files.is_data(Path(name)) for name in ("/proc/cpuinfo", "/dev/null", "/sys/kernel/mm", "/run/x")
    )
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"1")
        file.flush()
        assert code_files.is_data(Path(file.name))


def test_no_data_are_a_pipe_a_folder_and_an_empty_file(tmp_path: Path) -> None:
    """A pipe would be waited for when its bytes are to be hashed."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "one").write_text("1")
    names = ("pipe", "", "empty", "none", "one")
    assert [code_files.is_data(tmp_path / name) for name in names] == [False] * 4 + [True]


def test_a_setting_names_its_files_wherever_the_project_lies(lab: Path) -> None:
    """In the current folder and beside the module; a project's folder may be renamed."""
    (lab / "lab" / "start.npy").write_text("1")
    (lab / "start.npy").write_text("1")
    (lab / "elsewhere").mkdir()
    (lab / "elsewhere" / "start.npy").write_text("1")
    module, found = lab / "lab" / "models.py", code_files.of_value
    here = found("start.npy", module, lab)
    assert [file for _, file in here] == [lab / "start.npy", lab / "lab" / "start.npy"]
    moved = found("start.npy", module, lab / "elsewhere")
    assert [shown for shown, _ in moved] == [shown for shown, _ in here] and len({shown for shown, _ in here}) == 2
    assert found("start.npy", module, module.parent) == [("start.npy 0", module.parent / "start.npy")]
    assert found(str(lab / "start.npy"), module, lab) == [(str(lab / "start.npy"), lab / "start.npy")]


def test_a_file_is_hashed_again_only_when_it_has_changed(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, taken = lab / "here.json", list[str]()
    hashed = hashlib.file_digest

    def noted(opened: BufferedReader, name: str) -> object:
        taken.append(opened.name)
        return hashed(opened, name)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    before = code_files.content(file)
    assert (code_files.content(file), len(taken)) == (before, 2)  # written just now: it may change within the tick
    monkeypatch.setattr(code_files, "SETTLED_NS", -1)
    assert [code_files.content(file) for _ in range(3)] == [before] * 3
    assert len(taken) == 3
    file.write_text("2")
    assert code_files.content(file) != before


LOADED = {
    "spec_from_file_location('a', folder / f'{name}.py')": True,
    "importlib.util.spec_from_file_location('a', folder / 'helper.py')": False,
    "runpy.run_path(folder / name)": True,
    "exec(compile((folder / name).read_text(), name, 'exec'))": True,
    "exec('x = 1')": False,
    "import_module(name)": False,
    "open(folder / name).read()": False,
}


@pytest.mark.parametrize("text", LOADED)
def test_a_module_loaded_by_a_file_that_nothing_names_is_not_seen(lab: Path, text: str) -> None:
    write_files(lab, {"loads.py": f"folder = __file__\n\nfound = {text}\n", "helper.py": ""})
    said = unseen("loads", lab / "loads.py")
    assert (said is not None) == LOADED[text]
    if said is not None:
        assert said.startswith("loads.py, line 3: ")


def test_a_model_with_such_a_module_is_refused(tmp_path: Path) -> None:
    text = (
        "import runpy\nfrom pipeline.models.mlp import Mlp\nfrom pipeline.spec import spec\n\n\n"
        "@spec\nclass Own(Mlp):\n"
        "    def torch(self, shapes):\n        return runpy.run_path(f'{self.activation}.py')['net'](shapes)\n"
    )
    write_files(tmp_path, {"loads.py": text})
    known = {"PIPELINE_MODULES": "loads", "PYTHONPATH": str(tmp_path)}
    assert refused(tmp_path, "dataset=digits", "model._target_=loads.Own", **known) == (
        "loads.py, line 9: run_path() loads code by its file, which the code's hash does not see; "
        "import it by its name, "
        'or name the file in a string of that module, as FILES = ("lib/helper.py",)'
    )
