"""Runs one framework in its own process and brings back what it did, for the tests that compare frameworks.

    python tests/in_backend.py <backend> <task> <folder>      what `outcomes(task)` starts, once for each backend

A task is a function below. It returns what it found (findings.py); a test holds that against what the other backends
did. Each task does many checks, since importing a framework takes longer than most of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from findings import (
    Gradient,
    Logits,
    LossScales,
    Moved,
    Normalized,
    OnGpu,
    OwnModels,
    Parity,
    Precisions,
    Programs,
    Ran,
    Repeated,
    Scaled,
    Steps,
)
from omegaconf import OmegaConf

from pipeline import experiment as experiments
from pipeline.cli.conf_path import conf_path
from pipeline.datasets.loading import load_data
from pipeline.errors import RunError, UserError
from pipeline.experiment import Experiment
from pipeline.machine.capability import Resolved, resolve, runnable
from pipeline.machine.device import Place, gpus
from pipeline.models import Shapes, weights
from pipeline.runs.journal import Journal
from pipeline.runs.records import read_metrics
from pipeline.runs.run import Run
from pipeline.runs.weights import Weights, digest
from pipeline.spec import build

BACKENDS = ("torch", "tensorflow", "jax")
STEPS = 20
SIZES = ((8, 8, 1), (28, 28, 1))

Choice = str | tuple[str, dict[str, Any]] | dict[str, Any]  # a shipped choice, with changes, or a node of our own

# What is trained step by step in every backend: name -> choices. Both sizes of set are 20 batches of 16, the uneven one
# with a smaller last. Dropout is off: its masks are each framework's own. Seed 0 is left out: at its fourth step one of
# the cnn's pre-activations is 2e-7, which float32 rounds to either side of the relu's kink, and Adam makes 8e-4 of that
# one missing gradient. (In float64 the frameworks agree there as elsewhere.)
EVEN, UNEVEN, SEED = 320, 310, 1
OPTIMIZERS: dict[str, Choice] = {  # but for SGD and Adam, which train every model
    "sgd with weight decay": ("sgd", {"weight_decay": 0.01}),
    "momentum": "momentum",
    "nesterov": ("momentum", {"nesterov": True}),
    "adamw": "adamw",
    "rmsprop": "rmsprop",
    "rmsprop with momentum": ("rmsprop", {"momentum": 0.5}),
    "adagrad": "adagrad",
    "adadelta": "adadelta",
}
OF_MATRICES: dict[str, Choice] = {"muon": ("muon", {"weight_decay": 0.1})}
MODELS: dict[str, Choice] = {
    "linear": "linear",
    "mlp": "mlp",
    "deep mlp": ("mlp", {"units": [32, 16], "activation": "tanh"}),
    "cnn": "cnn",
    "mnist_cnn": ("mnist_cnn", {"dropout_features": 0.0, "dropout_units": 0.0}),
    "resnet": ("resnet", {"blocks": 1, "filters": [8, 16]}),
}
FIRST = ("mlp", "cnn")  # of which `make test` sees the steps
MIXED_LAYERS: Choice = ("mlp", {"units": [32], "layer_dtypes": ["float64", "float32"]})
ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu", "silu", "elu")
CLASS_WEIGHTS = [1, 2, 0.3, 1, 1, 0, 1, 1, 1, 0.7]
LOSSES: dict[str, Choice] = {
    "cross_entropy": "cross_entropy",
    "smoothed": ("cross_entropy", {"label_smoothing": 0.1}),
    "weighted": ("cross_entropy", {"label_smoothing": 0.1, "class_weights": CLASS_WEIGHTS}),
    "mse": "mse",
    "hinge": "hinge",
    "wide hinge": ("hinge", {"margin": 5.0}),
    "squared_error": "squared_error",
    "huber": "huber",
    "wide huber": ("huber", {"delta": 3.0}),
}


Found = TypeVar("Found")


class Outcomes(dict[str, Found], Generic[Found]):
    """What a task found in each backend, run when it is first asked for."""

    def __init__(self, task: Callable[[Bench], Found]) -> None:
        super().__init__()
        self.task = task
        self.failures: dict[str, Exception] = {}  # a task that failed is not run again for every test

    def __missing__(self, backend: str) -> Found:
        if backend in self.failures:
            raise self.failures[backend]
        try:
            self[backend] = _found(backend, self.task)
        except Exception as error:  # also that it took too long
            self.failures[backend] = error
            raise
        return self[backend]


KEPT: dict[str, Any] = {}  # of this session, by task


def outcomes(task: Callable[[Bench], Found]) -> Outcomes[Found]:
    """What the task found in each backend; run once a session."""
    kept: Outcomes[Found] = KEPT.setdefault(task.__name__, Outcomes(task))
    return kept


def _found(backend: str, task: Callable[[Bench], Found]) -> Found:
    from command import script  # pytest, which the other process needs not

    with tempfile.TemporaryDirectory() as folder:
        words = (backend, task.__name__, folder)
        if task is canary_on_gpu or task is reproducible:  # which need a GPU, or a process that shares nothing
            command = [sys.executable, __file__, *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        else:
            done = script(Path(folder), backend, Path(__file__), *words)
        assert done.returncode == 0, f"{backend} {task.__name__}:\n{done.stderr[-4000:]}"
        found: Found = pickle.loads((Path(folder) / "found.pickle").read_bytes())
        return found


def experiment(name: str, seed: int = 0, **choices: Choice) -> Experiment:
    """The shipped choices of conf/ with `choices` in place of the defaults, as a checked experiment."""
    defaults: dict[str, Choice] = {
        "stage": "classifier",
        "backend": name,
        "device": "cpu",
        "precision": "fp32",
        "model": "mlp",
        "dataset": "digits",
        "loader": "memory",
        "optimizer": "adam",
        "loss": "cross_entropy",
        "training": ("default", {"epochs": 1, "batch_size": 16, "log_every_n_steps": 1}),
        "profiler": "none",
        "tracking": "none",
        "sweep": "default",
    }
    config: dict[str, Any] = {group: _node(group, choice) for group, choice in (defaults | choices).items()}
    return experiments.load({**config, "seed": seed})


def _node(group: str, choice: Choice) -> dict[str, Any]:
    if isinstance(choice, dict):
        return choice
    name, changes = (choice, {}) if isinstance(choice, str) else choice
    shipped: Any = OmegaConf.to_container(OmegaConf.load(Path(conf_path()) / group / f"{name}.yaml"))
    assert changes.keys() <= shipped.keys(), f"{group}/{name}.yaml has no {changes.keys() - shipped.keys()}"
    return {**shipped, **changes}


def on_cpu(wanted: Experiment) -> Resolved:
    """What the experiment comes to on a machine without a GPU."""
    return resolve(wanted.backend.name, wanted.device, wanted.precision.name, ())


def fit(wanted: Experiment, run: Run) -> Any:
    """The experiment's training by its backend."""
    return wanted.backend.load().fit(wanted, load_data(wanted), on_cpu(wanted), run)


