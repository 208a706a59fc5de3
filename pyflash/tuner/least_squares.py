"""Robust nonlinear least squares, held to where they start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_PULL = 1e-4  # towards the start, beside the mean square of errors
_OUTLIER = 0.15  # errors above count by their size, not its square
_ROUNDS = 30


def least_squares(
    errors: Callable[[Sequence[Sequence[float]]], Sequence[Sequence[float]]],
    start: Sequence[float],
) -> list[float]:
    """The method of Levenberg (1944) and Marquardt (1963) with numerical derivatives. `errors` has
    a row for each of several points. Errors beyond `_OUTLIER` weigh less."""
    origin = torch.tensor(start, dtype=torch.float64)
    identity = torch.eye(len(start), dtype=torch.float64)

    def at(points: torch.Tensor) -> torch.Tensor:
        return torch.tensor(errors(points.tolist()), dtype=torch.float64)

    def loss(found: torch.Tensor, point: torch.Tensor) -> float:
        robust = 2 * _OUTLIER**2 * (torch.sqrt(1 + (found / _OUTLIER) ** 2) - 1)
        return float(robust.mean() + _PULL * (point - origin).square().sum())

    point, found, damping, step = origin, at(origin[None])[0], 1e-2, 1e-4
    for _ in range(_ROUNDS):
        slopes = (at(point + step * identity) - found).T / step
        weights = 1 / torch.sqrt(1 + (found / _OUTLIER) ** 2) / len(found)
        curvature = slopes.T @ (weights[:, None] * slopes) + _PULL * identity
        slope = slopes.T @ (weights * found) + _PULL * (point - origin)
        before = loss(found, point)
        for _ in range(8):
            damped = curvature + damping * torch.diag(curvature.diag())
            tried = point - torch.linalg.solve(damped, slope)
            (found_there,) = at(tried.clamp(-20, 20)[None])
            if loss(found_there, tried) < before:
                break
            damping *= 4
        else:
            break
        point, found, damping = tried, found_there, damping / 4
        if before - loss(found, point) < 1e-6 * before:
            break
    return point.tolist()
