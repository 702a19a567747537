"""The process of one framework: python -m pipeline.backends.shared.form_process <folder>

`<folder>/job.json` names the framework's module, `net.npz` has the start and the reference. The framework is imported
here alone. Then the process says which forms there are, and takes orders from its standard input, a line of JSON each:

    {"do": "begin", "name": "torch_compile"}     time the first two calls of a form, before it has made any other
    {"do": "verify", "names": ["torch_nn"]}      train by these forms, and compare
    {"do": "time", "steps": 100}                 one sample of each form that is right
    {"do": "save", "folder": "saved"}            save their graphs

It answers each on its standard output with all that was found so far; what a framework prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.shared.form_bench import Bench, found_of
from pipeline.backends.shared.two_layer import Form, Net, Reference


def main(folder: Path) -> None:
    """Verify and time forms as standard input asks, until it closes; answers go to standard output."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        module = importlib.import_module(job["module"])
        bench = Bench(*_task(folder, job), module.arrays(job["place"]), job["place"])
        kinds: dict[str, type[Form]] = {kind.name: kind for kind in (*module.FORMS, *module.WAYS)}
        listed = {
            which: [found_of(kind, job["place"]).plain() for kind in getattr(module, which)]
            for which in ("FORMS", "WAYS")
        }
        print(json.dumps(listed), file=answers, flush=True)
        for line in sys.stdin:
            _obey(json.loads(line), bench, kinds)
            print(json.dumps([one.plain() for one in bench.found]), file=answers, flush=True)


def _task(folder: Path, job: Mapping[str, Any]) -> tuple[Net, Reference]:
    with np.load(folder / "net.npz") as read:
        net = Net(read["x"], read["y"], read["start_w1"], read["start_w2"], job["rate"])
        weights = {int(n): (w1, w2) for n, w1, w2 in zip(read["after"], read["w1"], read["w2"], strict=True)}
        return net, Reference(read["losses"], weights, job["steps"])


def _obey(order: Mapping[str, Any], bench: Bench, kinds: Mapping[str, type[Form]]) -> None:
    match order["do"]:
        case "begin":
            bench.begin(kinds[order["name"]])
        case "verify":
            bench.verify([kinds[name] for name in order["names"]])
        case "time":
            bench.time([order["steps"]], rounds=1)
        case "save":
            bench.save(Path(order["folder"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
