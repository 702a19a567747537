"""Processes that a launcher has started together, on one machine or several: torchrun, or srun in a job of Slurm.

torchrun says who is who by RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, and where they meet by MASTER_ADDR and
MASTER_PORT (https://docs.pytorch.org/docs/stable/elastic/run.html); anything else may set the same. srun does it by
SLURM_PROCID and others (srun(1), OUTPUT ENVIRONMENT VARIABLES).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors import Impossible, UserError
from pipeline.machine.device import Device

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SRUN = "SLURM_STEP_NUM_TASKS"
SEVERAL = 2  # processes that something may have whose settings are not known yet


@dataclass(frozen=True)
class Launched:
    """Process number `rank` (from 0) of `count`; number `local_rank` of the `local_count` on this machine."""

    rank: int
    count: int
    local_rank: int
    local_count: int
    by: str

    def __str__(self) -> str:
        return f"{self.by} has started {self.count} processes"


def launched(processes: int, environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Which of them this process is; None where it was started alone.

    `processes`: how many train together. A command of one process that srun runs several times is not a group.
    """
    if all(environment.get(name) for name in TORCHRUN):
        found = _of_torchrun(environment)
    elif processes > 1 and environment.get(SRUN, "1") != "1":
        found = _of_srun(environment)
    else:
        return None
    return found if found.count > 1 else None


def _of_torchrun(environment: Mapping[str, str]) -> Launched:
    rank, count, local_rank = (_whole(environment, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    missing = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if not environment.get(name)]
    if count > 1 and missing:  # else two processes of a machine would take the same GPU
        raise UserError(
            f"WORLD_SIZE={count} is in the environment without {' and '.join(missing)}: which process of this machine "
            "this is, and of how many, is not known; a launcher such as torchrun sets both"
        )
    by = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "the launcher that set WORLD_SIZE"
    return Launched(rank, count, local_rank, _whole(environment, "LOCAL_WORLD_SIZE", "1"), by)


def _of_srun(environment: Mapping[str, str]) -> Launched:
    node = _whole(environment, "SLURM_NODEID")
    each: list[int] = []  # tasks of each machine, as in 2(x3),1
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "1")):
        each += [int(tasks)] * int(times or 1)
    rank, count, local_rank = (
        _whole(environment, name) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    )
    return Launched(rank, count, local_rank, each[node] if node < len(each) else 1, "srun")


def _whole(environment: Mapping[str, str], name: str, default: str = "0") -> int:
    value = environment.get(name, default)
    if not value.isdigit():
        raise UserError(f"{name}={value} in the environment: not a whole number; a launcher such as torchrun sets it")
    return int(value)


def check_launched(found: Launched | None, device: Device, backend: str, *, distributes: bool) -> None:
    """Refuse processes that would not train together, each a part. Raises Impossible."""
    if found is None:
        return
    if not distributes:
        raise Impossible(f"{found}, but backend={backend} trains in one; start it alone, or use backend=torch")
    if found.count != device.processes:
        raise Impossible(
            f"device.processes={device.processes}: {found} for one training; use device.processes={found.count}"
        )


def refuse_launched(what: str, processes: int) -> None:
    """Refuse what each of these processes would do by itself. `what`: as the user names it. Raises UserError."""
    found = launched(processes)
    if found is not None:
        raise UserError(f"{what}: {found}, and each would do all of it; start it alone: it starts its processes itself")


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is none of those which a launcher has started, though one of them starts it."""
    return {name: value for name, value in environment.items() if name not in (*TORCHRUN, SRUN)}
