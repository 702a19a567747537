"""What stage=seq2seq draws: where the decoder looks in the source, for each token that it writes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.models import PADDING
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.transformer import reference
from pipeline.runs import weights
from pipeline.runs.run import Run
from pipeline.runs.saved import saved_card
from pipeline.tasks.sequence_to_sequence import BEGIN, END, SIGNS, SPECIAL
from pipeline.tokens import from_plain

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

END_SIGN = "∎"


def draw(experiment: Experiment, run: Run) -> None:
    """artifacts/figures/cross_attention.png and cross_attention.html: the first test pair, as the model wrote it."""
    from pipeline.report import attention

    if not isinstance(experiment.model, EncoderDecoder):
        return
    with run.artifact("decoded.csv").open(encoding="utf-8", newline="") as file:
        first = next(csv.DictReader(file))
    maps_LHTS = maps_of(experiment.model, run.folder, first["source"], first["decoded"])
    read, written = [*first["source"], END_SIGN], [*first["decoded"], END_SIGN][: maps_LHTS.shape[2]]
    title = f"{experiment.name}: attention to the source"
    attention.figure(run.artifact("figures/cross_attention.png"), maps_LHTS, title, written, read)
    attention.page(run.artifact("cross_attention.html"), maps_LHTS, written, title, read)


def maps_of(model: EncoderDecoder, folder: Path, source: str, written: str) -> np.ndarray:
    """(layers, heads, T, S) of the saved weights, in float64 by the reference: for each token of `written` and END."""
    card = saved_card(folder)
    tokens, longest = from_plain(card["tokens"]), card["outputs"][0]
    x_NW = np.full((1, card["x"][0]), PADDING, np.int64)
    start = x_NW.shape[1] - longest
    x_NW[0, : len(source)] = SPECIAL + tokens.encode(source.encode(), "source")
    x_NW[0, len(source)] = END
    x_NW[0, start] = BEGIN
    special = {sign: token for token, sign in SIGNS.items()}
    each = [special[one] if one in special else SPECIAL + tokens.encode(one.encode(), "decoded")[0] for one in written]
    so_far = np.array(each[: longest - 1], np.int64)
    x_NW[0, start + 1 : start + 1 + len(so_far)] = so_far
    wide = {
        name: array.astype(np.float64) for name, array in weights.load(folder / "artifacts/model/weights.npz").items()
    }
    maps: list[np.ndarray] = []
    reference.encoder_decoder(x_NW, wide, model.stacks(), start, maps)
    return np.stack([one[0] for one in maps])[:, :, : len(so_far) + 1, : len(source) + 1]
