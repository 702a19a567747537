"""The processes of a training that a launcher has started, on one machine or several (`machine.launched`).

Rank 0 has the run, as with `peers`. The others get from it what to train, and where a run goes on its checkpoint too:
their machines need not share a file system.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch.distributed as dist
from torch.distributed import distributed_c10d

from pipeline.backends.torch import peer
from pipeline.backends.torch.group import Group
from pipeline.backends.torch.lean_import import lean_import
from pipeline.backends.torch.peers import ANSWER_S, disconnect, is_of_connection, job_of
from pipeline.cli.exits import SIGNALS
from pipeline.errors import RunError
from pipeline.machine.capability import Resolved
from pipeline.machine.launched import Launched, launched
from pipeline.raised import in_one_line
from pipeline.runs.keeping import where_it_goes_on
from pipeline.runs.receipt import before

with lean_import():
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

if TYPE_CHECKING:
    from pipeline.datasets import Data
    from pipeline.experiment import Experiment
    from pipeline.runs.checkpoint import Checkpoint
    from pipeline.runs.run import Run

LOADING_S = 3600.0  # what a process waits for another that loads its data
PORTS = 15_000  # from here on a job of Slurm has one, as with Lightning
ANYWHERE = "192.0.2.1"  # of no machine (RFC 5737): the way there is the default route
INTERFACE = "GLOO_SOCKET_IFNAME"
JOURNAL = "metrics.jsonl"  # a checkpoint is read beside it


class Lead:
    """The others, as rank 0 sees them."""

    def __init__(self, experiment: Experiment, data: Data, resolved: Resolved, run: Run) -> None:
        mine = launched(experiment.device.processes)
        if mine is None or mine.rank:  # whoever runs a second one has not asked which process this is
            raise RunError(f"{mine}, of which the first alone has a run; start this command alone")
        self.run, self.mine = run, mine
        self.group = join(mine)
        self.others: list[dict[str, Any]] = []
        seen = before(experiment, resolved)
        same = {"code_sha256": seen["code_sha256"], "versions": seen["versions"]}
        send(job_of(experiment, data, resolved) | same | {"checkpoint": packed(run.checkpoint)})

    @contextlib.contextmanager
    def connected(self, step: Callable[[], int]) -> Iterator[None]:
        """Train together inside. `step`: how far the training is. Raises RunError where a process has ended."""
        try:
            self.others = self.group.gathered(about(self.mine, None))
            all_loaded()
            for one in self.others:
                if one["problem"]:
                    raise RunError(f"{named(one)} ended: {one['problem']}")
            yield
        except RuntimeError as error:
            if not is_of_connection(error):
                raise
            goes_on = where_it_goes_on(self.run.folder, step())
            raise RunError(f"{self._lost(error)}, after step {step():,}; {goes_on}") from error

    def _lost(self, error: RuntimeError) -> str:
        """Who has ended, as far as the error's address says it."""
        found = re.search(r"\[([0-9a-fA-F.:]+)\]:\d+", str(error))
        gone = [one for one in self.others[1:] if found and found[1].removeprefix("::ffff:") == one["address"]]
        if not gone:
            return f"the connection to another process of the training is gone ({in_one_line(error)[:200]})"
        return f"{' or '.join(map(named, gone))} is gone"

    def close(self) -> None:
        """Leave the others: they end by themselves, and so does what has started them."""
        disconnect()


class Follower:
    """The others, as another rank sees them."""

    def __init__(self, group: Group, mine: Launched) -> None:
        self.group, self.mine, self.loaded = group, mine, False

    @contextlib.contextmanager
    def connected(self, step: Callable[[], int]) -> Iterator[None]:
        """Say that all is loaded, and train together inside. Raises RunError where a process has ended."""
        try:
            self.loaded = True
            self.group.gathered(about(self.mine, None))
            all_loaded()
            yield
        except RuntimeError as error:
            if not is_of_connection(error):
                raise
            raise RunError(f"process {self.mine.rank}: the training has ended, after step {step():,}") from error


def train_along(mine: Launched) -> None:
    """Train as a rank above 0, whatever rank 0 says. Raises RunError where it cannot, or where others have ended."""
    group = join(mine)
    try:
        found: list[Any] = [None]
        dist.broadcast_object_list(found, 0)
    except RuntimeError as error:
        raise RunError(f"process {mine.rank}: process 0 does not answer: {in_one_line(error)[:200]}") from error
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # rank 0 saves what there is; then the connection is gone
    job, me = found[0], Follower(group, mine)
    with tempfile.TemporaryDirectory(prefix="pipeline-group-") as folder, contextlib.ExitStack() as at_end:
        at_end.callback(disconnect)
        if "nothing" in job:
            raise RunError(f"process {mine.rank}: nothing to train, because process 0 ended: {job['nothing']}")
        try:
            experiment, data = peer.loaded(job)
            resolved = peer.resolved_of(job["resolved"], mine.local_rank)
            check_same(job, experiment, resolved)
            checkpoint = unpacked(job["checkpoint"], Path(folder) / "from")
            run = peer.own_run(Path(folder) / "run", experiment, checkpoint)
            peer.train(experiment, data, resolved, run, me)
        except Exception as error:
            if not me.loaded:
                with contextlib.suppress(RuntimeError):  # process 0 may be gone
                    group.gathered(about(mine, in_one_line(error)[:200]))
            raise


