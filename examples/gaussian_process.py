"""Exact Gaussian process regression by conjugate gradients with many right sides at once.

    python examples/gaussian_process.py --way stock        # 16384 points on a GPU, 512 on a CPU
    python examples/gaussian_process.py --way converted

The kernel matrix is made of one product, x y^T, and a step is one iteration of conjugate gradients
for all right sides at once: the data's, which gives the mean, and one for each test point, which
gives its variance. K does not change, so ``prepack`` decomposes it once for all iterations.

TF32 rounds K's elements by up to 2^-11 in every product. K + s^2 I is positive definite by no more
than s^2; when the rounding of n^2 elements has a norm like that, it is not any more, and the
iterations converge to another system's solution or not at all. Rounding by 2^-24 stays far below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import ways
from torch import Tensor

import xgemm_torch

ERROR = "relative L2 error of the mean, beside float64 and Cholesky,"
NOISE, LENGTH, DIMENSIONS = 0.1, 0.7, 4


@dataclass(frozen=True)
class Size:
    """Points to learn from and to predict; a step is an iteration."""

    points: int
    tests: int
    steps: int


SIZES = {"small": Size(512, 16, 150), "full": Size(16384, 255, 1200)}


def surface(x: Tensor) -> Tensor:
    """Give what is to be learned at points (n, DIMENSIONS)."""
    return torch.sin(3 * x[:, 0]) + x[:, 1] ** 2 - x[:, 2] * x[:, 3]


def kernel(x: Tensor, y: Tensor, mm: Callable[..., Tensor] = torch.mm) -> Tensor:
    """Give exp(-|x - y|^2 / 2 LENGTH^2) of all pairs, the distances by one product."""
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * mm(x, y.T)
    return torch.exp(squares.clamp(min=0) * (-0.5 / LENGTH**2))


class Job:
    """The regression, and where its iterations are."""

    def __init__(self, size: Size, way: str, seed: int, device: str) -> None:
        """Draw points and make the kernel matrix: what is random is the same on every device."""
        g = torch.Generator().manual_seed(seed)
        x = 2 * torch.rand((size.points + size.tests, DIMENSIONS), generator=g) - 1
        noise = NOISE * torch.randn(size.points, generator=g)
        self.y = (surface(x[: size.points]) + noise).to(device)
        self.x, self.test = x.to(device).split((size.points, size.tests))
        if way == "converted":
            self.k = kernel(self.x, self.x, xgemm_torch.mm)
            packed = xgemm_torch.prepack(self.k)  # K is symmetric: P K^T is P K
            self.times_k = lambda p: xgemm_torch.linear(p, packed)
        else:
            self.k = kernel(self.x, self.x)
            self.times_k = lambda p: p @ self.k
        # Right sides are rows: that of the data, and K's rows of the test points.
        right = torch.cat((self.y[None], kernel(self.test.double(), self.x.double()).float()))
        self.solution, self.residual, self.direction = torch.zeros_like(right), right, right
        self.norms = self.first = right.square().sum(1, keepdim=True)
        self.means: Tensor | None = None

    def step(self) -> Tensor:
        """Take an iteration of each right side; the largest relative residual of them."""
        image = self.times_k(self.direction) + NOISE**2 * self.direction
        ahead = self.norms / (self.direction * image).sum(1, keepdim=True)
        self.solution = self.solution + ahead * self.direction
        self.residual = self.residual - ahead * image
        norms = self.residual.square().sum(1, keepdim=True)
        self.direction = self.residual + norms / self.norms * self.direction
        self.norms = norms
        return (norms / self.first).max().sqrt()

    def predicted(self) -> tuple[Tensor, Tensor]:
        """Give mean and variance at the test points, of the solutions as they are now."""
        across = kernel(self.test.double(), self.x.double())
        weights, others = self.solution[0].double(), self.solution[1:].double()
        return across @ weights, 1 - (across * others).sum(1)

    def reference(self) -> tuple[Tensor, Tensor]:
        """Give the same by Cholesky's factor in float64."""
        x, across = self.x.double(), kernel(self.test.double(), self.x.double())
        k = kernel(x, x)
        k.diagonal().add_(NOISE**2)
        half = torch.linalg.solve_triangular(
            torch.linalg.cholesky(k),
            torch.cat((self.y.double()[:, None], across.T), 1),
            upper=False,
        )
        return half[:, 1:].T @ half[:, 0], 1 - half[:, 1:].square().sum(0)

    def error(self) -> float:
        """Compare the mean with the reference's."""
        if self.means is None:
            self.means = self.reference()[0]
        return float((self.predicted()[0] - self.means).norm() / self.means.norm())

    def details(self) -> dict[str, float]:
        """Count variances below zero, and give the root mean square error of the predictions."""
        mean, variance = self.predicted()
        off = mean - surface(self.test.double())
        return {
            "negative variances": int((variance < 0).sum()),
            "test points": len(mean),
            "root mean square error": float(off.square().mean().sqrt()),
        }


if __name__ == "__main__":
    ways.main(Job, SIZES, ERROR)
