"""What `${...}` in a config stands for.

All is resolved before the check but `${oc.env:NAME}` (see pipeline/variables.py). `${oc.decode:${oc.env:NAME}}` makes
a number, a truth value or a list of the text. That is a setting like any other: it is resolved, and written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from pipeline.errors import UserError, cut
from pipeline.variables import NAME, filled, is_kept

# What resolving raises: OmegaConf's errors, or those of a resolver, of which some leave it as they are.
FAULTS = (OmegaConfBaseException, RecursionError, ValueError, TypeError, AttributeError, KeyError, AssertionError)


def resolved(config: DictConfig) -> dict[str, Any]:
    """The config as plain data. Raises UserError, naming the key, for what stands for nothing."""
    with _environment_kept():
        try:
            plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
        except FAULTS as error:
            raise UserError(_first_fault(config, "") or _reason(error)) from error
    _refuse_open(plain, "")
    return plain


def _refuse_open(value: Any, key: str) -> None:
    """Refuse `${` that is meant as text: what reads the written config would take it for an interpolation again."""
    if isinstance(value, str) and "${" in value and not is_kept(value):
        raise UserError(f"{key}={cut(value)}: ${{ begins an interpolation; write the text without it")
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _refuse_open(item, f"{key}.{name}" if key else str(name))


@contextmanager
def _environment_kept() -> Iterator[None]:
    OmegaConf.register_new_resolver("oc.env", _kept, replace=True)
    OmegaConf.register_new_resolver("oc.decode", _decoded, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        OmegaConf.register_new_resolver("oc.decode", oc.decode, replace=True)


def _kept(name: Any = "", *default: Any) -> Any:
    name = str(name)
    if re.fullmatch(NAME, name) and name in os.environ:
        return f"${{oc.env:{name}}}"
    return oc.env(name, *default)


def _decoded(text: Any, *, _parent_: Any, _node_: Any) -> Any:
    return oc.decode(filled(text, "oc.decode"), _parent_, _node_)


def _first_fault(node: Any, place: str) -> str | None:
    """The first value below `node`, a DictConfig or ListConfig, that cannot be resolved, as `key=value: reason`."""
    names: Any = node if isinstance(node, DictConfig) else range(len(node))
    for name in names:
        key = f"{place}.{name}" if place else str(name)
        try:
            if OmegaConf.is_missing(node, name):
                return f"{key}: no value given"
            child = node[name]
        except FAULTS as error:
            return f"{key}={cut(_raw(node, name))}: {_reason(error)}"
        if isinstance(child, DictConfig | ListConfig) and not OmegaConf.is_interpolation(node, name):
            fault = _first_fault(child, key)
            if fault:
                return fault
    return None


def _raw(node: Any, name: Any) -> str:
    raw: object = node._get_node(name)._value()
    return str(raw)


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError) or "Recursive interpolation" in str(error):
        return "refers to itself"
    first = str(error).partition("\n")[0].rpartition("raised while resolving interpolation: ")[2]
    return first.strip("\"'") or type(error).__name__
