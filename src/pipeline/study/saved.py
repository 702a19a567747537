"""study/saved/<stage>/: the run of a stage as another starts from it: what it was, and the model that it saved.

It is an output of the one stage and a dependency of the other, so that DVC orders them, reruns the second where the
first has changed, and brings it to another machine, where runs/ is not.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.errors import RunError
from pipeline.runs.json_files import cannot_write
from pipeline.runs.start import SAVED
from pipeline.study.outcome import ROOT

FOLDER = ROOT / "saved"
FILES = ("config.yaml", "status.json", "receipt.json", "result.json", "code.json")
MODEL = "artifacts/model"


def folder(name: str) -> Path:
    """Where the saved run of the stage `name` lies. Messages name a run by its folder, which is the stage's name."""
    return FOLDER / name


def keep(name: str, run: Path) -> None:
    """Write study/saved/<name>/ anew from the run's folder. Raises RunError for a run that saved no model."""
    kept = folder(name)
    if not (run / SAVED).is_file():
        raise RunError(f"{name}: the run {run.name} saved no model, from which another stage is to start")
    try:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(run / MODEL, kept / MODEL)
        for file in FILES:
            if (run / file).is_file():
                shutil.copyfile(run / file, kept / file)
    except OSError as error:
        raise cannot_write(kept, error, key="") from error
