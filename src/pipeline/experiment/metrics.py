"""What `training.metrics` names: a metric of ours by its word, others by a dotted name or a node with settings."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.contracts import Metric
from pipeline.errors import UserError, bad_choice, shown
from pipeline.spec import build, choice

KEY = "training.metrics"
FOLDER = "pipeline.metrics"  # a word is the name of a module in there, whose class is the word without underscores
FOREIGN = "torchmetrics"  # `torchmetrics.MulticlassAUROC`: any metric of that package
DIRECTIONS = ("min", "max", "none")
NAME = re.compile(r"[\w.@-]+( [\w.@-]+)*")


def metrics_of(value: object) -> object:
    """The specs that a list of metrics names; anything but a list is left to the check of types. Raises UserError."""
    return tuple(map(_metric, value)) if isinstance(value, tuple | list) else value


def name_of(metric: Metric) -> str:
    """What a metric is called in a result, after `test/`."""
    return metric.name or choice(metric)


def node_of(word: str) -> dict[str, str]:
    """The node that a word of `training.metrics` is short for; nothing is imported."""
    package, _, name = word.partition(".")
    if package == FOREIGN and name:
        return {"_target_": f"{FOLDER}.of_torchmetrics.Torchmetrics", "metric": name}
    return {"_target_": word if name else f"{FOLDER}.{word}.{_class_of(word)}"}


def is_judges(metric: Metric) -> bool:
    """Whether a metric is what the word of its name means, as a task's judge has it: ours, without other settings."""
    cls = _of_word(name_of(metric))
    return cls is type(metric) and metric == cls()


def renamed_by(metrics: Iterable[Metric]) -> str:
    """What gives metrics other names."""
    return " or ".join(dict.fromkeys(metric.renamed_by for metric in metrics))


def words() -> dict[str, type[Metric]]:
    """The metrics of ours by their words."""
    found = importlib.util.find_spec(FOLDER)
    assert found is not None
    folders = map(Path, found.submodule_search_locations or ())
    named = {file.stem: _of_word(file.stem) for folder in folders for file in sorted(folder.glob("[a-z]*.py"))}
    return {word: cls for word, cls in named.items() if cls is not None}


def _metric(value: object) -> Metric:
    if isinstance(value, Metric):
        return value
    if isinstance(value, str) and "." not in value and _of_word(value) is None:
        raise bad_choice(KEY, value, words())
    node = node_of(value) if isinstance(value, str) else value
    if not isinstance(node, Mapping):
        raise UserError(f"{KEY}: {shown(value)}: name a metric, as macro_f1 or mine.Recall, or give {{_target_: ...}}")
    made: Metric = build(node, KEY, (Metric,))
    declared = getattr(type(made), "direction", None)
    if isinstance(declared, str) and declared not in DIRECTIONS:
        raise bad_choice(f"{node['_target_']}.direction", declared, DIRECTIONS)
    if not NAME.fullmatch(name_of(made)):
        raise UserError(f"{node['_target_']}.name={shown(made.name)}: use letters, digits, '.', '_', '@' and '-'")
    return made


def _of_word(word: str) -> type[Metric] | None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", word):
        return None
    try:
        module = importlib.import_module(f"{FOLDER}.{word}")
    except ModuleNotFoundError:
        return None
    cls = getattr(module, _class_of(word), None)
    return cls if isinstance(cls, type) and issubclass(cls, Metric) else None


def _class_of(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("_"))
