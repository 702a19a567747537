"""Memory: the peak in a receipt is that of its process, and what is free is also limited by its cgroups."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.machine import memory
from pipeline.machine.free_memory import free_in_groups
from pipeline.runs.peaks import peaks

BIG = """
import subprocess, sys
held = bytearray(b"x") * 500_000_000
print(subprocess.run([sys.executable, "-c", sys.argv[1]], check=True, capture_output=True, text=True).stdout)
"""
SMALL = """
from pipeline.machine.memory import process_peak_bytes
held = bytearray(b"x") * 50_000_000
del held
print(process_peak_bytes())
"""


def test_a_peak_is_not_that_of_whoever_started_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", BIG, SMALL], check=True, capture_output=True, text=True)
    assert 50_000_000 < int(done.stdout) < 400_000_000


def test_free_memory_is_also_that_of_the_control_groups(tmp_path: Path) -> None:
    """Of the group itself and of those around it; 'max' does not limit them."""
    for group, limit, used in (("", "max", 9), ("a", "10000", 3000), ("a/b", "max", 1000), ("a/b/c", "8000", 500)):
        (tmp_path / group).mkdir(exist_ok=True)
        (tmp_path / group / "memory.max").write_text(f"{limit}\n")
        (tmp_path / group / "memory.current").write_text(f"{used}\n")
    assert free_in_groups(tmp_path, "a/b/c") == [7500, 7000]
    assert free_in_groups(tmp_path, "") == free_in_groups(tmp_path / "none", "x") == []


def test_the_page_cache_of_a_control_group_is_free(tmp_path: Path) -> None:
    """In a container that has read many files it fills the limit. What processes hold, and /dev/shm, stays in use."""
    of_files = "anon 700\nfile 9200\nshmem 200\ninactive_anon 900\nactive_anon 0\n"
    of_files += "inactive_file 6000\nactive_file 3000\nunevictable 0\n"
    for group, limit, used, stat in (("a", "20000", 12000, "inactive_file 500\n"), ("a/b", "10000", 10000, of_files)):
        (tmp_path / group).mkdir()
        (tmp_path / group / "memory.max").write_text(f"{limit}\n")
        (tmp_path / group / "memory.current").write_text(f"{used}\n")
        (tmp_path / group / "memory.stat").write_text(stat)
    assert free_in_groups(tmp_path, "a/b") == [9000, 8500]


def test_peak_memory_is_a_metric_where_the_receipt_knows_it_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In MiB. No grid and no listing could compare it: a result had it in words alone."""
    mib = 2**20
    alone = {"peak_memory": {"process_bytes": 300 * mib, "device_bytes": 5 * mib}}
    together = {"count": 2, "each": [{"peak_bytes": 100 * mib}, {"peak_bytes": 50 * mib}]}
    for receipt, found in (
        (alone, {"peak_memory": 300, "device_peak_memory": 5}),
        (alone | {"processes": together}, {"peak_memory": 150, "device_peak_memory": 5}),
        (alone | {"processes": {"count": 2, "each": []}}, {"device_peak_memory": 5}),
        (alone | {"of_the_last_process": ["peak_memory"]}, {}),
        ({}, {}),
    ):
        assert {one.name: one.value for one in peaks(receipt)} == found
    monkeypatch.setattr(memory, "forked", True)  # less than that of a process which has done the imports itself
    assert next((one.name, one.unit, one.direction) for one in peaks(alone)) == ("cell_peak_memory", "MiB", "min")
