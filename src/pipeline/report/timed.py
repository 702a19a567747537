"""What makes the rates of several runs less comparable than they look: by their receipts, how each was timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.errors import plural
from pipeline.machine.others import said_of, too_short
from pipeline.report.table import seconds

OF_OTHERS, OF_COLD = "which slowed them", "which starts cold"
OF_CLOCK = "at least; train longer for surer ones"
LONGER = "train for two or more"
Receipts = Sequence[Mapping[str, Any]]


def of_rates(receipts: Receipts, what: str, period: str = "epoch or period", longer: str = LONGER) -> tuple[str, ...]:
    """`what` the receipts are of: a run, a cell. `period`: what lies between two validations; `longer`: how more of
    them are had."""
    timed = [receipt.get("training_rate", receipt) for receipt in receipts]  # of passes it is in the receipt itself
    of = plural(len(receipts), what)
    return (*_disturbed(timed, of), *_cold(timed, of, period, longer), *_short(timed, of))


def of_machines(receipts: Receipts, what: str) -> Iterator[str]:
    """Where not all were timed on one kind of device, and of the same host."""
    found = Counter(name for receipt in receipts if (name := _machine(receipt)))
    if len(found) > 1:
        each = "; ".join(f"{name} ({plural(n, what)})" for name, n in found.items())
        yield f"the rates are of several machines: {each}"


def _disturbed(timed: Receipts, of: str) -> Iterator[str]:
    """Where other processes had enough of the cores to disturb what was timed."""
    shares = [one.get("cores_of_others") for one in timed]
    busy = [share for share in shares if share is not None and said_of(share)]
    if busy:
        yield f"{said_of(max(busy))} at most, in {len(busy)} of {of}, {OF_OTHERS}"


def _cold(timed: Receipts, of: str, period: str, longer: str) -> Iterator[str]:
    """Where the only epoch, or period, is the one that a process starts with."""
    if cold := sum(bool(one.get("cold")) for one in timed):
        yield f"the rates of {cold} of {of} are of one {period}, {OF_COLD}; {longer}"


def _short(timed: Receipts, of: str) -> Iterator[str]:
    """Where rates were timed over too short a time to be sure of."""
    if short := [one["timed_s"] for one in timed if too_short(one.get("timed_s"))]:
        yield f"the rates of {len(short)} of {of} are uncertain: timed over {seconds(min(short))} {OF_CLOCK}"


def _machine(receipt: Mapping[str, Any]) -> str | None:
    """The device that a run was timed on, by its name: of a processor with its cores, of a GPU with its host."""
    hardware = (receipt.get("device") or {}).get("hardware") or {}
    cores, host = hardware.get("cores"), (hardware.get("host") or {}).get("name")
    parts = [hardware.get("name"), plural(cores, "core") if cores else None, f"host {host}" if host else None]
    return ", ".join(filter(None, parts)) or None
