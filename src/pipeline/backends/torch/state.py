"""The state of a torch training that a checkpoint holds: weights, optimizer, loss scale, average, random generators."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.backends.torch.compiled import rate_as_tensor
from pipeline.backends.torch.step import Step


def of(step: Step, *, mid_step: bool) -> dict[str, Any]:
    """What decides the rest of the training, not copied. `mid_step`: gradients of a step's first batches are kept."""
    wide = step.gathering.wide
    gradients = [wide.get(p, p.grad) for p in step.net.parameters()] if mid_step else None
    return {
        "net": step.net.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "scaler": None if step.scaler is None else step.scaler.state_dict(),
        "average": None if step.average is None else step.average.average,
        "gradients": gradients,
        "random": _generators(step.lowering.device),
    }


def restore(step: Step, path: Path) -> None:
    """Put a training where it stood. The file holds tensors and plain data only: nothing in it is run."""
    kept = torch.load(path, map_location="cpu", weights_only=True)
    step.net.load_state_dict(kept["net"])
    step.optimizer.load_state_dict(kept["optimizer"])
    if step.scaler is not None:
        step.scaler.load_state_dict(kept["scaler"])
    if step.average is not None:
        torch._foreach_copy_(step.average.average, [one.to(step.lowering.device) for one in kept["average"]])
    if any(isinstance(group["lr"], torch.Tensor) for group in step.optimizer.param_groups):  # of a compiled update
        rate_as_tensor(step.optimizer, step.lowering.device)
    step.gathering.fresh = kept["gradients"] is None
    for parameter, gradient in zip(step.net.parameters(), kept["gradients"] or [], strict=False):
        found = None if gradient is None else gradient.to(parameter.device)
        if found is not None and parameter in step.narrow:
            step.gathering.wide[parameter] = found.float()
        else:
            parameter.grad = found
    _restore_generators(kept["random"], step.lowering.device)


class HostCopy:
    """Copies on the host, into buffers that are kept: what training waits for is the copying alone."""

    def __init__(self) -> None:
        self.kept: Any = None

    def ready(self, state: Any) -> Callable[[], None]:
        """What makes buffers for a state such as this one, in another thread."""

        def make() -> None:
            self.kept = _buffers(state)

        return make

    def of(self, state: Any) -> Callable[[Path], None]:
        """Copy; returns what writes the copy, which holds until the next one."""
        self.kept = _copied(state, self.kept)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        copy = self.kept
        return lambda path: _save(copy, path)


def _save(copy: Any, path: Path) -> None:
    """torch's writer makes a RuntimeError of a full disk."""
    try:
        torch.save(copy, path)
    except RuntimeError as error:
        raise OSError(f"torch cannot write it ({str(error).splitlines()[0]})") from error


def _buffers(value: Any) -> Any:
    """Memory like that of the tensors, all of it written to: the system gives it out at the first write."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device="cpu", requires_grad=False).zero_()
    if isinstance(value, dict):
        return {key: _buffers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_buffers(item) for item in value)
    return None


def _copied(value: Any, buffer: Any) -> Any:
    if isinstance(value, torch.Tensor):
        fits = isinstance(buffer, torch.Tensor) and buffer.shape == value.shape and buffer.dtype == value.dtype
        if fits and buffer.stride() == value.stride():
            return buffer.copy_(value.detach(), non_blocking=True)
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        known = buffer if isinstance(buffer, dict) else {}
        return {key: _copied(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        old = buffer if isinstance(buffer, list | tuple) and len(buffer) == len(value) else [None] * len(value)
        return type(value)(_copied(item, before) for item, before in zip(value, old, strict=True))
    return value


def _generators(device: torch.device) -> dict[str, Any]:
    """torch's, Python's and NumPy's: a model of somebody else's may draw from any of them."""
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": list(random.getstate()),
        "numpy": [str(name), torch.from_numpy(np.asarray(keys, np.int64)), int(position), int(has_gauss), float(gauss)],
    }


def _restore_generators(kept: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(kept["torch"])
    if kept["cuda"] is not None:
        torch.cuda.set_rng_state(kept["cuda"], device)
    version, numbers, gauss_next = kept["python"]
    random.setstate((version, tuple(numbers), gauss_next))
    name, keys, position, has_gauss, gauss = kept["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
