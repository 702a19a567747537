"""What differs between saved runs: by section (SECTIONS) and key, and in their metrics."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.experiment import is_set
from pipeline.runs.choices import names_are_users
from pipeline.runs.json_files import read_json
from pipeline.runs.listing import config_of, flat_config
from pipeline.runs.result import Metric, metrics_of, read_result
from pipeline.runs.saved import as_it_ran
from pipeline.variables import names_in

RESUMPTION = "resumption"  # with what a run went on that differed from its beginning; empty of most runs
SECTIONS = ("config", "code", "data", "software", "machine", RESUMPTION)
FEW = 3  # modules that one of the runs alone has are named; how many more there are is said
MANY = 10  # edited modules are named one by one; of more, as between two versions of the package, those that count most
# What a run is called and where things lie decide nothing.
NOT_COMPARED = ("name", "resume", "output_dir", "tracking", "sweep")
FILLED = "config_sha256"  # differs alone where a variable that the config names has another value
SEEDLESS = "config_without_seed_sha256"  # of runs whose config names variables: says it of runs of two seeds
CODE = "code_sha256"
OURS = "pipeline."  # before the names of this package's modules
BESIDE = "beside."  # before what was imported by computed names
# Modules whose hash holds what they read: the file of model.start, the user's data.
READERS = ("models.start", "datasets.npz", "datasets.image_folder", "datasets.huggingface", "datasets.text")
ABSENT = "-"  # of a key that one of the runs does not have


@dataclass(frozen=True)
class Account:
    """What one run says of itself: `sections` by name, each with its values by key; `metrics` by name, without the ends
    of intervals: these follow from others, a difference of two ends means nothing, and another SciPy may round them
    otherwise.
    """

    folder: Path
    sections: Mapping[str, Mapping[str, Any]]
    weights: str | None  # their digest
    metrics: Mapping[str, Metric]
    missing: tuple[str, ...]  # of the files that it should have
    modules: Mapping[str, str] = field(default_factory=dict)  # that decide the result, each with its hash
    foremost: frozenset[str] = frozenset()  # of these, the user's own and those of the config's choices


def account_of(folder: Path) -> Account:
    """The account of a run. What it did not write is left out."""
    kept, receipt = config_of(folder), read_json(folder / "receipt.json")
    config = as_it_ran(kept, folder)
    device, precision = receipt.get("device") or {}, receipt.get("precision") or {}
    machine = {
        "device": device.get("effective"),
        "cpu_threads": device.get("cpu_threads"),
        "precision": precision.get("effective"),
        "matrix_products": (precision.get("observed") or {}).get("matrix_products"),
        **(device.get("hardware") or {}),
    }
    code = {CODE: receipt.get(CODE), **flat(receipt.get("git") or {})}
    code_json = read_json(folder / "code.json")
    modules = {name.removeprefix(OURS): digest for name, digest in code_json.items()}
    chosen = {target.rpartition(".")[0] for target in _targets(config)}
    foremost = frozenset(
        name.removeprefix(OURS) for name in code_json if name in chosen or not f"{name}.".startswith(OURS)
    )
    sections: dict[str, Mapping[str, Any]] = {
        "config": {
            **flat_config({key: value for key, value in config.items() if key not in NOT_COMPARED}),
            **(_hashes(receipt) if config == kept else {}),  # they are of what was kept
        },
        "code": {**code, **flat(receipt.get("imported_beside") or {}, BESIDE)},
        "data": {k: v for k, v in {**receipt, **_task(receipt)}.items() if k in ("data_sha256", "task", "source_run")},
        "software": {**(receipt.get("versions") or {}), **(receipt.get("environment") or {})},
        "machine": flat(machine),
        RESUMPTION: _gone_on_with(receipt.get("resumed") or ()),
    }
    missing = {"config.yaml": config, "receipt.json": receipt, "result.json": read_result(folder)}
    without = tuple(name for name, found in missing.items() if not found)
    metrics = {name: metric for name, metric in metrics_of(folder).items() if not metric.is_end}
    return Account(folder, sections, receipt.get("weights_sha256"), metrics, without, modules, foremost)


def _hashes(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Of the config, where the receipt has them."""
    return {key: receipt.get(key) for key in (FILLED, SEEDLESS) if key == FILLED or key in receipt}


