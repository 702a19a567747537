"""Row E1: experiment=gpt_fast against the plain loop's 2,000 steps: in a third of its time, and in as much time.

The sides' tokens differ, so that losses are compared by the byte of the test text. Times are of whole processes, ours
with tracking; what ours computes and draws beside the training is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from itertools import count

from bench.measure import Side, alternate, at_least, at_most, figure_rows, peer, pipeline, ratios, row

ROUNDS = 5  # each with another seed
STEPS = 2000
AS_LONG = 900  # our steps in less than the plain loop's time
WORDS = ("experiment=gpt_fast", "stage.baselines=false", "stage.attention=false")


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table."""
    plain = Side(f"a plain torch loop, {STEPS} steps", seeded(lambda seed: peer("gpt_plain.py", str(STEPS), seed)))
    fast = Side("experiment=gpt_fast", seeded(lambda seed: pipeline(*WORDS, f"seed={seed}")))
    longer_words = (*WORDS, f"training.steps={AS_LONG}")
    longer = Side(f"experiment=gpt_fast, {AS_LONG} steps", seeded(lambda seed: pipeline(*longer_words, f"seed={seed}")))
    sides = [plain, fast, longer]
    alternate(sides, rounds, uncounted=0)
    return [
        *figure_rows(sides, "bits_per_byte", "bits/byte"),
        *figure_rows(sides, "wall_s", "s"),
        at_least(row("the plain loop - gpt_fast", gained(plain, fast), "nats/byte"), 0.0),
        at_most(row("gpt_fast / the plain loop, time", ratios(fast, plain, "wall_s"), "x"), 1 / 3),
        at_least(row(f"the plain loop - gpt_fast, {AS_LONG} steps", gained(plain, longer), "nats/byte"), 0.2),
        at_most(row(f"gpt_fast, {AS_LONG} steps / the plain loop, time", ratios(longer, plain, "wall_s"), "x"), 1.0),
    ]


def seeded(trained: Callable[[str], Mapping[str, float]]) -> Callable[[], Mapping[str, float]]:
    """What trains once for each round, with seeds 0, 1, 2, ..., and takes the time of the whole process."""
    seeds = count()

    def once() -> dict[str, float]:
        started = time.perf_counter()
        found = trained(str(next(seeds)))
        bits = found.get("bits_per_byte", found.get("test/bits_per_byte", math.nan))
        return {"bits_per_byte": bits, "wall_s": time.perf_counter() - started}

    return once


def gained(plain: Side, ours: Side) -> list[float]:
    """How much lower our loss is, round by round."""
    pairs = zip(plain.values("bits_per_byte"), ours.values("bits_per_byte"), strict=True)
    return [(theirs - found) * math.log(2) for theirs, found in pairs]
