"""A physics-informed network: u'' by x and by y of a tanh network, trained to known accuracy.

    python examples/pinn.py --way stock        # on a CPU small, on a GPU 4 layers of 512
    python examples/pinn.py --way converted

Helmholtz's equation, u_xx + u_yy + k^2 u = f on the unit square, zero on its edge, with f such that
u = sin(2 pi x) sin(2 pi y). Adam goes first, L-BFGS after it. The network gives u, u_x, u_y and the
Laplacian in one pass: all four go through each layer as rows of one product. That is less work, in
larger products, than differentiating twice by autograd, and the training differentiates once.

L-BFGS compares losses of nearby weights. Second derivatives of products by TF32 carry errors of
2^-11; below what these make of the loss no direction goes downhill, and its line search ends there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import ways
from torch import Tensor, nn

import xgemm_torch

ERROR = "relative L2 error of u"
WAVES, K = 2, 1.0
SCALE = 2 * (WAVES * math.pi) ** 2  # of u'', and so of the residual


@dataclass(frozen=True)
class Size:
    """Points of the residual, hidden layers and their width; a step is ten updates."""

    points: int
    layers: int
    width: int
    adam: int
    steps: int


SIZES = {"small": Size(1024, 3, 32, 10, 60), "full": Size(65536, 4, 512, 15, 70)}


class Field(nn.Module):
    """A tanh network of (x, y) that gives its value, both first derivatives and its Laplacian."""

    def __init__(self, layers: int, width: int) -> None:
        """Make the layers; a bias moves the value alone, so it is not the Linear's."""
        super().__init__()
        sizes = [2, *[width] * layers, 1]
        self.linears = nn.ModuleList(
            nn.Linear(a, b, bias=False) for a, b in zip(sizes, sizes[1:], strict=False)
        )
        self.biases = nn.ParameterList(torch.zeros(b) for b in sizes[1:])
        for linear in self.linears:
            nn.init.xavier_normal_(linear.weight)
        nn.init.uniform_(self.biases[0], -1, 1)

    def forward(self, at: Tensor) -> tuple[Tensor, ...]:
        """Give u, u_x, u_y, u_xx + u_yy at points (n, 2), each (n, 1)."""
        along = 2 * torch.eye(2, device=at.device)
        rows = [2 * at - 1, *(axis.expand_as(at) for axis in along), torch.zeros_like(at)]
        for linear, bias in zip(self.linears, self.biases, strict=True):
            u, u_x, u_y, lap = linear(torch.cat(rows)).chunk(4)
            u = u + bias
            if linear is not self.linears[-1]:
                u = torch.tanh(u)
                slope = 1 - u * u
                lap = slope * (lap - 2 * u * (u_x * u_x + u_y * u_y))
                u_x, u_y = slope * u_x, slope * u_y
            rows = [u, u_x, u_y, lap]
        return tuple(rows)


def solution(field: nn.Module, at: Tensor) -> tuple[Tensor, Tensor]:
    """Give u and its Laplacian, u being the network times x (1 - x) y (1 - y)."""
    v, v_x, v_y, v_lap = field(at)
    x, y = at.split(1, 1)
    p, q = x * (1 - x), y * (1 - y)
    cross = (1 - 2 * x) * q * v_x + (1 - 2 * y) * p * v_y
    return p * q * v, p * q * v_lap + 2 * cross - 2 * (p + q) * v


def exact(at: Tensor) -> Tensor:
    """Give the known solution."""
    return torch.sin(WAVES * math.pi * at).prod(1, keepdim=True)


class Job:
    """The network under training."""

    def __init__(self, size: Size, way: str, seed: int, device: str) -> None:
        """Make network, points and both optimizers."""
        torch.manual_seed(seed)
        self.field = Field(size.layers, size.width)
        self.at, self.test = torch.rand(size.points, 2), torch.rand(8192, 2)
        self.field.to(device)
        self.at, self.test = self.at.to(device), self.test.to(device)
        if way == "converted":
            xgemm_torch.convert(self.field)
        self.right = (K * K - SCALE) * exact(self.at)
        self.adam = torch.optim.Adam(self.field.parameters(), lr=1e-3)
        self.lbfgs = torch.optim.LBFGS(
            self.field.parameters(), max_iter=10, history_size=50, line_search_fn="strong_wolfe",
            tolerance_grad=0, tolerance_change=0,
        )  # fmt: skip
        self.adam_left, self.evaluations = size.adam, 0

    def loss(self) -> Tensor:
        """Give the mean square of the residual, with its gradient."""
        self.evaluations += 1
        self.adam.zero_grad()
        u, lap = solution(self.field, self.at)
        loss = ((lap + K * K * u - self.right) / SCALE).square().mean()
        loss.backward()
        return loss.detach()

    def step(self) -> Tensor:
        """Make ten updates."""
        if self.adam_left == 0:
            return self.lbfgs.step(self.loss)
        self.adam_left -= 1
        for _ in range(10):
            loss = self.loss()
            self.adam.step()
        return loss

    @torch.no_grad()
    def error(self) -> float:
        """Compare with the exact solution at points that were not trained on."""
        u, true = solution(self.field, self.test)[0], exact(self.test)
        return float((u - true).norm() / true.norm())


if __name__ == "__main__":
    ways.main(Job, SIZES, ERROR)
