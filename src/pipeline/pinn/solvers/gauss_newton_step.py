"""The step of Levenberg and Marquardt in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve

from pipeline.pinn.solvers.gauss_newton import MOST
from pipeline.pinn.solvers.method import State

if TYPE_CHECKING:
    from pipeline.pinn.solvers.gauss_newton import GaussNewton
    from pipeline.pinn.solvers.system import System

TRIALS = 12  # of one step
SHRINK, GROW = 1 / 3, 4.0


class GaussNewtonStep:
    """`memory`: the damping."""

    ends: ClassVar[bool] = True

    def __init__(self, solver: GaussNewton) -> None:
        self.solver = solver
        self.directions = {"cholesky": by_cholesky, "svd": by_svd}[solver.factorization]

    def start(self, system: System, theta: Any) -> State:
        return State(theta, jnp.array(0), jnp.array(False), jnp.asarray(self.solver.damping, theta.dtype))

    def renew(self, system: System, state: State, data: Any) -> State:
        return state._replace(done=jnp.array(False))

    def step(self, system: System, state: State, data: Any) -> State:
        """The first trial that lowers the loss. Where none does, the next step goes on with more damping; with the most
        there is, or where a trial changes no parameter, nothing is left to gain."""
        residual = system.vector(state.theta, data)
        loss = residual @ residual
        direction = self.directions(system.jacobian(state.theta, data), residual)

        def worse(trial: Any) -> Any:
            count, _, _, found = trial
            return ~(found < loss) & (count < TRIALS)

        def attempt(trial: Any) -> Any:
            count, damping, _, _ = trial
            damping = jnp.where(count > 0, jnp.minimum(damping * GROW, MOST), damping)
            theta = state.theta - direction(damping)
            found = system.vector(theta, data)
            return count + 1, damping, theta, found @ found

        start = (jnp.array(0), state.memory, state.theta, jnp.full_like(loss, jnp.inf))
        count, damping, theta, found = jax.lax.while_loop(worse, attempt, start)
        better = found < loss
        finite = jnp.isfinite(loss)
        end = (damping >= MOST) | (theta == state.theta).all()
        theta = jnp.where(better | ~finite, theta, state.theta)
        less, more = jnp.maximum(damping * SHRINK, self.solver.least_damping), jnp.minimum(damping * GROW, MOST)
        return State(theta, state.evaluations + 1 + count, ~better & finite & end, jnp.where(better, less, more))


Direction = Callable[[Any], Any]  # from a damping to the step downhill, to be subtracted


def by_cholesky(jacobian: Any, residual: Any) -> Direction:
    """By the normal equations. With fewer residuals than parameters the step is the shortest that fits."""
    m, n = jacobian.shape
    if m < n:
        gram, right = jacobian @ jacobian.T, residual
    else:
        gram, right = jacobian.T @ jacobian, jacobian.T @ residual

    least = jnp.finfo(gram.dtype).eps * jnp.trace(gram)  # with less, rounding makes it indefinite

    def direction(damping: Any) -> Any:
        damped = gram + jnp.maximum(damping, least) * jnp.eye(len(gram), dtype=gram.dtype)
        solved = cho_solve(cho_factor(damped), right)
        return jacobian.T @ solved if m < n else solved

    return direction


def by_svd(jacobian: Any, residual: Any) -> Direction:
    """By the singular values, whose squares are never formed.

    A parameter that changes nothing stays: rounding in `v`, divided by a small value, would move it.
    """
    u, values, v = jnp.linalg.svd(jacobian, full_matrices=False)
    right = u.T @ residual
    moves = jacobian.any(axis=0)
    return lambda damping: jnp.where(moves, v.T @ (values / (values**2 + damping) * right), 0)
