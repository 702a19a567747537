"""Conditions on saved runs, `stage.where=model=cnn`: which runs they choose, and what none of the runs has."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pipeline.cli.conf_path import conf_path
from pipeline.cli.help import choices
from pipeline.errors import UserError, cut, nearest
from pipeline.runs.choices import class_and_settings, names_are_users
from pipeline.runs.choices import text_of as setting_text
from pipeline.runs.listing import BY_NAME, MERGED, TRACKERS, Listed, choice_of
from pipeline.spec import is_number

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
PLAIN_NAME = r"[^=<>!\s]+(?: +[^=<>!\s]+)*"
BY_THEMSELVES = {  # what is neither, and has its own key
    "status": "stage.status=finished chooses by it",
    "state": "stage.status=finished chooses by it",
    "age": "stage.newer=7d and stage.older=7d choose by it",
}


def matching(runs: Iterable[Listed], where: Iterable[str]) -> list[Listed]:
    """Those whose settings and metrics are as each condition says: `model=cnn`, `test/accuracy>0.97`.

    Raises UserError for what is not a condition.
    """
    every = list(runs)
    kept = every
    for condition in where:
        key, sign, wanted = condition_of(condition, every)
        kept = [run for run in kept if run.has(key) and _agrees(run.value(key), sign, wanted)]
    return kept


def condition_of(text: str, runs: Iterable[Listed]) -> tuple[str, str, str]:
    """Name, sign and value of a condition. A metric of these runs may have a sign in its name: `test/AP@IoU=0.5`.

    Raises UserError.
    """
    measured = {name for run in runs for name in run.metrics if text.lstrip().startswith(name)}
    names = [*map(re.escape, sorted(measured, key=len, reverse=True)), PLAIN_NAME]
    found = re.fullmatch(rf"\s*({'|'.join(names)})\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*", text)
    if not found:
        raise UserError(f"stage.where={cut(text)}: not a condition; write model=cnn, seed!=0 or test/accuracy>0.97")
    key, sign, wanted = found[1], found[2], found[3]
    if sign in COMPARISONS and not is_number(wanted):
        raise UserError(f"stage.where={cut(text)}: {wanted!r} is not a number; = and != compare texts")
    return key, sign, wanted


def check_where(runs: Sequence[Listed], where: Iterable[str]) -> None:
    """Refuse a condition on what no run has, or on a choice whose name no run keeps. Raises UserError."""
    for condition in where:
        name, _, wanted = condition_of(condition, runs)
        asked = f"stage.where={condition}"
        _check_kept(asked, name, wanted)
        check_known(asked, name, runs)


def _check_kept(asked: str, group: str, wanted: str) -> None:
    """Refuse a choice that runs call by another name (`momentum` is `sgd` with other settings). Raises UserError."""
    found = class_and_settings(group, wanted) if group in choices([conf_path()]) else None
    if found is None or group in BY_NAME or found[0] in TRACKERS:
        return
    settings, called = found[1], choice_of(found[0])
    if called != wanted:
        own = [f"{group}={called}"] if group not in MERGED else []
        use = " and ".join([*own, *(f"{group}.{key}={setting_text(value)}" for key, value in settings.items())])
        raise UserError(f"{asked}: a run keeps the settings of this choice and not its name; it is {use}")


def check_known(key: str, name: str, runs: Sequence[Listed]) -> None:
    """Refuse the name of a setting or metric that no run has; `key`: where it was asked for. Raises UserError."""
    if name in MERGED:
        settings = sorted({one for run in runs for one in run.config if one.startswith(f"{name}.")})
        use = cut(", ".join(settings), 300) or f"{name}.<key>"
        raise UserError(f"{key}: a run keeps the settings of {name} and not the name of its choice; use {use}")
    if runs and not any(run.has(name) for run in runs):
        raise UserError(f"{key}: no run has a setting or metric {name}{_near(name, runs)}")


def _near(key: str, runs: Iterable[Listed]) -> str:
    """The names that are like `key`: all of them are too many for a message."""
    if key in BY_THEMSELVES:
        return f"; {BY_THEMSELVES[key]}"
    names = sorted({name for run in runs for name in (*run.metrics, *run.config)})
    near = difflib.get_close_matches(key, names, n=3)
    return f" (did you mean {' or '.join(near)}?)" if near else "; stage=show run=<id> lists those of a run"


def misspelt(runs: Sequence[Listed], where: Iterable[str]) -> list[str]:
    """A line for each condition whose text no run has and that is like one that a run has.

    It may be meant all the same: `cuda:1` is like `cuda:0`. A choice of a group, or a number, does not count.
    """
    return [line for condition in where if (line := _misspelt(condition, runs)) is not None]


def lacking(runs: Sequence[Listed], where: Sequence[str]) -> list[str]:
    """A line for each setting for lack of which runs are not among the chosen, though they chose the same of its group.

    Mostly it did not exist yet. It may also be one that is there no longer. Where what it stands in is null, or a
    mapping of the user's names, another version would lack it, too.
    """
    found = []
    for place, condition in enumerate(where):
        key = condition_of(condition, runs)[0]
        group, node = key.partition(".")[0], key.rpartition(".")[0]
        if names_are_users(node):
            continue
        having = {_choice(run, group) for run in runs if key in run.config}
        others = matching(runs, [*where[:place], *where[place + 1 :]])
        lack = [run for run in others if not run.has(key) and (node == group or not run.has(node))]
        left = [run for run in lack if _has_group(run, group) and _choice(run, group) in having]
        if left:
            found.append(f"{len(left):,} left out for lack of {key}, perhaps saved by a version without it")
    return found


def _has_group(run: Listed, group: str) -> bool:
    return any(key.startswith(f"{group}.") for key in run.config)


def _choice(run: Listed, group: str) -> Any:
    """What a run chose of a group, which says what settings it could have; of a group of one class nothing."""
    return None if group in BY_NAME else run.config.get(group)


def _misspelt(condition: str, runs: Sequence[Listed]) -> str | None:
    key, sign, wanted = condition_of(condition, runs)
    values = [run.value(key) for run in runs if run.has(key)]
    known = choices([conf_path()]).get(key, ())
    if sign not in ("=", "==") or is_number(wanted) or wanted in known or any(_same(one, wanted) for one in values):
        return None
    texts = sorted({value for value in values if isinstance(value, str)})
    near = nearest(wanted, texts) or next((one for one in texts if _is_class(one, wanted)), None)
    if near is None:
        return None
    there = cut(", ".join(texts), 300)
    return f"stage.where={condition}: no run has that (did you mean {near}?); {key} of these runs: {there}"


def _is_class(text: str, name: str) -> bool:
    """Whether a text is a class of the user's (`lab.a.Net`) with this name, in whatever case."""
    return text.lower().endswith(f".{name.lower()}")


def _agrees(value: Any, sign: str, wanted: str) -> bool:
    if sign in COMPARISONS:
        return isinstance(value, int | float) and COMPARISONS[sign](value, float(wanted))
    return _same(value, wanted) is (sign != "!=")


def _same(value: Any, wanted: str) -> bool:
    """Whether a value is what a text means: `null`, `true`, a number however it is written, `nan`, `[8, 8]`, a word."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return is_number(wanted) and (value == float(wanted) or (_is_nan(value) and _is_nan(float(wanted))))
    return setting_text(value).replace(" ", "").lower() == wanted.replace(" ", "").lower()


def _is_nan(value: float) -> bool:
    return isinstance(value, float) and math.isnan(value)
