"""stage=runs: the runs of output_dir, as a table, JSON or CSV; filtered by status, settings, metrics and age."""

from __future__ import annotations

import io
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, PositiveInt

from pipeline.cli.streams import printable_lines, say
from pipeline.cli.terminal import messages, results
from pipeline.contracts.runs import AboutRuns
from pipeline.errors import UserError, bad_choice
from pipeline.experiment.settings import Settings, Sought, Text
from pipeline.report.csv_file import csv_rows
from pipeline.report.table import figure, file_heads, least_width, show_table
from pipeline.report.timed import of_machines, of_rates
from pipeline.runs.checkpoint import newest_step
from pipeline.runs.choices import text_of as setting_text
from pipeline.runs.conditions import check_known, check_where, condition_of, lacking, matching, misspelt
from pipeline.runs.json_files import dangling_link, plain, read_json
from pipeline.runs.keeping import resume_words
from pipeline.runs.listing import Listed, age_text, best_first, listed, not_listed, seconds_of, unlike, without_result
from pipeline.runs.records import State, duration
from pipeline.runs.result import Table
from pipeline.spec import Config, spec

FORMATS = ("table", "json", "csv")
STATES = tuple(state.lower() for state in get_args(State))
HEAD = ("id", "state", "started", "ended", "seconds", "error", "folder")  # what is known of every run
SHORTEST = 2  # parts of an id: date and time
SHORTENED = "; ids are shortened to beginnings that name one run each"
IN_A_TABLE = 30  # rows of a table where no limit is set


def _listing(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listing)]  # one name needs no brackets


@spec
class Runs(AboutRuns):
    """`status`: of which runs (none: all). `where`: conditions on settings and metrics (`test/accuracy>0.97`).

    `newer`, `older`: started within, or before, an age (`2h`, `7d`). `best`: a metric to sort by, best first; else the
    newest is first. `direction`: of a `best` of which no run declares it. `columns`: settings and metrics to show.
    `limit`: rows (none: all, in a table the first 30).
    """

    status: Names = ()
    where: Names = ()
    newer: Text | None = None
    older: Text | None = None
    best: str | None = None
    direction: Sought | None = None
    columns: Names = ()
    limit: PositiveInt | None = None
    format: str = "table"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise bad_choice("stage.format", self.format, FORMATS)
        if self.direction is not None and self.best is None:
            raise UserError(f"stage.direction={self.direction}: of which metric? name it, as stage.best=<metric>")
        for name in self.status:
            if name.lower() not in STATES:
                raise bad_choice("stage.status", name, STATES)

    def act(self, settings: Settings, config: Config) -> int:
        """List them on standard output; how many there are, on standard error."""
        root = existing(settings.output_dir)
        every = listed(root)
        among = self._among(every)
        check_where(every, self.where)
        found = matching(among, self.where)
        if self.best is not None:
            found = best_first(found, self.best, self.direction)
        limit = self.limit or (IN_A_TABLE if self.format == "table" else None)
        rows = found[:limit]
        for key in self.columns:
            check_known(f"stage.columns={key}", key, every)
        metric, columns = self._shown(every)
        short = False
        if self.format == "table":
            short = _show(rows, metric, columns, [run.id for run in every])
        else:
            text = _as_json(rows, self.columns) if self.format == "json" else _as_csv(rows, self.columns)
            print(_for_program(text), end="")
        count = _count(len(rows), len(found), len(every), root) + SHORTENED * short
        said = [count + _going_on(rows), *misspelt(among, self.where), *lacking(among, self.where)]
        if self.best is not None:
            said += [*_on_the_test(found, self.best), *unlike(found, self.best), *_of_times(found, self.best)]
        said += [*without_result(among), *not_listed(root, every)]
        say(messages(), "\n".join(said))
        return 0

    def _shown(self, runs: Sequence[Listed]) -> tuple[str | None, Sequence[str]]:
        """The metric at the head of the table, and its other columns: metrics that a condition names are seen, too.

        The metric that a run is judged by may be another: bits per byte, where the condition was on the accuracy.
        """
        named = [condition_of(condition, runs)[0] for condition in self.where]
        asked = [name for name in dict.fromkeys(named) if any(name in run.metrics for run in runs)]
        metric = self.best or next(iter(asked), None)
        return metric, [*self.columns, *(name for name in asked if name not in (metric, *self.columns))]

    def _among(self, runs: Sequence[Listed]) -> list[Listed]:
        """Those of the states and ages that are asked for."""
        now = time.time()
        states = [name.upper() for name in self.status]
        kept = [run for run in runs if not states or run.status.state in states]
        if self.newer is not None:
            first = now - seconds_of(self.newer, "stage.newer")
            kept = [run for run in kept if run.status.started >= first]
        if self.older is not None:
            last = now - seconds_of(self.older, "stage.older")
            kept = [run for run in kept if run.status.started <= last]
        return kept


