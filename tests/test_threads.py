"""How many threads a step gets, and how long they wait for each other by what libgomp itself says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from pipeline.backends.torch.threads import step_flop
from pipeline.errors import UserError
from pipeline.machine.environment import environment
from pipeline.machine.threads import (
    LARGE_READ_BYTES,
    SMALL_STEP_FLOP,
    SPINS,
    check_threads,
    threads_for,
    threads_to_read,
)

LOAD = "from pipeline.backends import Torch; Torch().load(); import torch; torch.ones(2) @ torch.ones(2)"


def test_small_work_gets_one_thread() -> None:
    assert [threads_for(SMALL_STEP_FLOP * part, 8) for part in (0.5, 1)] == [1, 8]
    assert [threads_to_read(LARGE_READ_BYTES * part, 8) for part in (0.5, 1)] == [1, 8]


def test_a_layer_that_gives_several_tensors_is_counted_by_the_first() -> None:
    """Such a layer of the user's ended the training: `'tuple' object has no attribute 'numel'`."""

    class Pair(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
            return super().forward(x), None

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Pair(8, 4), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.last(self.first(x)[0])
            return found

    assert step_flop(Net(), torch.zeros(1, 8), 5) == 3 * 2 * (8 * 4 + 4 * 2) * 5


def test_the_limit_of_threads_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """`this machine has 2 hardware threads; choose 1 to 8` contradicted itself."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    check_threads("stage.threads", 8)
    with pytest.raises(UserError) as error:
        check_threads("stage.threads", 64)
    assert str(error.value) == (
        "stage.threads=64: this machine has 2 hardware threads; choose 1 to 8 (4 times as many at most)"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="torch's OpenMP is GNU's on Linux alone")
@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "77"}, 77), ({"OMP_WAIT_POLICY": "PASSIVE"}, 0)],
    ids=["by default", "as the user says", "as the user says by OpenMP's variable"],
)
@pytest.mark.wide
def test_what_the_library_itself_says_of_its_waiting(given: dict[str, str], spins: int) -> None:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_"))}
    asked = {**inherited, "OMP_DISPLAY_ENV": "VERBOSE", **given}
    result = subprocess.run(
        [sys.executable, "-c", LOAD], env=asked, capture_output=True, text=True, timeout=600, check=True
    )
    assert f"GOMP_SPINCOUNT = '{spins}'" in result.stderr


def test_waiting_decides_no_number() -> None:
    assert environment({"GOMP_SPINCOUNT": "5000", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}) == {
        "OMP_NUM_THREADS": "1"
    }
