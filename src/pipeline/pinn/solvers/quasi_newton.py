"""The frame of a quasi-Newton step in JAX: direction, line search, what is learned from the step, and when to stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from pipeline.pinn.solvers.line_search import Point, search
from pipeline.pinn.solvers.method import State

if TYPE_CHECKING:
    from pipeline.pinn.solvers.system import System


class QuasiNewtonStep(ABC):
    """`memory` of the state: loss, gradient, whether nothing is known of the curvature, and what is known of it."""

    ends: ClassVar[bool] = True

    @abstractmethod
    def nothing_known(self, theta: Any) -> tuple[Any, ...]:
        """The curvature's part of the memory before the first step, shaped for the parameters `theta` (n,)."""

    @abstractmethod
    def times(self, known: tuple[Any, ...], gradient: Any) -> Any:
        """The inverse Hessian, as far as it is known, times the gradient (n,)."""

    @abstractmethod
    def learned(self, known: tuple[Any, ...], s: Any, y: Any, gradient: Any, fresh: Any) -> tuple[Any, ...]:
        """What is known after the step `s`, which changed the gradient by `y`; `gradient` is the one before."""

    def start(self, system: System, theta: Any) -> State:
        memory = (jnp.zeros((), theta.dtype), jnp.zeros_like(theta), jnp.array(True), *self.nothing_known(theta))
        return State(theta, jnp.array(0), jnp.array(False), memory)

    def renew(self, system: System, state: State, data: Any) -> State:
        loss, gradient = jax.value_and_grad(system.loss)(state.theta, data)
        return State(state.theta, state.evaluations + 1, jnp.array(False), (loss, gradient, *state.memory[2:]))

    def step(self, system: System, state: State, data: Any) -> State:
        """Where the line search finds nothing all is forgotten; where nothing was known there is no more to gain."""
        loss, gradient, fresh, *known = state.memory
        start = Point(state.theta, loss, gradient)
        one = jnp.ones_like(loss)
        first = jnp.where(fresh, jnp.minimum(one, 1 / jnp.linalg.norm(gradient)), one)
        direction = -self.times(tuple(known), gradient)
        point, count, better = search(
            lambda theta: jax.value_and_grad(system.loss)(theta, data), start, direction, first
        )
        s, y = point.theta - start.theta, point.gradient - start.gradient
        pairs = zip(self.learned(tuple(known), s, y, gradient, fresh), self.nothing_known(s), strict=True)
        known = [jnp.where(better, new, none) for new, none in pairs]
        kept = better | ~jnp.isfinite(loss)
        point = Point(*(jnp.where(kept, new, old) for new, old in zip(point, start, strict=True)))
        done = ~better & fresh & jnp.isfinite(loss)
        return State(point.theta, state.evaluations + count, done, (point.loss, point.gradient, ~better, *known))
