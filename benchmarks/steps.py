"""A model's whole training step: stock FP32, TF32, converted layers, and those inside a patch.

    python benchmarks/steps.py --json steps.json              # on a GPU, all of workloads.py
    python benchmarks/steps.py --show steps.json              # anywhere
    python benchmarks/steps.py --json some.json --models gpt2 vit --compile
    python benchmarks/steps.py --json moe.json --models falcon mixtral     # of transformers
    python benchmarks/steps.py --json hf.json --models gpt2-hf llama-gqa

Of each model: the median step in ms, ways in turns (events on the GPU; forward, backward, AdamW
fused), peak memory of a step, where the time of a converted step goes by families of kernels, and
how far the losses of the same steps are from stock FP32's. Models with attention have two ways
more: "patched", converted and inside ``patch()``, which makes attention, too; and "attention",
converted and calling ``xgemm_torch.scaled_dot_product_attention``, without a patch. `need` is the
time that the products' FLOP take at `RATE`: what a step's products would take if they were nothing
but the main loop. `reach` is the share of a step's FLOP, attention's included, that xgemm makes.

Models of from_transformers.py are not among those that are measured unless they are named. The
third and last way, "converted", of Mixtral and Falcon is ``convert`` inside ``patch()``; of the
others "attention" is ``convert(attention=True)``.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import from_transformers
import provenance
import reach
import reach_page
import recording
import records
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from workloads import WORKLOADS, Workload

import xgemm_torch
from xgemm_torch import grouped
from xgemm_torch.tools import timing

if TYPE_CHECKING:
    from xgemm_torch.tools.console import Fitted

RATE = 217e12
"""FLOP/s of the FP32 product on an H200 with its operands decomposed: of 8192^3."""
MODELS = WORKLOADS | from_transformers.MODELS
"""By name; those of workloads.py are measured unless others are named."""
WAYS = ("stock", "tf32", "converted")
"""Of every model; `ways_of` has two more for those that `Workload.patched` says."""
PATCHED = "patched"
ATTENTION = "attention"
WARM_UP, ROUNDS, LOSSES = 3, 7, 20
# A kernel belongs to the first family of which its name has a word.
FAMILIES = {
    "attention": ("flash", "fmha", "attention", "mha", "decompose_tiles"),
    "decompositions": ("decompose_kernel", "decompose_groups", "plan_groups"),
    "recomputed": ("recompute<",),
    "products of limbs": ("wgmma_kernel", "wgmma_narrow", "fused_emulated", "mma_fp16x3",
                          "mma_bf16x6", "emulated"),
    "stock products": ("gemm", "cutlass", "cublas", "gemv", "splitKreduce"),
    "strict products": ("xgemm",),
}  # fmt: skip
REST = "rest"


def ways_of(workload: Workload) -> tuple[str, ...]:
    """Name a model's ways."""
    return (*WAYS, PATCHED, ATTENTION) if workload.patched else WAYS


class Job:
    """One model under one of its ways: the same weights, data and optimizer for all."""

    def __init__(self, workload: Workload, way: str, device: str, *, compiled: bool) -> None:
        """Make model and optimizer."""
        torch.manual_seed(0)
        self.workload, self.way = workload, way
        # A CPU takes half a minute to draw a library's weights for all ways.
        with torch.device(device if workload.package else "cpu"):
            self.model = workload.make(workload.sizes).to(device)
        self.patch: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if way in ("converted", PATCHED, ATTENTION):
            types = reach.named(workload.types) if workload.types else ()
            ours = way == ATTENTION
            xgemm_torch.convert(self.model, types=types, attention=ours)
            for module in self.model.modules():
                if ours and hasattr(module, "attend"):  # of a model that is made here
                    module.attend = xgemm_torch.scaled_dot_product_attention
            if way == PATCHED or workload.only_patched:
                self.patch = xgemm_torch.patch()
        fused = device == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        self.loss: Callable[[nn.Module, Any], torch.Tensor] = workload.loss
        if compiled:
            self.loss = torch.compile(workload.traced or workload.loss)
        self.generator = torch.Generator(device).manual_seed(1)

    def step(self) -> torch.Tensor:
        """Take a step; the loss of its batch."""
        batch = self.workload.draw(self.workload.sizes, self.generator)
        with self.patch, recording.tf32(self.way == "tf32"):
            loss = self.loss(self.model, batch)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def first_losses(job: Job, count: int = LOSSES) -> list[float]:
    """Those of the first steps, in which all ways drop the same."""
    torch.manual_seed(0)
    return [float(job.step()) for _ in range(count)]


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


