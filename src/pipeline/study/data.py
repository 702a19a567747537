"""study/data.json: the hash of the data that each stage reads, so that DVC tracks what lies in the user's cache."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline import experiment as experiments
from pipeline.errors import UserError
from pipeline.experiment import Experiment
from pipeline.runs.json_files import cannot_write, write_json
from pipeline.study import composed, documents

FILE = Path("study/data.json")


def fetch() -> int:
    """Fetch (where needed) and read every dataset of the study, and write the hashes. Raises UserError."""
    entries = composed.read()
    read: dict[str, str] = {}  # a dataset that several stages share is read once
    found = {}
    for name, decided in composed.data_stages().items():
        experiment = experiments.load(entries[name].whole)
        seed = decided["seed"]
        key = json.dumps([experiment.config["dataset"], seed], sort_keys=True)  # of some the seed decides
        if key not in read:
            read[key] = _sha256(experiment, seed)
            print(f"{type(experiment.data_source).__name__}: {read[key]}")
        found[name] = read[key]
    try:
        FILE.parent.mkdir(exist_ok=True)
        write_json(FILE, found)
    except OSError as error:
        raise cannot_write(FILE, error, key="") from error
    return 0


def _sha256(experiment: Experiment, seed: int | None) -> str:
    """`seed`: None of other data than those that a saved run was trained on, which are read with one for all runs."""
    if seed is not None:
        from pipeline.datasets.loading import loaded

        return loaded(experiment.data_source, seed, experiment.inputs).sha256
    from pipeline.datasets.other import sha256_of

    return sha256_of(experiment.data_source)


def hashes() -> dict[str, str]:
    """What `fetch` wrote. Raises UserError where it has not been."""
    found = documents.read(FILE, "`dvc repro data` writes it")
    if not all(isinstance(value, str) for value in found.values()):
        raise UserError(f"{FILE}: damaged; `dvc repro --force data` writes it again")
    return found
