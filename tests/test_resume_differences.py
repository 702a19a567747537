"""What keeps a killed run from going on as it was: each circumstance by itself, and which runs are asked about."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import write_files
from in_backend import experiment, on_cpu

from pipeline.errors import UserError
from pipeline.experiment import Experiment, load
from pipeline.experiment.training import Checkpoints
from pipeline.runs.checkpoint import Writer, newest
from pipeline.runs.code.code_hash import modules
from pipeline.runs.dynamic_imports import EDITED
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.receipt import before
from pipeline.runs.records import TOO_LONG, State
from pipeline.runs.resume import DEAD, begun_before, differences, identity, resumed, resumptions

EVERY = "training.checkpoint.every"


def asked_in(root: Path, **changes: Any) -> Experiment:
    """A training whose runs lie below `root`."""
    config: dict[str, Any] = {**experiment("torch").config, "output_dir": str(root), **changes}
    return load(config)


def dead(
    asked: Experiment, state: State = "KILLED", error: str = "", name: str = "a run", progress: Mapping[str, Any] = {}
) -> Path:
    """The folder of a run that has ended after its third step, with a checkpoint."""
    journal = Journal.begin(Path(asked.settings.output_dir), name, asked.config)
    journal.write_receipt(before(asked, on_cpu(asked)))
    journal.write_code(modules(asked))
    where = {"step": 3, "journal_bytes": 0, "identity": identity(), "imported_beside": {}, **progress}
    writer = Writer(journal.folder, Checkpoints(every=1), 0, print)
    writer.write(3, where, {"state": lambda path: path.write_bytes(b"weights")}, first=int)
    writer.close()
    journal.finish(state, error or None)
    return journal.folder


def found(run: Path, asked: Experiment) -> list[str]:
    checkpoint, notes = newest(run)
    assert checkpoint is not None and not notes
    return differences(run, checkpoint, before(asked, on_cpu(asked)), asked)


def change(run: Path, *keys: str, to: object) -> None:
    """A value of the receipt, or without `to` no value."""
    receipt = read_json(run / "receipt.json")
    at = receipt
    for key in keys[:-1]:
        at = at[key]
    if to is None:
        del at[keys[-1]]
    else:
        at[keys[-1]] = to
    write_json(run / "receipt.json", receipt)


def test_each_circumstance_that_is_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that was set, or is set now; a package that was there, or has come; a machine of that many cores."""
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    asked = asked_in(tmp_path)
    run = dead(asked)
    assert found(run, asked) == []
    whole = (run / "receipt.json").read_bytes()
    torch = read_json(run / "receipt.json")["versions"]["torch"]
    for keys, to, said in (
        (("config_sha256",), "0", "settings"),
        (("code_sha256",), "0", "code"),
        (("versions", "torch"), "1.0", f"torch 1.0, now {torch}"),
        (("versions", "torch"), None, f"torch None, now {torch}"),
        (("versions", "gone"), "2.0", "gone 2.0, now None"),
        (("environment", "MKL_CBWR"), None, "MKL_CBWR=, now AVX2"),
        (("environment", "TORCH_OLD"), "1", "TORCH_OLD=1, now "),
        (("device", "hardware", "name"), "another", f"the device (another -> {device_of(run)})"),
    ):
        change(run, *keys, to=to)
        assert found(run, asked) == [said]
        (run / "receipt.json").write_bytes(whole)
    change(run, "device", "hardware", "cores", to=10_000)  # of which this process may use as many as before
    assert found(run, asked) == []
    (run / "receipt.json").write_text("{")
    assert found(run, asked) == ["receipt.json is missing or damaged"]


def device_of(run: Path) -> str:
    return str(read_json(run / "receipt.json")["device"]["hardware"]["name"])


def test_other_cores_are_other_sums_whatever_the_machine_has(tmp_path: Path) -> None:
    asked, cores = asked_in(tmp_path), len(os.sched_getaffinity(0))
    assert found(dead(asked, progress={"identity": {"cores": cores + 1}}), asked) == [f"cores {cores + 1}, now {cores}"]
    allowed = os.sched_getaffinity(0)
    run = dead(asked)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert found(run, asked) == ([f"cores {cores}, now 1"] if cores > 1 else [])
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_module_of_a_computed_name_is_compared_by_the_checkpoint(tmp_path: Path) -> None:
    """The receipt has those of the process before; one that was edited while it ran was never this one's."""
    part = tmp_path / "the_part.py"
    part.write_text("WIDTH = 3\n")
    other = {"the_part": {"file": str(part), "sha256": "0"}}
    asked = asked_in(tmp_path / "runs")
    assert found(dead(asked, progress={"imported_beside": other}), asked) == ["code of the_part"]
    edited = {"the_part": {"file": str(part), "sha256": EDITED}}
    run = dead(asked, progress={"imported_beside": edited})
    change(run, "imported_beside", to=other)
    assert found(run, asked) == []


