"""What ``invariant=`` costs: linear layers by either precision, without and with it.

"packed" is with the weight's limbs kept (``prepack``), as for inference.

    python benchmarks/invariant.py --json invariant.json      # on a GPU
    python benchmarks/invariant.py --show invariant.json      # anywhere

Device times: CUDA-graph replays in turns, over rotating operands, medians. "eager" is the time of a
call where nothing waits but for the host and the device, whichever is slower. Of each layer the
rows that fewer rows give are compared with those of the most, bit by bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean, median
from typing import Any

import recording
import torch
from torch import Tensor

import xgemm_torch
from xgemm_torch.tools import timing

ROWS = (1, 16, 256, 4096, 8192)
LAYERS = ((768, 6144), (4096, 4096), (3072, 768), (256, 16384))  # (N, K)
ROUNDS, CALLS, SEED = 9, 300, 5
# By the precision with which a way is compared: itself, and with invariant=.
PACKED = "fp32 batch, packed"
OF = {
    "ieee": {"batch": "batch", "tp": "tp"},
    "fp32": {"fp32 batch": "batch", PACKED: "batch"},
}
KEPT = [way for ways in OF.values() for way in ways]
WAYS = ("torch", *(way for of, ways in OF.items() for way in (of, *ways)))
Packs = dict[int, "xgemm_torch.PackedWeight"]
"""By the address of the weight."""


def call_of(way: str, packs: Packs) -> timing.Call:
    """The product a b^T in one of `WAYS`; ``packs`` has the weights that are packed."""
    if way == "torch":
        return timing.torch_mm("NT")
    precision = next(of for of, ways in OF.items() if way in (of, *ways))
    how: dict[str, Any] = {"precision": precision, "invariant": OF[precision].get(way)}
    if way == PACKED:
        return lambda a, b: xgemm_torch.linear(a, packs[b.data_ptr()], **how)
    return lambda a, b: xgemm_torch.sgemm(a, b, trans_b=True, **how)


def pack(packs: Packs, weights: Iterable[Tensor]) -> None:
    """Have ``packs`` hold these weights, and no others."""
    packs.clear()
    packs.update((weight.data_ptr(), xgemm_torch.prepack(weight)) for weight in weights)


def gains(case: dict[str, Any]) -> dict[str, float]:
    """The time without ``invariant=`` over that with it, of a record's case, by way."""
    us = case["us"]
    return {f"{of}/{way}": us[of] / us[way] for of, ways in OF.items() for way in ways if way in us}


def eager_us(call: timing.Call, a: Tensor, b: Tensor) -> float:
    """Microseconds of one of many calls in a row."""
    for _ in range(20):
        call(a, b)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call(a, b)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / CALLS * 1e6


def measured(n: int, k: int) -> list[dict[str, Any]]:
    """What a record has of a layer, for each number of rows."""
    draw = torch.Generator("cuda").manual_seed(SEED)
    x = torch.randn(max(ROWS), k, device="cuda", generator=draw)
    weight = torch.randn(n, k, device="cuda", generator=draw)
    packs: Packs = {}
    calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        way: call_of(way, packs) for way in WAYS
    }
    pack(packs, [weight])
    whole = {way: call(x, weight) for way, call in calls.items()}
    found = []
    for m in ROWS:
        pack(packs, [weight])
        same = {
            way: torch.equal(
                call(x[:m], weight).view(torch.int32), whole[way][:m].view(torch.int32)
            )
            for way, call in calls.items()
        }
        if not all(same[way] for way in KEPT):
            raise SystemExit(f"invariant: {m} x {n} x {k}: bits depend on the rows: {same}")
        sets = timing.operands(m, n, k, "NT", seed=SEED)
        pack(packs, [b for _, b in sets])
        times = timing.interleaved(calls, sets, rounds=ROUNDS)
        found.append(
            {
                "m": m, "n": n, "k": k, "same_bits": same,
                "us": {way: 1e6 * median(seconds) for way, seconds in times.items()},
                "eager_us": {way: eager_us(call, *sets[0]) for way, call in calls.items()},
            }
        )  # fmt: skip
        del sets
        torch.cuda.empty_cache()
    return found


def table(record: dict[str, Any]) -> str:
    """The record as text."""
    facts, cases = record["facts"], record["invariant"]
    ways = [way for way in WAYS if not cases or way in cases[0]["us"]]
    named = list(gains(cases[0])) if cases else []
    lines = [
        f"{facts['device']}, torch {facts['torch']}; us, and times without invariant= over theirs",
        f"{'m x n x k':>20}" + "".join(f"{way:>20}" for way in ways)
        + "".join(f"{name:>26}" for name in named)
        + "".join(f"{f'eager {way}':>26}" for way in ways[1:]),
    ]  # fmt: skip
    for case in cases:
        us, eager = case["us"], case["eager_us"]
        lines.append(
            f"{case['m']:>6} x {case['n']} x {case['k']:<6}".rjust(20)
            + "".join(f"{us[way]:20.1f}" for way in ways)
            + "".join(f"{gain:26.2f}" for gain in gains(case).values())
            + "".join(f"{eager[way]:26.1f}" for way in ways[1:])
        )
    for name in named:
        ratios = [gains(case)[name] for case in cases]
        lines.append(f"{name}: {geometric_mean(ratios):.2f}, {min(ratios):.2f} least")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or show."""
    return recording.run(
        __doc__,
        "invariant",
        "invariant",
        lambda: (case for n, k in LAYERS for case in measured(n, k)),
        SEED,
        table,
        arguments,
    )


if __name__ == "__main__":
    raise SystemExit(main())
