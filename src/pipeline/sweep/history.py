"""What has run before: which finished run a cell would only repeat, and if none, what has changed since."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.contracts.physics import Problem
from pipeline.errors import UserError
from pipeline.experiment import Experiment
from pipeline.machine.capability import Resolved
from pipeline.machine.cuda import is_cuda
from pipeline.machine.environment import differences, environment, handed_on
from pipeline.runs import dynamic_imports, weights
from pipeline.runs.code.code_hash import code_sha256, modules
from pipeline.runs.hardware import device_differences
from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import began, reap_these
from pipeline.runs.receipt import hardware, profiler, software
from pipeline.runs.records import State, Status, read_status
from pipeline.runs.resume import CODE, DEAD, said_of_code
from pipeline.runs.saved import card_sha256, saved_card

Kind = Literal["cpu", "gpu"]  # of a device on a node that is not known yet
Ask = Callable[[str], Kind]  # which kind of device a cluster's node gives a cell of this `device.name`
Where = Resolved | Kind  # what this machine makes of a cell, or what a cluster's node is asked for


@dataclass(frozen=True)
class Past:
    """A run that had the cell's config, and how its circumstances differ from today's (empty: in nothing)."""

    folder: Path
    status: Status
    differs: tuple[str, ...]


class History:
    """The runs below a folder, by the hash of their config."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.receipts: defaultdict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)  # by hash, then by run
        self.ended: dict[str, State] = {}  # how each run that has ended did when it was last looked at
        self.written: dict[str, tuple[int, int]] = {}  # which status.json said so
        self.data: defaultdict[str, dict[int, str | None]] = defaultdict(dict)  # by dataset, then by seed
        self.weights: dict[tuple[str, int, int, int], str] = {}  # by file, inode, size and time of change
        self.environment = environment()
        self.refresh()

    def refresh(self) -> None:
        """Read the runs that are new, or have gone on. One that died without a word is KILLED, not running."""
        try:
            names = [path.name for path in self.root.iterdir()]
        except OSError:
            return
        folders = [self.root / name for name in sorted(names) if not self._is_as_it_was(name)]
        reap_these(folders)
        for folder in folders:
            written = _written(folder)
            status = read_status(folder)
            if status is None:
                continue
            receipt = read_json(folder / "receipt.json")
            if receipt.get("config_sha256"):
                self.receipts[receipt["config_sha256"]][folder.name] = receipt
            if status.state != "RUNNING":
                self.ended[folder.name], self.written[folder.name] = status.state, written

    def _is_as_it_was(self, name: str) -> bool:
        """Whether a run had ended and has not gone on, by a look at its status.json: this is asked for each cell."""
        state = self.ended.get(name)
        return state is not None and (state not in DEAD or self.written[name] == _written(self.root / name))

    def of(self, experiment: Experiment, where: Where) -> list[Past]:
        """Every run of the same config, the newest first."""
        found = []
        for name, receipt in self.receipts.get(experiment.config_sha256(), {}).items():
            status = read_status(self.root / name)
            if status is not None:
                found.append(
                    Past(
                        self.root / name, status, tuple(self.differences(experiment, where, receipt, self.root / name))
                    )
                )
        return sorted(found, key=lambda past: began(past.folder, past.status), reverse=True)

    def differences(
        self, experiment: Experiment, where: Where, then: Mapping[str, Any], run: Path | None = None
    ) -> list[str]:
        """What decides a result beside the config: code, software, device, data. `run`: whose receipt it is."""
        found = []
        if then.get("code_sha256") != code_sha256(experiment):
            listed = read_json(run / "code.json") if run else {}
            said = said_of_code(listed, modules(experiment), experiment) if listed else CODE
            found.append(f"the {CODE}" if said == CODE else said)
        found += dynamic_imports.changed(then.get("imported_beside", {}))
        if then.get("profiler") != profiler(experiment):
            found.append("the profiler")
        if any(one["differences"] for one in then.get("resumed", [])):
            found.append("half of it was trained elsewhere")
        found += self._other_machine(experiment, where, then)
        if experiment.stage.starts_from_run:
            found += self._other_source(Path(str(experiment.settings.run)), then)
        if not found and not self._same_data(experiment, then.get("data_sha256")):
            found.append("the data")
        return found

    def _other_source(self, source: Path, then: Mapping[str, Any]) -> list[str]:
        """How the run that it starts from differs: another one, or other weights or another card in its folder."""
        if then.get("source_run") != source.name:
            return ["the saved run"]
        if then.get("weights_sha256") != self._weights_sha256(source):
            return ["the saved run's weights"]
        return [] if then.get("card_sha256") in (None, card_sha256(saved_card(source))) else ["the saved run's card"]

    def _other_machine(self, experiment: Experiment, where: Where, then: Mapping[str, Any]) -> list[str]:
        """How software, environment and device differ.

        Of a cluster's node that is not known yet no more than the kind of device is, and the variables that it is given
        (cell.write_environment): what else it has, its C library too, is in the receipt that it wrote.
        """
        versions, device = then.get("versions", {}), then.get("device", {}).get("hardware") or {}
        now = software(experiment, always=("numpy",))
        if not isinstance(where, str):
            found = software_differences(versions, now, where)
            found += differences(then.get("environment", {}), self.environment)
            return found + device_differences(device, hardware(where))
        of_node = ("libc", *experiment.stage.versions())
        shared = [name for name in now if not is_cuda(name) and name not in of_node]
        found = [f"{name} {versions.get(name)} -> {now[name]}" for name in shared if versions.get(name) != now[name]]
        given = handed_on(self.environment)
        there = then.get("environment", {})
        found += differences({name: there[name] for name in given if name in there}, given)
        kind = "gpu" if "compute_capability" in device else "cpu"
        if kind != where:
            found.append(f"the device ({device.get('name')} -> a {where.upper()} of the cluster)")
        return found

    def _weights_sha256(self, source: Path) -> str | None:
        """Hash of a saved run's weights as they are now, read once while the file stays as it is; None if unreadable.

        The file is read, not the receipt beside it: the weights may have been swapped since.
        """
        file = source / "artifacts" / "model" / "weights.npz"
        try:
            about = file.stat()
            key = (str(file), about.st_ino, about.st_size, about.st_mtime_ns)
            if key not in self.weights:
                self.weights[key] = weights.digest(weights.load(file))
        except (OSError, UserError):  # the cell itself will say why
            return None
        return self.weights[key]

    def _same_data(self, experiment: Experiment, then: str | None) -> bool:
        """Whether the data are those that a run read, of this hash; not where they cannot be read now: the cell itself
        will say why.

        A dataset is read once for all cells that share it, and for another seed where it may depend on that.
        """
        if then is None:
            return True
        try:
            own = experiment.stage.data_sha256(experiment)
        except UserError:
            return False
        if own is not None:
            return own == then
        if isinstance(experiment.dataset, Problem):  # all code
            return True
        read = self.data[json.dumps(experiment.config["dataset"], sort_keys=True)]
        whatever_seed = len(read) > 1 and len(set(read.values())) == 1
        if then not in read.values() and experiment.seed not in read and not whatever_seed:
            read[experiment.seed] = _read_sha256(experiment)
        return then in read.values()


def _written(folder: Path) -> tuple[int, int]:
    """Which status.json a run has: written anew it is another file."""
    try:
        found = (folder / "status.json").stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _read_sha256(experiment: Experiment) -> str | None:
    """Hash of the dataset as it is now; None where it cannot be read."""
    from pipeline.datasets.loading import loaded

    try:  # read alone, as study/data.py does: neither normalised nor augmented
        return loaded(experiment.data_source, experiment.seed, experiment.inputs).sha256
    except UserError:
        return None


def software_differences(then: Mapping[str, str], now: Mapping[str, str], resolved: Resolved) -> list[str]:
    """Other versions; those of CUDA and its driver decide only what runs on a GPU."""
    gone = [name for name in then if is_cuda(name) and name not in now]
    names = [name for name in (*now, *gone) if resolved.place.kind == "gpu" or not is_cuda(name)]
    return [f"{name} {then.get(name)} -> {now.get(name)}" for name in names if then.get(name) != now.get(name)]
