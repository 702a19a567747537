"""The table as a page in Markdown, without what holds on one machine alone."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.stages.frameworks.duties import Cell, Duty

HEAD = """\
# What each framework does here (stage=frameworks)

To see what a framework does in this project of what frameworks are for (row D2), and by which command:

    python -m pipeline stage=frameworks                                       # also what is installed on this machine
    python -m pipeline stage=frameworks stage.markdown=docs/frameworks.md     # writes this page

It takes two seconds and imports no framework. What a cell says is read off the code that does it, and each command is
composed and checked as if it were typed: where it would be refused, the cell has the message. Cores, GPUs and saved
runs are not looked at: `device.processes=2` needs two cores or GPUs, `run=latest` a run.
"""


def page(table: Sequence[tuple[Duty, Sequence[Cell]]]) -> str:
    """The whole table in Markdown, a section for each duty."""
    return "\n".join([HEAD, *(_section(duty, cells) for duty, cells in table)])


def _section(duty: Duty, cells: Sequence[Cell]) -> str:
    held = [one.held(cells[:number]).replace("|", "\\|") for number, one in enumerate(cells)]
    rows = "".join(f"| {one.framework} | {said} | `{one.command}` |\n" for one, said in zip(cells, held, strict=True))
    title = duty.name[0].upper() + duty.name[1:]  # capitalize() would make GPUs small
    return f"## {title}: {duty.about}\n\n| | what it does | command |\n|---|---|---|\n{rows}"
