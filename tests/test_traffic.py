"""What a kernel asks of memory: a block's events, and a grid's counts, against counts by hand."""

from __future__ import annotations

import math
from pathlib import Path

import problems
import pytest
import torch

import xgemm_torch
from xgemm_torch import _C, simt

STRIDES = Path(__file__).parent.parent / "csrc" / "emulator" / "strides.cu"


def line(code: str) -> str:
    """Where the probe with strides holds this code."""
    found = [n for n, text in enumerate(STRIDES.read_text().splitlines(), 1) if code in text]
    assert len(found) == 1, found
    return f"strides.cu:{found[0]}"


def source(file: str) -> list[str]:
    """The lines of a stage, without comments."""
    (path,) = (STRIDES.parents[1] / "xgemm" / "stages").glob(f"*/{file}")
    text = path.read_text()
    return [line.split("//")[0] for line in text.splitlines()]


def strided(width, *, share=1, load=1, store=1, move=1, first=0, lanes=32) -> simt.Counts:
    """What one warp's accesses cost, one of each kind."""
    rows = _C.simt_probe_traffic(width, share, load, store, move, first, lanes)
    counts = {place.at: counts for place, counts in simt._places(rows).items()}
    assert len(counts) == 4
    loads, stores = counts[line("From[lane /")], counts[line("To[lane *")]
    assert counts[line("From[i] =")].shared_store.conflicts == 0
    return simt.Counts(
        loads.shared_load,
        stores.shared_store,
        counts[line("= b[lane *")].global_load,
        loads.global_store,
    )


# Lanes are `stride` vectors of `width` floats apart, `share` of them at one address.
@pytest.mark.parametrize(
    "width, stride, share, wavefronts, ideal, ways",
    [
        (1, 0, 1, 1, 1, 1),  # a broadcast
        (1, 1, 1, 1, 1, 1),
        (1, 2, 1, 2, 1, 2),
        (1, 4, 1, 4, 1, 4),
        (1, 32, 1, 32, 1, 32),
        (1, 33, 1, 1, 1, 1),  # padded rows
        (1, 32, 8, 4, 1, 4),
        (2, 0, 1, 1, 1, 1),  # pairs of lanes agree: both halves of the warp at once
        (2, 1, 1, 2, 2, 1),
        (2, 1, 2, 1, 1, 1),
        (2, 2, 1, 4, 2, 2),
        (2, 16, 1, 32, 2, 16),
        (4, 0, 1, 2, 2, 1),  # as measured on an H200
        (4, 1, 1, 4, 4, 1),  # as measured on an H200
        (4, 1, 2, 2, 2, 1),
        (4, 1, 16, 2, 2, 1),
        (4, 2, 1, 8, 4, 2),
        (4, 8, 1, 32, 4, 8),
        (4, 9, 1, 4, 4, 1),
    ],
)
def test_wavefronts_of_shared_loads(width, stride, share, wavefronts, ideal, ways):
    found = strided(width, load=stride, share=share).shared_load
    assert (found.requests, found.bytes) == (1, 128 * width)
    assert (found.wavefronts, found.ideal, found.ways) == (wavefronts, ideal, ways)
    assert found.conflicts == wavefronts - ideal


@pytest.mark.parametrize(
    "width, stride, wavefronts, ideal",
    [(1, 1, 1, 1), (1, 2, 2, 1), (1, 32, 32, 1), (1, 33, 1, 1), (2, 1, 2, 2), (2, 2, 4, 2)]
    + [(4, 1, 4, 4), (4, 2, 8, 4), (4, 8, 32, 4), (4, 33, 4, 4)],
)
def test_wavefronts_of_shared_stores(width, stride, wavefronts, ideal):
    found = strided(width, store=stride).shared_store
    assert (found.requests, found.wavefronts, found.ideal) == (1, wavefronts, ideal)


