"""One source of ceilings in its own process: python -m pipeline.stages.devices.process <folder>

`<folder>/job.json` names the module, the device and the number of rounds; `found.json` is what has come of it so far.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from pipeline.runs.json_files import write_json


def main(folder: Path) -> None:
    """Measure."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    for found in importlib.import_module(job["module"]).measured(job["place"], job["rounds"]):
        write_json(folder / "found.json", {"found": [one.plain() for one in found]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
