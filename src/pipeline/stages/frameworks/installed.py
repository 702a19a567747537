"""What of a framework is installed here, in which version, and what it takes on disk with all that it requires."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

from pipeline.report.table import size
from pipeline.runs.code.sources import brings
from pipeline.runs.receipt import version_of


def installed(names: Iterable[str]) -> str:
    """`jax 0.10.2, keras 3.15.0; 640.1 MiB on disk with what is required (20 more)`."""
    names = tuple(names)
    versions = ", ".join(f"{name} {version_of(name)}" for name in names)
    there = {one.name for name in names if (one := _found(name))}
    if not there:
        return versions
    every = _with_required(there)
    bytes_ = sum(map(_bytes, every.values()))
    unknown = sum(one.read_text("RECORD") is None for one in every.values())
    but = f"; {unknown} of them have no list of files" if unknown else ""
    return f"{versions}; {size(bytes_)} on disk with what is required ({len(every) - len(there)} more{but})"


def _found(name: str) -> Distribution | None:
    found = brings(name)
    return _distribution(found) if found else None


def _distribution(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _with_required(names: Iterable[str]) -> dict[str, Distribution]:
    """The distributions and what they require, as far as it is installed, by name."""
    found: dict[str, Distribution] = {}
    open_ = [*names]
    while open_:
        one = _distribution(open_.pop())
        if one is None or one.name in found:
            continue
        found[one.name] = one
        open_ += [each.name for text in one.requires or () if (each := _required(text)) is not None]
    return found


def _required(text: str) -> Requirement | None:
    """A requirement that holds here; those of extras do not."""
    if "extra ==" in text:
        return None
    found = Requirement(text)
    return found if found.marker is None or found.marker.evaluate() else None


def _bytes(one: Distribution) -> int:
    """As its RECORD has the files (path, hash, bytes): what was compiled later is not in it."""
    rows = csv.reader((one.read_text("RECORD") or "").splitlines())
    return sum(int(row[2]) for row in rows if len(row) == 3 and row[2])
