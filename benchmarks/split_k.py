"""Measures into how many chains the strict product is best cut: what core/split_k.h fits.

    python benchmarks/split_k.py --measure cuts.json --seconds 120    # on a GPU
    python benchmarks/split_k.py --show cuts.json                     # anywhere

For problems of shapes.py with few results or a long k: torch.mm, the best stage with one chain, and
each row that could win of the stages that split, with each length of the chains that could win,
taking turns as in select_table.py. Bits are compared with the CPU's first.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import provenance
import records
import shapes
import torch

import xgemm_torch
from xgemm_torch import simt
from xgemm_torch.tools import accuracy, timing

CUBLAS, ONE = "torch.mm", "one chain"
SMS = 132
# Blocks of 64 columns an SM that a cut is to give, about; rounds of a persistent grid.
BLOCKS_AN_SM, ROUNDS = (1, 2, 3, 4, 6, 8, 12, 18), (1, 2, 3, 4)
LEAST = 64  # the length of a chain
SPECIALIZED = next(stage for stage in xgemm_torch.stages() if stage.name == "tma_split_k")
LONGEST = 2e12  # of m * n * k, what is cut at all
CHECKED = (
    (1, 1000, 700), (1, 777, 1031), (3, 500, 640), (4, 64, 4096), (8, 768, 3072), (16, 100, 999),
    (33, 70, 1025), (64, 768, 768), (130, 190, 515), (257, 130, 1200), (2000, 3, 800),
)  # fmt: skip


def lengths(p: shapes.Problem, counts: Iterable[int]) -> list[int]:
    """The lengths of chains that cut K into so many, longest first."""
    several = {count for count in (min(n, p.k // LEAST) for n in counts) if count > 1}
    found = {32 * math.ceil(p.k / (32 * count)) for count in several}
    return sorted((share for share in found if share < p.k), reverse=True)


def cuts(p: shapes.Problem) -> list[tuple[str, int, int]]:
    """Rows of the stages that split, not far larger than the problem, with what may be best."""
    short, long = sorted((p.m, p.n))
    high = 16 if short <= 16 else 32 if short <= 32 else 64
    tiles = -(-short // high) * -(-long // 64)
    if short <= 4:
        rows = [("gemv", 0 if short == 1 else 1), ("split_k", 0)]
    elif short <= 32:
        rows = [("split_k", 0), ("split_k", 1)] if short <= 16 else [("split_k", 1), ("split_k", 2)]
    else:
        rows = [("split_k", row) for row in ((1, 2, 3) if short <= 128 else (2, 3, 4))]
    shares = lengths(p, [blocks * SMS // tiles for blocks in BLOCKS_AN_SM])
    found = [(stage, row, share) for stage, row in rows for share in shares]
    if short > 32:
        for row, tile in enumerate(SPECIALIZED.tiles):
            tiles = -(-p.m // tile.BM) * -(-p.n // tile.BN)
            counts = [rounds * SMS * tile.min_blocks // tiles for rounds in ROUNDS]
            found += [("tma_split_k", row, share) for share in lengths(p, counts)]
    return found


def call(stage: str, row: int, share: int, layout: str) -> timing.Call:
    """A row's product with chains of this length."""
    op = timing.stage_call(stage, layout)

    def forced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with simt.configure(row=row, split_k_size=share):
            return op(a, b)

    return forced


def one_chain(layout: str) -> timing.Call:
    """What auto takes where every element has one chain."""
    trans_a, trans_b = timing.LAYOUTS[layout]

    return lambda a, b: accuracy.chain(a.t() if trans_a else a, b.t() if trans_b else b)


