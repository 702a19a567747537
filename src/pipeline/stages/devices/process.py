"""One source of ceilings in its own process: python -m pipeline.stages.devices.process <folder>

`<folder>/job.json` names the module, the device and the number of rounds; `found.json` is what comes of it.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Measure."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    found = importlib.import_module(job["module"]).measured(job["place"], job["rounds"])
    (folder / "found.json").write_text(json.dumps([one.plain() for one in found]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
