"""torch.profiler: which operation took how long and how much memory, and when each of them ran (row A11)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts import Profiler
from pipeline.errors import Impossible, RunError
from pipeline.machine.device import Place
from pipeline.profilers import FOLDER, Tool
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

ROWS = 100
COLUMNS = {"cpu": "self_cpu_time_total", "device": "self_device_time_total"}


@spec
class Torch(Profiler):
    """Tables of operations and a Chrome trace of the window's steps.

    `sort_by`: the table's order, by an operation's own time on the CPU or on the device (None: the device's on a GPU).
    `stacks`: also which lines of Python called what; it makes every step several times slower.
    """

    backends: ClassVar[tuple[str, ...]] = ("torch",)
    instead: ClassVar[str] = "profiler=tensorboard profiles every backend"

    skip: NonNegativeInt = 20
    steps: PositiveInt = 5
    sort_by: Literal["cpu", "device"] | None = None
    shapes: bool = True
    memory: bool = True
    stacks: bool = False

    def check_device(self, place: Place, backend: str) -> None:
        """Refuse an order by the time of a device that there is not."""
        if self.sort_by == "device" and place.kind == "cpu":
            raise Impossible("profiler.sort_by=device on cpu: there is none; profiler.sort_by=cpu runs")
        # torch reads it when it is imported; memory from before the window, freed in it, would cause a warning.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    def tool(self, experiment: Experiment, run: Run) -> Tool:
        """torch's profiler, and the files that are written from it."""
        from pipeline.profilers.kineto import Kineto

        return Kineto(partial(write, self, run), shapes=self.shapes, memory=self.memory, stacks=self.stacks)


def write(settings: Torch, run: Run, profile: Any, device: str, window: Mapping[str, Any]) -> None:
    """operations.txt, trace.json.gz and, if asked for, stacks.txt. Raises RunError rather than write an empty one."""
    from pipeline.profilers.session import head

    order = COLUMNS[settings.sort_by or ("device" if device == "cuda" else "cpu")]
    if not profile.events():
        raise RunError("profiler=torch: torch's profiler saw no operation in the window")
    parts = [head(dict(window)), f"# sorted by {order}\n", _table(profile.key_averages(), order)]
    if settings.shapes:
        parts += ["\n# the same, by the shapes of the inputs\n"]
        parts += [_table(profile.key_averages(group_by_input_shape=True), order)]
    run.artifact(f"{FOLDER}/operations.txt").write_text("".join(parts), encoding="utf-8")
    profile.export_chrome_trace(str(run.artifact(f"{FOLDER}/trace.json.gz")))
    if settings.stacks:
        path = run.artifact(f"{FOLDER}/stacks.txt")
        profile.export_stacks(str(path), order)
        if path.stat().st_size == 0:
            path.unlink()
            raise RunError("profiler.stacks=true: this torch recorded no stacks; use profiler.stacks=false")


def _table(averages: Any, order: str) -> str:
    text: str = averages.table(sort_by=order, row_limit=ROWS, max_name_column_width=60, max_shapes_column_width=60)
    return text + "\n"
