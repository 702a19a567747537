"""Precisions: a named pair of dtypes and what the pair needs. Each backend lowers a name in one table of its own.

`compute` is the dtype of the matrix products, `parameters` that of the stored weights. Sources: Micikevicius et al.,
"Mixed Precision Training" (ICLR 2018) for mixed_fp16 with loss scaling; Kalamkar et al., arXiv:1905.12322 for bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import bad_choice
from pipeline.spec import spec


@dataclass(frozen=True, kw_only=True)
class Format:
    """What a precision's name stands for."""

    compute: str
    parameters: str
    loss_scaling: bool = False  # fp16 gradients below 2^-24 vanish unless the loss is scaled up first
    tf32: bool = False  # float32 in memory, 10-bit mantissas in the Tensor Cores


FORMATS: dict[str, Format] = {
    "fp64": Format(compute="float64", parameters="float64"),
    "fp32": Format(compute="float32", parameters="float32"),
    "tf32": Format(compute="float32", parameters="float32", tf32=True),
    "fp16": Format(compute="float16", parameters="float16"),
    "bf16": Format(compute="bfloat16", parameters="bfloat16"),
    "mixed_fp16": Format(compute="float16", parameters="float32", loss_scaling=True),
    "mixed_bf16": Format(compute="bfloat16", parameters="float32"),
}

AUTO = "mixed"  # resolved for the device by capability.resolve


@spec
class Precision:
    """A precision by name. `strict`: a run whose matrix products are seen in another dtype fails."""

    name: str
    strict: bool = True

    def __post_init__(self) -> None:
        if self.name != AUTO and self.name not in FORMATS:
            raise bad_choice("precision.name", self.name, [*FORMATS, AUTO])


def bytes_per_number(dtype: str) -> int:
    """Size in bytes of one number of a dtype's name."""
    return {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}[dtype]
