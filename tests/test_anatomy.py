"""A stage's schedule as a trace shows it: true of every stage, and known in detail of some."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import xgemm_torch
from xgemm_torch import simt
from xgemm_torch.course import anatomy, counts, limb_pictures, pictures
from xgemm_torch.tools import timing

SOURCES = Path(__file__).parent.parent / "csrc" / "xgemm" / "stages"
STAGES = {stage.name: stage for stage in xgemm_torch.stages()}
each_stage = pytest.mark.parametrize("stage", list(STAGES))
# A trace knows nothing of TMA.
BY_TMA = [name for name, stage in STAGES.items() if not counts.is_counted(stage)]
STAGED = [name for name, stage in STAGES.items() if stage.tiles[0].buffers and name not in BY_TMA]


@functools.cache
def _drawn(name, layout):
    return anatomy.of(STAGES[name], layout)


def schedule(name, layout="NN"):
    """A stage's schedule, traced once for all tests that look at it."""
    return _drawn(name, layout)


@pytest.mark.parametrize("layout", ["NN", "TT"])
@each_stage
def test_every_element_has_its_owner_and_every_read_is_for_a_result(stage, layout):
    drawn = schedule(stage, layout)
    tile = STAGES[stage].tiles[counts.best_row(STAGES[stage])]
    # Blocks of these have as many warps as their chains ask for, which are few here.
    fewer = stage == "tma_gemv" or stage == "gemv" and layout == "TT"
    assert drawn.threads == tile.threads + tile.producers or fewer
    assert drawn.rows == tile.BM and (drawn.owner >= 0).all()
    # Where its lanes walk k, blocks of gemv have fewer columns.
    along_k = fewer or layout == "TT" and stage == "gemv"
    if not along_k:
        assert drawn.columns == tile.BN
        results = np.bincount(drawn.owner.reshape(-1), minlength=tile.threads)
        if stage == "dot":  # the first of each team stores
            assert set(results.tolist()) == {0, 1}
        else:
            assert (results == tile.TM * tile.TN).all() and len(results) == tile.threads
    assert drawn.stray_reads() == 0
    assert drawn.staged == (stage in STAGED and drawn.named)
    # Stages that are not strict may turn their operands into something else on the way; of outer's
    # one passes shared memory and one does not.
    exact = STAGES[stage].strict and not along_k and stage != "outer"
    assert not drawn.named if stage in BY_TMA else drawn.named or not exact


@pytest.mark.parametrize("stage", BY_TMA)
def test_nothing_is_shown_of_what_tma_brings(stage):
    drawn = schedule(stage)
    assert not any(map(len, (drawn.loads, drawn.copies, drawn.stores, drawn.reads)))
    assert ("TMA" in drawn.caption()) == STAGES[stage].tiles[0].by_tma
    assert not counts.of(stage)["counted"] and set(counts.cells(counts.of(stage))) == {"-"}


@pytest.mark.parametrize("layout", list(timing.LAYOUTS))
@pytest.mark.parametrize("stage", [name for name in STAGED if not STAGES[name].strict])
def test_all_limbs_of_both_operands_arrive_once(stage, layout):
    drawn = schedule(stage, layout)
    m, n, k = drawn.shape
    for operand, shape in (("A", (m, k)), ("B", (k, n))):
        seen = np.zeros(shape, dtype=np.int64)
        words = drawn.copies.of(operand)
        np.add.at(seen, (words.i, words.j), 1)
        # A word is of two neighbours along k, and says the first.
        even, odd = (seen[:, ::2], seen[:, 1::2]) if operand == "A" else (seen[::2], seen[1::2])
        assert (even == drawn.limbs).all() and (odd == 0).all()


@pytest.mark.parametrize("stage", list(STAGES))
def test_all_of_both_operands_arrives(stage):
    drawn = schedule(stage)
    if drawn.limbs or stage in BY_TMA:
        assert not len(drawn.loads)  # FP32 arrives in the launch before, which splits it, or by TMA
        return
    m, n, k = drawn.shape
    for operand, shape in (("A", (m, k)), ("B", (k, n))):
        seen = np.zeros(shape, dtype=np.int64)
        for words in (drawn.loads.of(operand), drawn.copies.of(operand)):
            np.add.at(seen, (words.i, words.j), 1)
        assert (seen >= 1).all()
        if drawn.staged:
            assert (seen == 1).all()  # shared memory is for loading once


