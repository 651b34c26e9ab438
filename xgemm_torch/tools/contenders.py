"""What contends for a problem: the rows of the tile tables, and which of them may have it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .. import registry

# By number: +2 where A, +1 where B transposed, is contiguous along k.
LAYOUTS = ("TN", "TT", "NN", "NT")
# Rows (or columns) up to which stages of several chains are for one chain, too, and up to which
# "fp32" may make several. Also in csrc/xgemm/chains.h.
NARROW = 32
FEW = 4


@dataclass(frozen=True)
class Problem:
    """D (m, n) = op(A) op(B) over ``k``, ``batch`` times; ``layout`` says how A and B lie."""

    label: str
    m: int
    n: int
    k: int
    layout: str = "NN"
    batch: int = 1

    @property
    def bytes(self) -> int:
        """The least that must move: A and B read once, D written once."""
        return 4 * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True)
class Row:
    """One tile of one stage."""

    stage: str
    row: int
    tile: registry.Tile
    strict: bool = True
    split_k: bool = False
    matches_single_chain_overflow: bool = False
    auto: bool = True

    @property
    def key(self) -> str:
        """Name in a record: what the row is, so that its place in the tile table does not count."""
        t = self.tile
        return (
            f"{self.stage} {t.BM}x{t.BN}x{t.BK} {t.WM}x{t.WN} {t.TM}x{t.TN} "
            f"{t.buffers} buffers, {t.min_blocks} a multiprocessor"
            f"{f', clusters of {t.cluster}' if t.cluster > 1 else ''}"
        )


def rows_of(stages: Iterable[registry.Stage]) -> list[Row]:
    """Every row of every stage."""
    return [
        Row(s.name, i, t, s.strict, s.split_k, s.matches_single_chain_overflow, s.auto_choice)
        for s in stages
        for i, t in enumerate(s.tiles)
    ]


KINDS = ("emulated", "chain", "chains")
"""What makes an element of a result: `Row`s of one kind are measured beside each other."""


def kind(row: Row) -> str:
    """One of `KINDS`."""
    return "emulated" if not row.strict else "chains" if row.split_k else "chain"


def several(p: Problem) -> bool:
    """Whether the strict product makes several chains of an element."""
    return registry.split_k_size(p.m, p.n, p.k, p.batch) > 0


def keeps(row: Row, p: Problem, *, strict: bool) -> bool:
    """Whether the row may be taken for ``precision="ieee"``, or for "fp32"."""
    if kind(row) != "chains":
        return not strict or (row.strict and not several(p))
    one_chain = not several(p) or (row.matches_single_chain_overflow and min(p.m, p.n) <= FEW)
    return is_measured(row, p) and (strict or one_chain)


def is_measured(row: Row, p: Problem) -> bool:
    """Whether the row may be taken at all."""
    return kind(row) != "chains" or several(p) or min(p.m, p.n) <= NARROW


def along_k(rs: int, cs: int, length: int, k: int) -> bool:
    """Whether an operand of strides (rs, cs), its rows along k, is contiguous along k."""
    if rs == cs:
        return k >= length
    return k > 1 and (length <= 1 or cs < rs)


def place(p: Problem) -> tuple[int, int]:
    """Layout and width of a problem whose operands are contiguous and aligned, as numbers."""
    a = (1, p.m) if p.layout[0] == "T" else (p.k, 1)
    b = (p.k, 1) if p.layout[1] == "T" else (1, p.n)
    along = [along_k(*a, p.m, p.k), along_k(*b, p.n, p.k)]
    wide = []
    for (rs, cs), by_k in zip((a, b), along, strict=True):
        step, other = (cs, rs) if by_k else (rs, cs)
        wide.append(step == 1 and other % 4 == 0)
    return 2 * along[0] + along[1], 2 * wide[0] + wide[1]
