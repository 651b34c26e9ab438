"""A vision transformer from scratch on images that are drawn on the spot: gratings in noise.

    python examples/vit.py --way stock        # ViT-B/16 on a GPU, 64 images of 224 x 224 a step
    python examples/vit.py --way converted

A class is a grating's direction. Patches go through an ``nn.Linear``, which is what a convolution
with stride 16 is, so ``convert`` reaches every layer but attention. As with GPT-2 the noise of the
batches is above TF32's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import ways
from torch import Tensor, nn

import xgemm_torch

ERROR = "cross entropy on unseen images"


@dataclass(frozen=True)
class Size:
    """Images of a step and their side; layers, width, heads; classes."""

    batch: int
    side: int
    patch: int
    layers: int
    width: int
    heads: int
    classes: int
    rate: float
    steps: int


SIZES = {
    "small": Size(32, 32, 8, 2, 48, 3, 4, 2e-3, 50),
    "full": Size(64, 224, 16, 12, 768, 12, 8, 3e-4, 50),
}


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual path."""

    def __init__(self, width: int, heads: int) -> None:
        """Make the layers."""
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, patches, width) to the same."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Images (batch, 3, side, side) to logits of classes, by the mean of their patches."""

    def __init__(self, size: Size) -> None:
        """Make the layers."""
        super().__init__()
        self.patch = size.patch
        self.embed = nn.Linear(3 * size.patch**2, size.width)
        places = torch.randn((size.side // size.patch) ** 2, size.width)
        self.places = nn.Parameter(0.02 * places)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.layers)))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Give (batch, classes)."""
        patches = F.unfold(images, self.patch, stride=self.patch).mT
        x = self.blocks(self.embed(patches) + self.places)
        return self.head(self.norm(x).mean(1))


def gratings(size: Size, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a batch and its classes: waves of a direction, of any length, phase and colour."""
    classes = torch.randint(size.classes, (size.batch,), generator=g, device=g.device)
    length, phase, *colour = torch.rand((5, size.batch, 1, 1), generator=g, device=g.device)
    angle = classes[:, None, None] * (math.pi / size.classes)
    x = torch.arange(size.side, device=g.device)
    along = x * angle.cos() + x[:, None] * angle.sin()
    wave = torch.sin(2 * math.pi * (along / (4 + 8 * length) + phase))
    images = torch.stack([wave * c for c in colour], 1)
    return images + torch.randn(images.shape, generator=g, device=g.device), classes


class Job:
    """The model under training."""

    def __init__(self, size: Size, way: str, seed: int, device: str) -> None:
        """Make model and optimizer; images that are not trained on are drawn first."""
        torch.manual_seed(seed)
        with torch.device(device):
            self.model = ViT(size)
        if way == "converted":
            xgemm_torch.convert(self.model)
        self.size, self.generator = size, torch.Generator(device).manual_seed(seed)
        self.unseen = [gratings(size, self.generator) for _ in range(3)]
        fused = device == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=size.rate, fused=fused)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, size.rate, size.steps)

    def step(self) -> Tensor:
        """Train on a batch."""
        images, classes = gratings(self.size, self.generator)
        loss = F.cross_entropy(self.model(images), classes)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    @torch.no_grad()
    def error(self) -> float:
        """Give the mean loss of images that were not trained on."""
        losses = [F.cross_entropy(self.model(images), classes) for images, classes in self.unseen]
        return float(torch.stack(losses).mean())


if __name__ == "__main__":
    ways.main(Job, SIZES, ERROR)
