"""What a framework is for, a row for each, and the command that shows what it does of it here.

The rows are those of "Introduction to ML/DL frameworks" (Goethe University Frankfurt). What a cell says is read off the
specs and tables that the command is checked by; where that check refuses the command, the cell has its message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from pipeline import backends
from pipeline.cli.conf_path import conf_path
from pipeline.contracts import Backend, Dataset, Part
from pipeline.contracts.physics import Problem
from pipeline.experiment import Experiment
from pipeline.experiment.settings import Starting
from pipeline.machine.capability import runnable
from pipeline.machine.installed import EXTRAS
from pipeline.pinn.solvers.deepxde import Deepxde
from pipeline.spec import choice, named_object
from pipeline.stages.export import PACKAGES, WEIGHTS_ALONE, WRITTEN_BY
from pipeline.stages.frameworks.checked import FIRST_OF_TWO, Commands
from pipeline.stages.frameworks.installed import installed
from pipeline.stages.frameworks.overhead import measured
from pipeline.stages.frameworks.ways import graphs_of

COMMAND = "python -m pipeline"
TORCHRUN = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST -m pipeline"


@dataclass(frozen=True)
class Framework:
    """`words`: the overrides that choose it. `part`: names its packages. `backend`: the one under it."""

    name: str
    words: str
    part: type[Part]
    backend: type[Backend]


FRAMEWORKS = (
    Framework("PyTorch", "backend=torch", backends.Torch, backends.Torch),
    Framework("TensorFlow", "backend=tensorflow", backends.TensorFlow, backends.TensorFlow),
    Framework("JAX", "backend=jax", backends.Jax, backends.Jax),
    Framework("DeepXDE", "stage=pinn", Deepxde, backends.Torch),
)

Says = Callable[[Experiment, Framework], str]
Here = Callable[[Experiment, Framework, Path], str]


@dataclass(frozen=True)
class Duty:
    """`name`, and what it is `about`. `words`: of the command; {words} and {backend} are the framework's, {program} is
    the first format of a whole model that its backend writes.

    `says`: what the code declares of it, where the command is taken. `here`: what holds on this machine, given the
    folder of the runs. `several`: torchrun starts the command on two machines. `installs`: make runs it.
    """

    name: str
    about: str
    words: str
    says: Says
    here: Here | None = None
    several: bool = False
    installs: bool = False

    def of(self, framework: Framework) -> str:
        """The overrides of the framework's command."""
        backend = framework.backend.name
        return self.words.format(words=framework.words, backend=backend, program=_programs(backend)[0])

    def takes(self, framework: Framework) -> bool:
        """Whether the command can be about it: DeepXDE's stage goes with no other."""
        return not ("stage=" in framework.words and "stage=" in self.words)


@dataclass(frozen=True)
class Cell:
    """`command`: whole, to be copied. `refused`: the message that it gets; `says`, `here`: as a duty has them."""

    framework: str
    command: str
    refused: str | None
    says: str = ""
    here: str = ""

    def held(self, others: Sequence[Cell]) -> str:
        """What it says in a table below the cells of `others`: what one of them says already is not said again."""
        same = next((one for one in others if self.says and one.says == self.says), None)
        return f"refused: {self.refused}" if self.refused else f"as {same.framework}" if same else self.says


def cells(duty: Duty, commands: Commands, runs: Path) -> Iterator[Cell]:
    """What each framework does of a duty. `runs`: the folder of the saved runs."""
    for framework in FRAMEWORKS:
        if not duty.takes(framework):
            continue
        words = duty.of(framework)
        command = _command(duty, framework, words)
        checked = commands.check(words, FIRST_OF_TWO if duty.several else None)
        if checked.experiment is None:
            yield Cell(framework.name, command, checked.refused)
            continue
        here = duty.here(checked.experiment, framework, runs) if duty.here else ""
        yield Cell(framework.name, command, None, duty.says(checked.experiment, framework), here)


def _command(duty: Duty, framework: Framework, words: str) -> str:
    if duty.installs:
        named = _extra(framework)
        return f'make run EXTRA={named} ARGS="{words}"' if named else f'make run ARGS="{words}"'
    return f"{TORCHRUN if duty.several else COMMAND} {words}"


def _extra(framework: Framework) -> str | None:
    """The extra that adds its packages; None for what the core installation has."""
    return next((extra for extra, names in EXTRAS.items() if set(framework.part.packages) <= set(names)), None)


def dtypes(experiment: Experiment, framework: Framework) -> str:
    """The precisions that run on a CPU, and why the others do not."""
    table = runnable(framework.backend.name, "cpu")
    runs = ", ".join(name for name, refusal in table.items() if refusal is None)
    return "; ".join([f"on a CPU {runs}", *(f"not {name}: {one.why}" for name, one in table.items() if one)])


def graphs(experiment: Experiment, framework: Framework) -> str:
    """What makes a graph of a step, and as what it is saved."""
    found = graphs_of(framework.backend.name)
    return f"a step by {'; by '.join(found.made)}; saved as {', '.join(found.saved)}, and run without this package"


