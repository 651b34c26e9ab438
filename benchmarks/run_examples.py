"""Runs examples/ in all three ways, stock FP32, TF32 and converted, step by step in turns.

    python benchmarks/run_examples.py --json examples.json                 # on a GPU, full sizes
    python benchmarks/run_examples.py --json few.json --examples pinn vit --seconds 60
    python benchmarks/run_examples.py --json small.json --size small       # anywhere
    python benchmarks/run_examples.py --show examples.json

All ways of an example begin with the same weights and data and take as many steps. Of each: the
median step in ms with the host's part in it, peak memory, and the error over the steps. An example
ends after its steps, or where its share of ``--seconds`` is over: ``cut`` says so.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import provenance
import recording
import records
import torch

from xgemm_torch.tools import timing

if TYPE_CHECKING:
    from xgemm_torch.tools.console import Fitted

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.append(str(EXAMPLES))
import ways  # noqa: E402

# Steps before memory is measured, and points of the curve of errors.
WARM_UP, POINTS = 2, 10
SECONDS = 210.0


@dataclass(frozen=True)
class Plan:
    """How many seeds an example takes, and its part of the time."""

    seeds: int
    share: float


PLANS = {
    "pinn": Plan(1, 0.34),
    "gaussian_process": Plan(2, 0.12),
    "orthogonalize": Plan(3, 0.06),
    "neural_operator": Plan(1, 0.16),
    "gpt": Plan(1, 0.19),
    "vit": Plan(1, 0.13),
}


def on_gpu(device: str) -> bool:
    """Whether there is memory to ask for."""
    return device.startswith("cuda")


def made(module: Any, size: Any, way: str, seed: int, device: str) -> Any:
    """Make a job of an example as its command line does."""
    with ways.products(way):
        return module.Job(size, way, seed, device)


def stepped(job: Any, way: str) -> tuple[float, float, float]:
    """Take a step; its loss, its seconds and the ms of an evaluation, of which it may have many."""
    before = getattr(job, "evaluations", 0)
    start = ways.waited()
    with ways.products(way):
        loss = job.step()
    seconds = ways.waited() - start
    count = getattr(job, "evaluations", before + 1) - before
    return float(loss), seconds, 1e3 * seconds / max(1, count)


def peak_mib(module: Any, size: Any, way: str, device: str) -> float | None:
    """Give the memory of a way by itself: what it holds, and what a step takes besides."""
    if on_gpu(device):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
    job = made(module, size, way, 0, device)
    for _ in range(WARM_UP):
        stepped(job, way)
    if not on_gpu(device):
        return None
    torch.cuda.reset_peak_memory_stats()
    stepped(job, way)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def compared(
    module: Any, size: Any, seed: int, device: str, deadline: float
) -> tuple[dict[str, dict[str, Any]], bool]:
    """Take all steps of all ways in turns; what came of each way, and whether time was over."""
    jobs = {way: made(module, size, way, seed, device) for way in ways.WAYS}
    found: dict[str, dict[str, Any]] = {
        way: {"ms": [], "seconds": 0.0, "loss": 0.0, "curve": [], "evaluations": 0} for way in jobs
    }
    at = {round(size.steps * (i + 1) / POINTS) for i in range(POINTS)} - {0}
    step, over = 0, False
    while step < size.steps and not over:
        step += 1
        for way, job in jobs.items():
            loss, seconds, ms = stepped(job, way)
            mine = found[way]
            mine["loss"] = loss
            mine["seconds"] += seconds
            mine["ms"].append(ms)
        over = time.monotonic() > deadline
        if step in at or over:
            for way, job in jobs.items():
                mine = found[way]
                mine["curve"].append([step, mine["seconds"], job.error()])
    for way, job in jobs.items():
        mine = found[way]
        mine["ms"] = median(mine["ms"])
        mine["evaluations"] = getattr(job, "evaluations", step)
        mine["error"] = mine["curve"][-1][2]
        mine |= {"details": job.details()} if hasattr(job, "details") else {}
    return found, over and step < size.steps


def measure(name: str, size_name: str, device: str, seconds: float) -> dict[str, Any]:
    """Run an example of all ways, for each of its seeds."""
    module = importlib.import_module(name)
    size = module.SIZES[size_name]
    start = time.monotonic()
    peaks = {way: peak_mib(module, size, way, device) for way in ways.WAYS}
    seeds = PLANS[name].seeds
    with timing.Clocks() as clocks:
        found, cut = compared(module, size, 0, device, start + seconds / seeds)
        errors = {way: [mine["error"]] for way, mine in found.items()}
        for seed in range(1, seeds):
            # Not more steps than the first seed had, or their errors would be of another kind.
            same = replace(size, steps=found["stock"]["curve"][-1][0])
            deadline = start + seconds * (seed + 1) / seeds
            again, over = compared(module, same, seed, device, deadline)
            if over:
                break
            for way, mine in again.items():
                errors[way].append(mine["error"])
    for way, mine in found.items():
        mine |= {"peak_mib": peaks[way], "errors": errors[way]}
    return {
        "what": (module.__doc__ or "").splitlines()[0], "error_is": module.ERROR.strip(","),
        "size": dict(vars(size)), "steps": found["stock"]["curve"][-1][0],
        "cut": cut, "wall_s": time.monotonic() - start, "clocks": clocks.summary(), "ways": found,
    }  # fmt: skip


def table(record: dict[str, Any]) -> Fitted:
    """A row for each example."""
    from xgemm_torch.tools.console import Column, Fitted

    names = ("stock", "TF32", "converted")
    rows = Fitted(
        f"Examples on {record['facts']['device']}, {record['size']}",
        [
            Column("example"), Column("steps", right=True),
            *(Column(f"{name}, ms", right=True) for name in names), Column("gain", right=True),
            *(Column(f"error, {name}", right=True) for name in names),
            Column("memory", right=True, spare=1), Column("seconds", right=True, spare=1),
        ],
    )  # fmt: skip
    for name, entry in record["examples"].items():
        mine = [entry["ways"][way] for way in ways.WAYS]
        stock, _, converted = mine
        peak = stock["peak_mib"]
        rows.add_row(
            name, f"{entry['steps']}{'+' * entry['cut']}", *(f"{m['ms']:.2f}" for m in mine),
            f"{stock['ms'] / converted['ms']:.2f}", *(f"{median(m['errors']):.2e}" for m in mine),
            f"{converted['peak_mib'] / peak:.2f}" if peak else "-", f"{entry['wall_s']:.0f}",
        )  # fmt: skip
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or show."""
    gpu = torch.cuda.is_available()
    parser = recording.parser(__doc__)
    parser.add_argument("--examples", nargs="+", choices=PLANS, default=list(PLANS))
    parser.add_argument("--size", choices=("small", "full"), default="full" if gpu else "small")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all six together")
    options = parser.parse_args(arguments)
    from xgemm_torch.tools.console import console

    if options.show:
        record = records.read(options.show)
    else:
        from tqdm import tqdm

        recording.require_yardstick("run_examples", gpu=False)
        if gpu:
            timing.heat(2.0)
        record = {"facts": provenance.facts(), "size": options.size, "examples": {}}
        total = sum(PLANS[name].share for name in options.examples)
        for name in tqdm(options.examples, unit="example", disable=None):
            seconds = options.seconds * PLANS[name].share / total
            record["examples"][name] = measure(
                name, options.size, "cuda" if gpu else "cpu", seconds
            )
            records.write(options.json, record)
            gc.collect()
        record["finished"] = True
        records.write(options.json, record)
    console().print(table(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
