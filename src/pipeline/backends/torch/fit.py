"""PyTorch through Lightning.

The Trainer is handed blocks of batches, and `training_step` runs the optimizer once for each batch of a block (manual
optimization): Lightning's work for a step, 300 us, is then paid once a block, not once a batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipeline.backends.shared.made import check_loss, check_own_optimizer
from pipeline.backends.shared.progress import Watch
from pipeline.backends.torch.blocks import StreamedBlocks
from pipeline.backends.torch.group import Group
from pipeline.backends.torch.joined import Lead
from pipeline.backends.torch.lean_import import lean_import
from pipeline.backends.torch.lowering import Lowering
from pipeline.backends.torch.net import check_sketch, example, initial_net, peak_memory
from pipeline.backends.torch.peers import Alone, Others, Peers, accounts, data_parallel, not_observed
from pipeline.backends.torch.predictor import TorchPredictor
from pipeline.backends.torch.quiet import quiet_lightning
from pipeline.backends.torch.settings import runtime_settings
from pipeline.backends.torch.step import optimizer_of
from pipeline.backends.torch.threads import threads_for
from pipeline.backends.torch.training import Training
from pipeline.datasets import Data
from pipeline.loaders.batch_plan import Plan
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.machine.launched import launched
from pipeline.models import Shapes, weights
from pipeline.profilers import Subject
from pipeline.runs.fit import Fit, Predictor
from pipeline.runs.weights import Weights, digests

with lean_import():
    import pytorch_lightning as pl

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run


def fit(experiment: Experiment, data: Data, resolved: Resolved, run: Run) -> Fit:
    """Train the experiment's model and return it as NumPy weights. Raises RunError where the run cannot go on."""
    if experiment.device.processes == 1:
        return train(experiment, data, resolved, run, Alone())
    first = Peers if launched(experiment.device.processes) is None else Lead
    others = first(experiment, data, resolved, run)
    try:
        return train(experiment, replace(data, part=others.group.part), resolved, run, others)
    finally:
        others.close()


def train(experiment: Experiment, data: Data, resolved: Resolved, run: Run, others: Others) -> Fit:
    """The same as one process of a group, or alone."""
    lowering, shapes, group = Lowering(resolved), data.task.shapes, others.group
    with runtime_settings(experiment, resolved), quiet_lightning():
        net, parameters, start = initial_net(experiment, shapes, lowering)
        if lowering.device.type == "cpu" and not experiment.backend.threads:
            set_threads(net, shapes, experiment, group)
        watch = Watch(experiment, run, data.task, Plan.of(experiment, len(data.train)), start.adapters)
        module = Training(lowering.moved(net), experiment, data, lowering, watch, group)
        start = replace(start, digests=digests(weights.from_torch(net), weights.trained_torch(net)))
        fed = module.training_blocks()
        try:
            watch.profile.attach(_subject(module, shapes, resolved.place))
            processes = _steps(module, fed, resolved, others)
        finally:
            watch.close()
            if isinstance(fed, StreamedBlocks):
                fed.close()
        kept = module.validated_weights() if watch.best.weights is None else watch.best.weights
        return Fit(
            cpu_threads=torch.get_num_threads(),
            weights=kept,
            kept=watch.kept(),
            behind_average=digests(weights.from_torch(net), start.digests) if experiment.training.ema else {},
            epochs=tuple(watch.epochs),
            loss_scale=watch.loss_scale,
            observed=module.observation,
            parameters=parameters,
            start=start,
            peak_memory=peak_memory(lowering.device),
            files={"model.txt": f"{net}\n"},
            processes=processes,
        )


