"""One process of a training by several, beside the one that has the run (`peers`).

    python -m pipeline.backends.torch.peer <folder> <rank>

It prints nothing, writes to its own folder alone and leaves signals to rank 0: it ends when that one ends it, or is
gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.exits import SIGNALS, status_of
from pipeline.errors import RunError

if TYPE_CHECKING:
    from pipeline.backends.torch.group import Group
    from pipeline.backends.torch.peers import Others
    from pipeline.datasets import Data
    from pipeline.experiment import Experiment
    from pipeline.machine.capability import Resolved
    from pipeline.runs.run import Run


def main() -> int:
    """Train along with the process that started this one."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what a model prints
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=end_with_standard_input, args=(folder,), daemon=True).start()
    train_along(folder, rank, json.loads((folder / "job.json").read_text(encoding="utf-8")), answers)
    return 0


def end_with_standard_input(folder: Path) -> None:
    """Rank 0 holds the other end, which the system closes when it dies; what it then leaves behind is removed here."""
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def train_along(folder: Path, rank: int, job: dict[str, Any], answers: int) -> None:
    """Load what rank 0 has loaded, and do what it does. Raises RunError where that is something else here."""
    experiment, data = loaded(job)
    from pipeline.backends.torch.group import Group

    group, resolved = Group(rank, job["count"]), resolved_of(job["resolved"], rank)
    run = own_run(folder / str(rank), experiment, job["checkpoint"])
    train(experiment, data, resolved, run, Peer(folder, group, resolved, answers))


def loaded(job: dict[str, Any]) -> tuple[Experiment, Data]:
    """The experiment of rank 0, its framework, and its data. Raises RunError where these are others here."""
    from pipeline.datasets.loading import load_data
    from pipeline.datasets.split import examples
    from pipeline.experiment import load
    from pipeline.machine.device import count_by_bus
    from pipeline.spec import take_allow_list

    count_by_bus()
    take_allow_list()
    experiment = load(job["config"])
    experiment.backend.load()
    data = load_data(experiment)
    if data.sha256 != job["data_sha256"]:
        raise RunError("its data differ from those of process 0 (another sha256)")
    # Of the same data: the user's own code may divide them without the seed.
    found = examples(data)
    if other := ", ".join(name for name, known_by in job["examples"].items() if found.get(name) != known_by):
        raise RunError(
            f"its examples ({other}) differ from those of process 0, though the data are the same; "
            "let load(root, seed) split them by its seed alone"
        )
    return experiment, data


def train(experiment: Experiment, data: Data, resolved: Resolved, run: Run, others: Others) -> None:
    """Train along with the others. What comes of it is what rank 0 has."""
    quiet = replace(experiment, training=replace(experiment.training, checkpoint=no_checkpoints()))
    mine = replace(data, part=others.group.part)
    experiment.backend.load().train(quiet, mine, resolved, run, others)


class Peer:
    """What a peer knows of the others."""

    def __init__(self, folder: Path, group: Group, resolved: Resolved, answers: int) -> None:
        self.folder, self.group, self.resolved, self.answers = folder, group, resolved, answers

    @contextlib.contextmanager
    def connected(self, step: Callable[[], int]) -> Iterator[None]:
        """Say that all is loaded, and train together inside."""
        from pipeline.backends.torch.peers import READY, backend_of, connect

        os.write(self.answers, f"{READY}\n".encode())
        connect(self.folder, self.group, backend_of(self.resolved))
        yield


def resolved_of(plain: dict[str, Any], rank: int) -> Resolved:
    """As rank 0 has it; of GPUs the one that is as much further."""
    from pipeline.machine.capability import Resolved
    from pipeline.machine.device import Place

    place = Place(**plain["place"])
    if place.kind == "gpu":
        place = replace(place, index=place.index + rank)
    return Resolved(**{**plain, "place": place})


def no_checkpoints() -> Any:
    """Rank 0 writes them: its state is that of all."""
    from pipeline.experiment.training import Checkpoints

    return Checkpoints(every_s=0)


def own_run(folder: Path, experiment: Experiment, checkpoint: str | None) -> Run:
    """A run that nobody sees, which goes on where rank 0 does."""
    from rich.console import Console

    from pipeline.runs.checkpoint import read
    from pipeline.runs.journal import Journal
    from pipeline.runs.run import Run

    kept = None if checkpoint is None else read(Path(checkpoint), Path(checkpoint).parent.parent)
    nobody = Console(file=Path(os.devnull).open("w"))  # noqa: SIM115
    return Run(Journal.begin(folder, experiment.name, experiment.config), nobody, kept)


if __name__ == "__main__":
    sys.exit(status_of(main))
