"""Row A5: the recipe against plain `model.fit` on NumPy arrays, batches of 32, on TensorFlow and on JAX."""

from __future__ import annotations

from bench.measure import Side, agree, alternate, at_least, figure_rows, peer, pipeline, ratios, row

ROUNDS = 7
EPOCHS = 4


def run() -> list[dict[str, object]]:
    """Rows of the table. Checked first: accuracies no more than 0.015 apart (starts and orders of images differ)."""
    rows: list[dict[str, object]] = []
    for backend, least in (("tensorflow", 2.0), ("jax", None)):
        rows += compare(backend, least)
    return rows


def compare(backend: str, least: float | None) -> list[dict[str, object]]:
    """One backend's two sides and their ratio."""
    ours = Side(f"experiment=keras_classifier backend={backend}", lambda: recipe(backend))
    plain = Side(f"plain model.fit on {backend}", lambda: peer("keras_fit.py", backend, str(EPOCHS)))
    alternate([ours, plain], ROUNDS)
    agree([ours, plain], "accuracy", 0.015)
    ratio = row(f"ours / plain model.fit on {backend}", ratios(ours, plain, "images_per_s"), "x")
    sides = figure_rows([ours, plain], "images_per_s", "images/s")
    return [*sides, ratio if least is None else at_least(ratio, least)]


def recipe(backend: str) -> dict[str, float]:
    """The recipe as it ships but for the backend and the number of epochs."""
    found = pipeline("experiment=keras_classifier", f"backend={backend}", f"training.epochs={EPOCHS}")
    return {"images_per_s": found["images_per_s"], "accuracy": found["test/accuracy"]}
