"""What can go wrong by the user's hand or the machine's: one short message, no traceback."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Mapping

from pipeline.passwords import without_password
from pipeline.raised import message, where

LONGEST = 80  # letters of a value that a message has whole
MOST_LISTED = 500  # letters of choices that a message has whole
MOST_ALIKE = 8  # choices that it has of a longer list of which one was meant: those most like what was typed
PLAIN = re.compile(r"(?!(true|false|null|nan|inf)$)[a-z_][a-z0-9_]*", re.IGNORECASE)  # names that need no quotes


class Readable(Exception):
    """An error whose message people read, also in journals and in MLflow: the passwords in it are hidden at once."""

    def __init__(self, message: object = "") -> None:
        super().__init__(without_password(str(message)))


class UserError(Readable):
    """A mistake that the user can mend. The message names the key, the value and the choices or the limit."""


class RunError(Readable):
    """A run that began and cannot go on (a NaN, a dtype that is not the one asked for): FAILED."""


class Stopped(BaseException):
    """Ctrl-C or SIGTERM arrived. Not an Exception, so that no framework's handler swallows it on the way up."""

    def __init__(self, signal_name: str, exit_status: int) -> None:
        super().__init__(signal_name)
        self.signal_name = signal_name
        self.exit_status = exit_status

    def __reduce__(self) -> tuple[type[Stopped], tuple[str, int]]:
        return Stopped, (self.signal_name, self.exit_status)


class Impossible(UserError):
    """What nobody did wrong but cannot run here: a precision that the device lacks, a GPU that is not there."""


class Lacking(UserError):
    """What the environment lacks that a config names: a variable, or a module on the allow-list."""


class Pruned(BaseException):
    """A search has seen enough of this run. Like Stopped, no framework's handler may swallow it."""


def raised(who: str, error: Exception) -> UserError:
    """For an exception from the user's code: `who raises ValueError: ..., in load (mine.py, line 3)`."""
    return UserError(f"{who} raises {message(error)}{where(error) or '; PIPELINE_TRACEBACK=1 shows where'}")


def bad_choice(key: str, value: object, choices: Iterable[str]) -> UserError:
    """`key=value: no such choice`, the choices, and the nearest of them where one is near (of many those like it).

    Of a group, whose choices are files, how a file is chosen whose name would be read as a number, true or false.
    """
    typed = value if isinstance(value, str) else shown(value)
    own = isinstance(value, int | float) and "." not in key
    hint = f"; a file of that name is chosen by {quoted(key, '<name>')}" if own else ""
    return UserError(f"{cut(key)}={cut(typed)}: no such choice{_among(typed, choices)}{hint}")


def bad_key(key: str, choices: Iterable[str], elsewhere: str = "") -> UserError:
    """`key: no such key`, the keys there are, and the nearest of them where one is near.

    `elsewhere`: who has a key of that very name, where that is known; said in place of the nearest.
    """
    names = list(choices)
    said = _among(key, names, elsewhere) if names else f"{_hint(elsewhere)}; this choice has no settings"
    return UserError(f"{cut(key)}: no such key{said}")


def quoted(key: str, value: str) -> str:
    """How a number, true or false is given as text: one kind of quotes is the shell's."""
    return f"\"{key}='{value}'\""


def listed(key: str, names: Iterable[str]) -> str:
    """`key=[names]`, as a shell and Hydra take it."""
    words = [name if PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False) for name in names]
    return shlex.quote(f"{key}=[{','.join(words)}]")


def cut(value: object, length: int = LONGEST) -> str:
    """A value as text, of which a long one (a typed key of 2,000 letters) shows its beginning and its length."""
    text = str(value)
    return text if len(text) <= length else f"{text[:length]}... ({len(text):,} characters)"


def plural(number: int, what: str) -> str:
    """A number with its noun: `1 cell`, `1,000 cells`, `2 batches`."""
    ending = "es" if what.endswith(("s", "ch")) else "s"
    return f"{number:,} {what}{ending * (number != 1)}"


def thing(value: object) -> str:
    """What a value is, after "gives": `None`, `a class` or `a dict`."""
    if value is None:
        return "None"
    return "a class" if isinstance(value, type) else f"a {type(value).__name__}"


def shown(value: object) -> str:
    """A value as YAML writes it: null, true, [1, 2]; text in quotes."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {shown(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, int) and value.bit_length() > 1000:  # Python writes out no more than 4,300 digits
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[:LONGEST]!r}... ({len(value):,} characters)"  # its own, and not those of the quotes
    return cut(repr(value))


def nearest(wrong: str, names: Iterable[str]) -> str | None:
    """The name that was meant: by its initials, its beginning, its letters or one of its words; None where none is.

    Names behind one dotted prefix are compared without it: `optimizer.weight_decay` is not like `optimizer.beta_2`.
    """
    prefix = wrong.rpartition(".")[0] + "."
    every = sorted(names)
    begins = all(name.startswith(prefix) for name in every)
    short = {name.removeprefix(prefix).lower() if begins else name.lower(): name for name in every}
    word = (wrong.removeprefix(prefix) if begins else wrong).lower()
    for found in (
        [name for name in short if word and _initials(name) == word],
        [name for name in short if len(word) > 2 and name.startswith(word)],
        difflib.get_close_matches(word, short, n=1),
        [name for name in short if difflib.get_close_matches(word, name.split("_"), n=1, cutoff=0.8)],
    ):
        if found:
            return short[found[0]]
    return None


def _among(wrong: str, choices: Iterable[str], elsewhere: str = "") -> str:
    names = sorted(choices, key=_in_order)
    near = nearest(wrong, names)
    hint = _hint(elsewhere or (f"did you mean {near}?" if near else ""))
    listed = ", ".join(names)
    if near and len(listed) > MOST_LISTED:
        alike = difflib.get_close_matches(wrong, names, n=MOST_ALIKE, cutoff=0.0)
        few = list(dict.fromkeys((near, *alike)))[:MOST_ALIKE]
        return f"{hint}; choose from {', '.join(few)} and {len(names) - len(few):,} more"
    return f"{hint}; choose from {listed}" if listed else f"{hint}; there is nothing to choose from"


def _hint(text: str) -> str:
    return f" ({text})" if text else ""


def _in_order(name: str) -> tuple[bool, int, str]:
    """Numbers by their value, then words."""
    return (False, int(name), "") if name.isdecimal() else (True, 0, name)


def _initials(name: str) -> str:
    """`lr` of `learning_rate`."""
    return "".join(part[:1] for part in name.split("_")) if "_" in name else ""
