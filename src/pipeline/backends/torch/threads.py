"""The size of a training step, by which its number of CPU threads is chosen."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves

from pipeline.machine import threads
from pipeline.models.torch_sequences import GruLayer


def threads_for(net: torch.nn.Module, example: torch.Tensor, batch_size: int) -> int:
    """One thread for a small step, otherwise as many as torch uses now."""
    return threads.threads_for(step_flop(net, example, batch_size), torch.get_num_threads())


def step_flop(net: torch.nn.Module, example: torch.Tensor, batch_size: int) -> float:
    """Floating-point operations of one training step's matrix products and convolutions.

    A kernel of w weights that makes n numbers of each of its c output channels takes 2*w*n operations (a multiplication
    and an addition); backward takes twice as many, for the gradients of the input and of the kernel.
    """
    total = 0

    def count(layer: torch.nn.Module, _: object, outputs: object) -> None:
        nonlocal total
        output = next((leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)), None)
        if output is None:
            return
        if isinstance(layer, GruLayer):
            kernels = (layer.gru_cell.kernel, layer.gru_cell.recurrent_kernel)
            total += sum(2 * kernel.numel() for kernel in kernels) * output.numel() // output.shape[-1]
            return
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        total += 2 * weight.numel() * output.numel() // weight.shape[0]

    layers = [layer for layer in net.modules() if _multiplies(layer)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training = net.training
    try:
        with torch.no_grad():
            net.eval()(example)
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    return 3.0 * total * batch_size


def _multiplies(layer: torch.nn.Module) -> bool:
    """Whether a layer multiplies by its weights: an embedding only looks rows up."""
    if isinstance(layer, GruLayer):
        return True
    weight = getattr(layer, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.ndim >= 2 and not isinstance(layer, torch.nn.Embedding)
