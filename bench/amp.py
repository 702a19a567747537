"""Row B1 on a CPU at fp32: the recipe against the source's loop in PyTorch.

Beside them the limit: the step's convolutions and products alone.
"""

from __future__ import annotations

from bench.measure import Side, agree, alternate, at_least, figure_rows, peer, pipeline, ratios, row

ROUNDS = 5
EPOCHS = 2  # the first, cold, is not counted
FLOOR = 2.0


def run() -> list[dict[str, object]]:
    """Rows of the table. Equal accuracy is checked first: 0.005 is four standard deviations of 10,000 test images."""
    ours = Side("experiment=mnist_cnn", recipe)
    source = Side("the source's loop: a worker's DataLoader, ToTensor and Normalize per item", source_loop)
    limit = Side("the step's convolutions and products alone", lambda: peer("mnist_products.py"))
    sides = [ours, source]
    alternate([*sides, limit], ROUNDS)
    agree(sides, "accuracy", 0.005)
    return [
        *figure_rows([*sides, limit], "images_per_s", "images/s"),
        at_least(row("ours / the source's loop", ratios(ours, source, "images_per_s"), "x"), FLOOR),
        row("ours / its convolutions and products alone", ratios(ours, limit, "images_per_s"), "x"),
    ]


def recipe() -> dict[str, float]:
    """The recipe as it ships but for the device, the number of epochs and what is said."""
    found = pipeline("experiment=mnist_cnn", "device=cpu", f"training.epochs={EPOCHS}")
    return {"images_per_s": found["images_per_s"], "accuracy": found["test/accuracy"]}


def source_loop() -> dict[str, float]:
    """The peer's script."""
    return peer("mnist_source.py", str(EPOCHS))