def _task(receipt: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was trained, where that is there. Older versions wrote the words of its name as one."""
    task = receipt.get("task")
    return {"task": {**task, "name": str(task.get("name")).replace("_", "")}} if isinstance(task, Mapping) else {}


def _targets(config: Mapping[str, Any]) -> list[str]:
    """The classes that a config names, at any depth."""
    nodes = [value for value in config.values() if isinstance(value, Mapping)]
    here = [str(config["_target_"])] if "_target_" in config else []
    return here + [target for node in nodes for target in _targets(node)]


def _gone_on_with(resumed: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """What differed at each step from which the run went on, with training.checkpoint.strict=false."""
    found: dict[str, list[str]] = {}
    for one in resumed:
        if one.get("differences"):
            found.setdefault(f"from step {one.get('step')}", []).extend(one["differences"])
    return found


def differing(accounts: Sequence[Account], section: str) -> dict[str, list[Any]]:
    """The keys of a section that are not the same in all, with each run's value; ABSENT where one has none."""
    every = [account.sections[section] for account in accounts]
    keys = dict.fromkeys(key for one in every for key in one)
    rows = {key: [one.get(key, ABSENT) for one in every] for key in keys}
    found = {key: values for key, values in rows.items() if any(value != values[0] for value in values)}
    unset = [key for key in found if section == "config" and _is_unset_or_absent(key, every)]
    for key in unset:
        del found[key]
    explained = unset and not any(map(names_in, every))  # else also by the values of variables, perhaps
    unknown = section == "config" and not all(FILLED in one for one in every)
    if explained or unknown or not {*found} <= {FILLED, SEEDLESS}:  # they say why the hashes differ
        found.pop(FILLED, None)
    if {*found} != {"seed", SEEDLESS}:
        found.pop(SEEDLESS, None)
    if section == "code" and CODE in found:
        found |= _differing_modules(accounts)
    return found


def _is_unset_or_absent(key: str, every: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some runs lack a setting, as those of a version without it, and the others do nothing by it.

    Not of the user's names: what their code does without one, nobody knows.
    """
    if names_are_users(key.rpartition(".")[0]):
        return False
    return not all(key in one for one in every) and not any(map(is_set, (one.get(key) for one in every)))


def the_same(accounts: Sequence[Account], found: Collection[str]) -> list[str]:
    """The sections that are not `found` to differ, without those in which no run has anything."""
    held = {
        name for one in accounts for name, values in one.sections.items() if any(v is not None for v in values.values())
    }
    return [name for name in SECTIONS if name in held and name not in found]


def edited(accounts: Sequence[Account]) -> list[str] | None:
    """The modules that two runs or more have and that are not the same in these; None where a run lists none."""
    every = [account.modules for account in accounts]
    if not all(every):
        return None
    names = dict.fromkeys(name for one in every for name in one)
    return [name for name in names if len({one[name] for one in every if name in one}) > 1]


def _differing_modules(accounts: Sequence[Account]) -> dict[str, list[Any]]:
    """Those that were edited, each with its hashes; and in one row those that not all of the runs have."""
    changed = edited(accounts)
    if changed is None:
        return {}
    every = [account.modules for account in accounts]
    lacked = {name for one in every for name in one if not all(name in each for each in every)} - {*changed}
    others = [_few([name for name in one if name in lacked]) for one in every]
    rows = {_with_files(name): [one.get(name, ABSENT) for one in every] for name in foremost(accounts, changed)}
    return rows | ({"only here": [text or ABSENT for text in others]} if any(others) else {})


def foremost(accounts: Sequence[Account], changed: Sequence[str]) -> list[str]:
    """Of the edited modules those that are named: all, or of many the user's own and those of the choices."""
    if len(changed) <= MANY:
        return list(changed)
    return [name for name in changed if any(name in one.foremost for one in accounts)][:MANY]


def _few(names: Sequence[str]) -> str:
    """The first of them, since another backend has dozens of other modules."""
    left = len(names) - FEW
    return ", ".join(names) if left <= 1 else f"{', '.join(names[:FEW])} and {left} more"


def _with_files(module: str) -> str:
    """A module as a row calls it: the hash of some holds the files that they read, which may be all that differs."""
    return f"{module} or its files" if module in READERS else module


def differing_metrics(accounts: Sequence[Account], *, of_machine: bool) -> dict[str, list[float | None]]:
    """The metrics that are not equal to the bit, with each run's value; `of_machine`: times and memory, or the rest."""
    named = {name: one for account in accounts for name, one in account.metrics.items()}
    names = [name for name, metric in named.items() if metric.of_machine is of_machine]
    rows = {name: [_value(account, name) for account in accounts] for name in names}
    return {name: values for name, values in rows.items() if not all(_equal(value, values[0]) for value in values)}


def by_seed(accounts: Sequence[Account]) -> list[list[int]]:
    """The places of the runs in `accounts`, those together that differ in their seed alone.

    A run that went on with something else is alone: what its receipt says of that does not tell two edits apart.
    """
    groups: list[list[int]] = []
    for place, account in enumerate(accounts):
        for group in groups:
            first = accounts[group[0]]
            if first.sections[RESUMPTION] or account.sections[RESUMPTION]:
                continue
            if _but_seed(first) == _but_seed(account) and not _seeds_repeat([*group, place], accounts):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def _but_seed(account: Account) -> dict[str, Any]:
    sections = account.sections
    others = {name: sections[name] for name in ("software", "machine")}
    # Without the hash of the data: the seed may decide which examples are for validation.
    data = {key: value for key, value in sections["data"].items() if key != "data_sha256"}
    code = {key: value for key, value in sections["code"].items() if key == CODE or key.startswith(BESIDE)}
    config = {**sections["config"], "seed": None, FILLED: _values_unknown(sections["config"])}
    return {**config, "code": code, "data": data, **others}


def _values_unknown(config: Mapping[str, Any]) -> Any:
    """What no other seed shares, where a config names variables and its receipt has no hash of it without the seed."""
    return config.get(FILLED) if SEEDLESS not in config and names_in(config) else None


def _seeds_repeat(places: Sequence[int], accounts: Sequence[Account]) -> bool:
    seeds = [accounts[place].sections["config"].get("seed") for place in places]
    return len(set(seeds)) < len(seeds)


def _value(account: Account, name: str) -> float | None:
    return account.metrics[name].value if name in account.metrics else None


def _equal(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return value == other or (math.isnan(value) and math.isnan(other))


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted key: `{"a": {"b": 1}}` is `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for key, one in value.items():
        found |= flat(one, f"{prefix}{key}.") if isinstance(one, Mapping) else {f"{prefix}{key}": one}
    return found
