"""Runs that were killed, or failed: which one `resume=` means, and whether what is here now may go on with it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.streams import say
from pipeline.errors import UserError
from pipeline.runs.checkpoint import FOLDER, Checkpoint, newest
from pipeline.runs.hardware import device_differences
from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import find_run, newest_first, reap, reap_these, run_folders
from pipeline.runs.noted_path import noted_path
from pipeline.runs.records import TOO_LONG, Status, read_config, read_status, value_at
from pipeline.runs.swept import has, told_apart_by
from pipeline.spec import Config

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.machine.capability import Resolved
    from pipeline.runs.run import Run

AUTO = "auto"  # go on with a killed run of the same experiment, if there is one; otherwise begin
KILLED = ("KILLED",)
DEAD = (*KILLED, "FAILED")
STRICT = "training.checkpoint.strict"
OF_LAST_PROCESS = ("peak_memory", "device.cpu_threads")  # what a receipt cannot say of the process that was killed
MOST_MODULES = 3  # named in a message
CODE = "code"  # where no module of it can be named
OWN = ("resume", "output_dir", STRICT)


def resumed(config: Config, overridden: Sequence[str]) -> tuple[Path, dict[str, Any], Checkpoint, list[str]]:
    """The folder of the run that `resume=` names, its config, its newest checkpoint that is whole, and notes.

    `overridden`: the keys that the user set. Raises UserError for a run that nobody can go on with.
    """
    reference, root = str(config["resume"]), Path(str(config["output_dir"])).absolute()
    check_alone(reference, overridden)
    reap(root)
    folder, passed = _latest(root) if reference == "latest" else (_found(root, reference), [])
    _check_status(reference, folder, read_status(folder))
    checkpoint, notes = newest(folder)
    if checkpoint is None:
        why = f"; {notes[0].partition('; ')[0]}" if notes else ""
        raise UserError(f"resume={reference}: {folder.name} has no checkpoint{why}; run it again")
    saved = read_config(folder)
    if not saved:
        raise UserError(f"resume={reference}: {folder / 'config.yaml'} is missing or damaged")
    saved["output_dir"] = str(folder.parent)
    if STRICT in overridden:
        saved["training"]["checkpoint"]["strict"] = config["training"]["checkpoint"]["strict"]
    return folder, saved, checkpoint, [*passed, *notes]


def check_alone(reference: str, overridden: Sequence[str]) -> None:
    """Refuse settings beside `resume=<reference>`. Raises UserError."""
    other = next((key for key in overridden if key not in OWN), None)
    if other is not None:
        raise UserError(f"{other} with resume={reference}: a run resumes with its own settings; leave it out")


def _found(root: Path, reference: str) -> Path:
    try:
        return find_run(root, reference)
    except UserError as error:
        raise UserError(f"resume={str(error).removeprefix('run=')}") from error


def _latest(root: Path) -> tuple[Path, list[str]]:
    """The newest run that was killed, or failed, and has a checkpoint; and notes on those that may have been meant."""
    passed: list[Path] = []
    for folder in filter(_is_dead, newest_first(run_folders(root))):
        if newest(folder)[0] is None:
            passed.append(folder)
        else:
            return folder, _passed_over(passed) + _of_whole(root, folder)
    raise UserError(f"resume=latest: no run in {root} that was killed or failed has a checkpoint")


def _is_dead(folder: Path) -> bool:
    status = read_status(folder)
    return status is not None and status.state in DEAD


def _passed_over(newer: Sequence[Path]) -> list[str]:
    """That there are newer runs, which cannot go on."""
    if not newer:
        return []
    more = f", and {len(newer) - 1} more" if len(newer) > 1 else ""
    return [f"passed over, having no checkpoint: {newer[0].name}, the newest run that was killed or failed{more}"]


def _of_whole(root: Path, cell: Path) -> list[str]:
    """That a run is a cell of a stage, or a grid, which has ended and does not go on with it."""
    for folder in filter(_is_dead, run_folders(root)):
        if any(noted_path(note).name == cell.name for note in (folder / "cells").glob("*.run")):
            return [
                f"a cell of {folder.name}, which was killed or failed and has no checkpoint: only the cell is resumed"
            ]
    return []


def _check_status(reference: str, folder: Path, status: Status | None) -> None:
    if status is None:
        raise UserError(f"resume={reference}: {folder / 'status.json'} is missing or damaged")
    if status.state == "RUNNING":
        raise UserError(f"resume={reference}: {folder.name} is still running (process {status.pid} on {status.host})")
    if status.state not in DEAD:
        trained = (folder / "artifacts/model/weights.npz").exists()
        again = f"; stage=rerun run={reference} repeats it" if trained else ""
        raise UserError(f"resume={reference}: {folder.name} is {status.state}{again}")


def begun_before(
    experiment: Experiment, resolved: Resolved, swept: Iterable[str] = (), states: Collection[str] = KILLED
) -> Checkpoint | None:
    """The newest checkpoint of a killed run of the same experiment, where everything is as it was then.

    `swept`: of a cell of a grid, whose runs have its values of these keys. `states`: how the run may have ended.

    Says of a run that it would have been, but for what has changed; and where its name is not the one asked for.
    """
    from pipeline.cli.terminal import messages
    from pipeline.runs import receipt as receipts

    wanted, words = told_apart_by(experiment, swept), "was killed" if states == KILLED else "was stopped"
    for folder, then in _ended(Path(experiment.settings.output_dir).absolute(), states):
        if then.get("config_sha256") != experiment.config_sha256() or not has(folder, wanted):
            continue
        checkpoint, notes = newest(folder)
        if checkpoint is not None:
            notes += differences(folder, checkpoint, now := receipts.before(experiment, resolved), experiment)
            if then.get("profiler") != now["profiler"]:
                notes.append("another profiler")
        if checkpoint is not None and not notes:
            status, name = read_status(folder), experiment.settings.name
            if name and status is not None and status.name != name:
                said = f"name={name}: resumes {folder.name}, which keeps its name, {status.name}"
                say(messages(), said)
            return checkpoint
        for note in notes:
            say(messages(), f"{folder.name} {words} and is not resumed: {note}")
    return None


def _is_late(status: Status) -> bool:
    """Whether it was stopped for its time: a run that failed by itself would fail at that place again, and one whose
    data have changed is refused."""
    return (status.error or "").startswith(TOO_LONG)


def _ended(root: Path, states: Collection[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The runs that ended so and may have a checkpoint, the newest first, with their receipts."""
    folders = newest_first(folder for folder in run_folders(root) if (folder / FOLDER).exists())
    reap_these(folders)
    for folder in folders:
        status = read_status(folder)
        if status is not None and status.state in states and (status.state != "FAILED" or _is_late(status)):
            yield folder, read_json(folder / "receipt.json")