def set_threads(net: torch.nn.Module, shapes: Shapes, experiment: Experiment, group: Group) -> None:
    """As many threads as pay for a step of this net, of the cores that this process of the group has."""
    one = example(shapes, next(net.parameters()).dtype)
    torch.set_num_threads(group.cores or max(1, torch.get_num_threads() // group.count))
    torch.set_num_threads(threads_for(net, one, experiment.training.batch_size // group.count))


def _steps(module: Training, fed: Any, resolved: Resolved, others: Others) -> dict[str, object] | None:
    """All steps that are left, by Lightning. For the receipt: which processes took part; None of a single one."""
    watch, group = module.watch, others.group
    if watch.finished:
        module.restore_finished()
        return not_observed(group)
    with watch.keeper.stops_held_back(), others.connected(lambda: watch.step):
        trainer = _trainer(watch.plan.periods - watch.asked, resolved, group)
        with module.terminating.kept():
            trainer.fit(module, fed, module.validation_batches())
        return accounts(group, module.experiment, resolved, module.observation)


def predictor(
    experiment: Experiment, shapes: Shapes, saved: Weights, resolved: Resolved, *, compiled: bool = False
) -> Predictor:
    """The experiment's model with these weights. `compiled`: backend.compile is of its passes."""
    return TorchPredictor(experiment, shapes, saved, resolved, compiled=compiled)


def check_model(experiment: Experiment, shapes: Shapes, resolved: Resolved) -> None:
    """Refuse a model that cannot be trained on examples of these shapes. Raises UserError."""
    with runtime_settings(experiment, resolved):
        lowering = Lowering(resolved)
        net, *_ = initial_net(experiment, shapes, lowering)
        if experiment.optimizer.asks_the_model:
            every = {name: shape for name, _, shape in weights.parameters_torch(net)}
            experiment.kinds_of_update(every, shapes.outputs[-1])
        check_own_optimizer(experiment, lambda: optimizer_of(net, experiment, lowering, shapes))


def check_size(experiment: Experiment, shapes: Shapes, resolved: Resolved) -> None:
    """Refuse a model that is too large for the device, without making it. Raises UserError."""
    with runtime_settings(experiment, resolved):
        check_sketch(experiment, shapes, Lowering(resolved))


@contextlib.contextmanager
def loss_of(experiment: Experiment, resolved: Resolved) -> Iterator[Callable[..., np.ndarray]]:
    """What a training would lower, as a function of arrays."""
    with runtime_settings(experiment, resolved):
        function: Any = experiment.loss.torch()
        check_loss(experiment, function)
        if isinstance(function, torch.nn.Module):  # it may hold tensors
            function.to(resolved.place.torch)

        def lowered(outputs: np.ndarray, *others: np.ndarray) -> np.ndarray:
            on_device, *rest = (torch.from_numpy(one).to(resolved.place.torch) for one in (outputs, *others))
            found = function(on_device.requires_grad_().clone(), *rest)  # as a net gives them, which may be changed
            if isinstance(found, torch.Tensor) and not found.requires_grad:
                raise ValueError(
                    "gives a number without a gradient; compute it from the outputs in torch alone, without detach() "
                    "or item()"
                )
            return np.asarray(found.detach().cpu())

        yield lowered


def _subject(module: Training, shapes: Shapes, place: Place) -> Subject:
    """What a profiler may look at. Lightning moves the net to the device later, when training begins."""

    def settle() -> None:
        if place.kind == "gpu":
            torch.cuda.synchronize(place.torch)

    def compile_s() -> float:
        return 0.0 if module.compiled is None else module.compiled.seconds

    return Subject(module.net, lambda: weights.from_torch(module.net), settle, shapes, "float32", place, compile_s)


def _trainer(periods: int, resolved: Resolved, group: Group) -> pl.Trainer:
    """What Lightning calls an epoch is a period here."""
    gpu = resolved.place.kind == "gpu"
    return pl.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=[resolved.place.index] if gpu else 1,
        strategy="auto" if group.count == 1 else data_parallel(group, resolved),
        precision="32-true",  # none of Lightning's: lowering.py does it
        max_epochs=periods,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def logical_devices(experiment: Experiment, resolved: Resolved) -> list[str]:
    """Every device that torch sees, as it names them."""
    cards = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    return [f"cpu ({torch.get_num_threads()} threads)", *cards, f"default dtype {torch.get_default_dtype()}"]
