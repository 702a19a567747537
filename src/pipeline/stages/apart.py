"""What a module measures in a process that knows one framework at most."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from pipeline.errors import RunError
from pipeline.machine.own_process import OwnProcess
from pipeline.runs.json_files import read_json


def measured_apart(process: OwnProcess, module: str, job: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """What `module` wrote to found.json before its process ended; and why that did not end well, if it did not.

    The module finds `job` in job.json beside it.
    """
    (process.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    why = None
    try:
        process.run([sys.executable, "-m", module, str(process.folder)])
    except RunError as error:
        why = str(error)
    return read_json(process.folder / "found.json"), why
