"""How many CPU threads a training step is worth.

torch splits every operation over all cores and waits for the slowest thread by spinning. For a small step that gains
nothing on an idle machine, and on one where another process holds a core it costs a hundredfold: each of the hundreds
of waits in a second can take a time slice of the scheduler (measured in bench/README.md). The rule looks at the model
alone, never at the clock, because the number of threads can change the last bit of a sum.
"""

from __future__ import annotations

import torch

SMALL_STEP_FLOP = 50e6  # two threads gain 20 % at 78 MFLOP and nothing at 20


def threads_for(net: torch.nn.Module, image: tuple[int, int, int], batch_size: int) -> int:
    """One thread for a step under SMALL_STEP_FLOP, otherwise as many as torch uses now."""
    return 1 if step_flop(net, image, batch_size) < SMALL_STEP_FLOP else torch.get_num_threads()


def step_flop(net: torch.nn.Module, image: tuple[int, int, int], batch_size: int) -> float:
    """Floating-point operations of one training step's matrix products and convolutions.

    A kernel of w weights that makes n numbers of each of its c output channels takes 2*w*n operations (a multiplication
    and an addition); backward takes twice as many, for the gradients of the input and of the kernel.
    """
    total = 0

    def count(layer: torch.nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal total
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        total += 2 * weight.numel() * output.numel() // weight.shape[0]

    layers = [layer for layer in net.modules() if getattr(getattr(layer, "weight", None), "ndim", 0) >= 2]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training = net.training
    try:
        with torch.inference_mode():
            net.eval()(torch.zeros(1, *image, dtype=next(net.parameters()).dtype))
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    return 3.0 * total * batch_size