class Bench:
    """Where a task works: the backend, and a folder for its runs."""

    def __init__(self, backend: str, folder: Path) -> None:
        from rich.console import Console

        self.backend, self.folder = backend, folder
        self.console = Console(file=(folder / "console.txt").open("w"))
        self.runs: list[Run] = []

    def run(self) -> Run:
        """A new run with a journal."""
        self.runs.append(Run(Journal.begin(self.folder / "runs", "test", {}), self.console))
        return self.runs[-1]

    def experiment(self, **choices: Any) -> Experiment:
        return experiment(self.backend, **choices)

    def fit(self, **choices: Any) -> Any:
        return fit(self.experiment(**choices), self.run())

    def weights_of(self, model: Any) -> Weights:
        return weights.from_torch(model) if self.backend == "torch" else weights.from_keras(model)


def flat(named: Weights) -> np.ndarray:
    """All numbers of a set of weights in a row, in float64."""
    return np.concatenate([array.ravel().astype(np.float64) for array in named.values()])


# Parity


def parity(bench: Bench) -> Parity:
    """Two models by SGD and by Adam: weights after every step. Logits of given weights. Losses, their gradients."""
    trail, found = record_weights(bench), Parity()
    _train(bench, trail, found, FIRST)
    for name, loss in LOSSES.items():
        for dtype in ("float32", "float64"):
            found.losses[name, dtype] = _loss(bench, loss, dtype)
    for name, choice in ({"sgd": "sgd", "adam": "adam"} | OPTIMIZERS).items():
        found.updates[name] = _updates(bench, choice)
    found.logits |= _all_logits(bench, SIZES[1])
    return found


def more_parity(bench: Bench) -> Parity:
    """The other models and optimizers (in float64, where a wrong formula cannot hide behind rounding), small images,
    layers."""
    trail, found = record_weights(bench), Parity()
    _train(bench, trail, found, MODELS.keys() - FIRST)
    for name, optimizer in (OPTIMIZERS | OF_MATRICES).items():
        found.steps[f"mlp {name}", "fp64"] = _steps(bench, trail, {"optimizer": optimizer, "precision": "fp64"})
    found.steps["mixed layers", "fp32"] = _steps(bench, trail, {"model": MIXED_LAYERS})
    found.logits |= _all_logits(bench, SIZES[0])
    for activation in ACTIVATIONS:
        wanted: Choice = ("mlp", {"activation": activation})
        found.logits[activation, 8, "fp64"] = _logits(bench, wanted, SIZES[0], "fp64")
    found.logits["mixed layers", 8, "fp32"] = _logits(bench, MIXED_LAYERS, SIZES[0], "fp32")
    narrow: Choice = ("mlp", {"layer_dtypes": ["bfloat16", "float16"]})
    found.logits["narrow layers", 8, "fp32"] = _logits(bench, narrow, SIZES[0], "fp32", exact=True)
    return found


def _train(bench: Bench, trail: list[Weights], found: Parity, names: Collection[str]) -> None:
    for name in names:
        for optimizer in ("sgd", "adam"):
            for precision in ("fp32", "fp64"):
                choices = {"model": MODELS[name], "optimizer": optimizer, "precision": precision}
                size = UNEVEN if (name, optimizer) == ("mlp", "adam") else EVEN
                found.steps[f"{name} {optimizer}", precision] = _steps(bench, trail, choices, size)


