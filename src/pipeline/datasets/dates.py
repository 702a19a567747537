"""Dates as people write them, to be written as ISO 8601 has them: `the third of March 1987` is 1987-03-03."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import ClassVar

import numpy as np

from pipeline.datasets.paired import Pair, Paired
from pipeline.errors import UserError
from pipeline.spec import spec

FIRST, LAST = date(1800, 1, 1), date(2099, 12, 31)
MONTHS = tuple(
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ORDINALS = tuple(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "  # noqa: SIM905
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth".split()
)
NUMBERS = tuple(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "  # noqa: SIM905
    "eighteen nineteen".split()
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def ordinal(day: int) -> str:
    """`third`, `twenty-first`."""
    if day <= len(ORDINALS):
        return ORDINALS[day - 1]
    return "thirtieth" if day == 30 else f"{TENS[day // 10 - 2]}-{ORDINALS[day % 10 - 1]}"


def short_ordinal(day: int) -> str:
    """`3rd`, `21st`."""
    ending = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


def number(value: int) -> str:
    """Below 100: `seven`, `eighty-seven`."""
    if value <= len(NUMBERS):
        return NUMBERS[value - 1]
    tens = TENS[value // 10 - 2]
    return tens if value % 10 == 0 else f"{tens}-{NUMBERS[value % 10 - 1]}"


def year(value: int) -> str:
    """`nineteen eighty-seven`, `nineteen oh five`, `nineteen hundred`, `two thousand and five`."""
    century, rest = divmod(value, 100)
    if century == 20 and rest < 10:
        return "two thousand" if not rest else f"two thousand and {number(rest)}"
    if not rest:
        return f"{number(century)} hundred"
    return f"{number(century)} {'oh ' if rest < 10 else ''}{number(rest)}"


SPELLINGS: tuple[Callable[[date, str], str], ...] = (  # of a date and its month's name
    lambda day, month: f"the {ordinal(day.day)} of {month} {day.year}",
    lambda day, month: f"the {short_ordinal(day.day)} of {month} {day.year}",
    lambda day, month: f"{day.day} {month} {day.year}",
    lambda day, month: f"{month} {day.day}, {day.year}",
    lambda day, month: f"{month[:3]} {short_ordinal(day.day)}, {day.year}",
    lambda day, month: f"{WEEKDAYS[day.weekday()]}, {day.day} {month} {day.year}",
    lambda day, _: f"{day.day}.{day.month}.{day.year}",
    lambda day, month: f"{month} the {ordinal(day.day)}, {year(day.year)}",
)


@spec
class Dates(Paired):
    """Days from 1800 to 2099, each in one of eight spellings; no day is in two splits, in whatever spelling."""

    days: ClassVar[int] = (LAST - FIRST).days + 1

    def __post_init__(self) -> None:
        if self.count > self.days:
            raise UserError(
                f"dataset.train={self.train} with dataset.validation={self.validation} and dataset.test={self.test}: "
                f"there are {self.days:,} days from {FIRST.year} to {LAST.year}; ask for no more in all"
            )

    def pairs(self) -> Sequence[Pair]:
        """Days at random, and how each is spelt."""
        generator = np.random.default_rng(0)
        numbers = generator.permutation(self.days)[: self.count]
        spelt = generator.integers(0, len(SPELLINGS), self.count)
        days = [FIRST + timedelta(days=int(number)) for number in numbers]
        return [
            (SPELLINGS[which](day, MONTHS[day.month - 1]), day.isoformat())
            for day, which in zip(days, spelt, strict=True)
        ]
