"""Asking MLflow for a run that has been tracked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlflow.exceptions import MlflowException
from mlflow.tracking.client import MlflowClient

from pipeline.errors import RunError
from pipeline.tracking import record as records
from pipeline.tracking.follow import prepare, reason_of


@dataclass(frozen=True)
class Tracked:
    """What MLflow holds of a run: its own id, how it ended, its tags and the last value of each metric."""

    id: str
    state: str
    tags: Mapping[str, str]
    metrics: Mapping[str, float]


def find(uri: str, run: str) -> Tracked | None:
    """The run whose folder is called `run`; None where MLflow has none. Raises RunError where it cannot be asked."""
    path = records.sqlite_path(uri)
    if path is not None and not path.is_file():  # to ask would make a database
        return None
    prepare()
    try:
        client = MlflowClient(uri, registry_uri=uri)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        found = client.search_runs(experiments, f"tags.`pipeline.run` = '{run}'")
    except MlflowException as error:
        raise RunError(f"MLflow cannot be asked: {reason_of(error, uri)}") from error
    if not found:
        return None
    return Tracked(found[0].info.run_id, found[0].info.status, found[0].data.tags, found[0].data.metrics)
