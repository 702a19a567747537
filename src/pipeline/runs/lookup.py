"""The runs of a folder: finding the one that is meant, and marking those whose process died without a word."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from pipeline.errors import UserError
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.process import boot_time, machine, pid_namespace, process_started
from pipeline.runs.records import State, Status, read_config, read_status, value_at
from pipeline.runs.slurm import has_ended, hear

SILENT_SECONDS = 7 * 86400.0  # a run of another host that has written nothing for so long is taken for dead
OF_WHOLE = ("config.yaml", "status.json")  # what is asked for where the run has to have a status
TRAINED_FOR_EACH = {"folds": "fold", "seeds": "seed"}  # stages that train the same several times
LISTED = 10  # runs in a message
PATIENCE_SECONDS = 3600.0  # one that has written nothing for so long is not waited for


def run_folders(root: Path) -> list[Path]:
    """The runs below `root`, by name."""
    try:
        return sorted(folder for folder in root.iterdir() if _has_status(folder))
    except OSError:
        return []


def newest_first(folders: Iterable[Path]) -> list[Path]:
    """By when they began; those whose status cannot be read come last."""
    found = [(began(folder, status) if (status := read_status(folder)) else (), folder) for folder in folders]
    return [folder for _, folder in sorted(found, reverse=True)]


def began(folder: Path, status: Status) -> tuple[float, bool, str]:
    """Sorts runs: names have local times, and are the user's to change. A copy comes before the run itself."""
    return status.started, folder.name == status.id, folder.name


def _has_status(folder: Path) -> bool:
    """Not one of a folder that this user may not read: others may lie beside it."""
    try:
        return (folder / "status.json").exists()
    except OSError:
        return False


def find_run(root: Path, reference: str, holding: str = "config.yaml") -> Path:
    """The folder that `reference` means: a folder, an id, the unique beginning of an id, `latest`, an MLflow run id.

    `latest` is the latest finished run that has the file `holding`. Raises UserError where it is not one run, or one
    without that file.
    """
    found = _meant(root, reference, holding)
    if not (found / holding).exists():
        raise UserError(_without(found, holding))
    return found


def _meant(root: Path, reference: str, holding: str) -> Path:
    folder = Path(reference)
    if reference and (read_status(folder) is not None or (holding not in OF_WHOLE and _is_kept(folder))):
        return folder.absolute()
    root = Path(root).absolute()
    whole = root / reference
    if reference not in ("latest", "..") and whole.parent == root and _has_status(whole):
        return whole  # without a look at the others, of which there may be thousands
    folders = run_folders(root)
    if reference == "latest":
        found = _latest_finished([folder for folder in folders if (folder / holding).exists()])
    else:
        found = [folder for folder in folders if reference and folder.name.startswith(reference)]
        found = found or [folder for folder in folders if reference and _mlflow_id(folder) == reference]
    if len(found) == 1:
        return found[0]
    raise UserError(_not_one(root, reference, holding, folders, found))


def _is_kept(folder: Path) -> bool:
    """Whether a folder is what a study keeps of a run, which has no status."""
    try:
        return all((folder / name).is_file() for name in ("config.yaml", "code.json")) and not _has_status(folder)
    except (OSError, ValueError):
        return False


def close_run(folder: Path, state: State, reason: str) -> None:
    """Give a run whose process is gone its end, also in place of what that process had time to say of itself."""
    import filelock

    from pipeline.runs.checkpoint import drop_unfinished

    try:
        with filelock.FileLock(folder / "status.lock", timeout=5):
            status = read_status(folder)
            if status is not None:
                closed = replace(status, state=state, ended=status.ended or _last_sign(folder), error=reason)
                write_json(folder / "status.json", asdict(closed))
                drop_unfinished(folder)
    except (OSError, filelock.Timeout):
        pass  # the next process that looks will find it RUNNING without a process, and mark it


def reap(root: Path) -> list[str]:
    """Mark every run whose process is gone without a word as KILLED; returns the ids that this call marked."""
    return reap_these(run_folders(Path(root)))


def reap_these(folders: Iterable[Path]) -> list[str]:
    """`reap` for these runs. Slurm is asked about all of their jobs at once."""
    open_ = [(folder, status) for folder in folders if (status := read_status(folder)) and status.state == "RUNNING"]
    hear(status.job for _, status in open_ if status.job is not None and not is_seen(status))
    return [folder.name for folder, _ in open_ if reap_one(folder)]


def reap_one(folder: Path) -> bool:
    """`reap` for one run. False where it lives, has ended, was marked by another process or cannot be written."""
    if _dead(folder) is None:
        return False
    import filelock

    from pipeline.runs.checkpoint import drop_unfinished

    try:
        with filelock.FileLock(folder / "status.lock", timeout=0):
            status = _dead(folder)  # another process may have been here first, and the run may have gone on since
            if status is not None:
                write_json(folder / "status.json", asdict(_killed(folder, status)))
                drop_unfinished(folder)
            return status is not None
    except (OSError, filelock.Timeout):
        return False


def _dead(folder: Path) -> Status | None:
    """The status of a run that says RUNNING and whose process is gone; None of any other."""
    status = read_status(folder)
    return status if status is not None and status.state == "RUNNING" and _gone(folder, status) else None


