"""``python -m xgemm_torch explain M N K``: the candidates for a product, and the choice."""

from __future__ import annotations

import argparse
import json
from typing import Any

from . import _C, _checks


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the problem, contiguous as stored, and the GPU to choose for."""
    for name, what in (("m", "rows of the result"), ("n", "its columns"), ("k", "inner size")):
        parser.add_argument(name, metavar=name.upper(), type=int, help=what)
    parser.add_argument("--batch", type=int, default=1, help="products in the batch (default: 1)")
    parser.add_argument("--trans-a", action="store_true", help="A is stored (K, M)")
    parser.add_argument("--trans-b", action="store_true", help="B is stored (N, K)")
    parser.add_argument("--unaligned", action="store_true", help="operands not on 16 bytes")
    parser.add_argument(
        "--precision", choices=("fp32", "ieee"), default="fp32", help="promise (default: fp32)"
    )
    parser.add_argument("--sm", type=int, help="compute capability, as in 90 (default: this GPU)")
    parser.add_argument("--sm-count", type=int, help="multiprocessors (default: this GPU's)")
    parser.add_argument(
        "--workspace", metavar="BYTES", type=int, help="of it there is memory for (default: any)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def gpu_name(sm: int | None, sm_count: int | None) -> str:
    """Name the GPU at hand; empty where another is described, or there is none."""
    import torch

    here = sm is None and sm_count is None and torch.cuda.is_available()
    return torch.cuda.get_device_name(0) if here else ""


def target(sm: int | None, sm_count: int | None) -> tuple[int, int]:
    """Complete a GPU's description from the one at hand, or from an H200 where there is none."""
    if sm is not None and sm_count is not None:
        return sm, sm_count
    import torch

    if torch.cuda.is_available():
        here = torch.cuda.get_device_properties(0)
        return (
            sm if sm is not None else 10 * here.major + here.minor,
            sm_count if sm_count is not None else here.multi_processor_count,
        )
    return (90 if sm is None else sm), (132 if sm_count is None else sm_count)


def choose(
    m: int, n: int, k: int, *, batch: int = 1, trans_a: bool = False, trans_b: bool = False,
    aligned: bool = True, precision: str = "fp32", workspace: int | None = None, sm: int,
    sm_count: int, gpu: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Ask the selector about contiguous operands; ValueError for sizes that no operands have.

    ``gpu`` is the name of the GPU whose tuned problems count; those of any such GPU if it is empty.
    """
    _checks.product_sizes("explain", m, n, k, batch)
    if workspace is not None and workspace < 0:
        raise ValueError(f"explain: workspace must not be negative, got {workspace}")
    a_strides = (1, m) if trans_a else (k, 1)
    b_strides = (1, k) if trans_b else (n, 1)
    strict = precision == "ieee"
    return json.loads(
        _C.explain(
            m, n, k, batch, *a_strides, aligned, *b_strides, aligned, sm, sm_count, strict,
            -1 if workspace is None else workspace, m * k, k * n, gpu,
        )
    )  # fmt: skip


def _tile(tile: dict[str, Any]) -> str:
    return "{BM}x{BN}x{BK}, {TM}x{TN} a thread, {threads} threads".format(**tile)


def run(options: argparse.Namespace) -> int:
    """Print the table of candidates; returns 0."""
    sm, sm_count = target(options.sm, options.sm_count)
    answer = choose(
        options.m, options.n, options.k, batch=options.batch, trans_a=options.trans_a,
        trans_b=options.trans_b, aligned=not options.unaligned, precision=options.precision,
        workspace=options.workspace, sm=sm, sm_count=sm_count,
        gpu=gpu_name(options.sm, options.sm_count),
    )  # fmt: skip
    if options.json:
        print(json.dumps(answer, indent=2))
        return 0
    from rich.table import Table

    from .console import console

    layout = ("T" if options.trans_a else "N") + ("T" if options.trans_b else "N")
    table = Table(
        title=f"{options.m} x {options.n} x {options.k}, {layout}, batch {options.batch}, "
        f"{options.precision}, on sm_{sm} with {sm_count} multiprocessors",
        title_justify="left",
    )
    rows = answer["candidates"]
    headings = ["", "kernel", "legal", "tile", "waves", "predicted", "basis"]
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("waves", "predicted") else "left")
    at = (answer["kernel"], answer["row"])
    runs = next((row for row in rows if (row["kernel"], row["row"]) == at), None)
    for row in rows:
        chosen = row is runs
        legal = row["legal"]
        table.add_row(
            "→" if chosen else "", row["kernel"], "yes" if legal else "no", _tile(row["tile"]),
            f"{row['waves']:.2f}" if legal else "-",
            f"{row['predicted_us']:.1f} us" if legal and row["predicted_us"] else "-",
            row["why"] or row["basis"], style="bold" if chosen else "" if legal else "dim",
        )  # fmt: skip
    out = console()
    out.print(table)
    if runs is None:
        out.print("none: " + (answer["why"] or "no stage of this build can take this"))
    else:
        out.print("{kernel} {tile[BM]}x{tile[BN]}x{tile[BK]}: ".format(**runs) + answer["why"])
        out.print("{scheme}; {workspace} bytes of workspace".format(**runs))
    return 0
