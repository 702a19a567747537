"""Low-rank adapters (LoRA): which layers get them and how they start: `model.adapters`.

Hu et al., "LoRA: Low-rank adaptation of large language models", ICLR 2022, section 4.1: the saved weights stay as they
are, and beside a kernel W a product A B of low rank is trained. A begins normal and B at zero, so that the start is the
saved model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import UserError, cut
from pipeline.models.patterns import matching
from pipeline.runs import adapters, weights
from pipeline.runs.adapters import Adapters
from pipeline.runs.saved import check_start
from pipeline.runs.start import called
from pipeline.runs.weights import Weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

STREAM = 4  # of the seed; 0 draws a model's own weights


def adapters_of(experiment: Experiment, base: Weights, dense: Sequence[str], base_sha256: str) -> Adapters | None:
    """The adapters that a training starts with, in the dtypes of their layers; None where it has none.

    `base`: the weights that it starts from, and `base_sha256` the digest of the file that they come from. `dense`: the
    paths of the dense layers. Raises UserError.
    """
    wanted = experiment.starting.adapters
    dense = [
        name.removesuffix(".kernel") for name in base if name.removesuffix(".kernel") in dense
    ]  # in the order of the base, on every backend
    if wanted.start is not None:
        found = adapters.load(Path(wanted.start))
        check_start("model.adapters.start", Path(wanted.start), weights.digest(found.arrays()))
        _check_base(found, base, dense, base_sha256)
    elif wanted.rank is not None:
        layers = _chosen(wanted.layers, dense, wanted.rank)
        _check_rank(wanted.rank, layers, base)
        values = _first(base, layers, wanted.rank, experiment.seed)
        found = Adapters(wanted.alpha or float(wanted.rank), base_sha256, values)
    else:
        return None
    dtypes = {name: base[f"{name.rpartition('.')[0]}.kernel"].dtype for name in found.values}
    return Adapters(
        found.alpha,
        base_sha256,
        {name: array.astype(dtypes[name]) for name, array in found.values.items()},
        found.source,
    )


def _chosen(patterns: Sequence[str], dense: Sequence[str], rank: int) -> Sequence[str]:
    if not dense:
        raise UserError(f"model.adapters.rank={rank}: this model has no dense layer, which adapters are for")
    return matching("model.adapters.layers", patterns, dense, "dense layer") if patterns else dense


def _check_rank(rank: int, layers: Sequence[str], base: Weights) -> None:
    layer = min(layers, key=lambda one: min(base[f"{one}.kernel"].shape))
    shape = base[f"{layer}.kernel"].shape
    if rank > min(shape):
        raise UserError(
            f"model.adapters.rank={rank}: larger than {layer}, whose kernel is {shape[0]} x {shape[1]}; "
            f"choose 1 to {min(shape)}, or name other layers in model.adapters.layers"
        )


def _first(base: Weights, layers: Sequence[str], rank: int, seed: int) -> Weights:
    """A normal with variance 1 / in, so that x A is about as large as x; B zero. In float64, as the shared start."""
    generator, found = np.random.default_rng([seed, STREAM]), dict[str, np.ndarray]()
    for layer in layers:
        rows, columns = base[f"{layer}.kernel"].shape
        found[f"{layer}.adapter_a"] = generator.normal(0, rows**-0.5, (rows, rank))
        found[f"{layer}.adapter_b"] = np.zeros((rank, columns))
    return found


def _check_base(found: Adapters, base: Weights, dense: Sequence[str], base_sha256: str) -> None:
    """Refuse adapters of other weights than those that the training starts from. Raises UserError."""
    named = f"model.adapters.start={called(str(found.source))}"
    if found.base_sha256 != base_sha256:
        raise UserError(
            f"{named}: these adapters belong to other weights (sha256 {found.base_sha256[:12]}...) than those of "
            f"model.start ({base_sha256[:12]}...)"
        )
    for layer in found.layers:
        if layer not in dense:
            raise UserError(f"{named}: {layer} is not a dense layer of this model; it has {cut(', '.join(dense), 600)}")
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in found.layers:
        rows, columns = base[f"{layer}.kernel"].shape
        shapes |= {f"{layer}.adapter_a": (rows, found.rank), f"{layer}.adapter_b": (found.rank, columns)}
    if not shapes or {name: array.shape for name, array in found.values.items()} != shapes:
        raise UserError(f"{named}: damaged: its adapters do not have the shapes of this model's layers")
