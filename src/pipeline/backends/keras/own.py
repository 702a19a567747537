"""stage=keras: a compiled keras.Model of the user's, trained by its own `fit` with its own callbacks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.backends.keras import remembered, state
from pipeline.backends.keras.fit import BACKEND, keras, peak_memory, runtime_settings, settings_module
from pipeline.backends.keras.net import description, fresh_names, layer_dtypes
from pipeline.backends.keras.own_data import check_ends, check_labels, check_splits
from pipeline.backends.shared.own import Asked, OwnFit, Watch
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.models import weights
from pipeline.runs.weights import digest

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

SPLITS = ("train", "validation", "test")
# What the run says already; by the key to use instead.
RESERVED = {
    "epochs": "stage.epochs",
    "callbacks": "stage.callbacks",
    "x": "stage.data",
    "y": "stage.data",
    "validation_data": "stage.data",
    "sample_weight": "stage.data",
}
COUNTS = ("batch_size", "steps_per_epoch", "validation_steps", "validation_batch_size")


def made(asked: Asked) -> tuple[Any, dict[str, Any], list[Any]]:
    """The model, the splits and the callbacks. Raises UserError where they are not what `fit` takes."""
    model, data, callbacks = asked.net, asked.data, asked.callbacks
    assert data is not None  # stage=keras requires it
    with fresh_names():
        net = model.made()
    if not isinstance(net, keras.Model) or not net.compiled:
        what = f"a {type(net).__name__}" if not isinstance(net, keras.Model) else "a model that is not compiled"
        raise UserError(f"{model.key}={model.target}: gives {what}; give a compiled keras.Model")
    splits = data.made()
    if not isinstance(splits, dict) or "train" not in splits or not set(splits) <= set(SPLITS):
        what = f"the keys {', '.join(map(str, splits))}" if isinstance(splits, dict) else f"a {type(splits).__name__}"
        raise UserError(
            f"{data.key}={data.target}: gives {what}; give a dict with train, and validation and test if any"
        )
    check_splits(f"{data.key}={data.target}", splits)
    check_ends(f"{data.key}={data.target}", splits, asked.arguments)
    check_labels(f"{data.key}={data.target}", net, splits)
    listed = [] if callbacks is None else callbacks.made()
    if not isinstance(listed, list) or not all(isinstance(one, keras.callbacks.Callback) for one in listed):
        assert callbacks is not None
        raise UserError(f"{callbacks.key}={callbacks.target}: gives no list of keras.callbacks.Callback")
    return net, splits, listed


def check(asked: Asked, experiment: Experiment, resolved: Resolved) -> None:
    """Refuse what Keras would not fit. Raises UserError."""
    with runtime_settings(experiment, resolved):
        net, splits, _ = made(asked)
    asked.check(inspect.signature(net.fit).parameters, RESERVED, COUNTS)
    asked.check_epoch("initial_epoch", asked.epochs - 1)
    if asked.data is not None and asked.arguments.get("validation_split") and "validation" in splits:
        raise UserError(
            f"stage.fit.validation_split={asked.arguments['validation_split']}: {asked.data.key}={asked.data.target} "
            "has a validation split; leave one of them out"
        )


def fit(asked: Asked, experiment: Experiment, resolved: Resolved, run: Run) -> OwnFit:
    """Train and, where there is a test split, test."""
    with runtime_settings(experiment, resolved):
        keras.utils.set_random_seed(experiment.seed)
        net, splits, listed = made(asked)
        watch = Watch(run)
        steps = _train(net, splits, listed, asked, watch)
        watch.note_unchanged(weights.from_keras(net), weights.trained_keras(net), steps)
        seconds = watch.fit_s
        return OwnFit(
            weights=weights.from_keras(net),
            metrics=watch.metrics(_tested(net, splits)),
            epochs=watch.epochs,
            steps=steps,
            seconds=seconds,
            parameters=sum(math.prod(variable.shape) for variable in net.trainable_variables),
            peak_memory=peak_memory(resolved),
            layers=layer_dtypes(net),
            cpu_threads=settings_module.cpu_threads(),
            files={"model.json": description(net)},
            trained=weights.trained_keras(net),
        )


def _train(net: Any, splits: Mapping[str, Any], listed: list[Any], asked: Asked, watch: Watch) -> int:
    """The user's `fit`, from where the run goes on. Returns how many optimizer steps there were."""
    run, begins = watch.run, asked.arguments.get("initial_epoch", 0)
    watch.save = lambda path: state.write(_values(net), path, remembered.taken(listed))
    goes_on = {} if run.checkpoint is None else {"initial_epoch": begins + watch.epochs}
    if watch.over:
        goes_on = {"initial_epoch": asked.epochs}
    follow = _Follow(watch, listed)
    with watch.training():
        if run.checkpoint is not None and BACKEND == "tensorflow":
            _build(net, asked)
        net.fit(
            **_given(splits["train"]),
            validation_data=splits.get("validation"),
            epochs=asked.epochs,
            callbacks=[*listed, follow],
            **{"verbose": 0, **asked.arguments, **goes_on},
        )
        if follow.weights is not None and follow.weights != _digest(net):
            run.note(
                "a callback has replaced the weights after the last epoch, as EarlyStopping.restore_best_weights does: "
                "the new ones are saved and tested; what was logged is of the last epoch's"
            )
        steps = int(net.optimizer.iterations.numpy())
        watch.keep(steps, over=True)
    return steps


