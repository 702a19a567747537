"""stage=frameworks: every cell is what the code does, by its command; docs/frameworks.md is what is generated."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from command import brought, environment, pipeline, refused

from pipeline.backends import Jax, TensorFlow, Torch
from pipeline.command_line import composed
from pipeline.errors import UserError
from pipeline.machine.environment import environment as deciding
from pipeline.machine.host import cpu_name
from pipeline.ready import check_stage, load_checked
from pipeline.runs.journal import Journal
from pipeline.runs.receipt import version_of
from pipeline.runs.result import Result, count, seconds
from pipeline.runs.saved import code_now
from pipeline.spec import Config
from pipeline.stages.export import WRITTEN_BY
from pipeline.stages.frameworks.checked import FIRST_OF_TWO, commands
from pipeline.stages.frameworks.duties import DUTIES, FRAMEWORKS, Cell, cells
from pipeline.stages.frameworks.installed import installed
from pipeline.stages.frameworks.overhead import measured
from pipeline.stages.graph.stage import Graph

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "tensorflow", "jax", "keras", "deepxde", "mlflow", "matplotlib")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Cell]]:
    """The cells by duty and framework, where nothing has run."""
    with commands() as by:
        found = {duty.name: list(cells(duty, by, tmp_path_factory.mktemp("runs"))) for duty in DUTIES}
    return {name: {one.framework: one for one in row} for name, row in found.items()}


def overrides_of(command: str) -> list[str]:
    """The words that Hydra gets of a command of the table."""
    made = re.fullmatch(r'make run (?:EXTRA=(\w+) )?ARGS="(.*)"', command)
    if made:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert made[1] is None or made[1] in extras
        return shlex.split(made[2])
    before, _, words = command.partition(" -m pipeline ")
    assert before == "python" or before.startswith("torchrun --nnodes=2 "), command
    return shlex.split(words)


def verdict(words: Sequence[str]) -> str | None:
    """What the command line itself makes of the words, but for what this machine is: the message of its refusal."""
    said: list[str | None] = []

    def check(config: Mapping[str, Any], keys: Sequence[str]) -> int:
        check_stage(load_checked(config, keys), keys)
        return 0

    try:
        composed(list(words), check)
    except UserError as error:
        said.append(str(error))
    return said[0] if said else None


@pytest.mark.wide
def test_every_command_is_taken_or_refused_as_its_cell_says(
    table: dict[str, dict[str, Cell]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where `run=latest` names no run, whose choices would count
    monkeypatch.setattr(sys, "argv", ["pipeline"])
    every = [one for row in table.values() for one in row.values()]
    assert all(one.refused or one.says for one in every)
    said: dict[tuple[str, ...], str | None] = {}  # several cells have the same command
    for one in every:
        words = tuple(overrides_of(one.command))
        if "torchrun" in one.command:  # which Hydra does not see
            continue
        if words not in said:
            said[words] = verdict(words)
        assert said[words] == one.refused, one


def test_what_a_cell_says_is_what_the_code_does(table: dict[str, dict[str, Cell]]) -> None:
    """By a few that are known from elsewhere: the tests of processes, exports and precisions."""
    taken = {name: [framework for framework, one in row.items() if not one.refused] for name, row in table.items()}
    assert taken["several GPUs"] == ["PyTorch", "JAX"]
    assert taken["a split model"] == ["JAX"]
    assert taken["machines"] == ["PyTorch"]
    assert taken["exchange"] == [
        one.name for one in FRAMEWORKS if "stage=" not in one.words and "onnx" in WRITTEN_BY[one.backend.name]
    ]
    for name in ("tensors", "graphs", "databases", "weights out", "weights in", "overhead"):
        assert taken[name][:3] == ["PyTorch", "TensorFlow", "JAX"]
    for name in ("defaults", "installing"):
        assert taken[name] == ["PyTorch", "TensorFlow", "JAX", "DeepXDE"]
    assert "backend=jax trains in one" in str(table["machines"]["JAX"].refused)
    assert "not tf32" in table["tensors"]["PyTorch"].says
    assert "digits" in table["databases"]["JAX"].says and "mnist" in table["databases"]["JAX"].says


def test_the_graphs_are_those_that_the_command_makes(table: dict[str, dict[str, Cell]]) -> None:
    """torch's ways as they are when they are imported; of a framework that keeps them in a class above, its formats."""
    from pipeline.backends.torch.two_layer import WAYS

    graphs = [way for way in WAYS if not way.eager]
    made, saved = (way.how for way in graphs), (way.saved_as for way in graphs if way.saved_as)
    said = f"a step by {'; by '.join(made)}; saved as {', '.join(saved)}, and run without this package"
    assert table["graphs"]["PyTorch"].says == said
    for name, kind in (("TensorFlow", "saved_model"), ("JAX", "jax_export")):
        assert f"; saved as {kind}, and" in table["graphs"][name].says
    assert table["models out"]["PyTorch"].says == "torch_export, onnx, onnx_int8"


