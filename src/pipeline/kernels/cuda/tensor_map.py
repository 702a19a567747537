"""What TMA knows of a matrix on the card: CUDA's CUtensorMap, made by the driver.

The call: cuTensorMapEncodeTiled, "Tensor Map Object Management" in the CUDA Driver API documentation. By ctypes, since
the object has to lie at a multiple of 128 bytes, and `cuda-bindings` puts it where Python does.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import RunError

if TYPE_CHECKING:
    from pipeline.kernels.shim.program import Boxes

LIBRARY = "libcuda.so.1"
# Of cuda.h. The dtype says how many bytes a number has; zeros, which fill up a box, are the same in all of 16 bits.
UINT16, NOT_INTERLEAVED, SWIZZLE_128B, L2_256B, ZEROS = 1, 0, 3, 3, 0


def tensor_map(boxes: Boxes, address: int) -> np.ndarray:
    """The 128 bytes that a kernel takes, for a matrix at `address` on the card; zeros where TMA cannot read it.

    Raises RunError where the driver refuses it.
    """
    from pipeline.kernels.shim.program import room_for_tensor_map

    made, matrix = room_for_tensor_map(), boxes.matrix
    if not boxes.suits(address):
        return made
    sizes = (ctypes.c_uint64 * 2)(matrix.rows, matrix.columns)
    strides = (ctypes.c_uint64 * 1)(matrix.leading * matrix.buffer.itemsize)  # of the first dimension it is the size
    box = (ctypes.c_uint32 * 2)(boxes.rows, boxes.columns)
    every = (ctypes.c_uint32 * 2)(1, 1)
    status = ctypes.CDLL(LIBRARY).cuTensorMapEncodeTiled(
        ctypes.c_void_p(made.ctypes.data),
        UINT16,
        ctypes.c_uint32(2),
        ctypes.c_void_p(address),
        sizes,
        strides,
        box,
        every,
        NOT_INTERLEAVED,
        SWIZZLE_128B,
        L2_256B,
        ZEROS,
    )
    if status:
        raise RunError(
            f"cuTensorMapEncodeTiled refuses {matrix.name} in boxes of {boxes.rows}×{boxes.columns}: {status}"
        )
    return made
