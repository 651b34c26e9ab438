"""How much of a model's products convert and patch reach, and how far its results are from exact.

    python benchmarks/reach.py --json reach.json                 # all of architectures.py
    python benchmarks/reach.py --models Llama FNO                # some, by their names
    python benchmarks/reach.py --show reach.json                 # anywhere
    python benchmarks/reach.py --packages                        # what pip has to install

Of each model, one forward and one backward pass: the FLOP that its operators have by torch's
formulas, convolutions and attention included, and the share of them that xgemm made after
``convert``, and inside ``patch(min_flops=0)``; errors of outputs and of parameters' gradients
beside the same pass in float64, of torch's own and of both ways. On a CPU "auto" is ATen's BLAS, so
that the products there are asked for with precision="ieee", which is not.

An error is max |x - exact| / max |exact|, of the tensor that has the largest; a tensor whose exact
values are all below 1/1000 of the largest's is left out.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.metadata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import provenance
import reach_page
import records
import torch
from architectures import ARCHITECTURES, Architecture
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import xgemm_torch
from xgemm_torch.tools import environment

NOT_INSTALLED = "not installed"
SMALLEST = 1e-3
Results = tuple[list[Tensor], list[Tensor]]


def version(package: str) -> str | None:
    """Give a package's version, None where it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def on(inputs: Any, device: str, dtype: torch.dtype) -> Any:
    """Give inputs on a device, those of real numbers in a dtype."""

    def moved(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        return t.to(device, dtype) if t.is_floating_point() else t.to(device)

    return tree_map(moved, inputs)


def leaves(output: Any) -> list[Tensor]:
    """Give the tensors of an output that depend on parameters."""
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    elif hasattr(output, "sample"):
        output = output.sample
    return [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]


def filled(model: nn.Module) -> nn.Module:
    """Matrices that begin as zeros, behind which gradients would be zeros, are drawn anew."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1 and p.is_floating_point() and not p.any():
                p.normal_(std=0.02)
    return model


def in_float64(model: nn.Module) -> nn.Module:
    """Give a copy in float64, complex parameters too; experts' products one by one."""
    kinds = {torch.complex64: torch.complex128, torch.float32: torch.float64}
    wide = copy.deepcopy(model)._apply(lambda t: t.to(kinds.get(t.dtype, t.dtype)))
    if hasattr(wide, "set_experts_implementation"):  # torch's grouped product has no float64
        wide.set_experts_implementation("eager")
    return wide


def step(model: nn.Module, inputs: Any) -> Results:
    """One forward and one backward pass: outputs, and gradients of parameters."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    output = leaves(model(**inputs) if isinstance(inputs, dict) else model(*inputs))
    if not output:
        raise RuntimeError("no output depends on a parameter")
    # Random weights, drawn in float32, so that float64 has the same.
    generator = torch.Generator().manual_seed(2)
    loss = sum((t * torch.randn(t.shape, generator=generator).to(t)).sum() for t in output)
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [t.detach() for t in output], grads


def error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Give the error, as the file's docstring says; NaN where something is not finite."""
    if [t.shape for t in found] != [t.shape for t in exact]:
        raise RuntimeError("not the tensors of float64's pass")
    largest = [float(t.abs().max()) if t.numel() else 0.0 for t in exact]
    return max(
        float((x.to(y.dtype) - y).abs().max()) / size
        for x, y, size in zip(found, exact, largest, strict=True)
        if size > SMALLEST * max(largest)
    )


def first_line(problem: Exception) -> str:
    """Say what was raised, in a cell of a table."""
    line = str(problem).strip().partition("\n")[0].replace("|", "/")
    return f"{type(problem).__name__}: {line}"[:160]


def shares(p: xgemm_torch.Patch) -> dict[str, Any]:
    """What a patch has counted: FLOP, xgemm's share, calls of unknown FLOP, and what torch did."""
    left: dict[str, int] = {}
    for row in p:
        if not row.taken:
            left[row.product] = left.get(row.product, 0) + row.flops
    most = sorted((flops, name) for name, flops in left.items() if flops)[-3:]
    return {
        "flops": sum(row.flops for row in p),
        "share": p.share,
        "unknown": sum(r.calls for r in p if not r.taken and not r.flops and r.reason != "empty"),
        "left": {name: flops for flops, name in reversed(most)},
    }


def named(place: str) -> type[nn.Module]:
    """Give the class of a dotted name."""
    home, _, name = place.rpartition(".")
    found: type[nn.Module] = getattr(importlib.import_module(home), name)
    return found


def classes(place: str) -> tuple[type[nn.Module], ...]:
    """Give what convert is told of: convolutions, and the class of a dotted name, if any."""
    convolutions = nn.Conv1d, nn.Conv2d, nn.Conv3d
    return (*convolutions, named(place)) if place else convolutions


def measure(a: Architecture, device: str, precision: Any) -> dict[str, Any]:
    """Run one architecture in every way; an error of one is what the record has of it."""
    entry: dict[str, Any] = {"package": a.package, "version": version(a.package)}
    if a.types:
        entry["types"] = a.types.rpartition(".")[2]
    if entry["version"] is None:
        return {**entry, "status": NOT_INSTALLED}
    try:
        torch.manual_seed(0)
        model, inputs = a.make()
        model = filled(model.to(device).float().eval())
        inputs = on(inputs, device, torch.float32)
        stock = step(model, inputs)
    except Exception as problem:
        return {**entry, "status": f"stock: {first_line(problem)}"}
    exact = None
    try:
        exact = step(in_float64(model), on(inputs, device, torch.float64))
        entry["errors"] = {"stock": [error(x, y) for x, y in zip(stock, exact, strict=True)]}
    except Exception as problem:
        entry["float64"] = first_line(problem)
    failed = []
    for way in ("patch", "convert"):  # convert changes the model
        least = 0.0 if way == "patch" else float("inf")
        try:
            if way == "convert":
                report = xgemm_torch.convert(model, precision=precision, types=classes(a.types))
                entry["modules"] = [len(report.swapped), len(report.skipped)]
            with xgemm_torch.patch(min_flops=least, precision=precision) as p:
                found = step(model, inputs)
            entry[way] = shares(p)
            if exact is not None:
                entry["errors"][way] = [error(x, y) for x, y in zip(found, exact, strict=True)]
        except Exception as problem:
            failed.append(f"{way}: {first_line(problem)}")
    return {**entry, "status": "; ".join(failed) or "ok"}


def show(record: dict[str, Any]) -> None:
    """Print the table."""
    lines = [reach_page.HEAD, *reach_page.rows(record)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(reach_page.HEAD))]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())
    facts = record["facts"]
    print(f"{facts['device']}, torch {facts['torch']}, precision={record['precision']}")


def main() -> None:
    """Measure, or show a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--show", type=Path, help="print a record, measure nothing")
    parser.add_argument(
        "--models", nargs="*", default=[], help="those whose names have these words"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=("fp32", "ieee"), help="ieee on a CPU, else fp32")
    parser.add_argument("--packages", action="store_true", help="print what pip has to install")
    options = parser.parse_args()
    if options.packages:
        print(*sorted({a.package for a in ARCHITECTURES} - {"torch"}))
        return
    if options.show:
        show(records.read(options.show))
        return
    precision = options.precision or ("ieee" if options.device == "cpu" else "fp32")
    facts = provenance.facts()
    if options.device == "cpu":
        facts["device"] = environment.device_name("cpu")
    record: dict[str, Any] = {"facts": facts, "precision": precision, "models": {}}
    for a in ARCHITECTURES:
        if options.models and not any(word in a.name for word in options.models):
            continue
        print(a.package, a.name, flush=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record["models"][a.name] = measure(a, options.device, precision)
        print("   ", record["models"][a.name]["status"], flush=True)
        if options.json:
            records.write(options.json, record)
    show(record)


if __name__ == "__main__":
    main()
