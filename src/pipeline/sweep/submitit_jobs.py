"""The executors of submitit: cells as jobs of Slurm, or, to try what a cluster does, as processes of this machine."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.cli.streams import say
from pipeline.cli.terminal import messages
from pipeline.errors import UserError, plural
from pipeline.experiment.settings import Sweep
from pipeline.machine.device import canonical
from pipeline.machine.environment import is_nodes_own
from pipeline.machine.installed import not_installed
from pipeline.runs import slurm
from pipeline.runs.records import TOO_LONG
from pipeline.sweep.cards import devices_of
from pipeline.sweep.cell import add_environment, end_file, in_new_process, write_environment
from pipeline.sweep.history import Kind
from pipeline.sweep.plan import Cell
from pipeline.sweep.schedule import Cancelled, TooLong

KEY = "hydra.launcher.parameters"
ASK_FOR_GPUS = ("gpus_per_node", "slurm_gpus_per_node", "slurm_gpus_per_task", "slurm_num_gpus", "slurm_gres")
CPUS = 4  # for a cell that sets no backend.threads
STANDARD_ERROR = 2  # the descriptor
SILENT = "Slurm does not answer; its jobs go on, and this command waits until it answers"
ARRAY = 1001  # Slurm's own MaxArraySize, where the controller does not say


class LocalJobs:
    """Processes of submitit on this machine. The journals say how their cells ended."""

    queues = True
    queued: frozenset[int] = frozenset()

    def __init__(self, settings: Sweep, folder: Path, parameters: Mapping[str, Any]) -> None:
        self.executor = executor(folder, "local", parameters)
        self.log = folder / "submitit" / "controllers.log"  # what submitit's own processes print when they are stopped
        write_environment(folder)
        # A cluster queues by itself; on one machine nobody else would see to it that the cells fit, and each takes all
        # cores.
        self.limit = settings.jobs or 1
        self.jobs: dict[int, Any] = {}

    def room(self, cell: Cell) -> bool:
        return len(self.jobs) < self.limit

    def start(self, cell: Cell, job: Path) -> None:
        add_environment(job, cell)
        with _standard_error(self.log):
            self.jobs[cell.number] = self.executor.submit(in_new_process, job, Path.cwd())

    def poll(self) -> list[tuple[int, str | None]]:
        done = [number for number, job in self.jobs.items() if job.done()]
        return [(number, _violent(self.jobs.pop(number))) for number in done]

    def stop(self, number: int, *, kill: bool) -> None:
        self.jobs[number].cancel(check=False)

    def close(self) -> None:
        for job in self.jobs.values():
            job.cancel(check=False)


class SlurmJobs:
    """Jobs of Slurm: what starts together is one array, and squeue says how it stands.

    submitit writes the script and calls sbatch. Its own way to ask for a job's state, sacct, needs an accounting
    database; its way to ask for a result is a file that a cancelled job does not write.
    """

    queues = True

    def __init__(self, settings: Sweep, folder: Path, parameters: Mapping[str, Any]) -> None:
        slurm.check_controller()
        self.parameters = {"name": "pipeline", **parameters}
        self.limit, self.folder = settings.jobs, folder
        self.largest = int(slurm.settings().get("MaxArraySize", ARRAY)) - 1
        write_environment(folder)
        self.waiting: list[tuple[Cell, Path]] = []  # started, but not submitted yet
        self.jobs: dict[int, tuple[str, Path]] = {}  # cell -> Slurm's id, the job file
        self.stopping: list[str] = []
        self.withdrawn: list[int] = []  # stopped before Slurm had them
        self.queued: set[int] = set()
        self._asked = ""
        self.silent = False  # whether Slurm left the last question unanswered
        self.said: set[str] = set()  # the reasons to wait that the user knows

    def room(self, cell: Cell) -> bool:
        """All at once, as far as one array goes: how many of them run is slurm_array_parallelism's to say."""
        if self.limit is not None:
            return len(self.jobs) + len(self.waiting) < self.limit
        return not self.jobs and len(self.waiting) < self.largest

    def start(self, cell: Cell, job: Path) -> None:
        add_environment(job, cell)
        self.waiting.append((cell, job))

    def poll(self) -> list[tuple[int, str | None]]:
        self._submit()
        ended: list[tuple[int, str | None]] = [(number, None) for number in self.withdrawn]  # the schedule says why
        self.withdrawn = []
        if self.stopping:
            slurm.cancel(self.stopping)
            self.stopping = []
        if not self.jobs:
            return ended
        found = slurm.jobs(_arrays(name for name, _ in self.jobs.values()))
        self._say_how_it_stands(found)
        if found is None:  # the controller may be busy, or starting anew: it keeps its jobs
            return ended
        for number, (name, path) in list(self.jobs.items()):
            job = found.get(name)
            if job is not None and job.hopeless:
                raise UserError(f"{KEY}: Slurm has no node that can run the cells: {job.reason} ({self._asked})")
            if job is None or job.ended:
                del self.jobs[number]
                ended.append((number, self._reason(name, path, job)))
        names = ((number, found.get(name)) for number, (name, _) in self.jobs.items())
        self.queued = {number for number, job in names if job is not None and job.state == "PENDING"}
        return ended

    def _say_how_it_stands(self, found: Mapping[str, slurm.Job] | None) -> None:
        """What the user would not see: that Slurm does not answer, and why it lets cells wait. Each is said once."""
        if (found is None) != self.silent:
            self.silent = found is None
            say(messages(), SILENT if self.silent else "Slurm answers again")
        waiting = [found[name].waits_for for name, _ in self.jobs.values() if name in found] if found else []
        for reason in dict.fromkeys(waiting):
            if reason is not None and reason not in self.said:
                self.said.add(reason)
                say(messages(), f"Slurm lets {plural(waiting.count(reason), 'cell')} wait: {reason}")

    def stop(self, number: int, *, kill: bool) -> None:
        if number in self.jobs:
            self.stopping.append(self.jobs[number][0])
            return
        # It waits here, or sbatch was interrupted: its job, if there is one, sees that its grid has ended.
        self.waiting = [(cell, path) for cell, path in self.waiting if cell.number != number]
        self.withdrawn.append(number)

    def close(self) -> None:
        if self.jobs:
            slurm.cancel(name for name, _ in self.jobs.values())

    def _submit(self) -> None:
        started, self.waiting = self.waiting, []
        for needs, cells in groupby(sorted(started, key=_needs), key=_needs):
            self._submit_alike(list(cells), *needs)

    def _submit_alike(self, cells: Sequence[tuple[Cell, Path]], kind: Kind, cpus: int, devices: int) -> None:
        """Submit cells that need the same as one array. Raises UserError with what Slurm says where it refuses."""
        asked = asked_for(self.parameters, kind, cpus, devices)
        self._asked = in_words(asked)
        jobs = executor(self.folder, "slurm", asked)
        try:
            # submitit prints what sbatch prints, beside raising it.
            with redirect_stderr(io.StringIO()), _as_from_a_login(), jobs.batch():
                made = [jobs.submit(in_new_process, job, Path.cwd()) for _, job in cells]
        except Exception as error:  # submitit's FailedJobError, with all that sbatch has printed
            raise UserError(f"{KEY}: Slurm refuses the cells: {_said(error)} ({self._asked})") from error
        for (cell, path), job in zip(cells, made, strict=True):
            self.jobs[cell.number] = (job.job_id, path)

    def _reason(self, name: str, path: Path, job: slurm.Job | None) -> str | None:
        """What is known of a cell's end beside its journal."""
        state = job.state if job else None
        if state == "TIMEOUT":
            limit = "timeout_min" if self.parameters.get("slurm_time") is None else "slurm_time"
            return TooLong(f"{TOO_LONG}{KEY}.{limit}={self.parameters.get(limit)}")
        if state in ("CANCELLED", "PREEMPTED", "NODE_FAIL"):
            return Cancelled(f"Slurm's job {name}: {state}")
        if end_file(path).exists():
            return end_file(path).read_text()
        if state is None:  # of a cell that has become a run, its journal says more
            return Cancelled(f"Slurm's job {name} is gone (cancelled?)")
        return None if state == "COMPLETED" else f"Slurm's job {name}: {state}"


