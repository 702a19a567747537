"""What keeps a spec's class from being one of its group's contracts, in words."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ALIKE = 0.8  # of difflib's ratio: from here on a name is that of an optional method, misspelt
MAY_BE = 0.6  # from here on it may be that of a method that is missing


def _imported_as(cls: type[object]) -> str:
    """A class's path as a user writes it: of the package, where that offers the class of one of its modules."""
    package = sys.modules.get(cls.__module__.rpartition(".")[0])
    offered = package is not None and getattr(package, cls.__name__, None) is cls
    return f"{package.__name__ if package and offered else cls.__module__}.{cls.__name__}"


@cache
def fault(cls: type[object], contracts: tuple[type[object], ...]) -> str | None:
    """What keeps a spec's class from being one of `contracts`, in words; None where nothing does.

    Found once for each class: the cells of a grid have the same ones.
    """
    contract = next((one for one in contracts if issubclass(cls, one)), None)
    if contract is None:
        names = " or ".join(map(_imported_as, contracts))
        return f"does not derive from {names}; CONTRIBUTING.md says what one has to offer"
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # of specs alone
        if hidden := _hidden(field.name, contract):
            return f"field {field.name}{_written(field.name, cls)} hides {hidden}"
    methods = {name: one for name in dir(contract) if inspect.isfunction(one := getattr(contract, name))}
    defined = [name for name, one in vars(cls).items() if inspect.isfunction(one) and not name.startswith("_")]
    own = [name for name in defined if name not in methods]
    for name in sorted(getattr(cls, "__abstractmethods__", ())):
        return f"has no {_call(methods[name])}{_misspelt(name, own, MAY_BE)}"
    fields = getattr(cls, "__dataclass_fields__", {})
    for one in cls.__mro__[1:]:
        missing = [name for name in _required(one, contract) if not hasattr(cls, name) and name not in fields]
        if missing:
            return f"has no {', '.join(missing)}; {_imported_as(one)} says what it is"
    for name, method in methods.items():
        made = getattr(cls, name)
        if made is method:
            if _misspelt(name, own):
                return f"defines no {_call(method)}{_misspelt(name, own)}"
        elif not _takes(made, method):
            return f"{name}() has to take {_arguments(method)}, and takes {_arguments(made)}"
    one_of = [methods[name] for name in getattr(contract, "one_of", ())]
    if one_of and all(getattr(cls, one.__name__) is one for one in one_of):
        return f"has neither {' nor '.join(map(_call, one_of))}"
    return None


def _hidden(name: str, contract: type[object]) -> str | None:
    """What of a contract a field of that name hides, and what to do; None where the contract leaves it to fields."""
    owner = next(
        (one for one in contract.__mro__ if name in {**vars(one), **vars(one).get("__annotations__", {})}), None
    )
    if owner is None:
        return None
    of_class = vars(owner).get("__annotations__", {}).get(name, "").startswith("ClassVar")
    hidden = vars(owner).get(name)
    if not (of_class or callable(hidden) or hasattr(hidden, "__get__")):  # a property, a class method
        return None
    instead = f"write {name}: ClassVar, or call" if of_class else "call"
    return f"{_imported_as(owner)}.{name}; {instead} the field something else"


def _written(name: str, cls: type[object]) -> str:
    """Where a field stands, as ` (mine.py, line 3)`; empty where the source cannot be read."""
    owner = next(one for one in cls.__mro__ if name in vars(one).get("__annotations__", {}))
    with contextlib.suppress(OSError, SyntaxError):
        lines, first = inspect.getsourcelines(owner)
        body = ast.walk(ast.parse(textwrap.dedent("".join(lines))))
        at = next(one.lineno for one in body if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == name)
        file = Path(inspect.getfile(owner))
        shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        return f" ({shown}, line {first + at - 1})"
    return ""


def _required(base: type[object], contract: type[object]) -> list[str]:
    """What a class that the spec derives from names and gives no value: a contract anything, another one a ClassVar."""
    named = vars(base).get("__annotations__", {})
    asked = [name for name, kind in named.items() if base in contract.__mro__ or "ClassVar" in str(kind)]
    return [name for name in asked if not hasattr(base, name)]


def _takes(made: object, method: Callable[..., object]) -> bool:
    """Whether a method can be called as its contract says."""
    if not callable(made):
        return False
    wanted = inspect.signature(method).parameters.values()
    try:
        by_name = {one.name: None for one in wanted if one.kind is one.KEYWORD_ONLY}
        inspect.signature(made).bind(*(None for one in wanted if one.kind is not one.KEYWORD_ONLY), **by_name)
    except TypeError:
        return False
    return True


def _arguments(method: object) -> str:
    if not callable(method):
        return "no call"
    return f"({', '.join(list(inspect.signature(method).parameters)[1:])})"


def _call(method: Callable[..., object]) -> str:
    return f"{method.__name__}{_arguments(method)}"


def _misspelt(name: str, own: Sequence[str], alike: float = ALIKE) -> str:
    found = difflib.get_close_matches(name, own, 1, alike)
    return f"; is {found[0]}() it, misspelt?" if found else ""