@pytest.mark.parametrize(
    "width, stride, first, lanes, sectors, ideal",
    [
        (1, 1, 0, 32, 4, 4),
        (1, 1, 1, 32, 5, 4),  # 4 bytes past a sector
        (1, 1, 8, 32, 4, 4),
        (1, 2, 0, 32, 8, 4),
        (1, 8, 0, 32, 32, 4),
        (1, 33, 0, 32, 32, 4),
        (1, 1, 0, 5, 1, 1),
        (1, 1, 7, 5, 2, 1),
        (2, 1, 0, 32, 8, 8),
        (4, 1, 0, 32, 16, 16),
        (4, 1, 4, 32, 17, 16),
        (4, 2, 0, 32, 32, 16),
    ],
)
def test_sectors_of_global_accesses(width, stride, first, lanes, sectors, ideal):
    found = strided(width, move=stride, first=first, lanes=lanes)
    for counts in (found.global_load, found.global_store):
        assert (counts.requests, counts.bytes) == (1, 4 * width * lanes)
        assert (counts.sectors, counts.ideal, counts.most) == (sectors, ideal, sectors)
        assert counts.sectors_per_request == sectors


def test_the_same_word_for_all_lanes_is_one_sector():
    found = simt.traffic("naive", 32, 1, 3).total.global_load
    # B's one column, k by k: 32 lanes along M read one element of B and 32 rows of A.
    a, b = 3 * 32, 3
    assert found.requests == 6 and found.bytes == 6 * 128
    # Rows of A are 12 bytes apart: 32 of them span 12 sectors, wherever in the row.
    assert found.sectors == 3 * 12 + b and found.ideal == a // 8 + b


def test_smem_tiled_by_hand():
    """Counts of 64 x 96 x 64: 6 blocks of 32 warps, 2 slices of 32 each."""
    found = simt.traffic("smem_tiled", 64, 96, 64)
    warps, slices = 6 * 32, 2
    total = found.total
    assert found.fmas == 64 * 96 * 64
    # A thread stores an element of A and one of B; then 32 times a broadcast of A, a row of B.
    for counts, each in ((total.shared_store, 2), (total.shared_load, 2 * 32)):
        assert counts.requests == counts.wavefronts == counts.ideal == warps * slices * each
        assert (counts.conflicts, counts.ways) == (0, 1)
    # Whole rows of 128 bytes.
    assert total.global_load.requests == warps * slices * 2
    assert total.global_load.sectors == total.global_load.ideal == 4 * warps * slices * 2
    assert total.global_store.requests == warps and total.global_store.sectors == 4 * warps
    assert sum(found.lines.values(), simt.Counts()) == total
    assert all(at.startswith("05_smem_tiled.cu:") for at in found.lines)


def test_padding_leaves_transposed_stores_four_to_a_bank():
    """smem_tiled stores a transposed A down columns of 36 floats: 8 banks for 32 lanes."""
    found = simt.traffic("smem_tiled", 32, 32, 32, trans_a=True).total.shared_store
    assert (found.ways, found.wavefronts, found.ideal) == (4, 32 * (4 + 1), 64)


def test_coalescing_is_what_sets_the_first_two_stages_apart():
    naive, coalesced = (simt.traffic(s, 64, 64, 32).total for s in ("naive", "coalesced"))
    assert naive.global_load.requests == coalesced.global_load.requests == 2 * 128 * 32
    assert naive.global_store.sectors_per_request == 32
    assert coalesced.global_store.sectors_per_request == 4
    assert naive.global_load.sectors == 128 * 32 * (32 + 1)
    assert coalesced.global_load.sectors == 128 * 32 * (4 + 1)


def test_vectors_are_counted_as_vectors():
    found = simt.traffic("vec4_128x128", 128, 128, 16).total
    # 8 warps; each k: 4 loads of 16 bytes, two of A that half a warp shares, two of B.
    assert found.shared_load.requests == 8 * 16 * 4
    assert found.shared_load.wavefronts == found.shared_load.ideal == 8 * 16 * (2 + 2 + 4 + 4)
    assert found.global_load.requests == 2 * 8 * 2
    assert found.global_load.bytes == 2 * 128 * 16 * 4
    assert found.global_store.requests == 8 * 16 and found.global_store.bytes == 128 * 128 * 4


