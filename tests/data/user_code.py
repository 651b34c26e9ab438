"""What a user writes, for type checkers: a line is right, or says by `# E:` what is wrong."""
# pyright: strict, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import xgemm_torch
from xgemm_torch.tensor_parallel import row_parallel_linear
from xgemm_torch.types import Activation, Autocast, Invariant, Precision


def products(a: Tensor, b: Tensor, bias: Tensor | None, precision: Precision) -> Tensor:
    c: Tensor = xgemm_torch.sgemm(a, b, alpha=2, beta=0.5, c=bias, precision=precision)
    c = xgemm_torch.sgemm(a, b, trans_b=True, kernel="auto", activation="gelu_tanh", out=c)
    for stage in xgemm_torch.stages():
        c = xgemm_torch.sgemm(a, b, kernel=stage.name)
    c = xgemm_torch.linear(a, b, bias, "relu") + xgemm_torch.mm(a, b, precision="ieee")
    c = xgemm_torch.addmm(c, a, b) + xgemm_torch.bmm(a, b) + xgemm_torch.matmul(a, b)
    c = xgemm_torch.scaled_dot_product_attention(a, b, b, bias, is_causal=False, scale=0.5)
    packed = xgemm_torch.prepack(b, trans_b=False)
    c = xgemm_torch.linear(a, xgemm_torch.prepack(b)) + xgemm_torch.matmul(a, packed)
    c = xgemm_torch.mm(a, packed) + xgemm_torch.addmm(c, a, packed)
    return xgemm_torch.sgemm(a, packed)


def layers(activation: Activation, autocast: Autocast) -> list[str]:
    layer = xgemm_torch.nn.Linear(8, 16, activation=activation, autocast=autocast)
    layer = xgemm_torch.nn.Linear.from_linear(nn.Linear(8, 16), precision="fp32")
    plain: nn.Linear = layer.to_linear()
    report = xgemm_torch.convert(nn.Sequential(plain), min_features=8, types=(nn.Linear,))
    xgemm_torch.revert(nn.Sequential(layer))
    return [row.reason for row in report if not row.swapped]


def same_bits(x: Tensor, layer: nn.Linear, what: Invariant | None) -> Tensor:
    y = xgemm_torch.linear(x, layer.weight, precision="ieee", invariant=what)
    xgemm_torch.convert(layer, precision="ieee", invariant="tp")
    ours = xgemm_torch.nn.Linear(8, 8, precision="ieee", invariant="batch")
    y = row_parallel_linear(ours(y), layer.weight, layer.bias)
    return xgemm_torch.sgemm(x, y, precision="ieee", invariant="rows")  # E: arg-type


def around(model: nn.Module, x: Tensor) -> float:
    with xgemm_torch.patch(min_flops=0) as p:
        y: Tensor = model(x)

    @xgemm_torch.patch()
    def step(x: Tensor) -> Tensor:
        return x @ x

    with xgemm_torch.count_recomputed("cpu") as count, xgemm_torch.simt.configure(order="random"):
        y = step(y)
    found = xgemm_torch.explain(64, 64, 64, precision="ieee")
    found = xgemm_torch.explain(x, y, count=True)
    return found.waves + sum(row.calls for row in p) + count.units


class Block(nn.Module):
    """A module of one's own, made of ours."""

    def __init__(self, features: int, precision: Precision = "fp32") -> None:
        super().__init__()
        self.up = xgemm_torch.nn.Linear(features, 4 * features, precision=precision)
        self.down = xgemm_torch.nn.Linear(4 * features, features, bias=False, kernel="auto")
        self.weight = nn.Parameter(torch.empty(features, features))

    def forward(self, x: Tensor) -> Tensor:
        y = xgemm_torch.linear(x, self.weight, None, self.up.activation)
        return x + self.down(torch.relu(self.up(y)))

    @xgemm_torch.patch(precision="ieee")
    def exactly(self, x: Tensor, times: int = 1) -> Tensor:
        for _ in range(times):
            x = x @ self.weight
        return x


class Scaled(xgemm_torch.nn.Linear):
    """A subclass."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def training(model: Block, batches: Iterator[Tensor]) -> Iterator[float]:
    report = xgemm_torch.convert(model, precision="ieee", kernel="auto", autocast="float32")
    names = [row.fqn for row in report.swapped] + [row.fqn for row in report.skipped]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    p = xgemm_torch.patch(min_flops=2**24).start()
    for batch in batches:
        loss = model(batch).square().mean() + model.exactly(batch, times=2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item() + p.share + len(names)
    p.stop()
    p.reset()
    left: dict[str, int] = {row.reason: row.flops for row in p.rows if not row.taken}
    print(p, p.min_flops, p.taken, p.left, left)


def transforms(a: Tensor, b: Tensor) -> Tensor:
    product: Callable[[Tensor, Tensor], Tensor] = xgemm_torch.mm
    for f in (xgemm_torch.mm, xgemm_torch.matmul):
        product = f
    packed = xgemm_torch.prepack(b, kernel="auto")
    packed.renew()
    limbs: Tensor | None = packed.limbs
    rows, columns = packed.weight.shape if limbs is None else packed.shape
    return product(a, b)[:rows, :columns] * xgemm_torch.split_k_size(rows, columns, 8)


def which(a: Tensor, b: Tensor) -> list[str]:
    found = xgemm_torch.explain(a, b, trans_b=True)
    return [c.kernel for c in found.candidates] + [s.name for s in xgemm_torch.stages() if s.packs]


def tuned(path: Path) -> str:
    xgemm_torch.tuned.add(path, [])
    return xgemm_torch.tuned.read(path)[0].precision + str(xgemm_torch.tuned.load(path))


def wrong(a: Tensor, b: Tensor) -> None:
    xgemm_torch.sgemm(a, b, precision="fp16")  # E: arg-type
    xgemm_torch.sgemm(a, b, activation="tanh")  # E: arg-type
    xgemm_torch.sgemm(a, b, alpha=torch.tensor(2.0))  # E: arg-type
    xgemm_torch.sgemm(a, b, transpose_a=True)  # E: call-arg
    xgemm_torch.mm(a, b, "ieee")  # E: call-arg, arg-type
    xgemm_torch.linear(a, b, None, "sigmoid")  # E: arg-type
    xgemm_torch.scaled_dot_product_attention(a, b, b, is_causal="yes")  # E: arg-type
    xgemm_torch.nn.Linear(8, 16, autocast="bfloat16")  # E: arg-type
    xgemm_torch.convert(nn.Linear(8, 16), precision="tf32")  # E: arg-type
    xgemm_torch.convert(nn.Linear(8, 16), kernel=3)  # E: arg-type
    xgemm_torch.patch(precision="tf32")  # E: arg-type
    xgemm_torch.patch(min_flops="small")  # E: arg-type
    Block(8).exactly("x")  # E: arg-type
    Block(8).exactly(a, time=2)  # E: call-arg
    xgemm_torch.prepack(b).weight = 1  # E: assignment
    xgemm_torch.simt.configure(order="backward")  # E: arg-type
    xgemm_torch.explain(64, 64)  # E: call-overload
    print(xgemm_torch.explain(64, 64, 64).speed)  # E: attr-defined
    xgemm_torch.bmm(a, xgemm_torch.prepack(b))  # E: arg-type
    xgemm_torch.nothing(a)  # E: attr-defined