NARROW: dict[str, Choice] = {
    "muon": ("muon", {"learning_rate": 0.02, "weight_decay": 0.1}),
    "adamw": ("adamw", {"learning_rate": 0.01, "weight_decay": 0.2}),
    "momentum": ("momentum", {"learning_rate": 0.001, "momentum": 0.99}),
    "rmsprop": ("rmsprop", {"learning_rate": 0.01, "momentum": 0.99}),
}


def narrow(bench: Bench) -> dict[tuple[str, str], np.ndarray]:
    """By optimizer and dtype, a matrix after 40 updates by gradients that are given; in float16 by a hundred times as
    large ones, whose squares it does not hold."""
    start, gradients = narrow_start()
    moves = _torch_matrix if bench.backend == "torch" else _keras_matrix
    precisions = {"float64": "fp64", "bfloat16": "bf16", "float16": "fp16"}
    found = {}
    for name, choice in NARROW.items():
        for dtype, precision in precisions.items():
            wanted = bench.experiment(optimizer=choice, precision=precision)
            with wanted.backend.load().runtime_settings(wanted, on_cpu(wanted)):
                given = 100 * gradients if dtype == "float16" else gradients
                found[name, dtype] = moves(wanted.optimizer, start, given, dtype)
    for dtype in ("float64", "float16"):
        found["running variance", dtype] = _running_variance(bench, precisions[dtype])
    return found


def _running_variance(bench: Bench, precision: str) -> np.ndarray:
    """After a step on 1,100 images of 8x8: more values in a channel than the largest number of float16."""
    done = bench.fit(
        model=("resnet", {"blocks": 1, "filters": [2]}),
        dataset=("digits", {"validation": 100, "train_size": 1100}),
        training=("default", {"epochs": 1, "batch_size": 1100}),
        optimizer="sgd",
        precision=precision,
    )
    return np.asarray(done.weights["first.norm.moving_variance"], np.float64)


def narrow_start() -> tuple[np.ndarray, np.ndarray]:
    """The matrix at first, and its gradients."""
    generator = np.random.default_rng(6)
    return generator.normal(0, 0.1, (64, 48)), generator.normal(size=(40, 64, 48))


def _torch_matrix(spec: Any, start: np.ndarray, gradients: np.ndarray, dtype: str) -> np.ndarray:
    import torch

    matrix = torch.nn.Parameter(torch.tensor(start, dtype=getattr(torch, dtype)))
    group = {"params": [matrix], "kind": "matrix", "compute": dtype, "inputs_first": True}
    optimizer = spec.torch([group if spec.several else matrix])
    for gradient in gradients:
        matrix.grad = torch.tensor(gradient, dtype=matrix.dtype)
        optimizer.step()
    return matrix.detach().double().numpy()


def _keras_matrix(spec: Any, start: np.ndarray, gradients: np.ndarray, dtype: str) -> np.ndarray:
    import keras

    matrix, optimizer = keras.Variable(start, dtype=dtype), spec.keras()
    optimizer.kinds = ["matrix"]
    optimizer.build([matrix])
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient, dtype)], [matrix])
    return np.asarray(keras.ops.convert_to_numpy(matrix)).astype(np.float64)


def _all_logits(bench: Bench, size: tuple[int, int, int]) -> dict[tuple[str, int, str], Logits]:
    return {
        (name, size[0], precision): _logits(bench, model, size, precision)
        for name, model in MODELS.items()
        for precision in ("fp32", "fp64")
    }


def record_weights(bench: Bench) -> list[Weights]:
    """Let the shipped step note the weights: a list that each fit extends by those at its start and after each step."""
    trail: list[Weights] = []
    backend: Any = experiment(bench.backend).backend.load()
    if bench.backend == "torch":

        class Training(backend.Training):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                trail.append(weights.from_torch(self.net))

            def training_step(self, block: Any, number: int) -> None:
                super().training_step(block, number)
                trail.append(weights.from_torch(self.net))

        backend.Training = Training
    else:

        class Engine(backend.engine_module.Engine):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                trail.append(weights.from_keras(self.model))

            def block(self, rows: np.ndarray) -> Any:
                result = super().block(rows)
                self.sync()
                trail.append(weights.from_keras(self.model))
                return result

        backend.engine_module.Engine = Engine
    return trail


def _steps(bench: Bench, trail: list[Weights], choices: dict[str, Any], size: int = EVEN) -> Steps:
    """One epoch of `size` images; each size of batch is a program to compile."""
    trail.clear()
    common = {
        "dataset": ("digits", {"validation": 0, "train_size": size}),
        "loader": ("memory", {"steps_per_execution": 1}),
    }
    done = bench.fit(seed=SEED, **common, **choices)
    return Steps(
        trail=np.stack([flat(named) for named in trail]),
        weights=[(weights.kind_of(key), array.shape, str(array.dtype)) for key, array in done.weights.items()],
        parameters=done.parameters,
        train_loss=done.epochs[0].train_loss,
        train_score=done.epochs[0].train_score,
    )