def kind_asked(parameters: Mapping[str, Any], device: str) -> Kind:
    """Which kind of device a node gives a cell: what `device` asks for, and for auto what the parameters do.

    Where these leave it open, auto is a GPU if the cluster has any.
    """
    wanted = canonical(device)
    if wanted != "auto":
        return "cpu" if wanted == "cpu" else "gpu"
    given = [parameters[name] for name in ASK_FOR_GPUS if parameters.get(name) is not None]
    if given:
        return "gpu" if any(str(value) != "0" for value in given) else "cpu"
    return "gpu" if slurm.has_gpus(parameters.get("slurm_partition")) else "cpu"


def asked_for(parameters: Mapping[str, Any], kind: Kind, cpus: int, devices: int = 1) -> dict[str, Any]:
    """submitit's parameters for a cell. What the user has left open (null) is what the cell needs."""
    asked = {name: value for name, value in parameters.items() if value is not None}
    asked.setdefault("cpus_per_task", cpus)
    if kind == "gpu" and not any(name in asked for name in ASK_FOR_GPUS):
        asked["gpus_per_node"] = devices
    if asked.get("gpus_per_node") == 0:  # `--gpus-per-node=0` is refused where there are none
        del asked["gpus_per_node"]
    # The script lets the cell end by itself; without the trap the shell dies first, and Slurm kills the rest.
    asked["slurm_setup"] = [*asked.get("slurm_setup", []), "trap : TERM"]
    return {"slurm_use_srun": False, **asked}


