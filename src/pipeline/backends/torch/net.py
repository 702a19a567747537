"""A torch net before its first step, and what training it took of the device's memory."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import psutil
import torch
from torch.nn.parameter import is_lazy

from pipeline.backends.torch.lowering import Lowering
from pipeline.contracts import Model
from pipeline.errors import UserError
from pipeline.machine.memory import is_out_of_memory, process_peak_bytes, refuse_too_large, still_free
from pipeline.models import (
    Shapes,
    built,
    check_outputs,
    fails_on,
    largest_setting,
    takes_channels_first,
    torch_adapters,
    weights,
)
from pipeline.models.start import start_of
from pipeline.runs.fit import Start

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


def initial_net(experiment: Experiment, shapes: Shapes, lowering: Lowering) -> tuple[torch.nn.Module, int, Start]:
    """The model as training starts from it, how many weights are trained, and whose values they have.

    Torch's generator is seeded first, and whether the model can fit at all is checked before it is made.

    Raises UserError for a model that is too large for the device or gives another shape than the task compares.
    """
    torch.manual_seed(experiment.seed)
    model = experiment.data_model
    check_sketch(experiment, shapes, lowering)
    net = made(model, shapes)
    if lowering.dtype == torch.float64:
        net = net.to(torch.float64)
    before = weights.from_torch(net)
    trained_now, names = weights.trained_torch(net), weights.torch_names(net)
    values, start = start_of(experiment, before, trained_now, names, partial(torch_adapters.dense_layers, net))
    weights.to_torch(net, values, "the initial weights")
    adapted = contextlib.nullcontext() if start.adapters is None else torch_adapters.adapted(net, start.adapters)
    weights.freeze_torch(net, start.frozen)
    wide = torch.float64 if lowering.dtype == torch.float64 else torch.float32
    rounded = lowering.forward() if lowering.compute != lowering.dtype else contextlib.nullcontext()
    with adapted:
        check_outputs(_tried(net.eval(), model, shapes, wide, rounded).shape, shapes)
    net.train()
    return net, trained(net), start


def check_sketch(experiment: Experiment, shapes: Shapes, lowering: Lowering) -> None:
    """Refuse a model that is too large for the device, without making it. Raises UserError."""
    model = experiment.data_model
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError):  # not every builder works without memory
        with torch.device("meta"):
            sketch = made(model, shapes)
        free = free_memory(lowering.device, experiment.device.memory_limit_bytes)
        numbers = 2 + experiment.optimizer.slots()
        setting = largest_setting(model)
        refuse_too_large(trained(sketch), numbers, lowering.dtype.itemsize, free, str(lowering.device), setting)


def made(model: Model, shapes: Shapes) -> torch.nn.Module:
    """The module that a model's builder makes, ready to take the dataset's batches.

    Raises UserError for what is not a plain module.
    """
    net = built(model.torch, shapes)
    if not isinstance(net, torch.nn.Module):
        raise UserError(f"model: torch() gives a {type(net).__name__}; give a torch.nn.Module")
    if any(base.__name__ == "LightningModule" for base in type(net).__mro__):
        raise UserError(
            f"model: {type(net).__name__} is a LightningModule, and this stage would never call its training_step; "
            "use stage=lightning, or give the module that it trains"
        )
    if takes_channels_first(model, shapes):
        net.register_forward_pre_hook(_channels_first)
    if any(map(is_lazy, (*net.parameters(), *net.buffers()))):
        # The layers of torch's Lazy kind get their shapes from an example.
        _tried(net.eval(), model, shapes, torch.float32, contextlib.nullcontext())
    return net.train()


def trained(net: torch.nn.Module) -> int:
    """How many numbers of a net are trained."""
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def _channels_first(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """(N, H, W, C) to (N, C, H, W), in that order in memory too: the module may look at its input as one row."""
    return inputs[0].permute(0, 3, 1, 2).contiguous(), *inputs[1:]


def _tried(
    net: torch.nn.Module,
    model: Model,
    shapes: Shapes,
    wide: torch.dtype,
    rounded: contextlib.AbstractContextManager[None],
) -> torch.Tensor:
    """The outputs of one example. Raises UserError where it fails; it names the order of the axes where that is why."""
    x = example(shapes, wide)
    with torch.no_grad(), rounded:  # not in inference mode: a model may keep what it makes in its first forward pass
        try:
            outputs = net(x)
        except Exception as error:
            if isinstance(error, UserError) or is_out_of_memory(error):
                raise
            turned = model.layout == "channels_last" and len(shapes.x) == 3 and _takes(net, x.permute(0, 3, 1, 2))
            raise fails_on(shapes, error, model.layout, if_turned=turned) from error
    if not isinstance(outputs, torch.Tensor):
        raise UserError(f"model: gives a {type(outputs).__name__}; give one tensor")
    return outputs


def _takes(net: torch.nn.Module, x: torch.Tensor) -> bool:
    try:
        net(x.contiguous())
    except Exception:
        return False
    return True


def example(shapes: Shapes, dtype: torch.dtype) -> torch.Tensor:
    """A batch of one example, all zeros."""
    return torch.zeros(1, *shapes.x, dtype=dtype if shapes.vocabulary is None else torch.int32)


def free_memory(device: torch.device, limit: int | None) -> int:
    """Bytes that can still be had on a device, of which torch may take `limit` at most."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    reserved, given_out = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    return still_free(int(torch.cuda.mem_get_info(device)[0]), limit, reserved, given_out)


def peak_memory(device: torch.device) -> dict[str, int]:
    """Peak bytes: of the process, and on a GPU also what torch's allocator gave out."""
    peak = {"process_bytes": process_peak_bytes()}
    if device.type == "cuda":
        peak["device_bytes"] = int(torch.cuda.max_memory_allocated(device))
    return peak
