"""composed.yaml, as the other commands read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.errors import UserError, bad_choice
from pipeline.spec import Config
from pipeline.study import documents
from pipeline.study.params import OWN_STAGES

FILE = Path("composed.yaml")
PARTS = ("config", "code", "writers", "rest")
MAKE = "`dvc repro compose` or `python -m pipeline.study compose` writes it"


@dataclass(frozen=True)
class Entry:
    """One stage. `config`, `code` and `writers` are what DVC tracks; the whole config is what runs.

    `keys`: what the block of a stage that starts from a run has chosen anew.
    """

    config: Config
    code: Mapping[str, str]
    writers: Mapping[str, str]
    rest: Mapping[str, Any]
    keys: Sequence[str] = ()

    @property
    def source(self) -> str | None:
        """The stage whose saved run it starts from; None: it starts from none."""
        run = self.rest.get("run")
        return None if run is None else Path(str(run)).name

    @property
    def whole(self) -> dict[str, Any]:
        """The config that runs. Of a group, some keys may decide the result and others only say where things lie."""
        whole = {**self.config, **self.rest}
        for key in self.config.keys() & self.rest.keys():
            whole[key] = {**self.config[key], **self.rest[key]}
        return whole


def read() -> dict[str, Entry]:
    """The experiments of the study by the names of their stages. Raises UserError."""
    found = documents.read(FILE, MAKE)
    return {str(name): _entry(str(name), value) for name, value in found.items() if name not in OWN_STAGES}


def entry(name: str, found: Mapping[str, Entry]) -> Entry:
    """One of those that were read. Raises UserError for a name that is none."""
    if name not in found:
        raise bad_choice("stage", name, found)
    return found[name]


def data_stages() -> dict[str, Mapping[str, Any]]:
    """The stages that read a dataset, each with what decides it."""
    return dict(documents.read(FILE, MAKE).get("data") or {})


def _entry(name: str, value: Any) -> Entry:
    parts = [value.get(part) for part in PARTS] if isinstance(value, Mapping) else [None]
    if not all(isinstance(part, Mapping) for part in parts):
        raise UserError(f"{FILE}: {name}: needs {', '.join(PARTS)}; {MAKE}")
    return replace(Entry(*parts), keys=value.get("keys") or ())