def check() -> dict[str, Any]:
    """Compare bits with the CPU's: every row, layout and some lengths of chains."""
    count, wrong = 0, []
    stages = [stage for stage in xgemm_torch.stages() if stage.split_k]
    for m, n, k in CHECKED:
        for layout, (trans_a, trans_b) in timing.LAYOUTS.items():
            a, b = timing.operands(m, n, k, layout, device="cpu", rotate=False)[0]
            c = torch.randn(m, n)
            options = {"trans_a": trans_a, "trans_b": trans_b, "alpha": 1.5, "beta": -0.5}
            for share in (0, 96, 256):
                with simt.configure(split_k_size=share):
                    want = xgemm_torch.sgemm(a, b, c, precision="ieee", **options)
                    for stage in stages:
                        for row in range(len(stage.tiles)):
                            with simt.configure(row=row):
                                got = xgemm_torch.sgemm(
                                    a.cuda(), b.cuda(), c.cuda(), kernel=stage.name, **options
                                )
                            count += 1
                            if not torch.equal(got.cpu(), want):
                                wrong.append(f"{stage.name} {row}, {m}x{n}x{k} {layout}, {share}")
    return {"products": count, "wrong": wrong}


def measure(record: dict[str, Any], path: Path, seconds: float) -> bool:
    """Add the problems that the record lacks; False when time ran out before."""
    from tqdm import tqdm

    began = time.monotonic()
    problems = [p for p in shapes.suite() if p.m * p.n * p.k < LONGEST and p.k >= 512]
    problems = [p for p in problems if cuts(p) and p.label not in record["problems"]]
    random.Random(0).shuffle(problems)
    for p in tqdm(problems, unit="problem", disable=None):
        if time.monotonic() - began > seconds:
            return False
        contenders = {CUBLAS: timing.torch_mm(p.layout), ONE: one_chain(p.layout)}
        contenders |= {
            f"{stage} {row} {share}": call(stage, row, share, p.layout)
            for stage, row, share in cuts(p)
        }
        sets = timing.operands(p.m, p.n, p.k, p.layout, seed=1)
        samples = timing.interleaved(contenders, sets, rounds=5, sample_ms=0.7)
        del sets
        torch.cuda.empty_cache()
        record["problems"][p.label] = {name: 1e6 * median(x) for name, x in samples.items()}
        records.write(path, record)
    return True


def show(record: dict[str, Any]) -> None:
    """Print, for each problem, the best cut and what split_k.h gives, beside torch.mm."""
    problems = {p.label: p for p in shapes.suite()}
    ratios, lost = [], []
    for label, us in sorted(record["problems"].items()):
        p = problems[label]
        by_share: dict[int, tuple[float, str]] = {0: (us[ONE], ONE)}
        for name, time_us in us.items():
            if name not in (CUBLAS, ONE):
                share = int(name.split()[-1])
                by_share[share] = min(by_share.get(share, (math.inf, "")), (time_us, name))
        given = xgemm_torch.split_k_size(p.m, p.n, p.k)
        best, name = min(by_share.values())
        here = by_share.get(given, (math.nan, "not measured"))
        ratios.append(us[CUBLAS] / here[0])
        lost.append(here[0] / best)
        print(
            f"{label:40s} mm {us[CUBLAS]:8.1f}  one {us[ONE]:8.1f}  best {best:8.1f} {name:22s} "
            f"given {here[0]:8.1f} {here[1]:22s} {us[CUBLAS] / here[0]:5.2f}"
        )
    known = [(r, x) for r, x in zip(ratios, lost, strict=True) if math.isfinite(r)]
    print(
        f"{len(known)} of {len(ratios)}: {math.exp(fmean(math.log(r) for r, _ in known)):.3f} "
        f"times torch.mm, {fmean(x for _, x in known) - 1:.1%} lost to the best cut"
    )


def main() -> int:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", type=Path, metavar="JSON")
    parser.add_argument("--show", type=Path, metavar="JSON")
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    if options.measure:
        record: dict[str, Any] = {"facts": provenance.facts(), "problems": {}}
        if options.measure.exists():
            record = records.read(options.measure)
        record["check"] = check()
        print(record["check"])
        timing.heat()
        with timing.Clocks() as clocks:
            done = measure(record, options.measure, options.seconds)
        record["clocks"] = clocks.summary()
        records.write(options.measure, record)
        print(f"{len(record['problems'])} problems, {'all' if done else 'not all'}")
        return bool(record["check"]["wrong"])
    show(records.read(options.show))
    return 0


if __name__ == "__main__":
    sys.exit(main())
