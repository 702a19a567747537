"""How many CPU threads a training step of torch is worth.

torch splits every operation over all cores and waits for the slowest thread by spinning. For a small step that gains
nothing on an idle machine, and on one where another process holds a core it costs a hundredfold: each of the hundreds
of waits in a second can take a time slice of the scheduler (measured in bench/README.md). The rule looks at the model
alone, never at the clock, because the number of threads can change the last bit of a sum.
"""

from __future__ import annotations

SMALL_STEP_FLOP = 50e6  # two threads gain 20 % at 78 MFLOP and nothing at 20


def threads_for(step_flop: float, most: int) -> int:
    """One thread for a step under SMALL_STEP_FLOP, otherwise `most`."""
    return 1 if step_flop < SMALL_STEP_FLOP else most
