"""stage=rerun: the same comes out again, and where it does not that is said first."""

from __future__ import annotations

import io
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import DIGITS, done, pipeline, refused, runs
from rich.console import Console
from test_runs_compare import ELSEWHERE, a_run, words

from pipeline.runs.differences import account_of
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.result import Metric, read_result
from pipeline.stages.about_runs.rerun import _report


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = (*DIGITS, "training.steps=80", "tracking=none", "seed=3", "name=first", "output_dir=runs")
    return done(tmp_path_factory.mktemp("rerun"), *words)


def again(source: Path, *arguments: str) -> tuple[int, str, Path]:
    """Exit status and output of the command, and the new run."""
    folder = source.parents[1]
    before = set(runs(folder))
    result = pipeline(folder, "stage=rerun", "tracking=none", f"run={source.name}", *arguments)
    (made,) = set(runs(folder)) - before
    return result.returncode, result.stdout, made


def test_a_run_comes_out_the_same_again(trained: Path) -> None:
    status, text, made = again(trained)
    assert status == 0, text
    assert f"Run {trained.name} again: the same weights and results to the bit." in " ".join(text.split())
    assert "The same: config, code, data, software, machine." in " ".join(text.split())
    assert read_json(made / "receipt.json")["weights_sha256"] == read_json(trained / "receipt.json")["weights_sha256"]
    then, now = (read_json(run / "result.json")["notes"] for run in (trained, made))
    assert now == then == ["training.epochs=2: training.steps=80 replaces it"]


def test_without_what_it_began_from_a_run_is_not_repeated(trained: Path, tmp_path: Path) -> None:
    """Before another run is made."""
    run = tmp_path / "runs" / trained.name
    shutil.copytree(trained, run)
    config = (run / "config.yaml").read_text()
    assert "\n  start: null\n" in config
    (run / "config.yaml").write_text(config.replace("\n  start: null\n", "\n  start: /gone/weights.npz\n", 1))
    said = f"run={run.name}: model.start=/gone/weights.npz is gone: put it back"
    assert refused(tmp_path, "stage=rerun", f"run={run.name}", "tracking=none") == said


def of_version(trained: Path, folder: Path, commit: str, setting: str, now: str) -> str:
    """The id of a copy of the run, made by `commit`, with a setting that is not one of today's."""
    run = folder / "runs" / trained.name
    shutil.copytree(trained, run)
    config = (run / "config.yaml").read_text()
    assert now in config
    (run / "config.yaml").write_text(config.replace(now, setting, 1))
    receipt = read_json(run / "receipt.json")
    write_json(run / "receipt.json", {**receipt, "git": {"pipeline": {"commit": commit, "dirty": False}}})
    return run.name


@pytest.mark.parametrize(
    ("setting", "now", "said"),
    [
        ("pipeline.device.Device", "pipeline.machine.device.Device", "device._target_=pipeline.device.Device: no modu"),
        ("max_hours: null", "max_time: null", "training.max_hours: no such key"),
        ("patience: 0", "patience: null", "training.patience=0: "),
    ],
)
def test_of_settings_of_another_version_it_is_said_which_version_has_them(
    trained: Path, tmp_path: Path, setting: str, now: str, said: str
) -> None:
    run = of_version(trained, tmp_path, "1" * 40, setting, now)
    for stage in ("rerun", "evaluate"):
        found = refused(tmp_path, f"stage={stage}", f"run={run}", "tracking=none")
        assert found.startswith(f"run={run}: {said}"), found
        assert found.endswith("; commit 111111111111 of this package made the run: git checkout 111111111111"), found


def test_what_is_not_for_another_version_to_mend_names_none(trained: Path, tmp_path: Path) -> None:
    """The environment that lacks something, an override of this command, and settings that this very version had."""
    run = of_version(trained, tmp_path, "1" * 40, "${oc.env:PATIENCE}", "null")
    assert "git checkout" not in refused(tmp_path, "stage=rerun", f"run={run}", "tracking=none")
    for number, setting in enumerate(("patience: null", "patience: 0")):
        folder = tmp_path / f"{number}"
        other = of_version(trained, folder, "1" * 40, setting, "patience: null")
        said = refused(folder, "stage=evaluate", f"run={other}", "device.memory_limit=[1]", "tracking=none")
        assert said.startswith("device.memory_limit=[1]: ") and "git checkout" not in said, said
    commit = read_json(trained / "receipt.json")["git"]["pipeline"]["commit"]
    same = of_version(trained, tmp_path / "same", commit, "patience: 0", "patience: null")
    assert "git checkout" not in refused(tmp_path / "same", "stage=rerun", f"run={same}", "tracking=none")


