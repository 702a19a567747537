"""What a spec lacks of its contract is one message, and mypy finds it; the contracts cost no import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from own_problems import NoUnknowns

from pipeline import contracts
from pipeline.contracts import Loader, Loss, Model, Optimizer, Part, Profiler, Stage
from pipeline.contracts.physics import Problem
from pipeline.errors import UserError
from pipeline.experiment import GROUPS
from pipeline.faults import fault
from pipeline.spec import build, spec

ROOT = Path(__file__).parents[1]


@spec
class Foreign:
    def run(self, experiment: Any, resolved: Any, run: Any) -> None: ...


@spec
class Unfinished(Stage):
    settings: int = 1


@spec
class Misspelt(Stage):
    def rum(self, experiment: Any, resolved: Any, run: Any) -> None: ...


@spec
class MisspeltOptional(Stage):
    def run(self, experiment: Any, resolved: Any, run: Any) -> Any: ...

    def check_key(self, experiment: Any, keys: Any) -> None: ...


@spec
class ShortOfArguments(Stage):
    def run(self, experiment: Any) -> Any: ...  # type: ignore[override]


@spec
class NoBuilder(Model):
    units: int = 1


@spec
class NoSlots(Optimizer):
    def torch(self, parameters: Any) -> Any: ...


@spec
class NoNumbers(Loss):
    def torch(self) -> Any: ...


@spec
class NoBackends(Loader):
    steps_per_execution: int = 1

    def stream(self, data: Any, dtype: str, batch_size: int, seed: int, start: tuple[int, int] = (0, 0)) -> Any: ...


@spec
class NoWindow(Profiler):
    backends = ("torch",)

    def tool(self, experiment: Any, run: Any) -> None: ...


@spec
class More(Stage):
    """More than the contract asks for, and arguments by other names."""

    def run(self, one: Any, two: Any, three: Any, four: int = 4) -> Any: ...

    def summary(self) -> None: ...


@spec
class Inside(Model):
    """A field of the name of a property."""

    inside: int = 3  # type: ignore[assignment]


@spec
class OfAnother(Inside):
    width: int = 16


@spec
class Packages(Model):
    packages: tuple[str, ...] = ()  # type: ignore[misc]


@spec
class ChecksShapes(Model):
    check_shapes: bool = True  # type: ignore[assignment]


FAULTS: dict[str, tuple[type[Any], str]] = {
    "does not derive from pipeline.contracts.Stage; CONTRIBUTING.md says what one has to offer": (
        Foreign,
        "stage",
    ),
    "has no run(experiment, resolved, run)": (Unfinished, "stage"),
    "has no run(experiment, resolved, run); is rum() it, misspelt?": (Misspelt, "stage"),
    "defines no check_keys(experiment, keys); is check_key() it, misspelt?": (MisspeltOptional, "stage"),
    "run() has to take (experiment, resolved, run), and takes (experiment)": (ShortOfArguments, "stage"),
    "has neither torch(shapes) nor keras(shapes)": (NoBuilder, "model"),
    "has no slots()": (NoSlots, "optimizer"),
    "has no numpy(outputs, targets)": (NoNumbers, "loss"),
    "has no backends; pipeline.contracts.Loader says what it is": (NoBackends, "loader"),
    "has no skip, steps; pipeline.contracts.Profiler says what it is": (NoWindow, "profiler"),
    "has no unknowns, boundary; pipeline.contracts.physics.Problem says what it is": (NoUnknowns, "dataset"),
}

HIDING: dict[type[Any], tuple[str, str]] = {  # class -> the field's line, and what the field hides
    Inside: ("inside: int = 3  # type: ignore[assignment]", "Part.inside; call the field something else"),
    OfAnother: ("inside: int = 3  # type: ignore[assignment]", "Part.inside; call the field something else"),
    Packages: (
        "packages: tuple[str, ...] = ()  # type: ignore[misc]",
        "Part.packages; write packages: ClassVar, or call the field something else",
    ),
    ChecksShapes: (
        "check_shapes: bool = True  # type: ignore[assignment]",
        "Model.check_shapes; call the field something else",
    ),
}


@pytest.mark.parametrize("cls", HIDING)
def test_a_field_that_hides_a_member_of_the_contract_is_refused(
    monkeypatch: pytest.MonkeyPatch, cls: type[Any]
) -> None:
    monkeypatch.chdir(ROOT)
    target = f"{__name__}.{cls.__name__}"
    monkeypatch.setenv("PIPELINE_MODULES", __name__)
    monkeypatch.setattr("pipeline.allowed._taken", None)
    with pytest.raises(UserError) as caught:
        build({"_target_": target}, "model", GROUPS["model"])
    text, hidden = HIDING[cls]
    line = Path(__file__).read_text(encoding="utf-8").splitlines().index(f"    {text}") + 1
    field = f"field {text.partition(':')[0]} (tests/test_contracts.py, line {line})"
    assert str(caught.value) == f"model._target_={target}: {field} hides pipeline.contracts.{hidden}"


class OfEveryKind(Part):
    """Members of the kinds that no contract has now."""

    @classmethod
    def made(cls) -> int:
        return 1

    @cached_property
    def found(self) -> int:
        return 1


@spec
class Made(OfEveryKind):
    made: int = 3  # type: ignore[assignment]


@spec
class Found(OfEveryKind):
    found: int = 3


@pytest.mark.parametrize(("cls", "name"), [(Made, "made"), (Found, "found")])
def test_members_of_every_kind_are_not_hidden(cls: Any, name: str) -> None:
    said = fault(cls, (OfEveryKind,))
    assert said is not None
    assert said.endswith(f" hides {__name__}.OfEveryKind.{name}; call the field something else")


@pytest.mark.parametrize("message", FAULTS)
def test_what_a_spec_lacks_is_named(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    cls, group = FAULTS[message]
    target = f"{cls.__module__}.{cls.__name__}"
    monkeypatch.setenv("PIPELINE_MODULES", cls.__module__)
    monkeypatch.setattr("pipeline.allowed._taken", None)
    with pytest.raises(UserError) as caught:
        build({"_target_": target}, group, GROUPS[group])
    assert str(caught.value) == f"{group}._target_={target}: {message}"


def test_a_spec_may_offer_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_MODULES", __name__)
    monkeypatch.setattr("pipeline.allowed._taken", None)
    assert isinstance(build({"_target_": f"{__name__}.More"}, "stage", GROUPS["stage"]), More)


def test_a_method_is_offered_where_it_is_defined() -> None:
    from pipeline.models.mlp import Mlp
    from pipeline.pinn.problems.ode import Ode
    from pipeline.pinn.problems.poisson_lshape import PoissonLShape

    assert contracts.offers(PoissonLShape(), Problem.enrichment)
    assert not contracts.offers(Ode(), Problem.enrichment)
    assert contracts.defines(Mlp(), Model, "keras")


BROKEN = """
from pipeline.contracts import Optimizer


