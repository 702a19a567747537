"""The process of one framework and one source: python -m pipeline.backends.shared.load_process <folder>

`<folder>/job.json` says what to measure, `data.npz` has the examples, `found.json` is what comes of it. The framework
is imported here alone.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.shared.load_bench import Bench, Source
from pipeline.backends.shared.load_settings import Settings
from pipeline.datasets import Data, Split
from pipeline.datasets.normalisation import Normalisation
from pipeline.datasets.pictures import Pictures
from pipeline.errors import UserError
from pipeline.runs.json_files import write_json
from pipeline.tasks.classification import Classification


def main(folder: Path) -> None:
    """Verify, time, and take a pass apart."""
    job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    with np.load(folder / "data.npz") as read:
        source = source_of(job, read["x"], read["y"])
    feed = importlib.import_module(job["module"]).Feed(job["place"])
    settings = Settings.read(job["settings"])
    bench = Bench(feed, source, job["seconds"], job["step_s"])
    for _ in bench.measure(settings, job["rounds"], job["finals"]):
        write(folder, bench, [])  # the times are there, whatever becomes of what follows
    # The first time is a warm-up.
    parts = [feed.parts(source, settings.plainest.batch_size) for _ in range(1 + job["rounds"])][1:]
    write(folder, bench, parts)


def write(folder: Path, bench: Bench, parts: list[dict[str, float]]) -> None:
    """Write what was found so far to the folder's found.json."""
    found = [one.plain() for one in bench.found.values()]
    write_json(folder / "found.json", {"found": found, "parts": parts})


def source_of(job: Mapping[str, Any], x: np.ndarray, y: np.ndarray) -> Source:
    """The examples x (N, ...), y (N,) where the loader is to find them: in memory, in a file each, in a mapped file."""
    normalisation = Normalisation.of_card({"normalisation": job["normalisation"]})
    task = Classification(x.shape[1:], tuple(job["classes"]))
    empty = Split(x[:0], y[:0])
    data = Data(Split(x, y), empty, empty, task, "", scale=job["scale"], normalisation=normalisation)
    stored: Any = x
    if job["pictures"] is not None:
        stored = Pictures([Path(path) for path in job["pictures"]], x.shape[1:])
    elif job["mapped"] is not None:
        stored = mapped(Path(job["mapped"]), x)
        y = np.resize(y, len(stored))
    return Source(
        name=job["source"],
        data=replace(data, train=Split(stored, y)),
        x=x,
        examples=job["examples"],
        seed=job["seed"],
        file=None if job["mapped"] is None else Path(job["mapped"]),
    )


def mapped(path: Path, x: np.ndarray) -> np.ndarray:
    """The file of examples like x (N, ...). Raises UserError for another one."""
    try:
        found = np.load(path, mmap_mode="r")
        fault = None if (found.dtype, found.shape[1:]) == (x.dtype, x.shape[1:]) else f"{found.shape} {found.dtype}"
    except (ValueError, EOFError, OSError) as error:
        fault = str(error)
    if fault:
        raise UserError(f"stage.sources=mapped: {path}: holds other examples ({fault}); delete it")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
