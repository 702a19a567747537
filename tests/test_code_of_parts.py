"""Whichever part of an experiment is the user's, an edit of its module is another experiment."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from command import write_files
from in_backend import experiment
from omegaconf import OmegaConf

from pipeline import allowed
from pipeline.cli.conf_path import conf_path
from pipeline.experiment import Experiment
from pipeline.runs.code import code_hash as code
from pipeline.runs.code import sources as code_sources
from pipeline.runs.code import syntax as code_syntax
from pipeline.runs.code.code_hash import code_sha256, modules

CHOICES = {
    **{"stage": "train", "backend": "torch", "device": "cpu", "precision": "fp32", "model": "mlp"},
    **{"dataset": "digits", "loader": "memory", "augmentation": "images", "optimizer": "adam"},
    **{"loss": "cross_entropy", "schedule": "cosine", "training": "default", "solver": "lbfgs"},
}
OWN = """
from {module} import {name}
from pipeline.spec import spec
import {part}_of_mine

@spec
class Mine({name}):
    pass
"""


def shipped(group: str, choice: str | None = None) -> dict[str, Any]:
    file = Path(conf_path()) / group / f"{choice or CHOICES[group]}.yaml"
    found: Any = OmegaConf.to_container(OmegaConf.load(file))
    return dict(found.get(group, found))  # some choices say more than their own keys


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(allowed, "_taken", None)  # another test of this process may have composed a config
    return tmp_path


def forget() -> None:
    """What this process has read of modules: a new one would read it again."""
    for one in (code_sources.source, code_sources._top, code_sources.imports, code_sources.digest, code_sources._code):
        one.cache_clear()
    code_syntax.tree.cache_clear()
    code._closure.cache_clear()
    importlib.invalidate_caches()


def with_own(group: str, node: dict[str, Any]) -> Experiment:
    if group != "solver":
        return experiment("torch", 0, **{group: node})
    choices = {"stage": "pinn", "dataset": "ode", "model": "fnn"}
    others: dict[str, Any] = {group: shipped(group, choice) for group, choice in choices.items()}
    return experiment("jax", 0, **others, solver=node)


def test_every_part_that_decides_has_a_case() -> None:
    assert CHOICES.keys() == set(code.PARTS)


@pytest.mark.parametrize("group", CHOICES)
def test_the_users_own_part_counts_with_what_it_imports(
    group: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grid took cells for done that had been trained with the schedule of before its edit, had one been left out."""
    node, own = shipped(group), f"own_{group}"
    module, _, name = node["_target_"].rpartition(".")
    write_files(place, {f"{own}.py": OWN.format(module=module, name=name, part=own), f"{own}_of_mine.py": "A = 1\n"})
    monkeypatch.setenv("PIPELINE_MODULES", own)
    asked = with_own(group, {**node, "_target_": f"{own}.Mine"})
    before, found = code_sha256(asked), modules(asked)
    assert {own, f"{own}_of_mine", module} <= found.keys()
    (place / f"{own}_of_mine.py").write_text("A = 2\n")
    forget()
    assert code_sha256(asked) != before
    changed = modules(asked)
    assert {name for name in found if found[name] != changed[name]} == {f"{own}_of_mine"}
    for module in (own, f"{own}_of_mine"):
        sys.modules.pop(module, None)


def test_what_a_part_holds_counts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = OWN.format(module="pipeline.metrics.brier", name="Brier", part="own_metric")
    write_files(place, {"own_metric.py": text, "own_metric_of_mine.py": "A = 1\n"})
    monkeypatch.setenv("PIPELINE_MODULES", "own_metric")
    node = {**shipped("training"), "metrics": [{"_target_": "own_metric.Mine"}]}
    assert {"own_metric", "own_metric_of_mine", "pipeline.metrics.brier"} <= modules(
        experiment("torch", training=node)
    ).keys()


READS = """
from pathlib import Path
from pipeline.datasets.digits import Digits
from pipeline.spec import spec

@spec
class Mine(Digits):
    table: str = ""
    more: tuple[str, ...] = ()

    @property
    def user_files(self):
        return (Path("read.csv").absolute(),)
"""


def test_the_files_of_a_part_count_beside_its_code(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that settings name, and those that it says it reads: an edit of each, and of the code, is seen."""
    files = ("named.csv", "listed.csv", "read.csv", "own_reader.py")
    write_files(place, {"own_reader.py": READS, **dict.fromkeys(files[:3], "1")})
    monkeypatch.setenv("PIPELINE_MODULES", "own_reader")
    node = {"_target_": "own_reader.Mine", "table": "named.csv", "more": ["listed.csv", "bytes"]}
    asked = experiment("torch", dataset=node)
    hashes = [code_sha256(asked)]
    assert {path.name for path in code.read_files(asked)} == {*files[:3]}
    for file in files:
        (place / file).write_text((place / file).read_text() + "\nA = 1\n")
        forget()
        hashes.append(code_sha256(asked))
    assert len({*hashes}) == 5
    sys.modules.pop("own_reader", None)


def test_the_weights_and_tokens_of_another_run_count_while_they_are_there(place: Path) -> None:
    """Gone, they are named: what began with them cannot begin again."""
    weights, adapters = place / "weights.npz", place / "adapters.npz"
    node = {**shipped("model"), "start": str(weights), "adapters": {"start": str(adapters)}}
    asked = experiment("torch", model=node)
    assert set(code.gone(asked)) == {"model.start", "model.adapters.start"}
    hashes = [code_sha256(asked)]
    for file in (weights, adapters, weights, adapters):
        file.write_bytes(file.read_bytes() + b"1" if file.exists() else b"0")
        hashes.append(code_sha256(asked))
    assert len({*hashes}) == 5 and code.gone(asked) == {}
    assert {weights, adapters} <= {*code.read_files(asked)}
    card = place / "artifacts" / "model" / "card.json"
    for tokens, lost in ((str(card), {"dataset.tokens"}), ("bytes", set())):
        texts = {"_target_": "pipeline.datasets.python_docs.PythonDocs", "tokens": tokens}
        asked = experiment("torch", stage=shipped("stage", "transformer"), model="gpt", dataset=texts)
        assert set(code.gone(asked)) == lost


def test_what_watches_does_not_count_but_for_what_decides() -> None:
    """Each name of both lists is that of a module: one that has moved would be left out, or counted, unseen."""
    for name in (*code.ALWAYS, *code.WATCHING, *code.DECIDING):
        assert code_sources.source(name) is not None, name
    found = {*modules(experiment("torch", stage="train")), *modules(experiment("jax", stage="seeds"))}
    decides = {"runs.fit", "runs.weights", "runs.result", "runs.adapters", "runs.loss_scale", "profilers.session"}
    decides |= {"report.intervals", "sweep.compose", "sweep.entries", "sweep.schedule", "machine.capability"}
    assert {f"pipeline.{name}" for name in decides} <= found
    watching = {name for name in found if name.startswith(code.WATCHING)} - {*code.DECIDING}
    assert watching <= {"pipeline.runs", "pipeline.sweep", "pipeline.report", "pipeline.profilers"}
