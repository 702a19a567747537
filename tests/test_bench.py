"""The benchmarks' file: what a later call of the same day leaves of an earlier one."""

from __future__ import annotations

import json
import platform
from pathlib import Path

from bench.__main__ import keep
from bench.measure import machine

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
