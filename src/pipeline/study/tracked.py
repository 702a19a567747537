"""The MLflow run of a stage: its record of the execution that the stage's receipt names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import RunError, UserError
from pipeline.experiment import load
from pipeline.passwords import without_password
from pipeline.study import composed, outcome
from pipeline.tracking import record as records
from pipeline.tracking.names import legal_name
from pipeline.tracking.tracker import Mlflow


@dataclass(frozen=True)
class Tracked:
    """What MLflow has: its id of the run, the receipt (tags receipt.*), the results by the names of the run's files."""

    id: str
    receipt: Mapping[str, str]
    results: Mapping[str, float]


def tracked_run(kept: outcome.Outcome, entry: composed.Entry) -> Tracked:
    """The run that the stage's receipt names. Raises RunError where MLflow has no such finished run."""
    from pipeline.tracking.find import find

    run = str(kept.receipt.get("run"))
    uri = _uri(Path(str(entry.rest["output_dir"])) / run, entry)
    address = without_password(uri)
    found = find(uri, run)
    if found is None:
        raise RunError(
            f"none is tagged pipeline.run={run} in {address} (`python -m pipeline.tracking sync` sends late ones)"
        )
    if found.state != "FINISHED":
        raise RunError(f"{found.id} ({run}) in {address} is {found.state}")
    receipt = {key.removeprefix("receipt."): value for key, value in found.tags.items() if key.startswith("receipt.")}
    return Tracked(found.id, receipt, _results(found.metrics, kept))


def _results(metrics: Mapping[str, float], kept: outcome.Outcome) -> dict[str, float]:
    """Of MLflow's metrics the results, by the names that the run's own files have for them."""
    names = {legal_name(f"result/{name}"): name for name in (*kept.metrics, *kept.timings)}
    return {
        names.get(key, key.removeprefix("result/")): value
        for key, value in metrics.items()
        if key.startswith("result/")
    }


def _uri(folder: Path, entry: composed.Entry) -> str:
    """Where the run was tracked to: by its own folder, or where a new one would be. Raises UserError for nowhere."""
    record = records.read(folder)
    if record is not None:
        return record.uri
    tracking = load(entry.whole).tracking
    if not isinstance(tracking, Mlflow):
        raise UserError("tracking=none: the stage is not tracked")
    return records.check_uri(tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or records.DEFAULT_URI)
