"""Overrides (`key=value`, as on the command line): which keys they set, and what is wrong with them in one message.

Hydra accepts the same key twice, several values outside a grid and new keys with `+`; here the first two are refused,
the third by the specs.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString, Transformer
from hydra.errors import OverrideParseException

from pipeline.cli.conf_path import conf_path
from pipeline.cli.help import choices
from pipeline.errors import UserError, bad_choice, cut

OF_GRIDS = ("launcher", "sweeper")  # of Hydra's own part, what says who runs the cells of a grid
LONGEST_KEY = 200
VALUES_LOOKED_AT = 1000  # of a grid's choices; more of them are numbers, which no choice is


def keys_of(overrides: Sequence[str], groups: Collection[str], *, grid: bool, shows: bool = False) -> list[str]:
    """The keys that are set, without Hydra's own. `groups`: the config's. `shows`: for --cfg, which may show what is
    about grids.

    Raises UserError for a key set twice, for bad syntax, for several values of a key outside a grid, and for what the
    grammar allows and no config here has.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        if any(not isinstance(override.key_or_group, str) or not override.key_or_group for override in parsed):
            raise OverrideParseException(override=" ".join(overrides), message="an override without a key")
    except OverrideParseException as error:
        write = _in_quotes(error.override) or "key=value, with quotes round special characters ('key=\"a b\"')"
        said = f"{cut(error.override) or repr('')}: not an override{_meant(error.override)}; write {write}"
        raise UserError(said) from error
    keys = [override.key_or_group for override in parsed]
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        values = [cut(one.input_line) for one in parsed if one.key_or_group == twice[0]]
        raise UserError(
            f"{cut(twice[0])}: set {len(values)} times ({', '.join(values)}); give one value, or a,b with -m"
        )
    for override in parsed:
        text = cut(override.input_line)
        if override.is_sweep_override() and not grid:
            raise UserError(f"{text}: several values; add -m to run each of them, or write a list as key=[a,b]")
        if is_hydras(override.key_or_group):
            _check_hydras(override.key_or_group, text, grid=grid or shows)
        if override.key_or_group.partition(".")[0] == "sweep" and not grid:
            raise UserError(f"{text}: this is for grids; add -m")
        _check_word(override, text, groups)
    return [key for key in keys if not is_hydras(key)]


def _meant(text: str) -> str:
    """A hint, where a word alone is a choice of a group or a flag."""
    if text in ("help", "h"):
        return " (did you mean --help?)"
    groups = [group for group, found in choices([conf_path()]).items() if text in found and "/" not in group]
    return f" (did you mean {' or '.join(f'{group}={text}' for group in groups)}?)" if groups else ""


def _in_quotes(text: str) -> str | None:
    """A key's value in the quotes that Hydra's grammar wants (of letters beyond ASCII, too) and the shell's around
    them; None where quotes alone do not mend it."""
    key, _, value = text.partition("=")
    quoted = f'{key}="{value}"'
    if "." not in key or len(text) > LONGEST_KEY or set(value) & set("=\"'\\[]{}"):
        return None
    try:
        OverridesParser.create().parse_overrides([quoted])
    except OverrideParseException:
        return None
    return shlex.quote(quoted)


def is_hydras(key: str) -> bool:
    """Whether a key is of Hydra's own part of a config."""
    return re.split(r"[./]", key)[0] == "hydra"


def _check_word(override: Override, text: str, groups: Collection[str]) -> None:
    """Refuse what Hydra takes without a word, or with its own error in the middle of composing."""
    key = override.key_or_group
    if len(key) > LONGEST_KEY:
        raise UserError(f"{cut(key)}: no such key")
    if override.is_delete() and key.count(".") < 2:  # else an entry of a mapping, such as stage.rungs.NAME
        raise UserError(f"{text}: removes a key that every experiment needs; give it a value instead")
    if not override.is_sweep_override() and not override.is_add() and override.value() == {}:
        raise UserError(f"{text}: an empty mapping changes nothing; ~{cut(key)}.NAME removes an entry")
    group = key in groups or key == "experiment" or "/" in key
    if group and (override.is_add() or override.is_force_add()) and override.package is None:
        raise UserError(f"{text}: this group already has a choice; write {cut(key)}=<choice>")
    values = _values(override, text)
    for value in values if group else ():
        if not isinstance(value, str) or "${" in value or len(value) > LONGEST_KEY or value.endswith(".yaml"):
            raise bad_choice(key, value, choices([conf_path()]).get(key, []))


def _values(override: Override, text: str) -> list[Any]:
    """The value, or the first values of a grid. Of a glob none: what it stands for, the group has."""
    if not override.is_sweep_override():
        return [override.value()]
    if not override.is_discrete_sweep() or isinstance(override.value(), Glob):
        return []
    try:
        found = list(islice(override.sweep_iterator(Transformer.identity), VALUES_LOOKED_AT))
    except ValueError as error:
        raise UserError(f"{text}: {error}") from error
    return [value.text if isinstance(value, QuotedString) else value for value in found]


def _check_hydras(key: str, text: str, *, grid: bool) -> None:
    """Refuse an override of Hydra's own part that this program does not use. Raises UserError."""
    if key == "hydra.mode":
        raise UserError(f"{cut(text)}: cannot be set; -m makes a grid of the values")
    group, _, choice = key.partition("/")
    parts = key.split(".")
    of_grids = (group == "hydra" and choice in OF_GRIDS) or (
        parts[0] == "hydra" and parts[1:2] and parts[1] in OF_GRIDS
    )
    if key == "hydra.searchpath":
        return
    if not of_grids or (len(parts) == 2 and not choice) or any(part.startswith("_") for part in parts):
        raise UserError(
            f"{cut(key)}: a key of Hydra that cannot be set here; choose from hydra/launcher, hydra/sweeper, "
            "hydra.launcher.<key>, hydra.sweeper.<key> and hydra.searchpath"
        )
    if not grid:
        raise UserError(f"{cut(text)}: this is for grids; add -m")