def test_an_export_is_not_taken_for_the_training(trained: Path, tmp_path: Path) -> None:
    """Where it was the latest run, its weights came out the same, which no training had made."""
    shutil.copytree(trained, tmp_path / "runs" / trained.name)
    done(tmp_path, "stage=export", f"run={trained.name}", "tracking=none")
    result = pipeline(tmp_path, "stage=rerun", "run=latest", "tracking=none")
    assert result.returncode == 0, result.stderr
    said = f"is a run of stage=export on {trained.name}, in which nothing is trained; to train again name that run"
    assert f": {said}\n" in result.stderr
    assert "again: the same results to the bit." in " ".join(result.stdout.split())


@pytest.mark.wide
def test_an_evaluation_is_repeated_on_the_run_that_it_was_of(trained: Path) -> None:
    folder = trained.parents[1]
    evaluated = done(folder, "stage=evaluate", f"run={trained.name}", "tracking=none")
    status, text, made = again(evaluated)
    assert status == 0, text
    assert read_json(made / "receipt.json")["source_run"] == trained.name


@pytest.mark.parametrize(
    ("accuracy", "changed", "status", "said"),
    [
        (0.5, {}, True, "again: the same weights and results to the bit. The same: config, code, data, software, mach"),
        (0.5, {"versions": {"torch": "9"}}, True, "results to the bit, though software differs."),
        (0.5, {"weights_sha256": "9" * 64}, False, "again: not the same; nothing that is recorded differs."),
        (0.625, {"code_sha256": "0" * 64}, False, "again: not the same; differences in code. The same: config, data"),
        (0.5, {"config_sha256": "0" * 64}, True, "to the bit, though config differs."),
        (0.625, ELSEWHERE, False, "again: not the same; differences in resumption. The same: config, code, data, soft"),
    ],
)
def test_what_is_said_of_the_second_run(
    tmp_path: Path, accuracy: float, changed: dict[str, Any], status: bool, said: str
) -> None:
    then, now = a_run(tmp_path, 0.5), a_run(tmp_path, accuracy, speed=1.0, **changed)
    console = Console(file=io.StringIO(), width=80)
    assert _report(console, account_of(then), account_of(now)) is status
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert said in " ".join(text.split())
    if not status:  # first of all
        assert re.match(r"\s*came out differently", text)
        assert (["test/accuracy", "0.5", "0.625"] in words(text)) is (accuracy != 0.5)
        assert (["weights", "abc", "999999999999"] in words(text)) is ("weights_sha256" in changed)


def test_a_metric_that_an_older_version_did_not_measure_is_not_another_result(tmp_path: Path) -> None:
    then, now = a_run(tmp_path, 0.5), a_run(tmp_path, 0.5)
    result = read_result(now)
    assert result is not None
    more = replace(result, metrics=(*result.metrics, Metric("test/macro_f1", 0.25, direction="max")))
    write_json(now / "result.json", more.plain())
    for first, second, same in ((then, now, True), (now, then, False)):
        console = Console(file=io.StringIO(), width=80)
        assert _report(console, account_of(first), account_of(second)) is same
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("came out differently" not in text) is same
        assert ("Measured only now: test/macro_f1." in " ".join(text.split())) is same


def test_a_run_that_cannot_be_repeated_is_refused(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "copied"
    shutil.copytree(trained, folder)
    assert "run=null with stage=rerun" in refused(tmp_path, "stage=rerun")
    assert "seed with stage=rerun: this stage works on saved" in refused(
        tmp_path, "stage=rerun", "run=latest", "seed=1"
    )
    (folder / "result.json").unlink()
    lost = "result.json is missing, damaged or of an early version, so there is nothing"
    assert lost in refused(tmp_path, "stage=rerun", "run=copied")
    shutil.copy(trained / "result.json", folder)
    for kind in ("grid", "search"):
        (folder / "config.yaml").write_text(f"{kind}: {{seed: '0,1'}}\ncells: 2\n")
        said = f"run=copied: is a {kind}; rerun the run of one of its cells, as stage=runs lists them"
        assert refused(tmp_path, "stage=rerun", "run=copied") == said
    (folder / "config.yaml").write_text("model: [")
    assert "config.yaml is missing or damaged" in refused(tmp_path, "stage=rerun", "run=copied")
