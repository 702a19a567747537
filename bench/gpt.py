"""Row E1: stage=transformer at nanoGPT's configuration for a CPU, against a plain torch loop and Keras's `fit`."""

from __future__ import annotations

from functools import partial

from bench.measure import Side, agree, alternate, at_least, figure_rows, peer, pipeline, ratios, row

ROUNDS = 5
STEPS = 300  # of the 2,000; a step costs the same at any of them
APART = 0.15  # nats after so few steps: starts and orders of the text differ
BACKENDS = ("torch", "tensorflow", "jax")
WORDS = (
    *("stage=transformer", "model.tied=true", "stage.baselines=false", "stage.attention=false"),
    *(f"training.steps={STEPS}", f"training.validate_every={STEPS // 3}", "optimizer.epsilon=1e-8"),
)


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table. Checked first: the loss of the validation text is the same within what a start decides."""
    plain = Side("a plain torch loop", lambda: peer("gpt_plain.py", str(STEPS)))
    ours = {name: Side(f"stage=transformer backend={name}", partial(ours_on, name)) for name in BACKENDS}
    fits = {name: Side(f"Keras's fit on {name}", partial(fit_on, name)) for name in BACKENDS[1:]}
    tuned = Side("Keras's fit on tensorflow, XLA, 20 steps a call", partial(fit_on, "tensorflow", "xla"))
    sides = [plain, *ours.values(), *fits.values(), tuned]
    alternate(sides, rounds)
    agree(sides, "validation_loss", APART)
    rows = figure_rows(sides, "tokens_per_s", "tokens/s")
    for name, side in ours.items():
        against = row(f"{name} / the plain loop", ratios(side, plain, "tokens_per_s"), "x")
        rows.append(at_least(against, 1.0) if name == "torch" else against)
    rows.append(at_least(best(rows), 1.3))
    for name, side in fits.items():
        rows.append(
            at_least(row(f"{name} / Keras's fit on {name}", ratios(ours[name], side, "tokens_per_s"), "x"), 2.0)
        )
    rows.append(row(f"tensorflow / {tuned.name}", ratios(ours["tensorflow"], tuned, "tokens_per_s"), "x"))
    return rows


def best(rows: list[dict[str, object]]) -> dict[str, object]:
    """The best of our backends against the plain loop."""
    against = [one for one in rows if str(one["what"]).endswith("the plain loop")]
    found = max(against, key=lambda one: float(str(one["median"])))
    return {**found, "what": f"the best: {found['what']}"}


def ours_on(backend: str) -> dict[str, float]:
    """The stage as it ships but for the tied weights of the peers, its length, and what it draws."""
    found = pipeline(f"backend={backend}", *WORDS)
    return {"tokens_per_s": found["tokens_per_s"], "validation_loss": found["validation/loss"]}


def fit_on(backend: str, *xla: str) -> dict[str, float]:
    """Keras's own loop with its defaults, which on TensorFlow and a CPU leave XLA out; or with XLA, by `xla`."""
    return peer("gpt_keras.py", backend, str(STEPS), *xla)