def identity() -> dict[str, object]:
    """What of this machine decides the order of sums, beside what a receipt has."""
    return {"cores": len(os.sched_getaffinity(0))}


def resumptions(run: Run) -> dict[str, Any]:
    """For the receipt of a run that goes on: where it did, this time and before."""
    if run.checkpoint is None:
        return {}
    earlier = read_json(run.folder / "receipt.json").get("resumed", [])
    checkpoint = run.checkpoint
    now: dict[str, Any] = {"step": checkpoint.step, "time": time.time(), "earlier_s": run.earlier_s}
    now["differences"] = list(checkpoint.differences)
    if "note" in checkpoint.progress:
        now["note"] = checkpoint.progress["note"]
    return {"resumed": [*earlier, now], "of_the_last_process": list(OF_LAST_PROCESS)}


def differences(folder: Path, checkpoint: Checkpoint, receipt: Mapping[str, Any], experiment: Experiment) -> list[str]:
    """What is not as it was when the run was killed, so that it may not end with the same bits.

    `receipt`: what one of `experiment` would now begin with.
    """
    from pipeline.runs import dynamic_imports
    from pipeline.runs.code.code_hash import modules

    then = read_json(folder / "receipt.json")
    if not then:
        return ["receipt.json is missing or damaged"]
    found = ["settings"] if then.get("config_sha256") != receipt["config_sha256"] else []
    if then.get("code_sha256") != receipt["code_sha256"]:
        found.append(said_of_code(read_json(folder / "code.json"), modules(experiment), experiment))
    imported = checkpoint.progress.get("imported_beside", then.get("imported_beside", {}))
    known = {name: one for name, one in imported.items() if one["sha256"] != dynamic_imports.EDITED}
    found += [f"code of {name}" for name in dynamic_imports.changed(known)]
    before, now = then.get("versions", {}), receipt["versions"]
    found += [f"{name} {before.get(name)}, now {now.get(name)}" for name in _changed(before, now)]
    devices = [_but_cores(one.get("device", {}).get("hardware") or {}) for one in (then, receipt)]
    found += device_differences(devices[0], devices[1])
    before, now = then.get("environment", {}), receipt["environment"]
    found += [f"{name}={before.get(name, '')}, now {now.get(name, '')}" for name in _changed(before, now)]
    before, now = checkpoint.progress["identity"], identity()
    found += [f"{name} {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
    return found


def _changed(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names that only one of both has, or that have another value."""
    return [name for name in {**then, **now} if then.get(name) != now.get(name)]


def check_starts(run: str, experiment: Experiment) -> None:
    """Refuse to go on with, or repeat, a `run` without a file that it begins from. Raises UserError."""
    from pipeline.runs.code.code_hash import gone

    if experiment.stage.starts_from_run:  # whose weights need that file no more
        return
    lost = [f"{key}={value_at(experiment.config, key)}" for key in gone(experiment)]
    if lost:
        are, them = ("are", "them") if len(lost) > 1 else ("is", "it")
        raise UserError(f"{run}: {' and '.join(lost)} {are} gone: put {them} back")


def _but_cores(hardware: Mapping[str, Any]) -> dict[str, Any]:
    """Those that it may use are in `identity`."""
    return {name: value for name, value in hardware.items() if name != "cores"}


def said_of_code(then: Mapping[str, str], now: Mapping[str, str], experiment: Experiment) -> str:
    """A text, a picture or a source that a setting names counts to the module that reads it, ours or the user's."""
    from pipeline.runs.code.code_hash import own_files

    changed = sorted(_changed(then, now))
    if not changed:
        return CODE
    more = f" and {len(changed) - MOST_MODULES} more" if len(changed) > MOST_MODULES else ""
    read = list(experiment.dataset.user_files) if type(experiment.dataset).__module__ in changed else []
    of_user = own_files(experiment)
    read += [file for name in changed for file in of_user.get(name, ())]
    files = ", ".join(dict.fromkeys(file.name for file in read[:MOST_MODULES]))
    return f"code of {', '.join(changed[:MOST_MODULES])}{more}, or files that it reads{f': {files}' if files else ''}"
