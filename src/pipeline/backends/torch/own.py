"""stage=lightning: a LightningModule and a LightningDataModule of the user's, run by Lightning as they are."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipeline.backends.shared.own import Asked, OwnFit, Watch, numbers
from pipeline.backends.torch.lean_import import lean_import
from pipeline.backends.torch.net import peak_memory, trained
from pipeline.backends.torch.observer import Observer
from pipeline.backends.torch.quiet import quiet_lightning
from pipeline.backends.torch.settings import runtime_settings
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.machine.precision import FORMATS
from pipeline.models import weights
from pipeline.raised import shortened, where
from pipeline.runs.fit import ON_CPU, Observation

with lean_import():
    import pytorch_lightning as pl
    from lightning_fabric.utilities.exceptions import MisconfigurationException
    from pytorch_lightning.loggers.logger import DummyLogger, Logger

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

DTYPES = {"float64": "64", "float32": "32", "float16": "16", "bfloat16": "bf16"}  # as Lightning calls them
# What Lightning warns of that is about speed, or that the run sees to.
HINTS = (
    "does not have many workers",
    "persistent_workers",
    "logging interval",
    "available but not used",
    "`ckpt_path`",
    "resuming from a checkpoint",
    "Checkpoint directory",
)
COUNTS = ("accumulate_grad_batches", "check_val_every_n_epoch")
# What the run says already; by the key to use instead.
RESERVED = {
    "accelerator": "device",
    "devices": "device",
    "precision": "precision",
    "max_epochs": "stage.epochs",
    "logger": "tracking",
    "default_root_dir": "output_dir",
    "callbacks": "configure_callbacks() of the module",
}


def lightning_precision(name: str) -> str:
    """What Lightning calls a precision. Raises UserError for one that it does not have."""
    form = FORMATS[name]
    if form.mixed and form.compute == "float16" and not form.loss_scaling:
        raise UserError(f"precision={name} with stage=lightning: Lightning scales the loss of all mixed float16")
    return f"{DTYPES[form.compute]}-{'mixed' if form.mixed else 'true'}"


def made(asked: Asked) -> tuple[Any, Any]:
    """The module and its data. Raises UserError where they are none of Lightning's."""
    module, data = asked.net, asked.data
    net = module.made()
    if not _is(net, "LightningModule"):
        raise UserError(f"{module.key}={module.target}: gives a {type(net).__name__}; name a LightningModule")
    held = None if data is None else data.made()
    if data is not None and not _is(held, "LightningDataModule"):
        raise UserError(f"{data.key}={data.target}: gives a {type(held).__name__}; name a LightningDataModule")
    return net, held


def _is(made_object: object, name: str) -> bool:
    return any(base.__name__ == name for base in type(made_object).__mro__)


def check(asked: Asked, experiment: Experiment, resolved: Resolved) -> None:
    """Refuse what Lightning would not run. Raises UserError."""
    asked.check(inspect.signature(pl.Trainer).parameters, RESERVED, COUNTS)
    asked.check_epoch("min_epochs", asked.epochs)  # the ones beyond would be left out
    with quiet_lightning():
        _trainer(asked, resolved, DummyLogger(), None, [])
    with torch.random.fork_rng([]):
        torch.manual_seed(experiment.seed)
        net, held = made(asked)
    if not _overridden(net, held, "train_dataloader"):
        raise UserError(
            f"{asked.net.key}={asked.net.target}: has no train_dataloader(); name its data, as stage.data=mine.Data"
        )


def fit(asked: Asked, experiment: Experiment, resolved: Resolved, run: Run) -> OwnFit:
    """Train and, where the user has a test, test."""
    with runtime_settings(experiment, resolved), quiet_lightning():
        pl.seed_everything(experiment.seed, verbose=False)
        net, held = made(asked)
        watch = Watch(run)
        observation = watch.observation = watch.observation or Observation(how="torch dispatch, first training batch")
        if resolved.place.kind == "cpu":
            observation.tf32, observation.tf32_by = False, ON_CPU
        follow = _Follow(watch, observation, experiment.seed)
        made_trainer = _trainer(asked, resolved, _Journal(watch), run.artifact("module/checkpoints").parent, [follow])
        goes_on = {} if run.checkpoint is None else {"ckpt_path": run.checkpoint.state, "weights_only": False}
        watch.save = made_trainer.save_checkpoint
        what = " with ".join(filter(None, (f"{asked.net.key}={asked.net.target}", asked.shown)))
        with _warnings_noted(run), watch.training(), _refusals(what, MisconfigurationException):
            made_trainer.fit(net, datamodule=held, **goes_on)  # type: ignore[arg-type]
            follow.write(made_trainer, over=True)
        watch.refuse_untrained(made_trainer.global_step)
        watch.note_unchanged(weights.from_torch(net), weights.trained_torch(net), made_trainer.global_step)
        seconds = watch.fit_s
        tested: Sequence[Mapping[str, float]] = ()
        if _overridden(net, held, "test_dataloader") and _overridden(net, None, "test_step"):
            with _warnings_noted(run):
                tested = made_trainer.test(net, datamodule=held, verbose=False)
        return OwnFit(
            weights=weights.from_torch(net),
            metrics=watch.metrics({name: value for one in tested for name, value in one.items()}),
            epochs=watch.epochs,
            steps=made_trainer.global_step,
            seconds=seconds,
            parameters=trained(net),
            peak_memory=peak_memory(torch.device(resolved.place.torch)),
            observed=observation,
            cpu_threads=torch.get_num_threads(),
            files={"module.txt": f"{net}\n"},
            trained=weights.trained_torch(net),
        )


