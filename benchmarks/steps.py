"""A model's whole training step: stock FP32, TF32 and converted layers, in turns.

    python benchmarks/steps.py --json steps.json              # on a GPU, all of workloads.py
    python benchmarks/steps.py --show steps.json              # anywhere
    python benchmarks/steps.py --json some.json --models gpt2 vit --compile

Of each model: the median step in ms (events on the GPU; forward, backward, AdamW fused), peak
memory of a step, where the time of a converted step goes by families of kernels, and how far the
losses of the same steps are from stock FP32's. `need` is the time that the products' FLOP take at
`RATE`: what a step's products would take if they were nothing but the main loop.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import provenance
import recording
import records
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from workloads import WORKLOADS, Workload

import xgemm_torch
from xgemm_torch.tools import timing

if TYPE_CHECKING:
    from xgemm_torch.tools.console import Fitted

RATE = 217e12
"""FLOP/s of the FP32 product on an H200 with its operands decomposed: of 8192^3."""
WAYS = ("stock", "tf32", "converted")
WARM_UP, ROUNDS, LOSSES = 3, 7, 20
# A kernel belongs to the first family of which its name has a word.
FAMILIES = {
    "decompositions": ("decompose_kernel",),
    "recomputed": ("recompute<",),
    "products of limbs": ("wgmma_kernel", "wgmma_narrow", "fused_emulated", "mma_fp16x3",
                          "mma_bf16x6", "emulated"),
    "attention": ("flash", "fmha", "attention", "mha"),
    "stock products": ("gemm", "cutlass", "cublas", "gemv", "splitKreduce"),
    "strict products": ("xgemm",),
}  # fmt: skip
REST = "rest"


class Job:
    """One model under one of `WAYS`: the same weights, data and optimizer for all."""

    def __init__(self, workload: Workload, way: str, device: str, *, compiled: bool) -> None:
        """Make model and optimizer."""
        torch.manual_seed(0)
        self.workload, self.way = workload, way
        self.model = workload.make(workload.sizes).to(device)
        if way == "converted":
            xgemm_torch.convert(self.model)
        fused = device == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        self.loss: Callable[[nn.Module, Any], torch.Tensor] = workload.loss
        if compiled:
            self.loss = torch.compile(workload.loss)
        self.generator = torch.Generator(device).manual_seed(1)

    def step(self) -> torch.Tensor:
        """Take a step; the loss of its batch."""
        batch = self.workload.draw(self.workload.sizes, self.generator)
        with recording.tf32(self.way == "tf32"):
            loss = self.loss(self.model, batch)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def timed(job: Job) -> float:
    """Take a step; its milliseconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    job.step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def family_of(kernel: str) -> str:
    """Give the family of a kernel by its name."""
    name = kernel.lower()
    ours = "xgemm" in name
    for family, words in FAMILIES.items():
        if family.startswith("stock") and ours:
            continue
        if any(word.lower() in name for word in words):
            return family
    return REST


def families(job: Job, steps: int = 3) -> tuple[dict[str, float], dict[str, float]]:
    """Give ms a step by family, and of the kernels that take longest."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            job.step()
        torch.cuda.synchronize()
    by_family: dict[str, float] = dict.fromkeys((*FAMILIES, REST), 0.0)
    kernels: dict[str, float] = {}
    for event in profiler.key_averages():
        if event.device_type == torch.autograd.DeviceType.CPU or event.self_device_time_total <= 0:
            continue
        ms = event.self_device_time_total / 1e3 / steps
        by_family[family_of(event.key)] += ms
        kernels[event.key[:160]] = ms
    longest = sorted(kernels.items(), key=lambda item: -item[1])[:16]
    return by_family, dict(longest)


class ProductFlop(TorchDispatchMode):
    """Counts the FLOP of layers' products; FlopCounterMode refuses gradients inside a step."""

    OPS = ("mm", "addmm", "bmm", "baddbmm")

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self.flop = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        """Call, and add what was multiplied."""
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet.__name__ in self.OPS:
            self.flop += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        return out


