"""Every recipe says what it is, and reaches the figure that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONF = Path(__file__).parents[1] / "conf"
RECIPES = sorted((CONF / "experiment").glob("*.yaml"))
COMMAND = re.compile(r"# Command: python -m pipeline (.*)")
REACH = re.compile(r"Must reach a (test accuracy|relative L2 error) of (\d[\d.]*(?:e-\d+)?)\.")
FIGURES = {"test accuracy": "test/accuracy", "relative L2 error": "test/relative_l2"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_opens_with_source_command_time_and_figure(path: Path) -> None:
    head = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    assert f"experiment={path.stem}" in head
    assert re.search(r"Takes \d+ (s|minutes)", head)
    assert REACH.search(head)


@pytest.mark.parametrize("path", sorted(CONF.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_choice_opens_with_a_comment(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_reaches_its_figure(path: Path, tmp_path: Path) -> None:
    command, wanted = COMMAND.search(path.read_text()), REACH.search(path.read_text())
    assert command and wanted
    words = [sys.executable, "-m", "pipeline", *command[1].split(), "tracking=none"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text())["scalars"] for path in (tmp_path / "runs").glob("*/result.json")]
    found = [result[name] for result in results if (name := FIGURES[wanted[1]]) in result]
    if wanted[1] == "test accuracy":
        assert max(found) >= float(wanted[2])
    else:
        assert min(found) <= float(wanted[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["", "experiment=fashion_linear", "experiment=fashion_cnn"], ids=["mlp", "linear", "cnn"]
)
def test_backends_reach_the_same_accuracy(recipe: str, tmp_path: Path) -> None:
    """Within 0.01 of each other on Fashion-MNIST, and above the floors of the project."""
    found = {}
    for backend in ("torch", "tensorflow", "jax"):
        words = [recipe] if recipe else []
        command = [sys.executable, "-m", "pipeline", *words, f"backend={backend}", "tracking=none"]
        command += [f"output_dir={backend}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        run = next((tmp_path / backend).iterdir())
        found[backend] = json.loads((run / "result.json").read_text())["scalars"]["test/accuracy"]
    floor = {"": 0.875, "experiment=fashion_linear": 0.83, "experiment=fashion_cnn": 0.90}[recipe]
    assert min(found.values()) >= floor, found
    assert max(found.values()) - min(found.values()) <= 0.01, found
