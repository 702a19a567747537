"""What a GPU's kernels say of themselves by their names."""

from __future__ import annotations

import re

# Kernels that run on Tensor Cores say so: the shape of the instruction (s16816, h884, d884), the instruction (hmma,
# wgmma), or the library (xmma, tensorop, nvjet). A plain one is called sgemm, dgemm, simt, or xmma with an ffma.
ON_TENSOR_CORES = re.compile(
    r"tensorop|tensor\d{3,}|[shdi](?:16816|1688|884|8816)|[hid]mma|w?gmma|xmma(?!.*(?:simt|[fdh]fma))|nvjet",
    re.IGNORECASE,
)
PRODUCTS = re.compile(r"gemm|gemv|conv(?!ert)|wgrad|dgrad|fprop|splitk|matmul|cutlass|nvjet|xmma", re.IGNORECASE)
COPIES = re.compile(r"memcpy|convert|transpose|copy", re.IGNORECASE)


def kind(name: str) -> str:
    """The kind of a kernel of which nothing but its name is known."""
    if PRODUCTS.search(name):
        return "products"
    return "copies" if COPIES.search(name) else "other"
