"""backend.compile of a model that only predicts: its forward pass compiled, for batches of any size."""

from __future__ import annotations

import torch

from pipeline.backends.torch.compiled_function import CompiledFunction
from pipeline.backends.torch.compilers import cannot_compile, check_compiled, compiled_graphs, drop_compilations
from pipeline.errors import Stopped


class CompiledPass:
    """A net from a batch to outputs, by torch.compile. Raises RunError where torch cannot compile it.

    One program serves all sizes. torch makes another for a batch of one, and for each number of CPU threads: with the
    first batch of a size, and never with a later one; the first of all imports the compiler, too. No CUDA graph is
    captured, which would be one of each size. `notes`: as CompiledStep has them.
    """

    def __init__(self, net: torch.nn.Module) -> None:
        self.net = net
        self.notes: list[str] = []
        self.sizes: set[int] = set()
        self.passes = 0
        self._run: CompiledFunction | None = None

    @property
    def gave_up(self) -> bool:
        """Whether torch compiles it, or a piece of it, no more, which then runs as it is."""
        return self._run is not None and self._run.gave_up

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (B, ...) of a batch (B, ...)."""
        run, known = self._run or self._begin(), len(x) in self.sizes
        self.passes += 1
        if not known:
            torch._dynamo.maybe_mark_dynamic(x, 0)
            self.sizes.add(len(x))
        try:
            found: torch.Tensor = run(x, known=known)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise cannot_compile("pass", error) from error
        except Stopped:
            drop_compilations()
            raise
        if self.passes == 1:
            check_compiled("pass", self.graphs)
        return found

    def _begin(self) -> CompiledFunction:
        torch.compiler.reset()  # what was compiled before in this process would count towards the compiler's limits
        self.graphs, count = compiled_graphs(), lambda: f"{self.passes:,} passes"
        self._run = CompiledFunction(self.net, "pass", "model", count, self.notes, dynamic=None)
        return self._run
