"""study/data.json: the hash of the data that each stage reads, so that DVC tracks what lies in the user's cache."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline import experiment as experiments
from pipeline.errors import UserError
from pipeline.machine.cache_folder import cache_root
from pipeline.runs.json_files import cannot_write, write_json
from pipeline.study import composed, documents

FILE = Path("study/data.json")


def fetch() -> int:
    """Fetch (where needed) and read every dataset of the study, and write the hashes. Raises UserError."""
    entries = composed.read()
    read: dict[str, str] = {}  # a dataset that several stages share is read once
    found = {}
    for name in composed.data_stages():
        experiment = experiments.load(entries[name].whole)
        dataset = experiment.data_source
        key = json.dumps([experiment.config["dataset"], experiment.seed], sort_keys=True)  # of some the seed decides
        if key not in read:
            read[key] = dataset.load(cache_root(dataset.cache), experiment.seed).sha256
            print(f"{type(dataset).__name__}: {read[key]}")
        found[name] = read[key]
    try:
        FILE.parent.mkdir(exist_ok=True)
        write_json(FILE, found)
    except OSError as error:
        raise cannot_write(FILE, error, key="") from error
    return 0


def hashes() -> dict[str, str]:
    """What `fetch` wrote. Raises UserError where it has not been."""
    found = documents.read(FILE, "`dvc repro data` writes it")
    if not all(isinstance(value, str) for value in found.values()):
        raise UserError(f"{FILE}: damaged; `dvc repro --force data` writes it again")
    return found