def test_the_modules_that_have_changed_are_counted(tmp_path: Path) -> None:
    asked = asked_in(tmp_path)
    run = dead(asked)
    names = [name for name in modules(asked) if name.startswith("pipeline.models.")][:5]
    change(run, "code_sha256", to="0")
    for count, more in ((3, ""), (5, " and 2 more")):
        then = {**modules(asked), **dict.fromkeys(names[:count], "0")}
        (run / "code.json").write_text(json.dumps(then))
        assert found(run, asked) == [f"code of {', '.join(sorted(names[:count])[:3])}{more}, or files that it reads"]


def test_the_newest_run_that_was_killed_goes_on_where_all_is_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = asked_in(tmp_path)
    assert begun_before(asked, on_cpu(asked)) is None
    first = dead(asked)
    second = dead(asked)
    dead(asked_in(tmp_path, seed=7))
    for run, state in ((dead(asked, "FAILED", "it went wrong"), "FAILED"), (dead(asked, "FINISHED"), "FINISHED")):
        assert read_json(run / "status.json")["state"] == state
    checkpoint = begun_before(asked, on_cpu(asked))
    assert checkpoint is not None and checkpoint.folder.parents[1] == second
    assert capsys.readouterr().err == ""
    change(second, "versions", "torch", to="1.0")
    checkpoint = begun_before(asked, on_cpu(asked))
    assert checkpoint is not None and checkpoint.folder.parents[1] == first
    assert f"{second.name} was killed and is not resumed: torch 1.0, now " in capsys.readouterr().err
    change(first, "profiler", to={"_target_": "another"})
    assert begun_before(asked, on_cpu(asked)) is None
    assert f"{first.name} was killed and is not resumed: another profiler" in capsys.readouterr().err


def test_a_run_of_another_swept_value_does_not_go_on(tmp_path: Path) -> None:
    """No result depends on how often a checkpoint is written: its hash is that of the other cell."""
    asked = asked_in(tmp_path)
    run = dead(asked)
    config = {**asked.config["training"], "checkpoint": {**asked.config["training"]["checkpoint"], "every": 9}}
    often = asked_in(tmp_path, training=config)
    assert often.config_sha256() == asked.config_sha256()
    assert begun_before(often, on_cpu(often), (EVERY,)) is None
    checkpoint = begun_before(often, on_cpu(often))  # of a command that sweeps something else
    assert checkpoint is not None and checkpoint.folder.parents[1] == run


