"""Which run a result is of, for the tables of the stages that start from one: `latest` names none."""

from __future__ import annotations

from pathlib import Path

from pipeline.runs.records import read_config, read_status, value_at


def source_rows(source: Path) -> list[tuple[str, str]]:
    """The run in `source`; of a cell, or of a fold, also which one it is."""
    config, status = read_config(source), read_status(source)
    folds, fold = (value_at(config, f"dataset.{name}") for name in ("folds", "fold"))
    whole = status.cell_of if status is not None else None
    of = f"a cell of {whole}" if whole else None
    which = f"seed={config.get('seed')}" if whole else None
    if folds is not None:
        which = f"dataset.fold={fold}, one of {folds} folds"
    found = ", ".join(filter(None, (which, of)))
    return [("run", source.name), *([("which is", found)] if found else [])]
