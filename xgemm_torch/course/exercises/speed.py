"""How fast an exercise is to be on a GPU: its mark, a share of what torch.mm reaches beside it.

A mark is three quarters of the share that the exercise's own model solution had on a GPU, as
marks.json has it; ``benchmarks/exercises.py --show RECORD --marks`` writes that. Three quarters: a
learner's kernel of the same technique may order its loads in another way and run on another GPU,
and a technique is worth more than that, mostly: `coalesced` has seven tenths of the speed of
`smem_tiled`, and that half the speed of `block_tile_1d`.

A solution that nobody has measured has the mark of a stage with the same tile, halved: solutions
have one element or a small tile a thread, 64-bit indices, and a guard at each load.

Who is slower is told so, and has solved the exercise all the same.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from .. import marks

FILE = Path(__file__).with_name("marks.json")
MEASURED, UNMEASURED = 0.75, 0.5
SIZE = 4096


@dataclass(frozen=True)
class Speed:
    """What is timed of an exercise.

    Attributes:
        like: a stage of `marks.MARKS` whose blocks and threads do as much for a load as the model
            solution's; None where torch.mm is as bound by memory as the exercise is.
        product: M, N, K.
    """

    like: str | None
    product: tuple[int, int, int] = (SIZE, SIZE, SIZE)


# By the exercise's file. The others have no speed worth a mark: predictions, planted bugs, one
# launch of a few blocks (24), and what is no product of floats (31 to 34).
SPEEDS = {
    "01_naive_index": Speed("coalesced"),
    "02_coalesced": Speed("coalesced"),
    "06_smem_tile": Speed("smem_tiled"),
    "10_padding": Speed("vec4_64x64"),
    "11_swizzle": Speed("coalesced"),
    "12_block_tile_1d": Speed("block_tile_1d"),
    "14_block_tile_2d": Speed("block_tile_2d"),
    "15_vectors": Speed("vec4_64x64"),
    "19_warp_tile": Speed("vec4_64x64"),
    "20_double_buffer": Speed("smem_tiled"),
    "23_shuffle": Speed(None, (16384, 1, SIZE)),
    "26_cp_async_ring": Speed("smem_tiled"),
    "28_mbarriers": Speed("smem_tiled"),
}


@functools.cache
def measured() -> dict[str, float]:
    """The model solutions' shares of torch.mm, by exercise; empty where there is no record."""
    if not FILE.exists():
        return {}
    shares: dict[str, float] = json.loads(FILE.read_text(encoding="utf-8"))["shares"]
    return shares


def mark(stem: str) -> float | None:
    """The share of torch.mm's speed that an exercise is to reach; None: it is not timed."""
    if stem not in SPEEDS:
        return None
    if stem in measured():
        return MEASURED * measured()[stem]
    like = SPEEDS[stem].like
    return UNMEASURED * ((marks.share(like, SIZE) or 1.0) if like else 1.0)


def percent(share: float) -> str:
    """Give a share as it is shown: "6.2%", "31%"."""
    return f"{100 * share:.2g}%" if share < 0.1 else f"{share:.0%}"
