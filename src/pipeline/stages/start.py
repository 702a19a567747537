"""model.start: what inputs the weights that a training starts from were trained with, beside those that they get."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.datasets.normalisation import Normalisation
from pipeline.errors import UserError, cut, listed, shown
from pipeline.models.patterns import matching
from pipeline.models.start import other_settings
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_config
from pipeline.runs.start import called

if TYPE_CHECKING:
    from pipeline.experiment.settings import Starting


def card_of(start: Path) -> dict[str, Any]:
    """The card of the saved model that a file of weights is of; of an export, what normalised its x; else empty."""
    card = read_json(start.with_name("card.json"))
    if card:
        return card
    by = read_json(start.with_name("normalisation.json"))
    return {"normalisation": by} if by else {}


def check_adapters(starting: Starting, model: Mapping[str, Any]) -> None:
    """Refuse patterns of layers that the saved run of the same class has no kernel for. Raises UserError.

    Reads the names in the file alone, so that a grid is refused before its cells begin. `model`: the config's node.
    """
    start, patterns = Path(str(starting.start)), starting.adapters.layers
    if not patterns or start.suffix != ".npz" or len(start.parents) < 3:
        return
    saved = read_config(start.parents[2]).get("model")
    if not isinstance(saved, dict) or saved.get("_target_") != model.get("_target_"):
        return
    try:
        with zipfile.ZipFile(start) as file:
            names = [name.removesuffix(".npy") for name in file.namelist()]
    except (OSError, zipfile.BadZipFile):  # whoever reads the weights says so
        return
    kernels = [name.removesuffix(".kernel") for name in names if name.endswith(".kernel")]
    matching("model.adapters.layers", patterns, kernels, "dense layer")


def said_of_settings(start: Path, model: Mapping[str, Any]) -> str | None:
    """Where the saved run's model had settings that its weights do not show, such as the activation, and others now.

    `model`: the config's node. Nothing where the file is of no run, or of another class.
    """
    differ = other_settings(start, model)
    if not differ:
        return None
    then, now = (", ".join(f"{key}={shown(pair[which])}" for key, pair in differ.items()) for which in (0, 1))
    return f"model.start: that model was trained with {then}; this one has {now}"


def said_of_positions(start: Path, config: Mapping[str, Any]) -> str | None:
    """Where positions are shares of a context that was another one then. `config`: this run's."""
    if config["model"].get("positions") != "linear" or len(start.parents) < 3:
        return None
    then = (read_config(start.parents[2]).get("dataset") or {}).get("context")
    now = config["dataset"].get("context")
    if then in (None, now):
        return None
    return (
        f"model.start: that model was trained with dataset.context={then}, this run has {now}: with "
        "model.positions=linear, which are fractions of the context, its weights compute something else"
    )


def said_of_classes(card: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Where the saved model's outputs were of other classes, or of the same ones in another order.

    `card`, `now`: the cards of that model and of this run's. Of another number of them its weights do not fit.
    """
    then, classes = card.get("classes"), now.get("classes")
    if not isinstance(then, list) or not isinstance(classes, list) or len(then) != len(classes):
        return None
    differ = [number for number, (one, other) in enumerate(zip(then, classes, strict=True)) if one != other]
    if not differ:
        return None
    first = f"output {differ[0]} was {then[differ[0]]} and is {classes[differ[0]]}"
    return (
        f"model.start: {len(differ):,} of the {len(then):,} outputs were for other classes when that model was trained "
        f"({first}); model.start_layers can leave the last layer out"
    )


def said_of_columns(card: Mapping[str, Any], now: Sequence[str], *, whole: bool) -> str | None:
    """Where the saved model's inputs were other columns of a table. `whole`: its first layer is taken, too.

    Raises UserError where they are the same ones in another order: its weights would be for each other's numbers.
    """
    then = card.get("columns")
    if not isinstance(then, list) or not now or then == [*now]:
        return None
    before, here = (cut(", ".join(columns), 300) for columns in (then, now))
    if whole and sorted(then) == sorted(now):
        raise UserError(
            f"model.start: that model takes the columns {before}, and here they come as {here}; "
            f"{cut(listed('dataset.features', then), 300)} has them in its order"
        )
    return (
        f"model.start: that model was trained on the columns {before}, and this one is on {here}; rows that it was "
        "trained on cannot be found here: contamination of what is held out here cannot be ruled out"
    )


def check_held_out(start: Path, receipt: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse a saved model that was trained on another division of the same data, whose test set was another one.

    `receipt`, `config`: this run's, with the hashes of its data and of what it holds out. Raises UserError. Of
    validation examples and of other data `said_of_contamination` says how many it was trained on.
    """
    if len(start.parents) < 3:
        return
    then, config_then = read_json(start.parents[2] / "receipt.json"), read_config(start.parents[2])
    before, now = then.get("held_out", {}), receipt["held_out"]
    if then.get("data_sha256") != receipt["data_sha256"] or before.get("test", now["test"]) == now["test"]:
        return
    by = {key: (config_then.get("dataset", {}).get(key), value) for key, value in config["dataset"].items()}
    shares = [f"dataset.{key}={shown(one)}" for key, (one, other) in by.items() if one != other]
    were = ", ".join([*shares, f"seed={config_then.get('seed')}"])
    raise UserError(
        f"model.start={called(start)}: trained on another split of the same data ({were}), so it may have seen "
        "examples of this test set; split them as it did"
    )


def said_of_vocabulary(start: Path, card: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Where weights come without the card that says which text their tokens stand for. `now`: this run's card."""
    tokens = now.get("tokens")
    if tokens is None or tokens["kind"] == "bytes" or "tokens" in card:
        return None
    return (
        f"model.start: {start.name} has no card.json beside it that says what its tokens stand for; where these are "
        "others, its embeddings and logits are for other text"
    )


def said_of_inputs(card: dict[str, Any], now: Normalisation | None, asked: bool) -> str | None:
    """Where the saved model knows inputs that were normalised otherwise, or not at all (an empty card says neither).

    `now`: what this run normalises by. `asked`: whether dataset.normalise asks for it, and not the dataset itself.
    """
    then = Normalisation.of_card(card)
    if not card or _same(then, now):
        return None
    if then is not None and now is not None:
        return (
            f"model.start: that model was trained on examples normalised by {then.shown()}, "
            f"this run normalises by {now.shown()}"
        )
    if now is None:
        return (
            "model.start: that model was trained on examples normalised, this one takes them as they are; "
            "dataset.normalise=true normalises them by this run's own examples"
        )
    hint = "; dataset.normalise=false leaves them so" if asked else ""
    return f"model.start: that model was trained on examples as they are, this one takes them normalised{hint}"


def _same(then: Normalisation | None, now: Normalisation | None) -> bool:
    """Whether both are nothing, or the same but for what another machine's sums differ by."""
    if then is None or now is None:
        return then is now
    if len(then.mean) != len(now.mean):
        return False
    apart = np.abs(np.subtract(then.mean, now.mean)) / now.std
    return bool((apart < 1e-6).all() and np.allclose(then.std, now.std, rtol=1e-6, atol=0))
