"""The step of L-BFGS in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from pipeline.solvers.line_search import Point, search
from pipeline.solvers.method import State

if TYPE_CHECKING:
    from pipeline.solvers.system import System


class LbfgsStep:
    """`memory`: loss and gradient, the steps s, the changes y of the gradient and 1 / (s y), the newest last, 0 where
    there was none yet."""

    def __init__(self, remembered: int) -> None:
        self.remembered = remembered

    def start(self, system: System, theta: Any) -> State:
        none = jnp.zeros((self.remembered, len(theta)), theta.dtype)
        zero = jnp.zeros((), theta.dtype)
        memory = (zero, jnp.zeros_like(theta), none, none, jnp.zeros(self.remembered, theta.dtype))
        return State(theta, jnp.array(0), jnp.array(False), memory)

    def renew(self, system: System, state: State, data: Any) -> State:
        loss, gradient = jax.value_and_grad(system.loss)(state.theta, data)
        memory = (loss, gradient, *state.memory[2:])
        return State(state.theta, state.evaluations + 1, jnp.array(False), memory)

    def step(self, system: System, state: State, data: Any) -> State:
        """Where the line search finds nothing all is forgotten; where nothing was known there is no more to gain."""
        loss, gradient, ss, ys, rhos = state.memory
        start = Point(state.theta, loss, gradient)
        fresh = rhos[-1] == 0
        one = jnp.ones_like(loss)
        first = jnp.where(fresh, jnp.minimum(one, 1 / jnp.linalg.norm(gradient)), one)
        evaluate = lambda theta: jax.value_and_grad(system.loss)(theta, data)  # noqa: E731
        point, count, better = search(evaluate, start, -two_loops(gradient, ss, ys, rhos), first)
        s, y = point.theta - start.theta, point.gradient - start.gradient
        sy = s @ y
        news = ((ss, s), (ys, y), (rhos, jnp.where(sy > 0, 1 / sy, 0)))
        known = [jnp.where(better, jnp.concatenate([old[1:], new[None]]), 0) for old, new in news]
        kept = better | ~jnp.isfinite(loss)
        point = Point(*(jnp.where(kept, new, old) for new, old in zip(point, start, strict=True)))
        done = ~better & fresh & jnp.isfinite(loss)
        return State(point.theta, state.evaluations + count, done, (point.loss, point.gradient, *known))


def two_loops(gradient: Any, ss: Any, ys: Any, rhos: Any) -> Any:
    """H g, H being made of the steps that are remembered (algorithm 7.4)."""

    def back(q: Any, known: Any) -> Any:
        s, y, rho = known
        alpha = rho * (s @ q)
        return q - alpha * y, alpha

    def forth(r: Any, known: Any) -> Any:
        s, y, rho, alpha = known
        return r + s * (alpha - rho * (y @ r)), None

    q, alphas = jax.lax.scan(back, gradient, (ss, ys, rhos), reverse=True)
    squares = ys[-1] @ ys[-1]
    scale = jnp.where(squares > 0, (ss[-1] @ ys[-1]) / jnp.where(squares > 0, squares, 1), 1)
    return jax.lax.scan(forth, scale * q, (ss, ys, rhos, alphas))[0]
