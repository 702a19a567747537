"""What measures ceilings: modules with a function `measured(place, rounds)`, each run in its own process.

It yields all that it has found so far, as often as there is more: a process may be ended before it is done."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline import backends
from pipeline.contracts import Backend
from pipeline.machine.device import Place, gpus
from pipeline.machine.installed import is_installed


@dataclass(frozen=True)
class Source:
    """`name`: in the ceilings' names. `on`: the kind of device. `backend`: whose framework it needs, if any."""

    name: str
    module: str
    on: tuple[str, ...]
    backend: type[Backend] | None = None

    def absent(self, place: Place) -> str | None:
        """Why it cannot measure there: what is not installed, or cannot use the GPU."""
        if self.backend is None:
            return None
        lacking = [name for name in self.backend.packages if not is_installed(name)]
        if lacking:
            return f"needs {' and '.join(lacking)}, which {'is' if len(lacking) == 1 else 'are'} not installed"
        return self.backend().no_gpu_because(gpus()[place.index]) if place.kind == "gpu" else None


SOURCES = (
    Source("probe", "pipeline.stages.devices.probe", ("cpu",)),
    Source("numpy", "pipeline.backends.shared.ceilings_numpy", ("cpu",)),
    Source("torch", "pipeline.backends.torch.ceilings", ("cpu", "gpu"), backends.Torch),
    Source("tensorflow", "pipeline.backends.keras.ceilings_tensorflow", ("cpu", "gpu"), backends.TensorFlow),
    Source("jax", "pipeline.backends.keras.ceilings_jax", ("cpu", "gpu"), backends.Jax),
    Source("paths", "pipeline.machine.paths", ("cpu",)),
    Source("paths", "pipeline.backends.torch.paths", ("gpu",), backends.Torch),
)
CORES = Source("cores", "pipeline.stages.devices.cores", ("cpu",))  # asked after all others, where the probe could run
