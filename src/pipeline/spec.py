"""Specs: the frozen, checked dataclasses that every config group names by `_target_`.

A spec says what is wanted; it never holds a live framework object. `build` turns one node of the composed config into
its spec: it refuses a class from a module that is not on the allow-list, a key that the spec does not have, a value of
the wrong type and a value out of bounds, each with a message that names the key as the user writes it.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, dataclass_transform

import pydantic
import pydantic.dataclasses
from pydantic import Field

from pipeline.allowed import ALLOW_VARIABLE, allowed_modules, take
from pipeline.errors import Lacking, UserError, bad_key, cut, quoted, shown
from pipeline.faults import fault
from pipeline.raised import in_words, where
from pipeline.variables import filled

LARGEST_INTEGER = 2**32 - 1  # no seed, size or count is larger; frameworks count in 32 or 64 bits
LARGEST_NUMBER = 1e38  # float32 holds it

T = TypeVar("T")
Config = Mapping[str, Any]  # a composed config, as plain data


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def spec(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only dataclass whose fields are checked (strictly typed) when it is built."""
    config = pydantic.ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
    made = pydantic.dataclasses.dataclass(cls, frozen=True, kw_only=True, config=config)
    made.__is_spec__ = True  # type: ignore[attr-defined]
    return made  # type: ignore[return-value]


def build(node: Mapping[str, Any], key: str, contracts: tuple[type[object], ...] = ()) -> Any:
    """The spec that `node` (a plain mapping with a `_target_`) describes; `key` is its group in the config.

    `contracts`: those of the group (pipeline.contracts), of which the spec has to fulfil one.
    """
    fields = dict(node)
    target = filled(fields.pop("_target_", None), f"{key}._target_")
    if not isinstance(target, str):
        raise UserError(f"{key}: the choice names no _target_ (a spec class such as pipeline.models.mlp.Mlp)")
    cls: Any = _spec_class(target, key)  # mypy does not know that classes are hashable
    lacking = fault(cls, contracts) if contracts else None
    if lacking:
        raise UserError(f"{key}._target_={target}: {lacking}")
    return build_as(cls, fields, key)


def build_as(cls: type[T], fields: Mapping[str, Any], key: str) -> T:
    """`cls(**fields)` with the errors of the check turned into one message about `key`."""
    values = {
        str(name): _tuples(filled(value, f"{key}.{name}" if key else str(name))) for name, value in fields.items()
    }
    try:
        made = cls(**values)
    except pydantic.ValidationError as error:
        raise UserError(_explain(error, cls, key, values)) from error
    except ValueError as error:
        raise UserError(f"{key}: {error}") from error
    for name in values:
        _check_size(getattr(made, name, None), f"{key}.{name}" if key else name)
    return made


def _check_size(value: Any, key: str) -> None:
    """Refuse numbers of no sense to any setting, such as 10^20 steps, of which some framework makes an overflow."""
    if type(value) is int and abs(value) > LARGEST_INTEGER:
        raise UserError(f"{key}={shown(value)}: too large; an integer goes up to {LARGEST_INTEGER:,}")
    if type(value) is float and not abs(value) <= LARGEST_NUMBER:  # nor NaN
        raise UserError(f"{key}={value}: should be a finite number, up to {LARGEST_NUMBER:g}")
    if isinstance(value, tuple | dict):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_size(item, f"{key}.{name}")


def group_of(key: str) -> str:
    """The group that an override's key is about: `model` of `+model@other.units`."""
    return key.lstrip("+~").partition(".")[0].partition("@")[0]


def is_shipped(part: object) -> bool:
    """Whether the class of a spec is this package's own, rather than one in a module of the user's."""
    return type(part).__module__.startswith("pipeline.")


def choice(part: object) -> str:
    """A spec as its choice is called: by its module, or by its class where a user's module may hold several."""
    cls = type(part)
    if not is_shipped(part):
        return cls.__name__.lower()
    return cls.__module__.removesuffix(".stage").rpartition(".")[2]  # pipeline.stages.amp.stage is amp


