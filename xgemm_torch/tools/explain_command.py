"""``python -m xgemm_torch explain M N K``: the candidates for a product, and the choice."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _C, _checks
from ..explain import BASES, Candidate, candidates_of, memory, read
from ..registry import tile_name
from . import arguments, timing

if TYPE_CHECKING:
    from .console import Fitted

BEST = 5  # candidates that are shown without --all


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the problem, contiguous as stored, and the GPU to choose for."""
    for name, what in (("m", "rows of the result"), ("n", "its columns"), ("k", "inner size")):
        parser.add_argument(name, metavar=name.upper(), type=int, help=what)
    parser.add_argument("--batch", type=int, default=1, help="products in the batch (default: 1)")
    arguments.add_layout(parser)
    parser.add_argument("--unaligned", action="store_true", help="operands not on 16 bytes")
    parser.add_argument(
        "--precision", choices=("fp32", "ieee"), default="fp32", help="contract (default: fp32)"
    )
    parser.add_argument("--sm", type=int, help="compute capability, as in 90 (default: this GPU)")
    parser.add_argument("--sm-count", type=int, help="multiprocessors (default: this GPU's)")
    parser.add_argument(
        "--workspace", metavar="BYTES", type=int, help="of it there is memory for (default: any)"
    )
    parser.add_argument("--all", action="store_true", help=f"show all rows, not the best {BEST}")
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
    return read(
        _C.explain(
            m, n, k, batch, *a_strides, aligned, *b_strides, aligned, sm, sm_count, strict,
            -1 if workspace is None else workspace, m * k, k * n, gpu,
        )
    )  # fmt: skip


def words_for(sm: int | None, sm_count: int | None) -> str:
    """Say which GPU `target` and `gpu_name` mean, and that an H200 is assumed where it is."""
    here = gpu_name(sm, sm_count)
    arch, count = target(sm, sm_count)
    what = f"sm_{arch}, {count} multiprocessors"
    if here:
        return f"{here} ({what})"
    if sm is None and sm_count is None:
        return f"an H200, assumed ({what}; there is no CUDA device)"
    return f"a GPU as asked for ({what})"


def candidates_table(rows: Sequence[Candidate], chosen: Candidate | None) -> Fitted:
    """Make a table of candidates in this order; `key` says what its last column means."""
    from .console import Column, Fitted

    reasons = _reasons(rows)
    table = Fitted(
        "",
        [
            Column("auto"),
            Column("stage"),
            Column("block tile"),
            Column("a thread", spare=3),
            Column("threads", spare=2),
            Column("waves", right=True, spare=1),
            Column("time, us", right=True),
            Column("basis"),
        ],
    )
    for row in rows:
        tile = row.tile
        table.add_row(
            "takes" if row is chosen else "may" if row.legal else "no",
            row.kernel,
            # What tells two tiles apart stands below.
            "\n".join(tile_name(row.kernel, row.row).split(" ", 1)),
            f"{tile.TM}x{tile.TN}",
            tile.team,
            f"{row.waves:.2f}" if row.able else "-",
            "-" if row.known_us is None else f"{row.known_us:.1f}",
            BASES[row.basis][0] if row.legal else f"({reasons.index(row.why) + 1})",
            style="bold" if row is chosen else None if row.legal else "dim",
        )
    return table


def _reasons(rows: Sequence[Candidate]) -> list[str]:
    """Why auto does not take some of these rows, each reason once."""
    return list(dict.fromkeys(row.why for row in rows if not row.legal))


def key(rows: Sequence[Candidate]) -> list[str]:
    """Say what the words in the table of these rows mean, each in a line."""
    lines = [
        f"{word}: {meaning}"
        for basis, (word, meaning) in BASES.items()
        if any(row.legal and row.basis == basis for row in rows)
    ]
    if any(not row.legal and row.able for row in rows):
        lines.append("no, but with waves: runs if the stage is called by its name")
    return [*lines, *(f"({i}) {_readable(why)}" for i, why in enumerate(_reasons(rows), 1))]


def _readable(reason: str) -> str:
    """A reason with its large numbers of bytes as KiB, MiB or GiB."""
    numbers = r"(\d+) bytes|(?<=memory for )(\d+)"
    return re.sub(numbers, lambda found: memory(int(found[1] or found[2])), reason)


def run(options: argparse.Namespace) -> int:
    """Print the choice, and the candidates that come next to it, or all; returns 0."""
    sm, sm_count = target(options.sm, options.sm_count)
    trans_a, trans_b = timing.LAYOUTS[options.layout]
    answer = choose(
        options.m, options.n, options.k, batch=options.batch, trans_a=trans_a,
        trans_b=trans_b, aligned=not options.unaligned, precision=options.precision,
        workspace=options.workspace, sm=sm, sm_count=sm_count,
        gpu=gpu_name(options.sm, options.sm_count),
    )  # fmt: skip
    if options.json:
        print(json.dumps(answer, indent=2))
        return 0
    from .console import console

    out = console()
    sizes = f"{options.m} x {options.n} x {options.k} (M x N x K), {options.layout}"
    out.print(
        f"{sizes}, batch {options.batch}, precision {options.precision}, "
        f"on {words_for(options.sm, options.sm_count)}",
        highlight=False,
    )
    rows = candidates_of(answer)
    at = (answer["kernel"], answer["row"])
    chosen = next((row for row in rows if (row.kernel, row.row) == at), None)
    if chosen is None:
        out.print("none: " + (answer["why"] or "no stage of this build can take this"))
    else:
        out.print(f"[bold]{chosen.name}[/]: {answer['why']}", highlight=False)
        out.print(f"{chosen.scheme}; {memory(chosen.workspace)} of workspace", highlight=False)
    known = sorted((row for row in rows if row.known_us is not None), key=lambda row: row.known_us)
    shown = rows if options.all or chosen is None else known[:BEST]
    if shown:
        out.print()
        out.print(candidates_table(shown, chosen))
        for line in key(shown):
            out.print(line, style="dim", highlight=False)
    if len(shown) < len(rows):
        out.print(f"These are the best {len(shown)} of {len(rows)} rows; --all shows the others.",
                  highlight=False)  # fmt: skip
    return 0