def check_same(job: dict[str, Any], experiment: Experiment, resolved: Resolved) -> None:
    """Compare this machine's code and packages with process 0's. Raises RunError; packages may differ if not strict."""
    here = before(experiment, resolved)
    if here["code_sha256"] != job["code_sha256"]:
        raise RunError("its code differs from that of process 0 (another code_sha256)")
    theirs, mine = job["versions"], here["versions"]
    other = [name for name in {**theirs, **mine} if theirs.get(name) != mine.get(name)]
    if other and experiment.precision.strict:
        found = ", ".join(f"{name} {mine.get(name)}, there {theirs.get(name)}" for name in other)
        raise RunError(
            f"its packages differ from those of process 0 ({found}); precision.strict=false lets them differ"
        )


def send(job: dict[str, Any]) -> None:
    """What the others wait for. Raises RunError where one does not answer."""
    try:
        dist.broadcast_object_list([job], 0)
    except RuntimeError as error:
        raise RunError(f"the other processes of the training do not answer: {in_one_line(error)[:200]}") from error


def dismiss(mine: Launched, why: str) -> None:
    """Say to the others, if they still wait for what to train, that there is nothing. They may not be there."""
    if _met:
        return
    with contextlib.suppress(RunError):
        join(mine, ANSWER_S / 10)
        send({"nothing": why})
    disconnect()


_met = False  # whether this process has joined the others, which it does once


def join(mine: Launched, wait_s: float = LOADING_S) -> Group:
    """Meet the others, for whom it waits `wait_s`. Raises RunError where they do not come."""
    global _met
    _met = True
    where = meeting_place(mine)
    # gloo for what lies in the host's memory, nccl for what lies on a GPU
    try:
        os.environ.setdefault(INTERFACE, "lo" if mine.local_count == mine.count else between(where[0]))
        dist.init_process_group(
            None, init_method="env://", rank=mine.rank, world_size=mine.count, timeout=timedelta(seconds=wait_s)
        )
    except (RuntimeError, OSError) as error:
        place = ":".join(where)
        raise RunError(
            f"process {mine.rank}: the {mine.count} processes of the training could not connect at {place}: "
            f"{in_one_line(error)[:200]}"
        ) from error
    # torchrun sets OMP_NUM_THREADS=1, so that what torch would use says nothing
    return Group(mine.rank, mine.count, max(1, len(os.sched_getaffinity(0)) // mine.local_count))


def meeting_place(mine: Launched) -> tuple[str, str]:
    """The address and port at which process 0 waits for the others; of srun by its first machine, job and step."""
    if mine.by == "srun":
        first = SLURMEnvironment.resolve_root_node_address(os.environ["SLURM_STEP_NODELIST"])
        job, step = (int(os.environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        os.environ.setdefault("MASTER_ADDR", first)
        os.environ.setdefault("MASTER_PORT", str(PORTS + (job * 101 + step) % 10_000))  # steps run side by side
    return os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]


def all_loaded() -> None:
    """From here on a process that does not answer is not one that still loads."""
    distributed_c10d._set_pg_timeout(timedelta(seconds=ANSWER_S))


def between(address: str) -> str:
    """The network interface that leads to other machines. Raises RunError where none is found.

    On the first machine its own name may mean loopback (127.0.1.1 in Debian's /etc/hosts): then the default route's.
    """
    found = interface(address)
    if found != "lo":
        return found
    try:
        found = interface(ANYWHERE)
    except OSError:
        found = "lo"
    if found == "lo":
        raise RunError(f"{address} is this machine's loopback and there is no default route: set {INTERFACE}")
    return found


def interface(address: str) -> str:
    """The network interface from which an address is reached. Nothing is sent."""
    family, kind, protocol, _, where = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(where)
        own = probe.getsockname()[0]
    names = psutil.net_if_addrs().items()
    return next((name for name, has in names if own in {one.address for one in has}), "lo")


def about(mine: Launched, problem: str | None) -> dict[str, Any]:
    """What a process says of itself before the training. `problem`: why it does not take part."""
    has = psutil.net_if_addrs().get(os.environ[INTERFACE], ())
    address = next((one.address for one in has if one.family == socket.AF_INET), "?")
    host = socket.gethostname()
    return {"rank": mine.rank, "count": mine.count, "host": host, "address": address, "problem": problem}


def named(one: dict[str, Any]) -> str:
    """A process in words, for an error."""
    return f"process {one['rank']} of {one['count']} of the training (on {one['host']}, {one['address']})"


def packed(checkpoint: Checkpoint | None) -> dict[str, bytes] | None:
    """The files of a checkpoint, and of the journal beside it, by their paths below the run."""
    if checkpoint is None:
        return None
    run = checkpoint.folder.parent.parent
    files = [path for path in checkpoint.folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in (*files, run / JOURNAL)}


def unpacked(files: dict[str, bytes] | None, run: Path) -> str | None:
    """The folder of a checkpoint that `packed` has read, written below `run`."""
    if files is None:
        return None
    for name, contents in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(contents)
    return str((run / next(name for name in files if name.endswith("progress.json"))).parent)
