"""Sweeps: many experiments by one command, each in a process of its own.

settings (here) -> plan.py   what each cell would be, and whether it has to run
                -> schedule.py   runs them by an executor (workers.py, submitit.py, ray.py), minds time and failures
                -> ledger.py   shows how it stands; summary.py   the table and the figure at the end
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from pipeline.spec import spec


@spec
class Sweep:
    """How a grid runs. None of it decides a cell's result.

    `jobs`: cells at once, on GPUs too (None: one for each GPU; on the CPU as many as `backend.threads` leaves cores
    for, one where it is not set, since a cell then takes every core). `timeout`: seconds that a cell may take. `retry`:
    which cells that ended without a result run again: those that were killed, also those that failed, or all, finished
    ones too. `impossible`: skip cells that cannot run here, or refuse the grid. `stop_after`: give up when the first so
    many cells all fail for one cause (0: never). `dry_run`: only list what would run, and why.
    """

    jobs: PositiveInt | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    retry: Literal["killed", "failed", "all"] = "killed"
    impossible: Literal["skip", "fail"] = "skip"
    stop_after: NonNegativeInt = 3
    dry_run: bool = False
