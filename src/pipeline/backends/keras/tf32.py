"""Whether the products of a program that XLA compiles run in TF32, as far as the program says so."""

from __future__ import annotations

import os

from pipeline.backends.keras.hlo import allows_tf32
from pipeline.runs.fit import NOT_SEEN

OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # goes over what a program says, in NVIDIA's libraries and nowhere else


def by_program(hlo: str, which: str) -> tuple[bool | None, str]:
    """Whether float32 products on a GPU run in TF32, and by what that is known; None where it is not.

    `which`: the program, in words. A product whose precision allows TF32 runs in it.
    """
    if OVERRIDE in os.environ:
        return None, f"{NOT_SEEN}: {OVERRIDE} overrides the program"
    allowed = allows_tf32(hlo)
    if allowed is None:
        return None, f"{NOT_SEEN}: the products of {which} do not say their precision, or none is of float32"
    return allowed, f"the precision of the products in {which}"
