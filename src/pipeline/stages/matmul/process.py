"""The process of one framework on one device: python -m pipeline.stages.matmul.process <folder>

`<folder>/job.json` says what to do: verify and time products, or look at where the operands of one lie. `found.json`
is what comes of it. The framework is imported here alone.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.runs.json_files import write_json
from pipeline.stages.matmul import ceiling
from pipeline.stages.matmul.kernel import Matrices as KernelMatrices
from pipeline.stages.matmul.memory import used
from pipeline.stages.matmul.misplaced import Misplaced, misplaced
from pipeline.stages.matmul.problem import Problem
from pipeline.stages.matmul.timing import Timing


def main(folder: Path) -> None:
    """Do the job in a folder's job.json, and write what is found to its found.json after each part."""
    job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    for found in timed(job) if job["what"] == "products" else [placed(job)]:
        write_json(folder / "found.json", found)


def timed(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every product of the framework, or kernel: again after each round, as the process may be ended in the next."""
    place, threads = job["place"], job["cores"]
    if job["kernel"] is None:
        matrices = importlib.import_module(job["module"]).matrices(place, job["limit"])
    else:
        matrices = KernelMatrices(job["kernel"], threads)
    now = ceiling.of_cpu(threads) if job["ceilings"] else ceiling.not_measured
    timing = Timing(matrices, place, now, seed=job["seed"], longest=job["longest"])
    timing.verify(job["dtypes"], job["sizes"])
    for _ in range(job["rounds"]):
        timing.time()
        yield {"products": [one.plain() for one in timing.found]}


def placed(job: dict[str, Any]) -> dict[str, Any]:
    """The memory of one product, and what it costs that an operand lies on another device."""
    module, place = importlib.import_module(job["module"]), job["place"]
    problem = Problem(job["dtype"], job["size"])
    devices = module.apart(place, job["limit"])
    here = module.matrices(place, job["limit"]) if isinstance(devices, str) else devices[0]
    memory = used(here, problem, job["seed"])
    if isinstance(devices, str):
        return {"memory": asdict(memory), "misplaced": asdict(Misplaced(missing=devices))}
    found = misplaced(devices[0], devices[1], problem, job["seed"], job["rounds"])
    return {"memory": asdict(memory), "misplaced": asdict(found)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
