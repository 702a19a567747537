"""Optimizers that torch has not, or not with our update. Imported only by an optimizer's torch builder."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from pipeline.optimizers.orthogonal import ADAM, MATRIX, TINY, Matrices, orthogonal, reach


class Muon(torch.optim.Optimizer):
    """Groups of `kind` matrix, whose `compute` is the dtype of the iteration's products, and groups of kind adam.

    Matrices are (out, in), those of a group with `inputs_first` (in, out).

    torch.optim.Muon is bfloat16 in any precision.
    """

    def __init__(self, groups: list[dict[str, Any]], matrices: Matrices, share: float, **adam: Any) -> None:
        """`share`: Adam's rate as a part of the matrices'. `adam`: settings of torch.optim.AdamW."""
        self.matrices, self.share = matrices, share
        others = [group for group in groups if group["kind"] == ADAM]
        self.adam = torch.optim.AdamW(others, weight_decay=0.0, fused=True, **adam) if others else None
        super().__init__(groups, {"lr": adam["lr"]})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """One more; each of those that it is made with comes this way too."""
        super().add_param_group(param_group)
        self._share_with_adam()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A checkpoint's, which brings new groups and a new state."""
        super().__setstate__(state)
        self._share_with_adam()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure: nothing of ours gives one
        """One update of all weights that have a gradient."""
        for group in self.param_groups:
            if group["kind"] == MATRIX:
                self._step_matrices(group)
        self._step_others()

    def _step_matrices(self, group: dict[str, Any]) -> None:
        """Those of one shape together: one product of many small matrices in place of many small products."""
        alike: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                alike[weight.shape].append(weight)
        for shape, weights in alike.items():
            inputs, outputs = shape if group["inputs_first"] else shape[::-1]
            updates = torch.stack([self._moved(weight) for weight in weights])
            wide = updates if updates.dtype == torch.float64 else updates.float()  # 1e-8 is 0 in float16
            norms = torch.linalg.matrix_norm(wide, keepdim=True) + TINY
            products = (wide / norms).to(getattr(torch, group["compute"]))
            turned = orthogonal(products, lambda x: x.mT, self.matrices.iterations).to(updates.dtype)
            for weight, update in zip(weights, turned, strict=True):
                # Decay and update at once: alone, a decay of 0.002 rounds away in bfloat16, and so does 1 - 0.002.
                weight.sub_(group["lr"] * (reach(inputs, outputs) * update + self.matrices.weight_decay * weight))

    def _moved(self, weight: torch.Tensor) -> torch.Tensor:
        """The gradient with momentum."""
        assert weight.grad is not None
        state, momentum = self.state[weight], self.matrices.momentum
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        buffer: torch.Tensor = state["momentum"].mul_(momentum).add_(weight.grad)
        return weight.grad + momentum * buffer if self.matrices.nesterov else buffer

    def _share_with_adam(self) -> None:
        """Adam's groups and state are ours. Not in a step: torch 2.11 cannot compile one that replaces them."""
        if self.adam is not None:
            self.adam.param_groups = [group for group in self.param_groups if group["kind"] == ADAM]
            self.adam.state = self.state

    def _step_others(self) -> None:
        if self.adam is None:
            return
        groups = self.adam.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * self.share
        self.adam.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
