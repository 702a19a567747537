"""PyTorch through Lightning.

The Trainer is handed blocks of batches, and `training_step` runs the optimizer once for each batch of a block (manual
optimization): Lightning's work for a step, 300 us, is then paid once a block, not once a batch.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipeline.backends.shared.progress import Watch
from pipeline.backends.torch.blocks import HeldOut, ResidentBlocks, StreamedBlocks
from pipeline.backends.torch.compiled import CompiledStep, make_capturable
from pipeline.backends.torch.lean_import import lean_import
from pipeline.backends.torch.net import initial_net, peak_memory, widened
from pipeline.backends.torch.observer import Observer
from pipeline.backends.torch.settings import runtime_settings
from pipeline.backends.torch.threads import threads_for
from pipeline.datasets import Arrays
from pipeline.loaders import block_lengths
from pipeline.loaders.memory import Memory
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.machine.precision import FORMATS, GROWTH_STEPS
from pipeline.models import Shapes, built, weights
from pipeline.profilers import Subject
from pipeline.runs.fit import ON_CPU, Fit, Observation, Predict

with lean_import():
    import pytorch_lightning as pl
    import torchmetrics

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

# Precision -> Lightning's flag. tf32 is fp32 with a switch of torch's (see settings.py).
FLAGS = {
    "fp64": "64-true",
    "fp32": "32-true",
    "tf32": "32-true",
    "fp16": "16-true",
    "bf16": "bf16-true",
    "mixed_fp16": "16-mixed",
    "mixed_bf16": "bf16-mixed",
}


def fit(experiment: Experiment, data: Arrays, resolved: Resolved, run: Run) -> Fit:
    """Train the experiment's model and return it as NumPy weights. Raises RunError where the run cannot go on."""
    device = torch.device(resolved.place.torch)
    with runtime_settings(experiment, resolved):
        torch.manual_seed(experiment.seed)
        net, parameters = initial_net(experiment, data, FORMATS[resolved.precision], device)
        if device.type == "cpu" and not experiment.backend.threads:
            torch.set_num_threads(threads_for(net, data.shape, experiment.training.batch_size))
        watch = Watch(experiment, run, len(data.train))
        module = Classifier(net, experiment, data, resolved, watch, device)
        trainer = _trainer(experiment, resolved)
        fed = module.training_blocks()
        try:
            watch.profile.attach(_subject(net, data, resolved.place))
            trainer.fit(module, fed, module.validation_batches())
        finally:
            watch.close()
            if isinstance(fed, StreamedBlocks):
                fed.close()
        return Fit(
            cpu_threads=torch.get_num_threads(),
            weights=weights.from_torch(net),
            epochs=tuple(watch.epochs),
            loss_scale=watch.loss_scale,
            observed=module.observation,
            parameters=parameters,
            peak_memory=peak_memory(device),
            files={"model.txt": f"{net}\n"},
        )


def predictor(experiment: Experiment, shapes: Shapes, saved: weights.Weights, resolved: Resolved) -> Predict:
    """A function from images (N, H, W, C) in [0, 1] to logits (N, classes) float64, at the run's precision."""
    device = torch.device(resolved.place.torch)
    form = FORMATS[resolved.precision]
    dtype = getattr(torch, form.parameters)
    with runtime_settings(experiment, resolved):
        net = built(experiment.data_model.torch, shapes)
        if dtype != torch.float32:  # as built it is float32, but for layers with a dtype of their own
            net = net.to(dtype)
        weights.to_torch(net, saved, "the saved run")
        net = net.to(device).eval()
    mixed = torch.autocast(device.type, getattr(torch, form.compute), enabled=form.compute != form.parameters)
    step = experiment.training.evaluation_batch_size

    def predict(images: np.ndarray) -> np.ndarray:
        found = []
        with runtime_settings(experiment, resolved), torch.inference_mode(), mixed:
            for first in range(0, len(images), step):
                x = torch.from_numpy(images[first : first + step]).to(device, dtype)
                found.append(net(x).double().cpu().numpy())
        return np.concatenate(found)

    return predict


