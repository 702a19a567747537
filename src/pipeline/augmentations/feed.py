"""An augmentation at work: what a loader calls for a batch of training images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.augmentations.draws import Draws
from pipeline.contracts import Augmentation
from pipeline.errors import UserError
from pipeline.models import Shapes
from pipeline.raised import in_words
from pipeline.spec import choice, is_shipped

TRIED = 64  # images; what is random in every 20th is seen among them


@dataclass(frozen=True)
class Augment:
    """An augmentation and the seed of its draws; a worker process can be given one."""

    augmentation: Augmentation
    seed: int

    def __call__(self, x: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
        """Images x (B, H, W, C), as stored, which are the training examples `rows` (B,), as they are in an epoch."""
        return self.augmentation.augmented(x, Draws(self.seed, epoch, rows))


def augment_of(augmentation: Augmentation, seed: int, shapes: Shapes, x: np.ndarray) -> Augment:
    """What augments images like x (N, H, W, C). Raises UserError for examples that are none, and for one that fails."""
    named = f"augmentation={choice(augmentation)}"
    try:
        image = shapes.image
    except ValueError as error:
        raise UserError(f"{named}: {error}") from error
    augmentation.check(image)
    found = Augment(augmentation, seed)
    if not is_shipped(augmentation):
        _try(found, x[:TRIED], named)
    return found


def _try(augment: Augment, x: np.ndarray, named: str) -> None:
    """Refuse an augmentation of the user's own whose images are none, or depend on more than their draws."""
    rows = np.arange(len(x))
    try:
        together, *again = (augment(x.copy(), rows, 0) for _ in range(4))
        alone = [augment(x[row : row + 1].copy(), rows[row : row + 1], 0) for row in rows]
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{named}: fails on {x.shape} {x.dtype}: {in_words(error)}") from error
    for made, given in zip([together, *again, *alone], [*[x] * 4, *np.split(x, len(x))], strict=True):
        if not isinstance(made, np.ndarray) or (made.shape, made.dtype) != (given.shape, given.dtype):
            is_array = isinstance(made, np.ndarray)
            what = f"{made.shape} {made.dtype}" if is_array else f"a {type(made).__name__}"
            raise UserError(f"{named}: turns images {given.shape} {given.dtype} into {what}; keep shape and dtype")
    if not np.array_equal(together, np.concatenate(alone)):
        raise UserError(
            f"{named}: makes other images in a batch than of each image alone; take all random numbers from draws"
        )
    if not all(np.array_equal(together, other) for other in again):
        raise UserError(f"{named}: makes other images from the same draws; take all random numbers from draws")
