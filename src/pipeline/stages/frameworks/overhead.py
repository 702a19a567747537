"""How long Python is held up by a step, from the newest run of stage=graph that measured the framework here, as it is
installed now."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.contracts import Backend
from pipeline.kernels.cpu.ceilings import ALONE
from pipeline.machine.device import gpus
from pipeline.machine.environment import environment
from pipeline.machine.host import cpu_name
from pipeline.report.intervals import ENOUGH
from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import run_folders
from pipeline.runs.receipt import version_of
from pipeline.runs.records import Status, read_config, read_status
from pipeline.runs.result import Metric, metrics_of
from pipeline.runs.saved import code_now
from pipeline.stages.by_framework import core_count
from pipeline.stages.graph.amortised import ms
from pipeline.stages.graph.stage import Graph

WAYS = {"torch": "torch_", "tensorflow": "tf_", "jax": "jax_"}  # how the names of its ways begin
STAGE = "pipeline.stages.graph.stage.Graph"


def measured(root: Path, backend: Backend | type[Backend]) -> str | None:
    """Each way's step in milliseconds, and its share until the call returns; None where no run has measured it.

    Of another version, another processor or GPU, other cores, other variables of the environment, other code, a net of
    other sizes, or of fewer samples than stage=graph takes for a range, nothing is taken.
    """
    for folder in _runs(root):
        receipt = read_json(folder / "receipt.json")
        if not _is_of_today(folder, receipt, backend):
            continue
        metrics = metrics_of(folder)
        found = [_step(metrics, way) for way in _ways(metrics, WAYS[backend.name])]
        if found:
            where = f"on {receipt['device'].get('effective')}, run {folder.name}"
            return f"{'; '.join(found)} ({where}{_said_of_others(receipt.get('cores_had', ()))})"
    return None


def _said_of_others(had: Sequence[float]) -> str:
    """That the step was timed beside other processes; `had`: shares of the cores, as the receipt has them."""
    least = min(had, default=1.0)
    return "" if least >= ALONE else f"; other processes left {least:.0%} of the cores"


def _is_of_today(folder: Path, receipt: Mapping[str, Any], backend: Backend | type[Backend]) -> bool:
    """Whether it ran with what is installed, by this code, in this environment, on a device of this machine and as many
    cores as this command may use, at the sizes that the stage ships with."""
    sizes = read_config(folder).get("stage", {}).get("sizes", ())
    versions = {"python": platform.python_version(), **{name: version_of(name) for name in backend.packages}}
    same = {name: receipt.get("versions", {}).get(name) for name in versions} == versions
    same = same and receipt.get("environment") == environment()
    device = (receipt.get("device", {}).get("hardware") or {}).get("name")
    here = device in (cpu_name(), *(gpu.name for gpu in gpus())) and receipt.get("cores") == core_count()
    return here and same and tuple(sizes) == Graph.sizes and receipt.get("code_sha256") == code_now(folder)


def _runs(root: Path) -> Iterator[Path]:
    """Those of stage=graph that have finished, the newest first."""
    found = [(status.started, folder) for folder in run_folders(root) if (status := _finished(folder))]
    for _, folder in sorted(found, reverse=True):
        config = folder / "config.yaml"
        if config.is_file() and STAGE in config.read_text(encoding="utf-8"):
            yield folder


def _finished(folder: Path) -> Status | None:
    status = read_status(folder)
    return status if status and status.state == "FINISHED" else None


def _ways(metrics: Mapping[str, Metric], begins: str) -> list[str]:
    """Those that were timed often enough."""
    names = dict.fromkeys(
        name.partition("/")[0] for name in metrics if name.startswith(begins) and name.endswith("/launch")
    )
    return [name for name in names if metrics[f"{name}/{_most(metrics, name)}/samples"].value >= ENOUGH]


def _most(metrics: Mapping[str, Metric], way: str) -> int:
    """The largest number of steps that was timed together."""
    names = (name.split("/") for name in metrics if name.startswith(f"{way}/") and name.endswith("/launch"))
    return max(int(n) for _, n, _ in names)


def _step(metrics: Mapping[str, Metric], way: str) -> str:
    """Among the largest number of steps that was timed together."""
    at = f"{way}/{_most(metrics, way)}"
    step, launch, samples = (metrics[f"{at}/{what}"].value for what in ("step", "launch", "samples"))
    return f"{way} {ms(step)} ms, {launch / step:.0%} until the call returns, n={samples:.0f}"
