"""The executor of a cluster: cells as jobs of submitit, on Slurm or, to try it, on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.sweep import Sweep
from pipeline.sweep.cell import in_new_process
from pipeline.sweep.plan import Cell


class SubmititJobs:
    """Jobs of submitit. The journals, on the shared file system, say how their cells ended."""

    queues = True

    def __init__(self, settings: Sweep, folder: Path, cluster: str, parameters: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ModuleNotFoundError as error:
            raise UserError("hydra/launcher=submitit_*: needs submitit; pip install 'pipeline[slurm]'") from error
        try:
            self.executor = submitit.AutoExecutor(folder=folder / "submitit", cluster=cluster)
            self.executor.update_parameters(**parameters)
        except (RuntimeError, ValueError, NameError) as error:  # no sbatch here; a parameter that it does not know
            raise UserError(f"hydra.launcher: submitit on {cluster}: {' '.join(str(error).split())}") from error
        # A cluster queues by itself; on one machine nobody else would see to it that the cells fit.
        self.limit = settings.jobs or (len(os.sched_getaffinity(0)) if cluster == "local" else None)
        self.jobs: dict[int, Any] = {}

    def room(self, cell: Cell) -> bool:
        return self.limit is None or len(self.jobs) < self.limit

    def start(self, cell: Cell, job: Path) -> None:
        self.jobs[cell.number] = self.executor.submit(in_new_process, job, Path.cwd(), dict(os.environ))

    def poll(self) -> list[tuple[int, str | None]]:
        done = [number for number, job in self.jobs.items() if job.done()]
        return [(number, _violent(self.jobs.pop(number))) for number in done]

    def stop(self, number: int, *, kill: bool) -> None:
        self.jobs[number].cancel(check=False)

    def close(self) -> None:
        for job in self.jobs.values():
            job.cancel(check=False)


def _violent(job: Any) -> str | None:
    """What is known of a job that did not return."""
    error = job.exception()
    if error is None:
        reason: str | None = job.result()
        return reason
    return f"job {job.job_id} {job.state}: {' '.join(str(error).split())[:300]}"
