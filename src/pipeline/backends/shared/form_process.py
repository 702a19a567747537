"""The process of one framework: python -m pipeline.backends.shared.form_process <folder>

`<folder>/job.json` says what to do: measure all forms of a kind, or only the first two calls of one. `net.npz` has the
start and the reference; `found.json` is what comes of it, `saved/` the graphs. The framework is imported here alone.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.shared.form_bench import Bench
from pipeline.backends.shared.two_layer import Net, Reference


def main(folder: Path) -> None:
    """Verify, time and save all, or make two calls."""
    job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    with np.load(folder / "net.npz") as read:
        net = Net(read["x"], read["y"], read["start_w1"], read["start_w2"], job["rate"])
        weights = {int(n): (w1, w2) for n, w1, w2 in zip(read["after"], read["w1"], read["w2"], strict=True)}
        reference = Reference(read["losses"], weights, job["steps"])
    module = importlib.import_module(job["module"])
    bench = Bench(net, reference, module.arrays(job["place"]), job["place"])
    kinds = {kind.name: kind for kind in getattr(module, job["kinds"])}
    found: object
    if job["first"] is not None:
        found = bench.first_calls(kinds[job["first"]])
    else:
        bench.verify([*kinds.values()])
        bench.time(job["repetitions"], job["rounds"])
        bench.save(folder / "saved")
        found = [one.plain() for one in bench.found]
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
