"""What stage=transformer measures and draws beside a training."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pipeline.baselines import compression, kneser_ney
from pipeline.datasets.corpus import Corpus, Divided
from pipeline.datasets.documents import sha256
from pipeline.errors import UserError
from pipeline.machine.cache_folder import cache_root
from pipeline.machine.capability import Resolved
from pipeline.machine.others import Others, said_of
from pipeline.models.gpt import Gpt
from pipeline.models.transformer import reference
from pipeline.report.table import size
from pipeline.runs import weights
from pipeline.runs.beside import beside, joined
from pipeline.runs.json_files import read_json
from pipeline.runs.result import Metric, Result, by_name
from pipeline.runs.run import Run
from pipeline.runs.saved import saved_card
from pipeline.spec import choice
from pipeline.tokens import Tokens, from_plain

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

ORDERS = (3, 5)  # of the n-grams
LARGEST = 16 * 2**20  # bytes of text that baselines are counted on: about 30 s
SENTENCE = re.compile(rb"(?<=[.!?]\s)[A-Z][^.!?]{24,}?[.!?]")
DRAWN = 64  # tokens of a map, at most


def text_of(dataset: Corpus, experiment: Experiment, run: Run) -> Divided:
    """The text that the model was trained on. Raises UserError where a file of it has changed since."""
    root = cache_root(dataset.cache)
    documents = dataset.documents(root)
    if sha256(documents) != read_json(run.folder / "receipt.json")["data_sha256"]:
        raise UserError("the text has changed since the training began")
    return dataset.texts(documents, experiment.seed, root)


def baselines(experiment: Experiment, run: Run) -> Result:
    """Bits per byte of the test text by n-grams, and by xz, which know the text before it (validation included).

    A note for a dataset that is not a text of ours.
    """
    dataset = experiment.data_source
    if not isinstance(dataset, Corpus):
        return Result((), notes=(f"baselines: not measured with {_not_ours(experiment)}",))
    run.say("measuring n-grams and xz on the same text")
    text = text_of(dataset, experiment, run)
    if text.size > LARGEST:
        return Result((), notes=(f"baselines: not measured on {size(text.size)} of text, more than {size(LARGEST)}",))
    before, test = bytes(text.train) + bytes(text.validation), bytes(text.test)
    known, asked = (np.frombuffer(part, np.uint8) for part in (before, test))
    ways = {f"{order}-gram": partial(kneser_ney.bits_per_byte, known, asked, order) for order in ORDERS}
    ways["xz"] = partial(compression.bits_per_byte, before, test)
    found = [beside(f"{name}: not measured", partial(baseline, name, bits)) for name, bits in ways.items()]
    together = joined(found)
    said = ", ".join(text for one in found for _, text in one.table)
    return replace(together, table=(("baselines", f"{said} bits per byte"),) if said else ())


def baseline(name: str, bits_per_byte: Callable[[], float]) -> Result:
    """The result of one baseline. `bits_per_byte`: computes it."""
    bits = bits_per_byte()
    metric = Metric(f"baseline/{name.replace('-', '_')}", bits, "bits/byte", direction="min")
    return Result((metric,), table=(("baselines", f"{name} {bits:.4f}"),))


def utilization(experiment: Experiment, resolved: Resolved, run: Run, result: Result) -> Result:
    """FLOP a second of the model, and their share of what a square matmul reaches on this machine at this dtype.

    For model=gpt alone; a note for other models, and where the training's rate cannot be compared with the matmul's.
    """
    if not isinstance(experiment.model, Gpt):
        return Result((), notes=(f"utilization: not measured with {_not_gpt(experiment)}",))
    if why := _no_share(experiment):
        return Result((), notes=(f"utilization: not measured with {why}",))
    rate = by_name(result.metrics)["tokens_per_s"]
    run.say("measuring the rate of a matmul")
    length = saved_card(run.folder)["x"][0]
    flop = experiment.model.training_flop(weights.load(run.artifact("model/weights.npz")), length)
    others = Others()
    ceiling = importlib.import_module(experiment.backend.probe).machine(experiment, resolved)
    beside_it = others.share()
    share = rate.value * flop / ceiling.FLOP_per_s
    slower = "; other work slowed the matmul down" if share > 1 else ""
    trained = read_json(run.folder / "receipt.json")["training_rate"]
    doubts = ["the rate is of a cold start"] if trained.get("cold") else []
    doubts += [_busy(trained["cores_of_others"], beside_it)]
    doubt = f"; uncertain: {'; '.join(said)}" if (said := list(filter(None, doubts))) else ""
    text = f"{share:.1%} of the {ceiling.FLOP_per_s / 1e9:,.0f} GFLOP/s of a matmul of side {ceiling.side:,}"
    return Result(
        (Metric("model_flop_utilization", share, "", "time", "max"),),
        table=(("utilization", f"{text}; {flop / 1e6:,.2f} MFLOP a token{slower}{doubt}"),),
    )


def _busy(training: float | None, matmul: float | None) -> str:
    """What other processes had while it trained, and beside the matmul; empty where neither disturbed."""
    then, later = said_of(training), said_of(matmul)
    if then and later:
        return f"{then}, and {matmul:.0%} beside the matmul"
    return f"{later} beside the matmul" if later else then or ""


def _not_gpt(experiment: Experiment) -> str:
    return f"model={choice(experiment.model)}: for model=gpt alone"


def _not_ours(experiment: Experiment) -> str:
    return f"dataset={choice(experiment.data_source)}: for the texts of this package and dataset=text alone"


def _no_share(experiment: Experiment) -> str | None:
    """The setting for which the training's rate cannot be compared with a matmul's, and why; None: it can."""
    start, device = experiment.starting, experiment.device
    if start.adapters.active or start.freeze:
        key = "model.adapters" if start.adapters.active else "model.freeze"
        return f"{key}: not all gradients are computed"
    for key, count in (("device.processes", device.processes), ("device.split", device.split)):
        if count > 1:
            return f"{key}={count}: the matmul beside it has one process and one device"
    if experiment.profiler.active:
        return f"profiler={choice(experiment.profiler)}: it slows the training down"
    return None


def draw_attention(experiment: Experiment, run: Run) -> Result:
    """artifacts/figures/attention.png and attention.html: every layer and head, on a sentence of the test text."""
    from pipeline.report import attention

    dataset, model = experiment.data_source, experiment.model
    if not isinstance(model, Gpt):
        return Result((), notes=(f"attention: not drawn with {_not_gpt(experiment)}",))
    if not isinstance(dataset, Corpus):
        return Result((), notes=(f"attention: not drawn with {_not_ours(experiment)}",))
    run.say("drawing the attention maps")
    about = saved_card(run.folder)
    vocabulary = from_plain(about["tokens"])
    text = text_of(dataset, experiment, run).test
    tokens = sentence(bytes(text[: 2**20]), vocabulary)[: min(DRAWN, about["x"][0])]
    maps_LHTS = attention_of(model, run, tokens, about["x"][0])
    shown = [vocabulary.decode(tokens[number : number + 1]).decode("utf-8", "replace") for number in range(len(tokens))]
    title = f"{experiment.name}: attention"
    attention.figure(run.artifact("figures/attention.png"), maps_LHTS, title, shown, shown)
    attention.page(run.artifact("attention.html"), maps_LHTS, shown, title)
    if not (lacked := attention.boxes(shown)):
        return Result(())
    said = f"the fonts of matplotlib here lack {lacked} of its characters, which are boxes there"
    return Result((), notes=(f"attention.png: {said}; attention.html has them",))


def attention_of(model: Gpt, run: Run, tokens: np.ndarray, context: int) -> np.ndarray:
    """(layers, heads, T, T) of the saved weights, in float64 by the reference: no framework is needed for it."""
    wide = {name: array.astype(np.float64) for name, array in weights.load(run.artifact("model/weights.npz")).items()}
    maps: list[np.ndarray] = []
    reference.gpt(tokens[None].astype(np.int64), wide, model.decoder(), context, maps)
    return np.stack([one[0] for one in maps])


def sentence(text: bytes, vocabulary: Tokens) -> np.ndarray:
    """The tokens of the first sentence of a text; of its beginning where none is found."""
    found = SENTENCE.search(text)
    chosen = found[0] if found else text
    return vocabulary.encode(chosen.decode("utf-8", "ignore").encode() or text, "stage.attention")