def own_settings(part: object) -> dict[str, str]:
    """The fields of a spec whose values are not the defaults of its class, as text."""
    fields = getattr(type(part), "__pydantic_fields__", {})
    values = {name: _text(getattr(part, name)) for name in fields}
    return {
        name: value
        for name, value in values.items()
        if fields[name].is_required() or value != _text(fields[name].get_default(call_default_factory=True))
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


def take_allow_list() -> None:
    """Keep the list as the environment has it now, before anything reads a config that might change the environment.

    Raises UserError for a module that is not on the path: a mistyped name would allow nothing without a word.
    """
    named = take()[1:]
    for name in named:
        if name.endswith(".py"):
            raise UserError(f"{ALLOW_VARIABLE}={cut(','.join(named))}: write the module's name, {name[:-3]}")
        top = name.partition(".")[0]
        if importlib.util.find_spec(top) is None:
            raise UserError(f"{ALLOW_VARIABLE}={cut(','.join(named))}: no module {cut(top)} on the path")


def check_allowed(target: str, key: str) -> None:
    """Refuse a dotted name whose module is not on the allow-list. Raises UserError."""
    module_name = target.rpartition(".")[0]
    if target in allowed_modules():
        raise UserError(f"{key}={target}: is a module; name what is in it, as {target}.<name>")
    named = cut(target, 200)
    if ":" in target:
        raise UserError(f"{key}={named}: write a dot before the name, as {named.replace(':', '.')}")
    if not module_name:
        raise UserError(f"{key}={named}: name its module too, as <module>.{named}")
    if not any(module_name == name or module_name.startswith(name + ".") for name in allowed_modules()):
        raise Lacking(
            f"{key}={named}: not on the allow-list ({', '.join(allowed_modules())}); "
            f"to allow a module of yours set {ALLOW_VARIABLE}=<module>[,<module>]"
        )


def check_own(target: str, key: str) -> None:
    """Refuse a dotted name of what is called with arguments unless it is in a module of the user's. Raises UserError.

    This package has functions that start programs and delete files, and a saved config may be somebody else's.
    """
    check_allowed(target, key)
    if target.partition(".")[0] == __name__.partition(".")[0]:
        raise UserError(f"{key}={cut(target, 200)}: is this package's; name what is in a module of yours")


def named_object(target: str, key: str) -> Any:
    """What a dotted name means, of a module on the allow-list. Raises UserError."""
    check_allowed(target, key)
    module_name, _, name = target.rpartition(".")
    target = cut(target, 200)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"{key}={target}: no module {error.name} on the path{where(error)}") from error
    except Exception as error:  # whatever a module may raise that is imported out of turn, or is the user's own
        raise UserError(f"{key}={target}: module {module_name} cannot be imported ({in_words(error)})") from error
    found = getattr(module, name, None)
    if found is None:
        near = difflib.get_close_matches(name, vars(module), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"{key}={target}: module {module_name} has no {cut(name)}{hint}")
    return found


def fields_of(target: str, key: str) -> tuple[str, ...]:
    """The fields of the spec that `key._target_` names; none where it is not a spec that can be imported."""
    try:
        return tuple(field.name for field in dataclasses.fields(_spec_class(target, key)))
    except Exception:  # a module of the user's may raise anything; building the spec says what
        return ()


def _spec_class(target: str, key: str) -> type[Any]:
    cls = named_object(target, f"{key}._target_")
    target = cut(target, 200)
    if not (isinstance(cls, type) and cls.__dict__.get("__is_spec__", False)):
        raise UserError(f"{key}._target_={target}: not a spec (a class marked with @pipeline.spec.spec)")
    return cls


