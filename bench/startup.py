"""How long until something happens: help, the composed config, a refusal, and the first training step."""

from __future__ import annotations

import sys

from bench.measure import Side, alternate, at_most, pipeline, row, wall

ROUNDS = 10


def run() -> list[dict[str, object]]:
    """Rows of the table."""
    here = [sys.executable, "-m", "pipeline"]
    limits = {"--help": 0.5, "--cfg job": 0.5, "a refused config": 0.5, "first training step, default job": 4.0}
    sides = [
        Side("--help", lambda: wall([*here, "--help"])),
        Side("--cfg job", lambda: wall([*here, "--cfg", "job"])),
        Side("a refused config", lambda: wall([*here, "precision=tf32", "device=cpu"], status=2)),
        Side("first training step, default job", first_step),
        Side("Lightning's import alone", lambda: wall([sys.executable, "-c", "import pytorch_lightning"])),
    ]
    alternate(sides, ROUNDS)
    rows = [row(side.name, side.values("seconds"), "s") for side in sides]
    return [
        at_most(line, limits[side.name]) if side.name in limits else line
        for side, line in zip(sides, rows, strict=True)
    ]


def first_step() -> dict[str, float]:
    """Seconds from the start of the process to the end of the first optimizer step, with tracking on."""
    return {"seconds": pipeline("training.epochs=1")["receipt"]["first_step_s"]}
