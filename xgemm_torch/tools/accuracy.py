"""``python -m xgemm_torch accuracy``: what precision="fp32" guarantees, on this machine.

The error of an element is e = (C - exact) / (|A| |B|), in units of u = 2^-24; exact is a product in
float64, whose range and precision hold any product of FP32 numbers, subnormal and FLT_MAX too. The
measure is the strict chain of fused multiply-adds on the same operands. What is guaranteed, of any
operands:

- the root mean square of e is at most the chain's, or 1.6 u where that is less;
- the largest |e| is at most 1.5 times the chain's, or 8 u;
- |mean of e| is at most the chain's, or 4 u;
- what is not finite is just what is not finite in the chain.

The floors are for results of few products, of which a chain rounds none or hardly any.

These are statements about many elements. How well a sample of M x N of them shows a root mean
square is about 1 / sqrt(2 M N): 0.14% for 512 x 512, 1% for 64 x 64, and a few times that for
distributions with long tails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import ops, simt
from ..explain import explain
from ..recomputed import count_recomputed
from ..registry import stages
from . import arguments, environment, info, plotting, timing

if TYPE_CHECKING:
    from .console import Fitted

U = 2.0**-24
FLT_MAX = torch.finfo(torch.float32).max
# The emulator computes tensor cores bit by bit: there the samples are few, and K is short.
SIZE, HOST_SIZE = 512, 48
DEPTHS = (1, 16, 33, 64, 128, 512, 2048, 8192, 65536)
HOST_DEPTHS = (1, 16, 33, 64, 128, 300)
# Of the chain's own; and what is always allowed, in u.
LARGEST_LIMIT = 1.5
RMS_FLOOR, LARGEST_FLOOR, MEAN_FLOOR = 1.6, 8.0, 4.0


class Draw:
    """Random FP32 numbers of one device and seed."""

    def __init__(self, device: str, seed: int) -> None:
        """Begin the sequence that belongs to ``seed``."""
        self.how = {
            "device": device,
            "generator": torch.Generator(device).manual_seed(seed),
        }

    def normal(self, *shape: int) -> Tensor:
        """Standard normal."""
        return torch.randn(shape, **self.how)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform in [low, high)."""
        return low + (high - low) * torch.rand(shape, **self.how)

    def powers(self, reach: int, *shape: int) -> Tensor:
        """2^n for whole n in [-reach, reach]; float64, since some are beyond FP32."""
        n = torch.randint(-reach, reach + 1, shape, **self.how)
        return torch.ldexp(torch.ones_like(n, dtype=torch.float64), n)

    def outliers(self, rows: int, k: int) -> Tensor:
        """Normal, but one element of a row is 2^8 to 2^24 times as large."""
        x = self.normal(rows, k)
        at = torch.randint(k, (rows, 1), **self.how)
        return x.scatter(1, at, x.gather(1, at) * torch.exp2(self.uniform(8, 24, rows, 1)))