def existing(output_dir: str) -> Path:
    """The folder of the runs. Raises UserError where there is none."""
    root = Path(output_dir).absolute()
    try:
        there = root.is_dir()
    except OSError as error:  # above it is a folder that may not be entered, or its name is too long
        raise UserError(f"output_dir={output_dir}: {error.strerror}") from error
    if not there:
        why = dangling_link(root) or "no such folder, so it has no runs; the first run makes it"
        raise UserError(f"output_dir={output_dir}: {why}")
    return root


def _show(runs: Sequence[Listed], best: str | None, columns: Sequence[str], every: Sequence[str]) -> bool:
    """The table: id, status, age, the metric that each is judged by, and what else is asked for.

    The commonest metric heads a column; a value of another has a number, which is explained below. Returns whether ids
    were shortened, which they are on a terminal that is too narrow for them. `every`: the ids of all runs there are.
    """
    if not runs:
        return False
    judged = Counter(name for run in runs if (name := best or run.headline) is not None)
    first, *others = [name for name, _ in judged.most_common()] or [""]
    names = ("run", "status", "age", *([first] if first else ()), *columns)
    now = time.time()
    rows = []
    for run in runs:
        result = (_result(run, best or run.headline, others),) if first else ()
        values = (_column(run, key) if run.has(key) else "" for key in columns)
        rows.append((run.id, run.status.state.lower(), age_text(now - run.status.started), *result, *values))
    console, table = results(), Table("", names, tuple(rows))
    whole = ("run", "status", "age") if console.is_terminal else names  # another program reads a run a line
    short = console.is_terminal and least_width(table, whole) > console.width  # another program gets whole ids
    if short:
        rows = [(shortened(row[0], every), *row[1:]) for row in rows]
        table = Table("", names, tuple(rows))
    if least_width(table, whole) > console.width:  # the id goes beyond the edge, where it disturbs no other column
        table = Table("", (*names[1:], "run"), tuple((*row[1:], row[0]) for row in rows))
    show_table(console, table, left=("run", "status"), whole=whole)
    for number, name in enumerate(others, start=1):
        console.print(f"[{number}] {name}", style="dim", highlight=False, markup=False)
    return short


def _on_the_test(runs: Sequence[Listed], metric: str) -> list[str]:
    """That the best of several runs was chosen on the data that were to judge it, and the metric that would not be."""
    if len(runs) < 2 or not metric.startswith("test/"):
        return []
    other = metric.replace("test/", "validation/", 1)
    unseen = f"; stage.best={other} chooses without them" if all(other in run.metrics for run in runs) else ""
    return [f"the first of {len(runs):,} runs is the best by {metric}, so chosen on the test data{unseen}"]


def _of_times(runs: Sequence[Listed], metric: str) -> list[str]:
    """What makes a rate less of a choice between runs than it looks: how each was timed, and where."""
    timed = [run for run in runs if metric in run.metrics and run.declared.get(metric, {}).get("kind") == "time"]
    receipts = [read_json(run.folder / "receipt.json") for run in timed]
    return [*of_rates(receipts, "run"), *of_machines(receipts, "run")]


