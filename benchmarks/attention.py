"""Attention, forward and backward: torch's FP32 kernel and ours in turns, times and errors.

    python benchmarks/attention.py --json attention.json      # on a GPU; goes on where it stopped
    python benchmarks/attention.py --show attention.json      # anywhere
    python benchmarks/attention.py --json some.json --cases GPT-2 Llama --seed 5 --count 40

Cases are shapes of models, some of them with other data, and random shapes of a seed. Queries,
keys and values lie in memory as layers leave them: (batch, position, head, width). A pass is timed
by events twice: calls in a row behind a kernel that waits, so that the GPU's time alone counts, and
one call that finds the GPU idle, with the host's part. FLOP are those of two products forward and
five backward, and of what a causal mask lets through.

Errors are against float64, of some (batch, head) pairs. An element's is taken beside the sum of the
absolute values of what is added for it, as |A| |B| of a product, in units of u = 2^-24: of out that
is P |V|, of the gradients the same with the absolute value of every factor. ``relative`` is the
root mean square beside the largest element. Exit code 3 where time ran out before all cases were
there.
"""

from __future__ import annotations

import gc
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import attention_page
import provenance
import recording
import records
import torch
import torch.nn.functional as F
from attention_page import CALL, DEVICE, GRADIENTS, OURS, OUT, PASSES, RANDOM, TORCH
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import xgemm_torch
from xgemm_torch import attention_dropout
from xgemm_torch.tools import timing

if TYPE_CHECKING:
    from xgemm_torch.tools.console import Fitted

# Turns of each way, the ms of a turn of several calls, and the most calls.
ROUNDS, SAMPLE_MS, MOST_CALLS = 7, 3.0, 20
# Random shapes, whose seed nothing was tuned with; FLOP of a forward call, the most heads, and the
# most bytes of q, k, v and the output's gradient.
SEED, COUNT = 71, 16
LEAST_FLOP, MOST_FLOP, MOST_HEADS = 0.5e9, 40e9, 4096
MOST_BYTES = 1 << 30
MOST_LENGTH, WIDTHS, HEADS = 4096, (16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128), (1, 4, 8, 12, 16)
# Of a float64 matrix of weights, over all pairs; and the most pairs.
REFERENCE_ELEMENTS, MOST_PAIRS = 1 << 25, 64
PRODUCTS = {"forward": 2, "backward": 5}
# The waiting kernel's cycles for a second of the host's; a GPU's clock is below that.
CYCLES = 2.5e9
UNIT = 2.0**-24
DATA = {
    "normal": "random normal",
    "peaked": "queries times 8: a few keys have nearly all of a row's weight",
    "zeros": "the second half of each sequence is zeros, of its gradient, too",
    "wide": "rows of the output's gradient times 2^-60 to 1, as losses of few tokens give them",
}


@dataclass(frozen=True)
class Case:
    """Attention of (batch, heads, queries, width) to keys and values (batch, heads, keys, width).

    ``masked`` has a mask of keys, True to a length of each sample's own; ``dropout`` is the
    probability with which a weight is dropped, by the same seed in both ways; ``data`` is one of
    `DATA`.
    """

    name: str
    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    causal: bool = False
    masked: bool = False
    dropout: float = 0.0
    data: str = "normal"
    group: str = "models"

    @property
    def label(self) -> str:
        """Name, sizes and what is special."""
        keys = "" if self.keys == self.queries else f"x{self.keys}"
        sizes = f"{self.batch}x{self.heads}x{self.queries}{keys}x{self.width}"
        special = " causal" * self.causal + " masked" * self.masked
        special += f" dropout {self.dropout:g}" * (self.dropout > 0)
        return f"{self.name} {sizes}{special}" + (f", {self.data}" * (self.data != "normal"))

    @property
    def bytes(self) -> int:
        """Of q, k, v and the output's gradient."""
        return 8 * self.batch * self.heads * (self.queries + self.keys) * self.width

    @property
    def flop(self) -> float:
        """Of one product; half the square of keys and queries is seen where it is causal."""
        least = min(self.queries, self.keys)
        seen = self.queries * self.keys
        if self.causal:
            seen = least * least / 2 + (self.queries - least) * self.keys
        return 2.0 * self.batch * self.heads * seen * self.width