def product_flop(job: Job) -> float:
    """Count a step's FLOP in products of stock layers: attention's are not among them."""
    with ProductFlop() as counter:
        job.step()
    return float(counter.flop)


def measure(workload: Workload, *, compiled: bool, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure one model on the current GPU; all ways have their weights there at a time."""
    if compiled:  # or another model of the same code makes Dynamo take its sizes for variables
        torch._dynamo.reset()
    jobs = {way: Job(workload, way, "cuda", compiled=compiled) for way in WAYS}
    losses = {way: [float(job.step()) for _ in range(LOSSES)] for way, job in jobs.items()}
    peaks = {}
    for way, job in jobs.items():
        gc.collect()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        job.step()
        peaks[way] = (torch.cuda.max_memory_allocated() - held) / 2**20
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with timing.Clocks() as clocks:
        for turn in range(WARM_UP + rounds):
            for way, job in jobs.items():
                ms = timed(job)
                if turn >= WARM_UP:
                    times[way].append(ms)
    by_family, kernels = families(jobs["converted"])
    flop = product_flop(jobs["stock"]) if not compiled else 0.0
    largest = {
        way: max(abs(x - y) for x, y in zip(losses[way], losses["stock"], strict=True))
        for way in WAYS[1:]
    }
    return {
        "what": workload.what,
        "ms": {way: median(ms) for way, ms in times.items()},
        "peak_mib": peaks,
        "losses": losses,
        "largest_difference": largest,
        "need_ms": flop / RATE * 1e3,
        "families_ms": by_family,
        "kernels_ms": kernels,
        "clocks": clocks.summary(),
    }


def table(record: dict[str, Any]) -> Fitted:
    """A row for each model."""
    from xgemm_torch.tools.console import Column, Fitted

    made = Fitted(
        f"A training step on {record['facts']['device']}, ms"
        + (", torch.compile" if record["compiled"] else ""),
        [
            Column("model"), Column("stock", right=True), Column("TF32", right=True),
            Column("converted", right=True), Column("gain", right=True),
            Column("need", right=True), Column("limbs", right=True),
            Column("decomposed", right=True), Column("strict", right=True),
            Column("attention", right=True, spare=1), Column("rest", right=True, spare=1),
            Column("memory", right=True, spare=2), Column("loss off", right=True),
            Column("TF32's", right=True),
        ],
    )  # fmt: skip
    for name, m in record["models"].items():
        ms, kinds = m["ms"], m["families_ms"]
        peaks, off = m["peak_mib"], m["largest_difference"]
        strict = sum(kinds[f] for f in ("strict products", "stock products", "recomputed"))
        made.add_row(
            name, *(f"{ms[way]:.1f}" for way in WAYS), f"{ms['stock'] / ms['converted']:.2f}",
            f"{m['need_ms']:.1f}" if m["need_ms"] else "-",
            f"{kinds['products of limbs']:.1f}",
            f"{kinds['decompositions']:.1f}", f"{strict:.1f}",
            f"{kinds['attention']:.1f}", f"{kinds[REST]:.1f}",
            f"{peaks['converted'] / peaks['stock']:.2f}", f"{off['converted']:.1e}",
            f"{off['tf32']:.1e}",
        )  # fmt: skip
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or show."""
    parser = recording.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--compile", action="store_true", help="steps under torch.compile")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed steps of each way")
    options = parser.parse_args(arguments)
    from xgemm_torch.tools.console import console

    if options.show:
        record = records.read(options.show)
    else:
        from tqdm import tqdm

        recording.require_yardstick("steps")
        timing.heat(2.0)
        record = {"facts": provenance.facts(), "compiled": options.compile, "models": {}}
        for name in tqdm(options.models, unit="model", disable=None):
            record["models"][name] = measure(
                WORKLOADS[name], compiled=options.compile, rounds=options.rounds
            )
            records.write(options.json, record)
        record["finished"] = True
        records.write(options.json, record)
    console().print(table(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
