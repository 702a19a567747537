"""Which part of the cores other processes have."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from busy import others_at_work

from pipeline.machine import others as module
from pipeline.machine.others import Others, busy_s, own_s, said_of


def test_processes_of_others_are_seen() -> None:
    with others_at_work():
        others = Others()
        time.sleep(2)
        share = others.share()
    assert share is not None and 0.5 < share <= 1  # beside tests on the same cores, too
    assert said_of(share) == f"other processes had {share:.0%} of the cores"


def test_what_this_process_started_is_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share is what the cores did less what we did, of all that they could do."""
    spent, clock = list[float](), list[float]()

    def noted_own() -> dict[psutil.Process, float]:
        found = own_s()
        spent.append(sum(found.values()))
        return found

    def noted_clock() -> float:
        clock.append(time.perf_counter())
        return clock[-1]

    worked = iter((100.0, 101.5))  # of all, by the kernel: what they really did meanwhile is not known here
    monkeypatch.setattr(module, "own_s", noted_own)
    monkeypatch.setattr(module, "busy_s", lambda _: next(worked))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=noted_clock))
    others = Others([0])
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.8: pass"], check=True)
    share = others.share()
    (before, after), (began, ended) = spent, clock
    assert after - before > 0.75
    assert share == pytest.approx(max(0.0, 1.5 - (after - before)) / (ended - began), abs=0.02)


def test_one_who_has_ended_does_not_make_the_others_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "busy_s", lambda _: 100.0)  # nobody has worked since
    others = Others()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        gone = psutil.Process(process.pid)
        process.kill()
    others.own[gone] = 1e6  # with all that it had done before
    time.sleep(module.SHORTEST_S + 0.1)
    assert others.share() == 0


def test_a_clock_that_is_set_makes_no_process_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had done before then was taken for its work since, and that of others fell to 0."""
    before, boot = own_s(), psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 1)
    assert before.keys() & own_s().keys()


@pytest.mark.parametrize("stat", [None, "cpu 1 2\n", "cpu0 x\n"], ids=["no file", "no core", "other cores"])
def test_counts_that_are_not_there_give_no_share(
    stat: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of cores that /proc/stat does not name, as in a container that numbers them anew."""
    file = tmp_path / "stat"
    if stat is not None:
        file.write_text(stat, encoding="ascii")
    monkeypatch.setattr(module, "STAT", file)
    assert busy_s([0, 9]) is None
    others = Others([0, 9])
    time.sleep(module.SHORTEST_S + 0.1)
    assert others.share() is None


@pytest.mark.wide
@pytest.mark.parametrize("processes", [1, 2])
def test_a_trainings_rate_says_it(processes: int, tmp_path: Path) -> None:
    """Also of several processes, which the run has started."""
    words = ("dataset=digits", "training.epochs=60", "tracking=none", f"device.processes={processes}")
    command = [sys.executable, "-m", "pipeline", *words]
    with others_at_work():
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (receipt,) = tmp_path.glob("runs/*/receipt.json")
    share = json.loads(receipt.read_text(encoding="utf-8"))["training_rate"]["cores_of_others"]
    assert share > 0.2
    assert f"other processes had {share:.0%} of the cores" in " ".join(done.stdout.split())


@pytest.mark.parametrize("share", [None, 0.0, 0.04])
def test_a_small_share_is_not_mentioned(share: float | None) -> None:
    assert said_of(share) is None


def test_no_share_of_a_moment() -> None:
    assert Others().share() is None
