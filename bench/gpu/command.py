"""python -m bench gpu: the parts one after the other, what each has found kept as it comes. docs/gpu.md."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from bench.gpu import found
from bench.gpu.machine import described, software
from bench.gpu.parts import PARTS, SECONDS, Part
from bench.gpu.session import Ended, ends_by_signal, run, said
from bench.kept import keep, path_of, results
from bench.names import unknown
from bench.table import NONE, NOT_MET, ended_well
from pipeline.cli.terminal import messages
from pipeline.errors import cut
from pipeline.machine import gpu_support
from pipeline.machine.device import gpus
from pipeline.machine.installed import is_installed
from pipeline.runs.repositories import git_state

ROOT = Path(__file__).parents[2]
NO_GPU = "needs an NVIDIA GPU"
NONE_LEFT = 5  # pytest's exit status where no test is left to run
REHEARSAL_S = 600  # of a part: a CPU is slow
LINE = 150  # characters of one that a message quotes
NOT_THERE = "cannot fetch "  # what a command says of data that no source gives


@dataclass(frozen=True)
class Outcome:
    """How a part ended: passed, failed, skipped, out of time, or left for later; what it found, what is to be said."""

    state: str
    rows: list[dict[str, Any]]
    message: str = ""
    seconds: float = 0.0


class Bench:
    """A session of `make gpu`. `root`: where results are kept, `work`: the folder of the parts' runs and output."""

    def __init__(self, parts: Sequence[Part], *, rehearsal: bool, commit: str | None, root: Path, work: Path) -> None:
        self.parts, self.rehearsal, self.root = parts, rehearsal, root
        self.where = described(rehearsal=rehearsal)
        self.git = {"commit": commit, "dirty": None} if commit else git_state()
        self.kept = path_of(root, self.where)
        commit = f"{str(self.git['commit'])[:7]}{'-changed' if self.git['dirty'] else ''}"
        self.work = work.absolute() / f"{self.where['date']}-{self.kept.parent.name}-{commit}"
        self.anew = not is_known(self.git)
        self.began = time.monotonic()

    def forget(self) -> None:
        """Begin anew: nothing has passed, and the runs go. What was measured is kept until it is measured again."""
        self.anew = True
        for part in self.parts:
            shutil.rmtree(self.folder(part), ignore_errors=True)

    def folder(self, part: Part) -> Path:
        """Where a part's runs and its output lie."""
        return self.work / part.name.replace(", ", "-").replace(" ", "-")

    def done(self, part: Part) -> bool:
        """Whether a part has ended well today, on this device, at this commit, which says what all files were.

        One that missed limits would most likely miss them again: `--again` repeats it.
        """
        before = results(self.kept).get(part.name, {})
        if self.anew or not ended_well(before.get("state", ""), before.get("message", "")) or "later" in before:
            return False
        return is_known(before["git"]) and before["git"]["commit"] == self.git["commit"]

    def run(self, part: Part, tick: Callable[[float, float], object]) -> Outcome:
        """Run a part, unless something is missing, and keep what it found. `tick` hears its seconds, and its limit."""
        lacking = missing(part, rehearsal=self.rehearsal)
        limit = self.limit(part)
        if not lacking and part.later and not self.rehearsal and (left := self.left()) < part.limit_s:
            return Outcome("left", [], f"needs {part.limit_s} s, and {max(left, 0):.0f} are left; run make gpu again")
        outcome = Outcome("skipped", [], lacking) if lacking else self._run(part, limit, tick)
        self._keep(part, outcome, limit)
        return outcome

    def _run(self, part: Part, limit: float, tick: Callable[[float, float], object]) -> Outcome:
        folder = self.folder(part)
        if self.anew or not part.is_tests:  # whose output says which have passed
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", *part.arguments(rehearsal=self.rehearsal)]
        command += [word for name in found.passed(folder) for word in ("--deselect", name)] if part.is_tests else []
        where = ROOT if part.is_tests else folder
        ended = run(command, where, folder / found.LOG, limit, environment(part), lambda s: tick(s, limit))
        try:
            return judged(part, ended, part.rows(folder), limit)
        except Exception as error:  # whatever is not in the files of a command that did not end well
            unread = f"its results cannot be read: {type(error).__name__}: {error}"
            return Outcome("failed", [], f"{unread}; it said: {said(ended.text)}", ended.seconds)

    def limit(self, part: Part) -> float:
        """Seconds of a part. Tests also get what is left of the eight minutes without the parts behind them."""
        if self.rehearsal:
            return REHEARSAL_S
        if not part.is_tests:
            return part.limit_s
        behind = self.parts[self.parts.index(part) + 1 :]
        return max(part.limit_s, self.left() - sum(one.limit_s for one in behind if not one.later))

    def left(self) -> float:
        """Seconds of the eight minutes."""
        return SECONDS - (time.monotonic() - self.began)

    def _keep(self, part: Part, outcome: Outcome, limit: float) -> None:
        entry: dict[str, Any] = {
            "git": self.git,
            **software(),
            "command": " ".join(("python -m", *part.arguments(rehearsal=self.rehearsal))),
            "state": outcome.state,
            "message": outcome.message,
            "seconds": round(outcome.seconds, 1),
            "limit_s": round(limit),
            "rows": outcome.rows,
        }
        before = results(self.kept).get(part.name, {})
        if found_less(outcome, before.get("rows", [])):
            entry = before if outcome.state == "skipped" else {**before, "later": entry}
        keep(self.root, self.where, {part.name: entry})


