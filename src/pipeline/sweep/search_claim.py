"""Which study a search goes on with: one whose trials answer the same question, held by one living session at a time.

A study keeps what it was asked (`Asked`): the metric, the space, the config of its cells, and the receipt of each,
which has the code, the software and the device. A search that asks for anything else takes another study.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from pipeline import variables
from pipeline.errors import UserError
from pipeline.experiment import Experiment
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.runs.choices import text_of
from pipeline.runs.differences import flat
from pipeline.runs.receipt import before
from pipeline.spec import Config
from pipeline.sweep.history import History
from pipeline.sweep.plan import Cell
from pipeline.sweep.search_study import ANOTHER, begin_study, finished, study_in

if TYPE_CHECKING:
    from pipeline.experiment.settings import Sought
    from pipeline.sweep.search_settings import Search

DEFAULT = "search"  # the studies that nobody names: search, search-2, search-3, ...
CLAIMED_SECONDS = 10.0  # for a session that has just claimed a study to write down what it asks
MOST_SHOWN = 4
IMPORTED = "imported_beside"  # in a study: what its trials have imported by computed names, as one receipt has it


@dataclass(frozen=True)
class Asked:
    """What a search asks. `cells`: the first point of the space, and one more for each further choice with
    another config or code."""

    metrics: tuple[str, ...]
    directions: tuple[Sought, ...]
    space: Mapping[str, str]
    cells: Mapping[str, Cell]

    @property
    def sought(self) -> dict[str, Any]:
        """Which end of which metrics, as plain data."""
        return {"metric": list(self.metrics), "direction": list(self.directions)}

    def plain(self) -> dict[str, Any]:
        """What is asked for as plain data, as the study keeps it."""
        cells = {label: _plain(cell) for label, cell in self.cells.items()}
        return {**self.sought, "space": dict(self.space), "cells": cells}

    def differences(self, then: Mapping[str, Any], seen: Mapping[str, Any], history: History) -> list[str]:
        """How it differs from what a study was asked.

        `seen`, of the study's trials: the hash of each dataset, and what they have imported by computed names.
        """
        found = _changed(self.sought, {key: then[key] for key in self.sought})
        space = _changed(dict(self.space), then["space"])
        found += [f"the space of {text}" for text in space]
        searched = {*self.space, *then["space"]} if space else set[str]()  # in the same space all is compared
        for label in self.cells:
            if label in then["cells"]:
                config = flat(self.cells[label].runnable.deciding())
                found += _changed(
                    _without(searched, config), _without(searched, then["cells"][label]["config"])
                ) or _filled_otherwise(self.cells[label], config, then["cells"][label]["receipt"], searched)
        # Where the config differs, so does the code: another model's. Saying so would add nothing.
        return list(dict.fromkeys(found or self._circumstances(then["cells"], seen, history)))

    def _circumstances(self, then: Mapping[str, Any], seen: Mapping[str, Any], history: History) -> list[str]:
        """The code, the software, the device and the data."""
        found = []
        for label, cell in self.cells.items():
            if label not in then:  # it could not run here then
                continue
            experiment = cell.runnable
            receipt = {**then[label]["receipt"], "data_sha256": seen.get(dataset_key(experiment))}
            receipt[IMPORTED] = seen.get(IMPORTED, {})
            found += history.differences(experiment, cell.where, receipt)
        return found


def claim(folder: Path, search: Search, asked: Asked, history: History) -> tuple[str, filelock.BaseFileLock, list[str]]:
    """The name of the study that this search goes on with, the lock that holds it, and what to say about it.

    Raises UserError where the study that is named was asked something else, or another session works on it.
    """
    named, notes = search.study is not None, list[str]()
    number = 1
    while True:
        name = search.study or (DEFAULT if number == 1 else f"{DEFAULT}-{number}")
        lock = filelock.FileLock(folder / f"{name}.claim", timeout=0)
        held = _held(lock)
        differs = _differs(folder, name, asked, history, wait=not held)
        if not differs and held:
            begin_study(folder, name, search.directions, {"asked": asked.plain(), "session": this_process()})
            return name, lock, notes
        if held:
            lock.release()
        if not differs:
            raise UserError(
                f"hydra.sweeper.study={name}: {_holder(folder, name)} works on it; wait for its end, or {ANOTHER}"
            )
        if named:
            raise UserError(f"hydra.sweeper.study={name}: its trials had other settings ({_short(differs)}); {ANOTHER}")
        notes = [f"{name} was asked something else: {_short(differs)}"]
        number += 1


def dataset_key(experiment: Experiment) -> str:
    """Under which name a study keeps the hash of a dataset, which the seed may decide."""
    return f"data {json.dumps([experiment.config['dataset'], experiment.seed], sort_keys=True)}"


def this_process() -> str:
    """How a session is named to another one that wants its study."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def _held(lock: filelock.BaseFileLock) -> bool:
    try:
        lock.acquire()
    except filelock.Timeout:
        return False
    return True


def _differs(folder: Path, name: str, asked: Asked, history: History, *, wait: bool) -> list[str]:
    """How the study differs from what is asked; empty where it may be gone on with, or has nothing to go on from."""
    study = study_in(folder, name)
    end = time.monotonic() + CLAIMED_SECONDS
    while wait and (study is None or "asked" not in study.user_attrs) and time.monotonic() < end:
        time.sleep(0.1)
        study = study_in(folder, name)
    if study is None or (not wait and not finished(study)):
        return []
    then = study.user_attrs.get("asked")
    if then is None:
        return ["it does not say what it was asked"]
    return asked.differences(then, study.user_attrs, history)


def _holder(folder: Path, name: str) -> str:
    study = study_in(folder, name)
    return str(study.user_attrs.get("session", "another session")) if study else "another session"


def _plain(cell: Cell) -> dict[str, Any]:
    return {"config": flat(cell.runnable.deciding()), "receipt": _receipt(cell)}


def _receipt(cell: Cell) -> dict[str, Any]:
    """What is known before anything runs; of a cluster's node the kind of its device alone."""
    if cell.resolved is not None:
        return before(cell.runnable, cell.resolved)
    nobody = Resolved(Place("cpu"), "fp32", "", "")  # what it says of the device is put right here
    capability = {"compute_capability": "the node's"} if cell.kind == "gpu" else {}
    return {**before(cell.runnable, nobody), "device": {"hardware": {"name": "a node's", **capability}}}


def _without(keys: set[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is searched: a key, and where it is a group, all that its choice brings."""
    return {name: value for name, value in config.items() if not any(f"{name}.".startswith(f"{key}.") for key in keys)}


def _changed(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    keys = [key for key in {**then, **now} if now.get(key) != then.get(key) or (key in now) != (key in then)]
    return [f"{key} {_text(then, key)} -> {_text(now, key)}" for key in keys]


def _text(node: Mapping[str, Any], key: str) -> str:
    return text_of(node[key]) if key in node else "nothing"


def _filled_otherwise(cell: Cell, config: Config, receipt: Mapping[str, Any], searched: Collection[str]) -> list[str]:
    """Where two flat configs agree as they were typed: the variables whose values then may have been others.

    A study keeps what was typed, since a value may be a password, and the hash of what it was filled with.
    """
    if searched or receipt.get("config_sha256") == cell.runnable.config_sha256():
        return []
    kept = [f"{key} {value}" for key, value in config.items() if variables.names_in(value)]
    return [f"the value of {', '.join(kept)}" if kept else "the config (another config_sha256)"]


def _short(differs: Sequence[str]) -> str:
    more = len(differs) - MOST_SHOWN
    return ", ".join(differs[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
