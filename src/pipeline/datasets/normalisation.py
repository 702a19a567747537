"""Examples with mean 0 and standard deviation 1 in each channel, by the training examples' statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

BATCH = 1 << 22  # numbers of which a float64 copy is made at once: 32 MiB
SHOWN_CHANNELS = 4  # in a message
LEAST_SPREAD = float(np.finfo(np.float32).tiny)  # a channel whose values differ by less is constant


@dataclass(frozen=True)
class Normalisation:
    """`mean` and `std` of each channel (the last axis of x), once x is divided by its dataset's scale.

    A constant channel has the `std` 1: all of it becomes 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def measured(cls, x: np.ndarray, scale: float | None, batch: int = BATCH) -> Normalisation:
        """Of examples x (N, ..., C), as they are stored: in float64, over batches of about `batch` numbers.

        Batches are joined as in Chan, Golub and LeVeque, "Algorithms for computing the sample variance", Am. Stat. 37
        (1983), eq. 2.1. The deviation is that of the whole population, NumPy's `std`.
        """
        rows = max(1, batch // max(1, int(np.prod(x.shape[1:]))))
        count, mean, squares = 0, np.zeros(x.shape[-1]), np.zeros(x.shape[-1])
        low, high = np.full(x.shape[-1], np.inf), np.full(x.shape[-1], -np.inf)
        for first in range(0, len(x), rows):
            part_CM = np.moveaxis(x[first : first + rows], -1, 0).reshape(x.shape[-1], -1).astype(np.float64, order="C")
            low, high = np.minimum(low, part_CM.min(axis=1)), np.maximum(high, part_CM.max(axis=1))
            more, its_mean = part_CM.shape[1], part_CM.mean(axis=1)
            part_CM -= its_mean[:, None]
            apart = its_mean - mean
            squares += np.square(part_CM, out=part_CM).sum(axis=1) + apart**2 * (count * more / (count + more))
            count += more
            mean += apart * (more / count)
        constant = high - low < LEAST_SPREAD
        divisor = 1.0 if scale is None else float(scale)
        mean = np.where(constant, low, mean) / divisor
        std = np.where(constant, 1.0, np.sqrt(squares / count) / divisor)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    @classmethod
    def of_card(cls, card: Mapping[str, Any]) -> Normalisation | None:
        """Of a saved model's card; None where its examples were not normalised, or the card is damaged."""
        try:
            found = card["normalisation"]
            return cls(tuple(map(float, found["mean"])), tuple(map(float, found["std"])))
        except (KeyError, TypeError, ValueError):
            return None

    def plain(self) -> dict[str, list[float]]:
        """As cards and receipts keep it."""
        return {"mean": list(self.mean), "std": list(self.std)}

    def shown(self) -> str:
        """In few words, for a message: of many channels the first ones."""
        mean, std = (
            ", ".join(f"{one:.6g}" for one in each[:SHOWN_CHANNELS]) + (", ..." if len(each) > SHOWN_CHANNELS else "")
            for each in (self.mean, self.std)
        )
        return f"mean {mean} and standard deviation {std}"

    def steps(self, scale: float | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted from an example as it is stored and what it is then divided by: float64, of its `shape`.

        As large as an example and not (C,): over three numbers at a time NumPy takes several times as long.
        """
        divisor = 1.0 if scale is None else float(scale)
        mean, std = (np.broadcast_to(np.array(each) * divisor, shape).copy() for each in (self.mean, self.std))
        return mean, std

    def of_rounded(self, x: np.ndarray) -> np.ndarray:
        """Scaled x, already rounded to the dtype of its model, as an exported program normalises it: all in that dtype.

        A run subtracts in float64 (`normalised`), and so loses less of a channel whose spread is far below its mean.
        """
        mean, std = (np.array(each, x.dtype) for each in (self.mean, self.std))
        return (x - mean) / std


def normalised(x: np.ndarray, subtracted: np.ndarray, divisor: np.ndarray, dtype: str) -> np.ndarray:
    """x, one example or a batch, in `dtype`: subtracted in float64, and rounded before it is divided."""
    made = np.empty(x.shape, dtype)
    np.subtract(x, subtracted, out=made, dtype=np.float64, casting="same_kind")
    made /= divisor.astype(dtype)
    return made
