"""How many launches are replayed at a time."""

from __future__ import annotations

NODES = 100  # launches in a graph; so many take the card longer than Python takes to ask for the next graph


def batches(calls: int) -> list[int]:
    """How many launches each of the graphs has that are replayed for `calls` of them."""
    whole, rest = divmod(calls, NODES)
    return [NODES] * whole + [rest] * (rest > 0)