class Classifier(pl.LightningModule):
    """A net in training: block after block of optimizer steps, watched."""

    def __init__(
        self,
        net: torch.nn.Module,
        experiment: Experiment,
        data: Arrays,
        resolved: Resolved,
        watch: Watch,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.experiment, self.data, self.watch = experiment, data, watch
        self.loss: Any = experiment.loss.torch()
        self.home, self.one = device, torch.ones((), device=device)
        self.input_dtype = FORMATS[resolved.precision].parameters
        self.observation = Observation(how="torch dispatch, first training step")
        if device.type == "cpu":
            self.observation.tf32, self.observation.tf32_by = False, ON_CPU
        self.compiled: CompiledStep | None = None
        self.validation_accuracy = torchmetrics.classification.MulticlassAccuracy(
            len(data.classes), average="micro", validate_args=False
        )
        self.validation_loss = torchmetrics.MeanMetric(nan_strategy="disable")  # its default leaves a NaN out

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = self.experiment.optimizer.torch(self.net.parameters())
        assert isinstance(optimizer, torch.optim.Optimizer)
        if self.experiment.backend.compile and self.home.type == "cuda":
            make_capturable(optimizer)
        return optimizer

    def training_blocks(self) -> Any:
        """What the Trainer iterates over, once an epoch: lists of (x, y) batches."""
        loader = self.experiment.loader
        if isinstance(loader, Memory):
            return ResidentBlocks(self, loader.steps_per_execution)
        size = self.experiment.training.batch_size
        # torch has no NumPy bfloat16 to take from the host: narrow dtypes are made on the device
        dtype = "float64" if self.input_dtype == "float64" else "float32"
        stream = loader.stream(self.data.train, self.data.scale, dtype, size, self.experiment.seed)
        lengths = block_lengths(len(self.data.train), size, loader.steps_per_execution)
        return StreamedBlocks(self, stream, lengths, ahead=loader.pin_memory)

    def validation_batches(self) -> Any:
        """Batches of the validation images, or nothing where none are held out."""
        held_out = self.data.validation
        if not len(held_out):
            return None
        x, y = self.resident(held_out.x, held_out.y)
        size = self.experiment.training.evaluation_batch_size
        return HeldOut(x.split(size), y.split(size))

    def resident(self, x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Images in [0, 1] and labels as tensors on the device, in the dtype of the parameters."""
        wide = "float64" if self.input_dtype == "float64" else "float32"
        images = torch.from_numpy(self.data.scaled(x, wide)).to(self.home, getattr(torch, self.input_dtype))
        return images, torch.from_numpy(y).to(self.home)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch  # the blocks have seen to it; looking at every tensor again costs 4 % of a step

    def on_train_epoch_start(self) -> None:
        self.watch.begin_epoch()

    def training_step(self, block: Any, _: int) -> None:
        optimizer = self.optimizers().optimizer  # type: ignore[union-attr]
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        phase = self.watch.profile.phase
        losses: list[torch.Tensor] = []
        n_correct: list[torch.Tensor] = []
        scales: list[torch.Tensor] = []
        for x, y in block:
            if self.compiled is not None and self.compiled.takes(x):
                loss, right = self.compiled(x, y)
                losses.append(loss)
                n_correct.append(right)
                scales += self._scale(scaler)
                continue
            looking = contextlib.nullcontext() if self.watch.step or losses else Observer(self.observation)
            with looking:
                with phase("forward"):
                    logits = self.net(x)
                    loss = self.loss_of(logits, y)
                optimizer.zero_grad()
                with phase("backward"):
                    (loss if scaler is None else scaler.scale(loss)).backward()
                with phase("optimizer"):
                    if scaler is None:
                        optimizer.step()
                    else:
                        scaler.step(optimizer)
                        scaler.update()
            scales += self._scale(scaler)
            losses.append(loss.detach())
            n_correct.append((logits.detach().argmax(1) == y).sum())
            if not self.watch.step and len(losses) == 1:
                self._mark_first_step()
                if self.experiment.backend.compile:  # the first step is the observed one, as written
                    self.observation.how += "; the compiled steps after it are not looked into"
                    size = self.experiment.training.batch_size
                    self.compiled = CompiledStep(self.net, self.loss_of, optimizer, scaler, size, phase)
                    self.watch.run.say(f"backend.compile: {self.compiled.how}")
        told = [torch.stack(each).double() for each in (losses, n_correct, scales) if each]
        losses_K, hits_K, *scales_K = torch.stack(told).cpu().numpy()  # one copy a block
        if self.compiled is not None:
            self.watch.compiled(self.compiled.seconds)
        self.watch.block(losses_K, hits_K, len(y), *scales_K)

    def _scale(self, scaler: Any) -> list[torch.Tensor]:
        """The loss scale as it now stands, where there is one, without waiting for the device."""
        return [] if scaler is None else [scaler.scale(self.one)]

    def loss_of(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss that is trained."""
        return self.loss(widened(logits), y)

    def _mark_first_step(self) -> None:
        if self.home.type == "cuda":
            torch.cuda.synchronize(self.home)  # a GPU is only told what to do: without this its work is still to come
        self.watch.run.mark("first_step_s")

    def on_train_epoch_end(self) -> None:
        held_out = len(self.data.validation) > 0
        if not held_out:
            self.watch.pause()
            self.watch.end_epoch()
            return
        self.watch.end_epoch(self.validation_loss.compute().item(), self.validation_accuracy.compute().item())
        self.validation_loss.reset()
        self.validation_accuracy.reset()

    def on_validation_epoch_start(self) -> None:
        self.watch.pause()

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        logits = widened(self.net(x))
        self.validation_loss.update(self.loss(logits, y), len(y))
        self.validation_accuracy.update(logits, y)


def _subject(net: torch.nn.Module, data: Arrays, place: Place) -> Subject:
    """What a profiler may look at. Lightning moves the net to the device later, when training begins."""

    def settle() -> None:
        if place.kind == "gpu":
            torch.cuda.synchronize(place.torch)

    return Subject(net, lambda: weights.from_torch(net), settle, (data.shape, "float32"), place)


def _trainer(experiment: Experiment, resolved: Resolved) -> pl.Trainer:
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings("ignore", message="The `srun` command is available")  # a run is not Slurm's to start
    gpu = resolved.place.kind == "gpu"
    return pl.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=[resolved.place.index] if gpu else 1,
        **_lowered(experiment, resolved),
        max_epochs=experiment.training.epochs,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _lowered(experiment: Experiment, resolved: Resolved) -> dict[str, Any]:
    """The precision as the Trainer takes it.

    Of `16-mixed` on a CPU Lightning would make bfloat16, and its scaler would start with a scale of its own choice, so
    the plugin that the flag stands for is made here.
    """
    flag = FLAGS[resolved.precision]
    if not FORMATS[resolved.precision].loss_scaling:
        return {"precision": flag}
    kind = torch.device(resolved.place.torch).type
    scaler = torch.amp.GradScaler(kind, experiment.precision.loss_scale, growth_interval=GROWTH_STEPS)
    return {"plugins": [pl.plugins.MixedPrecision(flag, kind, scaler)]}  # type: ignore[arg-type]


def logical_devices(experiment: Experiment, resolved: Resolved) -> list[str]:
    """Every device that torch sees, as it names them."""
    cards = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    return [f"cpu ({torch.get_num_threads()} threads)", *cards, f"default dtype {torch.get_default_dtype()}"]
