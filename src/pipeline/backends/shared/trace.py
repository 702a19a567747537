"""Reading the trace that XLA's profiler writes, which is JAX's and TensorFlow's: whose each moment of the time is.

On a CPU every thread has a line. An operation is an event there; the parts of it that it gives to other threads are
tasks, and the number of a task says where it was submitted. On a GPU every stream has a line, every kernel an event.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEDULING = ("ThunkExecutor::Execute", "ExecutorState::Process")  # XLA and TensorFlow see what is to run next
HANDED_OVER, TASK_BEGINS, TASK_ENDS = (
    f"ThreadpoolListener::{name}" for name in ("Record", "StartRegion", "StopRegion")
)

GPU, HOST = "/device:GPU:", "/host:CPU"  # how their planes are called

Line = tuple[str, int]  # of which plane, and its number there


@dataclass(frozen=True, eq=False)
class Event:
    """What a line was at; times in nanoseconds."""

    name: str
    line: Line
    start: float
    end: float
    stats: dict[str, Any]

    @property
    def on_gpu(self) -> bool:
        """Whether the line is a GPU's."""
        return self.line[0].startswith(GPU)


Owner = Callable[[Event], str | None]  # the operation that an event is of; None where it is of none


def events(folder: Path, *, gpu: bool) -> list[Event]:
    """The events of the one trace below `folder`: of the host's threads, or of the GPU's streams."""
    from jaxlib._profile_data import ProfileData  # jax.profiler.ProfileData; JAX itself is not imported by this

    (path,) = folder.rglob("*.xplane.pb")
    found = []
    for plane in ProfileData.from_file(str(path)).planes:
        if not plane.name.startswith(GPU if gpu else HOST):
            continue
        for number, line in enumerate(plane.lines):
            if line.name.startswith("Stream") or not gpu:  # a GPU's other lines sum its streams up
                place = (plane.name, number)
                found += [Event(one.name, place, one.start_ns, one.end_ns, dict(one.stats)) for one in line.events]
    return found


def seconds_by_owner(seen: Iterable[Event], owner: Owner) -> dict[str, float]:
    """The time of each operation, without that of others that run inside it.

    Where several lines work at once, each has a part of that time; so the sum is the time in which any of them worked.
    """
    lines = Lines(owner)
    seconds: defaultdict[str, float] = defaultdict(float)
    before = 0.0
    for time, _, _, _, change, event in sorted(_changes(seen, owner, lines)):
        busy = lines.busy()
        for name in busy:
            seconds[name] += (time - before) / len(busy) / 1e9
        before = time
        change(event)
    return dict(seconds)


def calls_by_owner(seen: Iterable[Event], owner: Owner) -> dict[str, int]:
    """How often each operation ran. On a GPU one may be several kernels, each of which then ran as often."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for event in seen:
        name = owner(event)
        if name is not None:
            counts[name][event.name] += 1
    return {name: min(kernels.values()) for name, kernels in counts.items()}


Change = tuple[float, int, float, int, Callable[[Event], None], Event]  # when, its order among those of that moment


def _changes(seen: Iterable[Event], owner: Owner, lines: Lines) -> Iterable[Change]:
    """Everything that changes what a line is at. An end goes before a beginning, and the longer holds the shorter."""
    instants = {HANDED_OVER: lines.hand_over, TASK_BEGINS: lines.begin_task, TASK_ENDS: lines.end_task}
    for number, event in enumerate(seen):
        if event.name in instants:
            yield event.start, 2, 0.0, number, instants[event.name], event
        elif event.end > event.start and (event.name in SCHEDULING or owner(event) is not None):
            yield event.start, 1, -event.end, number, lines.begin, event
            yield event.end, 0, 0.0, number, lines.end, event


class Lines:
    """What each line is at, the innermost last: events, and the operations that the tasks of other lines are of."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.work: defaultdict[Line, list[tuple[Event | None, str | None]]] = defaultdict(list)
        self.tasks: dict[int, str | None] = {}

    def busy(self) -> list[str]:
        """The operations that the lines are at, one for each line that is at any."""
        return [name for stack in self.work.values() if stack for name in (stack[-1][1],) if name is not None]

    def begin(self, event: Event) -> None:
        self.work[event.line].append((event, self.owner(event)))

    def end(self, event: Event) -> None:
        stack = self.work[event.line]
        stack[:] = [one for one in stack if one[0] is not event]

    def hand_over(self, event: Event) -> None:
        stack = self.work[event.line]
        self.tasks[event.stats["_p"]] = stack[-1][1] if stack else None

    def begin_task(self, event: Event) -> None:
        self.work[event.line].append((None, self.tasks.get(event.stats.get("_c", -1))))

    def end_task(self, event: Event) -> None:
        stack = self.work[event.line]
        for place in reversed(range(len(stack))):
            if stack[place][0] is None:
                del stack[place:]
                return
