"""Commands that a notebook's cell starts: `!` gives them a terminal, `%%bash` and subprocess give them pipes."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command import COMMAND, DIGITS, LONG, environment, runs, status

from pipeline.cli.notebook import FROM_KERNEL, unset_notebook_backend
from pipeline.runs.checkpoint import newest_step
from pipeline.runs.journal import Journal

KERNEL = {  # what Jupyter's kernel of Python 7.3 sets; JPY_PARENT_PID comes from the server that starts it
    "JPY_PARENT_PID": "1",
    "TERM": "xterm-color",
    "CLICOLOR": "1",
    "CLICOLOR_FORCE": "1",
    "FORCE_COLOR": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}


def in_cell(folder: Path, *words: str, **changes: str) -> tuple[str, int]:
    """What a cell shows of `!python -m pipeline <words>`, and the exit status."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    variables = {**environment(), **KERNEL, **changes}
    with subprocess.Popen(
        [*COMMAND, *words], cwd=folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        text = b""
        with suppress(OSError):  # the end of a terminal that nobody holds open
            while more := os.read(ours, 1000):
                text += more
        code = process.wait(LONG)
    os.close(ours)
    return text.decode(), code


@pytest.mark.parametrize("unset", ["MPLBACKEND", "JPY_PARENT_PID"])
def test_a_cell_shows_lines_and_no_bars(unset: str, tmp_path: Path) -> None:
    """A saved notebook held a bar's every state, one line over the other: it does not move the cursor."""
    text, code = in_cell(tmp_path, *DIGITS, "tracking=none", **{unset: ""})
    assert code == 0, text
    lines = text.replace("\r\n", "\n")
    assert "\x1b" not in lines and "\r" not in lines and "━" not in lines
    assert [line.partition("  ")[0] for line in lines.splitlines() if "loss" in line][:2] == ["epoch 1/2", "epoch 2/2"]


@pytest.mark.wide
def test_a_grid_in_a_cell_is_a_line_for_each_of_its_cells(tmp_path: Path) -> None:
    text, code = in_cell(tmp_path, "-m", "seed=0,1", *DIGITS, "tracking=none")
    assert code == 0, text
    assert "\x1b" not in text and "running  seed" not in text
    assert len(re.findall(r"done +seed=\d", text)) == 2


def test_a_pipe_of_a_notebook_gets_no_colours(tmp_path: Path) -> None:
    """A kernel sets FORCE_COLOR, by which rich took the pipes of %%bash and subprocess for terminals."""
    variables = {**environment(), **KERNEL}
    words = [*COMMAND, *DIGITS, "tracking=none"]
    result = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    assert "\x1b" not in result.stdout + result.stderr
    assert "epoch 2/2" in result.stderr and "test accuracy" in result.stdout


def test_a_message_in_a_cell_is_one_line(tmp_path: Path) -> None:
    """A notebook folds lines itself, and what is copied from it has to be what is to be typed."""
    text, code = in_cell(tmp_path, "precison=mixed")
    assert (code, len(text.splitlines())) == (2, 1)
    assert text.startswith("error: precison: no such key (did you mean precision?)")


def test_nobody_is_asked_in_a_cell(tmp_path: Path) -> None:
    """A cell's `!` is given a terminal, and no way to type: the question would stand there for ever."""
    killed = Journal.begin(tmp_path / "runs", "killed", {})
    killed.finish("KILLED")
    text, code = in_cell(tmp_path, "stage=delete", f"run={killed.id}")
    assert code == 2
    assert "error: stage=delete: nobody can be asked here; stage.sure=true deletes without asking" in text
    assert runs(tmp_path) == [killed.folder]


def test_an_interrupted_cell_leaves_a_checkpoint(tmp_path: Path) -> None:
    """IPython gives what it interrupts half a second: SIGINT, SIGHUP, SIGINT, SIGKILL. The first two signals after
    the first ended the run at once, and before that it had waited for 0.3 s whether more would come together."""
    words = [*COMMAND, "dataset=digits", "training.epochs=100000", "tracking=none"]
    heeds = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  # a job in the background ignores it
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        env={**environment(), **KERNEL},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds,  # noqa: PLW1509
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 3/"):
                break
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGINT):
            with suppress(ProcessLookupError):
                process.send_signal(number)
            time.sleep(0.32)  # longer than signals that belong together are apart
        rest = process.stderr.read()
    (run,) = runs(tmp_path)
    assert (status(run).state, status(run).error) == ("KILLED", "stopped by SIGINT"), rest
    assert f"stopped at step {newest_step(run):,}; resume={run.name} resumes from there" in rest


def test_the_plotting_backend_of_a_notebook_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that was started from a notebook ended in matplotlib's traceback; any other is kept."""
    for value, left in ((f"{FROM_KERNEL}matplotlib_inline.backend_inline", None), ("TkAgg", "TkAgg")):
        monkeypatch.setenv("MPLBACKEND", value)
        unset_notebook_backend()
        assert os.environ.get("MPLBACKEND") == left


PAGE = Path(__file__).resolve().parents[1] / "docs" / "notebook.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.wide
def test_the_blocks_of_the_page_run_one_after_another(tmp_path: Path) -> None:
    """Those of Python in one process, as in a notebook."""
    blocks = BLOCK.findall(PAGE.read_text())
    for line in (line for language, text in blocks if language == "sh" for line in text.splitlines()):
        _, python, *words = shlex.split(line.replace("!", "! ", 1))
        assert [python, *words[:2]] == ["python", "-m", "pipeline"]
        said, exit_status = in_cell(tmp_path, *words[2:], "tracking=none")
        assert exit_status == 0, said
    code = "".join(text for language, text in blocks if language == "python")
    command = [sys.executable, "-W", "error", "-c", code]
    variables = environment(MPLBACKEND="Agg")
    result = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    accuracy, table, *_, predicted = re.split(r"\n(?= |\[)", result.stdout, maxsplit=2)
    assert float(accuracy.split()[0]) > 0.7
    assert table.split()[:4] == ["id", "state", "seed", "test/accuracy"] and result.stdout.count("finished") == 4
    assert predicted.count("'") == 20
