"""Row E10: one process and two, each of one thread, a GPT as it ships with tied logits; and what more would give.

More than two are arithmetic, not measured: each computes its part of a batch, and a ring's all-reduce sends
2 (p - 1) / p times the gradients' bytes from each process, at the rate at which two processes add them up here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from bench.measure import Side, agree, alternate, figure_rows, peer, pipeline, ratios, row

ROUNDS = 5
STEPS = 120
BATCH, CONTEXT = 12, 64
TOKENS = BATCH * CONTEXT  # of a step
NUMBER = 4  # bytes of a gradient in float32
SUMS = 50  # all-reduces of a round
SAME = 2e-3  # nats: sums in another order, after so many steps in float32
EXPECTED = (2, 4, 8)
WORDS = (
    *("stage=transformer", "model.tied=true", "stage.baselines=false", "stage.attention=false", "device=cpu"),
    *(f"training.batch_size={BATCH}", f"dataset.context={CONTEXT}", "model.dropout=0"),
    *(f"training.steps={STEPS}", f"training.validate_every={STEPS // 3}"),
)
SIDES = {
    "torch, 1 process of 1 thread": ("backend=torch", "backend.threads=1"),
    "torch, 2 processes of 1 thread": ("backend=torch", "backend.threads=1", "device.processes=2"),
    "torch, 1 process of 2 threads": ("backend=torch", "backend.threads=2"),
    "jax, 1 device": ("backend=jax",),
    "jax, 2 devices, batches shared": ("backend=jax", "device.processes=2"),
    "jax, 2 devices, weights shared": ("backend=jax", "device.split=2"),
}


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table. Checked first: the sides of a backend end with the same loss."""
    parameters = set[int]()
    sides = {name: Side(name, partial(trained, words, parameters)) for name, words in SIDES.items()}
    summed = Side("gloo, 2 processes, all-reduce of the gradients", partial(all_reduced, parameters))
    alternate([*sides.values(), summed], rounds)
    rows = [*figure_rows([*sides.values()], "tokens_per_s", "tokens/s"), *figure_rows([summed], "seconds", "s")]
    for backend in ("torch", "jax"):
        alone, *others = [side for name, side in sides.items() if name.startswith(backend)]
        agree([alone, *others], "loss", SAME)
        rows += [row(f"{side.name} / {alone.name}", ratios(side, alone, "tokens_per_s"), "x") for side in others]
    rates = sides["torch, 1 process of 1 thread"].values("tokens_per_s")
    return rows + [expected(count, rates, summed.values("seconds")) for count in EXPECTED]


def all_reduced(parameters: Collection[int]) -> Mapping[str, float]:
    """Seconds of an all-reduce of as many gradients; in the uncounted round the trainings come first and say it."""
    (count,) = parameters
    return peer("all_reduce.py", str(NUMBER * count), str(SUMS))


def trained(words: Sequence[str], parameters: set[int]) -> Mapping[str, float]:
    """A training's tokens a second, and the loss that it ends with; its receipt's `parameters` are noted."""
    found = pipeline(*WORDS, *words)
    parameters.add(found["receipt"]["parameters"])
    return {"tokens_per_s": found["tokens_per_s"], "loss": found["test/loss"]}


def expected(count: int, alone: Sequence[float], summed: Sequence[float]) -> dict[str, object]:
    """What `count` processes with a core each would come to, by the rate of one and an all-reduce by two."""
    share = 2 * (count - 1) / count
    rates = [TOKENS / (TOKENS / rate / count + share * seconds) for rate, seconds in zip(alone, summed, strict=True)]
    return row(f"torch, {count} processes: arithmetic", rates, "tokens/s")
