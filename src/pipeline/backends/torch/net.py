"""A torch net before its first step, and what training it took of the device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import torch

from pipeline.datasets import Arrays
from pipeline.machine.memory import process_peak_bytes, refuse_too_large, still_free
from pipeline.machine.precision import Format, bytes_per_number
from pipeline.models import Shapes, built, check_logits, weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


def initial_net(
    experiment: Experiment, data: Arrays, form: Format, device: torch.device
) -> tuple[torch.nn.Module, int]:
    """The model with its seeded weights and how many there are, after a look at whether it can fit at all.

    Raises UserError for a model that is too large for the device or does not give one logit a class.
    """
    shapes = Shapes(data.shape, len(data.classes))
    with torch.device("meta"):
        sketch = built(experiment.data_model.torch, shapes)
    parameters = sum(p.numel() for p in sketch.parameters() if p.requires_grad)
    each = bytes_per_number(form.parameters)
    free = free_memory(device, experiment.device.memory_limit_bytes)
    refuse_too_large(parameters, 2 + experiment.optimizer.slots(), each, free, str(device))
    wide = torch.float64 if form.parameters == "float64" else torch.float32
    net = built(experiment.data_model.torch, shapes)
    if wide == torch.float64:
        net = net.to(wide)
    weights.to_torch(net, weights.initial(weights.from_torch(net), experiment.seed), "the initial weights")
    with torch.inference_mode():
        check_logits(net.eval()(torch.zeros(1, *data.shape, dtype=wide)).shape, len(data.classes))
    net.train()
    return net, parameters


def widened(logits: torch.Tensor) -> torch.Tensor:
    """Logits in float32 at least: see pipeline.losses."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


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
