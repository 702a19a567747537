"""The tests in parts, for machines that run one part at a time: `--part 2/6`."""

from __future__ import annotations

from collections.abc import Sequence


def part_of(text: str) -> tuple[int, int]:
    """`2/6` as (2, 6): parts are counted from 0. Raises ValueError."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise ValueError(f"--part {text}: write a part and the number of parts, such as 0/6 to 5/6")
    return int(number), int(count)


def chosen(files: Sequence[str], number: int, count: int) -> list[bool]:
    """Which tests belong to the part, by the file of each: whole files are dealt out in turn, since a file's tests
    share runs. The files come longest first, so that the parts take about the same time."""
    place = {name: index for index, name in enumerate(dict.fromkeys(files))}
    return [place[name] % count == number for name in files]
