"""One stage of the study: an ordinary run of exactly what composed.yaml says, and what DVC keeps of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import UserError
from pipeline.experiment import Experiment, hash_of
from pipeline.machine.capability import Resolved
from pipeline.machine.launched import refuse_launched
from pipeline.ready import ready, ready_again
from pipeline.runner import record
from pipeline.runs.code import code_hash
from pipeline.runs.code.code_hash import modules
from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import run_folders
from pipeline.runs.process import process_started
from pipeline.runs.records import read_status
from pipeline.runs.resume import begun_before
from pipeline.runs.start import SAVED
from pipeline.spec import Config
from pipeline.study import composed, outcome, saved
from pipeline.study.compose import deciding
from pipeline.study.writers import writers_of


def run(name: str) -> int:
    """Run the stage `name`; its outcome lies in study/<name>/ then. Raises UserError and RunError."""
    entries = composed.read()
    entry = composed.entry(name, entries)
    refuse_other_settings(name, entry.config)
    experiment, resolved = ready(entry.whole, []) if entry.source is None else _started(entry, entries)
    refuse_launched(f"{composed.FILE}: {name}", experiment.device.processes)
    found, saves = modules(experiment), name in (one.source for one in entries.values())
    refuse_other_code(name, {**entry.writers, **entry.code}, {**writers_of(found, saves=saves), **found})
    status = record(experiment, resolved, checkpoint=begun_before(experiment, resolved))
    made = own_run(Path(experiment.settings.output_dir))
    outcome.keep(name, made)
    if saves and status == 0:
        saved.keep(name, made)
    return status


def _started(entry: composed.Entry, entries: Mapping[str, composed.Entry]) -> tuple[Experiment, Resolved]:
    """`ready` for a stage that starts from the run of another. Raises UserError where that is not there, or another."""
    name = str(entry.source)
    folder, source = saved.folder(name), composed.entry(name, entries)
    if not (folder / SAVED).is_file():
        raise UserError(f"{folder}: not there; `dvc repro` makes it")
    kept = read_json(folder / "receipt.json")
    for part, now in (("config", hash_of(source.config)), ("code", code_hash.hash_of(source.code))):
        if kept.get(f"{part}_sha256") != now:
            raise UserError(
                f"{folder}: its run had another {part} than {composed.FILE} has; `dvc repro` makes it again"
            )
    # The folder's whole path, as any run that starts from another keeps it.
    experiment, resolved = ready_again({**entry.whole, "run": str(folder.absolute())}, folder, "run")
    experiment.stage.check_keys(experiment, entry.keys)
    return experiment, resolved


def refuse_other_settings(name: str, tracked: Config) -> None:
    """What DVC tracks must be what params.yaml and conf/ say now: composed.yaml stays as it was where they are refused.
    Raises UserError where they were edited since."""
    now = deciding(name)
    if hash_of(now) == hash_of(tracked):
        return
    ours, theirs = outcome.flat(tracked), outcome.flat(now)
    keys = sorted(key.replace("/", ".") for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    raise UserError(
        f"{composed.FILE}: {name}: its settings have changed since it was written ({', '.join(keys)}); "
        "`dvc repro` composes it again"
    )


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
