"""Digits and letters, to be written backwards: a task by rule, whose attention to the source is a diagonal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import PositiveInt

from pipeline.datasets.paired import Pair, Paired
from pipeline.errors import UserError, shown
from pipeline.experiment.settings import Text
from pipeline.spec import spec


@spec
class Reversals(Paired):
    """`shortest`, `longest`: characters of a source. `characters`: their alphabet, each once."""

    shortest: PositiveInt = 4
    longest: PositiveInt = 16
    characters: Text = "0123456789abcdefghijklmnopqrstuvwxyz"

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise UserError(f"dataset.shortest={self.shortest} with dataset.longest={self.longest}: is larger")
        if len(self.characters) < 2 or len(set(self.characters)) < len(self.characters):
            what = {0: "is empty", 1: "has one character"}.get(len(self.characters), "has a character twice")
            raise UserError(
                f"dataset.characters={shown(self.characters)}: the alphabet of the sequences {what}; "
                "give two or more, each once"
            )
        possible = sum(len(self.characters) ** length for length in range(self.shortest, self.longest + 1))
        if possible < 2 * self.count:  # drawn at random until all differ
            raise UserError(
                f"dataset.train={self.train} with dataset.validation={self.validation} and dataset.test={self.test}: "
                f"there are {possible:,} sequences of {self.shortest} to {self.longest} of {len(self.characters)} "
                f"characters; ask for {possible // 2:,} at most in all"
            )

    def pairs(self) -> Sequence[Pair]:
        """Sequences at random, each length as often, and their reversals."""
        generator, characters = np.random.default_rng(0), np.array(list(self.characters))
        found: dict[str, str] = {}
        while len(found) < self.count:
            length = generator.integers(self.shortest, self.longest + 1)
            source = "".join(characters[generator.integers(0, len(characters), length)])
            found[source] = source[::-1]
        return [*found.items()]
