"""A stage's arithmetic by hand: formulas of its tile, with its own numbers, beside what is counted.

A formula is text. Its numbers are put into that text, and it is evaluated, so that what a page
shows and what a test compares with the emulator's counts are one thing. What a tile table does not
say, in which rows and columns the lanes of a warp stand, comes from a trace of the stage.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import counts

if TYPE_CHECKING:
    from ..registry import Tile
    from .anatomy import Anatomy

WARP, SECTOR, BANKS = 32, 8, 32  # a sector in words
# A multiprocessor in a cycle: multiply-adds, and bytes of L1 and shared memory, one array of both.
FMA_A_CYCLE, BYTES_A_CYCLE = 128, 128
# Stages without slices that go along K once for each row of a thread's results, and load their
# elements of B each time.
ROW_BY_ROW = ("thread_tile_dot",)
# Stages whose lanes go down a column of an operand's slice, all in one bank: when they read it, and
# when they store it.
DOWN_A_COLUMN = {
    "smem_conflicted": ("read", "store"),
    "smem_conflicted_1d": ("read", "store"),
    "smem_transposed": ("store",),
}
# Stages that read the fragments of the next k before they know that there is none.
ONE_K_MORE = ("cp_async_pipelined", "tma_specialized")


@dataclass(frozen=True)
class Line:
    """One quantity of a stage.

    Attributes:
        key: of `counts.of`, what it is compared with; "" where threads do not ask for it.
        name: what it is.
        formula: of the names in `Hand.names`.
        numbers: the formula with its numbers.
        value: what it comes to.
        note: what must be known to follow it, a sentence; mostly empty.
    """

    key: str
    name: str
    formula: str
    numbers: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class Lanes:
    """Where the lanes of the first warp stand at a time.

    Attributes:
        rows, columns: of D, in how many different ones.
        a, b: sectors of a request for one element of A, and of B, a lane.
        vector_a, vector_b: wavefronts of a read of 16 bytes a lane from K-major slices of A, of B.
    """

    rows: int
    columns: int
    a: int
    b: int
    vector_a: int
    vector_b: int


def lanes(drawn: Anatomy) -> Lanes | None:
    """Find in a trace where the lanes of the first warp stand; None where some have no results."""
    first = []
    for lane in range(WARP):
        i, j = np.nonzero(drawn.owner == lane)
        if not len(i):
            return None
        first.append((int(i.min()), int(j.min())))
    rows, columns = zip(*first, strict=True)

    def passes(along: tuple[int, ...]) -> int:
        """8 lanes a pass, or 16 where neighbours, or those two apart, want the same 16 bytes."""
        paired = any(
            all(along[lane] == along[lane ^ apart] for lane in range(WARP)) for apart in (1, 2)
        )
        return 2 if paired else 4

    return Lanes(
        len(set(rows)), len(set(columns)), len(set(rows)), len({j // SECTOR for j in columns}),
        passes(rows), passes(columns),
    )  # fmt: skip


def _some(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


class Hand:
    """The arithmetic of one stage; `names` are the numbers that its formulas may use."""

    def __init__(self, drawn: Anatomy) -> None:
        """Of a stage whose schedule was traced."""
        self.drawn = drawn
        self.stage = drawn.stage
        self.tile: Tile = drawn.tile
        self.limbs = counts.limbs_of(self.stage, self.tile)
        self.lanes = lanes(drawn) if not self.limbs else None
        t = self.tile
        self.names: dict[str, int] = {
            "BM": t.BM, "BN": t.BN, "BK": t.BK, "TM": t.TM, "TN": t.TN, "WM": t.WM, "WN": t.WN,
            "K": counts.SHAPE[2], "slots": t.buffers, "bytes": t.element_bytes,
            "products": self.limbs * (self.limbs + 1) // 2, "cluster": t.cluster,
        }  # fmt: skip

    def line(self, key: str, name: str, formula: str, note: str = "") -> Line:
        """Evaluate a formula, which is this module's own."""
        numbers = re.sub(r"[A-Za-z]\w*", lambda m: str(self.names.get(m[0], m[0])), formula)
        value = eval(formula, {"__builtins__": {}}, {**self.names, "gcd": math.gcd})
        return Line(key, name, formula, numbers, float(value), note)

    def lines(self) -> list[Line]:
        """Give what can be derived of the stage, in the order of a page."""
        if self.limbs:
            return self._of_limbs()
        if self.lanes is None:
            return []
        return self._staged() if self.tile.buffers else self._unstaged()

    def _unstaged(self) -> list[Line]:
        assert self.lanes
        self.names |= {"a": self.lanes.a, "b": self.lanes.b}
        where = (
            f"At a time a warp's lanes are in {_some(self.lanes.rows, 'row')} and "
            f"{_some(self.lanes.columns, 'column')} of D: a load of A touches "
            f"a = {_some(self.lanes.a, 'sector')}, one of B b = {self.lanes.b}."
        )
        if self.stage.name in ROW_BY_ROW:
            loads, sectors = "(1 + TN) / TN", "1000 * (a + TN * b) / (32 * TN)"
            note = (
                "An element of A serves the TN results of a row, and B's are loaded again for each "
                "row."
            )
        else:
            loads, sectors = (
                "(TM + TN) / (TM * TN)", "1000 * (TM * a + TN * b) / (32 * TM * TN)"
            )  # fmt: skip
            note = "For each k a thread loads TM + TN elements for TM * TN multiply-adds."
        found = [
            self.line("loads_per_fma", "loads per multiply-add", loads, note),
            self.line("sectors", "gmem sectors", sectors, where),
        ]
        self.names["sectors"] = found[1].value  # type: ignore[assignment]
        return [
            *found,
            self.line("flop_per_byte", "FLOP per gmem byte", "2 * 1000 / (32 * sectors)"),
        ]

    def _staged(self) -> list[Line]:
        assert self.lanes
        t, by_tma = self.tile, self.tile.by_tma
        vectors = t.width == 4
        parts = []
        self.names |= {"a": self.lanes.vector_a, "b": self.lanes.vector_b}
        wide = []
        for size, passes in (("TM", "a"), ("TN", "b")):
            if vectors and self.names[size] % 4 == 0:
                wide.append(f"{passes} = {self.names[passes]}")
                parts.append(f"{size} / 4 * {passes}")
            else:
                parts.append(size)
        reads = f"1000 * ({' + '.join(parts)}) / (32 * TM * TN)"
        stores = "1000 * (BM + BN) / (32 * BM * BN)"
        fragments = "(TM + TN) / (TM * TN)"
        more = ""
        if self.stage.name in ONE_K_MORE:
            fragments, reads = f"(K + 1) / K * {fragments}", f"(K + 1) / K * {reads}"
            more = " Fragments of the next k are read before it is seen that there is none."
        down = DOWN_A_COLUMN.get(self.stage.name, ())
        if down:
            ways = "gcd(BK, 32)"
            if "read" in down:
                reads = f"1000 * (TM + TN * {ways}) / (32 * TM * TN)"
            stores = f"1000 * (BM + BN * {ways}) / (32 * BM * BN)"
            more += (
                " Lanes go down a column, BK words apart: gcd(BK, 32) of them share a bank, and "
                "as many wavefronts are needed."
            )
        if wide:
            more += (
                " A read of 16 bytes a lane takes 4 wavefronts, or 2 where neighbouring lanes, or "
                f"lanes two apart, want the same: {', '.join(wide)}."
            )
        loads = self.line(
            "" if by_tma else "loads_per_fma", "loads per multiply-add",
            fragments if by_tma else f"(BM + BN) / (BM * BN) + {fragments}",
            ("A thread reads" if by_tma else
            "For each k a block loads BM + BN words from gmem for BM * BN multiply-adds, and a "
            "thread reads") + " TM + TN from its slices for TM * TN.",
        )  # fmt: skip
        wavefronts = self.line(
            "" if by_tma else "shared_wavefronts" if down else "shared_ideal", "shared wavefronts",
            reads if by_tma else f"{reads} + {stores}",
            ("A warp's reads for 32 * TM * TN multiply-adds"
            + ("." if by_tma else ", and what a block stores for BM * BN.") + more),
        )  # fmt: skip
        return [
            loads, wavefronts,
            self.line("" if by_tma else "sectors", "gmem sectors",
                      "1000 * (BM + BN) / (8 * BM * BN)",
                      "8 words a sector, each fetched once for a block."),
            self.line("" if by_tma else "flop_per_byte", "FLOP per gmem byte",
                      "2 * BM * BN / (4 * (BM + BN))"),
            *([self._ring()] if t.buffers > 2 else []),
        ]  # fmt: skip

    def _ring(self) -> Line:
        return self.line(
            "", "KiB of slices in the ring", "slots * BK * (BM + BN) * bytes / 1024",
            "All slots but the one that is multiplied may be on their way at a time.",
        )  # fmt: skip

    def _of_limbs(self) -> list[Line]:
        t = self.tile
        shared = f", and {t.cluster} blocks of a cluster share B's" if t.cluster > 1 else ""
        found = [
            self.line(
                "", "tensor core products per multiply-add", "products",
                f"Of {self.limbs} limbs, {self.limbs} x ({self.limbs} + 1) / 2 products are large "
                "enough to matter.",
            ),
            self.line(
                "", "FLOP per gmem byte", "2 * BM * BN / (bytes * (BM + BN / cluster))",
                f"Of FP32. An element's limbs take {t.element_bytes} bytes{shared}.",
            ),
            self._ring(),
        ]  # fmt: skip
        if t.producers:
            return [
                *found,
                self.line("", "wgmma for a slice of a warpgroup", "products * BK / 16",
                          "One wgmma is 64 x BN x 16."),
                self.line(
                    "", "shared wavefronts", "1000 * products * (64 + BN) * 2 / (128 * 64 * BN)",
                    "At least: each wgmma reads both its operands, 2 bytes an element, and no "
                    "thread asks for it.",
                ),
            ]  # fmt: skip
        if not t.WM:
            return found
        return [
            *found,
            self.line("", "mma for a slice of a warp", "products * WM / 16 * WN / 8 * BK / 16",
                      "One mma is 16 x 8 x 16."),
            self.line(
                "", "loads per multiply-add",
                "bytes / 4 * ((BM + BN) / (BM * BN) + (WM + WN) / (WM * WN))",
                "A block's slices, and a warp's fragments, which its lanes share. What is counted "
                "has the decomposition of both operands, too.",
            ),
        ]  # fmt: skip


def of(drawn: Anatomy) -> list[Line]:
    """Derive what can be derived of a stage from its tile and its lanes."""
    return Hand(drawn).lines()


def cycles(told: dict[str, float]) -> tuple[float, float]:
    """Give a multiprocessor's cycles for 1000 multiply-adds: those of FP32, those of L1.

    Args:
        told: a stage's `counts.of`, or as much of it.
    """
    bytes_moved = 128 * told["shared_wavefronts"] + 32 * told["sectors"]
    return 1000 / FMA_A_CYCLE, bytes_moved / BYTES_A_CYCLE