_GPT2 = Case("GPT-2", 8, 12, 1024, 1024, 64, causal=True)
_VIT = Case("ViT-B", 64, 12, 197, 197, 64)
_BERT = Case("BERT", 32, 12, 512, 512, 64)
MODELS = (
    _GPT2,
    _VIT,
    _BERT,
    replace(_BERT, masked=True),
    Case("Llama 0.3B", 4, 16, 2048, 2048, 64, causal=True),
    Case("Llama 7B", 1, 32, 4096, 4096, 128, causal=True),
    Case("cross", 4, 16, 1024, 333, 64),
    Case("long", 2, 16, 8192, 8192, 64, causal=True),
    Case("small", 32, 4, 64, 64, 32),
    Case("ViT-H", 16, 16, 257, 257, 80),
    Case("width of 96", 2, 16, 1024, 1024, 96, causal=True),
    Case("width of 128", 8, 8, 1024, 1024, 128),
    *(replace(case, dropout=0.1) for case in (_GPT2, _VIT, _BERT)),
    *(
        replace(case, data=data, group="data")
        for case in (_GPT2, _BERT)
        for data in ("peaked", "zeros", "wide")
    ),
)


def random_cases(seed: int, count: int) -> list[Case]:
    """Give shapes of a seed: lengths and FLOP log-uniform, a third of them causal."""
    draw = random.Random(seed)

    def uniform(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    found: list[Case] = []
    while len(found) < count:
        queries, keys = (max(1, round(uniform(0.5, MOST_LENGTH))) for _ in range(2))
        width, heads, causal = draw.choice(WIDTHS), draw.choice(HEADS), draw.random() < 1 / 3
        wanted = uniform(LEAST_FLOP, MOST_FLOP)
        one = Case("", 1, heads, queries, keys, width, causal, group=RANDOM)
        batch = max(1, round(wanted / (PRODUCTS["forward"] * one.flop)))
        case = replace(one, name=f"random {len(found)}", batch=batch)
        within = LEAST_FLOP <= PRODUCTS["forward"] * case.flop <= MOST_FLOP
        if within and batch * heads <= MOST_HEADS and case.bytes <= MOST_BYTES:
            found.append(case)
    return found


@dataclass(frozen=True)
class Operands:
    """What a call takes; ``mask`` None or (batch, 1, 1, keys) of bool."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    mask: Tensor | None


def operands(case: Case, device: str, seed: int = SEED) -> Operands:
    """Draw a case's data."""
    draw = torch.Generator(device).manual_seed(seed)

    def normal(length: int) -> Tensor:
        shape = (case.batch, length, case.heads, case.width)
        return torch.randn(shape, device=device, generator=draw).transpose(1, 2)

    q, grad = normal(case.queries), normal(case.queries)
    k, v = normal(case.keys), normal(case.keys)
    if case.data == "peaked":
        q *= 8
    elif case.data == "zeros":
        for x in (q, k, v, grad):
            x[:, :, x.shape[2] // 2 :] = 0
    elif case.data == "wide":
        size = (case.batch, case.heads, case.queries, 1)
        grad *= torch.exp2(-60 * torch.rand(size, device=device, generator=draw))
    mask = None
    if case.masked:
        half = case.keys // 2
        lengths = torch.randint(
            half, case.keys + 1, (case.batch, 1, 1, 1), device=device, generator=draw
        )
        mask = torch.arange(case.keys, device=device) < lengths
    return Operands(q, k, v, grad, mask)


# --- what is right --------------------------------------------------------------------------------


def exact(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, seen: Tensor | None, left: Tensor | None = None
) -> dict[str, tuple[Tensor, Tensor]]:
    """Give out, dq, dk and dv in float64, each with the sum of what is added, taken absolute.

    Args:
        q: (..., queries, width), float64, as are the others.
        k: (..., keys, width).
        v: as k.
        grad: of the result, as q.
        seen: of bool, broadcast to (..., queries, keys); None where all is.
        left: what dropout multiplies weights by, (..., queries, keys); None without.
    """
    scale = q.shape[-1] ** -0.5
    logits = scale * (q @ k.mT)
    if seen is not None:
        logits = logits.masked_fill(~seen, -math.inf)
    p = logits.softmax(-1)
    by = torch.ones((), dtype=p.dtype, device=p.device) if left is None else left

    def of(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, sign: int) -> dict[str, Tensor]:
        dp = by * (grad @ v.mT)
        ds = scale * p * (dp + sign * (p * dp).sum(-1, keepdim=True))
        dropped = by * p
        return {"out": dropped @ v, "dq": ds @ k, "dk": ds.mT @ q, "dv": dropped.mT @ grad}

    value, size = of(q, k, v, grad, -1), of(q.abs(), k.abs(), v.abs(), grad.abs(), 1)
    return {name: (value[name], size[name]) for name in value}


def errors(found: Tensor, value: Tensor, size: Tensor) -> dict[str, float]:
    """Compare with float64's, in u; what is not finite is NaN or infinite."""
    off = (found.double() - value).abs()
    beside = off / size.clamp_min(torch.finfo(torch.float32).tiny) / UNIT
    largest = float(value.abs().max())
    rms = float(off.square().mean().sqrt()) / UNIT
    return {
        "rms": float(beside.square().mean().sqrt()),
        "largest": float(beside.max()),
        "relative": rms / largest if largest else rms,
    }


def left_by(case: Case, device: torch.device) -> Tensor | None:
    """What dropout multiplies weights by, by a generator that has just been seeded with `SEED`."""
    seed, offset = torch.tensor(SEED), torch.tensor(0)
    shape = (case.batch, case.heads, case.queries, case.keys)
    return attention_dropout.factors(case.dropout, seed, offset, shape, device)


@torch.no_grad()
def check(case: Case, x: Operands, results: Mapping[str, Sequence[Tensor]]) -> dict[str, Any]:
    """Compare the results of all ways, each (out, dq, dk, dv), in some pairs of batch and head."""
    count = max(1, min(MOST_PAIRS, REFERENCE_ELEMENTS // (case.queries * case.keys)))
    pairs = torch.randperm(case.batch * case.heads, generator=torch.Generator().manual_seed(SEED))
    pairs = pairs[:count].to(x.q.device)
    at = (pairs // case.heads, pairs % case.heads)
    seen = None
    if x.mask is not None:
        seen = x.mask[at[0], 0]
    if case.causal:
        whole = torch.ones(case.queries, case.keys, dtype=torch.bool, device=x.q.device)
        seen = whole.tril()
    left = left_by(case, x.q.device)
    right = exact(
        *(t[at].double() for t in (x.q, x.k, x.v, x.grad)), seen,
        None if left is None else left[at].double(),
    )  # fmt: skip
    return {
        way: {
            name: errors(result[at], *right[name])
            for name, result in zip((*OUT, *GRADIENTS), some, strict=True)
        }
        for way, some in results.items()
    }


# --- times ----------------------------------------------------------------------------------------

Call = Callable[[], Any]


class Seen(TorchDispatchMode):
    """Notes whether an operator of xgemm is called."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self.ours = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        """Call, and look whose it is."""
        self.ours |= func.namespace == "xgemm"
        return func(*args, **(kwargs or {}))


def events(call: Call, *, wait: int = 0, calls: int = 1) -> float:
    """Milliseconds a call by events around it, behind a kernel of so many cycles."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    if wait:
        torch.cuda._sleep(wait)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def turns(calls: Mapping[str, Call]) -> dict[str, dict[str, float]]:
    """Median ms of a call, ways in turns: the GPU's alone, and from an idle GPU."""
    counts, waits = {}, {}
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        host = time.perf_counter() - began
        counts[name] = max(1, min(MOST_CALLS, round(SAMPLE_MS / events(call))))
        # The host is done with all calls before the GPU begins.
        waits[name] = int((2 * counts[name] * host + 1e-4) * CYCLES)
    samples: dict[str, dict[str, list[float]]] = {
        clock: {name: [] for name in calls} for clock in (DEVICE, CALL)
    }
    for _ in range(ROUNDS):
        for name, call in calls.items():
            busy = events(call, wait=waits[name], calls=counts[name])
            samples[DEVICE][name].append(busy)
        for name, call in calls.items():
            samples[CALL][name].append(events(call))
    return {
        clock: {name: median(some) for name, some in by_name.items()}
        for clock, by_name in samples.items()
    }


def ways() -> dict[str, Callable[..., Tensor]]:
    """Torch's function and ours."""
    return {
        TORCH: F.scaled_dot_product_attention,
        OURS: xgemm_torch.scaled_dot_product_attention,
    }


def measured(case: Case, device: str = "cuda", seed: int = SEED) -> dict[str, Any]:
    """What a record has of a case."""
    gc.collect()
    x = operands(case, device, seed)
    for t in (x.q, x.k, x.v):
        t.requires_grad_()
    forward: dict[str, Call] = {}
    backward: dict[str, Call] = {}
    results, peaks, by = {}, {}, {}
    for name, attend in ways().items():

        def made(attend: Callable[..., Tensor] = attend) -> Tensor:
            return attend(
                x.q, x.k, x.v, attn_mask=x.mask, dropout_p=case.dropout, is_causal=case.causal
            )

        torch.manual_seed(SEED)
        held = peak_bytes(device, begin=True)
        with Seen() as seen:
            out = made()
        by[name] = OURS if seen.ours else TORCH

        def gradients(out: Tensor = out) -> tuple[Tensor, ...]:
            return torch.autograd.grad(out, (x.q, x.k, x.v), x.grad, retain_graph=True)

        results[name] = (out.detach(), *gradients())
        peaks[name] = (peak_bytes(device) - held) / 2**20
        forward[name], backward[name] = made, gradients
    found = check(case, x, results)
    results.clear()
    entry = {**asdict(case), "by": by[OURS], "errors": found}
    for name, calls in zip(PASSES, (forward, backward), strict=True):
        ms = turns(calls)
        flop = PRODUCTS[name] * case.flop
        speeds = {way: flop / value / 1e9 for way, value in ms[DEVICE].items()}
        entry[name] = {**ms, "tflops": speeds}
    return {**entry, "peak_mib": peaks}


def peak_bytes(device: str, *, begin: bool = False) -> int:
    """The most memory that was taken since the beginning, or what is held now; 0 on a CPU."""
    if device == "cpu":
        return 0
    if begin:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return torch.cuda.max_memory_allocated()


# --- the record -----------------------------------------------------------------------------------


def table(record: Mapping[str, Any]) -> Fitted:
    """A row for each case; times are the GPU's alone, gains of one call have the host's part."""
    from xgemm_torch.tools.console import Column, Fitted

    facts = record["facts"]
    passes = [
        column
        for name in PASSES
        for column in (
            Column(f"torch's {name}", right=True, spare=2), Column(name, right=True),
            Column("gain", right=True), Column("TFLOP/s", right=True),
            Column(f"one {name} call's gain", right=True, spare=1),
        )
    ]  # fmt: skip
    made = Fitted(
        f"Attention on {facts['device']}, torch {facts['torch']}: ms, errors in u",
        [
            Column("case"), *passes, Column("out, u", right=True), Column("torch's", right=True),
            Column("gradients, u", right=True), Column("torch's", right=True),
        ],
    )  # fmt: skip
    entries = list(record["attention"].items())
    for number, (label, entry) in enumerate(entries):
        cells = [label if entry["by"] == OURS else f"{label} [bold red](torch's own)[/]"]
        for name in PASSES:
            ms, ratio = entry[name][DEVICE], attention_page.gain(entry, (name,))
            cells += [
                f"{ms[TORCH]:.3g}", f"{ms[OURS]:.3g}",
                f"[bold red]{ratio:.2f}[/]" if ratio < 1 else f"{ratio:.2f}",
                f"{entry[name]['tflops'][OURS]:.0f}",
                f"{attention_page.gain(entry, (name,), CALL):.2f}",
            ]  # fmt: skip
        for names in (OUT, GRADIENTS):
            cells += [f"{attention_page.error(entry, way, names):.2g}" for way in (OURS, TORCH)]
        last = number + 1 < len(entries) and entries[number + 1][1]["group"] != entry["group"]
        made.add_row(*cells, end_section=last)
    return made


def measure(options: Any, cases: Iterable[Case]) -> bool:
    """Measure what the record lacks; whether all is there now."""
    from tqdm import tqdm

    recording.require_yardstick("attention")
    record: dict[str, Any] = {
        "facts": provenance.facts(), "seed": options.seed, "attention": {},
    }  # fmt: skip
    if options.json.exists():
        found = records.read(options.json)
        if (found["seed"], found["facts"]["device"]) != (options.seed, record["facts"]["device"]):
            raise SystemExit(f"attention: {options.json} is of another seed or GPU")
        record = {**found, "finished": False}
    began, before = time.monotonic(), record.get("seconds", 0.0)
    lacking = [case for case in cases if case.label not in record["attention"]]
    done = True
    with timing.Clocks() as clocks:
        timing.heat(1.0)
        clocks.mark()
        for case in tqdm(lacking, unit="case", disable=None):
            if time.monotonic() - began > options.seconds:
                done = False
                break
            record["attention"][case.label] = measured(case, seed=options.seed)
            torch.cuda.empty_cache()
            records.write(options.json, record)
        record["clocks"] = clocks.summary()
    record |= {"seconds": before + time.monotonic() - began, "finished": done}
    records.write(options.json, record)
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or show."""
    parser = recording.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=math.inf, help="measure no longer than")
    parser.add_argument("--seed", type=int, default=SEED, help="of random shapes and of data")
    parser.add_argument("--count", type=int, default=COUNT, help="random shapes")
    parser.add_argument("--cases", nargs="+", metavar="PART", default=[""],
                        help="cases whose labels have one of these parts")  # fmt: skip
    options = parser.parse_args(arguments)
    every = (*MODELS, *random_cases(options.seed, options.count))
    cases = [case for case in every if any(part in case.label for part in options.cases)]
    if not cases:
        parser.error("no case has such a label")
    done = measure(options, cases) if options.json else True
    record = records.read(options.json or options.show)
    from xgemm_torch.tools.console import console

    out = console()
    out.print(table(record))
    for line in attention_page.summary(record):
        out.print(line, highlight=False, soft_wrap=True)
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())
