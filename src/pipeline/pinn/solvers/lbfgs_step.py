"""The step of L-BFGS in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pipeline.pinn.solvers.quasi_newton import QuasiNewtonStep


class LbfgsStep(QuasiNewtonStep):
    """Known are the steps s, the changes y of the gradient and 1 / (s y), the newest last, 0 where there was none."""

    def __init__(self, remembered: int) -> None:
        self.remembered = remembered

    def nothing_known(self, theta: Any) -> tuple[Any, ...]:
        none = jnp.zeros((self.remembered, len(theta)), theta.dtype)
        return none, none, jnp.zeros(self.remembered, theta.dtype)

    def times(self, known: tuple[Any, ...], gradient: Any) -> Any:
        return two_loops(gradient, *known)

    def learned(self, known: tuple[Any, ...], s: Any, y: Any, gradient: Any, fresh: Any) -> tuple[Any, ...]:
        sy = s @ y
        news = (s, y, jnp.where(sy > 0, 1 / sy, 0))
        return tuple(jnp.concatenate([old[1:], new[None]]) for old, new in zip(known, news, strict=True))


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
