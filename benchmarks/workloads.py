"""Models as people train them, in plain PyTorch, with data and a loss: what steps.py times.

Every product of a layer is an ``nn.Linear``, so ``convert`` reaches all but attention's. The sizes
are those of the papers; ``tiny`` has the same layers in sizes that a CPU steps in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xgemm_torch.train.model import GPT, SHAPES

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Sizes:
    """Of a workload: samples and positions (or rows alone) of a step, and the model's own."""

    batch: int
    length: int = 1
    layers: int = 4
    width: int = 4096
    inner: int = 0
    heads: int = 0
    classes: int = 0
    experts: int = 0
    dropout: float = 0.0


@dataclass(frozen=True)
class Workload:
    """A model to train: ``make`` it, draw a batch, take the loss of a batch.

    ``package`` is the library that has the model, if it is not made here: not all of its products
    are layers' that ``convert`` knows, so that it is converted and inside ``patch()``. ``types`` is
    the place of a class that ``convert(types=)`` is told of. ``traced`` is the same loss as
    ``torch.compile`` takes it, where that is another program. ``named_attention`` says that the
    library looks its attention up by a name, as ``convert(attention=True)`` needs it: then
    "converted" is without a patch, and steps.py has a way for either.
    """

    name: str
    what: str
    sizes: Sizes
    tiny: Sizes
    make: Callable[[Sizes], nn.Module]
    draw: Callable[[Sizes, torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    package: str = ""
    types: str = ""
    traced: Callable[[nn.Module, Batch], Tensor] | None = None
    named_attention: bool = False

    @property
    def only_patched(self) -> bool:
        """Whether ``convert`` alone misses its products: converted layers are inside a patch."""
        return bool(self.package) and not self.named_attention

    @property
    def patched(self) -> bool:
        """Whether it has attention, and steps.py has a way without a patch and one inside it."""
        return self.sizes.heads > 0 and not self.only_patched

    def small(self) -> Workload:
        """Give the same layers in small sizes."""
        return replace(self, sizes=self.tiny)


class Mixer(nn.Module):
    """Attention of (batch, length, width); ``rotary`` turns queries and keys by their position.

    Attributes:
        attend: torch's function, or ours, as steps.py has it.
    """

    attend = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, s: Sizes, *, causal: bool, rotary: bool, bias: bool) -> None:
        """Make the ways in and out."""
        super().__init__()
        self.heads, self.causal, self.rotary = s.heads, causal, rotary
        self.qkv = nn.Linear(s.width, 3 * s.width, bias=bias)
        self.out = nn.Linear(s.width, s.width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.rotary:
            q, k = turned(q), turned(k)
        y = self.attend(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def turned(x: Tensor) -> Tensor:
    """Rotary positions of (..., length, head)."""
    half = x.shape[-1] // 2
    rate = 10000.0 ** -(torch.arange(half, device=x.device) / half)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    one, other = x.chunk(2, -1)
    return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)


class GatedMLP(nn.Module):
    """Llama's: down(silu(gate(x)) up(x)), without biases."""

    def __init__(self, s: Sizes) -> None:
        """Make the three layers."""
        super().__init__()
        self.gate = nn.Linear(s.width, s.inner, bias=False)
        self.up = nn.Linear(s.width, s.inner, bias=False)
        self.down = nn.Linear(s.inner, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map each position alone."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and MLP beside a residual path, with norms ``before`` or after them."""

    def __init__(self, s: Sizes, *, before: bool, causal: bool, gated: bool) -> None:
        """Make both halves."""
        super().__init__()
        self.before = before
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.norm1, self.norm2 = norm(s.width), norm(s.width)
        self.mixer = Mixer(s, causal=causal, rotary=gated, bias=not gated)
        self.mlp = GatedMLP(s) if gated else nn.Sequential(
            nn.Linear(s.width, s.inner), nn.GELU(), nn.Linear(s.inner, s.width)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Add what both halves find."""
        if self.before:
            x = x + self.mixer(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.mixer(x))
        return self.norm2(x + self.mlp(x))


class ViT(nn.Module):
    """Images (batch, 3, side, side) in patches of 16 x 16, and a class token, to logits."""

    def __init__(self, s: Sizes) -> None:
        """Make the layers for ``length - 1`` patches."""
        super().__init__()
        self.patches = nn.Conv2d(3, s.width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, s.width))
        self.places = nn.Parameter(torch.randn(1, s.length, s.width) * 0.02)
        self.layers = nn.Sequential(
            *(Layer(s, before=True, causal=False, gated=False) for _ in range(s.layers))
        )
        self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, s.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Give (batch, classes)."""
        x = self.patches(images).flatten(2).mT
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class Text(nn.Module):
    """Token ids (batch, length) to logits: BERT's encoder and head, or Llama."""

    def __init__(self, s: Sizes, *, gated: bool) -> None:
        """Make the layers; the head shares the embedding's weight unless they are Llama's."""
        super().__init__()
        self.tokens = nn.Embedding(s.classes, s.width)
        self.places = None if gated else nn.Embedding(s.length, s.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.layers = nn.Sequential(
            *(Layer(s, before=gated, causal=gated, gated=gated) for _ in range(s.layers))
        )
        norm = nn.RMSNorm(s.width) if gated else nn.LayerNorm(s.width)
        middle = () if gated else (nn.Linear(s.width, s.width), nn.GELU())
        self.top = nn.Sequential(*middle, norm)
        self.head = nn.Linear(s.width, s.classes, bias=not gated)
        if not gated:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Give (batch, length, classes)."""
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places.weight[: ids.shape[1]]
        return self.head(self.top(self.layers(x)))


class GPT2(GPT):
    """The command ``train``'s model."""

    def __init__(self, s: Sizes) -> None:
        """Make it with GPT-2's first weights."""
        shape = replace(
            SHAPES["gpt2"], layers=s.layers, heads=s.heads, width=s.width, context=s.length,
            vocab=s.classes,
        )  # fmt: skip
        super().__init__(shape)
        self.initialize(0)


def mlp(s: Sizes) -> nn.Module:
    """Layers of one width with ReLU between."""
    layers = [nn.Linear(s.width, s.width) for _ in range(s.layers)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]


def field(s: Sizes) -> nn.Module:
    """A function of time and place by tanh layers, as physics-informed networks have."""
    inside = [
        part for _ in range(s.layers - 2) for part in (nn.Linear(s.width, s.width), nn.Tanh())
    ]
    return nn.Sequential(nn.Linear(2, s.width), nn.Tanh(), *inside, nn.Linear(s.width, 1))


def heat_residual(model: nn.Module, batch: Batch) -> Tensor:
    """Mean square of u_t - u_xx + u^3, by second derivatives of the model."""
    at = batch[0].clone().requires_grad_()
    u = model(at)
    (first,) = torch.autograd.grad(u.sum(), at, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 1].sum(), at, create_graph=True)
    return (first[:, 0] - second[:, 1] + u[:, 0] ** 3).square().mean()


def heat_residual_forward(model: nn.Module, batch: Batch) -> Tensor:
    """`heat_residual` by forward mode: ``torch.compile`` takes no gradient of a gradient."""
    at = batch[0]
    along_t, along_x = torch.eye(2, device=at.device)

    def along(f: Callable[[Tensor], Tensor], axis: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda at: torch.func.jvp(f, (at,), (axis.expand_as(at),))[1]

    u, first = torch.func.jvp(model, (at,), (along_t.expand_as(at),))
    second = along(along(model, along_x), along_x)(at)
    return (first - second + u**3).square().mean()


def regression(model: nn.Module, batch: Batch) -> Tensor:
    """Mean square error."""
    return F.mse_loss(model(batch[0]), batch[1])


def classification(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy, of each position where there are several."""
    logits = model(batch[0])
    return F.cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def rows(s: Sizes, g: torch.Generator) -> Batch:
    """Random normal rows and targets."""
    shape = (s.batch, s.width)
    return tuple(torch.randn(shape, generator=g, device=g.device) for _ in range(2))


def points(s: Sizes, g: torch.Generator) -> Batch:
    """Times and places in [0, 1)."""
    return (torch.rand((s.batch, 2), generator=g, device=g.device),)


def images(s: Sizes, g: torch.Generator) -> Batch:
    """Random normal images and classes."""
    side = 16 * round((s.length - 1) ** 0.5)
    return (
        torch.randn((s.batch, 3, side, side), generator=g, device=g.device),
        torch.randint(s.classes, (s.batch,), generator=g, device=g.device),
    )


def tokens(s: Sizes, g: torch.Generator) -> Batch:
    """Tokens, frequent and rare ones as in text (Zipf's law), and each one's next.

    Density 1 / (id + 1), by element: ``torch.multinomial`` sums its weights in an order that
    varies on a GPU, and one token of 8192 that differs moves a loss by 1e-4.
    """
    at = torch.rand((s.batch, s.length + 1), generator=g, device=g.device, dtype=torch.float64)
    ids = ((s.classes + 1.0) ** at).long().clamp_(max=s.classes) - 1
    return ids[:, :-1], ids[:, 1:]


WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp", "4 layers of 4096, 8192 rows",
                 Sizes(8192), Sizes(16, width=32), mlp, rows, regression),
        Workload("gpt2", "GPT-2 124M, 8 x 1024 tokens",
                 Sizes(8, 1024, 12, 768, 3072, 12, 50257), Sizes(2, 8, 2, 32, 128, 2, 61),
                 GPT2, tokens, classification),
        Workload("vit", "ViT-B/16, 64 images of 224 x 224",
                 Sizes(64, 197, 12, 768, 3072, 12, 1000), Sizes(2, 5, 2, 32, 64, 2, 7),
                 ViT, images, classification),
        Workload("bert", "BERT-base, 32 x 512 tokens",
                 Sizes(32, 512, 12, 768, 3072, 12, 30522), Sizes(2, 8, 2, 32, 64, 2, 61),
                 lambda s: Text(s, gated=False), tokens, classification),
        Workload("llama", "Llama 0.3B (16 layers of 1024), 4 x 2048 tokens",
                 Sizes(4, 2048, 16, 1024, 2816, 16, 32000), Sizes(2, 8, 2, 32, 48, 2, 61),
                 lambda s: Text(s, gated=True), tokens, classification),
        Workload("pinn", "8 tanh layers of 512, 65536 points, second derivatives",
                 Sizes(65536, layers=8, width=512), Sizes(32, layers=3, width=16),
                 field, points, heat_residual, traced=heat_residual_forward),
    )
}  # fmt: skip
"""By name."""
