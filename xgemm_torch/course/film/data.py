"""What a film's page reads: the steps of all launches, index-coded, and the lines they stand at."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ... import simt
from ...registry import Stage, Tile
from .. import counts, stage_code
from ..anatomy import WARP
from . import requests, schedule

LANDING = len(simt.KINDS)  # the kind of a step in which a copy lands
# Slices of K beyond a ring's slots, so that slots are used again; of a stage with one buffer.
MORE_SLICES, SLICES = 2, 2
# Depth of stages without slices: two words of each lane at least, and a ring's slots twice.
DEPTH = 8
DEPTHS = {"dot": 2048, "gemv": 32, "tma_gemv": 160}


class CannotFilm(ValueError):
    """A stage of which there can be no film here; the message says why."""


@dataclass(frozen=True)
class Film:
    """A stage's run, step by step.

    Attributes:
        stage: whose.
        row: of its tile table.
        trace: block 0's of each launch.
        launches: for each launch its warps' requests, by warp.
        schedules: for each launch its steps.
        content: what the page reads.
    """

    stage: Stage
    row: int
    trace: simt.Trace = field(repr=False)
    launches: list[list[list[requests.Request]]] = field(repr=False)
    schedules: list[schedule.Schedule] = field(repr=False)
    content: dict[str, Any] = field(repr=False)

    @property
    def tile(self) -> Tile:
        """The row of the tile table that was run."""
        return self.stage.tiles[self.row]

    @property
    def steps(self) -> int:
        """How many it has."""
        return sum(len(schedule.steps) for schedule in self.schedules)

    def counts(self, launch: int) -> simt.Counts:
        """What a launch's filmed block asks of the memories, by `requests`' model."""
        return requests.count([each for warp in self.launches[launch] for each in warp])


def smallest_row(stage: Stage) -> int:
    """The row of the tile table with the fewest results, of those without clusters.

    Raises:
        CannotFilm: all rows work in clusters, and a trace is one block's.
    """
    rows = [row for row, tile in enumerate(stage.tiles) if tile.cluster == 1]
    if not rows:
        raise CannotFilm(
            f"film: each tile of {stage.name} is made by a cluster of blocks, and a film shows one"
        )
    tiles = stage.tiles
    return min(rows, key=lambda row: (tiles[row].BM * tiles[row].BN, tiles[row].threads))


def shape_of(stage: Stage, row: int) -> tuple[int, int, int]:
    """M, N, K of the product that is filmed: one tile, and as many slices as say it all."""
    tile = stage.tiles[row]
    if not tile.buffers:
        return tile.BM, tile.BN, DEPTHS.get(stage.name, DEPTH)
    slices = tile.buffers + MORE_SLICES if tile.buffers > 1 else SLICES
    return tile.BM, tile.BN, tile.BK * slices


def make(stage: Stage) -> Film:
    """Run a small product through a stage's source in the emulator, and film it.

    Raises:
        CannotFilm: there are no sources here, or no row of its table can be shown.
    """
    if not stage_code.path_of(stage).exists():
        raise CannotFilm(f"film: needs the sources of a checkout; no {stage_code.path_of(stage)}")
    row = smallest_row(stage)
    # gemv spreads columns over all multiprocessors: with one, a block has all that it can have.
    with simt.configure(row=row, sm_count=1 if stage.name == "gemv" else None):
        trace = simt.trace(stage.name, *shape_of(stage, row), asynchronous=True)
    launches = [requests.programs(trace, i) for i in range(len(trace.launches))]
    schedules = [schedule.replay(p, trace, i) for i, p in enumerate(launches)]
    content = _content(stage, row, trace, launches, schedules)
    return Film(stage, row, trace, launches, schedules, content)


class _Coder:
    """Steps as numbers: each different instruction once, then for a step where it is."""

    def __init__(self) -> None:
        self.patterns: list[list[int]] = []
        self.templates: list[list[int]] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self.columns: dict[str, list[int]] = {name: [] for name in ("t", "w", "g", "s", "x")}
        self.changes: list[list[int]] = []

    def _number(self, items: list[Any], item: list[int], kind: str) -> int:
        key = (kind, *item)
        if key not in self._known:
            self._known[key] = len(items)
            items.append(item)
        return self._known[key]

    def _pattern(self, places: np.ndarray) -> tuple[int, int]:
        """The number of a pattern of lanes, and where it begins; -1 where no lane has a place."""
        used = places[places >= 0]
        if not len(used):
            return -1, 0
        base = int(used.min())
        relative = np.where(places >= 0, places - base, -1).tolist()
        return self._number(self.patterns, relative, "pattern"), base

    def add(self, step: schedule.Step) -> None:
        each = step.request
        number = len(self.columns["t"])
        if each is None:
            template = [LANDING, -1, 0, 0, 0, -1, -1, 0, 0, 0]
            place = step.warp, 0, step.smem, step.box
        else:
            (g, g_base), (s, s_base) = self._pattern(each.gmem), self._pattern(each.smem)
            mask = int(sum(1 << lane for lane in each.lanes.tolist()))
            moves = each.kind in requests.LOADS_AND_STORES or each.kind == "tma"
            template = [
                simt.KINDS.index(each.kind), each.place, mask, each.bytes if moves else 0,
                ord(each.operand) if each.operand else 0, g, s, *each.wavefronts(),
            ]  # fmt: skip
            extra = each.number if each.number >= 0 else 0 if moves else each.bytes
            place = each.warp, g_base, s_base, extra
        values = (self._number(self.templates, template, "template"), *place)
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        self.changes += [[number, *state] for state in step.changed]


def _content(
    stage: Stage, row: int, trace: simt.Trace,
    launches: list[list[list[requests.Request]]], schedules: list[schedule.Schedule],
) -> dict[str, Any]:  # fmt: skip
    tile = stage.tiles[row]
    coder = _Coder()
    told = []
    for number, launch in enumerate(trace.launches):
        told.append({
            "first": len(coder.columns["t"]),
            "grid": launch.grid,
            "threads": math.prod(launch.threads),
            "arrays": [[a.name, a.offset, a.bytes] for a in launch.arrays],
            "named": _is_named(launches[number]),
        })  # fmt: skip
        for step in schedules[number].steps:
            coder.add(step)
    limbs = counts.limbs_of(stage, tile)
    files = _files(stage, trace)
    return {
        "stage": stage.name, "rung": stage.rung, "idea": stage.idea, "file": Path(stage.file).name,
        "shape": [trace.m, trace.n, trace.k], "tile": [tile.BM, tile.BN, tile.BK],
        "team": tile.team, "slots": tile.buffers, "limbs": limbs,
        "halves": _halves(stage, tile, limbs),
        "kinds": [*simt.KINDS, "landing"],
        "launches": told,
        "places": [[_telling(frames), *frames] for frames in trace.frames],
        "files": files,
        "patterns": coder.patterns, "templates": coder.templates, "steps": coder.columns,
        "changes": coder.changes,
        "boxes": [
            [ord(b.operand) if b.operand else 0, b.base, *b.at, *b.size, *b.box, *b.stride,
             b.element, b.swizzle, b.array, b.offset]
            for b in trace.boxes
        ],
        "products": [
            [p.a, p.a_group, p.a_row, p.b, p.b_group, p.b_row, p.columns, p.tile, int(p.accumulate)]
            for p in trace.products
        ],
    }  # fmt: skip


def _halves(stage: Stage, tile: Tile, limbs: int) -> list[list[int]]:
    """Where slots lie that threads fill with limbs by cp.async: begin and bytes of one, A then B.

    All of A's come first in shared memory (emulation/limbs.h); of boxes the trace itself tells.
    """
    if not limbs or not tile.buffers or stage.min_sm >= 90:
        return []
    a, b = (size * tile.BK * limbs * 2 for size in (tile.BM, tile.BN))
    return [[0, a], [tile.buffers * a, b]]


def _is_named(programs: list[list[requests.Request]]) -> bool:
    """Whether what threads store to shared memory is what they loaded, word by word."""
    threads = WARP * len(programs)
    words = {"global load": np.zeros(threads, int), "shared store": np.zeros(threads, int)}
    for each in (r for program in programs for r in program):
        if each.kind == "shared store" or (each.kind == "global load" and each.operand in "AB"):
            words[each.kind][each.warp * WARP + each.lanes] += each.bytes // 4
    return bool(words["shared store"].any()) and bool(
        (words["global load"] == words["shared store"]).all()
    )


@functools.cache
def _own() -> frozenset[str]:
    """Files in which a stage is written; what the others have is said to the machine."""
    rooms = ("stages", *stage_code.ROOMS, "emulation")
    return frozenset(p.name for room in rooms for p in (stage_code.SOURCE / room).rglob("*.*"))


def _telling(frames: Sequence[str]) -> int:
    """Which of a place's lines says most: the innermost of the stage, its loop, its limbs."""
    mine = [i for i, line in enumerate(frames) if line.rpartition(":")[0] in _own()]
    return mine[-1] if mine else 0


def _files(stage: Stage, trace: simt.Trace) -> dict[str, str]:
    """The files whose lines a trace names, the stage's first."""
    names = {line.rpartition(":")[0] for frames in trace.frames for line in frames}
    names.add(Path(stage.file).name)
    found = {path.name: path for path in stage_code.SOURCE.rglob("*") if path.name in names}
    order = sorted(found, key=lambda name: (not name.endswith(".cu"), name))
    return {name: found[name].read_text(encoding="utf-8") for name in order}