def touched(stage, m, n, k, **flags):
    """How often each element of A, B and D is loaded or stored by all blocks of all launches."""
    seen = {"A": torch.zeros(m, k), "B": torch.zeros(k, n), "D": torch.zeros(m, n)}
    block, blocks = 0, 1
    while block < blocks:
        trace = simt.trace(stage, m, n, k, block=block, **flags)
        block, blocks = block + 1, max(math.prod(launch.grid) for launch in trace.launches)
        for operand, hits in seen.items():
            some = trace.where(operand=operand)
            i, j = some.column("i"), some.column("j")
            floats = some.column("bytes") // 4
            down = operand != "D" and flags[f"trans_{operand.lower()}"]
            for step in range(int(floats.max()) if len(some) else 0):
                at = (i + step, j) if down else (i, j + step)
                # A copy of 16 bytes at the end of a row may bring fewer.
                more = (floats > step) & (at[0] < hits.shape[0]) & (at[1] < hits.shape[1])
                hits.index_put_((at[0][more], at[1][more]), torch.ones(()), accumulate=True)
    return seen


@pytest.mark.parametrize("stage", problems.EMULATED)
def test_a_stage_of_limbs_is_traced(stage):
    m, n, k = 41, 37, 70  # rows that TMA cannot take, of which a trace knows nothing
    flags = {"trans_a": True, "trans_b": False}
    trace = simt.trace(stage, m, n, k, **flags)
    # Where operands are split ahead, behind the product a launch makes units anew: none here.
    product = {"dot": 0}.get(stage, 1)
    assert len(trace.launches) == {"wgmma_narrow": 2, "dot": 1}.get(stage, 3)
    assert set(trace.where(operand="D").column("launch").tolist()) == {product}
    seen = touched(stage, m, n, k, **flags)
    assert torch.equal(seen["D"], torch.ones(m, n))
    assert seen["A"].min() >= 1 and seen["B"].min() >= 1


def test_blocks_of_a_cluster_add_up_in_one_launch_what_they_have():
    trace = simt.trace("wgmma_narrow", 40, 36, 300)
    assert len(trace.launches) == 1
    assert trace.launches[0].grid[0] > 1 and len(trace.where(operand="D")) > 0


@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("stage", problems.STRICT)
def test_every_stage_is_traced_and_counted(stage, layout):
    m, n, k = 37, 70, 19
    flags = {"trans_a": layout[0] == "T", "trans_b": layout[1] == "T"}
    counts = simt.traffic(stage, m, n, k, **flags)
    a, b, _ = problems.operands(m, n, k, layout)
    more = counts.total.global_store.bytes - 4 * m * n  # to a workspace
    assert more >= 0
    assert not more or xgemm_torch.explain(a, b, **flags, kernel=stage).workspace
    file = next(Path(s.file).name for s in xgemm_torch.stages() if s.name == stage)
    assert counts.lines and all(at.startswith(file + ":") for at in counts.lines)

    # What a thread copies, it waits for: as many bytes land as are issued.
    first = simt.trace(stage, m, n, k, **flags)
    issued, waits = first.where(kind="copy issue"), first.where(kind="copy wait")
    assert issued.column("bytes").sum() == waits.column("bytes").sum()
    headers = (
        "producer", "warp_specialized", "multistage", "gemv", "gemv_tma", "small_tile"
    )  # fmt: skip
    copies = any("cp_async" in s or any(f"/{h}.h" in s for h in headers) for s in source(file))
    # Of these some rows, and some layouts, do without.
    assert bool(len(issued)) == copies or (copies and stage in problems.SPLITS)
    assert (issued.column("array") >= 0).all() and (waits.column("array") < 0).all()

    seen = touched(stage, m, n, k, **flags)
    assert torch.equal(seen["D"], torch.ones(m, n))  # each element is stored once ...
    assert seen["A"].min() >= 1 and seen["B"].min() >= 1  # ... of all elements of A and B


