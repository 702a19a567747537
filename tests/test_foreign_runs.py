"""A run's folder that somebody sends: nothing in it is executed, and what is damaged or hostile ends in a message."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import message, pipeline
from test_saved import saved

from pipeline.runs import checkpoint, weights
from pipeline.runs.json_files import read_json
from pipeline.runs.records import parse, read_config, read_status
from pipeline.runs.result import read_result

DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
LEVELS = "abcdefghijkl"
# Twelve lines that stand for 9^12 values.
BOMB = "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}' if before else '0'] * 9)}]"
    for before, name in zip(["", *LEVELS], LEVELS, strict=False)
)


def run_folder(folder: Path) -> Path:
    return folder / "runs" / saved(folder)


def test_json_that_nests_too_deeply_is_damaged(tmp_path: Path) -> None:
    """Python's reader goes down level by level and raises RecursionError."""
    for name in ("status.json", "result.json", "card.json", "progress.json"):
        (tmp_path / name).write_bytes(DEEP)
    assert read_status(tmp_path) is None
    assert read_result(tmp_path) is None
    assert read_json(tmp_path / "card.json") == {}
    assert parse(DEEP) is None
    with pytest.raises(ValueError, match="nested too deeply"):
        checkpoint.read(tmp_path, tmp_path)


@pytest.mark.parametrize("text", ["a: " + "[" * 200 + "]" * 200, BOMB, f"a: {'9' * 10_000}", "a: 2026-99-99"])
def test_a_config_of_too_many_levels_or_values_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert read_config(tmp_path) == {}


def test_one_damaged_run_hides_no_other(tmp_path: Path) -> None:
    """libyaml ends the process where a config nests too deeply for its stack."""
    damaged = run_folder(tmp_path)
    other = shutil.copytree(damaged, damaged.with_name("other"))
    (damaged / "config.yaml").write_text("a: " + "[" * 100_000 + "]" * 100_000)
    (damaged / "receipt.json").write_bytes(DEEP)
    listed = pipeline(tmp_path, "stage=runs")
    assert listed.returncode == 0, listed.stderr
    assert other.name in listed.stdout
    assert f"{damaged / 'config.yaml'} is missing or damaged" in message(
        pipeline(tmp_path, "stage=evaluate", f"run={damaged.name}")
    )


def test_a_group_of_a_saved_config_that_is_none_is_said(tmp_path: Path) -> None:
    sent = run_folder(tmp_path)
    config = read_config(sent)
    (sent / "config.yaml").write_text(yaml.safe_dump({**config, "dataset": 5}))
    assert message(pipeline(tmp_path, "stage=evaluate", f"run={sent.name}")) == (
        f"run={sent.name}: {sent / 'config.yaml'} is damaged: dataset=5"
    )


def test_a_saved_config_calls_nothing_of_this_package(tmp_path: Path) -> None:
    """Its functions are on the allow-list, and some of them start a program that they are given."""
    sent = run_folder(tmp_path)
    weights.save(sent / "artifacts" / "model" / "weights.npz", {"kernel": np.zeros(1)})
    program = sent / "artifacts" / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    program.chmod(0o700)
    target = "pipeline.kernels.shim.program._takes_flags"
    dataset = {
        "_target_": "pipeline.datasets.examples.Examples",
        "train": target,
        "arguments": {"program": str(program)},
    }
    (sent / "config.yaml").write_text(yaml.safe_dump({**read_config(sent), "dataset": dataset}))
    said = message(pipeline(tmp_path, "stage=evaluate", f"run={sent.name}", "tracking=none"))
    assert not (tmp_path / "started").exists()
    assert said == f"run={sent.name}: dataset.train={target}: is this package's; name what is in a module of yours"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("stage=lightning", "stage.module=pipeline.runs.deletion.delete"), "stage.module"),
        (("stage=lightning", "stage.module=json.loads", "stage.data=pipeline.ready.ready"), "stage.data"),
        (("stage=keras", "stage.model=pipeline.ready.ready", "stage.data=json.loads", "backend=jax"), "stage.model"),
    ],
)
def test_nor_do_the_stages_that_train_what_is_the_users(tmp_path: Path, words: tuple[str, ...], named: str) -> None:
    target = next(word.partition("=")[2] for word in words if word.startswith(f"{named}="))
    said = message(pipeline(tmp_path, *words, "tracking=none", PIPELINE_MODULES="json"))
    assert said == f"{named}={target}: is this package's; name what is in a module of yours"
