"""Sweeps: many experiments by one command, each in its own process.

settings (Sweep, in experiment/settings.py) -> plan.py   what each cell would be, and whether it has to run
                -> schedule.py   runs them by an executor (workers.py, submitit.py, ray.py), minds time and failures
                -> ledger.py   shows how it stands; summary.py   the table and the figure at the end, from entries.py by
                               pivot.py
"""