@pytest.mark.parametrize("stage", STAGED)
def test_a_slice_is_read_after_it_was_stored_and_all_of_it(stage):
    drawn = schedule(stage)
    stored = drawn.slices(drawn.stores) or drawn.slices(drawn.copies)
    first_stored = {}
    for phase, numbers in sorted(stored.items()):
        for number in numbers:
            first_stored.setdefault(number, phase)
    reads = drawn.slices(drawn.reads)
    for phase, numbers in reads.items():
        assert all(first_stored[number] < phase for number in numbers)
    slices = set(range(math.ceil(drawn.shape[2] / drawn.depth)))
    assert set().union(*map(set, reads.values())) == slices == set(first_stored)


def test_owners_of_the_first_two_rungs_are_transposed():
    naive, coalesced = (schedule(name) for name in ("naive", "coalesced"))
    assert (naive.owner == np.arange(1024).reshape(32, 32).T).all()
    assert (coalesced.owner == np.arange(1024).reshape(32, 32)).all()


def test_a_warps_first_load_of_the_first_two_rungs():
    for name, rows, columns in (("naive", 32, 1), ("coalesced", 1, 32)):
        drawn = schedule(name)
        a, b = drawn.loads.of("A"), drawn.loads.of("B")
        one_of_a, one_of_b = a[a.request == a.request[0]], b[b.request == b.request[0]]
        assert len(one_of_a) == len(one_of_b) == 32
        assert len(np.unique(one_of_a.i)) == rows and set(one_of_a.j) == {0}
        assert len(np.unique(one_of_b.j)) == columns and set(one_of_b.i) == {0}


def phases(drawn, words, slice_):
    return [phase for phase, numbers in drawn.slices(words).items() if slice_ in numbers]


def test_timeline_of_one_buffer():
    drawn = schedule("smem_tiled")
    assert drawn.phases == 2 * 4 + 1
    for number in range(4):
        assert phases(drawn, drawn.loads, number) == [2 * number]
        assert phases(drawn, drawn.stores, number) == [2 * number]
        assert phases(drawn, drawn.reads, number) == [2 * number + 1]


@pytest.mark.skipif("register_prefetch" not in STAGES, reason="the build has no such stage")
def test_timeline_of_a_prefetch():
    drawn = schedule("register_prefetch")
    for number in range(1, 4):
        # Loaded while the slice before is read, stored after the barrier that ends that.
        assert phases(drawn, drawn.loads, number) == phases(drawn, drawn.reads, number - 1)
        assert phases(drawn, drawn.stores, number) == [
            1 + phase for phase in phases(drawn, drawn.reads, number - 1)
        ]


