"""The files of a run, sent to MLflow one at a time: one that cannot be sent keeps none of the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mlflow.tracking.client import MlflowClient

from pipeline.passwords import without_password
from pipeline.raised import in_one_line

OWN = ("config.yaml", "receipt.json", "result.json")
GIVE_UP = 3  # failures in a row: then it is the store, and each further file may take its time to fail too


def upload(client: MlflowClient, run_id: str, folder: Path) -> str | None:
    """Send every file of the run in `folder`. Returns what could not be sent, in a line; None where all was."""
    files = list(_files(folder))
    failed: dict[Path, Exception] = {}
    in_a_row = 0
    for number, (path, place) in enumerate(files, start=1):
        try:
            if not path.is_file():
                raise OSError("not a regular file")
            client.log_artifact(run_id, str(path), place)
            in_a_row = 0
        except Exception as error:  # whatever a store can raise
            failed[path] = error
            in_a_row += 1
            if in_a_row == GIVE_UP:
                return _said(folder, failed, len(files), len(files) - number)
    return _said(folder, failed, len(files), 0) if failed else None


def _files(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Each file, and the folder that it lies in below MLflow's artifacts (None: at their top)."""
    yield from ((folder / name, None) for name in OWN if (folder / name).exists())
    root = folder / "artifacts"
    for place, _, names in os.walk(root):
        relative = Path(place).relative_to(root).as_posix()
        yield from ((Path(place, name), None if relative == "." else relative) for name in sorted(names))


def _said(folder: Path, failed: dict[Path, Exception], files: int, untried: int) -> str:
    path, error = next(iter(failed.items()))
    line = without_password(in_one_line(error))[:200]
    rest = f", {untried} more not tried" if untried else ""
    name = path.relative_to(folder).as_posix()
    return f"{len(failed)} of its {files} files not sent{rest} ({name}: {line})"
