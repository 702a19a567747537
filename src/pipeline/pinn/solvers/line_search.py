"""A line search for quasi-Newton steps, in JAX: bracketing and bisection until Wolfe's weak conditions hold.

Source: Lewis & Overton, "Nonsmooth optimization via quasi-Newton methods", Math. Program. 141 (2013), algorithm 2.6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

DECREASE, CURVATURE = 1e-4, 0.9
TRIALS = 40


class Point(NamedTuple):
    """Parameters, the loss there and its gradient."""

    theta: Any
    loss: Any
    gradient: Any


def search(
    evaluate: Callable[[Any], tuple[Any, Any]], start: Point, direction: Any, first: Any
) -> tuple[Point, Any, Any]:
    """The point found along `direction`, how many were tried, and whether the loss is lower there.

    `first`: the first trial's length. A direction that does not lead downhill finds nothing.
    """
    slope = start.gradient @ direction

    def unfit(state: Any) -> Any:
        count, length, _, _, point = state
        return (count < TRIALS) & ~_fits(start, point, slope, direction, length)

    def attempt(state: Any) -> Any:
        count, length, low, high, point = state
        too_far = ~_lower(start, point, slope, length)
        high = jnp.where(too_far, length, high)
        low = jnp.where(too_far, low, length)
        length = jnp.where(jnp.isinf(high), 2 * length, (low + high) / 2)
        return count + 1, length, low, high, at(length)

    def at(length: Any) -> Point:
        theta = start.theta + length * direction
        return Point(theta, *evaluate(theta))

    zero = jnp.zeros_like(first)
    state = (jnp.array(1), first, zero, zero + jnp.inf, at(first))
    count, _, _, _, point = jax.lax.while_loop(unfit, attempt, state)
    return point, count, (slope < 0) & (point.loss < start.loss)


def _lower(start: Point, point: Point, slope: Any, length: Any) -> Any:
    return point.loss <= start.loss + DECREASE * length * slope


def _fits(start: Point, point: Point, slope: Any, direction: Any, length: Any) -> Any:
    flat = point.gradient @ direction >= CURVATURE * slope
    return (slope >= 0) | (_lower(start, point, slope, length) & flat)
