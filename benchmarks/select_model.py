"""The model behind ``auto``: csrc/xgemm/select.cpp in Python, and the fit of its numbers.

A row (one tile of one stage) takes, by its model, the time of the busiest multiprocessor: whole
rounds of resident blocks and a rest. A correction, from the nearest measured problems, makes an
estimate of it. ``select_table.py`` measures and writes; select.cpp says why things are as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from xgemm_torch import registry
from xgemm_torch.contenders import KINDS, LAYOUTS, Problem, Row, keeps, kind, place

# Also in select.cpp.
NEAREST = 4
OTHER_WIDTH = 2.0
SAME = 1e-4
# Of a model, in elements of k: a row that fits none (the last resort of a stage) has no end of it.
MOST_PROLOGUE = 4096.0
# Of a model, in microseconds for a million elements: 400 GB/s.
MOST_MEMORY = 10.0
# A row that is expected to take so many times the least is not measured.
SKIPPED = 1.5


@dataclass(frozen=True)
class Fit:
    """A row's model.

    Attributes:
        fixed: of any launch, in microseconds.
        prologue: of a block, in elements of k.
        alone: a multiprocessor with a part x of its blocks runs at x^alone of its rate.
        even: how evenly multiprocessors share the work: 0, whole blocks; 1, to the last flop.
        memory: microseconds for a million elements of both operands: to split them, say.
        per_sm: GFLOP/s of a full multiprocessor, by layout; 0 where none was measured.
    """

    fixed: float
    prologue: float
    alone: float
    even: float
    memory: float
    per_sm: tuple[float, float, float, float]

    def microseconds(self, t: registry.Tile, p: Problem, sm_count: int) -> float:
        """The model's time."""
        rate = self.per_sm[place(p)[0]]
        work = _work(t, p, sm_count, self.prologue, self.alone, self.even)
        return self.fixed + self.memory * _elements(p) + work / rate if rate > 0 else math.inf


def _elements(p: Problem) -> float:
    """Of both operands, in millions."""
    return (p.m + p.n) * p.k / 1e6


def _work(
    t: registry.Tile, p: Problem, sm_count: int, prologue: float, alone: float, even: float
) -> float:
    """What a multiprocessor has to do, in 1000 flop at its full rate."""
    blocks = math.ceil(p.m / t.BM) * math.ceil(p.n / t.BN)
    rounds, left = divmod(math.ceil(blocks / sm_count), t.min_blocks)
    by_blocks = rounds + ((left / t.min_blocks) ** (1 - alone) if left else 0.0)
    shared = blocks / (sm_count * t.min_blocks)
    block = 2 * t.BM * t.BN * (p.k + prologue)
    return t.min_blocks * block * (by_blocks + even * (shared - by_blocks)) / 1e3


def _rates(
    t: registry.Tile, times: Sequence[tuple[Problem, float]], sm_count: int,
    fixed: float, prologue: float, alone: float, even: float, memory: float,
) -> tuple[float, ...]:  # fmt: skip
    by_layout: list[list[float]] = [[] for _ in LAYOUTS]
    for p, us in times:
        work = _work(t, p, sm_count, prologue, alone, even)
        # Where the others leave nothing, the time itself says the least about the rate.
        by_layout[place(p)[0]].append(work / max(us - fixed - memory * _elements(p), 0.05 * us))
    return tuple(median(rates) if rates else 0.0 for rates in by_layout)


def fit(t: registry.Tile, times: Sequence[tuple[Problem, float]], sm_count: int) -> Fit:
    """The model that is nearest to measured times, by the mean of |log(measured / model)|.

    Steps along one number at a time, each half as long when none helps any more; the rates follow
    from the other numbers.
    """

    def error(at: Sequence[float]) -> tuple[float, Fit]:
        model = Fit(*at, _rates(t, times, sm_count, *at))
        return sum(abs(math.log(us / model.microseconds(t, p, sm_count))) for p, us in times), model

    floor = min(us for _, us in times)
    low = (0.0, 0.0, 0.0, 0.0, 0.0)
    high = (0.95 * floor, MOST_PROLOGUE, 0.95, 1.0, MOST_MEMORY)
    at: tuple[float, ...] = (0.3 * floor, 4.0 * t.BK, 0.4, 0.1, 0.5)
    step = (0.3 * floor, 4.0 * max(t.BK, 16), 0.2, 0.2, 0.5)
    best = error(at)
    for _ in range(7):
        moved = True
        while moved:
            moved = False
            for axis, sign in itertools.product(range(len(at)), (-1, 1)):
                there = list(at)
                there[axis] = min(max(at[axis] + sign * step[axis], low[axis]), high[axis])
                found = error(there)
                if found[0] < best[0] - 1e-9:
                    best, at, moved = found, tuple(there), True
        step = tuple(s / 2 for s in step)
    return best[1]


