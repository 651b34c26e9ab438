"""Tensor parallelism: a collective and then a product, both overlapped, and each alone.

    torchrun --nproc-per-node 2 benchmarks/async_tp.py --json async_tp.json   # a GPU a rank
    torchrun --nproc-per-node 2 benchmarks/async_tp.py --small --json x.json  # without a GPU: gloo
    python benchmarks/async_tp.py --show async_tp.json

Of each layer both functions of ``xgemm_torch.async_tp`` are checked first, results against float64
and gradients of both ways against each other, and then timed, the ways in turns: "collective" and
"product" alone, "in order" (the one, then the other), "overlapped", and "torch", which is
``symm_mem.fused_all_gather_matmul`` or ``fused_matmul_reduce_scatter`` in FP32. A step is forward
and backward. A time is the slowest rank's. NVLink multicast is left off.
"""

from __future__ import annotations

import os

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import provenance
import recording
import records
import torch
import torch.distributed as dist
from torch import Tensor

import xgemm_torch
from xgemm_torch import async_tp
from xgemm_torch.tools import timing

ROUNDS, SAMPLED_ROWS, SEED = 15, 64, 12
ALLOWED_U, ALLOWED_GRADIENT = 8.0, 1e-4


@dataclass(frozen=True)
class Case:
    """Two layers of a block, by columns and then by rows, with the tokens of all ranks."""

    name: str
    tokens: int
    width: int
    inner: int


CASES = (
    Case("GPT-2 124M's MLP, 8 sequences", 8192, 768, 3072),
    Case("width 2048", 8192, 2048, 8192),
    Case("Llama 3 8B's MLP", 8192, 4096, 14336),
    Case("Llama 3 8B's MLP, one sequence", 2048, 4096, 14336),
)
SMALL = (Case("small", 64, 48, 96),)


@dataclass(frozen=True)
class Layer:
    """One of the two: its function, this rank's operands, and what stands beside it."""

    function: Callable[..., Tensor]
    x: Tensor
    weight: Tensor
    collective: Callable[[], Any]
    product: Callable[[], Any]
    torchs: Callable[[], Any]


