"""Products of groups, as those of a model's experts: one launch, group by group, and torch's own.

    python benchmarks/grouped.py --json grouped.json      # on a GPU
    python benchmarks/grouped.py --show grouped.json      # anywhere

Of each case the layer's product and its two gradients' are timed, all three ways in turns, the
host's part included: torch's way and that by groups wait for where groups end. Sizes of groups are
random, of a seed. Errors are of sampled rows, beside |A| |B|, in units of 2^-24.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import recording
import torch
from torch import Tensor

import xgemm_torch
from xgemm_torch import grouped

ROUNDS, SAMPLED_ROWS, SEED = 9, 48, 11
WAYS = ("torch", "by group", "grouped_mm")


@dataclass(frozen=True)
class Case:
    """Experts' first layer: (rows of all groups, k) times (groups, k, n)."""

    name: str
    groups: int
    rows: int
    k: int
    n: int


CASES = (
    Case("8 experts, half of Mixtral 8x7B's", 8, 8192, 4096, 7168),
    Case("16 experts", 16, 16384, 1024, 4096),
    Case("64 narrow experts", 64, 16384, 2048, 1408),
    Case("8 small experts", 8, 2048, 768, 3072),
    Case("64 experts of 16 rows", 64, 1024, 1024, 1024),
    Case("64 narrow experts of 2 rows", 64, 128, 2048, 1408),
    Case("8 large experts of 2 rows", 8, 16, 4096, 14336),
)


def ends_of(case: Case) -> list[int]:
    """Where groups of random sizes end."""
    share = torch.rand(case.groups, generator=torch.Generator().manual_seed(SEED)).square() + 0.02
    ends = (share.cumsum(0) / share.sum() * case.rows).round().int().tolist()
    return [*ends[:-1], case.rows]


def products(case: Case) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The layer's product, and those of the gradients of its input and its weights."""
    draw = torch.Generator("cuda").manual_seed(SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", generator=draw)

    x, dy = normal(case.rows, case.k), normal(case.rows, case.n)
    weight = normal(case.groups, case.n, case.k) * case.k**-0.5
    yield "forward", x, weight.mT
    yield "input's gradient", dy, weight
    yield "weights' gradient", dy.T, x


def by_group(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """As grouped.product where no stage takes groups."""
    return grouped.product(a, b, offs, {"kernel": "auto", "precision": "fp32"}, in_one=False)


def error(out: Tensor, a: Tensor, b: Tensor, ends: list[int]) -> float:
    """The largest of the sampled rows, in u."""
    rows = torch.randperm(out.shape[-2], generator=torch.Generator().manual_seed(SEED))
    largest = 0.0
    for z, (s, e) in enumerate(zip([0, *ends], ends, strict=False)):
        some = rows[:SAMPLED_ROWS].to(a.device)
        if b.dim() == 3:
            some = some[(some >= s) & (some < e)]
            left, right, got = a[some].double(), b[z].double(), out[some]
        else:
            left, right, got = a[some, s:e].double(), b[s:e].double(), out[z, some]
        if left.numel():
            size = left.abs() @ right.abs()
            off = (got.double() - left @ right).abs() / size
            largest = max(largest, float(off[size > 0].max()) * 2**24)
    return largest


def measured(case: Case) -> dict[str, Any]:
    """What a record has of a case."""
    ends = ends_of(case)
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    found = {}
    for name, a, b in products(case):
        ways = {
            "torch": lambda a=a, b=b: torch._grouped_mm(a, b, offs),
            "by group": lambda a=a, b=b: by_group(a, b, offs),
            "grouped_mm": lambda a=a, b=b: xgemm_torch.grouped_mm(a, b, offs=offs),
        }
        ms = recording.in_turns(ways, ROUNDS)
        found[name] = {
            "ms": ms,
            "tflops": 2 * case.rows * case.k * case.n / ms["grouped_mm"] / 1e9,
            "error_u": {way: error(ways[way](), a, b, ends) for way in ("torch", "grouped_mm")},
        }
    return {**asdict(case), "ends": ends, "products": found}


def table(record: dict[str, Any]) -> str:
    """The record as text."""
    head = f"{'':36}{'':20}{'torch':>9}{'by group':>10}{'one':>9} ms{'gain':>7}{'u':>7}"
    lines = [f"{record['facts']['device']}, torch {record['facts']['torch']}", head]
    for case in record["groups"]:
        for name, found in case["products"].items():
            ms = found["ms"]
            lines.append(
                f"{case['name']:36}{name:20}{ms['torch']:9.3f}{ms['by group']:10.3f}"
                f"{ms['grouped_mm']:9.3f}   {ms['torch'] / ms['grouped_mm']:7.2f}"
                f"{found['error_u']['grouped_mm']:7.2f}"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or show."""
    return recording.run(
        __doc__, "grouped", "groups", lambda: map(measured, CASES), SEED, table, arguments
    )


if __name__ == "__main__":
    raise SystemExit(main())
