"""Which imported modules count as the user's beside those that the code names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import write_files

# A process that has imported as a user's code does, and has loaded what a compiler makes as torch's inductor does.
ASK = """
import importlib, importlib.util, json, sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from pipeline import experiment
from pipeline.runs import dynamic_imports
from pipeline.cli.conf_path import conf_path
from pipeline.sweep import hydra_plugins

def loaded(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])

hydra_plugins.register()
with initialize_config_dir(str(conf_path()), version_base="1.3"):
    config = OmegaConf.to_container(compose("config", overrides=["model._target_=mine.Own"]), resolve=True)
found = experiment.load(config)
importlib.import_module("parts.wide")
importlib.import_module("namespace.deep")
for name, file in json.loads(sys.argv[1]).items():
    loaded(name, file)
print(*dynamic_imports.imported_beside(found))
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A user's folder with a model and a part of it, and code of others: on the path, and generated."""
    files = {
        "lab/mine.py": "from pipeline.models.mlp import Mlp\nfrom pipeline.spec import spec\n\n"
        "@spec\nclass Own(Mlp):\n    pass\n",
        "lab/parts/wide.py": "",
        "lab/by_its_file.py": "",
        "lab/.cache/launcher.py": "",
        "lab/kernels/cabc.main.py": "",
        "other/namespace/deep.py": "",
        "temporary/cdef.main.py": "",
    }
    write_files(tmp_path, files)
    return tmp_path


def beside(folder: Path, cwd: str, loaded: dict[str, str]) -> set[str]:
    """The modules that count; `loaded`: names and files, below `folder`, of modules that no finder knows."""
    variables = {
        **os.environ,
        "PIPELINE_MODULES": "mine",
        "PYTHONPATH": os.pathsep.join([str(folder / "lab"), str(folder / "other"), os.environ.get("PYTHONPATH", "")]),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "lab" / "kernels"),
    }
    files = json.dumps({name: str(folder / file) for name, file in loaded.items()})
    command = [sys.executable, "-c", ASK, files]
    done = subprocess.run(command, cwd=folder / cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("cwd", ["lab", "other"])
def test_what_a_compiler_makes_is_not_the_users(lab: Path, cwd: str) -> None:
    """Nor is this package's own module that Hydra knows by another name (hydra_plugins.pipeline)."""
    loaded = {
        "shown.by_its_file": "lab/by_its_file.py",
        "cdef.kernel": "temporary/cdef.main.py",
        "cabc.kernel": "lab/kernels/cabc.main.py",  # TORCHINDUCTOR_CACHE_DIR in the user's folder
        "launcher.triton": "lab/.cache/launcher.py",
    }
    assert beside(lab, cwd, loaded) == {"parts.wide", "namespace.deep", "shown.by_its_file"}
