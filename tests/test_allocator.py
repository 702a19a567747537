"""Memory that a step frees stays with the process: counted in page faults, which do not depend on how fast it runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from pipeline.machine.allocator import keep_freed_memory

torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3))
images = torch.ones(64, 1, 28, 28)

def faults(steps=10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        net(images).sum().backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps

faults()
as_it_was = faults()
keep_freed_memory()
faults()
print(as_it_was, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
@pytest.mark.wide
def test_a_step_takes_no_new_pages() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600, check=True)
    as_it_was, kept = map(float, result.stdout.split())
    assert as_it_was > 1000, "there is nothing to gain here any more"
    assert kept < as_it_was / 20