def _logits(bench: Bench, model: Choice, size: tuple[int, int, int], precision: str, *, exact: bool = False) -> Logits:
    """Logits of weights that are drawn in the common layout, and those weights again after a way through the model."""
    wanted = bench.experiment(model=model, precision=precision)
    backend, resolved, shapes = wanted.backend.load(), on_cpu(wanted), Shapes(size, (10,))
    with backend.runtime_settings(wanted, resolved):
        built = getattr(wanted.model, wanted.backend.builder)(shapes)
        if bench.backend == "torch" and precision == "fp64":
            built = built.double()
        like = bench.weights_of(built)
        given = drawn(like, exact=exact)
        into = weights.to_torch if bench.backend == "torch" else weights.to_keras
        into(built, given, "the test")
        returned = bench.weights_of(built)
    dtype = "float64" if precision == "fp64" else "float32"
    logits = backend.predictor(wanted, shapes, given, resolved)(pictures(size).astype(dtype))
    named = [(weights.kind_of(key), array.shape) for key, array in like.items()]
    return Logits(logits=logits, given=flat(given), returned=flat(returned), shapes=named)


def drawn(like: Weights, *, exact: bool) -> Weights:
    """Weights none of which are zero, not even biases; `exact`: multiples of 1/64, which every dtype has."""
    start = weights.initial(like, seed=7)
    generator = np.random.default_rng(7)
    for name, array in start.items():
        if name.endswith(".bias"):
            start[name] = generator.normal(0, 0.1, array.shape).astype(array.dtype)
    return {name: np.round(array * 64) / 64 for name, array in start.items()} if exact else start


def pictures(size: tuple[int, int, int]) -> np.ndarray:
    """48 digits of the test set at a size, in [0, 1]: enlarged by a whole factor, with a border round them."""
    digits = load_data(experiment("torch"))
    small = digits.inputs(digits.test.x[:48], "float64")
    factor = size[0] // 8
    border = (size[0] - 8 * factor) // 2
    large = small.repeat(factor, axis=1).repeat(factor, axis=2)
    return np.pad(large, ((0, 0), (border, border), (border, border), (0, 0)))


def _loss(bench: Bench, choice: Choice, dtype: str) -> Gradient:
    spec = loss_of(choice)
    value, gradient = {"torch": _torch_gradient, "tensorflow": _tensorflow_gradient, "jax": _jax_gradient}[
        bench.backend
    ](spec, *outputs_and_targets(spec, 3, dtype))
    return Gradient(np.asarray(value, np.float64), np.asarray(gradient, np.float64))


def loss_of(choice: Choice) -> Any:
    return build(_node("loss", choice), "loss")


