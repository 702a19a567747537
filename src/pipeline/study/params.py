"""params.yaml: for each stage of the study, the overrides that make it, as people write them.

classifier_torch:
  backend: torch           # a group's choice
  training: {epochs: 3}    # a key of a group; `training.epochs: 3` is the same
tested:
  stage: evaluate
  run: classifier_torch    # the block whose run it starts from
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipeline.errors import UserError, bad_key
from pipeline.experiment import GROUPS
from pipeline.experiment.settings import Settings
from pipeline.runs.resume import AUTO
from pipeline.study import documents

FILE = Path("params.yaml")
OWN_STAGES = ("compose", "data", "report")  # those of dvc.yaml that run no experiment
TAKEN = (*OWN_STAGES, "saved")  # study/saved/ holds the runs that other stages start from
NOT_HERE = ("name", "sweep")  # a stage has its block's name and is not a grid
SETTINGS = tuple(field.name for field in fields(Settings))
KEYS = tuple(key for key in (*GROUPS, "experiment", *SETTINGS) if key not in NOT_HERE)


@dataclass(frozen=True)
class Block:
    """One stage: the groups' choices, and the values of single keys by their dotted names. `added`: of those, the ones
    with a + before them, as on the command line: the config has no such key yet. `run`: the block whose run it starts
    from, as it is written; None: it starts from none."""

    name: str
    choices: Mapping[str, str]
    values: Mapping[str, Any]
    added: Collection[str] = ()
    run: Any = None

    @property
    def keys(self) -> list[str]:
        """What it sets, but for `run`."""
        return [*self.choices, *self.values]


def read(path: Path = FILE) -> list[Block]:
    """Every block, in the order of the file. Raises UserError naming the stage and the key."""
    found = documents.read(path, "it holds a block of overrides for each stage of the study")
    return [_block(path, str(name), block) for name, block in found.items()]


def _block(path: Path, name: str, block: Any) -> Block:
    if name in TAKEN or not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name):
        raise UserError(
            f"{path}: {name}: no name for a stage; use letters, digits, '_' and '-', 60 at most, "
            f"and none of {', '.join(TAKEN)}"
        )
    if not isinstance(block, Mapping):
        raise UserError(f"{path}: {name}={block}: needs a mapping of overrides, such as {name}: {{backend: torch}}")
    choices: dict[str, str] = {}
    values: dict[str, Any] = {}
    added: list[str] = []
    for written, value in _flat(block, ""):
        key = written.removeprefix("+")
        if key != written:
            if key in (*GROUPS, "experiment"):
                raise UserError(f"{path}: {name}: {written}: this group already has a choice; write {key}: <choice>")
            added.append(key)
        _check_value(path, name, key, value)
        top = key.partition(".")[0]
        if top not in KEYS:
            raise UserError(f"{path}: {name}: {bad_key(top, KEYS)}")
        if top == "run" and (key != top or isinstance(value, list)):
            raise UserError(f"{path}: {name}: {key}={value}: needs the name of a block: run: <block>")
        if key == "resume" and value not in (None, AUTO):
            raise UserError(
                f"{path}: {name}: resume={value}: a stage goes on with its own run where that was killed; leave it out"
            )
        if key in choices or key in values:
            raise UserError(f"{path}: {name}: {key} is set twice; write it once")
        if key not in GROUPS and key != "experiment":
            values[key] = value
        elif isinstance(value, str):
            choices[key] = value
        else:
            raise UserError(f"{path}: {name}: {key}={value}: needs one of the choices of conf/{key}/")
    return Block(name, choices, values, added, values.pop("run", None))


def _check_value(path: Path, name: str, key: str, value: Any) -> None:
    """Refuse what no key takes. Raises UserError."""
    if value == {}:
        raise UserError(f"{path}: {name}: {key}={{}}: an empty mapping changes nothing; leave it out")
    if isinstance(value, datetime.date):  # a moment is one too
        raise UserError(f"{path}: {name}: {key}={value}: YAML reads a date in it; put it in quotes")


def _flat(block: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted keys."""
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
