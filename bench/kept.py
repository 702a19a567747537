"""results/<device>/<date>.json: what was measured on a machine on a day, each benchmark's with its commit.

    {"machine": {"cpu": "AMD EPYC", "cores": 2, ..., "gpu": {"name": "NVIDIA H200", ...}},
     "results": {"startup": {"git": {"commit": "...", "dirty": false},
                             "rows": [{"what": "--help", "unit": "s", "median": 0.4, "min": 0.4, "max": 0.5, "n": 10},
                                      ...]}, ...}}

Of `bench gpu` the machine has a `gpu`, and each part its command, state, seconds and message, the driver and versions.
A part that found nothing when it was run again, or went wrong and found less, keeps the rows of before; `later` is how
it then ended. Of other benchmarks, which were run more than once on a day, `earlier` has the rounds before the last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.runs.json_files import read_json, write_json


def path_of(root: Path, where: Mapping[str, Any]) -> Path:
    """The file of a machine and a day: of its GPU where the figures are of one, else of its processor and cores."""
    name = where["gpu"]["name"] if "gpu" in where else f"{where['cpu']} {where['cores']} cores"
    return root / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") / f"{where['date']}.json"


def results(path: Path) -> dict[str, Any]:
    """What a file holds, by benchmark; nothing where there is none. Raises UserError for one that cannot be read, which
    would be written anew without what it holds."""
    kept = read_json(path)
    if not kept and path.exists():
        raise UserError(f"{path}: is not JSON; mend it, or take it away")
    found: dict[str, Any] = kept.get("results", {})
    return found


def keep_round(root: Path, where: Mapping[str, Any], name: str, made: Mapping[str, Any]) -> Path:
    """Add a benchmark's results, and keep those of earlier on the day beside them."""
    before = results(path_of(root, where)).get(name)
    earlier = [] if before is None else [*before.pop("earlier", ()), before]
    return keep(root, where, {name: {**made, **({"earlier": earlier} if earlier else {})}})


def keep(root: Path, where: Mapping[str, Any], new: Mapping[str, Any]) -> Path:
    """Add results to the file of this machine and day, in one step. The file may hold some of earlier commits."""
    path = path_of(root, where)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"machine": where, "results": results(path) | dict(new)})
    return path