def status_now(folder: Path) -> Status | None:
    """The run's status; KILLED where its process is gone, also in a folder that cannot be written."""
    status = read_status(folder)
    if status is None or status.state != "RUNNING" or not _gone(folder, status):
        return status
    status = read_status(folder)  # it may have ended between the two looks
    return _killed(folder, status) if status is not None and status.state == "RUNNING" else status


def _killed(folder: Path, status: Status) -> Status:
    note = f"process {status.pid} on {status.host} ended without a message (killed, out of memory, power lost?)"
    return replace(status, state="KILLED", ended=_last_sign(folder), error=note)


def _latest_finished(folders: list[Path]) -> list[Path]:
    finished = (folder for folder in folders if (status := read_status(folder)) and status.state == "FINISHED")
    return newest_first(finished)[:1]


def _mlflow_id(folder: Path) -> str | None:
    return read_json(folder / "mlflow.json").get("run_id")


def _without(folder: Path, holding: str) -> str:
    """Why a run lacks the file that is wanted of it, as far as its status says so."""
    status = read_status(folder)
    if status is not None and status.state != "FINISHED":
        why = f"it is {status.state}" + (f": {status.error}" if status.error else "")
    elif holding.endswith("adapters.npz"):
        why = "it trained none; model.adapters.rank does"
    elif (each := TRAINED_FOR_EACH.get(_stage(folder))) is not None:
        why = _model_for_each(folder, each, holding)
    else:
        why = "in a grid, a search or a stage that trains several, each cell's run has its own; what stage=lightning"
        why += " and stage=keras train is in artifacts/module/"
    return f"run={folder.name}: has no {holding}; {why}"


def _stage(folder: Path) -> str:
    """The run's stage as it is typed, of those of this package; empty for a grid."""
    target = str(value_at(read_config(folder), "stage._target_"))
    return target.rpartition(".")[2].lower() if target.startswith("pipeline.") else ""


def _model_for_each(folder: Path, each: str, holding: str) -> str:
    """Where the models of a run of several trainings are, and how there is one."""
    cells = [
        one for one in run_folders(folder.parent) if (status := read_status(one)) and status.cell_of == folder.name
    ]
    key = {"fold": "dataset.fold", "seed": "seed"}[each]
    found = [f"{one.name} ({key}={value_at(read_config(one), key)})" for one in cells if (one / holding).exists()]
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    named = f": {', '.join(found[:LISTED])}{more}" if found else "; its table names their runs"
    return f"it has a model for each {each}{named}; the same command without stage={each}s trains a single one"


def _not_one(root: Path, reference: str, holding: str, folders: list[Path], found: list[Path]) -> str:
    if found:
        names = ", ".join(folder.name for folder in found[-5:])
        return f"run={reference}: {len(found)} runs in {root} begin so ({names}); give more of the id"
    if reference and _is_kept(copy := Path(reference)):
        id_is_in = copy.absolute().parents[1] / copy.name / "receipt.json"
        return (
            f"run={reference}: what a study keeps of a run, without a status; name the run, whose id is in {id_is_in}"
        )
    wanted = f"no finished run with {holding}" if reference == "latest" else "no such run"
    would_do = [folder for folder in folders if (folder / holding).exists()]
    which = f"the latest with {holding}" if would_do and holding not in ("config.yaml", "status.json") else "the latest"
    names = ", ".join(folder.name for folder in newest_first(would_do or folders)[:3])
    known = f"{which} are {names}" if names else "the folder has none yet"
    return f"run={reference}: {wanted} in {root}; {known}"


def is_live(folder: Path, status: Status) -> bool:
    """Whether a run that says RUNNING goes on, as far as can be seen from here: another command can wait for it."""
    if status.state != "RUNNING" or _gone(folder, status):
        return False
    return is_seen(status) or silence(folder) < PATIENCE_SECONDS


def silence(folder: Path) -> float:
    """Seconds since the run last wrote something."""
    return time.time() - _last_sign(folder)


def _gone(folder: Path, status: Status) -> bool:
    if is_seen(status):
        started = process_started(status.pid)
        return started is None or started != status.process_started
    if _before_our_boot(folder, status):
        return True
    if status.job is not None and has_ended(status.job, ours=folder.stat().st_uid == os.getuid()):
        return True
    return silence(folder) > SILENT_SECONDS


def is_seen(status: Status) -> bool:
    """Whether the run's process would be among those of this machine and container."""
    if (status.host, status.pid_namespace) != (socket.gethostname(), pid_namespace()):
        return False
    return status.machine in (None, machine())


def _before_our_boot(folder: Path, status: Status) -> bool:
    """Whether the run was this machine's before it was started anew: its last sign is older than the boot."""
    here, there = (machine() or "").partition("-"), (status.machine or "").partition("-")
    if status.host != socket.gethostname() or not there[0] or here[0] != there[0] or here[2] == there[2]:
        return False
    return _last_sign(folder) < boot_time()


def _last_sign(folder: Path) -> float:
    """When the run last wrote something: the best guess of when it died."""
    files = (folder / "metrics.jsonl", folder / "status.json", folder / "receipt.json", folder / "result.json")
    return max(path.stat().st_mtime for path in files if path.exists())