def busy(spans: Iterable[tuple[float, float, str]]) -> dict[str, float]:
    """Give how long each kernel had the GPU, of kernels' (begin, end, name).

    An instant is that of the kernel that began first of those that run: a dependent launch begins
    beside the kernel that it waits for. So the times add up to that in which any kernel ran.
    """
    times: dict[str, float] = {}
    taken = float("-inf")
    for begin, end, name in sorted(spans):
        times[name] = times.get(name, 0.0) + max(end - max(begin, taken), 0.0)
        taken = max(taken, end)
    return times


def families(job: Job, steps: int = 8) -> tuple[dict[str, float], dict[str, float]]:
    """Give ms a step by family, and of the kernels that take longest, as `busy` counts them."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            job.step()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if event.device_type != torch.autograd.DeviceType.CPU and not event.is_user_annotation
    ]
    by_family: dict[str, float] = dict.fromkeys((*FAMILIES, REST), 0.0)
    kernels: dict[str, float] = {}
    for name, us in busy(spans).items():
        ms = us / 1e3 / steps
        by_family[family_of(name)] += ms
        kernels[name[:160]] = kernels.get(name[:160], 0.0) + ms
    longest = sorted(kernels.items(), key=lambda item: -item[1])[:16]
    return by_family, dict(longest)


class ProductFlop(TorchDispatchMode):
    """Counts the FLOP of layers' products; FlopCounterMode refuses gradients inside a step.

    Of products of groups torch has no formula.
    """

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
        elif packet.__name__ == "_grouped_mm":
            self.flop += grouped.flops(args[0].shape, args[1].shape)
        return out


def product_flop(job: Job) -> float:
    """Count a step's FLOP in products of stock layers.

    Attention's are not among them but where torch has no kernel of its own for it, as of FP32 where
    several heads share their keys, and multiplies matrices.
    """
    with ProductFlop() as counter:
        job.step()
    return float(counter.flop)


def reached(stock: Job, converted: Job, least: float | None = None) -> dict[str, Any]:
    """Count what xgemm makes of a step's FLOP, as reach.py does, by a step for each way.

    Args:
        stock: a job with stock layers, which steps inside ``patch()``.
        converted: one with converted layers: without a patch, and inside it where that is its way.
        least: the patch's ``min_flops``.

    Returns:
        By "convert", "patch" and, of a model that is converted inside a patch, "convert and
        patch": shares, and by operator how many products xgemm made.
    """
    counters = [
        ("convert", converted, xgemm_torch.patch(min_flops=float("inf"))),
        ("patch", stock, xgemm_torch.patch(min_flops=least)),
    ]
    if converted.workload.only_patched or converted.workload.patched:
        counters.append(("convert and patch", converted, xgemm_torch.patch(min_flops=least)))
    found = {}
    for name, job, counter in counters:
        own, job.patch = job.patch, counter
        job.step()
        job.patch = own
        taken = {row.product: row.calls for row in counter if row.taken}
        found[name] = {**reach.shares(counter), "taken": taken}
    return found


def measure(workload: Workload, *, compiled: bool, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure one model on the current GPU; all ways have their weights there at a time."""
    if compiled:  # or another model of the same code makes Dynamo take its sizes for variables
        torch._dynamo.reset()
    gc.collect()  # the model before this one
    torch.cuda.empty_cache()
    ways = ways_of(workload)
    jobs = {way: Job(workload, way, "cuda", compiled=compiled) for way in ways}
    losses = {way: first_losses(job) for way, job in jobs.items()}
    peaks = {}
    for way, job in jobs.items():
        gc.collect()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        job.step()
        peaks[way] = (torch.cuda.max_memory_allocated() - held) / 2**20
    times: dict[str, list[float]] = {way: [] for way in ways}
    with timing.Clocks() as clocks:
        for turn in range(WARM_UP + rounds):
            for way, job in jobs.items():
                ms = timed(job)
                if turn >= WARM_UP:
                    times[way].append(ms)
    by_family, kernels = families(jobs["converted"])
    jobs["stock"].loss = workload.loss  # a mode sees nothing of what compiled code calls
    flop = product_flop(jobs["stock"])
    more: dict[str, Any] = {}
    if PATCHED in jobs:
        more["patched_families_ms"], more["patched_kernels_ms"] = families(jobs[PATCHED])
    if not compiled:
        more["reach"] = reached(jobs["stock"], jobs["converted"])
    if workload.package:
        more["library"] = from_transformers.library(workload, jobs["stock"].model)
    largest = {
        way: max(abs(x - y) for x, y in zip(losses[way], losses["stock"], strict=True))
        for way in ways[1:]
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
        **more,
    }


