"""A stage's schedule, found in a trace of it: who owns, loads, stores and reads what, and when.

Everything here but the depth of a slice is derived from what the stage's source did when it ran,
nothing from what its tile table says it does.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .. import simt
from ..registry import Stage, Tile
from ..tools import timing
from . import counts

Ints = NDArray[np.int32]

# Slices of K beyond what the stage's buffers hold: the steady state is seen, and the end.
SLICES_MORE = 3
# Depth of the trace of a stage that has no slices.
DEPTH = 8
WARP = 32
BANKS = 32


@dataclass(frozen=True)
class Words:
    """Words of four bytes that threads moved, by thread, in order; arrays with a word an element.

    Attributes:
        thread, phase: who, and after how many barriers.
        operand: code point of "A", "B", "D"; 0 for a fill with zeros and for what is not known.
        i, j: the operand's element.
        word: place in shared memory, -1 for none.
        place: index into the trace's places.
        request: number of the warp instruction.
    """

    thread: Ints
    phase: Ints
    operand: Ints
    i: Ints
    j: Ints
    word: Ints
    place: Ints
    request: Ints

    def __len__(self) -> int:
        """The number of words."""
        return len(self.thread)

    def __getitem__(self, keep: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Words:
        """Those that ``keep`` chooses."""
        return Words(**{name: values[keep] for name, values in vars(self).items()})

    def of(self, operand: str) -> Words:
        """Those of one operand."""
        return self[self.operand == ord(operand)]


@dataclass(frozen=True)
class Anatomy:
    """The schedule of one block.

    Attributes:
        stage: whose.
        shape: M, N, K of the product, which is one block's.
        places: the lines of the source that `Words.place` is an index into.
        phases: stretches between barriers.
        rows, columns: shape of the block's tile of D.
        depth: K of one slice; of the whole trace where the stage has no slices.
        threads: of the block.
        owner: (rows, columns), the thread that stores each element of D, or what others add to it.
        loads: words that came from gmem into registers.
        copies: words that cp.async brought past the registers. Where operands lie in 16-bit limbs,
            a word holds a limb of two neighbours along K, of which it names the first.
        stores: words stored to shared memory, with the element that they hold.
        reads: words read from shared memory, with the element that they hold.
        named: whether it can be told what lies in shared memory: each thread stores there as many
            words as it loads, or cp.async brings it. Where it cannot, ``stores`` and ``reads`` are
            empty; where TMA brings some of it, ``loads`` and ``copies`` are, too.
        limbs: in how many 16-bit limbs an operand's element is multiplied; 0 for FP32 itself.
    """

    stage: Stage
    shape: tuple[int, int, int]
    places: tuple[str, ...] = field(repr=False)
    phases: int
    rows: int
    columns: int
    depth: int
    threads: int
    owner: Ints = field(repr=False)
    loads: Words = field(repr=False)
    copies: Words = field(repr=False)
    stores: Words = field(repr=False)
    reads: Words = field(repr=False)
    named: bool
    limbs: int

    @property
    def tile(self) -> Tile:
        """The row of the tile table that was traced."""
        return self.stage.tiles[counts.best_row(self.stage)]

    @property
    def staged(self) -> bool:
        """Whether the stage goes through shared memory, as far as it can be told."""
        return len(self.reads) > 0

    @property
    def chosen(self) -> int:
        """The thread that pictures point out: lane 5 of the second warp."""
        return min(WARP + 5, self.threads - 1)

    def slices(self, words: Words) -> dict[int, list[int]]:
        """Give, for each phase, the slices of K that the words belong to."""
        k = np.where(words.operand == ord("A"), words.j, words.i)
        known = words.operand > 0
        pairs = np.unique(np.stack([words.phase[known], k[known] // self.depth]), axis=1)
        found: dict[int, list[int]] = {}
        for phase, number in pairs.T.tolist():
            found.setdefault(phase, []).append(number)
        return found

    def stray_reads(self) -> int:
        """Count words of A that a thread reads for rows it has no result in; of B, for columns.

        0 says that the elements found in shared memory are what the stage takes them for. Of limbs,
        a lane reads what tensor cores give to all of its warp.
        """
        together = WARP if self.limbs else 1
        in_row = np.zeros((self.threads, self.rows), dtype=bool)
        in_column = np.zeros((self.threads, self.columns), dtype=bool)
        i, j = np.indices(self.owner.shape)
        in_row[self.owner // together, i] = True
        in_column[self.owner // together, j] = True
        a, b = self.reads.of("A"), self.reads.of("B")
        wrong = int((~in_row[a.thread // together, a.i]).sum())
        wrong += int((~in_column[b.thread // together, b.j]).sum())
        return wrong + int((self.reads.operand == 0).sum())

    def caption(self) -> str:
        """Say what was traced."""
        m, n, k = self.shape
        warps = math.ceil(self.threads / WARP)
        which = "of which one block is shown" if self.limbs else "which is one block"
        text = (
            f"Traced: a product of {m} x {n} x {k}, NN, {which}. Its tile of D is "
            f"{self.rows} x {self.columns}, its {self.threads} threads are {warps} warps"
        )
        if self.staged:
            text += f", a slice is {self.depth} deep"
        elif self.tile.by_tma:
            text += "; its operands come by TMA, no thread's access: what it moves is in the film"
        elif not self.named:
            text += "; it stores other words to shared memory than it loads, which are not shown"
        lane = self.chosen % WARP
        return f"{text}. Pointed out: thread {self.chosen}, lane {lane} of warp 1."

    def digest(self) -> str:
        """A fingerprint of all that a picture can show."""
        found = hashlib.sha256(repr(self.places).encode())
        for words in (self.loads, self.copies, self.stores, self.reads):
            for values in vars(words).values():
                found.update(np.ascontiguousarray(values, dtype="<i4").tobytes())
        found.update(np.ascontiguousarray(self.owner, dtype="<i4").tobytes())
        if self.limbs:  # more is drawn of these than was traced
            found.update(repr((self.limbs, self.tile)).encode())
        return found.hexdigest()[:16]


def of(stage: Stage, layout: str = "NN") -> Anatomy:
    """Run one tile of a stage, the fastest of its table, and find its schedule.

    Of a stage with several launches it is the one that stores D; where operands go to registers
    alone, the one that loads them, even if another adds up the sums that it leaves.
    """
    trans_a, trans_b = timing.LAYOUTS[layout]
    row = counts.best_row(stage)
    tile = stage.tiles[row]
    depth = tile.BK if tile.buffers else DEPTH
    k = depth * (tile.buffers + SLICES_MORE) if tile.buffers else depth
    # gemv spreads columns over all multiprocessors: with one, a block has all that it can have.
    with simt.configure(row=row, sm_count=1 if stage.name == "gemv" else None):
        trace = simt.trace(stage.name, tile.BM, tile.BN, k, trans_a=trans_a, trans_b=trans_b)
    whats = [("global store", "D")]
    if not tile.buffers:  # who reads A is told, unless TMA does
        whats = [("global load", "A"), ("copy issue", "A"), *whats]
    found = (trace.where(kind=kind, operand=operand) for kind, operand in whats)
    launch = int(next(events for events in found if len(events.table)).column("launch")[0])
    threads = math.prod(trace.launches[launch].threads)
    words = _Table(trace.where(launch=launch), launch)
    results = words.take("global store", "D")
    if len(results) < tile.BM * tile.BN:  # other blocks, or another launch, store the rest
        waiting = words.take("global store", "W"), words.take("shared store")
        results = _sums(*waiting, tile.BM, tile.BN) or results
    rows, columns = 1 + int(results.i.max()), 1 + int(results.j.max())
    owner = np.full((rows, columns), -1, dtype=np.int32)
    owner[results.i, results.j] = results.thread
    loads = words.take("global load", "AB")
    copies = words.take("copy issue")
    stores = words.take("shared store")
    reads = words.take("shared load")
    limbs = counts.limbs_of(stage, tile)
    if limbs:
        copies = _of_limbs(copies, tile, limbs, k)
        # What else passes through shared memory are scales.
        stores, reads = stores[:0], reads[np.isin(reads.word, copies.word)]
    named = np.array_equal(stores.thread, loads.thread) if len(stores) else not limbs
    named |= bool(limbs and len(copies))
    if named and len(stores):
        stores = _named(stores, loads)
    reads = _found(reads, _joined(stores, copies))
    if not counts.is_counted(stage):  # what comes by TMA would be missing from it
        named, loads, copies = False, loads[:0], copies[:0]
    if not named:
        stores, reads = stores[:0], reads[:0]
    phases = 1 + int(trace.column("phase").max())
    places = tuple(place.at for place in trace.places)
    shape = (tile.BM, tile.BN, k)
    return Anatomy(
        stage, shape, places, phases, rows, columns, depth, threads, owner,
        loads, copies, stores, reads, named, limbs,
    )  # fmt: skip


class _Table:
    """A trace's events, word by word."""

    def __init__(self, trace: simt.Trace, launch: int) -> None:
        columns = {name: trace.column(name).numpy().astype(np.int32) for name in simt.COLUMNS}
        arrays = trace.launches[launch].arrays
        self._bases = np.array([array.offset for array in arrays] or [0], dtype=np.int32)
        self._events = columns
        self._requests = self._number_requests(columns)
        # Neighbours in memory of one operand's element: along its row, or along its column.
        self._down = {ord("A"): trace.trans_a, ord("B"): trace.trans_b, ord("D"): False}

    @staticmethod
    def _number_requests(c: dict[str, Ints]) -> Ints:
        """Number the warp instructions: a warp's n-th events at a place in a phase are one."""
        order = np.lexsort((np.arange(len(c["thread"])), c["phase"], c["place"], c["thread"]))
        keys = np.stack([c[name][order] for name in ("thread", "place", "phase")])
        fresh = np.ones(len(order), dtype=bool)
        fresh[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        start = np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
        nth = np.empty(len(order), dtype=np.int64)
        nth[order] = np.arange(len(order)) - start
        warp = np.stack([c["thread"] // WARP, c["place"], c["phase"], nth])
        numbers = np.unique(warp, axis=1, return_inverse=True)[1]
        return numbers.reshape(-1).astype(np.int32)

    def take(self, kind: str, operands: str | None = None) -> Words:
        """The words of all events of one kind, and of some operands."""
        c = self._events
        keep = c["kind"] == simt.KINDS.index(kind)
        if operands is not None:
            keep &= np.isin(c["operand"], [ord(letter) for letter in operands])
        at = np.flatnonzero(keep)
        each = c["bytes"][at] // 4
        at = np.repeat(at, each)
        nth = (np.arange(len(at)) - np.repeat(np.cumsum(each) - each, each)).astype(np.int32)
        operand = c["operand"][at]
        down = np.isin(operand, [code for code, is_down in self._down.items() if is_down])
        array = c["array"][at]
        return Words(
            thread=c["thread"][at],
            phase=c["phase"][at],
            operand=operand,
            i=c["i"][at] + nth * down,
            j=c["j"][at] + nth * ~down,
            word=np.where(array < 0, -1, (self._bases[array] + c["offset"][at]) // 4 + nth),
            place=c["place"][at],
            request=self._requests[at],
        )


def _sums(in_workspace: Words, in_shared: Words, rows: int, columns: int) -> Words | None:
    """Give sums that wait for others to add them the element that they are of.

    In the workspace they lie first. In shared memory they are what one instruction of the source
    stores a tile of, row by row, with gaps between the rows or none.
    """

    def named(words: Words, element: Ints) -> Words:
        i, j = np.divmod(element, columns)
        return Words(**{**vars(words), "i": i, "j": j})

    if len(in_workspace):
        mine = in_workspace[in_workspace.j < rows * columns]
        return named(mine, mine.j)
    for place in np.unique(in_shared.place):
        mine = in_shared[in_shared.place == place]
        cells, nth = np.unique(mine.word, return_inverse=True)
        if len(cells) == len(mine) == rows * columns:
            return named(mine, nth.astype(np.int32))
    return None


def _named(stores: Words, loads: Words) -> Words:
    """Give stores to shared memory the elements that they hold.

    A thread stores what it loaded in the order in which it loaded it: its n-th word is its n-th.
    """
    return Words(**{**vars(stores), "operand": loads.operand, "i": loads.i, "j": loads.j})


def _joined(first: Words, second: Words) -> Words:
    return Words(**{name: np.concatenate([values, vars(second)[name]])
                    for name, values in vars(first).items()})  # fmt: skip


def _of_limbs(copies: Words, tile: Tile, limbs: int, k: int) -> Words:
    """Give copies from the workspace the elements whose limbs they bring.

    Each operand lies there as [row][k / BK][limb][BK], of two bytes (emulation/limbs.h), and A's
    slice before B's in a buffer: all of A's buffers come first in shared memory.
    """
    of_b = copies.word >= tile.buffers * tile.BM * tile.BK * limbs // 2
    operand = np.where(of_b, ord("B"), ord("A")).astype(np.int32)
    row, at = np.empty_like(copies.j), np.empty_like(copies.j)
    for mine in (of_b, ~of_b):
        if mine.any():
            word = copies.j[mine] - copies.j[mine].min()
            slices = -(-k // tile.BK)
            row[mine], rest = np.divmod(word, slices * tile.BK * limbs // 2)
            at[mine] = rest // (tile.BK * limbs // 2) * tile.BK + rest % (tile.BK // 2) * 2
    i, j = np.where(of_b, at, row), np.where(of_b, row, at)
    return Words(**{**vars(copies), "operand": operand, "i": i, "j": j})


def _found(reads: Words, written: Words) -> Words:
    """Give reads the element that was last written to their word in an earlier phase."""
    if not len(reads) or not len(written):
        return reads
    span = 1 + int(max(reads.phase.max(), written.phase.max()))
    order = np.argsort(written.word * span + written.phase, kind="stable")
    keys = (written.word * span + written.phase)[order]
    last = np.searchsorted(keys, reads.word * span + reads.phase) - 1
    source = order[np.maximum(last, 0)]
    known = (last >= 0) & (written.word[source] == reads.word)
    return Words(**{
        **vars(reads),
        **{name: np.where(known, vars(written)[name][source], 0) for name in ("operand", "i", "j")},
    })  # fmt: skip
