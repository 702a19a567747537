"""A symbol to be recalled after a distance: the first of a sequence, asked for at its end.

After the adding and copying problems of Hochreiter & Schmidhuber, "Long short-term memory", 1997, section 5, by rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from pipeline.contracts import Dataset
from pipeline.datasets import Data, Split
from pipeline.datasets.split import hash_splits
from pipeline.spec import spec
from pipeline.tasks import Task
from pipeline.tasks.recall import Recall as RecallTask

FEW = 0.01  # of the test sequences may be training sequences too, without a note


@spec
class Recall(Dataset):
    """x: a symbol, `distance` - 1 others at random from the same alphabet, and the token that asks; y: the symbol.

    `symbols`: how many there are: a guess is right once in this many. A sequence has `distance` + 1 tokens.
    """

    task: ClassVar[type[Task]] = RecallTask

    distance: PositiveInt = 16
    symbols: Annotated[int, Field(ge=2, le=60_000)] = 8
    train: PositiveInt = 20_000
    validation: Annotated[int, Field(ge=0)] = 500
    test: PositiveInt = 1_000

    def load(self, root: Path, seed: int) -> Data:
        """Draw the sequences: the test's always the same, the others by `seed`. Nothing is cached below `root`."""
        test, rest = self._drawn(np.random.default_rng(0), self.test), np.random.default_rng([seed, 1])
        train, validation = self._drawn(rest, self.train), self._drawn(rest, self.validation)
        task = RecallTask(self.distance + 1, self.symbols + 1)
        return Data(train, validation, test, task, hash_splits(train, test), notes=self._notes(train, test))

    def _notes(self, train: Split, test: Split) -> tuple[str, ...]:
        """Where the test asks for more than a sample of what was trained on."""
        seen = {sequence.tobytes() for sequence in train.x}
        share = sum(sequence.tobytes() in seen for sequence in test.x) / len(test)
        if share <= FEW:
            return ()
        return (
            f"dataset.distance={self.distance} with dataset.symbols={self.symbols}: {share:.0%} of the test sequences "
            "are training sequences too; a longer distance or more symbols make such sequences rare",
        )

    def _drawn(self, generator: np.random.Generator, count: int) -> Split:
        kind = np.min_scalar_type(self.symbols)
        x = generator.integers(0, self.symbols, (count, self.distance + 1), dtype=kind)
        x[:, -1] = self.symbols
        return Split(x, x[:, 0].astype(np.int64))
