"""Running cells: how each ended, what stops one or all of them, and that none is lost. The cells are played: what a
process would do, its run's folder does."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pipeline.errors import RunError, Stopped
from pipeline.experiment.settings import Sweep
from pipeline.runs.journal import Journal
from pipeline.runs.records import State, read_status
from pipeline.sweep import schedule as scheduling
from pipeline.sweep.plan import Cell
from pipeline.sweep.schedule import Cancelled, Listed, Outcome, Schedule, Source
from pipeline.sweep.session import run_below

Play = Callable[["Stage", int, Path], None]


class Clock:
    """Time that passes while a schedule sleeps, and not otherwise, so that no machine is too slow for an order."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


@pytest.fixture(autouse=True)
def played_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "time", CLOCK)


class Stage:
    """Where the cells are played, `at_once` of them; `deaf` ones end when they are killed, and not when asked to."""

    def __init__(self, *plays: Play, queues: bool = False, deaf: bool = False, at_once: int = 1) -> None:
        self.plays, self.queues, self.deaf, self.at_once = plays, queues, deaf, at_once
        self.queued: set[int] = set()
        self.over: list[tuple[int, str | None]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.asked: list[tuple[int, bool]] = []
        self.there: set[int] = set()
        self.open: Journal | None = None
        self.closed = False

    def room(self, _: Cell) -> bool:
        return len(self.there) < self.at_once

    def start(self, cell: Cell, job: Path) -> None:
        self.there.add(cell.number)
        self.plays[cell.number](self, cell.number, job)

    def poll(self) -> list[tuple[int, str | None]]:
        for at, work in self.later:
            if CLOCK.now >= at:
                work()
        self.later = [one for one in self.later if CLOCK.now < one[0]]
        found, self.over = self.over, []
        self.there -= {number for number, _ in found}
        return found

    def stop(self, number: int, *, kill: bool) -> None:
        self.asked.append((number, kill))
        if kill or not self.deaf:
            if self.open is not None and not kill:
                self.open.finish("KILLED", "stopped by SIGTERM")
            self.over.append((number, "killed by SIGKILL" if kill else None))

    def close(self) -> None:
        self.closed = True

    def after(self, seconds: float, work: Callable[[], object]) -> None:
        self.later.append((CLOCK.now + seconds, work))


def begins(job: Path) -> Journal:
    journal = Journal.begin(job.parent / "runs", "cell", {})
    job.with_suffix(".run").write_text(str(journal.folder))
    return journal


def ends(state: State | None, error: str | None = None, violent: str | None = None) -> Play:
    """Becomes a run which ends so, by its journal and by its process; None: the journal does not say it."""

    def play(stage: Stage, number: int, job: Path) -> None:
        journal = begins(job)
        if state is not None:
            journal.finish(state, error)
        stage.over.append((number, violent))

    return play


def never_begins(log: str = "", violent: str | None = None) -> Play:
    def play(stage: Stage, number: int, job: Path) -> None:
        job.with_suffix(".log").write_text(log)
        stage.over.append((number, violent))

    return play


class Seen:
    """A watcher that keeps what it hears of."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.ticks = 0

    def started(self, cell: Cell) -> None:
        self.heard.append(("started", cell.number))

    def became(self, cell: Cell, run: Path) -> None:
        assert run.is_dir()
        self.heard.append(("became", cell.number))

    def ended(self, outcome: Outcome) -> None:
        self.heard.append((outcome.state, outcome.cell.number))

    def queued_again(self, numbers: Set[int]) -> None:
        self.heard += [("queued again", number) for number in sorted(numbers)]

    def tick(self) -> None:
        self.ticks += 1


def cells(count: int) -> list[Cell]:
    return [
        Cell(number, {"seed": str(number)}, {"seed": number}, ["model"], None, None, {"number": number})
        for number in range(count)
    ]


def schedule(folder: Path, stage: Stage, settings: Sweep | None = None, source: Source | None = None) -> Schedule:
    (folder / "cells").mkdir(exist_ok=True)
    return Schedule(source or Listed(cells(len(stage.plays))), stage, settings or Sweep(), folder, Seen())


def ended(one: Schedule) -> list[tuple[int, str, str]]:
    return [(outcome.cell.number, outcome.state, outcome.reason) for outcome in one.outcomes]


@pytest.mark.parametrize(
    ("play", "state", "reason"),
    [
        (ends("FINISHED"), "FINISHED", ""),
        (ends("FINISHED", violent="exit status 1"), "FINISHED", ""),
        (ends("PRUNED"), "PRUNED", ""),
        (ends("FAILED", "the loss is not finite"), "FAILED", "the loss is not finite"),
        (ends("FAILED", "the loss is not finite", "exit status 1"), "FAILED", "the loss is not finite"),
        (ends("KILLED", "stopped by SIGINT", "exit status 1"), "KILLED", "stopped by SIGINT"),
        (ends(None), "KILLED", "its process ended without a message"),
        (ends(None, violent="killed by SIGKILL"), "KILLED", "killed by SIGKILL"),
        (never_begins(), "FAILED", "ended before it began"),
        (never_begins("a line\nerror: no such model\n"), "FAILED", "no such model"),
        (never_begins("a line\n", "killed by SIGSEGV"), "FAILED", "killed by SIGSEGV"),
    ],
)
def test_how_a_cell_has_ended_is_what_its_run_says(play: Play, state: str, reason: str, tmp_path: Path) -> None:
    """A run that could not say it is given its end."""
    stage = Stage(play)
    one = schedule(tmp_path, stage)
    assert one.run() is None and stage.closed
    assert ended(one) == [(0, state, reason)]
    (outcome,) = one.outcomes
    assert outcome.done is (state in ("FINISHED", "PRUNED"))
    if outcome.run is not None:
        status = read_status(outcome.run)
        assert status is not None and (status.state, status.error or "") == (state, reason)


def test_every_cell_is_run_in_turn_by_its_job(tmp_path: Path) -> None:
    """As many at once as there is room for; whoever watches hears of each when it begins, is a run, and has ended."""
    stage = Stage(*[ends("FINISHED")] * 5, at_once=2)
    one = schedule(tmp_path, stage)
    assert one.run() is None
    assert sorted(ended(one)) == [(number, "FINISHED", "") for number in range(5)]
    assert isinstance(one.watcher, Seen)
    assert [number for what, number in one.watcher.heard if what == "started"] == [*range(5)]
    assert {what for what, number in one.watcher.heard if number == 4} == {"started", "became", "FINISHED"}
    job = json.loads((tmp_path / "cells" / "0003.json").read_text())
    assert job == {
        **{"number": 3, "config": {"seed": 3}, "keys": ["model"], "grid": str(tmp_path), "trial": {"number": 3}},
        "swept": ["seed"],
    }


@pytest.mark.parametrize(("queues", "least", "most"), [(False, 400, 600), (True, 30, 80)])
def test_a_queue_is_read_less_often_than_what_runs_here(queues: bool, least: int, most: int, tmp_path: Path) -> None:
    """And whoever watches sees the time pass at each look."""

    def play(stage: Stage, number: int, job: Path) -> None:
        journal = begins(job)

        def end() -> None:
            journal.finish("FINISHED")
            stage.over.append((number, None))

        stage.after(10, end)

    one = schedule(tmp_path, Stage(play, queues=queues))
    assert one.run() is None and isinstance(one.watcher, Seen)
    assert least <= one.watcher.ticks <= most


def too_long(work: Callable[[Stage, Journal], object] | None = None) -> Play:
    """Becomes a run, and does not end by itself."""

    def play(stage: Stage, number: int, job: Path) -> None:  # noqa: ARG001
        stage.open = begins(job)
        if work is not None:
            work(stage, stage.open)

    return play


LATE = "took longer than sweep.timeout=0.1 s"


@pytest.mark.parametrize(("deaf", "asked"), [(False, [(0, False)]), (True, [(0, False), (0, True)])])
def test_a_cell_past_its_time_has_failed_by_that(
    deaf: bool, asked: list[tuple[int, bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has said another end of itself, and where it has to be killed: each is done once."""
    monkeypatch.setattr(scheduling, "OVERTIME_SECONDS", 0.2)
    stage = Stage(too_long(), ends("FINISHED"), deaf=deaf)
    one = schedule(tmp_path, stage, Sweep(timeout=0.1))
    assert one.run() is None
    assert ended(one) == [(0, "FAILED", LATE), (1, "FINISHED", "")]
    assert stage.asked == asked
    run = one.outcomes[0].run
    assert run is not None
    status = read_status(run)
    assert status is not None and (status.state, status.error) == ("FAILED", LATE)


def test_a_cell_that_finishes_when_it_is_asked_to_stop_has_finished(tmp_path: Path) -> None:
    def play(stage: Stage, number: int, job: Path) -> None:  # noqa: ARG001
        journal = begins(job)
        stage.after(0.12, lambda: journal.finish("FINISHED"))

    one = schedule(tmp_path, Stage(play), Sweep(timeout=0.2))
    assert one.run() is None
    assert ended(one) == [(0, "FINISHED", "")]


@pytest.mark.parametrize(("allowed", "state"), [(0.0, "FAILED"), (30.0, "FINISHED")])
def test_what_comes_before_a_run_is_not_its_time(
    allowed: float, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import of a framework has a limit; waiting in a queue has none."""
    monkeypatch.setattr(scheduling, "IMPORT_SECONDS", allowed)

    def late(stage: Stage, number: int, job: Path) -> None:
        stage.after(0.4 if allowed or stage.queues else 20.0, lambda: ends("FINISHED")(stage, number, job))

    here = schedule(tmp_path, Stage(late), Sweep(timeout=0.1))
    assert here.run() is None
    assert ended(here) == [(0, state, LATE if state == "FAILED" else "")]
    (tmp_path / "queue").mkdir()
    queue = Stage(late, queues=True)
    queued = schedule(tmp_path / "queue", queue, Sweep(timeout=0.1))
    assert queued.run() is None
    assert (ended(queued), queue.asked) == ([(0, "FINISHED", "")], [])


def test_an_import_on_a_busy_machine_may_take_minutes(tmp_path: Path) -> None:
    """The cell had failed by a limit of seconds, of which it had not begun to use any."""

    def late(stage: Stage, number: int, job: Path) -> None:
        stage.after(120.0, lambda: ends("FINISHED")(stage, number, job))

    one = schedule(tmp_path, Stage(late), Sweep(timeout=3.0))
    assert one.run() is None
    assert ended(one) == [(0, "FINISHED", "")]


@pytest.mark.parametrize("first", [None, "FINISHED"])
def test_a_job_that_a_queue_starts_again_becomes_another_run(first: State | None, tmp_path: Path) -> None:
    """What it was before has ended, also where it could not say so, and its time has begun anew."""
    before: list[Path] = []

    def again(stage: Stage, number: int, job: Path) -> None:
        journal = begins(job)
        before.append(journal.folder)
        if first is not None:
            journal.finish(first)
        stage.after(0.8, lambda: begins(job))
        stage.after(1.6, lambda: ends("FINISHED")(stage, number, job))

    one = schedule(tmp_path, Stage(again, queues=True), Sweep(timeout=1.4))
    assert one.run() is None
    assert ended(one) == [(0, "FINISHED", "")]
    assert one.outcomes[0].run not in (None, *before)
    status = read_status(before[0])
    assert status is not None
    expected = ("KILLED", "its job was started again") if first is None else ("FINISHED", None)
    assert (status.state, status.error) == expected


def fails(reason: str) -> Play:
    return ends("FAILED", reason)


ALIKE = [fails(f"step {7 * n} of 20261129-20000{n}-mlp-ab{n}: not finite") for n in range(4)]


@pytest.mark.parametrize(
    ("plays", "stop_after", "ran"),
    [
        (ALIKE, 2, 2),
        (ALIKE, 0, 4),
        (ALIKE, 5, 4),
        (ALIKE, 4, 4),  # nothing is left to give up
        ([fails("out of memory"), *ALIKE], 2, 5),  # for two causes
        ([ends("FINISHED"), *ALIKE], 2, 5),
        ([ends("PRUNED"), *ALIKE], 2, 5),
    ],
)
def test_a_sweep_is_given_up_where_its_first_cells_fail_for_one_cause(
    plays: Sequence[Play], stop_after: int, ran: int, tmp_path: Path
) -> None:
    """By the numbers of steps and the names of runs alone causes do not differ."""
    stage = Stage(*plays)
    one = schedule(tmp_path, stage, Sweep(stop_after=stop_after))
    said = one.run()
    assert len(one.outcomes) == ran
    if ran == len(plays):
        assert said is None
    else:
        assert said == (
            "the first 2 cells all failed alike (step 0 of 20261129-200000-mlp-ab0: not finite); sweep.stop_after=0 "
            "runs the others too"
        )


def test_a_sweep_that_is_given_up_takes_back_what_a_queue_has_not_begun(tmp_path: Path) -> None:
    """Slurm has all cells at once: all of them ran, and the sweep said that it had given up."""

    def begins_and_fails(stage: Stage, number: int, job: Path) -> None:
        journal = begins(job)
        stage.after(60, lambda: journal.finish("FAILED", "alike"))
        stage.after(60, lambda: stage.over.append((number, None)))

    plays: list[Play] = [fails("alike"), fails("alike"), begins_and_fails, *[lambda *_: None] * 2]
    stage = Stage(*plays, queues=True, at_once=len(plays))
    one = schedule(tmp_path, stage, Sweep(stop_after=2))
    assert str(one.run()).startswith("the first 2 cells all failed alike (alike)")
    assert stage.asked == [(3, False), (4, False)]
    back = "withdrawn before it began, as the sweep was given up"
    assert sorted(ended(one)) == [(n, "FAILED", "alike") for n in range(3)] + [(n, "KILLED", back) for n in (3, 4)]


def test_cells_that_somebody_cancels_are_killed_and_no_cause_to_give_up(tmp_path: Path) -> None:
    """Those that waited in Slurm's queue had failed; three of them ended the grid."""
    cancelled = [never_begins(violent=Cancelled("Slurm's job 7: CANCELLED")), ends("KILLED", "stopped by SIGTERM")]
    one = schedule(tmp_path, Stage(*cancelled, *cancelled, ends("FINISHED")), Sweep(stop_after=1))
    assert one.run() is None
    assert [state for _, state, _ in ended(one)] == ["KILLED"] * 4 + ["FINISHED"]


def test_cells_that_their_node_takes_along_are_no_cause_to_give_up(tmp_path: Path) -> None:
    """Three cells on a node of Ray that died ended the grid, as if each had failed by itself."""
    lost = ends(None, violent=Cancelled("its Ray task: the node has died"))
    one = schedule(tmp_path, Stage(lost, lost, ends("FINISHED")), Sweep(stop_after=1))
    assert one.run() is None
    assert [state for _, state, _ in ended(one)] == ["KILLED", "KILLED", "FINISHED"]
    assert not any(outcome.died for outcome in one.outcomes)


def test_a_cell_whose_job_is_put_back_into_the_queue_waits_again(tmp_path: Path) -> None:
    """It was shown as running, and its wait counted as its time, also where it went on as the same run."""

    def again(stage: Stage, number: int, job: Path) -> None:
        journal = begins(job)
        stage.after(1, lambda: stage.queued.add(number))
        stage.after(100, lambda: stage.queued.discard(number))
        stage.after(101, lambda: journal.finish("FINISHED"))
        stage.after(101, lambda: stage.over.append((number, None)))

    stage = Stage(again, queues=True)
    one = schedule(tmp_path, stage, Sweep(timeout=10))
    assert one.run() is None
    assert (ended(one), stage.asked) == ([(0, "FINISHED", "")], [])
    assert isinstance(one.watcher, Seen)
    assert ("queued again", 0) in one.watcher.heard


def test_a_sweep_that_is_stopped_says_of_queued_cells_that_it_has_withdrawn_them(tmp_path: Path) -> None:
    """Slurm forgets them, so that their reason was that their jobs were gone."""

    def stops(*_: object) -> None:
        raise Stopped("SIGINT", 130)

    stage = Stage(lambda *_: None, stops, queues=True, at_once=2)
    stage.stop = lambda number, **_: stage.over.append((number, Cancelled("Slurm's job 7 is gone (cancelled?)")))  # type: ignore[method-assign]
    one = schedule(tmp_path, stage)
    with pytest.raises(Stopped):
        one.run()
    back = "withdrawn before it began, as the sweep was stopped"
    assert sorted(ended(one)) == [(0, "KILLED", back), (1, "KILLED", back)]


class Elsewhere(Source):
    """One cell for this command; another command runs the others, which are known after some looks."""

    def __init__(self, here: Cell, there: Sequence[Cell], looks: int) -> None:
        self.here, self.there, self.looks = [here], list(there), looks

    def next(self, fits: Callable[[Cell], bool]) -> Cell | None:
        return self.here.pop() if self.here and fits(self.here[0]) else None

    def ended(self, outcome: Outcome) -> Outcome:
        return Outcome(outcome.cell, outcome.state, "as the source has it", outcome.seconds, outcome.run)

    @property
    def waits(self) -> bool:
        return bool(self.there)

    def taken(self) -> list[Outcome]:
        self.looks -= 1
        if self.looks > 0:
            return []
        found, self.there = self.there, []
        return [Outcome(cell, "FAILED", "there", 1.0, None) for cell in found]


def test_cells_of_another_command_are_waited_for_and_count_as_no_failure_of_this_one(tmp_path: Path) -> None:
    here, *there = cells(3)
    source = Elsewhere(here, there, 3)
    one = schedule(tmp_path, Stage(fails("here"), fails("here")), Sweep(stop_after=2), source)
    assert one.run() is None
    assert sorted(ended(one)) == [
        (0, "FAILED", "as the source has it"),
        (1, "FAILED", "there"),
        (2, "FAILED", "there"),
    ]
    assert [outcome.cell.number for outcome in one.ran] == [0]
    assert isinstance(one.watcher, Seen)
    assert [("FAILED", number) in one.watcher.heard for number in range(3)] == [True] * 3


def test_a_sweep_that_is_given_up_waits_for_no_other_command(tmp_path: Path) -> None:
    here, *there = cells(3)
    one = schedule(tmp_path, Stage(fails("here")), Sweep(stop_after=1), Elsewhere(here, there, 10**9))
    assert one.run() == "the first cell failed (as the source has it); sweep.stop_after=0 runs the others too"
    assert [number for number, _, _ in ended(one)] == [0]


class Pushes(Listed):
    """Gives its cells whether there is room or not."""

    def next(self, fits: Callable[[Cell], bool]) -> Cell | None:  # noqa: ARG002
        return self.cells.pop() if self.cells else None


def test_a_cell_that_finds_no_room_is_started_when_there_is(tmp_path: Path) -> None:
    def slow(stage: Stage, number: int, job: Path) -> None:
        stage.after(0.1, lambda: ends("FINISHED")(stage, number, job))

    source: Any = Pushes(cells(3))
    one = schedule(tmp_path, Stage(slow, slow, slow), source=source)
    assert one.run() is None
    assert [number for number, _, _ in ended(one)] == [0, 1, 2]


def test_what_came_out_before_an_executor_failed_is_kept(tmp_path: Path) -> None:
    """A head of Ray that was gone, or a request that Slurm refused, left a grid without its table."""

    def fails_to_start(*_: object) -> None:
        raise RunError("the head of the Ray cluster is gone")

    (tmp_path / "cells").mkdir()
    stage, kept = Stage(ends("FINISHED"), fails_to_start), list[str]()
    run: Any = SimpleNamespace(console=Console(file=io.StringIO()), folder=tmp_path)
    with pytest.raises(RunError, match="the head of the Ray cluster is gone"):
        run_below(
            *(run, Sweep(), Listed(cells(2)), lambda *_: stage, [], 2),
            lambda _, outcomes: kept.extend(outcome.state for outcome in outcomes),
            again="resumes them",
        )
    assert kept == ["FINISHED"]