def check(cluster: str, parameters: Mapping[str, Any]) -> None:
    """Refuse what submitit does not take, before there is a folder for its files. Raises UserError."""
    asked = asked_for(parameters, "cpu", 1) if cluster == "slurm" else parameters
    with TemporaryDirectory() as folder:
        executor(Path(folder), cluster, asked)


def executor(folder: Path, cluster: str, parameters: Mapping[str, Any]) -> Any:
    """submitit's executor. Its files are for the user's eyes only. Raises UserError."""
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise UserError(f"hydra/launcher=submitit_*: {not_installed(('submitit',), ('slurm',))}") from error
    _check_least(cluster, parameters)
    place = folder / "submitit"
    place.mkdir(mode=0o700, exist_ok=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names of parameters: what is wrong is refused
            made = submitit.AutoExecutor(folder=place, cluster=cluster)
            made.update_parameters(**parameters)
    except (RuntimeError, ValueError, NameError, TypeError, AssertionError) as error:  # a parameter it does not know
        raise UserError(f"hydra.launcher: submitit on {cluster}: {slurm.one_line(str(error))}") from error
    return made


def _check_least(cluster: str, parameters: Mapping[str, Any]) -> None:
    """Refuse numbers with which a job would wait for ever: Slurm takes them without a word. Raises UserError.

    Of Slurm, 0 minutes are no limit.
    """
    least = {"timeout_min": 0 if cluster == "slurm" else 1, "nodes": 1, "slurm_array_parallelism": 1}
    for name, number in least.items():
        value = parameters.get(name)
        if isinstance(value, int | float) and value < number:
            raise UserError(f"{KEY}.{name}={value}: must be {number} or more")


@contextmanager
def _as_from_a_login() -> Iterator[None]:
    """sbatch hands its environment on. What belongs to this machine, or to the job that this command runs in, stays."""
    kept = {name: value for name, value in os.environ.items() if is_nodes_own(name) and name != "SLURM_CONF"}
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)


def _needs(started: tuple[Cell, Path]) -> tuple[Kind, int, int]:
    cell, _ = started
    devices = devices_of(cell)
    return cell.kind, (cell.runnable.backend.threads or CPUS) * devices, devices


def _arrays(names: Iterator[str] | Sequence[str]) -> list[str]:
    """The jobs to ask about: an array by its own id, however many elements it has."""
    return sorted({name.partition("_")[0] for name in names})


def in_words(asked: Mapping[str, Any]) -> str:
    """What a job asks for, for a message."""
    hidden = ("slurm_setup", "slurm_use_srun", "name", "slurm_array_parallelism")
    return "asked for " + ", ".join(f"{name}={value}" for name, value in asked.items() if name not in hidden)


def _said(error: Exception) -> str:
    """What sbatch said, of all that submitit raises."""
    lines = [line.split("error: ", 1)[-1] for line in str(error).splitlines() if "error: " in line]
    return slurm.one_line("; ".join(dict.fromkeys(lines)) or str(error))


@contextmanager
def _standard_error(file: Path) -> Iterator[None]:
    """Processes that are started inside have this file for standard error."""
    before = os.dup(STANDARD_ERROR)
    with file.open("ab") as log:
        os.dup2(log.fileno(), STANDARD_ERROR)
    try:
        yield
    finally:
        os.dup2(before, STANDARD_ERROR)
        os.close(before)


def _violent(job: Any) -> str | None:
    """What is known of a job that did not return."""
    if not job.paths.result_pickle.exists():  # submitit would wait 15 s for what a cancelled job does not write
        return f"job {job.job_id}: {job.state}"
    error = job.exception()
    if error is None:
        reason: str | None = job.result()
        return reason
    return f"job {job.job_id}: {job.state}: {slurm.one_line(str(error))}"
