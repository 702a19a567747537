"""Deleting a run's entry in MLflow."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import RunError
from pipeline.tracking import record as records
from pipeline.tracking.follow import lock, prepare, reason_of

LOCK_SECONDS = 5.0  # a tracker that still sends the run holds its lock


def forget(folder: Path) -> str | None:
    """Mark the run's entry as deleted, as MLflow's page does; `mlflow gc` frees what it takes.

    Returns the entry's id, None for a run without one. Raises RunError where a tracker still sends it, or where
    MLflow does not answer.
    """
    record = records.read(folder)
    if record is None or record.run_id is None:
        return None
    path = records.sqlite_path(record.uri)
    if path is not None and not path.is_file():  # the database is gone, and to ask would make one
        return None
    prepare()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking.client import MlflowClient

    with lock(folder, timeout=LOCK_SECONDS) as busy:
        if busy is not None:
            raise RunError(f"{folder.name}: {busy}; try again in a moment")
        try:
            MlflowClient(record.uri, registry_uri=record.uri).delete_run(record.run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise RunError(f"{folder.name}: MLflow: {reason_of(error, record.uri)}") from error
        except Exception as error:  # whatever a server or a database can raise
            raise RunError(f"{folder.name}: MLflow: {reason_of(error, record.uri)}") from error
    return record.run_id
