"""Low-rank adapters of a saved model (LoRA): the file that keeps them alone, and what they make of its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.errors import UserError
from pipeline.runs import weights
from pipeline.runs.weights import Weights

SAVED = "artifacts/model/adapters.npz"
BASE, ALPHA = "base_sha256", "alpha"  # in the file, beside the values


@dataclass(frozen=True)
class Adapters:
    """A dense layer with kernel W (in, out) gives x W + alpha / rank (x A) B.

    `values`: A (in, rank) as `<layer>.adapter_a` and B (rank, out) as `<layer>.adapter_b`. `base_sha256`: the digest of
    the weights that they belong to. `source`: the file that they come from, where they are not new.
    """

    alpha: float
    base_sha256: str
    values: Weights
    source: str | None = None

    @property
    def layers(self) -> list[str]:
        """The paths of the layers that have one."""
        return [name.removesuffix(".adapter_a") for name in self.values if name.endswith(".adapter_a")]

    @property
    def rank(self) -> int:
        """The rank, which is the same for all adapters."""
        return next(array.shape[-1] for name, array in self.values.items() if name.endswith(".adapter_a"))

    @property
    def scale(self) -> float:
        """What an adapter's output is multiplied by."""
        return self.alpha / self.rank

    def plain(self) -> dict[str, object]:
        """As the receipt keeps it."""
        found: dict[str, object] = {"rank": self.rank, "alpha": self.alpha, "layers": self.layers}
        found |= {"parameters": sum(array.size for array in self.values.values()), BASE: self.base_sha256}
        return found | ({} if self.source is None else {"source": self.source})

    def split(self, trained: Weights) -> tuple[Weights, Weights]:
        """Of a trained model's weights those with the adapters merged, W + alpha / rank A B, and the adapters alone."""
        import numpy as np

        alone = {name: trained[name] for name in self.values}
        merged = {name: array for name, array in trained.items() if name not in alone}
        for layer in self.layers:
            kernel, a, b = (
                trained[f"{layer}.{name}"].astype(np.float64) for name in ("kernel", "adapter_a", "adapter_b")
            )
            merged[f"{layer}.kernel"] = (kernel + self.scale * (a @ b)).astype(trained[f"{layer}.kernel"].dtype)
        return merged, alone

    def arrays(self) -> Weights:
        """The values, and what these belong to, as a file keeps them."""
        import numpy as np

        return {**self.values, BASE: np.array(self.base_sha256), ALPHA: np.array(self.alpha)}

    def save(self, path: Path, values: Weights) -> str:
        """Write trained values, and what these belong to, as a file that `load` reads. Returns its arrays' digest."""
        kept = replace(self, values=values).arrays()
        weights.save(path, kept)
        return weights.digest(kept)


def load(path: Path) -> Adapters:
    """Read what `save` wrote. Raises UserError for a file that is damaged or holds something else."""
    found = weights.load(path)
    base, alpha = found.pop(BASE, None), found.pop(ALPHA, None)
    if base is None or alpha is None or not any(name.endswith(".adapter_a") for name in found):
        raise UserError(f"{path}: holds no adapters; training with model.adapters.rank saves such a file")
    return Adapters(float(alpha), str(base), found, str(path))
