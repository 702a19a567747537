"""What a GPU's kernels say of themselves by their names."""

from __future__ import annotations

import re

# Kernels that run on Tensor Cores say so: the shape of the instruction (s16816, h884, d884), the instruction (hmma,
# wgmma), or the library (xmma, tensorop, nvjet). A plain one is called sgemm, dgemm, simt, or xmma with an ffma.
# FlashAttention's and xFormers' kernels do not: of the first these three multiply, the second does it on Tensor Cores
# in 16 bits from sm_75 on (sm_70: float16), and from sm_80 on in float32 too, as three products in TF32.
ON_TENSOR_CORES = re.compile(
    r"tensorop|tensor\d{3,}|[shdi](?:16816|1688|884|8816)|[hid]mma|w?gmma|wmma|xmma(?!.*(?:simt|[fdh]fma))|nvjet"
    r"|flash_(?:fwd_kernel|fwd_splitkv_kernel|bwd_dq_dk_dv)|fmha_cutlass[FB]_(?:f16_\w+_sm7|\w+_sm8)",
    re.IGNORECASE,
)
PRODUCTS = re.compile(r"gemm|gemv|conv(?!ert)|wgrad|dgrad|fprop|bprop|splitk|matmul|cutlass|nvjet|xmma", re.IGNORECASE)
FUSED = re.compile(r"triton_(?:poi|red|per|for)_")  # by torch's compiler, called by all that is fused, or is beside it
COPIES = re.compile(r"memcpy|convert|transpose|copy", re.IGNORECASE)


def kind(name: str) -> str:
    """The kind of a kernel of which nothing but its name is known."""
    if FUSED.match(name):
        return "other"
    if PRODUCTS.search(name):
        return "products"
    return "copies" if COPIES.search(name) else "other"
