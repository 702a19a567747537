"""Precisions: a named pair of dtypes and what the pair needs. Each backend lowers a name in one table.

`compute` is the dtype of the matrix products, `parameters` that of the stored weights. Sources: Micikevicius et al.,
"Mixed Precision Training" (ICLR 2018) for mixed_fp16 with loss scaling; Kalamkar et al., arXiv:1905.12322 for bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from pipeline.contracts import Part
from pipeline.errors import UserError, bad_choice
from pipeline.spec import spec


@dataclass(frozen=True, kw_only=True)
class Format:
    """What a precision's name stands for."""

    compute: str
    parameters: str
    loss_scaling: bool = False  # fp16 gradients below 2^-24 vanish unless the loss is scaled up first
    tf32: bool = False  # float32 in memory, 10-bit mantissas in the Tensor Cores

    def __post_init__(self) -> None:
        if self.mixed and self.parameters != "float32":
            raise ValueError(
                f"parameters={self.parameters}: where products are in another dtype, frameworks keep float32"
            )

    @property
    def mixed(self) -> bool:
        """Whether products are computed in another dtype than that of the parameters."""
        return self.compute != self.parameters

    @property
    def unit(self) -> str:
        """What of a GPU's units computes it, as architecture.py names them."""
        units = {"float64": "FP64", "float32": "FP32", "float16": "FP16", "bfloat16": "BF16"}
        return "TF32" if self.tf32 else units[self.compute]


FORMATS: dict[str, Format] = {
    "fp64": Format(compute="float64", parameters="float64"),
    "fp32": Format(compute="float32", parameters="float32"),
    "tf32": Format(compute="float32", parameters="float32", tf32=True),
    "fp16": Format(compute="float16", parameters="float16"),
    "bf16": Format(compute="bfloat16", parameters="bfloat16"),
    "mixed_fp16": Format(compute="float16", parameters="float32", loss_scaling=True),
    "mixed_bf16": Format(compute="bfloat16", parameters="float32"),
}

# Unit roundoff: the largest relative error of rounding a number to a dtype.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}

# The largest difference of two ways to the same outputs that rounding explains, in parts of the largest output, by the
# narrowest dtype that computes.
SAME_WITHIN = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-1}

AUTO = "mixed"  # resolved for the device by capability.resolve

# Dynamic loss scaling as in Micikevicius et al., section 3.2: halved by a step that overflows, which is skipped, and
# doubled after so many steps without one. These are PyTorch's defaults; Keras's own would start with 32768.
INITIAL_SCALE = 65536.0
GROWTH_STEPS = 2000
UNSCALED = (
    "no loss scaling: gradients below 6e-8, float16's smallest number, become 0; precision=mixed_fp16, which takes no "
    "model.layer_dtypes, scales the loss"
)
SQUARES_VANISH = (
    "divides by the root of averaged squared gradients, which underflow to 0 in float16 where gradients are small "
    "(below 2.4e-4; with a beta_2 of 0.999, below 5e-3): its steps grow, on PyTorch without bound, on Keras to about "
    "30 times the learning rate; optimizer=sgd keeps no squares, precision=mixed_fp16 keeps them in float32"
)


@spec
class Precision(Part):
    """A precision by name. `strict`: a run whose matrix products are seen in another dtype fails.

    `initial_scale`: what the loss is multiplied by in the first step (default: 65536), where it is scaled.
    """

    name: str
    strict: bool = True
    initial_scale: float | None = Field(default=None, gt=0, le=1e38, allow_inf_nan=False)

    def __post_init__(self) -> None:
        if self.name != AUTO and self.name not in FORMATS:
            raise bad_choice("precision.name", self.name, [*FORMATS, AUTO])
        scaling = [name for name, form in FORMATS.items() if form.loss_scaling]
        if self.initial_scale is not None and self.name not in scaling:
            does = "need" if self.name == AUTO else "does"
            raise UserError(
                f"precision.initial_scale={self.initial_scale}: precision={self.name} {does} not scale the loss; "
                f"precision={scaling[0]} does"
            )

    @property
    def loss_scale(self) -> float:
        """The scale that a run starts with, if its loss is scaled."""
        return INITIAL_SCALE if self.initial_scale is None else self.initial_scale


def bytes_per_number(dtype: str) -> int:
    """Size in bytes of one number of a dtype's name."""
    return {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}[dtype]
