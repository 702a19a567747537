"""u_t = 0.001 u_xx + 5 (u - u^3) on [-1, 1], u(x, 0) = x^2 cos(pi x), u = -1 at both ends, by a spectral method.

Chebyshev points in x, of which u, being even, needs half; in t the exponential Runge-Kutta scheme of fourth order,
which takes the diffusion exactly. Source: Trefethen, "Spectral Methods in MATLAB" (2000), chapter 6; Cox & Matthews,
J. Comput. Phys. 176 (2002), ETDRK4; Kassam & Trefethen, SIAM J. Sci. Comput. 26 (2005), its coefficients.
"""

from __future__ import annotations

from functools import cache

import numpy as np

DIFFUSION = 0.001
INTERVALS = 640  # in x; even, so that x = 0 is a point
STEPS = 1000  # to t = 1


def solution(points: np.ndarray) -> np.ndarray:
    """u at points (N, 2), which are (x, t): (N,). Barycentric in x, in t Hermite's cubic between two steps."""
    x, t = points.T
    values, slopes = _computed()
    step = np.clip((t * STEPS).astype(int), 0, STEPS - 1)
    s = (t * STEPS - step)[:, None]
    between = (values[step] * (1 + 2 * s) + slopes[step] * s / STEPS) * (1 - s) ** 2
    between += (values[step + 1] * (3 - 2 * s) - slopes[step + 1] * (1 - s) / STEPS) * s**2
    return np.asarray((_barycentric(x) * between).sum(axis=1))


@cache
def _computed() -> tuple[np.ndarray, np.ndarray]:
    """u and u_t at every step: (steps + 1, intervals + 1) each, at the Chebyshev points."""
    x, second = _chebyshev()
    half = INTERVALS // 2
    # w = u + 1 is 0 at x = 1 and even: unknown at the points 1 to `half`, and the others mirror them.
    mirrored = second[1 : half + 1, 1 : half + 1].copy()
    mirrored[:, :-1] += second[1 : half + 1, half + 1 : -1][:, ::-1]
    rates, modes = np.linalg.eig(DIFFUSION * mirrored)
    rates, modes = rates.real, modes.real  # real ones, as those of the exact operator are
    inverse = np.linalg.inv(modes)
    coefficients = _coefficients(rates / STEPS)
    state = inverse @ (x**2 * np.cos(np.pi * x) + 1)[1 : half + 1]
    states = [state]
    for _ in range(STEPS):
        state = _step(state, modes, inverse, coefficients)
        states.append(state)
    w = np.array(states) @ modes.T
    slopes = (np.array(states) * rates) @ modes.T + _reaction(w)
    return _mirror(w) - 1, _mirror(slopes)


def _step(v: np.ndarray, modes: np.ndarray, inverse: np.ndarray, coefficients: list[np.ndarray]) -> np.ndarray:
    """One step of ETDRK4 for the coefficients of the modes."""
    whole, half, stage, first, middle, last = coefficients

    def force(v: np.ndarray) -> np.ndarray:
        return np.asarray(inverse @ _reaction(modes @ v))

    n = force(v)
    a = half * v + stage * n
    na = force(a)
    nb = force(half * v + stage * na)
    nc = force(half * a + stage * (2 * nb - n))
    return np.asarray(whole * v + first * n + middle * (na + nb) + last * nc)


def _reaction(w: np.ndarray) -> np.ndarray:
    """5 (u - u^3) of u = w - 1."""
    return np.asarray(5 * w * (w - 1) * (2 - w))


def _coefficients(z: np.ndarray) -> list[np.ndarray]:
    """ETDRK4's, as means over a circle about each z = rate * step, which does not cancel where z is small."""
    h = 1 / STEPS
    r = z[:, None] + np.exp(2j * np.pi * (np.arange(32) + 0.5) / 32)
    stage = (np.exp(r / 2) - 1) / r
    first = (-4 - r + np.exp(r) * (4 - 3 * r + r**2)) / r**3
    middle = 2 * (2 + r + np.exp(r) * (r - 2)) / r**3
    last = (-4 - 3 * r - r**2 + np.exp(r) * (4 - r)) / r**3
    return [np.exp(z), np.exp(z / 2), *(h * one.mean(axis=1).real for one in (stage, first, middle, last))]


def _mirror(rows: np.ndarray) -> np.ndarray:
    """From the points 1 to half to all of them, 0 at the ends."""
    return np.pad(np.concatenate([rows, rows[:, -2::-1]], axis=1), ((0, 0), (1, 1)))


def _chebyshev() -> tuple[np.ndarray, np.ndarray]:
    """The points, from 1 to -1, and the matrix of the second derivative."""
    x = np.cos(np.pi * np.arange(INTERVALS + 1) / INTERVALS)
    weights = np.ones(INTERVALS + 1)
    weights[[0, -1]] = 2
    weights *= (-1.0) ** np.arange(INTERVALS + 1)
    first = np.outer(weights, 1 / weights) / (x[:, None] - x + np.eye(INTERVALS + 1))
    first -= np.diag(first.sum(axis=1))
    return x, first @ first


def _barycentric(x: np.ndarray) -> np.ndarray:
    """(N, intervals + 1): what each Chebyshev point's value counts at each x."""
    at = np.cos(np.pi * np.arange(INTERVALS + 1) / INTERVALS)
    weights = (-1.0) ** np.arange(INTERVALS + 1)
    weights[[0, -1]] /= 2
    away = x[:, None] - at
    hit = away == 0
    share = weights / np.where(hit, 1, away)
    share[hit.any(axis=1)] = hit[hit.any(axis=1)]
    return np.asarray(share / share.sum(axis=1, keepdims=True))