def outputs_and_targets(loss: Any, seed: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (64, 10), and what such a loss compares them with: classes (64,) or numbers (64, 10)."""
    generator = np.random.default_rng(seed)
    outputs = generator.normal(0, 3, (64, 10)).astype(dtype)
    if loss.takes == "numbers":
        return outputs, generator.normal(0, 3, (64, 10)).astype(dtype)
    return outputs, generator.integers(0, 10, 64)


def _updates(bench: Bench, choice: Choice) -> np.ndarray:
    """Seven numbers, in float64, after each of five updates by gradients that are given."""
    generator = np.random.default_rng(5)
    start, gradients = generator.normal(size=7), generator.normal(size=(5, 7))
    moves = {"torch": _torch_updates, "tensorflow": _keras_updates, "jax": _jax_updates}[bench.backend]
    return np.stack([start, *moves(bench.experiment(optimizer=choice).optimizer, start, gradients)])


def _torch_updates(spec: Any, start: np.ndarray, gradients: np.ndarray) -> Iterator[np.ndarray]:
    import torch

    numbers = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = spec.torch([numbers])
    for gradient in gradients:
        numbers.grad = torch.from_numpy(gradient)
        optimizer.step()
        yield numbers.detach().numpy().copy()


def _keras_updates(spec: Any, start: np.ndarray, gradients: np.ndarray) -> Iterator[np.ndarray]:
    import keras

    before = keras.config.floatx()
    keras.config.set_floatx("float64")  # the learning rate's dtype
    try:
        numbers = keras.Variable(start, dtype="float64")
        optimizer = spec.keras()
        optimizer.build([numbers])
        for gradient in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(gradient, "float64")], [numbers])
            yield np.array(numbers)
    finally:
        keras.config.set_floatx(before)


def _jax_updates(spec: Any, start: np.ndarray, gradients: np.ndarray) -> Iterator[np.ndarray]:
    import jax

    from pipeline.backends.keras import settings_jax as keras_jax

    with jax.enable_x64(True), keras_jax._float64_kept(True):
        yield from _keras_updates(spec, start, gradients)


def _torch_gradient(spec: Any, logits: np.ndarray, labels: np.ndarray) -> tuple[Any, Any]:
    import torch

    x = torch.from_numpy(logits).requires_grad_()
    value = spec.torch()(x, torch.from_numpy(labels))
    value.backward()
    assert x.grad is not None
    return value.item(), x.grad.numpy()


def _tensorflow_gradient(spec: Any, logits: np.ndarray, labels: np.ndarray) -> tuple[Any, Any]:
    import tensorflow as tf

    x = tf.convert_to_tensor(logits)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = spec.keras()(x, tf.constant(_narrowed(labels)))
    return value.numpy(), tape.gradient(value, x).numpy()


def _jax_gradient(spec: Any, logits: np.ndarray, labels: np.ndarray) -> tuple[Any, Any]:
    import jax

    from pipeline.backends.keras import settings_jax as keras_jax

    wide = logits.dtype == np.float64
    with jax.enable_x64(wide), keras_jax._float64_kept(wide):
        return jax.value_and_grad(spec.keras())(jax.numpy.asarray(logits), jax.numpy.asarray(_narrowed(labels)))


def _narrowed(targets: np.ndarray) -> np.ndarray:
    """Classes in 32 bits, as the engines have them; numbers as they are."""
    return targets.astype(np.int32) if targets.dtype.kind == "i" else targets


# Precision

CELLS = ("fp32", "fp64", "fp16", "bf16", "mixed_fp16", "mixed_bf16", "mixed", "tf32")
BETWEEN = ("fp64", "fp16")  # after each of them fp32 once more
FEW: dict[str, Choice] = {
    "dataset": ("digits", {"validation": 0, "train_size": 64}),
    "model": ("cnn", {"filters": [4, 8], "kernel_size": 3}),
    "optimizer": "sgd",  # Adam's squares of gradients vanish in float16, and its steps explode
}


def precision(bench: Bench) -> Precisions:
    """The whole classifier stage at every precision, one after the other in this process; then what must not last."""
    plant_switches(bench.backend)
    found = Precisions(settings={"at first": switches(bench.backend)})
    for name in CELLS:
        found.cells[name] = _stage(bench, precision=name)
        found.settings[f"after {name}"] = switches(bench.backend)
        if name in BETWEEN:
            found.fp32_after[name] = digest(bench.fit(**FEW, precision="fp32").weights)
    found.fp32_again = _stage(bench, precision="fp32")
    layers = ("mlp", {"units": [16, 16], "layer_dtypes": ["float64", "bfloat16", "float32"]})
    found.layers = _stage(bench, model=layers)
    one_thread = {"backend": ("torch", {"threads": 1})} if bench.backend == "torch" else {}
    os.environ["PIPELINE_MODULES"] = "own_models"
    for steps in (1, 64):
        loader = ("memory", {"steps_per_execution": steps})
        found.diverged[f"blocks of {steps}"] = _stage(bench, **HUGE, loader=loader, **one_thread)
    found.diverged["streamed"] = _stage(bench, **HUGE, loader="threads")
    found.settings["after a failure"] = switches(bench.backend)
    for strict in (True, False):
        behind = {"model": planted(bench.folder), "precision": ("fp32", {"strict": strict})}
        found.planted[strict] = _stage(bench, **behind)
    return found


HUGE: dict[str, Any] = {  # a gradient of 1e37 and a step of 1e3: the first update ends in infinity
    "model": "linear",
    "optimizer": ("sgd", {"learning_rate": 1000.0}),
    "loss": {"_target_": "own_models.Loud"},
}
PLANTED = """
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Planted(Model):
    def torch(self, shapes):
        from torch import nn
        from pipeline.models import torch_layers as layers
        narrow = layers.dense(64, 16, "bfloat16")
        return nn.Sequential(nn.Flatten(), *narrow, layers.Cast("float32"), nn.Linear(16, 10))

    def keras(self, shapes):
        import keras
        flat = [keras.Input(shapes.image), keras.layers.Flatten()]
        return keras.Sequential([*flat, keras.layers.Dense(16, dtype="bfloat16"), keras.layers.Dense(10)])
"""


def planted(folder: Path) -> dict[str, Any]:
    """A user's model one of whose layers computes in bfloat16 without saying so, made importable from `folder`."""
    (folder / "planted.py").write_text(PLANTED)
    sys.path.insert(0, str(folder))
    os.environ["PIPELINE_MODULES"] = "planted"
    return {"_target_": "planted.Planted"}


def _stage(bench: Bench, **choices: Any) -> Ran:
    """A run of the classifier stage."""
    try:
        wanted = bench.experiment(**{**FEW, **choices})
        resolved = on_cpu(wanted)
    except UserError as error:
        return Ran(refused=str(error))
    run, failed = bench.run(), None
    try:
        wanted.stage.run(wanted, resolved, run)
    except (RunError, UserError) as error:
        failed = str(error)
    return Ran(receipt=json.loads((run.folder / "receipt.json").read_text()), failed=failed)


def plant_switches(backend: str) -> None:
    """Settings as a program might have made them before it calls us, none of them what a run needs."""
    if backend == "torch":
        import torch

        torch.set_float32_matmul_precision("medium")
        torch.set_num_threads(2)
        torch.manual_seed(77)
        return
    experiment(backend).backend.load()  # chooses Keras's backend
    import keras

    keras.config.set_floatx("float16")
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.config.set_epsilon(0.1)  # these two as a user's keras.json may have them
    keras.config.set_image_data_format("channels_first")
    keras.utils.set_random_seed(77)
    if backend == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", "bfloat16")


KINDS = ("cpu", "cuda")


def switches(backend: str) -> dict[str, Any]:
    """The process-wide settings of a framework that a run may touch."""
    if backend == "torch":
        import torch

        result = torch.backends
        cuda = result.cuda.matmul
        return {
            "reduced": [cuda.allow_fp16_reduced_precision_reduction, cuda.allow_bf16_reduced_precision_reduction],
            "autocast": [f"{torch.is_autocast_enabled(kind)} {torch.get_autocast_dtype(kind)}" for kind in KINDS],
            "denormals": (torch.ones(1) * 1e-40).item() > 0,
            "older": [torch.get_float32_matmul_precision(), result.cuda.matmul.allow_tf32, result.cudnn.allow_tf32],
            "newer": [
                getattr(vars(result)[library], operation).fp32_precision
                for library, operation in (
                    ("cuda", "matmul"),
                    ("cudnn", "conv"),
                    ("cudnn", "rnn"),
                    ("mkldnn", "matmul"),
                    ("mkldnn", "conv"),
                )
            ],
            "benchmark": result.cudnn.benchmark,
            "threads": torch.get_num_threads(),
            "dtype": str(torch.get_default_dtype()),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "random": _short(torch.random.get_rng_state().tolist()),
        }
    import keras

    common = {
        "floatx": keras.config.floatx(),
        "policy": keras.config.dtype_policy().name,
        "keras.json": [keras.config.epsilon(), keras.config.image_data_format()],
        "seed": keras.utils.get_random_seed() if hasattr(keras.utils, "get_random_seed") else None,
        "random": _short([random.getstate(), np.random.get_state()[1].tolist()]),  # type: ignore[index]  # noqa: NPY002
    }
    if backend == "jax":
        import jax
        from keras.src.backend.common import dtypes

        common["float64"] = dtypes.BIT64_TO_BIT32_DTYPE["float64"]
        return common | {name: str(value) for name, value in jax.config.values.items()}
    import tensorflow as tf
    from tensorflow.python.eager import context

    process = context.context()
    generator = _short([process._seed, process._rng.getstate()])
    return common | {"tf32": tf.config.experimental.tensor_float_32_execution_enabled(), "generator": generator}


def _short(state: Any) -> str:
    return hashlib.sha256(repr(state).encode()).hexdigest()


def canary_on_gpu(bench: Bench) -> OnGpu:
    """float32 on the first GPU alone, and again after each other precision that runs there; the switches each time."""
    place = gpus()[:1]
    plant_switches(bench.backend)
    settings = {"at first": switches(bench.backend)}

    def trained(precision: str) -> str:
        wanted = bench.experiment(dataset=FEW["dataset"], device="gpu", precision=precision)
        resolved = resolve(bench.backend, wanted.device, precision, place)
        data, run = load_data(wanted), bench.run()
        return digest(wanted.backend.load().fit(wanted, data, resolved, run).weights)

    found = OnGpu(alone=trained("fp32"), cells={}, fp32_after={}, settings=settings)
    for name in [name for name, why in runnable(bench.backend, "gpu", *place).items() if why is None]:
        found.cells[name] = trained(name)
        found.settings[f"after {name}"] = switches(bench.backend)
        found.fp32_after[name] = trained("fp32")
    return found


# The loss scale

LARGE = 2.0**40  # of which float16, whose largest number is 65504, makes infinite gradients for many steps


def loss_scale(bench: Bench) -> LossScales:
    """Mixed float16 from a scale that overflows, block by block and streamed; from one that grows; other precisions."""
    trail = record_weights(bench)
    single = {"dataset": ("digits", {"validation": 0, "train_size": 640}), "optimizer": "adam"}
    planted = {**single, "precision": ("mixed_fp16", {"initial_scale": LARGE})}
    ways = {"planted": _scaled(bench, {**planted, "loader": ("memory", {"steps_per_execution": 1})})}
    noted = np.stack([flat(named) for named in trail])
    ways["in blocks"] = _scaled(bench, planted)
    ways["streamed"] = _scaled(bench, {**planted, "loader": "threads"})
    ways["as shipped"] = _scaled(bench, {**single, "precision": "mixed_fp16"})
    ways["long"] = _scaled(
        bench,
        {
            "dataset": ("digits", {"validation": 0, "train_size": 400}),
            "model": "linear",
            "training": ("default", {"epochs": 82, "batch_size": 16}),
            "precision": ("mixed_fp16", {"initial_scale": 1024.0}),
        },
    )
    others = [bench.fit(**FEW, precision=name).loss_scale for name in ("fp32", "fp16", "bf16")]
    return LossScales(ways=ways, trail=noted, others=others)


def _scaled(bench: Bench, choices: dict[str, Any]) -> Scaled:
    run = bench.run()
    done = fit(bench.experiment(seed=SEED, **choices), run)
    run.journal.flush()
    records = [record for record in read_metrics(run.folder) if "loss_scale/scale" in record.metrics]
    return Scaled(done.loss_scale.plain(), [(record.step, dict(record.metrics)) for record in records])


# Reproducible

REPEATED: dict[str, dict[str, Any]] = {
    "plain": {},
    "convolutions": {"model": ("mnist_cnn", {"filters": [4, 8], "units": 16})},
    "half precision": {"precision": "mixed_bf16"},
    "another seed": {"seed": 1},
    "one step a call": {"loader": ("memory", {"steps_per_execution": 1})},
    "thread": {"loader": "threads"},
    "threads": {"loader": ("threads", {"workers": 3, "prefetch": 2})},
}
OWN_LOADERS: dict[str, dict[str, dict[str, Any]]] = {
    "torch": {
        "dataloader": {"loader": "dataloader"},
        "dataloader with workers": {"loader": ("dataloader", {"workers": 2})},
    },
    "tensorflow": {
        "tfdata": {"loader": ("tfdata", {"cache": False, "shuffle": True})},
        "tfdata without workers": {"loader": ("tfdata", {"cache": False, "shuffle": True, "map_calls": 1})},
    },
    "jax": {},
}
AGAIN = ("plain", "half precision")


def reproducible(bench: Bench) -> dict[str, Repeated]:
    """Two epochs with dropout, in several ways that should come to the same."""
    return _repeat(bench, REPEATED | OWN_LOADERS[bench.backend])


def _repeat(bench: Bench, ways: dict[str, dict[str, Any]]) -> dict[str, Repeated]:
    common = {
        "training": ("default", {"epochs": 2, "batch_size": 16}),
        "dataset": ("digits", {"validation": 0, "train_size": 192}),
        "model": ("mlp", {"units": [32], "dropout": 0.3}),
    }
    found = {}
    for name, choices in ways.items():
        done = bench.fit(**{**common, **choices})
        losses = [epoch.train_loss for epoch in done.epochs]
        found[name] = Repeated(flat(done.weights), digest(done.weights), losses)
    return found


def after_foreign_numbers(bench: Bench) -> dict[str, Repeated]:
    """Some of the same after somebody has seeded and used every random generator there is."""
    random.seed(123)
    np.random.seed(123)  # noqa: NPY002  # the generator that foreign code uses
    random.random()
    np.random.rand(7)  # noqa: NPY002
    experiment(bench.backend).backend.load()
    if bench.backend == "torch":
        import torch

        torch.manual_seed(123)
        torch.rand(7)
    else:
        import keras

        keras.utils.set_random_seed(123)
        keras.random.uniform((7,))
    if bench.backend == "tensorflow":
        import tensorflow as tf

        tf.random.set_seed(123)
        tf.random.uniform((7,))
    return _repeat(bench, {name: REPEATED[name] for name in AGAIN})


# The compiler's programs


def programs(bench: Bench) -> Programs:
    """XLA's programs of products whose dtype is known, as text."""
    return tensorflow_programs() if bench.backend == "tensorflow" else jax_programs()


def jax_programs() -> Programs:
    """JAX's, of each dtype; in float32 without TF32 and with it."""
    import jax
    from jax import numpy as jnp

    found = Programs()
    with jax.enable_x64(True):
        for dtype in ("float64", "float32", "bfloat16", "float16"):
            a, x, k = jnp.ones((64, 64), dtype), jnp.ones((2, 9, 9, 3), dtype), jnp.ones((3, 3, 3, 8), dtype)

            def convolve(x: Any, k: Any) -> Any:
                return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

            functions: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
                "dot": (jnp.dot, (a, a)),
                "convolution": (convolve, (x, k)),
                "sum": (jnp.add, (a, a)),
            }
            for name, (function, arguments) in functions.items():
                found.of_dtype[name, dtype] = _program(function, arguments)
                for precision in ("highest", "tensorfloat32") if dtype == "float32" else ():
                    with jax.default_matmul_precision(precision):
                        program = _program(lambda *each, f=function: f(*each), arguments)
                    found.of_tf32[name, precision == "tensorfloat32"] = program
    return found


