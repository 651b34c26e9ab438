"""The orthogonal factor of a matrix by Newton-Schulz: products alone, as Muon's update is.

    python examples/orthogonalize.py --way stock        # 8192 x 4096 on a GPU, 256 x 128 on a CPU
    python examples/orthogonalize.py --way converted

A = Q H, Q having orthonormal columns. A step is X <- X (15 - 10 G + 3 G^2) / 8 with G = X^T X: it
takes every singular value towards 1 and leaves the vectors as they are. Near the limit a step
corrects what the steps before it rounded, so what is left at the end is what the last one rounds:
2^-24 of FP32, 2^-11 of TF32, whose columns are orthogonal to three digits. Muon, which wants no
more than a direction, does not mind; subspaces, rotations and preconditioners do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import ways
from torch import Tensor

import xgemm_torch

ERROR = "|X^T X - 1| / |1| (Frobenius)"


@dataclass(frozen=True)
class Size:
    """Of the matrix."""

    rows: int
    columns: int
    steps: int


SIZES = {"small": Size(256, 128, 14), "full": Size(8192, 4096, 20)}


class Job:
    """The matrix on its way."""

    def __init__(self, size: Size, way: str, seed: int, device: str) -> None:
        """Draw a normal matrix, scaled so that no singular value is beyond 1."""
        g = torch.Generator().manual_seed(seed)
        a = torch.randn((size.rows, size.columns), generator=g).to(device)
        self.x = a / torch.linalg.matrix_norm(a)
        self.mm = xgemm_torch.mm if way == "converted" else torch.mm
        self.addmm = xgemm_torch.addmm if way == "converted" else torch.addmm

    def step(self) -> Tensor:
        """Take a step; the distance of G from 1 before it."""
        x = self.x
        gram = self.mm(x.T, x)
        polynomial = self.addmm(gram, gram, gram, beta=-10 / 8, alpha=3 / 8)
        self.x = self.addmm(x, x, polynomial, beta=15 / 8)
        return self.distance(gram)

    @staticmethod
    def distance(gram: Tensor) -> Tensor:
        """Give the root mean square over columns of how far G is from 1."""
        one = torch.eye(len(gram), device=gram.device, dtype=gram.dtype)
        return (gram - one).norm() / len(gram) ** 0.5

    def error(self) -> float:
        """Give the distance of X^T X from 1 in float64."""
        x = self.x.double()
        return float(self.distance(x.T @ x))


if __name__ == "__main__":
    ways.main(Job, SIZES, ERROR)
