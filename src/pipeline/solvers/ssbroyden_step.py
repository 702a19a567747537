"""The step of self-scaled Broyden in JAX; the symbols are those of Urbán, Stefanou & Pons, section 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from pipeline.solvers.line_search import Point, search
from pipeline.solvers.method import State

if TYPE_CHECKING:
    from pipeline.solvers.system import System


class SsBroydenStep:
    """`memory`: loss and gradient, the inverse Hessian H, and whether H is still the identity."""

    def start(self, system: System, theta: Any) -> State:
        zero = jnp.zeros((), theta.dtype)
        memory = (zero, jnp.zeros_like(theta), jnp.eye(len(theta), dtype=theta.dtype), jnp.array(True))
        return State(theta, jnp.array(0), jnp.array(False), memory)

    def renew(self, system: System, state: State, data: Any) -> State:
        loss, gradient = jax.value_and_grad(system.loss)(state.theta, data)
        memory = (loss, gradient, *state.memory[2:])
        return State(state.theta, state.evaluations + 1, jnp.array(False), memory)

    def step(self, system: System, state: State, data: Any) -> State:
        """Where the line search finds nothing H starts anew; where H is new there is nothing left to gain."""
        loss, gradient, h, fresh = state.memory
        start = Point(state.theta, loss, gradient)
        direction = -(h @ gradient)
        one = jnp.ones_like(loss)
        first = jnp.where(fresh, jnp.minimum(one, 1 / jnp.linalg.norm(gradient)), one)
        evaluate = lambda theta: jax.value_and_grad(system.loss)(theta, data)  # noqa: E731
        point, count, better = search(evaluate, start, direction, first)
        s, y = point.theta - start.theta, point.gradient - start.gradient
        h = jnp.where(fresh & better, h * (s @ y) / (y @ y), h)
        h = jnp.where(better, updated(h, s, y, gradient), jnp.eye(len(s), dtype=s.dtype))
        kept = better | ~jnp.isfinite(loss)
        point = Point(*(jnp.where(kept, new, old) for new, old in zip(point, start, strict=True)))
        memory = (point.loss, point.gradient, h, ~better)
        return State(point.theta, state.evaluations + count, ~better & fresh & jnp.isfinite(loss), memory)


def updated(h: Any, s: Any, y: Any, gradient: Any) -> Any:
    """H after the step `s`, which changed the gradient by `y`; `gradient` is the one before."""
    n = len(s)
    sy, hy = s @ y, h @ y
    yhy = y @ hy
    # s^T B s without B: s is a multiple of -H g, so B s is the same multiple of -g.
    length = jnp.linalg.norm(s) / jnp.linalg.norm(h @ gradient)
    b = -length * (s @ gradient) / sy
    a = jnp.maximum(yhy / sy * b - 1, 1e-15)
    rho = jnp.minimum(1, yhy / sy * (1 - jnp.sqrt(a / (1 + a))))
    theta = jnp.maximum((rho - 1) / a, jnp.minimum(1 / rho, (1 - b) / b))
    sigma = 1 + a * theta
    root = jnp.abs(sigma) ** (1 / (1 - n))
    scale = jnp.minimum(1, 1 / b)
    tau = jnp.where(theta > 0, scale * jnp.minimum(root, 1 / theta), jnp.minimum(scale * root, sigma))
    phi = (1 - theta) / sigma
    v = s / sy - hy / yhy
    return (h - jnp.outer(hy, hy / yhy) + (phi * yhy) * jnp.outer(v, v)) / tau + jnp.outer(s, s / sy)