def test_of_those_that_failed_one_goes_on_that_was_out_of_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It failed by itself, and would at the same place; or it goes on, and another name of it is said."""
    asked = asked_in(tmp_path)
    late = dead(asked, "FAILED", f"{TOO_LONG}sweep.timeout=3 s", name="late")
    dead(asked, "FAILED", "a loss that is not finite")
    assert begun_before(asked, on_cpu(asked)) is None
    checkpoint = begun_before(asked, on_cpu(asked), states=DEAD)
    assert checkpoint is not None and checkpoint.folder.parents[1] == late
    assert capsys.readouterr().err == ""
    named = asked_in(tmp_path, name="early")
    assert begun_before(named, on_cpu(named), states=DEAD) is not None
    assert f"name=early: resumes {late.name}, which keeps its name, late" in capsys.readouterr().err
    change(late, "code_sha256", to="0")
    assert begun_before(asked, on_cpu(asked), states=DEAD) is None
    assert f"{late.name} was stopped and is not resumed: code" in capsys.readouterr().err


def test_the_receipt_of_a_run_that_goes_on_keeps_every_time_that_it_did(tmp_path: Path) -> None:
    asked = asked_in(tmp_path)
    folder = dead(asked, progress={"note": "as a new one"})
    checkpoint, _ = newest(folder)
    assert checkpoint is not None
    fresh: Any = SimpleNamespace(checkpoint=None)
    assert resumptions(fresh) == {}
    run: Any = SimpleNamespace(checkpoint=checkpoint, folder=folder, earlier_s=4.5)
    once = resumptions(run)
    (entry,) = once["resumed"]
    assert (entry["step"], entry["earlier_s"], entry["differences"], entry["note"]) == (3, 4.5, [], "as a new one")
    assert once["of_the_last_process"] == ["peak_memory", "device.cpu_threads"]
    change(folder, "resumed", to=once["resumed"])
    run.checkpoint = replace(checkpoint, differences=("code",))
    twice = resumptions(run)["resumed"]
    assert len(twice) == 2 and twice[0] == entry and twice[1]["differences"] == ["code"]


def asked_for(root: Path, reference: str = "latest", strict: bool = True) -> dict[str, Any]:
    """The config of a command that goes on with a run, as far as it is looked at."""
    return {"resume": reference, "output_dir": str(root), "training": {"checkpoint": {"strict": strict}}}


def test_the_latest_is_the_newest_of_those_that_were_killed_or_failed(tmp_path: Path) -> None:
    """Neither one that goes on nor one that is over; by when they began, whatever they are called."""
    asked = asked_in(tmp_path)
    failed = dead(asked, "FAILED", "not finite")
    assert resumed(asked_for(tmp_path), ())[0] == failed
    old = failed.rename(failed.with_name("zzz"))
    new = dead(asked)
    for over in (dead(asked, "PRUNED"), dead(asked, "FINISHED")):  # whose checkpoint is gone, but for a copy
        shutil.copytree(new / "checkpoints", over / "checkpoints")
    going_on = Journal.begin(tmp_path, "a run", asked.config)
    shutil.copytree(new / "checkpoints", going_on.folder / "checkpoints")
    assert resumed(asked_for(tmp_path), ())[0] == new
    assert resumed(asked_for(tmp_path, old.name), ())[0] == old
    with pytest.raises(UserError, match=rf"{going_on.id} is still running \(process {os.getpid()} on "):
        resumed(asked_for(tmp_path, going_on.id), ())
    with pytest.raises(UserError, match=f"^resume={over.name}: {over.name} is FINISHED$"):
        resumed(asked_for(tmp_path, over.name), ())
    write_files(over, {"artifacts/model/weights.npz": ""})
    with pytest.raises(UserError, match=rf"is FINISHED; stage=rerun run={over.name} repeats it$"):
        resumed(asked_for(tmp_path, over.name), ())
    going_on.finish("KILLED")


def test_a_run_goes_on_as_it_was_set_and_where_it_lies(tmp_path: Path) -> None:
    """Its `training.checkpoint.strict` holds unless the command has another; the runs' folder may have moved."""
    shipped = experiment("torch").config["training"]
    training = {**shipped, "checkpoint": {**shipped["checkpoint"], "strict": False}}
    dead(asked_in(tmp_path / "before", training=training))
    root = (tmp_path / "before").rename(tmp_path / "now")
    for overridden, strict in (((), False), (("training.checkpoint.strict",), True)):
        folder, saved, checkpoint, notes = resumed(asked_for(root), overridden)
        assert (saved["output_dir"], saved["training"]["checkpoint"]["strict"]) == (str(root), strict)
        assert (checkpoint.step, checkpoint.folder.parents[1], notes) == (3, folder, [])
    shutil.copytree(checkpoint.folder, checkpoint.folder.with_name("step-0000000009"))
    (checkpoint.folder.with_name("step-0000000009") / "state").write_bytes(b"torn")
    said = "step-0000000009 is damaged (state has another sha256)"
    assert resumed(asked_for(root), ())[3] == [f"{said}; the one before it is used"]
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text("{")
    with pytest.raises(UserError, match=r"config\.yaml is missing or damaged$"):
        resumed(asked_for(root), ())
    (folder / "config.yaml").write_text(config)
    shutil.rmtree(checkpoint.folder)
    with pytest.raises(UserError, match=re.escape(f"{folder.name} has no checkpoint; {said}; run it again")):
        resumed(asked_for(root, folder.name), ())
    with pytest.raises(UserError, match=r"^model with resume=latest: a run resumes with its own settings"):
        resumed(asked_for(root), ("output_dir", "model"))
