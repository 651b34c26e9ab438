"""A trace's events as warp instructions, in the order of each warp's program."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ... import simt
from ..anatomy import BANKS, WARP

Ints = NDArray[np.int64]
SECTOR_WORDS = 8
LOADS_AND_STORES = ("global load", "global store", "shared load", "shared store", "copy issue")


@dataclass(frozen=True)
class Request:
    """One warp instruction.

    Attributes:
        kind: one of `simt.KINDS`.
        warp: of the block.
        place: index into the trace's places.
        phase: barriers that the block has passed.
        lanes: who takes part, ascending.
        bytes: that a lane moves; of what moves none, the largest of `simt.Event`'s ``bytes``.
        operand: the letter of the end in global memory, or "".
        gmem: for each lane the element's number in the operand's memory, -1 for none.
        smem: for each lane the byte of the block's shared memory, -1 for none.
        number: of a box, a product or a named barrier; -1 for none.
    """

    kind: str
    warp: int
    place: int
    phase: int
    lanes: Ints = field(repr=False)
    bytes: int
    operand: str
    gmem: Ints = field(repr=False)
    smem: Ints = field(repr=False)
    number: int

    def ends(self) -> Iterator[str]:
        """The accesses that it is, by the names of `simt.Counts`; a cp.async is two."""
        if self.kind == "copy issue":
            yield "shared_store"
            if (self.gmem >= 0).any():
                yield "global_load"
        elif self.kind in LOADS_AND_STORES:
            yield self.kind.replace(" ", "_")

    def wavefronts(self) -> tuple[int, int, int]:
        """Passes through the banks, those without a conflict, and ways of the worst one.

        The model is csrc/emulator/traffic.cpp's.
        """
        if (self.smem < 0).all() or self.kind not in LOADS_AND_STORES:
            return 0, 0, 0
        at = np.full(WARP, -1, dtype=np.int64)
        at[self.lanes] = self.smem
        together = 32 if self.bytes <= 4 else 16 if self.bytes <= 8 else 8
        if self.bytes > 4 and self.kind == "shared load":
            for distance in (1, 2):
                other = at[np.arange(WARP) ^ distance]
                if ((at < 0) | (other < 0) | (at == other)).all():
                    together *= 2
                    break
        total = ideal = worst = 0
        for first in range(0, WARP, together):
            start = at[first : first + together]
            words = spread(start[start >= 0], self.bytes)
            if len(words):
                ways = int(np.bincount(words % BANKS).max())
                total, ideal, worst = total + ways, ideal + 1, max(worst, ways)
        return total, ideal, worst

    def sectors(self) -> tuple[int, int]:
        """Sectors of 32 bytes that it touches in global memory, and what its words would fill."""
        words = spread(self.gmem[self.gmem >= 0] * 4, self.bytes)
        return len(np.unique(words // SECTOR_WORDS)), -(-len(words) // SECTOR_WORDS)


def spread(start: Ints, size: int) -> Ints:
    """The different words of four bytes that accesses of ``size`` bytes touch."""
    if not len(start):
        return start
    first, last = start // 4, (start + max(size, 1) - 1) // 4
    return np.unique(np.concatenate([first + i for i in range(int((last - first).max()) + 1)]))


def count(requests: list[Request]) -> simt.Counts:
    """What requests ask of the memories, as `simt.traffic` counts it."""
    total = simt.Counts()
    for each in requests:
        asked = each.bytes * len(each.lanes)
        wavefronts, sectors = each.wavefronts(), each.sectors()
        for end in each.ends():
            if end.startswith("shared"):
                one = simt.SharedCounts(1, asked, *wavefronts)
            else:
                touched, ideal = sectors
                asked_there = each.bytes * int((each.gmem >= 0).sum())
                one = simt.GlobalCounts(1, asked_there, touched, ideal, touched)
            total = total + simt.Counts(**{end: one})
    return total


def programs(trace: simt.Trace, launch: int) -> list[list[Request]]:
    """For each warp of a launch its requests, in an order that is every lane's own.

    A request is the n-th execution of one instruction by a warp's lanes between two barriers.
    """
    rows = trace.table[trace.column("launch") == launch]
    c = {name: rows[:, i].numpy() for i, name in enumerate(simt.COLUMNS)}
    bases = np.array([a.offset for a in trace.launches[launch].arrays] or [0])
    c["smem"] = np.where(c["array"] >= 0, bases[c["array"]] + c["offset"], -1)
    c["gmem"] = _in_memory(trace, c)
    events = len(rows)
    order = np.lexsort((np.arange(events), c["phase"], c["place"], c["thread"]))
    keys = np.stack([c[name][order] for name in ("thread", "place", "phase")])
    fresh = np.ones(events, dtype=bool)
    fresh[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    start = np.maximum.accumulate(np.where(fresh, np.arange(events), 0))
    nth = np.empty(events, dtype=np.int64)
    nth[order] = np.arange(events) - start
    warp = c["thread"] // WARP
    key = np.stack([warp, c["kind"], c["place"], c["phase"], nth])
    request = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    found = []
    threads = int(np.prod(trace.launches[launch].threads))
    for each in range(-(-threads // WARP)):
        mine = np.flatnonzero(warp == each)  # by thread, each in its program's order
        by_request = mine[np.argsort(request[mine], kind="stable")]
        heads = np.flatnonzero(np.diff(request[by_request], prepend=-1))
        events_of = {
            int(request[by_request[a]]): by_request[a:b]
            for a, b in zip(heads, [*heads[1:], len(by_request)], strict=True)
        }
        lanes = [request[mine[c["thread"][mine] == each * WARP + lane]] for lane in range(WARP)]
        found.append([_request(c, events_of[number]) for number in _merged(lanes)])
    return found


def _in_memory(trace: simt.Trace, c: dict[str, Ints]) -> Ints:
    """Number of an element in its operand's memory, from its row and column; -1 for none."""
    wide = {"A": trace.k, "B": trace.n, "D": trace.n, "W": 0}
    tall = {"A": trace.m, "B": trace.k}
    at = np.full(len(c["i"]), -1, dtype=np.int64)
    for letter, columns in wide.items():
        mine = (c["operand"] == ord(letter)) & (c["kind"] <= simt.KINDS.index("copy issue"))
        down = (letter == "A" and trace.trans_a) or (letter == "B" and trace.trans_b)
        i, j = c["i"][mine], c["j"][mine]
        at[mine] = j * tall[letter] + i if down else i * columns + j
    return at


