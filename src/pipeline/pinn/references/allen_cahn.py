"""u_t = 0.001 u_xx + 5 (u - u^3) on [-1, 1], u(x, 0) = x^2 cos(pi x), u = -1 at both ends, by a spectral method.

Chebyshev points in x; in t the exponential Runge-Kutta scheme of fourth order, which takes the diffusion exactly.
Source: Cox & Matthews, J. Comput. Phys. 176 (2002), ETDRK4; Trefethen, "Spectral Methods in MATLAB", chapter 6.
"""

from __future__ import annotations

from functools import cache

import numpy as np

DIFFUSION = 0.001
INTERVALS = 256  # in x
STEPS = 2000  # to t = 1


def solution(points: np.ndarray) -> np.ndarray:
    """u at points (N, 2), which are (x, t): (N,). Barycentric in x, in t Hermite's cubic between two steps."""
    x, t = points.T
    values, slopes = _computed()
    step = np.clip((t * STEPS).astype(int), 0, STEPS - 1)
    s = (t * STEPS - step)[:, None]
    ends = (values[step] * (1 + 2 * s) + slopes[step] * s / STEPS) * (1 - s) ** 2
    ends += (values[step + 1] * (3 - 2 * s) - slopes[step + 1] * (1 - s) / STEPS) * s**2
    return np.asarray((_barycentric(x) * ends).sum(axis=1))


@cache
def _computed() -> tuple[np.ndarray, np.ndarray]:
    """u and u_t at every step: (steps + 1, intervals + 1) each, at the Chebyshev points."""
    x, second = _chebyshev()
    linear = DIFFUSION * second[1:-1, 1:-1]  # of w = u + 1, which is 0 at the ends
    half, whole = _exponentials(linear / STEPS / 2), _exponentials(linear / STEPS)
    w = (x**2 * np.cos(np.pi * x) + 1)[1:-1]
    states, slopes = [w], [linear @ w + _reaction(w)]
    for _ in range(STEPS):
        w = _step(w, half, whole)
        states.append(w)
        slopes.append(linear @ w + _reaction(w))
    ends = ((0, 0), (1, 1))
    return np.pad(states, ends) - 1, np.pad(slopes, ends)


def _step(w: np.ndarray, half: list[np.ndarray], whole: list[np.ndarray]) -> np.ndarray:
    """One step of ETDRK4; `half` and `whole` are exp and phi_1 to phi_3 of half a step and of a whole one."""
    h = 1 / STEPS
    n0 = _reaction(w)
    a = half[0] @ w + h / 2 * (half[1] @ n0)
    na = _reaction(a)
    b = half[0] @ w + h / 2 * (half[1] @ na)
    nb = _reaction(b)
    c = half[0] @ a + h / 2 * (half[1] @ (2 * nb - n0))
    nc = _reaction(c)
    combined = whole[1] @ n0 + whole[2] @ (-3 * n0 + 2 * (na + nb) - nc) + whole[3] @ (4 * (n0 - na - nb + nc))
    return np.asarray(whole[0] @ w + h * combined)


def _reaction(w: np.ndarray) -> np.ndarray:
    u = w - 1
    return np.asarray(5 * (u - u**3))


def _exponentials(matrix: np.ndarray) -> list[np.ndarray]:
    """exp(M), phi_1(M), phi_2(M), phi_3(M), the first block row of the exponential of one matrix of blocks."""
    from scipy.linalg import expm

    n = len(matrix)
    blocks = np.kron(np.eye(4, k=1), np.eye(n))
    blocks[:n, :n] = matrix
    row = expm(blocks)[:n]
    return [row[:, n * index : n * (index + 1)] for index in range(4)]


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
    at, _ = _chebyshev()
    weights = (-1.0) ** np.arange(INTERVALS + 1)
    weights[[0, -1]] /= 2
    away = x[:, None] - at
    hit = away == 0
    share = weights / np.where(hit, 1, away)
    share[hit.any(axis=1)] = hit[hit.any(axis=1)]
    return np.asarray(share / share.sum(axis=1, keepdims=True))
