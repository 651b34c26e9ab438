"""What a stage asks of the memories for one product, in numbers that compare stages.

Counted by the emulator while the stage's own source runs, so it needs no GPU and is no time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import registry, simt
from ..tools import timing

if TYPE_CHECKING:
    from ..tools.console import Fitted

# Whole tiles of every stage, as deep as the longest pipeline is (4 slices of 32); three seconds or
# less to count.
SHAPE = (256, 256, 128)
LEGEND = (
    "For 1000 multiply-adds, as the source is written; gmem is global memory. A wavefront is one "
    "pass of a warp's access through the 32 banks of shared memory; a conflict is a wavefront "
    "more than the bytes need. A sector is 32 bytes that a warp's load touches in gmem, before "
    "caches; a request is such a load. Stores of C, once for each element, are left out. Of a "
    "stage that splits its operands, the split counts, too. What TMA moves and wgmma reads is no "
    "thread's request: stages that use them have no counts."
)
COLUMNS = (
    ("loads per multiply-add", "loads_per_fma", ".3f"),
    ("shared wavefronts", "shared_wavefronts", ".1f"),
    ("of them conflicts", "conflicts", ".1f"),
    ("worst conflict, ways", "ways", "d"),
    ("gmem sectors", "sectors", ".1f"),
    ("sectors per gmem request", "sectors_per_request", ".1f"),
    ("FLOP per gmem byte", "flop_per_byte", ".2f"),
)
# What a narrow table leaves out: the highest first.
SPARE = {"sectors_per_request": 3, "ways": 2, "loads_per_fma": 1}


def best_row(stage: registry.Stage) -> int:
    """Give the row of a stage's tile table that is fastest on large problems."""
    return max(range(len(stage.tiles)), key=lambda row: stage.tiles[row].rate)


def limbs_of(stage: registry.Stage, tile: registry.Tile) -> int:
    """Give the number of 16-bit limbs in which a stage multiplies an element; 0 for FP32 itself."""
    if stage.strict or not tile.buffers:
        return 0
    return tile.element_bytes // 2


def is_counted(stage: registry.Stage) -> bool:
    """Say whether threads ask for all that a stage moves: for sm_90 alone TMA and wgmma do, too."""
    return stage.min_sm < 90


@functools.cache
def of(stage: str, shape: tuple[int, int, int] = SHAPE, layout: str = "NN") -> dict[str, Any]:
    """Count one product of a stage, with the tile that is fastest on large ones.

    Args:
        stage: its name.
        shape: M, N, K.
        layout: a key of `timing.LAYOUTS`.

    Returns:
        ``shape``, ``layout`` and, per 1000 multiply-adds: ``shared_wavefronts`` (loads and stores),
        ``shared_ideal`` and ``conflicts``, which add up to them, ``sectors`` (loads from gmem).
        ``loads_per_fma``: 4-byte words that threads load, from shared memory and gmem, for one
        multiply-add. ``ways``: of the worst bank conflict. ``sectors_per_request``,
        ``flop_per_byte``: of gmem loads; 0 where TMA does it all. ``fma_per_transaction``:
        multiply-adds for one wavefront or sector. ``counted``: as `is_counted`; where it is not,
        all of these are of the requests that threads make beside. ``lines``: for each line of the
        source with a shared access of one kind, ``place``, ``kind``, ``requests``, ``wavefronts``,
        ``ideal``, ``ways``.
    """
    trans_a, trans_b = timing.LAYOUTS[layout]
    (known,) = (each for each in registry.stages() if each.name == stage)
    with simt.configure(row=best_row(known)):
        traffic = simt.traffic(stage, *shape, trans_a=trans_a, trans_b=trans_b)
    total = traffic.total
    thousand = traffic.fmas / 1000
    shared = total.shared_load + total.shared_store
    sectors = total.global_load.sectors
    words = (total.shared_load.bytes + total.global_load.bytes) / 4
    lines = [
        {
            "place": place, "kind": kind, "requests": each.requests,
            "wavefronts": each.wavefronts, "ideal": each.ideal, "ways": each.ways,
        }
        for place, at in traffic.lines.items()
        for kind, each in (("load", at.shared_load), ("store", at.shared_store))
        if each.requests
    ]  # fmt: skip
    return {
        "shape": list(shape),
        "layout": layout,
        "counted": is_counted(known),
        "loads_per_fma": words / traffic.fmas,
        "shared_wavefronts": shared.wavefronts / thousand,
        "shared_ideal": shared.ideal / thousand,
        "conflicts": shared.conflicts / thousand,
        "ways": shared.ways,
        "sectors": sectors / thousand,
        "sectors_per_request": total.global_load.sectors_per_request,
        "flop_per_byte": 2 * traffic.fmas / (32 * sectors) if sectors else 0.0,
        "fma_per_transaction": traffic.fmas / (shared.wavefronts + sectors),
        "lines": lines,
    }


def cells(told: dict[str, Any]) -> list[str]:
    """Give the numbers of `COLUMNS` as text; a dash for each of what is not counted."""
    return [format(told[key], form) if told["counted"] else "-" for _, key, form in COLUMNS]


def table(rows: Iterable[dict[str, Any]]) -> Fitted:
    """Make a table of the stages' ``counts``, which are all of one problem."""
    from ..tools.console import Column, Fitted

    rows = [row for row in rows if row["counts"]]
    title = ""
    if rows:
        m, n, k = rows[0]["counts"]["shape"]
        title = f"What a product of {m} x {n} x {k}, {rows[0]['counts']['layout']}, asks for"
    made = Fitted(
        title,
        [
            Column("#", right=True),
            Column("stage"),
            *(Column(heading, right=True, spare=SPARE.get(key, 0)) for heading, key, _ in COLUMNS),
        ],
    )
    for row in rows:
        made.add_row(str(row["rung"] or ""), row["name"], *cells(row["counts"]))
    return made
