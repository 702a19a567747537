"""Provenance: dvc.lock, composed.yaml and the MLflow runs describe the same execution, or what differs.

    config, code   as DVC tracked them, as composed.yaml has them, and their hashes in the MLflow run's receipt
    the rest       what else of composed.yaml a stage read, and the files and folders that it read of other stages
    data           the hash that DVC tracked, the one in study/data.json, and the one in the MLflow run's receipt
    results        metrics.json, and the metrics of the MLflow run
    files          every output, by the MD5 in dvc.lock

Of three, the one that differs from the other two is named.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import experiment as experiments
from pipeline.errors import RunError, UserError
from pipeline.report.table import show_table
from pipeline.runs.code import code_hash as code
from pipeline.runs.records import value_at
from pipeline.runs.result import Table
from pipeline.study import composed, data, documents, lock, outcome, params
from pipeline.study.tracked import Tracked, tracked_run

LOCK, COMPOSED, MLFLOW = "dvc.lock", "composed.yaml", "MLflow run"
SHOWN = 8  # digits of a hash, enough to distinguish it
NO_RUN = Tracked(receipt={}, results={}, id="")  # where MLflow has no run
MISSING = "none (`make study` builds what is missing)"


@dataclass(frozen=True)
class Difference:
    """One thing that is not as the others have it. `record`: which of them it is."""

    stage: str
    record: str
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.record}: {self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Row:
    """What the table shows of a stage: what its records agree on, by column."""

    stage: str
    agreed: Mapping[str, str]
    differences: tuple[Difference, ...]


def check() -> int:
    """Print a row for each stage, then each difference. Exit status 1 where there is one. Raises UserError."""
    names = {block.name for block in params.read()}
    stages, locked, entries = lock.stages(), lock.read(), composed.read()
    rows = [_row(stage, names, locked, entries) for stage in stages]
    missing = sorted(names - {lock.block_of(stage) for stage in stages})
    rows += [
        Row(name, {}, (Difference(name, "dvc.yaml", "stage", f"one that runs {name}", "none"),)) for name in missing
    ]
    show(rows)
    differences = [difference for row in rows for difference in row.differences]
    for difference in differences:
        print(f"differs: {difference}", file=sys.stderr)
    return 1 if differences else 0


def show(rows: list[Row]) -> None:
    """The table, on standard output. No hash is cut: of a narrow terminal the verdict takes several lines."""
    from pipeline.cli.terminal import results

    columns = ("files", "config", "code", "data", "MLflow run")
    whole = ("stage", *columns)
    cells = tuple((row.stage, *(row.agreed.get(column, "-") for column in columns), _verdict(row)) for row in rows)
    show_table(results(), Table("", (*whole, ""), cells), left=(*whole, ""), whole=whole)


def _verdict(row: Row) -> str:
    names = dict.fromkeys(difference.record for difference in row.differences)
    return f"differs: {', '.join(names)}" if names else "agree"


def _row(stage: str, names: set[str], locked: Mapping[str, lock.Locked], entries: Mapping[str, composed.Entry]) -> Row:
    found = locked.get(stage)
    if found is None:
        return Row(stage, {}, (Difference(stage, LOCK, "stage", "an entry (`dvc repro` makes it)", "none"),))
    agreed: dict[str, str] = {}
    differences = [*_files(stage, found, locked), *_params(stage, found)]
    if not differences:
        agreed["files"] = str(len(found.outs))
    if stage not in params.OWN_STAGES:
        differences += _experiment(stage, found, names, entries, agreed)
    return Row(stage, agreed, tuple(differences))


def _files(stage: str, found: lock.Locked, locked: Mapping[str, lock.Locked]) -> Iterator[Difference]:
    """What lies there against what DVC noted; and what this stage read against what other stages have written since."""
    lying = {path: lock.md5(Path(path)) for path in found.outs}
    missing = [path for path, there in lying.items() if there is None]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        yield Difference(stage, "the folder", "files", f"{missing[0]}{more}, which {LOCK} names", MISSING)
    for path, noted in found.outs.items():
        if lying[path] not in (None, noted):
            yield Difference(stage, LOCK, f"md5 of {path}", f"{lying[path]}, as it is on disk", noted)
    written = [Path(path) for other in locked.values() for path in other.outs]
    for path, noted in found.deps.items():
        # A stage may read a whole folder of outputs (study/amp), for which dvc.lock has one hash.
        if not any(out.is_relative_to(path) or Path(path).is_relative_to(out) for out in written):
            continue
        there = lock.md5(Path(path))
        if there not in (None, noted):  # what is missing is named by the stage that writes it
            yield Difference(stage, LOCK, f"md5 of {path}, which it read", f"{there}, as it is on disk", noted)


def _params(stage: str, found: lock.Locked) -> Iterator[Difference]:
    """What of composed.yaml this stage was run with against what stands there, but config and code: see _claims."""
    name, whole = lock.block_of(stage), documents.read(composed.FILE, composed.MAKE)
    for key, tracked in found.params.get(str(composed.FILE), {}).items():
        if key in (f"{name}.config", f"{name}.code"):
            continue
        ours, theirs = outcome.flat({key: tracked}), outcome.flat({key: value_at(whole, key)})
        for one in dict.fromkeys((*ours, *theirs)):
            if ours.get(one) != theirs.get(one):
                what = f"{composed.FILE}: {one.replace('/', '.')}, which it read"
                yield Difference(stage, LOCK, what, _short(theirs.get(one)), _short(ours.get(one)))
                break


def _short(value: Any) -> str:
    """A value as a difference shows it; of a hash the first digits."""
    text = "nothing" if value is None else str(value)
    return text[:SHOWN] if re.fullmatch(r"[0-9a-f]{64}", text) else text


def _experiment(
    stage: str,
    found: lock.Locked,
    names: set[str],
    entries: Mapping[str, composed.Entry],
    agreed: dict[str, str],
) -> Iterator[Difference]:
    """Config, code, data, results. What the records agree on goes into `agreed`."""
    name = lock.block_of(stage)
    if name not in names:
        yield Difference(stage, "params.yaml", "block", name, "none")
        return
    if name not in entries:
        yield Difference(stage, COMPOSED, "entry", name, "none")
        return
    entry = entries[name]
    run = NO_RUN
    try:
        kept = outcome.read(name)
    except UserError:
        kept = None  # a file that is missing or damaged has another MD5: it is named already
    if kept is not None:
        try:
            run = tracked_run(kept, entry)
            agreed["MLflow run"] = run.id[:SHOWN]
        except (UserError, RunError) as error:
            yield Difference(stage, MLFLOW, "the run", "the run of this execution", str(error))
    for what, values in _claims(name, found, entry, run).items():
        differences = list(_odd_ones(stage, what, values))
        yield from differences
        if values and not differences:
            agreed[what.partition(" ")[0]] = next(iter(values.values()))[:SHOWN]
    if kept is not None and run is not NO_RUN:
        yield from _results(stage, kept, run)


def _claims(name: str, found: lock.Locked, entry: composed.Entry, run: Tracked) -> dict[str, dict[str, str]]:
    """What each record says of config, code and data: a hash, by record. A record that says nothing is left out."""
    config, modules = (found.param(str(composed.FILE), f"{name}.{part}") for part in ("config", "code"))
    claims: dict[str, dict[str, str]] = {}
    for what, hash_of, tracked, there in (
        ("config", experiments.hash_of, config, entry.config),
        ("code", code.hash_of, modules, entry.code),
    ):
        values = {LOCK: hash_of(tracked) if isinstance(tracked, Mapping) else "nothing", COMPOSED: hash_of(there)}
        where = _first_difference(tracked, there) if isinstance(tracked, Mapping) else ""
        claims[f"{what}{where}"] = values | _said(run, f"{what}_sha256")
    if name in composed.data_stages():
        noted = str(found.param(str(data.FILE), name) or "nothing")
        claims["data"] = {LOCK: noted, str(data.FILE): data.hashes().get(name, "nothing")}
        claims["data"] |= _said(run, "data_sha256")
    return claims


def _said(run: Tracked, key: str) -> dict[str, str]:
    return {} if run is NO_RUN else {MLFLOW: run.receipt.get(key, "nothing")}


def _first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first key whose value differs, in words."""
    ours, theirs = outcome.flat(one), outcome.flat(other)
    for key in dict.fromkeys((*ours, *theirs)):
        if ours.get(key) != theirs.get(key):
            return f" (at {key.replace('/', '.')}: {LOCK} {ours.get(key)}, {COMPOSED} {theirs.get(key)})"
    return ""


