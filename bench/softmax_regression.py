"""Row A9 on a CPU: the recipe against the source's loop and against a bare loop over tensors in memory."""

from __future__ import annotations

from bench.measure import Side, agree, alternate, at_least, figure_rows, peer, pipeline, ratios, row

ROUNDS = 7


def run() -> list[dict[str, object]]:
    """Rows of the table. Equal accuracy is checked first."""
    ours = Side("experiment=softmax_regression", recipe)
    source = Side("the source's loop: DataLoader, ToTensor from PIL", lambda: peer("softmax_source.py"))
    bare = Side("a bare loop over tensors in memory", bare_loop)
    sides = [ours, source, bare]
    alternate(sides, ROUNDS)
    agree(sides, "accuracy", 0.01)
    return [
        *figure_rows(sides, "images_per_s", "images/s"),
        at_least(row(f"ours / {source.name}", ratios(ours, source, "images_per_s"), "x"), 8.0),
        at_least(row(f"ours / {bare.name}", ratios(ours, bare, "images_per_s"), "x"), 0.7),
    ]


def recipe() -> dict[str, float]:
    """The recipe as it ships, tracking and all."""
    found = pipeline("experiment=softmax_regression")
    return {"images_per_s": found["images_per_s"], "accuracy": found["test/accuracy"]}


def bare_loop() -> dict[str, float]:
    """The faster of the loop on one thread and on torch's own choice of threads."""
    runs = [peer("softmax_bare.py", threads) for threads in ("1", "0")]
    return max(runs, key=lambda row: row["images_per_s"])