@dataclass(frozen=True)
class Point:
    """A measured problem: microseconds by row key."""

    problem: Problem
    us: Mapping[str, float]


class Estimator:
    """What select.cpp would estimate on the GPU that the points were measured on.

    ``skipped`` is how many times the least a row is taken to need at a point that lacks it.
    """

    def __init__(
        self, rows: Sequence[Row], points: Sequence[Point], sm_count: int, *,
        fits: Mapping[str, Fit] | None = None, skipped: float = SKIPPED,
    ) -> None:  # fmt: skip
        """Fit the rows' models to the points, unless they are given."""
        self.rows = [row for row in rows if any(row.key in p.us for p in points)]
        self.sm_count = sm_count
        self.fits = dict(fits) if fits is not None else {
            row.key: fit(
                row.tile, [(p.problem, p.us[row.key]) for p in points if row.key in p.us], sm_count
            )
            for row in self.rows
        }  # fmt: skip
        self.points: list[Point] = []
        self._places: list[tuple[float, float, float, int, int]] = []
        self._excess: list[dict[str, float]] = []
        self._skipped = skipped
        for point in points:
            self.add(point)

    def model(self, row: Row, p: Problem) -> float:
        """A row's time by its model alone, in microseconds."""
        return self.fits[row.key].microseconds(row.tile, p, self.sm_count)

    def add(self, point: Point) -> None:
        """Take a measured problem into account; the fits stay as they are."""
        models = {row.key: self.model(row, point.problem) for row in self.rows}
        known = {
            key: us for key, us in point.us.items() if math.isfinite(models.get(key, math.inf))
        }
        excess = {key: 0.0 for key in models}
        for its in KINDS:
            keys = [row.key for row in self.rows if kind(row) == its]
            measured = [key for key in keys if key in known]
            if not measured:
                continue
            best = min(measured, key=lambda key: known[key])
            of_best = math.log2(known[best] / models[best])
            for key in keys:
                if key in known:
                    excess[key] = math.log2(known[key] / models[key])
                elif math.isfinite(models[key]):
                    excess[key] = max(of_best, math.log2(self._skipped * known[best] / models[key]))
        self.points.append(point)
        self._places.append(self._place(point.problem))
        self._excess.append(excess)

    def estimate(self, p: Problem, *, without: int | None = None) -> dict[str, float]:
        """Microseconds by row key; point number ``without`` does not count."""
        near = self._near(p, without)
        weights = sum(weight for _, weight in near) or 1.0
        return {
            row.key: self.model(row, p)
            * 2 ** (sum(weight * self._excess[i][row.key] for i, weight in near) / weights)
            for row in self.rows
        }

    def choice(self, p: Problem, *, strict: bool, without: int | None = None) -> str:
        """The row of least time of those that `keeps` lets through; ties go to the last."""
        times = self.estimate(p, without=without)
        keys = [row.key for row in self.rows if keeps(row, p, strict=strict)]
        return min(reversed(keys), key=lambda key: times[key])

    def _place(self, p: Problem) -> tuple[float, float, float, int, int]:
        return (math.log2(p.m), math.log2(p.n), math.log2(max(p.k, 1)), *place(p))

    def _near(self, p: Problem, without: int | None) -> list[tuple[int, float]]:
        *here, layout, wide = self._place(p)
        found = []
        for i, (*there, its_layout, its_width) in enumerate(self._places):
            if i == without or its_layout != layout:
                continue
            others = (wide ^ its_width).bit_count()
            distance = sum((x - y) ** 2 for x, y in zip(here, there, strict=True))
            found.append((distance + others * OTHER_WIDTH**2, i))
        found.sort()
        if found and found[0][0] == 0:
            found = found[:1]
        return [(i, 1 / (distance + SAME) ** 2) for distance, i in found[:NEAREST]]


def losses(
    estimator: Estimator, *, strict: bool, leave_one_out: bool
) -> list[tuple[float, Problem, str]]:
    """How much longer the choice takes than the best measured row, per point, and the choice.

    Among the rows that `keeps` lets through. With ``leave_one_out`` each point is estimated from
    the others: what to expect between points. A choice that was not measured there counts as
    ``SKIPPED`` times the best.
    """
    rows = []
    for i, point in enumerate(estimator.points):
        allowed = {row.key for row in estimator.rows if keeps(row, point.problem, strict=strict)}
        key = estimator.choice(point.problem, strict=strict, without=i if leave_one_out else None)
        best = min(us for name, us in point.us.items() if name in allowed)
        rows.append((point.us.get(key, SKIPPED * best) / best - 1, point.problem, key))
    return rows