def _odd_ones(stage: str, what: str, values: Mapping[str, str]) -> Iterator[Difference]:
    """The records that differ from the majority; without a majority, each against the first."""
    (expected, votes), *others = Counter(values.values()).most_common()
    if not others:
        return
    agreeing = [record for record, value in values.items() if value == expected]
    for record, value in values.items():
        if value != expected:
            said = f"{expected[:SHOWN]} ({' and '.join(agreeing)})"
            yield Difference(stage, record if votes > 1 else f"{agreeing[0]} or {record}", what, said, value[:SHOWN])


def _results(stage: str, kept: outcome.Outcome, run: Tracked) -> Iterator[Difference]:
    """The metrics of the MLflow run against metrics.json, whose MD5 is in dvc.lock."""
    ours = {key: float(value) for key, value in kept.metrics.items()}
    theirs = {key: value for key, value in run.results.items() if key not in kept.timings}
    for key in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(key), theirs.get(key)
        if not same_result(one, other):
            yield Difference(stage, MLFLOW, f"result {key}", f"{one} (metrics.json)", str(other))


def same_result(one: float | None, other: float | None) -> bool:
    """Whether a result is the one that MLflow has, which keeps an infinity as the largest double of its sign."""
    if one is None or other is None:
        return one is other
    if math.isinf(one):
        one = math.copysign(sys.float_info.max, one)
    return one == other or (math.isnan(one) and math.isnan(other))
