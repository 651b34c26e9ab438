"""Every stage against cuBLAS on a GPU: bits or errors first, then time, in one run.

    python benchmarks/h200.py --out results.json

For each size and layout the strict stages' results must be equal to each other in every bit, within
the float64 bound, and, on a few rows, equal to the strict chain on the CPU. Those of the others
must be as accurate as the chain: the contract of xgemm_torch.tools.accuracy. Then the stages and
torch.mm take turns: CUDA-graph replays over rotating operands of random normal data, chip hot,
median. A short table comes last: shares of torch.mm, against the marks of xgemm_torch.course.marks.

torch's FP32 settings are left as they are; where they make torch.mm coarser than FP32 the script
refuses to compare. Exit code 1 when a result is wrong, 0 also when a mark is
missed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import provenance
import records
import torch
from torch import Tensor

import xgemm_torch
from xgemm_torch import simt
from xgemm_torch.course import marks
from xgemm_torch.tools import accuracy, environment, timing

SIZES = (1024, 2048, 4096, 8192)
CUBLAS = "torch.mm"
# A product that would take longer, as the next smaller size tells, is left out unless it has a mark
# to reach or --full asks for it; one that takes longer than the second is timed in fewer rounds.
LONG_SECONDS, SLOW_SECONDS = 0.35, 0.05
ROUNDS, SLOW_ROUNDS = 9, 2
# Rows that the CPU computes again: enough to meet every thread of a tile's column.
CHAIN_ROWS = 4


def too_long(stage: str, size: int, layout: str, seconds: float) -> bool:
    """Say whether a product that is expected to take so long sits out."""
    marked = layout == "NN" and marks.share(stage, size) is not None
    return seconds > LONG_SECONDS and not marked


def fresh(name: str, layout: str, a: Tensor, b: Tensor) -> Tensor:
    """Give a stage's product, in memory that held NaN before.

    The allocator gives that block to the result: what a kernel leaves unwritten is then NaN, not
    what the stage before it wrote there.
    """
    torch.full((len(a), len(a)), float("nan"), device=a.device)
    return timing.stage_call(name, layout)(a, b)


def check(stages: list[str], size: int, layout: str, device: str = "cuda") -> dict[str, Any]:
    """Compare the strict stages' bits with each other, with float64, and with the chain on the CPU.

    The errors of the others are compared with those of the chain.
    """
    trans_a, trans_b = timing.LAYOUTS[layout]
    listed = {stage.name: stage for stage in xgemm_torch.stages()}
    a, b = timing.operands(size, size, size, layout, device=device, seed=size, rotate=False)[0]
    rows = torch.linspace(0, size - 1, CHAIN_ROWS).round().long()
    picked = a[:, rows.to(a.device)] if trans_a else a[rows.to(a.device)]
    first: dict[int, tuple[str, Tensor]] = {}  # by the length of the chains
    verdict: dict[str, Any] = {"wrong": [], "chain_on_cpu": True}
    strict = [name for name in stages if listed[name].strict]
    for name in strict:
        share = xgemm_torch.split_k_size(size, size, size) if listed[name].split_k else 0
        result = fresh(name, layout, a, b)
        if share not in first:
            first[share] = name, result
            error = timing.float64_error(result, a, b, layout)
            if len(first) == 1:
                verdict |= error
            if not error["error_u"] <= error["allowed_u"]:
                verdict["wrong"].append(f"{name}: {error['error_u']:.3g} u over the bound")
            with simt.configure(split_k_size=share):
                chain = xgemm_torch.sgemm(
                    picked.cpu(), b.cpu(), trans_a=trans_a, trans_b=trans_b, precision="ieee"
                )
            if not torch.equal(result[rows.to(a.device)].cpu(), chain):
                verdict["chain_on_cpu"] = False
                verdict["wrong"].append(f"{name}: not the bits of the CPU's chain")
        elif not torch.equal(result, first[share][1]):
            verdict["wrong"].append(f"{name}: not the bits of {first[share][0]}")
    verdict["bits_equal"] = not verdict["wrong"]
    if others := [name for name in stages if not listed[name].strict]:
        verdict["errors"] = errors(others, layout, a, b)
        for name in others:
            for text in verdict["errors"][name]["broken"].values():
                verdict["wrong"].append(f"{name}: {text}")
    return verdict


def errors(stages: list[str], layout: str, a: Tensor, b: Tensor) -> dict[str, Any]:
    """Give the errors of the chain and of stages; of these, the contract's terms they break."""
    trans_a, trans_b = timing.LAYOUTS[layout]
    plain = a.t() if trans_a else a, b.t() if trans_b else b
    exact = accuracy.Exact(*plain)
    chain = exact.errors(accuracy.chain(*plain))
    told: dict[str, Any] = {accuracy.CHAIN: asdict(chain)}
    for name in stages:
        found = exact.errors(fresh(name, layout, a, b))
        told[name] = asdict(found) | {"broken": accuracy.broken(found, chain)}
    return told


