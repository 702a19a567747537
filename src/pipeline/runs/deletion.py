"""Deleting the folder of a run: only one below `output_dir`, that is not a link and that no process works on."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import UserError
from pipeline.machine.regular_file import read_regular
from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import is_seen, reap_one, run_folders, status_now

NAMING = ("config.yaml", "receipt.json", "cells.txt")  # the files in which a run names others
LOCK_SECONDS = 5.0  # for another process that writes the run's status
STUDY = Path("study")  # each of its folders has the receipt of the run that it came from


def check_deletable(root: Path, folder: Path) -> None:
    """Refuse a folder outside `root`, a link, and a run that is not known to be dead. Raises UserError."""
    if folder.is_symlink():
        raise UserError(f"run={folder.name}: {folder} is a link; remove the link yourself, its target is not touched")
    if Path(os.path.realpath(folder)) != Path(os.path.realpath(root)) / folder.name:
        raise UserError(f"run={folder}: not a run of output_dir={root}; nothing outside of it is deleted")
    reap_one(folder)
    status = status_now(folder)
    if status is None or status.state != "RUNNING":
        return
    process = f"process {status.pid} on {status.host}"
    if is_seen(status):
        raise UserError(f"run={folder.name}: is still running ({process}); stop it first, or wait for its end")
    raise UserError(
        f"run={folder.name}: is RUNNING ({process}, which cannot be seen from here); stop it first, or wait for its "
        f"end; if you know that it is dead, remove {folder} yourself"
    )


@contextmanager
def held(root: Path, folder: Path) -> Iterator[None]:
    """Check again, since a command may have gone on with the run; none can while this holds. Raises UserError."""
    import filelock

    if not folder.exists():  # to lock it would make it
        raise UserError(f"run={folder.name}: it is gone already")
    try:
        lock = filelock.FileLock(folder / "status.lock", timeout=LOCK_SECONDS).acquire()
    except filelock.Timeout as error:
        raise UserError(f"run={folder.name}: another process holds its status.lock") from error
    except OSError as error:
        raise _cannot_delete(folder, error) from error
    with lock:
        check_deletable(root, folder)
        yield


def users_of(root: Path, folders: Iterable[Path]) -> dict[str, list[str]]:
    """What names each of these runs, by the run's id: other runs of `root`, and folders of the study here.

    A cell that is deleted together with the run that names it is named by nothing.
    """
    going = {folder.name for folder in folders}
    found: dict[str, list[str]] = {name: [] for name in going}
    # The longer first: a copy's name begins with that of its run.
    any_of_them = re.compile(b"|".join(re.escape(name.encode()) for name in sorted(going, key=len, reverse=True)))
    for other in run_folders(root):
        if other.name in going:
            continue
        text = b"\n".join(_read(other / name) for name in NAMING)
        for name in dict.fromkeys(any_of_them.findall(text)):
            found[name.decode()].append(f"run {other.name}")
    for receipt in sorted(STUDY.glob("*/receipt.json")):
        name = str(read_json(receipt).get("run"))
        if name in found:
            found[name].append(f"the study ({receipt.parent})")
    return found


def size_of(folder: Path) -> int:
    """Bytes of its files. Links are not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def delete_folder(folder: Path) -> None:
    """Delete a run's folder; links in it are removed, what they lead to stays. Raises UserError.

    The status goes first: what an interruption leaves behind is not a run.
    """
    try:
        (folder / "status.json").unlink()
        shutil.rmtree(folder)
    except OSError as error:
        raise _cannot_delete(folder, error) from error


def _cannot_delete(folder: Path, error: OSError) -> UserError:
    return UserError(f"run={folder.name}: cannot delete {error.filename}: {error.strerror}")


def cells_of(folder: Path) -> list[str]:
    """The ids of the runs of a grid's cells that are still there; none of a run that is not a grid."""
    lines = _read(folder / "cells.txt").decode(errors="replace").split("\n")[:-1]
    return [Path(line).name for line in lines if (folder.parent / Path(line).name).is_dir()]


def named(users: Mapping[str, list[str]]) -> list[str]:
    """A line for each run that something names."""
    return [f"{name} is named by {', '.join(others)}" for name, others in users.items() if others]


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""
