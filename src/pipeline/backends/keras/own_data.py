"""The splits of stage=keras: what is wrong with one is said before `fit` meets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.backends.keras.fit import keras
from pipeline.datasets.examples import is_endless
from pipeline.errors import UserError

PARTS = 3  # x, y, sample_weight
BOUNDED_BY = {"train": "steps_per_epoch", "validation": "validation_steps"}  # arguments of `fit`; the test has none
TAKEN = "give a pair (x, y) of arrays, or a dataset that fit takes"


def check_splits(named: str, splits: Mapping[str, Any]) -> None:
    """Refuse a split that `fit` cannot take. `named`: the key and its value. Raises UserError."""
    for name, split in splits.items():
        wrong = _wrong(split)
        if split is None and name != "train":
            wrong = "is None; leave it out"
        if wrong:
            raise UserError(f"{named}: its {name} {wrong}")


def check_ends(named: str, splits: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuse a dataset without end that no argument of `fit` bounds: it would be read for ever. Raises UserError."""
    for name, split in splits.items():
        bound = BOUNDED_BY.get(name)
        if _has_no_end(split) and (bound is None or arguments.get(bound) is None):
            instead = "" if bound is None else f", or set stage.fit.{bound}"
            raise UserError(f"{named}: its {name} has no end; leave out its repeat(){instead}")


def check_labels(named: str, net: Any, splits: Mapping[str, Any]) -> None:
    """Refuse arrays of labels beyond the model's outputs: on JAX each has a loss of 0, and nothing says so.

    Of a compiled model whose one output and one loss, of labels, are known before the training. Raises UserError.
    """
    outputs = getattr(net, "outputs", None) or []
    loss = keras.losses.get(net.loss) if isinstance(net.loss, str) else net.loss
    if not _is_sparse(loss) or len(outputs) != 1 or outputs[0].shape[-1] is None:
        return
    classes, ignored = outputs[0].shape[-1], getattr(loss, "ignore_class", None)
    for name, split in splits.items():
        if isinstance(split, tuple) and len(split) > 1:
            labels = keras.ops.convert_to_numpy(split[1])
            beyond = labels[~((labels >= 0) & (labels < classes)) & (labels != ignored)]  # NaN is beyond, too
            if beyond.size:
                raise UserError(
                    f"{named}: its {name} has the label {beyond[0]:g}; the model's {classes} outputs are for 0 to "
                    f"{classes - 1}"
                )


def _has_no_end(split: Any) -> bool:
    if isinstance(split, keras.utils.PyDataset):
        return split.num_batches is None
    return hasattr(split, "cardinality") and is_endless(split)


def _is_sparse(loss: Any) -> bool:
    return isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or (
        loss is keras.losses.sparse_categorical_crossentropy
    )


def _wrong(split: Any) -> str | None:
    """What is wrong with a split, and what to do."""
    if split is None or isinstance(split, list):
        return f"is {'None' if split is None else 'a list'}; {TAKEN}"
    if isinstance(split, tuple) and not 1 <= len(split) <= PARTS:
        return f"has {len(split)} parts; give (x, y), or (x, y, sample_weight)"
    sizes = _sizes(split)
    if 0 in sizes:
        return "has no examples; give some"
    if len(set(sizes)) > 1:
        return f"has arrays of {' and '.join(map(str, dict.fromkeys(sizes)))} examples; give each the same"
    return None


def _sizes(split: Any) -> list[int]:
    """How many examples each of its arrays has; of a dataset how many batches, where it knows."""
    shapes: list[Any] = [getattr(one, "shape", ()) for one in keras.tree.flatten(split)]
    sizes: list[Any] = [shape[0] for shape in shapes if len(shape)]
    if not isinstance(split, tuple | dict) and not sizes:
        try:
            sizes = [len(split)]
        except (TypeError, NotImplementedError):  # endless, or only known when it has been read
            return []
    return [size for size in sizes if isinstance(size, int)]