def test_a_cell_follows_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Were TensorFlow able to train in several processes, or torch unable, the table would say so."""
    monkeypatch.setattr(TensorFlow, "distributes", True)
    monkeypatch.setattr(Torch, "distributes", False)
    monkeypatch.setitem(WRITTEN_BY, "jax", ("safetensors", "onnx"))
    rows = {duty.name: duty for duty in DUTIES}
    with commands() as by:
        several = {one.framework: one.refused for one in cells(rows["several GPUs"], by, tmp_path)}
        exchange = {one.framework: one.refused for one in cells(rows["exchange"], by, tmp_path)}
    assert several["TensorFlow"] is None and "it trains in one process" in str(several["PyTorch"])
    assert exchange["JAX"] is None and exchange["TensorFlow"] is not None


def test_a_launcher_is_part_of_the_check() -> None:
    with commands() as by:
        assert by.check("device.processes=2 backend=torch", FIRST_OF_TWO).refused is None
        assert "use device.processes=2" in str(by.check("device.processes=3 backend=torch", FIRST_OF_TWO).refused)


def test_the_page_is_what_the_command_writes(tmp_path: Path) -> None:
    result = pipeline(tmp_path, "stage=frameworks", "stage.markdown=page.md", COLUMNS="80")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs/frameworks.md").read_text()
    for line in result.stdout.splitlines():
        assert len(line) <= 80, line
    assert f"torch {distribution('torch').version}" in result.stdout
    assert not (tmp_path / "runs").exists()


def test_no_framework_is_imported(tmp_path: Path) -> None:
    said = f"print(*sorted({set(HEAVY)} & set(sys.modules)))"
    program = f"import sys; from pipeline.command_line import composed; composed(['stage=frameworks']); {said}"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == ""


def test_the_overhead_is_that_of_the_newest_run_with_the_framework(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert measured(runs, Torch()) is None
    for way, step in (("torch_eager", 0.002), ("torch_eager", 0.004), ("jax_jit", 0.001)):
        journal = overhead_of(runs, way, step)
    assert str(measured(runs, Torch())).startswith("torch_eager 4.00 ms, 25% until the call returns, n=5 (on cpu, run ")
    assert str(measured(runs, Jax())).startswith("jax_jit 1.00 ms, 25% until the call returns, n=5 (on cpu, run ")
    assert measured(runs, TensorFlow()) is None
    status = json.loads((journal.folder / "status.json").read_text())
    (journal.folder / "status.json").write_text(json.dumps({**status, "state": "FAILED"}))
    assert measured(runs, Jax()) is None


@pytest.mark.parametrize(
    "other",
    [
        {"torch": "2.0.0"},
        {"device": "another"},
        {"cores": 0},
        {"python": "3.0.0"},
        {"environment": {"OMP_PROC_BIND": "true"}},
        {"sizes": (1, 1, 1, 1)},
        {"code": "older"},
        {"samples": 4},
    ],
)
def test_an_overhead_of_other_circumstances_is_not_shown(tmp_path: Path, other: dict[str, Any]) -> None:
    overhead_of(tmp_path, "torch_eager", 0.002, **other)
    assert measured(tmp_path, Torch()) is None


def test_an_overhead_beside_other_processes_says_so(tmp_path: Path) -> None:
    for had, said in (([0.99, 1.0], ""), ([], ""), ([1.0, 0.41], "; other processes left 41% of the cores")):
        journal = overhead_of(tmp_path, "torch_eager", 0.002, had=had)
        assert str(measured(tmp_path, Torch())).endswith(f"n=5 (on cpu, run {journal.folder.name}{said})")


def overhead_of(runs: Path, way: str, step: float, **other: Any) -> Journal:
    """A finished run of stage=graph, of today where nothing else is said."""
    names = (*Torch.packages, *Jax.packages)
    sizes = list(other.get("sizes", Graph.sizes))
    journal = Journal.begin(runs, "graph", config_of("stage=graph", f"stage.sizes={sizes}"))
    versions = {name: other.get(name, version_of(name)) for name in names}
    versions["python"] = other.get("python", platform.python_version())
    device = {"effective": "cpu", "hardware": {"name": other.get("device", cpu_name())}}
    cores = other.get("cores", len(os.sched_getaffinity(0)))
    code = other.get("code", code_now(journal.folder))
    receipt = {"versions": versions, "device": device, "cores": cores, "code_sha256": code}
    ran = {"environment": other.get("environment", deciding()), "cores_had": other.get("had", [1.0])}
    journal.write_receipt(receipt | ran)
    times = [seconds(f"{way}/{n}/{what}", step * share) for n in (1, 10) for what, share in PARTS]
    samples = [count(f"{way}/{n}/samples", other.get("samples", 5), "samples") for n in (1, 10)]
    journal.write_result(Result(metrics=(*times, *samples, count("verified", 1))))
    journal.finish("FINISHED")
    return journal


def config_of(*words: str) -> Config:
    """The whole config, as the command composes it."""
    found: list[Config] = []

    def take(config: Config, _: Sequence[str]) -> int:
        found.append(config)
        return 0

    composed(list(words), take)
    return found[0]


PARTS = (("step", 1.0), ("launch", 0.25))


def test_what_is_installed_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that requires another, as pip leaves them, and one that is not there."""
    for name, requires, bytes_ in (("upper", "Requires-Dist: lower>=1\n", 3000), ("lower", "", 1096)):
        folder = tmp_path / f"{name}-1.5.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n{requires}")
        (folder / "RECORD").write_text(f'"{name}/a,b.py",sha256=x,{bytes_}\n{name}-1.5.dist-info/RECORD,,\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed(["upper"]) == "upper 1.5; 4.0 KiB on disk with what is required (1 more)"
    assert installed(["no_such_package"]) == "no_such_package not installed"


def test_a_framework_that_another_distribution_brings_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tensorflow-cpu brings tensorflow, which was `not installed`, and took no bytes on disk."""
    monkeypatch.syspath_prepend(str(brought(tmp_path, "outer")))
    assert installed(["outer"]) == "outer 1.5 (outer-cpu); 2.9 KiB on disk with what is required (0 more)"


def test_what_it_does_not_follow_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, "stage=frameworks", "backend=jax")
    assert said == "backend with stage=frameworks: the table is of all frameworks; leave it out"
    said = refused(tmp_path, "stage=frameworks", "tracking=none")
    assert said == "tracking with stage=frameworks: nothing is recorded, the table is printed; leave it out"


def test_a_page_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    result = pipeline(tmp_path, "stage=frameworks", "stage.markdown=no/such/page.md")
    assert result.returncode == 2
    assert result.stderr.startswith("error: stage.markdown: cannot write no/such/page.md: No such file or directory")
