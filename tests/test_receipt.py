"""What a receipt says of the code, the config and the versions, apart from the run that it belongs to."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import environment, pipeline

from pipeline import experiment as experiments
from pipeline.receipt import versions

SOURCE = Path(__file__).parents[1] / "src" / "pipeline"
GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org")


def said(code: str, folder: Path, *search: Path) -> Any:
    """What a process in `folder` that imports from the folders of `search` prints as JSON."""
    told = environment(PYTHONPATH=":".join(map(str, search)))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=told, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


# The commit


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*GIT, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def committed(folder: Path) -> str:
    """Make `folder` a repository of all that it holds and does not ignore; its commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return git(folder, "rev-parse", "HEAD")


def state(folder: Path, search: Path) -> Any:
    return said(
        "import json; from pipeline.repositories import git_state; print(json.dumps(git_state()))", folder, search
    )


def package(where: Path) -> Path:
    shutil.copytree(SOURCE, where / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    return where


def test_commit_of_a_checkout_and_what_makes_it_dirty(tmp_path: Path) -> None:
    package(tmp_path / "src")
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mlp.yaml").write_text("units: [128]\n")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    commit = committed(tmp_path)
    assert state(tmp_path, tmp_path / "src") == {"commit": commit, "dirty": False}
    (tmp_path / "notes.txt").write_text("of no consequence")
    assert state(tmp_path, tmp_path / "src")["dirty"] is False
    for name in ("conf/model/mine.yaml", "src/pipeline/models/mine.py"):
        (tmp_path / name).write_text("# new\n")
        assert state(tmp_path, tmp_path / "src") == {"commit": commit, "dirty": True}
        (tmp_path / name).unlink()
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    assert state(tmp_path, tmp_path / "src")["dirty"] is True


def test_a_repository_that_only_contains_the_installed_package_is_not_its_commit(tmp_path: Path) -> None:
    site = package(tmp_path / ".venv" / "site-packages")
    (tmp_path / ".gitignore").write_text(".venv/\n")
    committed(tmp_path)
    assert state(tmp_path, site) == {"commit": None, "dirty": None}


# The config


def config_hash(config: dict[str, Any], **changes: Any) -> str:
    changed = dict(config)
    for key, value in changes.items():
        group, _, name = key.partition("__")
        changed[group] = {**changed[group], name: value} if name else value
    return experiments.load(changed).config_sha256()


def test_config_hash_is_of_what_decides_the_result(tmp_path: Path) -> None:
    shown = pipeline(tmp_path, "--cfg", "job", "--resolve")
    config = yaml.safe_load(shown.stdout)
    same = config_hash(config)
    for change in ({"dataset__cache": "a"}, {"dataset__folder": "b"}, {"output_dir": "c"}, {"name": "e"}):
        assert config_hash(config, **change) == same
    others = ({"dataset__validation": 1}, {"seed": 1}, {"model__units": [3]}, {"training__epochs": 1})
    assert same not in [config_hash(config, **change) for change in others]


# Versions


def test_versions_name_the_part_of_jax_that_computes() -> None:
    assert {"python", "jax", "jaxlib", "keras", "numpy"} <= versions(("jax", "keras")).keys()
    assert "jaxlib" not in versions(("torch",))


ASK = "import json; from pipeline import backends, cuda; print(json.dumps(dict(cuda.versions(backends.Torch()))))"


@pytest.mark.parametrize("built_for", ["'13.0'", "None"])
def test_versions_of_cuda_where_torch_is_built_for_it(tmp_path: Path, built_for: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"debug = False\ncuda: Optional[str] = {built_for}\nhip = '6.0'\n")
    (tmp_path / "nvidia_cudnn_cu13-9.15.dist-info").mkdir()
    metadata = tmp_path / "nvidia_cudnn_cu13-9.15.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: nvidia-cudnn-cu13\nVersion: 9.15\n")
    found = said(ASK, tmp_path, tmp_path, SOURCE.parent)
    if built_for == "None":
        assert found == {}
    else:
        assert (found["torch-cuda"], found["nvidia-cudnn-cu13"]) == ("13.0", "9.15")
        assert found["driver"]
