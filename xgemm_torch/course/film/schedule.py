"""One order in time of a block's warps: they take turns, an instruction each.

A trace has the order of each thread's program and no clock. Here warps go on in turn, as barriers,
named barriers and mbarriers let them, and what TMA or cp.async moves lands `LATENCY` turns after it
was asked for. That is one legal schedule of many: which one a GPU takes depends on times that the
emulator does not know.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from ... import simt
from .requests import Request

LATENCY = 12  # turns until a copy that arrives at an mbarrier has landed


@dataclass
class Mbarrier:
    """An mbarrier's state.

    Attributes:
        at: byte of the block's shared memory.
        count: arrivals that end a phase.
        pending: those that are yet to come.
        bytes: of TMA that are yet to come.
        phase: how many have ended.
    """

    at: int
    count: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def change(self, arrivals: int, size: int) -> None:
        """Arrivals come, and bytes are announced or, if negative, land."""
        self.pending -= arrivals
        self.bytes += size
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count

    def state(self) -> tuple[int, int, int, int]:
        """Its place, phases that have ended, arrivals and bytes that are yet to come."""
        return self.at, self.phase, self.pending, self.bytes


@dataclass(frozen=True)
class Step:
    """What happens next.

    Attributes:
        request: what a warp does; None where a box of TMA, or a thread's cp.asyncs, land.
        warp: whose they were.
        box: index of the box that lands, -1 for cp.asyncs and for a request.
        smem: byte to which the box lands.
        changed: the state of mbarriers that it changes.
    """

    request: Request | None
    warp: int
    box: int = -1
    smem: int = -1
    changed: tuple[tuple[int, int, int, int], ...] = ()


@dataclass
class Schedule:
    """The steps of a launch.

    Attributes:
        steps: in the order of time.
        forced: steps that nothing allowed, which were taken for want of others: 0 for a program
            that the replay understands.
    """

    steps: list[Step] = field(default_factory=list)
    forced: int = 0


class _Replay:
    """A block while its warps take turns."""

    def __init__(self, programs: list[list[Request]], trace: simt.Trace, launch: int) -> None:
        self.programs, self.trace = programs, trace
        self.arrays = trace.launches[launch].arrays
        self.next = [0] * len(programs)
        self.barriers: dict[int, int] = {}  # threads that are yet to come, by phase
        for program in programs:
            for each in program:
                if each.kind == "barrier":
                    still = self.barriers.get(each.phase, 0)
                    self.barriers[each.phase] = still + len(each.lanes)
        self.open_phase = 0
        self.named: dict[int, tuple[int, int]] = {}  # threads here, and how often it was passed
        self.waits_named: dict[int, tuple[int, int]] = {}  # by warp: barrier and passes it needs
        self.mbarriers: dict[int, Mbarrier] = {}
        self.landings: list[tuple[int, int, int, int, int, int, int]] = []
        self.turn = 0
        self.made = Schedule()

    def run(self) -> Schedule:
        while any(at < len(p) for at, p in zip(self.next, self.programs, strict=True)):
            went = False
            self.turn += 1
            went |= self._land()
            for warp in range(len(self.programs)):
                if self._may_go(warp):
                    self._go(warp)
                    went = True
            if went:
                continue
            if self.landings:
                self.turn = max(self.turn, self.landings[0][0] - 1)
                continue
            self.made.forced += 1
            self.open_phase += 1
            self.waits_named.clear()
            left = [w for w, p in enumerate(self.programs) if self.next[w] < len(p)]
            self._go(left[0])
        while self.landings:
            self.turn = self.landings[0][0]
            self._land()
        return self.made

    def _may_go(self, warp: int) -> bool:
        if self.next[warp] == len(self.programs[warp]):
            return False
        each = self.programs[warp][self.next[warp]]
        while self.open_phase in self.barriers and not self.barriers[self.open_phase]:
            self.open_phase += 1
        if each.phase > self.open_phase and self.barriers.get(self.open_phase, 0):
            return False
        if warp in self.waits_named:
            number, passes = self.waits_named[warp]
            if self.named[number][1] < passes:
                return False
            del self.waits_named[warp]
        if each.kind == "mbarrier wait":
            known = self.mbarriers.get(int(each.smem[0]))
            return known is None or known.phase >= each.bytes
        return True

    def _go(self, warp: int) -> None:
        each = self.programs[warp][self.next[warp]]
        self.next[warp] += 1
        changed: list[Mbarrier] = []
        lanes = len(each.lanes)
        if each.kind == "barrier":
            self.barriers[each.phase] -= lanes
        elif each.kind == "named barrier":
            here, passed = self.named.get(each.number, (0, 0))
            self.waits_named[warp] = each.number, passed + 1
            here += lanes
            full = here >= each.bytes
            self.named[each.number] = (0, passed + 1) if full else (here, passed)
        elif each.kind == "mbarrier init":
            for at in each.smem.tolist():
                self.mbarriers[at] = Mbarrier(at, each.bytes, each.bytes)
                changed.append(self.mbarriers[at])
        elif each.kind == "mbarrier arrival":
            for at in each.smem.tolist():
                if at in self.mbarriers:
                    self.mbarriers[at].change(1, each.bytes)
                    changed.append(self.mbarriers[at])
        elif each.kind == "mbarrier copies":
            self._later(warp, int(each.smem[0]), lanes, 0, -1, -1)
        elif each.kind == "tma":
            box = self.trace.boxes[each.number]
            at = self.arrays[box.array].offset + box.offset
            for smem in each.smem.tolist():
                self._later(warp, at, 0, -each.bytes, each.number, smem)
        states = {bar.at: bar.state() for bar in changed}
        self.made.steps.append(Step(each, warp, changed=tuple(states.values())))

    def _later(self, warp: int, at: int, arrivals: int, size: int, box: int, smem: int) -> None:
        entry = (self.turn + LATENCY, len(self.made.steps), warp, at, arrivals, size, box, smem)
        heapq.heappush(self.landings, entry)

    def _land(self) -> bool:
        some = False
        while self.landings and self.landings[0][0] <= self.turn:
            _, _, warp, at, arrivals, size, box, smem = heapq.heappop(self.landings)
            changed = ()
            if at in self.mbarriers:
                self.mbarriers[at].change(arrivals, size)
                changed = (self.mbarriers[at].state(),)
            self.made.steps.append(Step(None, warp, box, smem, changed))
            some = True
        return some


def replay(programs: list[list[Request]], trace: simt.Trace, launch: int) -> Schedule:
    """Put the requests of a launch's warps into one order, each warp's own kept."""
    return _Replay(programs, trace, launch).run()
