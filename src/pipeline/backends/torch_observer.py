"""What torch really runs: every operation of a step as the dispatcher sees it, after autocast has had its way."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.backends.fit import Observation

PRODUCTS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "mkldnn_linear",
    "mkldnn_linear_backward",
    "convolution",
    "convolution_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
)


class Observer(TorchDispatchMode):
    """Counts, into an Observation, the operations that run while it is entered."""

    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self.observation = observation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        operands = _tensors(args)
        # What works in place may return nothing (an optimizer's fused step): it is told by what it works on.
        shown = (*_tensors(result), *operands)
        if shown:
            dtype, device = str(shown[0].dtype).removeprefix("torch."), str(shown[0].device)
            self.observation.operations[(name, device, dtype)] += 1
            self.observation.devices[device] += 1
        if name in PRODUCTS:
            # addmm's first operand is the bias, mkldnn_linear's the last (of the same dtype)
            self.observation.matmuls[str(operands[-1].dtype).removeprefix("torch.")] += 1
            self.observation.product_devices[str(operands[-1].device)] += 1
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def multiplies_in_tf32(device: torch.device) -> bool:
    """Whether a float32 product on `device` now rounds its operands to TF32's ten bits of mantissa.

    1 + 2^-12 has twelve: TF32 rounds it to 1, float32 keeps it.
    """
    if device.type != "cuda":
        return False
    a = torch.full((64, 64), 1 + 2**-12, device=device)
    return bool(torch.allclose(a @ torch.eye(64, device=device), torch.ones_like(a), rtol=0, atol=1e-9))
