"""What tracking and progress cost the training: the default job with both, against the same with neither."""

from __future__ import annotations

from bench.measure import Side, alternate, at_most, figure_rows, pipeline, ratios, row

ROUNDS = 9
MOST = 1.03


def run() -> list[dict[str, object]]:
    """Rows of the table."""
    watched = Side("default job, MLflow and progress bar", lambda: training("mlflow", terminal=True))
    silent = Side("default job, tracking=none, no terminal", lambda: training("none", terminal=False))
    alternate([watched, silent], ROUNDS)
    cost = row("with / without", ratios(watched, silent, "seconds"), "x")
    return [*figure_rows([watched, silent], "seconds", "s of training"), at_most(cost, MOST)]


def training(tracking: str, *, terminal: bool) -> dict[str, float]:
    """Seconds of training, as the receipt has them: all epochs, the first with its cold start, without validation."""
    receipt = pipeline(f"tracking={tracking}", terminal=terminal)["receipt"]
    return {"seconds": receipt["training_s"]}