def table(record: dict[str, Any]) -> Fitted:
    """A row for each model."""
    from xgemm_torch.tools.console import Column, Fitted

    has_reach = any("reach" in m for m in record["models"].values())
    # An older record has no fourth way, or no fifth.
    has = {way: any(way in m["ms"] for m in record["models"].values())
           for way in (PATCHED, ATTENTION)}  # fmt: skip
    patched, fifth = has[PATCHED], int(has[ATTENTION])

    def cell(of: dict[str, float], name: str = PATCHED, form: str = ".1f") -> list[str]:
        return [format(of[name], form) if name in of else "-"] if patched else []

    def of_attention(of: dict[str, float], form: str = ".1f") -> list[str]:
        return cell(of, ATTENTION, form) if fifth else []

    made = Fitted(
        f"A training step on {record['facts']['device']}, ms"
        + (", torch.compile" if record["compiled"] else ""),
        [
            Column("model"), Column("stock", right=True), Column("TF32", right=True),
            Column("converted", right=True), Column("gain", right=True),
            *([Column("and patch", right=True), Column("gain", right=True, spare=fifth)]
              if patched else []),
            *([Column("or attention", right=True), Column("gain", right=True, spare=1)]
              if fifth else []),
            *([Column("reached", right=True)] if has_reach else []), Column("need", right=True),
            Column("limbs", right=True),
            Column("decomposed", right=True, spare=fifth),
            Column("strict", right=True, spare=fifth),
            Column("attention", right=True, spare=1),
            *([Column("and patch's", right=True, spare=1)] if patched else []),
            Column("rest", right=True, spare=1),
            Column("memory", right=True, spare=2), Column("loss off", right=True),
            *([Column("and patch's", right=True)] if patched else []),
            Column("TF32's", right=True),
        ],
    )  # fmt: skip
    for name, m in record["models"].items():
        ms, kinds = m["ms"], m["families_ms"]
        peaks, off = m["peak_mib"], m["largest_difference"]
        strict = sum(kinds[f] for f in ("strict products", "stock products", "recomputed"))
        share = reach_page.of_step(m)
        gains = {way: ms["stock"] / ms[way] for way in ms}
        made.add_row(
            name, *(f"{ms[way]:.1f}" for way in WAYS), f"{gains['converted']:.2f}",
            *cell(ms), *cell(gains, form=".2f"), *of_attention(ms), *of_attention(gains, ".2f"),
            *(["-" if share is None else reach_page.percent(share)] if has_reach else []),
            f"{m['need_ms']:.1f}" if m["need_ms"] else "-",
            f"{kinds['products of limbs']:.1f}",
            f"{kinds['decompositions']:.1f}", f"{strict:.1f}",
            f"{kinds['attention']:.1f}", *cell(m.get("patched_families_ms", {}), "attention"),
            f"{kinds[REST]:.1f}",
            f"{peaks['converted'] / peaks['stock']:.2f}", f"{off['converted']:.1e}",
            *cell(off, form=".1e"), f"{off['tf32']:.1e}",
        )  # fmt: skip
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or show."""
    parser = recording.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(WORKLOADS))
    parser.add_argument("--compile", action="store_true", help="steps under torch.compile")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed steps of each way")
    options = parser.parse_args(arguments)
    from xgemm_torch.tools.console import console

    if options.show:
        record = records.read(options.show)
    else:
        from tqdm import tqdm

        if options.compile and (names := [n for n in options.models if MODELS[n].package]):
            parser.error(f"--compile: not of {' and '.join(names)}, whose patch is of eager mode")
        recording.require_yardstick("steps")
        absent = {
            name: why
            for name in options.models
            if (why := from_transformers.unavailable(MODELS[name]))
        }
        for name, why in absent.items():
            print(f"steps: {name} is left out: {why}", file=sys.stderr)
        names = [name for name in options.models if name not in absent]
        if not names:
            raise SystemExit("steps: no model is left to measure")
        timing.heat(2.0)
        record = {"facts": provenance.facts(), "compiled": options.compile, "models": {}}
        if absent:
            record["left_out"] = absent
        for name in tqdm(names, unit="model", disable=None):
            record["models"][name] = measure(
                MODELS[name], compiled=options.compile, rounds=options.rounds
            )
            records.write(options.json, record)
        record["finished"] = True
        records.write(options.json, record)
    console().print(table(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