def defaults(experiment: Experiment, framework: Framework) -> str:
    """What runs where nothing else is said."""
    what = f"{choice(experiment.model)} on {choice(experiment.dataset)}"
    if experiment.stage.solves:
        return f"{what}, {choice(experiment.solver)}"
    training = experiment.training
    course = f"{training.epochs} epochs of batches of {training.batch_size}"
    return f"{what}, {choice(experiment.optimizer)}, {course}, {experiment.precision.name}"


def datasets(experiment: Experiment, framework: Framework) -> str:
    """The shipped choices: those that are fetched, those that need no network and those that read what is yours."""
    found: dict[str, list[str]] = {"fetched": [], "no network": [], "yours": []}
    for path in sorted((conf_path() / "dataset").glob("*.yaml")):
        target = yaml.safe_load(path.read_text(encoding="utf-8"))["_target_"]
        cls = named_object(target, f"dataset={path.stem}")
        if issubclass(cls, Problem) or not issubclass(cls, Dataset):
            continue
        names = {one.name for one in fields(cls)}
        kind = "yours" if cls.of_user or "path" in names else "fetched" if "cache" in names else "no network"
        found[kind].append(path.stem)
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items())


def batches(experiment: Experiment, framework: Framework) -> str:
    """How many devices or processes share every batch."""
    if framework.backend.shards:
        return f"{experiment.device.processes} devices of one process, each with its part of every batch"
    return f"{experiment.device.processes} processes, each with its part of every batch"


def shares(experiment: Experiment, framework: Framework) -> str:
    """How many devices share the weights."""
    return f"{experiment.device.split} devices of one process, each with its part of the weights"


def machines(experiment: Experiment, framework: Framework) -> str:
    """How many machines train together, and how that is started."""
    return f"{FIRST_OF_TWO.count} machines, the same command on each; or srun"


def programs(experiment: Experiment, framework: Framework) -> str:
    """The formats that hold what computes the outputs too."""
    return ", ".join(_programs(framework.backend.name))


def _programs(backend: str) -> list[str]:
    return [form for form in WRITTEN_BY[backend] if form not in WEIGHTS_ALONE]


def weights(experiment: Experiment, framework: Framework) -> str:
    """The formats that hold weights alone."""
    return ", ".join(form for form in WRITTEN_BY[framework.backend.name] if form in WEIGHTS_ALONE)


def start(experiment: Experiment, framework: Framework) -> str:
    """The keys that say what is taken and what stays."""
    return f"by {', '.join(f'model.{one.name}' for one in fields(Starting))}"


def exchange(experiment: Experiment, framework: Framework) -> str:
    """The packages that write ONNX and read it back."""
    return f"written and read back by {', '.join(PACKAGES['onnx'])}; outputs compared"


def extra(experiment: Experiment, framework: Framework) -> str:
    """The extra of this package that installs the framework, and the packages that it adds."""
    named = _extra(framework)
    return f"{f'extra {named}' if named else 'core'}: {', '.join(framework.part.packages)}"


def packages_here(experiment: Experiment, framework: Framework, runs: Path) -> str:
    """The framework's packages on this machine: their versions and sizes."""
    return installed(framework.part.packages)


def overhead(experiment: Experiment, framework: Framework) -> str:
    """What is measured of a step's overhead."""
    return "a step's launch, wait and total, operation by operation and compiled"


def overhead_here(experiment: Experiment, framework: Framework, runs: Path) -> str:
    """The newest measurement of the overhead among the runs of this machine."""
    return measured(runs, framework.backend) or "not measured yet"


GRAPH = "stage=graph 'stage.frameworks=[{backend}]'"
DUTIES = (
    Duty("tensors", "arrays of n dimensions: devices and precisions", "stage=devices {words}", dtypes),
    Duty("graphs", "a computation as a graph: compiled, saved, run without its code", GRAPH, graphs),
    Duty("defaults", "a training where nothing else is said", "{words}", defaults),
    Duty("databases", "common data sets, fetched and verified", "dataset=mnist {words}", datasets),
    Duty("several GPUs", "each with its part of a batch; on a CPU cores", "device.processes=2 {words}", batches),
    Duty("a split model", "each GPU with its part of the weights", "device.split=2 {words}", shares),
    Duty("machines", "one training on several", "device.processes=2 {words}", machines, several=True),
    Duty("weights out", "a trained model's, for others", "stage=export run=latest {words}", weights),
    Duty(
        "models out",
        "trained, with the program that computes",
        "stage=export run=latest stage.format={program} {words}",
        programs,
    ),
    Duty("weights in", "pretrained ones, to start from", "model.start=model.safetensors {words}", start),
    Duty(
        "exchange", "a model for other frameworks: ONNX", "stage=export run=latest stage.format=onnx {words}", exchange
    ),
    Duty("installing", "in one command, with a first training", "{words}", extra, packages_here, installs=True),
    Duty(
        "overhead",
        "how long a step holds Python up; a CPU may have computed it by then",
        GRAPH,
        overhead,
        overhead_here,
    ),
)
