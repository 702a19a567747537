"""What is typed, as Hydra has to have it: devices, numbers and texts that Hydra would read as something else."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from pipeline.cli.overrides import is_hydras
from pipeline.errors import Impossible, UserError
from pipeline.machine.device import canonical
from pipeline.spec import LARGEST_INTEGER

OPEN = ("stage.arguments", "stage.data_arguments", "stage.trainer", "stage.fit", "dataset.arguments")  # any key fits in
SCIENTIFIC = re.compile(r"(?<![\w.+-])-?(\d+(\.\d*)?|\.\d+)e\+?\d+(?![\w.])", re.IGNORECASE)
NUMBERS = re.compile(r"\[?[\d.e+-]+(,[\d.e+-]+)*\]?", re.IGNORECASE)  # one, several of a grid, or a list
PROSE = ("stage.prompt", "stage.samples.prompt", "stage.stop")  # texts that may hold anything


def canonical_device(argument: str) -> str:
    """`device=<any notation>` as the choice it means. `gpu:N` becomes a choice by being asked for."""
    key, equals, value = argument.partition("=")
    if key != "device" or not equals:
        return argument
    names = [canonical(part) for part in value.replace("\\:", ":").split(",")]  # as Hydra writes gpu:0 for a cell
    for name in names:
        if ":" in name:
            ConfigStore.instance().store(group="device", name=name, node={"defaults": ["gpu", "_self_"], "name": name})
    return f"device={','.join(names)}"


def with_device_as_typed(error: Exception, arguments: Sequence[str]) -> Exception:
    """An error about `device=gpu:0` as one about `device=cuda:0` or `device.name=gpu:0`, where the user wrote that."""
    for argument in arguments:
        named = argument.replace("device.name=", "device=") if argument.startswith("device.name=") else None
        meant = f"{named or canonical_device(argument)}:"
        typed = argument.startswith(("device=", "device.name="))
        if typed and type(error) in (UserError, Impossible) and str(error).startswith(meant):
            return type(error)(argument + str(error)[len(meant) - 1 :]).with_traceback(error.__traceback__)
    return error


def added_where_open(argument: str) -> str:
    """`stage.arguments.rate=1` as `++stage.arguments.rate=1`, which Hydra asks for where the config has no such key."""
    return f"++{argument}" if is_open(argument) else argument


def is_open(key: str) -> bool:
    """Whether a key, or an override, is an entry of a mapping that any entry fits in."""
    return key.startswith(tuple(f"{one}." for one in OPEN))


def whole_numbers(argument: str) -> str:
    """`training.epochs=1e3` as `training.epochs=1000`: Hydra reads 1000.0, which is not an integer.

    Not a name, a text, an entry of an open mapping, which may be for a function that tells the two apart, or Hydra's.
    """
    key, equals, value = argument.partition("=")
    bare = key.lstrip("+")
    text = bare in PROSE or ("." not in bare and bare != "seed")
    if not NUMBERS.fullmatch(value) or text or is_open(bare) or is_hydras(bare):
        return argument
    return key + equals + SCIENTIFIC.sub(_whole, value)


def _whole(found: re.Match[str]) -> str:
    number = float(found[0])
    return str(int(number)) if number.is_integer() and abs(number) <= LARGEST_INTEGER else found[0]


def prose_as_text(argument: str) -> str:
    """`stage.prompt=Hello, world` with quotes, without which Hydra sees two values in it, a number in 42, and drops a
    space at the end. Not a value that has quotes, a list, null, or a reference."""
    key, _, value = argument.partition("=")
    if key not in PROSE or not value or value == "null" or value.startswith(("'", '"', "[", "${")):
        return argument
    escaped = re.sub(r"(\\*)'", r"\1\1\'", value)  # of backslashes only those before a quote count
    end = len(escaped) - len(escaped.rstrip("\\"))
    return f"{key}='{escaped}{escaped[len(escaped) - end :]}'"


def chosen_by_cell(overrides: Sequence[str], groups: Collection[str]) -> list[str]:
    """The overrides of a grid; a value below a group that the grid goes over, as the one choice of each of its cells.

    Before the cells Hydra composes a config with the default of such a group, in which the key may be missing.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    over = {one.key_or_group for one in parsed if one.is_sweep_override()}
    over = {group for group in groups if group in over or "experiment" in over} - {"sweep"}  # that one is the grid's
    return [_as_choice(one) if one.key_or_group.partition(".")[0] in over else str(one.input_line) for one in parsed]


def _as_choice(override: Override) -> str:
    text = str(override.input_line)
    if "." not in override.key_or_group or override.is_sweep_override() or override.is_delete():
        return text
    key, _, value = text.partition("=")
    return f"{key}=choice({value or repr('')})"