def shortened(name: str, every: Sequence[str]) -> str:
    """The beginning of an id, of whole parts and at least date and time, that is of no other among `every`."""
    parts = name.split("-")
    beginnings = ("-".join(parts[:count]) for count in range(SHORTEST, len(parts)))
    alone = (one for one in beginnings if not any(other.startswith(one) for other in every if other != name))
    return next(alone, name)


def _result(run: Listed, name: str | None, others: Sequence[str]) -> str:
    """The value of the metric that a run is judged by, with its number where it is another than most runs'."""
    if name is None or name not in run.metrics:
        return ""
    number = f"[{others.index(name) + 1}] " if name in others else ""
    return f"{number}{figure(run.metrics[name])}"


def _column(run: Listed, key: str) -> str:
    """A measured number in a few digits, a setting as YAML writes it."""
    return figure(run.metrics[key]) if key in run.metrics else setting_text(run.value(key))


def _for_program(text: str) -> str:
    """A text as it is, but for what the encoding lacks; on a terminal with what nobody would see written out."""
    if sys.stdout.isatty():
        return printable_lines(text)
    return text.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding)


def _as_json(runs: Sequence[Listed], columns: Sequence[str]) -> str:
    entries = []
    for run in runs:
        more = {"settings": {key: run.value(key) for key in columns}} if columns else {}
        entries.append({**_head(run), **more, "metrics": run.metrics})
    return json.dumps(plain(entries), indent=1) + "\n"


def _as_csv(runs: Sequence[Listed], columns: Sequence[str]) -> str:
    heads = heads_of(runs, columns)
    file = io.StringIO()
    writer = csv_rows(file)
    writer.writerow([*HEAD, *heads.values()])
    for run in runs:
        writer.writerow(plain(value) for value in as_row(run, heads, columns).values())
    return file.getvalue()


def heads_of(runs: Sequence[Listed], columns: Sequence[str]) -> dict[str, str]:
    """The names of `columns` and of every metric of these runs, each with its head beside those of HEAD."""
    metrics = dict.fromkeys(name for run in runs for name in run.metrics)
    names = [*columns, *(name for name in metrics if name not in columns)]
    named = file_heads(HEAD, [(name, "metric" if name in metrics else "setting") for name in names])
    return dict(zip(names, named, strict=True))


def as_row(run: Listed, heads: Mapping[str, str], columns: Sequence[str]) -> dict[str, Any]:
    """What is known of a run, then its `columns` and metrics by their heads (of `heads_of`); None: it has none.

    Its config is read for `columns` alone: a metric that it lacks is not looked up there.
    """
    values = {name: run.value(name) if name in columns else run.metrics.get(name) for name in heads}
    return {**_head(run), **{heads[name]: value for name, value in values.items()}}


def _head(run: Listed) -> dict[str, Any]:
    """What is known of every run, by the names of HEAD. Times are UTC by ISO 8601, `seconds` is how long it took."""
    status, took = run.status, duration(run.folder, run.status)
    return {
        "id": run.id,
        "state": status.state.lower(),
        "started": _iso(status.started),
        "ended": None if status.ended is None else _iso(status.ended),
        "seconds": None if took is None else round(took, 3),
        "error": status.error,
        "folder": str(run.folder),
    }


def _iso(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")


def _going_on(runs: Sequence[Listed]) -> str:
    """How killed runs go on, where any can."""
    able = [run for run in runs if run.status.state == "KILLED" and newest_step(run.folder) is not None]
    if not able:
        return ""
    words, some = resume_words(able[0].folder), "1 was"
    if len(able) > 1:
        words, some = words.replace(able[0].id, "<id>"), f"{len(able)} were"
    return f"\n{some} killed with a checkpoint: {words} resumes; a grid resumes when its command is given again"


def _count(shown_here: int, chosen: int, every: int, root: Path) -> str:
    if not every:
        return f"no runs in {root} yet"
    if not chosen:
        return f"none of the {every:,} runs in {root}"
    part = f"{chosen:,}" if chosen == every else f"{chosen:,} of {every:,}"
    more = f"; the first {shown_here:,}, stage.limit={chosen} lists all" if shown_here < chosen else ""
    return f"{part} run{'s' if every != 1 else ''} in {root}{more}"