def _program(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    import jax

    text: str | None = jax.jit(function).lower(*arguments).compile().as_text()
    assert text is not None
    return text


def tensorflow_programs() -> Programs:
    """What TensorFlow hands to XLA, without TF32 and with it."""
    import tensorflow as tf

    a, x, k = tf.ones((64, 64)), tf.ones((2, 9, 9, 3)), tf.ones((3, 3, 3, 8))
    functions = {
        "dot": (lambda a, b: a @ b, (a, a)),
        "convolution": (lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), (x, k)),
    }
    found = Programs()
    for name, (function, arguments) in functions.items():
        for tf32 in (False, True):
            tf.config.experimental.enable_tensor_float_32_execution(tf32)
            compiled = tf.function(function, jit_compile=True)
            found.of_tf32[name, tf32] = compiled.experimental_get_compiler_ir(*arguments)(stage="hlo")
    return found


# Models of a user's own


def own_models(bench: Bench) -> OwnModels:
    """A model that normalizes over the batch, models that are refused, and runs that go wrong in their last step."""
    os.environ["PIPELINE_MODULES"] = "own_models"
    linear = {**FEW, "model": "linear"}
    threads = {} if bench.backend == "jax" else {"backend": (bench.backend, {"threads": 1})}
    split = {"device": ("cpu", {"logical_devices": 2})} if bench.backend == "tensorflow" else {}
    found = OwnModels(
        one_thread=_stage(bench, **linear, **threads, **split),  # the first: TensorFlow is set up but once
        streamed=_stage(bench, **linear, loader="threads"),
    )
    trail = record_weights(bench)
    for precision in ("fp32", "fp64"):
        found.normalized[precision] = _normalized(bench, trail, precision)
        found.logits[precision] = _logits(bench, NORMALIZED, SIZES[0], precision)
    trail.clear()
    kept = bench.fit(**{**FEW, "model": {"_target_": "own_models.Unknown"}}).weights
    found.unknown = _moved(trail[0], kept, "strength")
    trail.clear()
    eighth = bench.fit(
        **{**FEW, "model": {"_target_": "own_models.Eighth"}, "optimizer": ("sgd", {"learning_rate": 1e-9})}
    )
    found.eighth = _moved(trail[0], eighth.weights, "kernel")
    found.starts = {"eighth": eighth.start.plain(), "linear": found.one_thread.receipt["initial_weights"]}
    if bench.backend != "torch":
        found.twins = _stage(bench, model={"_target_": "own_models.Twins"})
    for message in ("depth=3: too deep", "no such\n   image"):
        found.choosy[message] = _stage(bench, model={"_target_": "own_models.Choosy", "message": message})
    for validation in (0, 20):
        only_step = ("default", {"epochs": 1, "batch_size": 64 - validation})
        dataset = ("digits", {"validation": validation, "train_size": 64 - validation})
        found.diverged_at_the_end[validation] = _stage(
            bench, **{**HUGE, "model": "mlp"}, dataset=dataset, training=only_step
        )
    if bench.backend == "tensorflow":
        found.graph = _graph()
    if bench.backend == "jax":
        found.memory_fraction = _memory_fraction()
    return found


