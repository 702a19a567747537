"""Examples that your code gives: a torch Dataset, a tf.data.Dataset, or anything else that yields pairs (x, y).

They are read once, into memory, before training: what is drawn at random in them is drawn once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from pipeline.datasets import Data
from pipeline.datasets.own import TEST, Own, Shares, channels_last, data_of
from pipeline.datasets.split import Share
from pipeline.errors import Readable, UserError, cut, raised
from pipeline.spec import check_own, named_object, spec

INFINITE, UNKNOWN = -1, -2  # tf.data.INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
STREAM = ("torch.utils.data.dataset", "IterableDataset")


@spec
class Examples(Own):
    """`train`, `test`: the dotted names of what gives the examples, called with `arguments`.

    `keys`: where x and y are in an example that is a mapping. `layout`: "channels_first" for images (C, H, W).
    `targets`: y is a class, or "numbers": a real number or several (D,).
    `classes`: their names, in the order of their numbers. `validation`: the share of the training examples held out,
    and `test_share` for the test where `test` is null.
    """

    train: str | None = None
    test: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    keys: tuple[str, str] = ("image", "label")
    layout: Literal["channels_last", "channels_first"] = "channels_last"
    classes: tuple[str, ...] = ()
    test_share: Share = TEST

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            target = getattr(self, name)
            if target is not None:
                check_own(target, f"dataset.{name}")

    @property
    def user_code(self) -> tuple[str, ...]:
        """The user's code that it runs."""
        return tuple(name for name in (self.train, self.test) if name)

    def load(self, root: Path, seed: int) -> Data:
        """Call the user's code and read all that it gives. Raises UserError for what is not a pair of arrays."""
        if self.train is None:
            raise UserError("dataset.train=null: name a function of yours that gives a Dataset, as mine.train")
        named = {"train": self.train} | ({} if self.test is None else {"test": self.test})
        parts = {name: self._read(target, f"dataset.{name}") for name, target in named.items()}
        shares = Shares(self.validation, self.test_share, "test_share")
        return data_of(parts, self.targets, self.classes, shares, seed, f"dataset.train={self.train}")

    def _read(self, target: str, key: str) -> tuple[np.ndarray, np.ndarray]:
        shown = f"{key}={target}"
        function = named_object(target, key)
        try:
            pairs = [self._pair(example, shown) for example in _each(function(**self.arguments), shown)]
        except Exception as error:  # the user's code may raise anything
            if isinstance(error, Readable):
                raise
            raise raised(shown, error) from error
        if not pairs:
            raise UserError(f"{shown}: gives no example")
        for at, what in enumerate(("examples", "targets")):
            shapes = sorted({pair[at].shape for pair in pairs})
            if len(shapes) > 1:
                raise UserError(
                    f"{shown}: gives {what} of the shapes {shapes[0]} and {shapes[1]}; give all the same shape"
                )
        x, y = (np.stack([pair[at] for pair in pairs]) for at in (0, 1))
        return (channels_last(x, shown) if self.layout == "channels_first" else x), y

    def _pair(self, example: Any, shown: str) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(example, Mapping):
            missing = [key for key in self.keys if key not in example]
            if missing:
                raise UserError(f"{shown}: an example has {', '.join(map(str, example))}; name x and y by dataset.keys")
            example = tuple(example[key] for key in self.keys)
        if not isinstance(example, (tuple, list)) or len(example) != 2:
            raise UserError(f"{shown}: gives a {type(example).__name__}; give pairs (x, y)")
        return np.asarray(example[0]), np.asarray(example[1])


def is_endless(made: Any) -> bool:
    """Whether a tf.data.Dataset has no end. Behind a filter TensorFlow does not know, and what is filtered says it.

    What takes some of them, by number or while something holds, may end.
    """
    count, kind = int(made.cardinality()), type(getattr(made, "_dataset", made)).__name__  # TensorFlow 1's has one
    if count != UNKNOWN or kind.startswith("_Take"):
        return count == INFINITE
    inputs = made._inputs()
    endless = any if kind.startswith("_Concatenate") else all
    return bool(inputs) and endless(map(is_endless, inputs))


def _is_stream(made: Any) -> bool:
    """Whether it is torch's IterableDataset, which has a __getitem__ that raises. By name: torch may not be here."""
    return any((one.__module__, one.__name__) == STREAM for one in type(made).__mro__)


def _each(made: Any, shown: str) -> Iterable[Any]:
    """Every example: of a tf.data.Dataset as arrays, of a torch Dataset by its number."""
    if isinstance(made, Mapping):
        keys = cut(", ".join(map(str, made)), 200)
        raise UserError(f"{shown}: gives a {type(made).__name__} of {keys}; give pairs (x, y), as list(zip(x, y))")
    if getattr(made, "batch_sampler", None) is not None:
        raise UserError(f"{shown}: gives a {type(made).__name__}, which makes batches; give its Dataset")
    if hasattr(made, "as_numpy_iterator"):
        if is_endless(made):
            raise UserError(f"{shown}: repeats without end; leave out its repeat(), or end it by take()")
        return made.as_numpy_iterator()
    if hasattr(made, "__len__") and hasattr(made, "__getitem__") and not _is_stream(made):
        return (made[number] for number in range(len(made)))
    if isinstance(made, Iterable):
        return made
    raise UserError(f"{shown}: gives a {type(made).__name__}; give a torch Dataset, a tf.data.Dataset or pairs (x, y)")
