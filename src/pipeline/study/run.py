"""One stage of the study: an ordinary run of exactly what composed.yaml says, and what DVC keeps of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import UserError
from pipeline.machine.launched import refuse_launched
from pipeline.ready import ready
from pipeline.runner import record
from pipeline.runs.code.code_hash import modules
from pipeline.runs.lookup import run_folders
from pipeline.runs.process import process_started
from pipeline.runs.records import read_status
from pipeline.runs.resume import begun_before
from pipeline.study import composed, outcome
from pipeline.study.writers import writers_of


def run(name: str) -> int:
    """Run the stage `name`; its outcome lies in study/<name>/ then. Raises UserError and RunError."""
    entry = composed.entry(name)
    experiment, resolved = ready(entry.whole, [])
    refuse_launched(f"{composed.FILE}: {name}", experiment.device.processes)
    found = modules(experiment)
    refuse_other_code(name, {**entry.writers, **entry.code}, {**writers_of(found), **found})
    status = record(experiment, resolved, checkpoint=begun_before(experiment, resolved))
    outcome.keep(name, own_run(Path(experiment.settings.output_dir)))
    return status


def refuse_other_code(name: str, tracked: Mapping[str, str], found: Mapping[str, str]) -> None:
    """What DVC tracks must be what runs. Raises UserError where the code was edited since."""
    names = sorted(module for module in {*tracked, *found} if tracked.get(module) != found.get(module))
    if names:
        raise UserError(
            f"{composed.FILE}: {name}: the code has changed since it was written ({', '.join(names)}); "
            "`dvc repro` composes it again"
        )


def own_run(root: Path) -> Path:
    """The run that this process has made. One process makes one."""
    for folder in reversed(run_folders(root)):
        status = read_status(folder)
        if status and (status.pid, status.process_started) == (os.getpid(), process_started(os.getpid())):
            return folder
    raise AssertionError(f"no run of this process below {root}")
