"""The step of self-scaled Broyden in JAX; the symbols are those of Urbán, Stefanou & Pons."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from pipeline.pinn.solvers.quasi_newton import QuasiNewtonStep


class SsBroydenStep(QuasiNewtonStep):
    """Known is the inverse Hessian H, at first the identity."""

    def nothing_known(self, theta: Any) -> tuple[Any, ...]:
        return (jnp.eye(len(theta), dtype=theta.dtype),)

    def times(self, known: tuple[Any, ...], gradient: Any) -> Any:
        return known[0] @ gradient

    def learned(self, known: tuple[Any, ...], s: Any, y: Any, gradient: Any, fresh: Any) -> tuple[Any, ...]:
        """An identity takes the scale of the first step beforehand."""
        h = jnp.where(fresh, known[0] * (s @ y) / (y @ y), known[0])
        return (updated(h, s, y, gradient),)


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
