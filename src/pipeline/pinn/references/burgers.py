"""u_t + u u_x = (0.01 / pi) u_xx on [-1, 1], u(x, 0) = -sin(pi x), by the transformation of Cole and Hopf.

u(x, t) is a quotient of two integrals over the whole line, whose integrands decay like a Gaussian: the trapezium rule
converges faster than any power of its step. Source: Basdevant et al., Computers & Fluids 14 (1986), equation (2.6).
"""

from __future__ import annotations

import numpy as np

VISCOSITY = 0.01 / np.pi
NODES = np.linspace(-14, 14, 561)  # in units of sqrt(4 VISCOSITY t); a peak of the integrand is 0.35 wide or wider
CHUNK = 2000


def solution(points: np.ndarray) -> np.ndarray:
    """u at points (N, 2), which are (x, t): (N,)."""
    parts = [points[start : start + CHUNK] for start in range(0, len(points), CHUNK)]
    return np.concatenate([np.empty(0), *(_quotient(x, t) for x, t in (part.T for part in parts))])


def _quotient(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    at = x[:, None] - NODES * np.sqrt(4 * VISCOSITY * t)[:, None]  # (N, nodes)
    exponent = -(NODES**2) - np.cos(np.pi * at) / (2 * np.pi * VISCOSITY)
    weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return np.asarray(-(np.sin(np.pi * at) * weight).sum(axis=1) / weight.sum(axis=1))
