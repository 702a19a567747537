"""What torch really runs: every operation of a step as the dispatcher sees it, after autocast has had its way."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.runs.fit import Observation

# Whole layers of recurrence, each one operation: oneDNN's on a CPU (of an LSTM alone), cuDNN's, MIOpen's.
RECURRENT = (
    *("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
    *("_cudnn_rnn", "_cudnn_rnn_backward"),
    *("miopen_rnn", "miopen_rnn_backward"),
)
# torch's own encoder and attention, each one operation where no gradient is asked for.
ENCODERS = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
# Products of groups of rows, of lists, of scaled or whole numbers of few bits, and of sparse matrices.
SPECIAL = (
    *("_grouped_mm", "_foreach_mm", "_sparse_addmm"),
    *("_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm", "_scaled_grouped_mm_v2", "_int_mm"),
)
PRODUCTS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "_addmm_activation",
    "_trilinear",  # of nn.Bilinear
    "_linear_pointwise",
    "convolution",
    "convolution_backward",
    "conv_tbc",
    *RECURRENT,
    *ENCODERS,
    *SPECIAL,
)
ATTENTION = re.compile(r"_scaled_dot_product_\w*attention\w*|_(flash|efficient|cudnn)_attention_(forward|backward)")
SAMPLED = ("mm", "addmm", "bmm", "convolution")  # products whose numbers show TF32, and how much of them is made again
BATCH, ROWS, COLUMNS = 2, 64, 256


class Observer(TorchDispatchMode):
    """Counts, into an Observation, the operations that run while it is entered."""

    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self.observation = observation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        operands = _tensors(args)
        # What works in place may return nothing (an optimizer's fused step): it is identified by its arguments.
        shown = (*_tensors(result), *operands)
        if shown:
            dtype, device = str(shown[0].dtype).removeprefix("torch."), str(shown[0].device)
            self.observation.operations[(name, device, dtype)] += 1
            self.observation.devices[device] += 1
        if is_product(name):
            # The second operand of each is one that it multiplies: the first may be a bias or a sum, and after the
            # second there may be biases, a mask, scales, sums in float32, or a workspace of bytes.
            operand = operands[1]
            self.observation.matmuls[str(operand.dtype).removeprefix("torch.")] += 1
            self.observation.product_devices[str(operand.device)] += 1
            if ATTENTION.fullmatch(name) and "backward" not in name:
                self.observation.attention[name.lstrip("_")] += 1
            if operand.is_cuda:
                self._tf32(func, args, kwargs or {}, result)
        return result

    def _tf32(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """One product in TF32 is enough to say so; what is seen in none is that all were exact."""
        if self.observation.tf32 is True or func.overloadpacket.__name__ not in SAMPLED:
            return
        found = multiplied_in_tf32(func, args, kwargs, result)
        if found is not None:
            self.observation.tf32, self.observation.tf32_by = found, "the numbers of the products in the step"


def is_product(name: str) -> bool:
    """Whether an operation multiplies matrices: one of PRODUCTS, or attention."""
    return name.rstrip("_") in PRODUCTS or bool(ATTENTION.fullmatch(name))  # addmm_ is addmm in place


def multiplied_in_tf32(func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> bool | None:
    """Whether `result` = `func(*args)` of float32 operands has the error of operands rounded to TF32's ten bits.

    The product is made again in float64, of the operands as they are and as rounded; of the first rows or images, which
    is enough. None where the two agree (operands of few bits, zeros): then the numbers show nothing.
    """
    operands = _tensors(args)
    if any(one.dtype != torch.float32 for one in operands):
        return None
    few = _few(func.overloadpacket.__name__, args)
    exact, rounded = (func(*_mapped(few, how), **kwargs) for how in (torch.Tensor.double, _rounded))
    made = result[tuple(slice(size) for size in exact.shape)].double()
    gap = torch.linalg.vector_norm(rounded - exact)
    if not gap > 16 * torch.finfo(torch.float32).eps * torch.linalg.vector_norm(exact):
        return None
    return bool(torch.linalg.vector_norm(made - exact) > gap / 4)


def _few(name: str, args: Any) -> list[Any]:
    """The arguments of a product of the first rows and columns alone; of a batch of products or images, its first."""
    if name == "convolution":
        return [args[0][:BATCH], *args[1:]]
    if name == "bmm":
        return [args[0][:BATCH, :ROWS], args[1][:BATCH, :, :COLUMNS]]
    left, right = args[-2][:ROWS], args[-1][:, :COLUMNS]
    if name == "mm":
        return [left, right]
    bias = args[0][..., :COLUMNS]  # one for all rows, or one each
    return [bias if bias.dim() < 2 else bias[:ROWS], left, right]


def _mapped(args: Any, how: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    return [how(one) if isinstance(one, torch.Tensor) else one for one in args]


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """float32 rounded to the nearest of ten bits of mantissa, as float64."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32).double()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
