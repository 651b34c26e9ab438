"""Linear layers of bf16 activations and FP32 weights: routers' gates and FP32 heads.

    python benchmarks/mixed.py --json mixed.json      # on a GPU
    python benchmarks/mixed.py --show mixed.json      # anywhere

Timed in turns, the host's part and the copy of x to FP32 included: torch's product of the copy in
FP32 and in TF32, ``xgemm_torch.linear`` of the copy, and ``mixed_linear``. Errors are of sampled
rows, beside |x| |w|, in units of 2^-24.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import recording
import torch
import torch.nn.functional as F
from torch import Tensor

import xgemm_torch

ROUNDS, WARM_UP, SAMPLED_ROWS, SEED = 15, 5, 48, 12
GATE_ROWS = (1, 8, 64, 512, 2048, 8192)


@dataclass(frozen=True)
class Case:
    """(m, k) bf16 times (n, k) FP32, transposed."""

    name: str
    m: int
    n: int
    k: int


CASES = (
    *(
        Case(f"gate of {n} experts", m, n, k)
        for n, k in ((256, 6144), (768, 6144), (384, 3072), (128, 6144))
        for m in GATE_ROWS
    ),
    Case("head of GPT-2", 4096, 50257, 768),
    Case("head of 32000 tokens", 2048, 32000, 4096),
)


def ways(x: Tensor, weight: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The contenders."""

    def tf32() -> Tensor:
        with recording.tf32(True):
            return F.linear(x.float(), weight)

    return {
        "torch": lambda: F.linear(x.float(), weight),
        "TF32": tf32,
        "copy": lambda: xgemm_torch.linear(x.float(), weight),
        "mixed_linear": lambda: xgemm_torch.mixed_linear(x, weight),
    }


def error(out: Tensor, x: Tensor, weight: Tensor) -> float:
    """The largest of the sampled rows, in u."""
    draw = torch.Generator().manual_seed(SEED)
    some = torch.randperm(len(x), generator=draw)[:SAMPLED_ROWS].to(x.device)
    rows, columns = x[some].double(), weight.T.double()
    off = (out[some].double() - rows @ columns).abs() / (rows.abs() @ columns.abs())
    return float(off.max()) * 2**24


def measured(case: Case) -> dict[str, Any]:
    """What a record has of a case."""
    draw = torch.Generator("cuda").manual_seed(SEED)
    x = torch.randn(case.m, case.k, device="cuda", generator=draw).bfloat16()
    weight = torch.randn(case.n, case.k, device="cuda", generator=draw) * case.k**-0.5
    calls = ways(x, weight)
    ms = recording.in_turns(calls, ROUNDS, WARM_UP)
    return {
        **asdict(case),
        "ms": ms,
        "tflops": 2 * case.m * case.n * case.k / ms["mixed_linear"] / 1e9,
        "error_u": {name: error(call(), x, weight) for name, call in calls.items()},
    }


def table(record: dict[str, Any]) -> str:
    """The record as text."""
    head = f"{'':24}{'M x N x K':>18}" + "".join(
        f"{name:>14}" for name in ("torch", "TF32", "copy")
    )
    lines = [
        f"{record['facts']['device']}, torch {record['facts']['torch']}",
        f"{head}{'mixed ms':>14}",
    ]
    for case in record["mixed"]:
        ms, u = case["ms"], case["error_u"]
        lines.append(
            f"{case['name']:24}{case['m']:>6}x{case['n']}x{case['k']:<6}"
            + "".join(f"{ms[name]:>14.4f}" for name in ("torch", "TF32", "copy", "mixed_linear"))
            + f"   {ms['torch'] / ms['mixed_linear']:5.2f}x {case['tflops']:6.0f} TFLOP/s"
            + f"   u: {u['torch']:.2f} {u['TF32']:.0f} {u['mixed_linear']:.2f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or show."""
    return recording.run(
        __doc__, "mixed", "mixed", lambda: map(measured, CASES), SEED, table, arguments
    )


if __name__ == "__main__":
    raise SystemExit(main())
