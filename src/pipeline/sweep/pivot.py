"""The cells of a sweep as rows and columns, and which of them is the best."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property

from pipeline.experiment.settings import Sweep
from pipeline.runs import listing
from pipeline.runs.better import better_of
from pipeline.runs.judged_on import GIVEN_OTHERWISE, examples_of, says_which
from pipeline.runs.peaks import PEAKS
from pipeline.runs.result import judged_by
from pipeline.spec import group_of
from pipeline.sweep import texts
from pipeline.sweep.entries import VALIDATION, Entry
from pipeline.sweep.ledger import headlines, undeclared
from pipeline.sweep.plan import Cell

MOST_COLUMNS = 6  # of values of the last key; more than that go down the page
Position = tuple[tuple[str, ...], str]  # the values down the page, the value across it
MOST_METRICS = 4  # beside each other, where none of them says what is better
# What says which data are tested, where no receipt does: cells that differ in it are not compared. A number says how
# many are trained on; of the share that holds the judging examples out, a number says which these are, too.
DATA = (*listing.DATA, "dataset.train", "dataset.test")
NUMBER = re.compile(r"[\d.e+-]+")
SIZES = "stage.batches"  # of stage=inference
FOLDS = "stage.folds"  # of cells that train each fold: of unlike numbers of them they are not compared
REPEATS = "seed"  # cells that differ in it alone are repetitions: shown as a median and a range


class Pivot:
    """Cells by their swept keys: the last key's values become columns where they are few.

    `name` is the metric that is shown, `judge` the one that the best is chosen by: that of `by`, else that of
    the validation data where every result has it, so that the test data choose nothing. `beside`: what the machine took
    for it, the first metric of kind `time` that every result has and peak memory; `below`, where a key goes across.
    Cells that declare nothing of their metrics have those side by side.
    """

    def __init__(self, found: Sequence[Entry], by: Sweep | None = None) -> None:
        self.by = by or Sweep()
        self.makes = any(texts.made(entry.cell) for entry in found)
        first = next((entry.metrics for entry in found if entry.metrics), {})
        names = headlines(next((entry.cell for entry in found if entry.cell.experiment), found[0].cell))
        self.losses_differ = any(group_of(key) == "loss" for key in found[0].cell.swept)
        comparable = {name: one for name, one in first.items() if not (self.losses_differ and name.endswith("/loss"))}
        self.name = judged_by(comparable, *names)
        self.known = list(dict.fromkeys(name for entry in found for name in undeclared(entry.metrics)))
        self.chosen = any(self.by.best in entry.metrics for entry in found)
        if self.chosen:
            self.name = str(self.by.best)
        self.several = bool(self.known) and not any(self.name in entry.metrics for entry in found)
        self.name = self.known[0] if self.several else self.name
        validation = self.name if self.chosen else self.name.replace("test/", VALIDATION, 1)
        results = [entry.metrics for entry in found if self.name in entry.metrics]
        self.judge = validation if all(validation in metrics for metrics in results) else self.name
        self.declared = results[0] if results else {}
        self.seeds_alone = list(found[0].cell.swept) == [REPEATS]
        keys = [key for key in found[0].cell.swept if key != REPEATS]
        across = keys[-1] if len(keys) > 1 and not self.several else None
        if across and len(_values(found, across)) > MOST_COLUMNS:
            across = None
        self.across = across
        self.down = [key for key in keys if key != across] or list(found[0].cell.swept)[:1]
        self.columns = _values(found, across) if across else [""]
        others = (one for one in self.declared.values() if one.name != self.name)
        everywhere = [one for one in others if all(one.name in metrics for metrics in results)]
        timed = [one.name for one in everywhere if one.kind == "time"]
        peaks = [one.name for one in everywhere if one.name in PEAKS]
        also = tuple(self.known[1:MOST_METRICS] if self.several else [*timed[:1], *peaks[-1:]])
        self.beside: tuple[str, ...] = () if across else also
        self.below: tuple[str, ...] = also if across else ()
        self.title = "metrics" if self.several and self.beside else self.named(self.name)
        self.positions: dict[Position, list[Entry]] = {}
        for entry in found:
            self.positions.setdefault(self._position(entry.cell), []).append(entry)
        self.rows = list(dict.fromkeys(row for row, _ in self.positions))
        self.judged_on = {position: self._data(position) for position in self.positions}

    def at(self, row: tuple[str, ...], column: str) -> list[Entry]:
        """The repetitions in one cell of the table."""
        return self.positions.get((row, column), [])

    def value(self, row: tuple[str, ...], column: str, name: str | None = None) -> list[float]:
        """The main metric (or another) of each repetition that has one."""
        name = name or self.name
        return [entry.metrics[name].value for entry in self.at(row, column) if name in entry.metrics]

    def words(self, position: Position) -> str:
        """A position in the words of a command: `model=cnn precision=mixed`."""
        row, column = position
        pairs = [*zip(self.down, row, strict=True), *([(self.across, column)] if self.across else [])]
        return " ".join(f"{key}={value}" for key, value in pairs)

    def by_seed(self, position: Position, name: str | None = None) -> dict[str, float]:
        """The judging metric (or another) of each repetition that has one, by its seed."""
        name = name or self.judge
        having = [entry for entry in self.at(*position) if name in entry.metrics and REPEATS in entry.cell.swept]
        return {entry.cell.swept[REPEATS]: entry.metrics[name].value for entry in having}

    def best(self) -> set[Position]:
        """Where the best median of the judging metric on the same data stands, several positions where they are equal.

        No seed is best, nor any value of a metric of which neither more nor less is better. A position of which a
        repetition has failed is left out: the median of those that went well would flatter.
        """
        better = self.better()
        if self.seeds_alone or better == "none":
            return set()
        medians: dict[tuple[str, ...], dict[Position, float]] = {}
        for position in ((row, column) for row in self.rows for column in self.columns if self.value(row, column)):
            if position in self.partly_lost:
                continue
            values = self.value(*position, self.judge)
            if any(map(math.isnan, values)):  # of a metric of the user's: neither more nor less than anything
                continue
            medians.setdefault(self.judged_on[position], {})[position] = statistics.median(values)
        choose = max if better == "max" else min
        several = [found for found in medians.values() if len(found) > 1]
        return {where for found in several for where, median in found.items() if median == choose(found.values())}

    @cached_property
    def partly_lost(self) -> set[Position]:
        """Where some repetitions have a value and others came to none."""
        found = {where: [self.judge in entry.metrics for entry in entries] for where, entries in self.positions.items()}
        return {where for where, have in found.items() if any(have) and not all(have)}

    def _data(self, position: Position) -> tuple[str, ...]:
        """Which data the cells of a position are judged by, of those that the grid goes over, if the user compares
        none: by the receipts, of the seed that all positions have, else by the settings."""
        swept = self.at(*position)[0].cell.swept
        if self.chosen:
            return ()
        folds = self.folds_of(position)
        return self._of_data(position, swept) + (() if folds is None else (f"{FOLDS}={folds}",))

    def folds_of(self, position: Position) -> int | None:
        """How many folds the cells of a position train; None of other cells. With more of them each trains on more."""
        experiment = self.at(*position)[0].cell.experiment
        if experiment is None or experiment.stage.folds_by is None:
            return None
        return int(getattr(experiment.stage, experiment.stage.folds_by))

    def _of_data(self, position: Position, swept: Mapping[str, str]) -> tuple[str, ...]:
        by_receipt = self._examples.get(position)
        if by_receipt is not None and not any(key in GIVEN_OTHERWISE for key in swept):
            return (by_receipt,)  # whatever is swept: a recipe or a saved run may name the data, too
        if not says_which(swept):
            return ()
        named = tuple(swept[key] for key in DATA if key in swept and not NUMBER.fullmatch(swept[key]))
        held_out = ("dataset.test", "dataset.validation") if self.judge.startswith(VALIDATION) else ("dataset.test",)
        return named + tuple(f"{key}={swept[key]}" for key in held_out if key in swept)

    @cached_property
    def _examples(self) -> dict[Position, str]:
        """Of each position that has a value what tells its judging examples apart; nothing where one does not say it.

        Other seeds have other examples for validation, so that all are of one seed.
        """
        by_seed = {
            position: {entry.cell.swept.get(REPEATS, ""): entry for entry in entries if self.judge in entry.metrics}
            for position, entries in self.positions.items()
        }
        having = {position: entries for position, entries in by_seed.items() if entries}
        first = next(iter(having.values()), {})
        seed = next((seed for seed in first if all(seed in entries for entries in having.values())), None)
        if seed is None:
            return {}
        found = {position: examples_of(entries[seed].run, self.judge) for position, entries in having.items()}
        known = {position: examples for position, examples in found.items() if examples is not None}
        return known if len(known) == len(found) else {}

    @property
    def alike(self) -> str:
        """What cells share that are compared, where not all are."""
        valued = [on for position, on in self.judged_on.items() if self.value(*position, self.judge)]
        folds = {one for on in valued for one in on if one.startswith(FOLDS)}
        data = {tuple(one for one in on if not one.startswith(FOLDS)) for on in valued}
        if len(folds) < 2:
            return "on the same data"
        return "on the same data with as many folds" if len(data) > 1 else "with as many folds"

    @property
    def by_dataset(self) -> bool:
        """Whether the grid goes over data, on each of which another is the best."""
        return len({on for position, on in self.judged_on.items() if self.value(*position, self.judge)}) > 1

    def better(self) -> str:
        """`min`, `max` or `none`: what is better of the judging metric. Different losses are not compared."""
        if self.by_different_losses or self.sizes_timed(self.judge) or (self.makes and not self.chosen):
            return "none"
        declared = self.declared[self.judge].direction if self.declared else "none"
        return better_of(declared, self.by.direction if self.chosen else None)

    @property
    def by_different_losses(self) -> bool:
        """Whether the judging metric is a loss, and cells have different ones."""
        return self.losses_differ and not self.chosen and self.judge.endswith("/loss")

    def sizes_timed(self, name: str) -> list[str]:
        """The stage.batches of the cells, where a metric is of the smallest size of each, or of the quickest, and they
        have timed different ones; else nothing."""
        entries = [entry for found in self.positions.values() for entry in found if name in entry.metrics]
        found = list(dict.fromkeys(entry.cell.swept[SIZES] for entry in entries if SIZES in entry.cell.swept))
        return found if name.startswith(listing.OF_SIZES) and len(found) > 1 else []

    def kind(self, name: str) -> str:
        """The kind that a metric was declared with."""
        return self.declared[name].kind if name in self.declared else "result"

    def named(self, name: str) -> str:
        """A metric's name with its unit."""
        unit = self.declared[name].unit if name in self.declared else ""
        return f"{name} ({unit})" if unit else name

    def _position(self, cell: Cell) -> Position:
        return tuple(cell.swept.get(key, "") for key in self.down), cell.swept[self.across] if self.across else ""


def _values(found: Sequence[Entry], key: str) -> list[str]:
    return list(dict.fromkeys(entry.cell.swept.get(key, "") for entry in found))
