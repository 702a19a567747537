"""The space of a search: Hydra's sweep syntax as Optuna's distributions.

a,b,c or choice(a,b,c)          one of these
interval(a,b)                   a real number; an integer where both ends are written as integers
tag(log,interval(a,b))          the same on a logarithmic scale
range(a,b[,step])               an integer (or a multiple of step) from a up to, not including, b
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Transformer

from pipeline.errors import UserError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MOST_CHOICES = 1000
# Hydra hands on the ends of an interval as floats, however they are written.
WHOLE_ENDS = re.compile(r"interval\(\s*(start=)?[+-]?\d+\s*,\s*(end=)?[+-]?\d+\s*\)")

Space = dict[str, "BaseDistribution"]
Point = tuple[Any, ...]  # a value for each key of the space, in its order


def split(arguments: Sequence[str], params: Mapping[str, str], loader: Any) -> tuple[list[str], Space]:
    """What is fixed, as overrides, and what is searched, as distributions by key.

    The command line goes before `params`. Raises UserError where nothing is searched, or a range makes no sense.
    """
    parser = OverridesParser.create(config_loader=loader)
    overrides = {override.get_key_element(): override for override in parser.parse_overrides(list(arguments))}
    for override in parser.parse_overrides([f"{key}={value}" for key, value in params.items()]):
        overrides.setdefault(override.get_key_element(), override)
    fixed = [str(override.input_line) for override in overrides.values() if not override.is_sweep_override()]
    space = {key: distribution(override) for key, override in overrides.items() if override.is_sweep_override()}
    if not space:
        raise UserError("hydra/sweeper=optuna: nothing to search; give a key several values, or interval(a,b)")
    return fixed, space


def distribution(override: Override) -> BaseDistribution:
    """Optuna's word for one key's values."""
    from optuna import distributions as optuna

    value: Any = override.value()
    try:
        if isinstance(value, IntervalSweep):
            return _interval(value, whole=bool(WHOLE_ENDS.search(str(override.input_line))))
        if isinstance(value, RangeSweep) and all(
            isinstance(part, int) for part in (value.start, value.stop, value.step)
        ):
            return _range(value)
        choices = list(dict.fromkeys(islice(override.sweep_string_iterator(), MOST_CHOICES + 1)))
        if len(choices) > MOST_CHOICES:
            raise ValueError(f"more than {MOST_CHOICES:,} values; interval(a,b) is searched as a whole")
        return optuna.CategoricalDistribution(choices)
    except (ValueError, ArithmeticError) as error:
        raise UserError(f"{override.input_line}: {error}") from error


def _interval(interval: IntervalSweep, *, whole: bool) -> BaseDistribution:
    """All numbers between two, of `whole` ones the whole ones. Raises ValueError."""
    from optuna import distributions as optuna

    logarithmic = "log" in interval.tags
    low, high = float(str(interval.start)), float(str(interval.end))
    if low > high:
        raise ValueError("begins above its end; write the lower number first")
    if logarithmic and low < 1 and whole:
        raise ValueError(
            "both ends are whole numbers, so that whole numbers are searched, and a logarithmic scale of them "
            "begins at 1 or above; write a real one as interval(0.0001,1.0)"
        )
    if logarithmic and low <= 0:
        raise ValueError("a logarithmic scale begins above 0")
    if whole:
        return optuna.IntDistribution(int(low), int(high), log=logarithmic)
    return optuna.FloatDistribution(low, high, log=logarithmic)


def _range(steps: RangeSweep) -> BaseDistribution:
    """Whole numbers by steps. Raises ValueError where there are none."""
    from optuna import distributions as optuna

    counted = range(int(str(steps.start)), int(str(steps.stop)), int(str(steps.step)))
    if not counted:
        raise ValueError("no values")
    low, high = sorted((counted[0], counted[-1]))
    return optuna.IntDistribution(low, high, step=abs(counted.step))


def values_of(distribution: BaseDistribution) -> Sequence[Any] | None:
    """Every value of a key; None of real numbers."""
    choices = getattr(distribution, "choices", None)
    if choices is not None:
        return tuple(choices)
    low, high, step = (getattr(distribution, name) for name in ("low", "high", "step"))
    if distribution.single():
        return (low,)
    return range(low, high + 1, step) if isinstance(low, int) else None


def size(space: Space) -> int | None:
    """How many points a discrete space has; None where a key is a real number."""
    values = [values_of(distribution) for distribution in space.values()]
    return math.prod(len(one) for one in values if one is not None) if None not in values else None


def point_of(params: Mapping[str, Any], space: Space) -> Point:
    """The point of these values, to be compared with others."""
    return tuple(params.get(key) for key in space)


def drawn(space: Space, draw: random.Random) -> dict[str, Any]:
    """A random point of a discrete space."""
    return {key: draw.choice(values_of(distribution) or ()) for key, distribution in space.items()}


def untried(space: Space, tried: Collection[Point]) -> dict[str, Any] | None:
    """The first point of a discrete space that is not among those `tried`; None where all are."""
    every = product(*(values_of(distribution) or () for distribution in space.values()))
    point = next((one for one in every if one not in tried), None)
    return None if point is None else dict(zip(space, point, strict=True))


def as_overrides(params: Mapping[str, Any]) -> list[str]:
    """A point of the space as overrides."""
    return [f"{key}={value if isinstance(value, str) else Transformer.str(value)}" for key, value in params.items()]


def as_text(distribution: BaseDistribution) -> str:
    """A key's values as one writes them on the command line."""
    choices = getattr(distribution, "choices", None)
    if choices is not None:
        return ",".join(str(value) for value in choices)
    low, high, step = (getattr(distribution, name) for name in ("low", "high", "step"))
    if isinstance(low, int) and step != 1:
        return f"range({low},{high + step},{step})"
    text = f"interval({low!r},{high!r})"
    return f"tag(log,{text})" if getattr(distribution, "log", False) else text
