"""A missing distribution: one message that names the extra, before anything runs."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command import environment

from pipeline.errors import Impossible
from pipeline.machine.installed import EXTRAS, check_installed, is_installed

ROOT = Path(__file__).parents[1]
OPTIONAL = (
    "tensorflow",
    "keras",
    "jax",
    "tf_keras",
    "flax",
    "deepxde",
    "dvc",
    "ruamel",
    "tensorboard",
    "submitit",
    "ray",
    "onnx",
    "safetensors",
    "datasets",
    "tokenizers",
)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages like this environment's, without those that the extras add."""
    folder = tmp_path_factory.mktemp("core") / "site-packages"  # by this name it is not the user's own code
    folder.mkdir()
    here = Path(str(importlib.metadata.distribution("numpy").locate_file("")))
    for entry in here.iterdir():
        if not entry.name.lower().startswith(OPTIONAL):
            (folder / entry.name).symlink_to(entry)
    return folder


def message(core: Path, module: str, *arguments: str) -> str:
    """What the command prints in an environment of the packages in `core`; it must exit with 2."""
    paths = environment(PYTHONPATH=f"{core}:{ROOT / 'src'}")
    command = [sys.executable, "-S", "-m", module, *arguments]
    result = subprocess.run(
        command, cwd=core.parent, env=paths, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 2, result.stdout + result.stderr
    assert not list(core.parent.glob("runs/*"))
    return result.stderr.strip()


@pytest.mark.parametrize(
    ("arguments", "what", "missing", "extras"),
    [
        ("backend=tensorflow", "backend=tensorflow", "tensorflow and keras are", "tensorflow"),
        ("experiment=mnist_cnn backend=jax", "backend=jax", "jax and keras are", "jax"),
        ("stage=pinn", "solver=deepxde", "deepxde is", "deepxde"),
        ("stage=pinn solver=adam", "backend=jax", "jax and keras are", "jax"),
        ("stage=pinn backend=jax", "backend=jax with solver=deepxde", "flax is", "physics"),
        ("model.start=my.safetensors", "model.start=my.safetensors", "safetensors is", "export"),
        ("dataset=huggingface", "dataset=huggingface", "datasets is", "huggingface"),
        ("stage=train model=gpt dataset=text dataset.tokens=bpe", "dataset=text", "tokenizers is", "text"),
        ("profiler=tensorboard", "profiler=tensorboard", "tensorboard is", "tensorboard"),
    ],
)
def test_a_missing_package_is_one_message_that_names_the_extra(
    core: Path, arguments: str, what: str, missing: str, extras: str
) -> None:
    said = message(core, "pipeline", *arguments.split())
    assert said.startswith(f"error: {what}: {missing} not installed; ")
    assert re.search(rf" -m pip install -c \S*constraints.txt -e '\S+\[{extras}\]'$", said), said


def test_the_study_names_its_extra(core: Path) -> None:
    assert "the study: dvc and ruamel.yaml are not installed; " in message(core, "pipeline.study", "compose")


def test_a_grid_skips_the_cells_of_a_backend_that_is_missing(core: Path) -> None:
    paths = environment(PYTHONPATH=f"{core}:{ROOT / 'src'}", PYTHONNOUSERSITE="1")
    words = ("-m", "dataset=digits", "backend=torch,jax", "sweep.dry_run=true", "tracking=none")
    command = [sys.executable, "-S", "-m", "pipeline", *words]
    result = subprocess.run(
        command, cwd=core.parent, env=paths, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "jax and keras are not installed" in result.stdout + result.stderr


def test_the_extras_are_those_of_pyproject() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: {re.split(r"[<>=\[]", item)[0] for item in items} - {"pipeline"}
        for name, items in declared["optional-dependencies"].items()
    }
    for name, distributions in EXTRAS.items():
        assert set(distributions) == extras[name]
    core = {re.split(r"[<>=]", item)[0] for item in declared["dependencies"]}
    assert not core & {name for names in EXTRAS.values() for name in names}


def test_the_wheel_has_every_package_of_the_source() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    source = ROOT / "src"
    found = {".".join(file.parent.relative_to(source).parts) for file in source.rglob("*.py")}
    assert set(declared) - {"pipeline.conf"} == found


def test_what_no_extra_has_is_installed_by_its_name() -> None:
    assert is_installed("pillow")  # whose module has another name
    with pytest.raises(
        Impossible, match=r"^stage=mine: no-such-thing is not installed; \S+ -m pip install no-such-thing$"
    ):
        check_installed({"stage=mine": ("numpy", "no-such-thing")})