def _tested(net: Any, splits: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of the test split, where there is one."""
    if "test" not in splits:
        return {}
    found = net.evaluate(**_given(splits["test"]), verbose=0, return_dict=True)
    return {f"test_{name}": value for name, value in found.items()}


def _given(split: Any) -> dict[str, Any]:
    """A split as the arguments of `fit`: a pair of arrays, or a dataset that yields batches."""
    return dict(zip(("x", "y", "sample_weight"), split, strict=False)) if isinstance(split, tuple) else {"x": split}


def _build(net: Any, asked: Asked) -> None:
    """Make by a step what Keras on TensorFlow leaves to the first one: the optimizer's variables, and the weights of a
    model that is not built. What the step changes is put back when training begins; its data are made once more, since
    a generator is there once."""
    assert asked.data is not None
    one_step = {"steps_per_epoch": 1, "initial_epoch": 0, "validation_split": 0.0, "verbose": 0}
    net.fit(**_given(asked.data.made()["train"]), **{**asked.arguments, **one_step})


def _variables(net: Any) -> list[Any]:
    """All that a checkpoint holds: weights, statistics, seeds, and what the optimizer keeps."""
    return [*net.variables, *net.optimizer.variables]


def _values(net: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(variable.value) for variable in _variables(net)]


def _digest(net: Any) -> str:
    """Hash of the net's present weights."""
    return digest(weights.from_keras(net))


class _Follow(keras.callbacks.Callback):  # type: ignore[name-defined]
    """Writes each epoch's metrics. It is the last of the callbacks."""

    def __init__(self, watch: Watch, before: list[Any]) -> None:
        super().__init__()
        self.watch, self.before = watch, before
        self.weights: str | None = None  # the digest of those of the epoch that training stopped after

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Model and optimizer are built (on TensorFlow by `_build`), and the callbacks `before` have begun anew."""
        checkpoint = self.watch.run.checkpoint
        if checkpoint is not None:
            variables = _variables(self.model)
            remembered.put_back(self.before, state.read_beside(checkpoint.state, len(variables)))
            for variable, value in zip(variables, state.read(checkpoint.state, _values(self.model)), strict=True):
                variable.assign(value)
        self.watch.begins_with(weights.from_keras(self.model), weights.trained_keras(self.model))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        steps = int(self.model.optimizer.iterations.numpy())
        self.watch.epoch(logs or {}, steps)
        if self.model.stop_training or epoch + 1 == self.params["epochs"]:
            self.weights = _digest(self.model)
        if not self.model.stop_training and epoch + 1 < self.params["epochs"]:  # else after `fit`, which ends it
            self.watch.keep(steps)
