"""How long `stage=runs` takes with one run and with 1,000: as a table, as JSON, and with a condition on a setting."""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.measure import Side, alternate, pipeline_in, row, wall

ROUNDS, MANY = 5, 1000
FORMS = {
    "a table": (),
    "JSON": ("stage.format=json",),
    "the best, by a setting": ("stage.best=test/accuracy", "stage.where=seed=0"),
}


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        made = pipeline_in(one, "dataset=digits", "training.epochs=1", "tracking=none")
        for number in range(MANY):
            shutil.copytree(made, Path(many, "runs", f"{made.name}-{number}"))
        sides = [Side("one run, a table", partial(listed, one))]
        sides += [Side(f"{MANY:,} runs, {form}", partial(listed, many, *words)) for form, words in FORMS.items()]
        alternate(sides, rounds)
    return [row(side.name, side.values("seconds"), "s") for side in sides]


def listed(folder: str, *words: str) -> dict[str, float]:
    """Seconds of the whole command."""
    return wall([sys.executable, "-m", "pipeline", "stage=runs", *words], folder=folder)
