"""dvc.yaml and dvc.lock: which stages there are, what DVC noted of each, and the MD5 of files as it computes it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.study import documents

FILE = Path("dvc.lock")


@dataclass(frozen=True)
class Locked:
    """One stage of dvc.lock. `params`: the tracked values by file and key; `outs`, `deps`: MD5 by path."""

    params: Mapping[str, Mapping[str, Any]]
    deps: Mapping[str, str]
    outs: Mapping[str, str]

    def param(self, file: str, key: str) -> Any:
        """A tracked value; None where DVC does not track it."""
        return self.params.get(file, {}).get(key)


def stages() -> list[str]:
    """The names of the stages of dvc.yaml as DVC resolves them (`classifier@torch`). Raises UserError."""
    command = [sys.executable, "-m", "dvc", "stage", "list", "--name-only"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"dvc.yaml: {' '.join(done.stderr.split()).removeprefix('ERROR: ')}")
    return done.stdout.split()


def files() -> dict[str, tuple[set[str], set[str]]]:
    """Of each block that a stage of dvc.yaml runs, the paths that this stage depends on, and its outputs.

    As DVC resolves them. Raises UserError.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            return {
                block_of(stage.addressing): ({str(dep) for dep in stage.deps}, {str(out) for out in stage.outs})
                for stage in repo.index.stages
            }
    except DvcException as error:
        raise UserError(f"dvc.yaml: {' '.join(str(error).split())}") from error


def block_of(stage: str) -> str:
    """The block of params.yaml that a stage of dvc.yaml runs: `classifier@torch` runs `classifier_torch`."""
    return stage.replace("@", "_")


def read() -> dict[str, Locked]:
    """The stages that DVC has run. Raises UserError."""
    found = documents.read(FILE, "`dvc repro` writes it").get("stages")
    if not isinstance(found, Mapping):
        raise UserError(f"{FILE}: holds no stages; `dvc repro` writes it again")
    return {str(name): _locked(stage) for name, stage in found.items()}


def md5(path: Path) -> str | None:
    """As DVC computes it, of a file or a folder; None where there is nothing."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        listing = [{"md5": md5(file), "relpath": file.relative_to(path).as_posix()} for file in files]
        listing.sort(key=lambda entry: str(entry["relpath"]))
        return hashlib.md5(json.dumps(listing, sort_keys=True).encode()).hexdigest() + ".dir"
    try:
        return hashlib.md5(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _locked(stage: Mapping[str, Any]) -> Locked:
    deps, outs = (
        {str(entry["path"]): str(entry.get("md5")) for entry in stage.get(part) or []} for part in ("deps", "outs")
    )
    return Locked(stage.get("params") or {}, deps, outs)
