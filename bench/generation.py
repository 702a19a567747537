"""Row E2: 256 tokens of a model of 10.9 million parameters with a cache of keys and values, and without one."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from bench.measure import Side, alternate, at_least, figure_rows, pipeline, pipeline_in, ratios, row

ROUNDS = 3
LEAST = 5.0
MODEL = (
    *("stage=train", "model=gpt", "model.layers=6", "model.heads=6", "model.width=384", "dataset=python_docs"),
    *("dataset.context=512", "training.steps=2", "training.batch_size=1", "training.evaluation_batch_size=1"),
)
GENERATE = ("stage=generate", "stage.tokens=256", "stage.temperature=0", "stage.prompt=The statement")


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table. Checked first: both sides write the same text. The model has hardly been trained."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = pipeline_in(folder, *MODEL, "tracking=none")
        for backend in ("torch", "tensorflow", "jax"):
            rows += compare(source, backend, rounds)
    return rows


def compare(source: Path, backend: str, rounds: int) -> list[dict[str, object]]:
    """One backend's two sides and their ratio. Keras computes the whole context for each token of the uncached one."""
    texts: set[str] = set()
    cached, uncached = (
        Side(
            f"{name} on {backend}",
            partial(generated, texts, f"run={source}", f"backend={backend}", f"stage.cache={value}"),
        )
        for name, value in (("cached", "true"), ("uncached", "false"))
    )
    alternate([cached, uncached], rounds)
    if len(texts) != 1:
        raise SystemExit(f"{backend}: {len(texts)} different texts; no time is worth anything")
    ratio = row(f"cached / uncached on {backend}", ratios(cached, uncached, "tokens_per_s"), "x")
    judged = at_least(ratio, LEAST) if backend == "torch" else ratio  # the others' uncached side computes more
    return [*figure_rows([cached, uncached], "tokens_per_s", "tokens/s"), judged]


def generated(texts: set[str], *overrides: str) -> dict[str, float]:
    """Tokens a second over all of the 256, prefill and choosing included, compilation not."""
    found = pipeline(*GENERATE, *overrides, "tracking=none")["receipt"]["generation"]
    texts.add(found["text_sha256"])
    seconds = found["prefill_s"]["median"] + found["step_s"]["total"] + found["choose_s"]["total"]
    return {"tokens_per_s": sum(found["tokens"]) / seconds}
