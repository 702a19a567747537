"""What a training prints of its progress without a terminal: into a file, or under Slurm."""

from __future__ import annotations

import io

from rich.console import Console

from pipeline.runs.run import Progress


def lines(progress: Progress, *steps: int) -> list[str]:
    for count in steps:
        progress.advance(count, f"at {count}")
    progress.close()
    assert isinstance(progress.console.file, io.StringIO)
    return progress.console.file.getvalue().splitlines()


def console(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def test_a_line_after_each_part_of_the_whole() -> None:
    said = lines(Progress(console(), "training", 40, 4), 0, 9, 1, 1, 19, 10)
    assert said == ["training 25 %  at 1", "training 75 %  at 19", "training 100 %  at 10"]


def test_a_training_with_epochs_says_where_it_is_only_after_a_long_silence() -> None:
    assert lines(Progress(console(), "training", 40), 10, 30) == []
    assert lines(Progress(console(), "training", 40, silent_s=0), 0, 10) == ["training 25 %  at 10"]


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    assert "x 25 %  at 10" not in lines(Progress(console(terminal=True), "x", 40, 4), 10)


def test_more_steps_than_were_asked_for_are_all_of_them() -> None:
    """DeepXDE's L-BFGS on torch runs 1,000 at a time."""
    assert lines(Progress(console(), "training", 40, 2), 60) == ["training 100 %  at 60"]
