"""How many CPU threads a step of torch is worth, and how they wait for each other.

torch splits every operation over all cores and waits for the slowest thread, at first by spinning. For a small step
that gains nothing on an idle machine, and on one where another process holds a core it can cost a hundredfold: each of
the hundreds of waits in a second can take a time slice of the scheduler (measured in bench/README.md). The rule looks
at the model alone, never at the clock, because the number of threads can change the last bit of a sum.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from pipeline.errors import UserError

SMALL_STEP_FLOP = 50e6  # two threads gain 20 % at 78 MFLOP and nothing at 20
LARGE_READ_BYTES = 16e6  # of weights, once: two threads gain 40 % at 43 MB, 16 at 19, 8 at 11, and lose 3 at 3
THREADS_PER_CORE = 4  # the most that may be asked for
SPINS = 5_000  # a tenth or a quarter of a millisecond; libgomp's own 300,000 are many


def threads_for(step_flop: float, most: int) -> int:
    """One thread for a step under SMALL_STEP_FLOP, otherwise `most`."""
    return 1 if step_flop < SMALL_STEP_FLOP else most


def threads_to_read(read_bytes: float, most: int) -> int:
    """One thread where few bytes of weights are read, each once, as when a model writes a token; otherwise `most`."""
    return 1 if read_bytes < LARGE_READ_BYTES else most


def wait_briefly(variables: MutableMapping[str, str] = os.environ) -> None:
    """Let torch's threads sleep soon where they wait for each other; call it before torch is imported, or with the
    variables of a process that is to import it.

    Beside another process a training's step then has 1.2 times the rate, and alone the same (docs/decisions.md). Not
    where the user has said how they wait.
    """
    if "OMP_WAIT_POLICY" not in variables:
        variables.setdefault("GOMP_SPINCOUNT", str(SPINS))


def check_threads(key: str, threads: int | None) -> None:
    """Refuse what the frameworks do not survive: torch crashes and TensorFlow hangs where threads cannot be made.

    More than the machine has are allowed, since a sum of a larger machine's run depends on how many there were. `key`:
    what set them. Raises UserError.
    """
    cores = os.cpu_count() or 1
    limit = THREADS_PER_CORE * cores
    if threads is not None and threads > limit:
        most = f"{THREADS_PER_CORE} times as many at most"
        raise UserError(f"{key}={threads}: this machine has {cores} hardware threads; choose 1 to {limit} ({most})")