def layers(case: Case, device: torch.device) -> dict[str, Layer]:
    """Both layers of a case, of random numbers of this rank's own."""
    ranks = dist.get_world_size()
    group = dist.group.WORLD.group_name
    draw = torch.Generator(device).manual_seed(SEED + dist.get_rank())

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, device=device, generator=draw) * scale

    shard = normal(case.tokens // ranks, case.width)
    up = normal(case.inner // ranks, case.width, scale=case.width**-0.5)
    inner = normal(case.tokens, case.inner // ranks)
    down = normal(case.width, case.inner // ranks, scale=case.inner**-0.5)
    gathered = torch.empty(case.tokens, case.width, device=device)
    async_tp.all_gather(gathered, shard)
    partial = xgemm_torch.linear(inner, down)
    scattered = partial.new_empty(case.tokens // ranks, case.width)
    fused = torch.ops.symm_mem
    return {
        "all_gather_linear": Layer(
            async_tp.all_gather_linear,
            shard,
            up,
            lambda: async_tp.all_gather(gathered, shard),
            lambda: xgemm_torch.linear(gathered, up),
            lambda: fused.fused_all_gather_matmul(shard, [up.T], 0, group, return_A=False),
        ),
        "linear_reduce_scatter": Layer(
            async_tp.linear_reduce_scatter,
            inner,
            down,
            lambda: async_tp.reduce_scatter(scattered, partial),
            lambda: xgemm_torch.linear(inner, down),
            lambda: fused.fused_matmul_reduce_scatter(inner, down.T, "sum", 0, group),
        ),
    }


def error(name: str, layer: Layer, out: Tensor) -> float:
    """The largest of sampled rows, in units of 2^-24 |A| |B|, of all ranks."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if name == "all_gather_linear":
        x = layer.x.new_empty(layer.x.shape[0] * ranks, layer.x.shape[1])
        async_tp.all_gather(x, layer.x)
        first, last = 0, x.shape[0]
    else:
        x = layer.x
        first, last = (x.shape[0] // ranks * r for r in (rank, rank + 1))
    rows = torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(SEED))
    rows = rows[:SAMPLED_ROWS].to(x.device)
    a, b = x[rows].double(), layer.weight.double().T
    exact, size = a @ b, a.abs() @ b.abs()
    if name == "linear_reduce_scatter":
        dist.all_reduce(exact)
        dist.all_reduce(size)
    here = (rows >= first) & (rows < last)
    off = (out[rows[here] - first].double() - exact[here]).abs() / size[here] * 2**24
    return largest(float(off.max()) if off.numel() else 0.0)


def largest(mine: float) -> float:
    """Of all ranks."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return max(every)


def step(layer: Layer, overlap: bool) -> tuple[Tensor, Tensor]:
    """Forward and backward; the gradients."""
    x, weight = (t.detach().requires_grad_() for t in (layer.x, layer.weight))
    y = layer.function(x, weight, overlap=overlap)
    return torch.autograd.grad(y, (x, weight), torch.ones_like(y))


def apart(layer: Layer) -> float:
    """How far gradients of the two ways are apart, beside the largest element."""
    pairs = zip(step(layer, False), step(layer, True), strict=True)
    return largest(max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs))


def turns(calls: dict[str, Callable[[], Any]], cuda: bool) -> dict[str, float]:
    """Median ms of a call, the host's part included, on the slowest rank; ways take turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 2):
        for name, call in calls.items():
            if cuda:
                torch.cuda.synchronize()
            dist.barrier()
            if cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            if cuda:
                torch.cuda.synchronize()
            if number > 1:  # the first make workspaces
                samples[name].append((time.perf_counter() - began) * 1e3)
    return {name: largest(median(times)) for name, times in samples.items()}


def measured(case: Case, device: torch.device) -> dict[str, Any]:
    """What a record has of a case."""
    found, cuda = {}, device.type == "cuda"
    for name, layer in layers(case, device).items():
        ways = {"in order": False, **({"overlapped": True} if cuda else {})}
        errors = {
            way: error(name, layer, layer.function(layer.x, layer.weight, overlap=overlap))
            for way, overlap in ways.items()
        }
        gradient = apart(layer) if cuda else 0.0
        if max(errors.values()) > ALLOWED_U or gradient > ALLOWED_GRADIENT:
            raise SystemExit(f"{case.name}, {name}: errors {errors} u, gradients {gradient}")
        forward: dict[str, Callable[[], Any]] = {
            "collective": layer.collective,
            "product": layer.product,
            **{
                way: lambda overlap=overlap, layer=layer: layer.function(
                    layer.x, layer.weight, overlap=overlap
                )
                for way, overlap in ways.items()
            },
        }
        if cuda:
            forward["torch"] = layer.torchs
        steps = {
            way: lambda overlap=overlap, layer=layer: step(layer, overlap)
            for way, overlap in ways.items()
        }
        found[name] = {
            "ms": turns(forward, cuda),
            "step_ms": turns(steps, cuda),
            "error_u": errors,
            "gradients_apart": gradient,
        }
    return {**asdict(case), "layers": found}


def table(record: dict[str, Any]) -> str:
    """The record as text."""
    columns = ("collective", "product", "in order", "overlapped", "torch")
    head = f"{'':32}{'':24}{''.join(f'{c:>12}' for c in columns)} ms   step: in order, overlapped"
    lines = [f"{record['facts']['device']}, {record['ranks']} ranks", head]
    for case in record["cases"]:
        for name, found in case["layers"].items():
            cells = [found["ms"].get(column) for column in columns]
            cells += [None, *(found["step_ms"].get(way) for way in ("in order", "overlapped"))]
            text = "".join(f"{'':12}" if c is None else f"{c:12.3f}" for c in cells)
            lines.append(f"{case['name']:32}{name:24}{text}")
    return "\n".join(lines)


def measure(small: bool) -> dict[str, Any]:
    """What all ranks measure together."""
    device = torch.device("cpu" if small else f"cuda:{os.environ['LOCAL_RANK']}")
    if not small:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if small else "nccl", **({} if small else {"device_id": device}))
    began = time.monotonic()
    record: dict[str, Any] = {
        "facts": provenance.facts(),
        "ranks": dist.get_world_size(),
        "seed": SEED,
        "cases": [],
    }
    if not small:
        timing.heat(1.0)
    for case in SMALL if small else CASES:
        record["cases"].append(measured(case, device))
    return record | {"seconds": time.monotonic() - began, "finished": True}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or show."""
    parser = recording.parser(__doc__)
    parser.add_argument("--small", action="store_true", help="on a CPU, one small case")
    options = parser.parse_args(arguments)
    if options.show:
        print(table(records.read(options.show)))
        return 0
    recording.require_yardstick("async_tp", gpu=not options.small)
    record = measure(options.small)
    if dist.get_rank() == 0:
        records.write(options.json, record)
        print(table(record), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