def _tuples(value: Any) -> Any:
    """Lists become tuples, at any depth: specs are immutable all the way down."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return value


def _explain(error: pydantic.ValidationError, cls: type[Any], key: str, values: Mapping[str, Any]) -> str:
    """The first fault of `error` as `key.field=value: what is wrong`."""
    faults = error.errors(include_url=False, include_context=True)
    # A field that is a text or a list of them has a fault for each: of a list, that of the value in it says more.
    first_field = [one for one in faults if one["loc"][:1] == faults[0]["loc"][:1]]
    fault = max(first_field, key=lambda one: len(_path(one["loc"], values)))
    path = _path(fault["loc"], values)
    key_path = ".".join(part for part in [key, *path] if part)
    if fault["type"] == "unexpected_keyword_argument":
        names = [field.name for field in dataclasses.fields(cls)]
        head = f"{key}." if key else ""
        return str(bad_key(head + path[0], [head + name for name in names]))
    if fault["type"] == "missing" and len(path) < len(fault["loc"]):  # of a tuple
        given = values[path[0]]
        lacking = sum(one["type"] == "missing" and one["loc"][:1] == fault["loc"][:1] for one in faults)
        return f"{key_path}={shown(given)}: give {len(given) + lacking} values"
    if fault["type"] == "missing":
        return f"{key_path}: no value given"
    if not path:  # raised by the spec itself, whose message begins with the field
        reason = fault["msg"].removeprefix("Value error, ")
        return f"{key}.{reason}" if key else reason
    # A field of several types (an integer or `auto`) has a fault for each.
    here = [one for one in faults if _path(one["loc"], values) == path]
    if any(one["type"] == "literal_error" for one in here):  # a list of such words is possible too, and no help
        here = [one for one in here if one["type"] != "tuple_type"]
    reasons = [
        _of_list(one, cls, values)
        if one["type"] == "tuple_type"
        else _reason(one) + _as_integer(one, path, cls, values)
        for one in here
    ]
    first, *others = dict.fromkeys(reasons)
    if "integer" in first and (between := re.fullmatch(r"(\d+)(:|\.\.)(\d+)", str(fault["input"]))):
        end = int(between[3]) + (between[2] == "..")  # to which it goes there, and before which a range ends
        return f"{key_path}={fault['input']}: {first}; for a grid, with -m: range({between[1]},{end})"
    reason = ", or ".join([first, *(one.removeprefix("should be ") for one in others)])
    if fault["type"] == "string_type" and isinstance(fault["input"], int | float):
        reason += _in_quotes(f"{key}.{path[0]}" if key else path[0], values[path[0]])
    return f"{key_path}={shown(fault['input'])}: {reason}"


def _in_quotes(key: str, value: Any) -> str:
    """How numbers are given as texts, alone or in a list; nothing where a text in it could need quotes of two kinds."""
    if isinstance(value, int | float):
        return f"; in quotes it is one: {quoted(key, shown(value))}"
    items = [one if isinstance(one, str) else shown(one) for one in value] if isinstance(value, tuple) else []
    if not items or not all(re.fullmatch(r"[\w.+ -]*", one) for one in items):
        return ""
    return f'; in quotes it is one: "{key}=[{",".join(repr(one) for one in items)}]"'


def _as_integer(fault: Mapping[str, Any], path: Sequence[str], cls: type[Any], values: Mapping[str, Any]) -> str:
    """How a whole number is written where an integer is wanted (1e3 in a file), or what else is wrong with it."""
    value = fault["input"]
    whole = isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_INTEGER
    if fault["type"] != "int_type" or not whole:
        return ""
    try:
        cls(**_replaced(values, path, int(value)))
    except pydantic.ValidationError as error:
        for one in error.errors():
            if _path(one["loc"], values) == path:
                return f", {_reason(one).removeprefix('should be ')}"
    except ValueError:  # of another field
        pass
    return f"; write {int(value)}"


def _replaced(node: Any, path: Sequence[str], value: Any) -> Any:
    """The mapping or tuple `node` with another value at `path`."""
    if not path:
        return value
    first, *rest = path
    if isinstance(node, Mapping):
        return {**node, first: _replaced(node[first], rest, value)}
    at = int(first)
    return (*node[:at], _replaced(node[at], rest, value), *node[at + 1 :])


def _path(loc: Sequence[int | str], values: Mapping[str, Any]) -> list[str]:
    """Where a fault lies, without what pydantic puts between and behind: the names of the types that it tried."""
    path = [str(part) for part in loc[:1]]
    node: Any = values.get(path[0]) if path else None
    for part in loc[1:]:
        try:
            node = node[part]
        except (TypeError, KeyError, IndexError):
            continue
        path.append(str(part))
    return path


def _of_list(fault: Mapping[str, Any], cls: type[Any], values: Mapping[str, Any]) -> str:
    """What to write in the place of a value that should be a list: it in brackets, unless the field takes none such."""
    name, value = fault["loc"][0], fault["input"]
    if value is None or isinstance(value, Mapping):
        return "should be a valid list, such as []"
    try:
        if len(_path(fault["loc"], values)) == 1:
            cls(**{**values, name: (value,)})
    except pydantic.ValidationError as error:
        faults = [one for one in error.errors() if one["loc"][:1] == (name,)]
        for one in faults:
            if _path(one["loc"], {name: (value,)})[1:] == ["0"]:
                return f"should be a valid list, and each value in it {_reason(one)}"
            if one["type"] == "too_short":
                return f"should be a valid list of {one['ctx']['min_length']} values or more"
        if faults and all(one["type"] == "missing" for one in faults):
            return f"should be a valid list of {1 + len(faults)} values"
    except ValueError:  # of another field, which is not what is asked about
        pass
    return f"should be a valid list, such as [{value if isinstance(value, str) else shown(value)}]"


def _reason(fault: Mapping[str, Any]) -> str:
    """pydantic's message in our words: from `should be` on."""
    if fault["type"] == "too_short":
        least = fault["ctx"]["min_length"]
        return f"should have {least} value{'s' * (least > 1)} at least, not {fault['ctx']['actual_length']}"
    if fault["type"] == "too_long":
        return f"should have {fault['ctx']['max_length']} values at most, not {fault['ctx']['actual_length']}"
    if fault["type"] in ("bool_parsing", "bool_type"):
        return "should be true or false"
    reason = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return reason[0].lower() + reason[1:]


def is_number(text: str) -> bool:
    """Whether a text is a number; Python takes 1_5, which may be a mistyped 1.5, and the digits of any script too."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text.strip().isascii()
