"""study/saved/<stage>/: the run of a stage as another starts from it: what it was, and the model that it saved.

It is an output of the one stage and a dependency of the other, so that DVC orders them, reruns the second where the
first has changed, and brings it to another machine, where runs/ is not. A run that made the same model gives the same
bytes, so that the second is not rerun: times, memory, the process and the commit are in study/<stage>/receipt.json.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.errors import RunError
from pipeline.runs.json_files import cannot_write, read_json, write_json
from pipeline.runs.result import Result, read_result
from pipeline.runs.start import SAVED
from pipeline.study.outcome import ROOT

FOLDER = ROOT / "saved"
FILES = ("config.yaml", "code.json")
MODEL = "artifacts/model"
# Of the receipt what a later stage holds the config, the code, the data and the model against, and what ran.
RECEIPT = (
    "seed", "config_sha256", "code_sha256", "data_sha256", "held_out", "card_sha256", "weights_sha256",
    "adapters_sha256", "metrics", "task", "backend", "precision",
)  # fmt: skip


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
        receipt = read_json(run / "receipt.json")
        write_json(kept / "receipt.json", {key: receipt[key] for key in RECEIPT if key in receipt})
        if (result := read_result(run)) is not None:
            write_json(kept / "result.json", _same_for_the_model(result).plain())
    except OSError as error:
        raise cannot_write(kept, error, key="") from error


def _same_for_the_model(result: Result) -> Result:
    """Of a result what a later stage reads, and no time: the metrics, and what was noted of the test."""
    metrics, last = ([one for one in each if not one.of_machine] for each in (result.metrics, result.last_epoch))
    return Result(metrics=tuple(metrics), last_epoch=tuple(last), notes=result.notes)
