"""stage=inference: a saved net's passes on three backends, against its exports, run without this package."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import Side, alternate, at_least, figure_rows, peer, pipeline, pipeline_in, ratios, row

ROUNDS = 5
BATCHES = (1, 16, 256)
LEAST = 0.9  # of the rate of the same net as torch's own exported program
MODELS = {
    "mlp": ("dataset=digits", "model=mlp"),
    "mnist_cnn": ("dataset=digits", "model=mnist_cnn"),
}
TRAINED = ("training.epochs=1", "tracking=none")


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table. Checked by both sides: exports are compared with the run, sizes with each other."""
    rows: list[dict[str, object]] = []
    for name, words in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows += compare(name, pipeline_in(folder, *words, *TRAINED), rounds)
    return rows


def compare(name: str, source: Path, rounds: int) -> list[dict[str, object]]:
    """One net on each backend and by each export, and torch against its own export, size by size."""
    ours = {on: Side(f"{name} on {on}", partial(passes, source, on)) for on in ("torch", "tensorflow", "jax")}
    with tempfile.TemporaryDirectory() as folder:
        exports = {form: exported(source, f"{folder}/{form}", form) for form in ("torch_export", "onnx")}
        theirs = {form: Side(f"{name} by {form}", partial(of_export, form, path)) for form, path in exports.items()}
        alternate([*ours.values(), *theirs.values()], rounds)
    rows = []
    for size in BATCHES:
        sides = (*ours.values(), *theirs.values())
        rows += [{**one, "what": f"{one['what']}, {size}"} for one in figure_rows(sides, f"rate_{size}", "images/s")]
        against = ratios(ours["torch"], theirs["torch_export"], f"rate_{size}")
        rows.append(at_least(row(f"{name} on torch / its torch_export, {size}", against, "x"), LEAST))
    return rows


def exported(source: Path, folder: str, form: str) -> str:
    """The folder that holds the run's export; `folder`: where that run is made."""
    Path(folder).mkdir()
    run = pipeline_in(folder, "stage=export", f"run={source}", f"stage.format={form}", "tracking=none")
    return str(run / "artifacts/export" / form)


def passes(source: Path, backend: str) -> dict[str, float]:
    """Images a second by size, as the stage has them."""
    sizes = f"stage.batches=[{','.join(map(str, BATCHES))}]"
    found: dict[str, Any] = pipeline("stage=inference", f"run={source}", f"backend={backend}", sizes, "tracking=none")
    return {f"rate_{size}": size / found[f"batch_{size}/latency_s"] for size in BATCHES}


def of_export(form: str, folder: str) -> dict[str, float]:
    """The same of an export."""
    return peer("exported.py", form, folder, *map(str, BATCHES))