NORMALIZED: Choice = {"_target_": "own_models.Normalized"}


def _normalized(bench: Bench, trail: list[Weights], precision: str) -> Normalized:
    """Twenty steps, and what the predictor makes of the validation images beside what the training saw."""
    trail.clear()
    dataset: Choice = ("digits", {"validation": 100, "train_size": EVEN})
    wanted = bench.experiment(model=NORMALIZED, precision=precision, dataset=dataset, optimizer="sgd", seed=SEED)
    done, data, resolved = fit(wanted, bench.run()), load_data(wanted), on_cpu(wanted)
    x, y = data.inputs(data.validation.x, "float64" if precision == "fp64" else "float32"), data.validation.y

    def by_the_predictor(kept: Weights) -> tuple[float, float]:
        predict = wanted.backend.load().predictor(wanted, data.task.shapes, kept, resolved)
        logits = predict(x)
        return wanted.loss.numpy(logits, y), float((logits.argmax(1) == y).mean())

    fresh = {name: start for name, start in trail[0].items() if "moving" in name}
    return Normalized(
        trained=dict(done.weights),
        parameters=done.parameters,
        start={name: (float(array.min()), float(array.max())) for name, array in trail[0].items()},
        validation=(done.epochs[-1].validation_loss, done.epochs[-1].validation_score),
        validation_by_the_predictor=by_the_predictor(done.weights),
        loss_of_fresh_statistics=by_the_predictor({**done.weights, **fresh})[0],
    )


