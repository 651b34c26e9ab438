"""A small GPT in plain PyTorch: every product is an ``nn.Linear``, so ``convert()`` reaches all.

It follows GPT-2: learned positions, pre-norm blocks, GELU (tanh form), a head that shares the token
embedding's weight. Nothing here knows of xgemm_torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of one model; ``context`` and ``vocab`` in tokens."""

    layers: int
    heads: int
    width: int
    context: int
    vocab: int

    def parameters(self) -> int:
        """Number of weights, the shared embedding counted once."""
        block = 12 * self.width**2 + 13 * self.width
        return self.layers * block + (self.vocab + self.context + 2) * self.width


SHAPES = {
    "tiny": Shape(layers=1, heads=2, width=32, context=32, vocab=256),
    "nano": Shape(layers=4, heads=4, width=128, context=64, vocab=256),
    "small": Shape(layers=6, heads=6, width=384, context=256, vocab=256),
    # The dimensions of GPT-2 124M. The text is still bytes, so 50001 of the 50257 rows of the
    # embedding are never looked up; the head multiplies by all of them all the same.
    "gpt2": Shape(layers=12, heads=12, width=768, context=1024, vocab=50257),
}


class Attention(nn.Module):
    """Causal self-attention; ``x`` and the result are (batch, time, width).

    Attributes:
        attend: torch's function; ``xgemm_torch.scaled_dot_product_attention`` may take its place.
    """

    attend = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, shape: Shape, dropout: float) -> None:
        """Make the two layers: queries, keys and values together, and the way out."""
        super().__init__()
        self.heads, self.dropout = shape.heads, dropout
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions of ``x`` (batch, time, width), each with itself and those before it."""
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = self.attend(q, k, v, dropout_p=dropout, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class MLP(nn.Module):
    """Two layers with a GELU between, four times as wide inside."""

    def __init__(self, shape: Shape) -> None:
        """Make the two layers."""
        super().__init__()
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Map each position of ``x`` (..., width) alone."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm and beside a residual path."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        """Make both halves."""
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(shape.width), Attention(shape, dropout)
        self.norm2, self.mlp = nn.LayerNorm(shape.width), MLP(shape)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block finds to ``x`` (batch, time, width)."""
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Token ids (batch, time) to logits (batch, time, vocab)."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        """Make the model with torch's initial weights; ``initialize`` gives it GPT-2's."""
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        self.head.weight = self.tokens.weight

    def initialize(self, seed: int) -> GPT:
        """Fill every weight as GPT-2 does, from ``seed`` alone; returns the model."""
        generator = torch.Generator().manual_seed(seed)
        # GPT-2's 0.02 at width 768, kept in proportion: narrow models learn far slower with 0.02.
        # The residual path sums 2 * layers outputs: their weights shrink to keep its scale.
        spread = 0.55 / math.sqrt(self.shape.width)
        residual = spread / math.sqrt(2 * self.shape.layers)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norm" in name or name.endswith("bias"):
                    parameter.fill_(1.0 if name.endswith("weight") else 0.0)
                else:
                    std = residual if name.endswith(("proj.weight", "down.weight")) else spread
                    parameter.normal_(0.0, std, generator=generator)
        return self

    def forward(self, ids: Tensor) -> Tensor:
        """Give the logits (batch, time, vocab) of each next token after ``ids`` (batch, time)."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy in nats a token; ``ids`` and ``targets`` are (batch, time) int64."""
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(
        self, prompt: bytes, length: int, *, window: int, seed: int, temperature: float = 0.7
    ) -> bytes:
        """Continue ``prompt`` by ``length`` bytes, each drawn from the ``window`` bytes before it.

        ``window`` should be the length that the model was trained on: positions beyond it mean
        nothing yet.
        """
        device = self.positions.weight.device
        generator = torch.Generator().manual_seed(seed)
        ids = list(prompt)
        was_training = self.training
        self.eval()
        for _ in range(length):
            recent = torch.tensor([ids[-window:]], device=device)
            logits = self(recent)[0, -1, :256].float().cpu() / temperature
            ids.append(int(torch.multinomial(logits.softmax(0), 1, generator=generator)))
        self.train(was_training)
        return bytes(ids)
