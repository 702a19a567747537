"""docs/first_hour.md, typed from its beginning to its end: each command runs, and says what the page says it does."""

from __future__ import annotations

import fcntl
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import COMMAND, environment, pipeline, refused

PAGE = Path(__file__).resolve().parents[1] / "docs" / "first_hour.md"
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INTERRUPTED = "Press Ctrl-C while it trains"
VARYING = (  # what is another on another machine or at another time
    (re.compile(r"\d{8}-\d{6}-(\S+)-[0-9a-f]{4}\b"), r"RUN-\1"),
    (re.compile(r"\d[\d.,]*(s|min)?\b"), "N"),
    (re.compile(r"\bN ms\b"), "N s"),  # of a fast machine
    (re.compile(r"\([^()]*; auto: [^()]*\)"), "(PROCESSOR)"),
    (re.compile(r"[\s*~]+"), " "),  # they mark the best, which may be another
)


def typed() -> Iterator[tuple[list[str], bool, list[str]]]:
    """Each command of the page: its words, whether it is interrupted, and the lines that it is to print."""
    text = PAGE.read_text()
    blocks = list(BLOCK.finditer(text))
    for command, output in zip(blocks[::2], blocks[1::2], strict=True):
        assert (command[1], output[1]) == ("sh", "text")
        (line,) = command[2].splitlines()
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "pipeline"]
        yield words[3:], INTERRUPTED in text[command.end() : output.start()], output[2].splitlines()


def plain(text: str) -> str:
    for pattern, same in VARYING:
        text = pattern.sub(same, text)
    return text.strip()


def interrupted(folder: Path, words: list[str]) -> str:
    """What the command says of which Ctrl-C is pressed while it trains."""
    heeds = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  # a job in the background ignores it
    command, said = [*COMMAND, *words, "tracking=none"], []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds,  # noqa: PLW1509
    ) as process:
        assert process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)  # it waits until its lines are read, and cannot get far
        for line in process.stderr:
            said.append(line)
            if line.startswith("epoch 2/"):
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    return "".join(said)


@pytest.mark.wide
def test_the_page_typed_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    commands = [*typed()]
    assert len(commands) > 5 and all(lines for _, _, lines in commands)
    for words, is_interrupted, lines in commands:
        if is_interrupted:
            said = interrupted(tmp_path, words)
        else:
            result = pipeline(tmp_path, *words)
            assert result.returncode == 0, result.stderr
            said = result.stdout + result.stderr
        for line in lines:
            assert plain(line) in plain(said), (words, line, said)


def test_what_the_page_says_of_a_refusal(tmp_path: Path) -> None:
    (found,) = re.findall(r"^    \$ python -m pipeline (.*)\n((?:    .*\n)+)", PAGE.read_text(), re.MULTILINE)
    line, message = found
    assert refused(tmp_path, *shlex.split(line)) == " ".join(message.split()).removeprefix("error: ")
