"""Generation in torch: the net's own cache, one call a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from pipeline.backends.torch.lowering import Lowering
from pipeline.backends.torch.net import made
from pipeline.backends.torch.settings import runtime_settings
from pipeline.machine.capability import Resolved
from pipeline.machine.threads import LARGE_READ_BYTES, threads_for, threads_to_read
from pipeline.models import Shapes, weights
from pipeline.models.torch_quick import Linear, onednn_is_quicker
from pipeline.runs.weights import Weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


class Steps:
    """See pipeline.backends.shared.generation."""

    def __init__(self, experiment: Experiment, shapes: Shapes, saved: Weights, resolved: Resolved) -> None:
        self.experiment, self.resolved, self.lowering = experiment, resolved, Lowering(resolved)
        with runtime_settings(experiment, resolved):
            net = self.lowering.moved(made(experiment.data_model, shapes))
            self.net = net.to(self.lowering.device).eval()
            self.numbers = sum(one.numel() for one in net.parameters())
            self.read_bytes = sum(one.nbytes for one in net.parameters())
            lay_for_rows(self.net, self.read_bytes)
            self.cached = experiment.data_model.torch_cached(self.net)
        self.put(saved)
        self.cache: Any = None

    def put(self, saved: Weights) -> None:
        """Take these weights in place of the net's."""
        weights.to_torch(self.net, saved, "the saved run")

    def prefill(self, tokens_BT: np.ndarray, lengths_B: np.ndarray, /) -> np.ndarray:
        """Logits (B, V) float64."""
        return self._run(self.cached.prefill, tokens_BT, lengths_B)

    def step(self, tokens_B: np.ndarray, at_B: np.ndarray, /) -> np.ndarray:
        """Logits (B, V) float64."""
        return self._run(self.cached.step, tokens_B, at_B, self.cache)

    def _run(self, work: Any, tokens: np.ndarray, where_B: np.ndarray, *cache: Any) -> np.ndarray:
        with runtime_settings(self.experiment, self.resolved), torch.inference_mode(), self.lowering.forward():
            if not self.experiment.backend.threads:  # a token's work may be small (pipeline.machine.threads)
                most = torch.get_num_threads()
                by_flop = threads_for(2.0 * self.numbers * tokens.size, most)
                torch.set_num_threads(max(by_flop, threads_to_read(self.read_bytes, most)))
            on_device = torch.from_numpy(tokens).to(self.lowering.device)
            logits_BV, self.cache = work(on_device, torch.from_numpy(where_B), *cache)
            found: np.ndarray = logits_BV.double().cpu().numpy()
            return found


def lay_for_rows(net: nn.Module, read_bytes: float) -> None:
    """Store a CPU's float32 kernels as products of few rows are quickest, and choose the library (docs/decisions.md).

    A token's step reads all of them once. Where no cache holds them and oneDNN is quicker, it reads them column by
    column; otherwise MKL reads them along their longer side, square ones by columns.
    """
    large = read_bytes >= LARGE_READ_BYTES and onednn_is_quicker()
    for module in net.modules():
        if isinstance(module, nn.Linear):
            kernel = module.weight
            if kernel.device.type == "cpu" and kernel.dtype == torch.float32:
                by_columns = len(kernel) >= kernel.shape[1]
                if large and isinstance(module, Linear):  # torch's own layer asks MKL
                    module.by_onednn = by_columns = True
                if by_columns:
                    kernel.data = kernel.data.t().contiguous().t()