def test_a_trace_of_smem_tiled():
    trace = simt.trace("smem_tiled", 32, 32, 64, trans_b=True)
    (launch,) = trace.launches
    assert launch.grid == (1, 1, 1) and launch.threads == (32, 32, 1)
    bytes_a = 32 * 36 * 4
    assert launch.arrays == (
        simt.SharedArray("As", 0, bytes_a),
        simt.SharedArray("Bs", bytes_a, bytes_a),
    )
    # A slice: 2 global loads, 2 shared stores, barrier, 64 shared loads, barrier. Then the result.
    assert len(trace) == len(trace.table) == 1024 * (2 * (2 + 2 + 1 + 64 + 1) + 1)
    one = list(trace.where(thread=67))  # (3, 2)
    kinds = [event.kind for event in one]
    first = ["global load"] * 2 + ["shared store"] * 2 + ["barrier"]
    assert kinds[:5] == first and kinds[70:75] == first and kinds[-1] == "global store"
    assert [event.phase for event in one] == [0] * 5 + [1] * 65 + [2] * 5 + [3] * 65 + [4]
    a, b = one[70:72]
    assert (a.operand, a.i, a.j, a.bytes) == ("A", 2, 32 + 3, 4)
    assert (b.operand, b.i, b.j, b.bytes) == ("B", 32 + 3, 2, 4)  # along k, whatever the layout
    store_a, store_b = one[72:74]
    assert (store_a.array, store_a.offset) == ("As", (2 * 36 + 3) * 4)
    assert (store_b.array, store_b.offset) == ("Bs", (3 * 36 + 2) * 4)
    assert (one[-1].operand, one[-1].i, one[-1].j) == ("D", 2, 3)
    assert one[0].place.at.startswith("05_smem_tiled.cu:")
    stored = trace.where(kind="shared store", array="As", phase=0)
    assert sorted(stored.column("offset").tolist()) == [
        4 * (36 * row + column) for row in range(32) for column in range(32)
    ]
    assert {e.place.at for e in trace.where(place=one[4].place.at)} == {one[4].place.at}


def test_a_trace_of_another_block():
    trace = simt.trace("coalesced", 40, 40, 1, block=3)
    stores = trace.where(kind="global store")
    assert {(e.i, e.j) for e in stores} == {(i, j) for i in range(32, 40) for j in range(32, 40)}


def test_a_trace_runs_in_one_order_and_leaves_the_settings():
    with simt.configure(order="reverse") as before:
        x = simt.trace("smem_tiled", 33, 5, 40)
    with simt.configure(order="random", seed=9):
        y = simt.trace("smem_tiled", 33, 5, 40)
    assert torch.equal(x.table, y.table) and before["order"] == "reverse"


def test_wrong_arguments():
    with pytest.raises(ValueError, match="no stage named 'nope'"):
        simt.trace("nope", 1, 1, 1)
    with pytest.raises(ValueError, match="no stage named 'nope'"):
        simt.traffic("nope", 1, 1, 1)
    with pytest.raises(ValueError, match="sizes must be positive"):
        simt.traffic("naive", 1, 0, 1)
    with pytest.raises(ValueError, match="no launch has a block 1"):
        simt.trace("naive", 1, 1, 1, block=1)
    with pytest.raises(ValueError, match="from 0"):
        simt.trace("naive", 1, 1, 1, block=-1)
    trace = simt.trace("naive", 1, 1, 1)
    with pytest.raises(ValueError, match="no column named 'nope'"):
        trace.where(nope=1)
    with pytest.raises(ValueError, match="no kind named 'nope'"):
        trace.where(kind="nope")


@pytest.mark.parametrize("stage", problems.STAGES)
def test_a_run_after_a_trace_is_as_before(stage):
    a, b, _ = problems.operands(40, 35, 20)
    want = xgemm_torch.sgemm(a, b, kernel=stage)
    simt.trace(stage, 40, 35, 20)
    assert torch.equal(xgemm_torch.sgemm(a, b, kernel=stage), want)


def test_smem_conflicted_is_32_way_on_store_and_read():
    found = simt.traffic("smem_conflicted", 64, 64, 64).total
    for counts, each in ((found.shared_load, 2 * 32), (found.shared_store, 2)):
        requests = 4 * 32 * 2 * each  # 4 blocks of 32 warps, 2 slices
        assert (counts.requests, counts.ideal, counts.ways) == (requests, requests, 32)
        assert counts.wavefronts == requests // 2 * (32 + 1)  # one operand 32-way, one not at all