def _normal(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    return draw.normal(m, k), draw.normal(k, n)


def _uniform(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    return draw.uniform(0, 1, m, k), draw.uniform(0, 1, k, n)


def _relu(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    return draw.normal(m, k).relu(), draw.normal(k, n).relu()


def _wide(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    a, b = (
        draw.normal(*s).sign() * torch.exp2(draw.uniform(-20, 20, *s)) for s in ((m, k), (k, n))
    )
    return a, b


def _outlier(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    return draw.outliers(m, k), draw.outliers(n, k).T.contiguous()


def _scaled(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    a, b = _normal(draw, m, n, k)
    return (a * draw.powers(40, m, 1)).float(), (b * draw.powers(40, 1, n)).float()


def _graded(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    a, b = _normal(draw, m, n, k)
    scale = draw.powers(20, k)
    return (a * scale).float(), (b / scale[:, None]).float()


def _subnormal(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    a, b = _normal(draw, m, n, k)
    return (a.double() * 2.0**-132).float(), b * 2.0**40


def _underflow(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    a, b = _normal(draw, m, n, k)
    return a * 2.0**-66, b * 2.0**-66


def _largest(draw: Draw, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    a = draw.uniform(-0.999, 0.999, m, k) * FLT_MAX
    a[::3, 0] = FLT_MAX
    return a, draw.normal(k, n) * 2.0**-20


@dataclass(frozen=True)
class Distribution:
    """Operands of one kind.

    Attributes:
        what: their description, in a few words.
        make: gives operands of an m x n x k product.
    """

    what: str
    make: Callable[[Draw, int, int, int], tuple[Tensor, Tensor]]


DISTRIBUTIONS = {
    "normal": Distribution("standard normal", _normal),
    "uniform": Distribution("uniform in [0, 1)", _uniform),
    "relu": Distribution("normal, the negative half zero", _relu),
    "wide": Distribution("log-uniform over 2^-20 to 2^20, both signs", _wide),
    "outlier": Distribution("normal, one element a row 2^8 to 2^24 times larger", _outlier),
    "scaled": Distribution("normal, rows and columns scaled over 2^-40 to 2^40", _scaled),
    "graded": Distribution("A's columns scaled over 2^-20 to 2^20, B's rows back", _graded),
    "subnormal": Distribution("A is subnormal, results are not", _subnormal),
    "underflow": Distribution("all products are subnormal", _underflow),
    "largest": Distribution("A reaches FLT_MAX, results do not", _largest),
}


@dataclass(frozen=True)
class Errors:
    """What the errors of a product's elements come to, in units of 2^-24 |A| |B|.

    Attributes:
        rms: root mean square.
        largest: the largest magnitude.
        mean: signed.
        misplaced: elements that are infinite, NaN, or not zero, where the exact ones are finite,
            or a sum of zeros. They are in none of the three above.
    """

    rms: float
    largest: float
    mean: float
    misplaced: int


class Exact:
    """A product in float64 and the sum of its terms' magnitudes."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        """Multiply ``a`` and ``b``, matrices or batches of them."""
        self.product = a.double() @ b.double()
        self.size = a.double().abs() @ b.double().abs()

    def errors(self, result: Tensor) -> Errors:
        """Compare a result with it."""
        zero = self.size == 0
        misplaced = ~result.isfinite() | (zero & (result != 0))
        e = ((result.double() - self.product) / self.size / U)[~zero & ~misplaced]
        if not e.numel():
            return Errors(0.0, 0.0, 0.0, int(misplaced.sum()))
        return Errors(
            float(e.square().mean().sqrt()), float(e.abs().max()), float(e.mean()),
            int(misplaced.sum()),
        )  # fmt: skip


def errors(result: Tensor, a: Tensor, b: Tensor) -> Errors:
    """Compare ``result`` with the product of ``a`` and ``b`` in float64."""
    return Exact(a, b).errors(result)


def tf32(x: Tensor) -> Tensor:
    """Round to TF32: 10 bits of fraction, to nearest, ties to even."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def broken(found: Errors, chain: Errors, slack: float = 1.0) -> dict[str, str]:
    """Say which terms of the contract ``found`` breaks, and by how much.

    Args:
        found: a result's errors.
        chain: those of the strict chain on the same operands.
        slack: factor on the limits, for samples so small that chance shows.
    """
    terms = {}
    for name, value, limit in (
        ("rms", found.rms, max(chain.rms, RMS_FLOOR)),
        ("largest", found.largest, max(LARGEST_LIMIT * chain.largest, LARGEST_FLOOR)),
        ("mean", abs(found.mean), max(abs(chain.mean), MEAN_FLOOR)),
    ):
        if not value <= slack * limit:
            terms[name] = f"{value:.3g} > {slack * limit:.3g}"
    if found.misplaced != chain.misplaced:
        terms["misplaced"] = f"{found.misplaced} elements, the chain's are {chain.misplaced}"
    return terms


Product = Callable[[Tensor, Tensor], Tensor]
CHAIN, TF32, TORCH = "chain", "TF32", "torch.mm"


def under_contract(device: str) -> dict[str, Product]:
    """Give what must keep the contract on ``device``: sgemm, and each stage that is not strict."""
    able = [stage for stage in stages() if not stage.strict]
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        able = [stage for stage in able if info.runs_on(asdict(stage), 10 * major + minor)]
    kernels = {"sgemm": "auto"} | {stage.name: stage.name for stage in able}
    return {
        name: lambda a, b, kernel=kernel: ops.sgemm(a, b, kernel=kernel)
        for name, kernel in kernels.items()
    }


def chain(a: Tensor, b: Tensor) -> Tensor:
    """Give the strict product with one chain for each element, whatever the sizes.

    Args:
        a: of shape (M, K), float32, on a CPU or a GPU.
        b: of shape (K, N), like it.

    Returns:
        Their product, of shape (M, N).
    """
    with simt.configure(split_k_size=0):
        return ops.sgemm(a, b, precision="ieee")


def stored(x: Tensor, transposed: bool) -> Tensor:
    """The same matrix, its columns contiguous if it is stored transposed."""
    return x.T.contiguous().T if transposed else x


def measure(
    name: str,
    k: int,
    *,
    size: int,
    layout: str = "NN",
    device: str = "cpu",
    seed: int = 0,
    methods: Sequence[str] = (),
) -> dict[str, Any]:
    """Give the errors of all contenders on one distribution and depth.

    TF32 is what rounding the operands costs, its products being added by the strict chain: no
    setting of torch is touched. ``methods``: those that are measured beside the chain; all where
    there are none.

    Returns:
        ``distribution``, ``k``; ``errors``: for each contender the fields of `Errors`; ``broken``:
        for each contender that must keep the contract and does not, the terms it breaks;
        ``recomputed``: for each stage among them that certifies its results, how many of its units
        were made anew; ``units``: of how many.
    """
    kind = DISTRIBUTIONS[name]
    draw = Draw(device, seed + 100 * list(DISTRIBUTIONS).index(name))
    a, b = map(stored, kind.make(draw, size, size, k), timing.LAYOUTS[layout])
    exact, must = Exact(a, b), under_contract(device)
    others = {CHAIN: chain, TORCH: torch.mm, TF32: lambda a, b: chain(tf32(a), tf32(b))}
    if methods:
        must = {label: call for label, call in must.items() if label in methods}
        others = {label: call for label, call in others.items() if label in (CHAIN, *methods)}
    certify = {stage.name for stage in stages() if stage.unit_rows}
    found, recomputed = {}, {}
    for label, call in {**others, **must}.items():
        with count_recomputed(device) if label in certify else nullcontext() as count:
            found[label] = exact.errors(call(a, b))
        if count is not None:
            recomputed[label] = count.units
    failures = {label: terms for label in must if (terms := broken(found[label], found[CHAIN]))}
    return {
        "distribution": name,
        "k": k,
        "errors": {label: asdict(each) for label, each in found.items()},
        "broken": failures,
        "recomputed": recomputed,
        "units": {label: explain(a, b, kernel=label).units for label in recomputed},
    }


def collect(
    size: int | None = None, depths: Sequence[int] | None = None, layout: str = "NN", *,
    names: Sequence[str] = (), methods: Sequence[str] = (), quiet: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Measure distributions, each at every depth, on the GPU if there is one.

    Args:
        size: M = N; 512 on a GPU, 48 without.
        depths: values of K; up to 65536 on a GPU, up to 300 without.
        layout: a key of `timing.LAYOUTS`.
        names: of the distributions; all where there are none.
        methods: as `measure` has it.
        quiet: whether to show no progress.
    """
    from tqdm import tqdm

    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    size = size or (SIZE if gpu else HOST_SIZE)
    depths = list(depths or (DEPTHS if gpu else HOST_DEPTHS))
    problems = [(name, k) for name in names or DISTRIBUTIONS for k in depths]
    rows = []
    for name, k in tqdm(problems, unit="problem", leave=False, disable=True if quiet else None,
                        file=sys.stderr):  # fmt: skip
        rows.append(measure(name, k, size=size, layout=layout, device=device, methods=methods))
    return {
        "device": environment.device_name(device),
        "gpu": gpu,
        "size": size,
        "depths": depths,
        "layout": layout,
        # Where the user made torch.mm coarser, its column says so, too.
        "warning": environment.strict_reference() if gpu else None,
        "kept": not any(row["broken"] for row in rows),
        "rows": rows,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the errors into FILE")
    parser.add_argument("--size", type=int,
                        help=f"M = N; {SIZE} on a GPU, else {HOST_SIZE}")  # fmt: skip
    arguments.add_layout(parser)
    depths, host_depths = (" ".join(map(str, each)) for each in (DEPTHS, HOST_DEPTHS))
    parser.add_argument("--k", type=int, nargs="+", metavar="K",
                        help=f"depths of the products; {depths} on a GPU, "
                        f"else {host_depths}")  # fmt: skip


def _cells(each: dict[str, Any], broken: dict[str, str]) -> list[str]:
    """A row of figures; those of terms that are broken in red."""
    told = {
        "rms": f"{each['rms']:.3g}",
        "largest": f"{each['largest']:.3g}",
        "mean": f"{each['mean']:+.2g}",
        "misplaced": str(each["misplaced"] or ""),
    }
    return [f"[bold red]{text}[/]" if term in broken else text for term, text in told.items()]


def any_anew(facts: dict[str, Any]) -> bool:
    """Whether a unit of some product was made anew."""
    return any(any(row["recomputed"].values()) for row in facts["rows"])


def table(facts: dict[str, Any]) -> Fitted:
    """Make a table of what `collect` gives: a row for each method, by operands and depth.

    It has a column of units that were made anew where there are any.
    """
    from .console import Column, Fitted

    size, anew = facts["size"], any_anew(facts)
    made = Fitted(
        f"Errors of {size} x {size} elements, {facts['layout']}, in u = 2^-24 of |A| |B|; "
        f"on {facts['device']}",
        [
            Column("operands"),
            Column("K", right=True),
            Column("method"),
            Column("root mean square", right=True),
            Column("largest", right=True),
            Column("mean", right=True),
            Column("misplaced", right=True),
            *([Column("made anew", right=True)] if anew else []),
        ],
    )
    for row in facts["rows"]:
        for number, (name, each) in enumerate(row["errors"].items()):
            first, last = number == 0, number == len(row["errors"]) - 1
            made.add_row(
                row["distribution"] if first else "", str(row["k"]) if first else "", name,
                *_cells(each, row["broken"].get(name, {})),
                *([str(row["recomputed"].get(name) or "")] if anew else []), end_section=last,
            )  # fmt: skip
    return made


def run(options: argparse.Namespace) -> int:
    """Print the errors; returns 1 when the contract is broken somewhere, else 0."""
    for name, values in (("size", [options.size]), ("k", options.k or [])):
        for value in values:
            if value is not None and value < 1:
                raise ValueError(f"accuracy: {name} must be at least 1, got {value}")
    if options.png:
        plotting.require(options.png)
    facts = collect(options.size, options.k, options.layout, quiet=options.json)
    if options.png:
        plotting.accuracy(facts, options.png)
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0 if facts["kept"] else 1
    from .console import console

    out = console()
    out.print(table(facts))
    for name, kind in DISTRIBUTIONS.items():
        out.print(f"{name}: {kind.what}", style="dim")
    if any(each["misplaced"] for row in facts["rows"] for each in row["errors"].values()):
        out.print("misplaced: elements that are infinite, NaN, or not zero where all terms are; "
                  "they are in none of the other figures", style="dim")  # fmt: skip
    if any_anew(facts):
        counts = sorted({n for row in facts["rows"] for n in row["units"].values()})
        out.print(f"made anew: units, of {' or '.join(map(str, counts))} in a result, that limbs "
                  "could not give for certain", style="dim", highlight=False)  # fmt: skip
    for row in facts["rows"]:
        for contender, terms in row["broken"].items():
            for term, text in terms.items():
                out.print(f"[red]{contender}, {row['distribution']}, K = {row['k']}[/]: "
                          f"{term} {text}")  # fmt: skip
    out.print(
        "The contract is kept." if facts["kept"]
        else "[bold red]The contract is broken.[/]"
    )  # fmt: skip
    if not facts["gpu"]:
        out.print(
            "No GPU here: the stages ran their own source through the emulator, with the "
            "tensor cores' rounding; sgemm is ATen's BLAS on a CPU."
        )
    if facts["warning"]:
        out.print(f"[yellow]{facts['warning']}[/]")
    if options.png:
        out.print(f"picture: {options.png}")
    return 0 if facts["kept"] else 1
