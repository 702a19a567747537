"""A torch net before its first step, and what training it took of the device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import torch

from pipeline.backends.torch.lowering import Lowering
from pipeline.machine.memory import process_peak_bytes, refuse_too_large, still_free
from pipeline.models import Shapes, built, check_outputs, weights
from pipeline.runs.fit import Start

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


def initial_net(experiment: Experiment, shapes: Shapes, lowering: Lowering) -> tuple[torch.nn.Module, int, Start]:
    """The model as training starts from it, how many weights are trained, and whose values they have.

    Torch's generator is seeded first, and whether the model can fit at all is checked before it is made.

    Raises UserError for a model that is too large for the device or gives another shape than the task compares.
    """
    torch.manual_seed(experiment.seed)
    with torch.device("meta"):
        sketch = built(experiment.data_model.torch, shapes)
    parameters = sum(p.numel() for p in sketch.parameters() if p.requires_grad)
    free = free_memory(lowering.device, experiment.device.memory_limit_bytes)
    numbers = 2 + experiment.optimizer.slots()
    refuse_too_large(parameters, numbers, lowering.dtype.itemsize, free, str(lowering.device))
    net = built(experiment.data_model.torch, shapes)
    if lowering.dtype == torch.float64:
        net = net.to(torch.float64)
    values, start = weights.start_of(experiment.data_model, weights.from_torch(net), experiment.seed)
    weights.to_torch(net, values, "the initial weights")
    wide = torch.float64 if lowering.dtype == torch.float64 else torch.float32
    with torch.no_grad():  # not in inference mode: a model may keep what it makes in its first forward pass
        check_outputs(net.eval()(example(shapes, wide)).shape, shapes)
    net.train()
    return net, parameters, start


def example(shapes: Shapes, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """A batch of one example, all zeros."""
    return torch.zeros(1, *shapes.x, dtype=dtype if shapes.vocabulary is None else torch.int32, device=device)


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