def _moved(start: Weights, end: Weights, kind: str) -> Moved:
    """A weight of a kind that occurs once, before a training and after it."""
    (name,) = (name for name in start if weights.kind_of(name) == kind)
    return Moved(list(end), start[name].tolist(), end[name].tolist())


def _graph() -> list[tuple[str, str, str]]:
    """What is read off a graph that uses two devices."""
    import tensorflow as tf

    from pipeline.backends.keras import tensorflow_graph

    with tf.device("/CPU:0"):
        total = tf.Variable(1.0)

    @tf.function
    def inner(x: Any) -> Any:
        with tf.device("/CPU:1"):
            return tf.cos(x)

    @tf.function
    def outer(x: Any) -> Any:
        with tf.device("/CPU:1"):
            wide = inner(tf.cast(x @ x, "float64"))
        total.assign_add(tf.reduce_sum(x))
        return tf.sin(x), tf.logical_not(tf.reduce_any(wide > 0)), total.read_value()

    return list(tensorflow_graph.operations(outer.get_concrete_function(tf.ones([2, 2])).graph, Place("cpu").full))


def _memory_fraction() -> dict[str, Any]:
    """What JAX would tell its CUDA plugin with a limit of a quarter, and the environment afterwards."""
    from jaxlib import xla_client

    from pipeline.backends.keras import settings_jax as keras_jax

    os.environ |= {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with keras_jax._memory_fraction(2**30, 4 * 2**30):
        inside = xla_client.generate_pjrt_gpu_plugin_options()
    after = {name: value for name, value in os.environ.items() if name.startswith("XLA_")}
    return {"inside": {name: inside[name] for name in ("memory_fraction", "preallocate")}, "after": after}


TASKS: dict[str, Callable[[Bench], Any]] = {
    task.__name__: task
    for task in (
        parity,
        more_parity,
        narrow,
        precision,
        canary_on_gpu,
        loss_scale,
        reproducible,
        after_foreign_numbers,
        programs,
        own_models,
    )
}

if __name__ == "__main__":
    here = Path(sys.argv[3])
    os.chdir(here)
    (here / "found.pickle").write_bytes(pickle.dumps(TASKS[sys.argv[2]](Bench(sys.argv[1], here))))
