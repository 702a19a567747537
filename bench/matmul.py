"""stage=matmul again and again: do its shares of the ceiling agree, within the intervals that it states?

Every share of every later run is compared with the same one of the first run.
"""

from __future__ import annotations

from bench.measure import Side, alternate, at_least, pipeline, row

RUNS = 10  # beside the first
FLOOR = 0.9
Shares = dict[str, tuple[float, float, float]]  # median, and both ends of its interval


def run(rounds: int = RUNS) -> list[dict[str, object]]:
    """Rows of the table."""
    first = shares()
    side = Side("stage=matmul", lambda: agreeing(first, shares()))
    alternate([side], rounds, uncounted=0)
    overlapping = row("shares whose interval overlaps the first run's", side.values("overlapping"), "of 1")
    return [
        at_least(overlapping, FLOOR),
        row("shares whose median lies in the first run's interval", side.values("inside"), "of 1"),
    ]


def shares() -> Shares:
    """Of one run of the stage as it ships."""
    found = pipeline("stage=matmul", "stage.placed=null")
    names = [name for name in found if name.endswith("/share") and f"{name}_low" in found]
    if not names:
        raise SystemExit("stage=matmul keeps no share here: its ceiling needs a C++ compiler and an idle machine")
    return {name: (found[name], found[f"{name}_low"], found[f"{name}_high"]) for name in names}


def agreeing(first: Shares, again: Shares) -> dict[str, float]:
    """Parts of the shares. One that is measured in one of the runs alone does not agree."""
    every, both = first.keys() | again.keys(), first.keys() & again.keys()
    pairs = [(first[name], again[name]) for name in both]
    overlapping = sum(one[1] <= other[2] and other[1] <= one[2] for one, other in pairs)
    inside = sum(one[1] <= other[0] <= one[2] for one, other in pairs)
    return {"overlapping": overlapping / len(every), "inside": inside / len(every)}
