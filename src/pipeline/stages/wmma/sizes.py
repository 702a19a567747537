"""stage.sizes: what a size is, as it is written in a config."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import UserError, shown

Size = tuple[int, int, int]


def sizes_of(value: object) -> object:
    """N stands for M = N = K. Raises UserError for anything else in a list, and for a size that is given twice."""
    if not isinstance(value, tuple | list):
        return value
    found = tuple(map(_size, value))
    for number, size in enumerate(found):
        if size in found[:number]:
            raise UserError(_twice(value, size))
    return found


def _twice(given: Sequence[object], size: Size) -> str:
    """Whoever gives a size twice most likely means one product: where it may be one, the message has it."""
    one = list(given) if len(given) == 3 and all(type(each) is int for each in given) else list(size)
    name = shown(size[0] if len(set(size)) == 1 else size)
    return (
        f"stage.sizes={shown(given)}: {name} is given twice; leave one out, or write stage.sizes=[{shown(one)}] for a "
        "single product of these M, N and K"
    )


def _size(value: object) -> Size:
    numbers = tuple(value) if isinstance(value, tuple | list) else (value,) * 3
    if len(numbers) != 3 or not all(type(one) is int and one > 0 for one in numbers):
        raise UserError(f"stage.sizes: {shown(value)}: a size is N or [M, N, K], whole numbers, 1 or more")
    return numbers