class Broken(Optimizer):
    def slot(self) -> int:
        return 0

    def keras(self, rate: float) -> object:
        return rate


_: Optimizer = Broken()
"""


def test_mypy_finds_a_broken_spec(tmp_path: Path) -> None:
    """Of this file and the contracts alone, which takes seconds; `make lint` checks the whole."""
    (tmp_path / "broken.py").write_text(BROKEN)
    shutil.copytree(ROOT / "src/pipeline/contracts", tmp_path / "pipeline/contracts")
    (tmp_path / "pipeline/__init__.py").touch()
    flags = ("--strict", "--follow-imports=skip", "--config-file=", f"--cache-dir={tmp_path}")
    command = [sys.executable, "-m", "mypy", *flags, "broken.py", "pipeline/contracts"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("broken.py")]
    assert any('Signature of "keras" incompatible with supertype' in line for line in found), done.stdout
    assert any('abstract class "Broken" with abstract attribute "slots"' in line for line in found), done.stdout


def test_the_contracts_import_nothing_of_the_pipeline() -> None:
    """import-linter leaves their imports out: they are for annotations alone."""
    code = "import sys, pipeline.contracts.physics; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = [name for name in done.stdout.split() if name.startswith(("pipeline", "numpy", "pydantic"))]
    rooms = ("contracts.part", "contracts.running", "contracts.training", "contracts", "contracts.physics")
    assert ours == ["pipeline", *(f"pipeline.{room}" for room in rooms)]


def lint(root: Path) -> str:
    """What import-linter says of the sources below `root`."""
    command = [
        str(Path(sys.executable).with_name("lint-imports")),
        "--no-cache",
        "--no-logo",
        f"--config={ROOT}/pyproject.toml",
    ]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    return done.stdout


PLANTED = {
    "runs/planted.py": (
        "from pipeline.runner import run_one\n",
        "pipeline.runs is not allowed to import pipeline.runner",
    ),
    "report/planted.py": (
        "import pipeline.tracking.find\n",
        "pipeline.report is not allowed to import pipeline.tracking",
    ),
    "machine/planted.py": (
        "def cores():\n    import torch\n    return torch.get_num_threads()\n",
        "pipeline is not allowed to import torch",
    ),
    "pinn/domain_planted.py": ("import jax.numpy\n", "pipeline is not allowed to import jax"),
    "study/outcome_planted.py": (
        "from pipeline.study import lock_planted\n",
        "No cycles are allowed in pipeline.study",
    ),
    "study/lock_planted.py": (
        "from pipeline.study import outcome_planted\n",
        "No cycles are allowed in pipeline.study",
    ),
}


def test_an_import_against_the_layers_fails_lint(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src/pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    assert "Contracts: 3 kept, 0 broken." in lint(tmp_path)
    for path, (code, _) in PLANTED.items():
        (tmp_path / "pipeline" / path).write_text(code)
    said = " ".join(lint(tmp_path).split())
    assert "Contracts: 0 kept, 3 broken." in said
    for path, (_, message) in PLANTED.items():
        assert message in said, path