def places_of(words, slice_, depth):
    k = np.where(words.operand == ord("A"), words.j, words.i)
    return set(words.word[k // depth == slice_].tolist())


@pytest.mark.skipif("smem_double_buffered" not in STAGES, reason="the build has no such stage")
def test_timeline_of_two_buffers():
    drawn = schedule("smem_double_buffered")
    for number in range(1, 5):
        # Stored while the slice before is read: elsewhere.
        assert phases(drawn, drawn.stores, number) == phases(drawn, drawn.reads, number - 1)
        here, before = (places_of(drawn.stores, each, drawn.depth) for each in (number, number - 1))
        assert here and not here & before


@pytest.mark.skipif("cp_async_pipelined" not in STAGES, reason="the build has no such stage")
def test_timeline_of_a_ring():
    drawn = schedule("cp_async_pipelined")
    tile = STAGES["cp_async_pipelined"].tiles[counts.best_row(STAGES["cp_async_pipelined"])]
    assert not len(drawn.stores) and len(drawn.copies)
    ahead = [
        phases(drawn, drawn.reads, number)[0] - phases(drawn, drawn.copies, number)[0]
        for number in range(tile.buffers - 1, math.ceil(drawn.shape[2] / drawn.depth))
    ]
    assert ahead and set(ahead) == {tile.buffers - 1}


@pytest.mark.skipif("smem_conflicted" not in STAGES, reason="the build has no such stage")
def test_banks_of_a_conflict():
    drawn = schedule("smem_conflicted")
    for words in (drawn.stores.of("B"), drawn.reads.of("B")):
        assert pictures._in_banks(pictures._fullest(words)).max() == 32
    for words in (drawn.stores.of("A"), drawn.reads.of("A")):
        assert pictures._in_banks(pictures._fullest(words)).max() == 1


def own_lines(stage, told):
    """The lines of the counts that are of the stage's file: not those of the split."""
    file = Path(STAGES[stage].file).name
    return [line for line in told["lines"] if line["place"].startswith(file)]


def are_of_scales(places):
    """Whether lines of stages take part in undoing scales, which nothing shows."""
    for file, number in (place.split(":") for place in places):
        (path,) = SOURCES.glob(f"*/{file}")
        line = path.read_text().splitlines()[int(number) - 1]
        if "scales" not in line and ".store(" not in line:
            return False
    return True


@pytest.mark.parametrize("stage", STAGED)
def test_worst_conflict_in_the_picture_is_the_counted_one(stage):
    drawn = schedule(stage)
    told = own_lines(stage, counts.of(stage, drawn.shape))
    shown = {}
    for line, what, words in pictures._by_line(drawn):
        kind = "load" if what.startswith("read") else "store"
        ways = int(pictures._in_banks(pictures._fullest(words)).max())
        shown[line, kind] = max(ways, shown.get((line, kind), 0))
    counted = {(line["place"], line["kind"]): line["ways"] for line in told}
    if drawn.limbs:  # scales pass through shared memory, too, and are not drawn
        assert are_of_scales({place for place, _ in counted.keys() - shown.keys()})
        counted = {key: ways for key, ways in counted.items() if key in shown}
    assert shown and shown == counted


def test_a_vector_along_a_column_of_a_transposed_operand():
    # 16-byte loads of A stored as (k, m) hold four rows of one column.
    drawn = anatomy.of(STAGES["vec4_128x128"], "TN")
    a = drawn.loads.of("A")
    first = a[a.thread == 0][np.arange(4)]
    assert list(first.i) == [0, 1, 2, 3] and set(first.j) == {0}


def test_a_stage_whose_stores_are_not_its_loads_shows_its_tile_alone(monkeypatch, tmp_path):
    real = anatomy._Table.take

    def take(self, kind, operands=None):
        words = real(self, kind, operands)
        return words[np.arange(len(words) - 1)] if kind == "shared store" else words

    monkeypatch.setattr(anatomy._Table, "take", take)
    drawn = anatomy.of(STAGES["smem_tiled"])
    assert not drawn.named and not drawn.staged and not len(drawn.reads)
    assert "which are not shown" in drawn.caption()
    assert [name for name, _ in pictures.available(drawn)] == ["tile"]
    pictures.draw(drawn, "tile", tmp_path / "x.svg")


def test_digest_is_of_the_schedule():
    one, other = schedule("naive"), schedule("coalesced")
    again = anatomy.of(STAGES["naive"])
    assert one.digest() == again.digest() != other.digest()


@each_stage
def test_pictures_are_small_and_say_what_they_show(stage, tmp_path):
    drawn = schedule(stage)
    names = [name for name, _ in pictures.available(drawn)]
    more = ["limbs", *["ring"] * STAGES[stage].tiles[0].by_tma] * bool(drawn.limbs)
    assert names == [*more, *(["tile", "banks", "timeline"] if drawn.staged else ["tile"])]
    for name in names:
        file = tmp_path / f"{name}.svg"
        pictures.draw(drawn, name, file)
        assert 1_500 < file.stat().st_size < 16_000
        assert drawn.digest() in file.read_text()


def test_pictures_that_look_the_same_are_told(tmp_path):
    """Rung 7 differs from rung 6 by the shape of its block alone, rung 8 by its banks."""
    for name in ("tile", "timeline", "banks"):
        shown = [
            pictures.shows(schedule(stage), name)
            for stage in ("smem_conflicted", "smem_conflicted_1d", "smem_transposed")
        ]
        assert shown[0] == shown[1]
        assert (shown[1] == shown[2]) == (name != "banks")
    one, other = (schedule(stage) for stage in ("smem_conflicted", "smem_conflicted_1d"))
    for drawn, file in ((one, "one.svg"), (other, "other.svg")):
        pictures.draw(drawn, "timeline", tmp_path / file)
    texts = [(tmp_path / file).read_text() for file in ("one.svg", "other.svg")]
    assert texts[1].replace("7 smem_conflicted_1d", "6 smem_conflicted").replace(
        other.digest(), one.digest()
    ) == texts[0]  # fmt: skip


def test_a_picture_is_the_same_file_each_time_and_may_be_a_png(tmp_path):
    drawn = schedule("smem_tiled")
    for name, _ in pictures.available(drawn):
        for file in ("one.svg", "two.svg", "three.png"):
            pictures.draw(drawn, name, tmp_path / file)
        assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
        assert (tmp_path / "three.png").read_bytes().startswith(b"\x89PNG")


@each_stage
def test_counts_are_of_whole_tiles_and_of_every_line_that_a_picture_shows(stage):
    tile = STAGES[stage].tiles[counts.best_row(STAGES[stage])]
    m, n, k = counts.SHAPE
    # A block of these has more columns than that, if there are so many.
    assert m % tile.BM == 0 and k % tile.BK == 0
    assert n % tile.BN == 0 or stage in ("gemv", "outer", "tma_gemv")
    if stage not in BY_TMA:
        # All buffers are filled once: a pipeline's first slices and those that its loop brings in.
        assert k >= tile.BK * tile.buffers
    drawn = schedule(stage)
    if drawn.named:
        lines = {line for line, _, _ in pictures._by_line(drawn)}
        told = {line["place"] for line in own_lines(stage, counts.of(stage))}
        if stage == "short_k":  # a K that is no whole run of its copies has a line for the rest
            file = Path(STAGES[stage].file).name
            lines -= {place for place in lines - told if place.startswith(file)}
        assert lines <= told
        assert lines == told or (drawn.limbs and are_of_scales(told - lines))


@pytest.mark.parametrize("limbs", [2, 3])
def test_a_float_is_the_sum_of_its_limbs(limbs):
    generator = torch.Generator().manual_seed(0)
    for x in (2.0**14 * (1 + torch.rand(200, generator=generator))).tolist():
        found = limb_pictures.decompose(x, limbs)
        assert len(found) == limbs
        # Two of 11 bits and a sign each hold 23; three of 8 hold all 24.
        assert abs(x - sum(found)) <= (2.0**-9 if limbs == 2 else 0)


def test_bits_of_a_number():
    assert limb_pictures.bits(20480.0) == (14, "101")
    assert limb_pictures.bits(-20480.0, 11) == (14, "10100000000")
    assert limb_pictures.bits(-(2.0**-8), 11) == (-8, "10")  # to the last bit of FP32


def test_a_ring_shows_every_product():
    drawn = schedule("wgmma_bf16x6")
    axes = limb_pictures.draw(drawn, "ring").axes[0]
    slices = drawn.tile.buffers + 3
    colors = Counter(patch.get_facecolor()[:3] for patch in axes.patches)
    # Of each slice: fetched, multiplied into P and Q, added.
    assert sorted(colors.values()) == [slices] * 4
    # Six products of 32 of K are twelve instructions.
    assert axes.get_xlim()[1] == 12 * slices


def test_counting_and_tracing_take_the_fastest_row():
    stage = STAGES["vec4_128x128"]
    assert counts.best_row(stage) == 0
    slow, fast = replace(stage.tiles[0], rate=1.0), replace(stage.tiles[0], rate=2.0)
    assert counts.best_row(replace(stage, tiles=(slow, fast, slow))) == 1
    assert simt.trace(stage.name, 128, 128, 8).launches[0].grid == (1, 1, 1)