def found_less(outcome: Outcome, before: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a part lacks rows of before since it found nothing, or went wrong, as one that was stopped early."""
    lacking = {one["what"] for one in before} - {one["what"] for one in outcome.rows}
    return bool(lacking) and not (outcome.rows and ended_well(outcome.state, outcome.message))


def is_known(git: Mapping[str, Any]) -> bool:
    """Whether a commit says what all files were: there is one, and no change since. `--commit` is believed."""
    return git["commit"] is not None and not git["dirty"]


def missing(part: Part, *, rehearsal: bool) -> str:
    """What a part lacks here, by name; an empty text where it lacks nothing."""
    if part.small is None if rehearsal else not gpus():
        return NO_GPU
    lacking = [name for name in (*part.backends, *part.needs) if not is_installed(name)]
    if lacking:
        return f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed"
    if rehearsal:
        return ""
    builds = {"torch": gpu_support.torch, "tensorflow": gpu_support.tensorflow, "jax": gpu_support.jax}
    reasons = (gpu_support.reason(builds[name](), gpus()[0]) for name in part.backends)
    return next((reason for reason in reasons if reason), "")


def judged(part: Part, ended: Ended, rows: list[dict[str, Any]], limit: float) -> Outcome:
    """What a command's end means for its part."""
    if ended.status is None:
        left = f"; {', '.join(map(str, ended.left))} could not be killed" if ended.left else ""
        last = " ".join(ended.text.strip().rpartition("\n")[2].split())
        at = f"; its last line: {cut(last, LINE)}" if last else ""
        return Outcome("out of time", rows, f"stopped after {limit:.0f} s{left}{at}", ended.seconds)
    if ended.status and NOT_THERE in ended.text and not part.is_tests:  # a test may print it, and pass
        what = ended.text.partition(NOT_THERE)[2].partition("; tried")[0].split("\n")[0]
        return Outcome("skipped", rows, f"{NOT_THERE}{what}", ended.seconds)
    if part.is_tests and ended.status == 0 and {one["what"] for one in rows} == {"skipped"}:
        return Outcome("skipped", rows, "every test was skipped", ended.seconds)
    if part.is_tests and ended.status == NONE_LEFT and rows:
        return Outcome("passed", rows, "", ended.seconds)
    missed = [f"{one['what']}{'' if one['n'] else f' ({NONE})'}" for one in rows if not one.get("met", True)]
    if ended.status or missed:
        message = said(ended.text) if ended.status else f"{NOT_MET}{', '.join(missed)}"
        return Outcome("failed", rows, message, ended.seconds)
    if not rows and part.rows is not found.nothing:
        return Outcome("failed", [], "it ended well, and nothing of its results was found", ended.seconds)
    return Outcome("passed", rows, "", ended.seconds)


def environment(part: Part) -> dict[str, str]:
    """That of a command: its output comes as it is printed, in lines of any length. Tests share a GPU's memory."""
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if part.is_tests else {}
    return {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200", **shared}


def main(arguments: Sequence[str]) -> None:
    """Run what has not passed yet; exit status 1 where a part failed or ran out of time, or none ran."""
    asked = options(arguments)
    parts = [part for part in PARTS if not asked.parts or part.name in asked.parts]
    work = Path("runs/gpu") / ("rehearsal" if asked.rehearse else "parts")
    root = Path("results") if gpus() and not asked.rehearse else work  # what is not of a GPU is not to be kept
    bench = Bench(parts, rehearsal=asked.rehearse, commit=asked.commit, root=root, work=work)
    if asked.again:
        bench.forget()
    with ends_by_signal():
        outcomes = {part.name: follow(bench, part) for part in parts}
    show(bench, outcomes)
    states = {one.state.removesuffix(" before") for one in outcomes.values()}
    if states == {"skipped"}:
        sys.exit("error: every part was skipped, so that nothing is known of a GPU")
    if states & {"failed", "out of time"}:
        sys.exit(1)


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """What the command line asks for. Raises UserError for a part that there is not."""
    parser = argparse.ArgumentParser(prog="python -m bench gpu")
    parser.add_argument("parts", nargs="*", metavar="part", help="; ".join(part.name for part in PARTS))
    parser.add_argument("--again", action="store_true", help="also what has passed today, at this commit")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, small: the commands, not the figures")
    parser.add_argument("--commit", help="of the files, where they are without a repository")
    asked = parser.parse_args(arguments)
    names = [part.name for part in PARTS]
    for name in asked.parts:
        if name not in names:
            raise unknown(name, "part", names)
    return asked


def follow(bench: Bench, part: Part) -> Outcome:
    """Run a part unless it has passed before: a bar on a terminal, and a line when it has ended."""
    console = messages()
    if bench.done(part):
        before = results(bench.kept)[part.name]
        console.print(f"{part.name}: {before['state']} before", markup=False)
        return Outcome(f"{before['state']} before", before["rows"], before["message"], before["seconds"])
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} s"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(part.name, total=bench.limit(part))
        outcome = bench.run(part, lambda seconds, limit: bar.update(task, completed=seconds, total=limit))
    console.print(f"{part.name}: {outcome.state}{f', {outcome.message}' if outcome.message else ''}", markup=False)
    return outcome


def show(bench: Bench, outcomes: Mapping[str, Outcome]) -> None:
    """The table at the end."""
    table = Table("part", "state", "s", "found", title="make gpu", title_justify="left")
    for name, outcome in outcomes.items():
        seconds = f"{outcome.seconds:.0f}" if outcome.seconds else ""
        table.add_row(name, outcome.state, seconds, escape(outcome.message or brief(outcome.rows)))
    console = messages()
    console.print(table)
    console.print(f"kept in {os.path.relpath(bench.kept)}; runs and output in {os.path.relpath(bench.work)}")


def brief(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in a line: all are in the file."""
    return "; ".join(f"{one['what']} {one['median']:,.4g} {one['unit']}".strip() for one in rows[:4] if one["n"])