def _merged(lanes: list[Ints]) -> list[int]:
    """One order of requests that agrees with that of each lane, as far as there is one."""
    used = [lane for lane in lanes if len(lane)]
    if all(len(lane) == len(used[0]) and (lane == used[0]).all() for lane in used):
        return used[0].tolist() if used else []
    queues = [deque(lane.tolist()) for lane in used]
    needed: dict[int, int] = {}
    for lane in used:
        for number in lane.tolist():
            needed[number] = needed.get(number, 0) + 1
    done: set[int] = set()
    merged = []
    while any(queues):
        ready: dict[int, int] = {}
        for queue in queues:
            while queue and queue[0] in done:
                queue.popleft()
            if queue:
                ready[queue[0]] = ready.get(queue[0], 0) + 1
        if not ready:
            break
        # One that all of its lanes have come to; in a circle, the one that most have.
        number = max(ready, key=lambda r: (ready[r] == needed[r], ready[r] / needed[r], -r))
        merged.append(number)
        done.add(number)
    return merged


def _request(c: dict[str, Ints], events: Ints) -> Request:
    first = int(events[0])
    kind = simt.KINDS[int(c["kind"][first])]
    letter = c["operand"][events].max()
    numbered = kind in ("tma", "wgmma", "named barrier")
    return Request(
        kind=kind,
        warp=int(c["thread"][first]) // WARP,
        place=int(c["place"][first]),
        phase=int(c["phase"][first]),
        lanes=c["thread"][events] % WARP,
        bytes=int(c["bytes"][events].max()),
        operand=chr(letter) if letter else "",
        gmem=c["gmem"][events],
        smem=c["smem"][events],
        number=int(c["i"][first]) if numbered else -1,
    )
