"""The benchmarks' file: what a later call of the same day leaves of an earlier one."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from bench.__main__ import asked, keep
from bench.measure import machine
from bench.pinn import Training

RESULTS = Path(__file__).parents[1] / "results"


def result(commit: str, figure: float) -> dict[str, object]:
    return {"git": {"commit": commit, "dirty": False}, "rows": [{"what": "x", "median": figure}]}


def test_each_benchmark_keeps_the_commit_that_it_measured(tmp_path: Path) -> None:
    where = {"cpu": "Some CPU", "cores": 2, "date": "2026-01-01"}
    keep(tmp_path, where, {"startup": result("old", 1.0), "tracking": result("old", 2.0)})
    path = keep(tmp_path, where, {"tracking": result("new", 3.0)})
    assert path == tmp_path / "some-cpu-2-cores" / "2026-01-01.json"
    found = json.loads(path.read_text())
    assert found["results"] == {"startup": result("old", 1.0), "tracking": result("new", 3.0)}
    assert "git" not in found["machine"]


def test_the_system_is_named_without_its_builder() -> None:
    system = machine()["system"]
    assert system.split()[0] == platform.system()
    assert "-" not in system


def test_the_files_in_the_repository_are_of_this_form() -> None:
    for path in RESULTS.glob("*/*.json"):
        found = json.loads(path.read_text())
        assert "-" not in found["machine"]["system"]
        for made in found["results"].values():
            assert made["git"]["commit"]
            assert all({"what", "median", "min", "max", "n"} <= row.keys() for row in made["rows"])


def test_a_benchmark_takes_its_options() -> None:
    assert asked(["pinn", "--problems", "function", "ode", "--rounds", "1"]) == (
        ["pinn"],
        {"problems": ["function", "ode"], "rounds": 1},
    )
    assert asked(["startup", "amp"]) == (["startup", "amp"], {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "error: nothing: no such benchmark; choose from startup, "),
        (["startup", "--rounds", "2"], "error: --rounds: goes with the benchmark pinn alone"),
        (["pinn", "--rounds", "0"], "error: --rounds 0: give 1 or more"),
    ],
)
def test_what_no_benchmark_takes_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        asked(words)


def test_every_side_ends_by_one_rule() -> None:
    """At the first row of the history that is as good, also where a later one is worse; never is no number."""
    one = Training([(0.1, 0.5), (0.2, 0.01), (0.3, 0.02), (0.4, 0.01)], 1.0, 0.01, "16 points")
    assert [one.reached(level) for level in (1.0, 0.02, 0.01)] == [0.1, 0.2, 0.2]
    assert one.reached(1e-3) != one.reached(1e-3)
