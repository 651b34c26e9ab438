"""A Fourier neural operator: learns what Burgers' equation makes of a first state.

    python examples/neural_operator.py --way stock        # width 256 on a GPU, 24 on a CPU
    python examples/neural_operator.py --way converted

The data are made on the spot: u_t + u u_x = nu u_xx on a circle, by a spectral solver with an
integrating factor in float64. A layer mixes channels at every point (its 1 x 1 convolutions, as
``nn.Linear`` on the last dimension) and low frequencies by weights of their own. ``convert``
reaches the former, which are nearly all of the FLOP; the latter is a batch of complex products,
and stays torch's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import ways
from torch import Tensor, nn

import xgemm_torch

ERROR = "mean relative L2 error on unseen states"
VISCOSITY, TIME = 0.01, 0.25


@dataclass(frozen=True)
class Size:
    """States and points of each; layers, width, frequencies; states of a step."""

    states: int
    points: int
    width: int
    layers: int
    modes: int
    batch: int
    steps: int


SIZES = {
    "small": Size(256, 64, 24, 2, 12, 16, 80),
    "full": Size(2048, 1024, 256, 4, 32, 64, 600),
}


def burgers(first: Tensor, steps: int = 200) -> Tensor:
    """Give the states at TIME, by Runge and Kutta of order 4; ``first`` is (states, points)."""
    points = first.shape[-1]
    waves = 2 * math.pi * torch.fft.rfftfreq(points, 1 / points, device=first.device).double()
    kept = waves < waves[-1] * 2 / 3  # products of two states have no aliases among these
    h = TIME / steps
    half = torch.exp(-VISCOSITY * waves**2 * h / 2)

    def slope(v: Tensor) -> Tensor:
        u = torch.fft.irfft(v, points)
        return -0.5j * waves * kept * torch.fft.rfft(u * u)

    v = torch.fft.rfft(first.double())
    for _ in range(steps):
        a = slope(v)
        b = slope(half * (v + h / 2 * a))
        c = slope(half * v + h / 2 * b)
        d = slope(half * (half * v + h * c))
        v = half * (half * (v + h / 6 * a) + h / 3 * (b + c)) + h / 6 * d
    return torch.fft.irfft(v, points).float()


def states(count: int, points: int, g: torch.Generator) -> Tensor:
    """Draw smooth random states: eight frequencies, the higher the weaker."""
    x = torch.arange(points) / points
    angle = 2 * math.pi * torch.arange(1, 9)[:, None] * x
    size = torch.randn((2, count, 8), generator=g) / (1 + torch.arange(8.0))
    return 0.5 * (size[0] @ angle.sin() + size[1] @ angle.cos())


class Layer(nn.Module):
    """Low frequencies by weights of their own, plus an MLP of each point."""

    def __init__(self, size: Size) -> None:
        """Make the weights."""
        super().__init__()
        width = size.width
        spectral = torch.randn((size.modes, width, width), dtype=torch.cfloat) / (2 * width**0.5)
        self.spectral = nn.Parameter(torch.view_as_real(spectral))
        self.skip, self.up = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, points, width) to the same."""
        weight = torch.view_as_complex(self.spectral)
        low = torch.fft.rfft(x, dim=1)[:, : len(weight)]
        low = torch.einsum("bmi,mio->bmo", low, weight)
        y = F.gelu(torch.fft.irfft(low, x.shape[1], dim=1) + self.skip(x))
        return x + self.down(F.gelu(self.up(y)))


class Job:
    """The operator under training."""

    def __init__(self, size: Size, way: str, seed: int, device: str) -> None:
        """Make data, model and optimizer."""
        g = torch.Generator().manual_seed(seed)
        first = states(size.states + size.states // 8, size.points, g).to(device)
        grid = (torch.arange(size.points, device=device) / size.points).expand_as(first)
        self.inputs = torch.stack(
            (first, (2 * math.pi * grid).sin(), (2 * math.pi * grid).cos()), 2
        )
        self.last = burgers(first)
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(3, size.width), *(Layer(size) for _ in range(size.layers)),
            nn.Linear(size.width, 2 * size.width), nn.GELU(), nn.Linear(2 * size.width, 1),
        ).to(device)  # fmt: skip
        if way == "converted":
            xgemm_torch.convert(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=1e-4)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, size.steps)
        self.size, self.generator = size, g

    def off(self, which: Tensor) -> Tensor:
        """Give the mean relative L2 error of some states."""
        u, true = self.model(self.inputs[which])[..., 0], self.last[which]
        return ((u - true).norm(dim=1) / true.norm(dim=1)).mean()

    def step(self) -> Tensor:
        """Train on a batch."""
        batch = torch.randint(self.size.states, (self.size.batch,), generator=self.generator)
        loss = self.off(batch.to(self.last.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    @torch.no_grad()
    def error(self) -> float:
        """Give the error of states that were not trained on."""
        unseen = torch.arange(self.size.states, len(self.last), device=self.last.device)
        return float(torch.stack([self.off(part) for part in unseen.split(64)]).mean())


if __name__ == "__main__":
    ways.main(Job, SIZES, ERROR)
