"""Adam's update in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from pipeline.pinn.solvers.method import State

if TYPE_CHECKING:
    from pipeline.pinn.solvers.adam import Adam
    from pipeline.pinn.solvers.system import System


class AdamStep:
    """`memory`: the step, the mean of the gradients and that of their squares."""

    ends: ClassVar[bool] = False

    def __init__(self, solver: Adam) -> None:
        self.solver = solver

    def start(self, system: System, theta: Any) -> State:
        zero = jnp.zeros_like(theta)
        return State(theta, jnp.array(0), jnp.array(False), (jnp.array(0), zero, zero))

    def renew(self, system: System, state: State, data: Any) -> State:
        return state

    def step(self, system: System, state: State, data: Any) -> State:
        s = self.solver
        gradient = jax.grad(system.loss)(state.theta, data)
        number, mean, square = state.memory
        number = number + 1
        mean = s.beta_1 * mean + (1 - s.beta_1) * gradient
        square = s.beta_2 * square + (1 - s.beta_2) * gradient**2
        t = number.astype(mean.dtype)
        rate = s.learning_rate * s.decay ** (t / s.steps)
        correct = (1 - s.beta_1**t), (1 - s.beta_2**t)
        theta = state.theta - rate * (mean / correct[0]) / (jnp.sqrt(square / correct[1]) + s.epsilon)
        return State(theta, state.evaluations + 1, state.done, (number, mean, square))
