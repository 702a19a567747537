"""What a launch may ask of a card. Larger is refused by the setting's name, before the driver refuses it by a number.

Grids and the sides of blocks: "Compute Capabilities" in the CUDA C++ Programming Guide, the same for all that are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GRID = (2**31 - 1, 65_535, 65_535)  # blocks
BLOCK = (1024, 1024, 64)  # threads
THREADS = 1024  # of a block, of any kernel on any card
SHARED = 227 * 1024  # bytes of shared memory that a block may have, on any card (compute capability 9.0 and 10.0)
LARGEST = 2**31 - 1  # of the sizes and leading dimensions, which are 32-bit arguments


@dataclass(frozen=True)
class Limits:
    """`threads`: the most in a block, of a kernel with its registers. `shared`: bytes of shared memory of a block."""

    card: str
    threads: int
    shared: int


def refused_grid(grid: tuple[int, int, int]) -> str | None:
    """Why CUDA does not launch so many blocks."""
    for axis, blocks, most in zip("xyz", grid, GRID, strict=True):
        if blocks > most:
            return f"needs a grid of {blocks:,} blocks along {axis}, and CUDA has no more than {most:,}"
    return None


def refused_block(block: tuple[int, int, int], dynamic: int) -> str | None:
    """Why no card launches such a block. `dynamic`: bytes of its shared memory."""
    refusal = _refused_sides(block)
    if refusal is not None:
        return refusal
    if math.prod(block) > THREADS:
        return f"block={list(block)}: {math.prod(block):,} threads; CUDA runs {THREADS:,} at most"
    if dynamic > SHARED:
        return f"dynamic={dynamic}: no card has more than {SHARED:,} bytes for a block"
    return None


def refused_launch(block: tuple[int, int, int], static: int, dynamic: int, limits: Limits) -> str | None:
    """Why a card does not launch such a block. `static`, `dynamic`: bytes of its shared memory."""
    refusal = _refused_sides(block)
    if refusal is not None:
        return refusal
    if math.prod(block) > limits.threads:
        return (
            f"block={list(block)}: {math.prod(block):,} threads; with its registers and launch bounds {limits.card} "
            f"runs {limits.threads:,} at most"
        )
    if static + dynamic > limits.shared:
        beside = f" and {static:,} bytes of static shared memory" if static else ""
        return f"dynamic={dynamic}{beside}: {limits.card} has {limits.shared:,} bytes for a block"
    return None


def _refused_sides(block: tuple[int, int, int]) -> str | None:
    for axis, threads, most in zip("xyz", block, BLOCK, strict=True):
        if threads > most:
            return f"block={list(block)}: {threads:,} threads along {axis}; at most {most:,}"
    return None
