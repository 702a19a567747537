"""The hash of the code that decides a result: what it follows and what it leaves out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
ASK = """
import sys
from pipeline import code, experiment
from pipeline.backends import Jax, TensorFlow, Torch
from pipeline.conf_path import conf_path
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from pipeline.sweep import hydra_plugins
hydra_plugins.register()
with initialize_config_dir(str(conf_path()), version_base="1.3"):
    config = OmegaConf.to_container(compose("config", overrides=sys.argv[1:]), resolve=True)
found = experiment.load(config)
print(code.code_sha256(found), *code.modules(found))
assert not {"torch", "keras", "tensorflow", "jax"} & set(sys.modules)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the package that may be edited."""
    shutil.copytree(SOURCE / "pipeline", tmp_path / "src" / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(SOURCE.parent / "conf", tmp_path / "conf")
    return tmp_path / "src" / "pipeline"


def ask(source: Path, *overrides: str, **environment: str) -> tuple[str, set[str]]:
    """The hash and the deciding modules of an experiment, as the package in `source` tells them."""
    variables = {"PYTHONPATH": f"{source.parent}:{source.parents[1]}", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, "-c", ASK, *overrides]
    done = subprocess.run(command, cwd=source.parents[1], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    digest, *names = done.stdout.split()
    return digest, {name.removeprefix("pipeline.") for name in names}


def test_what_decides_and_what_does_not(source: Path) -> None:
    _, torch = ask(source)
    _, jax = ask(source, "backend=jax", "model=cnn")
    assert {"backends.lightning", "models.mlp", "models.torch_layers", "datasets.idx", "optimizers.adam"} <= torch
    assert {"backends.keras", "backends.keras_jax", "models.cnn", "models.keras_layers"} <= jax
    assert not any("keras" in name or name == "models.cnn" for name in torch)
    assert not any("torch" in name or name in ("models.mlp", "backends.keras_tensorflow") for name in jax)
    for name in ("report.figures", "tracking", "journal", "run", "terminal", "receipt"):
        assert name not in torch | jax


PINN = ("stage=pinn", "dataset=ode", "backend=jax", "precision=fp64")


def test_a_solvers_code_decides_and_no_solver_is_no_part(source: Path) -> None:
    """Imports that wait until JAX is wanted are followed too: a change below them changes the hash."""
    before, found = ask(source, *PINN, "solver=ssbroyden")
    steps = {"training", "system", "ssbroyden_step", "quasi_newton", "line_search"}
    assert {f"solvers.{name}" for name in ("ssbroyden", "own", *steps)} <= found
    assert "solvers.adam_step" not in found
    _, classifier = ask(source)
    assert not any(name.startswith(("solvers", "problems")) for name in classifier)
    changed = source / "solvers" / "line_search.py"
    changed.write_text(changed.read_text().replace("TRIALS = 40", "TRIALS = 41"))
    assert ask(source, *PINN, "solver=ssbroyden")[0] != before


@pytest.mark.parametrize(
    ("solver", "step"), [("adam", "adam_step"), ("lbfgs", "quasi_newton"), ("gauss_newton", "gauss_newton_step")]
)
def test_every_solver_of_our_own_is_followed(source: Path, solver: str, step: str) -> None:
    _, found = ask(source, *PINN, f"solver={solver}")
    assert {"solvers.training", "solvers.system", f"solvers.{step}"} <= found


def test_a_stage_that_says_not_what_it_reads_has_its_solver(source: Path) -> None:
    _, found = ask(source, "stage=pinn_comparison")
    assert "solvers.gauss_newton_step" in found


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