def measure(
    stages: list[str], size: int, layout: str, clocks: timing.Clocks, expected: dict[str, float]
) -> dict[str, Any]:
    """Time the stages and torch.mm turn by turn; seconds a call, TFLOP/s, shares, clocks."""
    contenders = {CUBLAS: timing.torch_mm(layout)}
    contenders |= {name: timing.stage_call(name, layout) for name in stages}
    rounds = {
        name: SLOW_ROUNDS if expected.get(name, 0) > SLOW_SECONDS else ROUNDS for name in contenders
    }
    sets = timing.operands(size, size, size, layout, seed=1)
    clocks.mark()
    samples = timing.interleaved(contenders, sets, rounds=rounds)
    reference = median(samples[CUBLAS])
    return {
        "clocks": clocks.summary(),
        "times": {
            name: {
                "samples_s": times,
                "median_s": median(times),
                "tflops": timing.tflops(size, size, size, median(times)),
                "share": reference / median(times),
            }
            for name, times in samples.items()
        },
    }


def expect(record: dict[str, Any], size: int, layout: str) -> dict[str, float]:
    """Guess seconds a product from the largest smaller size that was measured in this layout."""
    smaller = [c for c in record["cases"] if c["layout"] == layout and c["size"] < size]
    if not smaller:
        return {}
    nearest = max(smaller, key=lambda case: case["size"])
    grown = (size / nearest["size"]) ** 3
    return {name: times["median_s"] * grown for name, times in nearest["times"].items()}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Check and time all cases; returns what --out gets."""
    record: dict[str, Any] = {
        "facts": provenance.facts(),
        "marks": {"cublas": marks.CUBLAS, "stages": marks.MARKS, "goals": marks.GOALS},
        "cases": [],
    }
    began = time.monotonic()
    with timing.Clocks() as clocks:
        timing.heat(options.heat)
        for size, layout in itertools.product(sorted(options.sizes), options.layouts):
            expected = expect(record, size, layout)
            names = [
                name
                for name in options.stages
                if options.full or not too_long(name, size, layout, expected.get(name, 0))
            ]
            case: dict[str, Any] = {"size": size, "layout": layout}
            if not options.no_check:
                case["check"] = check(names, size, layout)
                # The check's copies and its work on the CPU let the chip cool.
                timing.heat(options.heat / 4)
            case |= measure(names, size, layout, clocks, expected)
            record["cases"].append(case)
            record["seconds"] = time.monotonic() - began
            record["clock_source"] = clocks.source
            if options.out:  # after each case: a run that is cut short is worth something too
                options.out.parent.mkdir(parents=True, exist_ok=True)
                records.write(options.out, record)
            wrong = case.get("check", {}).get("wrong", [])
            print(f"{size} {layout} {time.monotonic() - began:.0f} s", *wrong, flush=True)
            torch.cuda.empty_cache()
    record["finished"] = True
    if options.out:
        records.write(options.out, record)
    return record


def table(record: dict[str, Any]) -> str:
    """Shares of torch.mm by stage, size and layout, as text; marks where there are any."""
    columns = [(case["size"], case["layout"]) for case in record["cases"]]
    by_case = {(case["size"], case["layout"]): case for case in record["cases"]}
    names = list(dict.fromkeys(name for case in by_case.values() for name in case["times"]))
    sizes = list(dict.fromkeys(size for size, _ in columns))
    layouts = list(dict.fromkeys(layout for _, layout in columns))
    cuts = " | ".join(f"{size:>{5 * len(layouts) - 1}}" for size in sizes)
    heads = " | ".join(" ".join(f"{layout:>4}" for layout in layouts) for _ in sizes)
    lines = [f"{'% of torch.mm':16} {cuts}", f"{'':16} {heads}"]
    for name in names:
        cells = []
        for size in sizes:
            times = [by_case[size, layout]["times"].get(name) for layout in layouts]
            if name == CUBLAS:
                cells.append(" ".join(f"{t['tflops']:4.1f}" for t in times))
            else:
                cells.append(" ".join(f"{100 * t['share']:4.0f}" if t else "   -" for t in times))
        label = "torch.mm TFLOP/s" if name == CUBLAS else name
        lines.append(f"{label:16} {' | '.join(cells)}")
    return "\n".join(lines + ["", *verdicts(record)])


def verdicts(record: dict[str, Any]) -> list[str]:
    """Say for each mark whether it is reached, and whether all results were right."""
    lines = []
    for case in record["cases"]:
        if case["layout"] != "NN":
            continue
        for name, times in case["times"].items():
            wanted = marks.share(name, case["size"])
            if wanted is not None:
                word = "reached" if times["share"] >= wanted else "MISSED"
                lines.append(
                    f"mark {name} {case['size']}: {times['tflops']:.1f} TFLOP/s, "
                    f"{times['share']:.1%} of torch.mm, wanted {wanted:.1%}: {word}"
                )
    checks = [case["check"] for case in record["cases"] if "check" in case]
    wrong = [line for check in checks for line in check["wrong"]]
    if not checks:
        lines.append("results: not checked")
    elif wrong:
        lines.append(f"results: WRONG in {len(wrong)} places: " + "; ".join(wrong[:8]))
    else:
        lines += right(checks)
    clocks = [case["clocks"]["sm_mhz"]["p50"] for case in record["cases"] if case["clocks"]]
    watts = [case["clocks"]["power_w"]["max"] for case in record["cases"] if case["clocks"]]
    if clocks:
        lines.append(
            f"SM clock {min(clocks):.0f} to {max(clocks):.0f} MHz, up to {max(watts):.0f} W"
        )
    facts = record["facts"]
    lines.append(
        f"{facts['device']}, torch {facts['torch']}, {facts['date']}, commit "
        f"{facts['commit'][:12]}, {record['seconds']:.0f} s"
    )
    return lines


def right(checks: list[dict[str, Any]]) -> list[str]:
    """Say what checks that found nothing wrong were about."""
    lines = []
    strict = [check["error_u"] for check in checks if "error_u" in check]
    if strict:
        lines.append(
            f"bits: equal among strict stages and to the CPU's chain in all {len(strict)} cases; "
            f"largest error {max(strict):.1f} u of |A||B|"
        )
    told = [check["errors"] for check in checks if "errors" in check]
    for name in dict.fromkeys(name for each in told for name in each):
        cases = [each for each in told if name in each]
        lines.append(
            f"errors of {name}: up to {max(each[name]['rms'] for each in cases):.3g} u in the root "
            f"mean square, {max(each[name]['largest'] for each in cases):.3g} u at most"
        )
    return lines


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    names = [stage.name for stage in xgemm_torch.stages()]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="write everything measured into this JSON file")
    parser.add_argument("--stages", nargs="+", choices=names, default=names)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--layouts", nargs="+", choices=list(timing.LAYOUTS),
                        default=list(timing.LAYOUTS))  # fmt: skip
    parser.add_argument("--heat", type=float, default=1.0, help="seconds of products beforehand")
    parser.add_argument("--full", action="store_true", help="products that take long as well")
    parser.add_argument("--no-check", action="store_true", help="time only")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run all; returns 2 where it cannot be measured, 1 where a bit is wrong, else 0."""
    options = parse(arguments)
    if not torch.cuda.is_available():
        print("h200.py: torch sees no CUDA GPU here; nothing to measure", file=sys.stderr)
        return 2
    if (reason := environment.strict_reference()) is not None:
        print(f"h200.py: torch.mm is not the FP32 yardstick here: {reason}", file=sys.stderr)
        return 2
    record = run(options)
    print(table(record))
    return 0 if all(not case.get("check", {}).get("wrong") for case in record["cases"]) else 1


if __name__ == "__main__":
    sys.exit(main())