def _trainer(asked: Asked, resolved: Resolved, logger: Logger, folder: Path | None, callbacks: list[Any]) -> pl.Trainer:
    """Lightning's Trainer. Raises UserError for arguments that it does not take."""
    gpu = resolved.place.kind == "gpu"
    ours: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    with _refusals(asked.shown or "stage.trainer", Exception):
        return pl.Trainer(
            **{**ours, **asked.arguments},
            accelerator="gpu" if gpu else "cpu",
            devices=[resolved.place.index] if gpu else 1,
            precision=lightning_precision(resolved.precision),  # type: ignore[arg-type]
            max_epochs=asked.epochs,
            logger=logger,
            default_root_dir=folder,
            callbacks=callbacks,
        )


@contextlib.contextmanager
def _refusals(what: str, kind: type[Exception]) -> Iterator[None]:
    """Raise an error of `kind`, from Lightning, as a UserError. `what`: the settings that it is about."""
    try:
        yield
    except kind as error:
        said = shortened(" ".join(str(error).split()))
        raise UserError(f"{what}: Lightning refuses it: {said}{where(error)}") from error


@contextlib.contextmanager
def _warnings_noted(run: Run) -> Iterator[None]:
    """What Lightning warns of becomes notes, but for HINTS: a missing optimizer, say, or validation data."""

    def note(message: Warning | str, category: type[Warning], file: str, *rest: Any) -> None:
        text = " ".join(str(message).split())
        if "pytorch_lightning" not in file:
            shown(message, category, file, *rest)
        elif issubclass(category, UserWarning) and not any(hint in text for hint in HINTS):  # not what is deprecated
            run.note(f"Lightning: {shortened(text)}")

    with warnings.catch_warnings():
        warnings.filterwarnings("always", module="pytorch_lightning")
        shown, warnings.showwarning = warnings.showwarning, note  # type: ignore[assignment]
        yield


def _overridden(net: Any, held: Any, name: str) -> bool:
    """Whether the user's module, or their data, defines a hook of Lightning's."""
    bases = ((net, pl.LightningModule), (held, pl.LightningDataModule))
    return any(one is not None and getattr(type(one), name) is not getattr(base, name, None) for one, base in bases)


class _Journal(Logger):
    """Lightning's logger: what the module logs at steps goes into the journal."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    @property
    def name(self) -> str:
        return ""  # it is part of the checkpoints' path

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        found = {name: value for name, value in metrics.items() if name != "epoch"}
        self.watch.step(found, step or 0)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The config has them."""


class _Follow(pl.Callback):
    """Observes the first batch, and writes what stands after each epoch.

    That is where the next epoch begins, and after `fit`: the module's own hook of the epoch's end has then run, and
    Lightning has written what it logged.
    """

    def __init__(self, watch: Watch, observation: Observation, seed: int) -> None:
        self.watch, self.observer, self.seed = watch, Observer(observation), seed
        self.observing, self.epoch_ended = False, False
        self.before: Mapping[str, Any] = {}  # a validation, what stood
        self.of_validation: dict[str, float] = {}  # the last one's
        self.validated = False

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Come before the user's callbacks, which have then begun no other epoch."""
        trainer.callbacks = [self, *(one for one in trainer.callbacks if one is not self)]
        trainer.should_stop = trainer.should_stop or self.watch.over  # Lightning does not keep it

    def on_train_start(self, _: Any, net: Any) -> None:
        self.watch.begins_with(weights.from_torch(net), weights.trained_torch(net))
        if self.watch.run.checkpoint is not None:  # not the draws of the first epochs again
            pl.seed_everything(self.seed + self.watch.epochs, verbose=False)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.watch.step({}, trainer.global_step)
        if not self.observer.observation.devices:
            self.observing = True
            self.observer.__enter__()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._leave()
        self.watch.run.mark("first_step_s")

    def on_exception(self, *_: Any) -> None:
        self._leave()

    def _leave(self) -> None:
        if self.observing:
            self.observing = False
            self.observer.__exit__(None, None, None)

    def on_validation_start(self, trainer: Any, *_: Any) -> None:
        self.before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """What a validation has logged stands in new tensors."""
        found = trainer.callback_metrics.items()
        self.of_validation |= numbers({name: value for name, value in found if self.before.get(name) is not value})
        self.validated = True

    def on_train_epoch_end(self, *_: Any) -> None:
        self.epoch_ended = True

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        if self.watch.run.checkpoint is not None:  # it is of an epoch's beginning: of no epoch is a part left to do
            trainer.fit_loop.restarting = False  # of its inner loops too
        self.write(trainer)

    def write(self, trainer: Any, *, over: bool = False) -> None:
        """The epoch that has ended, if one has."""
        if self.epoch_ended:
            old = {} if self.validated else self.of_validation  # Lightning keeps them: of an earlier epoch
            found = {
                name: one for name, one in numbers(trainer.callback_metrics).items() if repr(old.get(name)) != repr(one)
            }
            self.epoch_ended = self.validated = False
            self.watch.epoch(found, trainer.global_step)
            self.watch.keep(trainer.global_step, over=over)
