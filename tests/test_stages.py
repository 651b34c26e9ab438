"""Every stage of the registry, on the emulator and on a GPU: bits, edges, views, specials.

The oracle is one chain of fused multiply-adds; that in turn is held against libm's fmaf here. Bits
are compared as integers, so that -0 is not 0. A stage that is not strict is held to a bound on the
error of each element (`problems.right`); test_emulated.py has what it guarantees besides.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
from pathlib import Path

import problems
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import right, same_bits
from torch import Tensor

import xgemm_torch
from build_tools import ptxas
from xgemm_torch import _C, simt
from xgemm_torch.tools import contenders

STAGE_FILES = Path(__file__).parent.parent / "csrc" / "xgemm" / "stages"
U = 2.0**-24

on_every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
on_every_stage = pytest.mark.parametrize("stage", problems.STAGES)


def run(stage: str, a: Tensor, b: Tensor, c: Tensor | None = None, device="cpu", **options):
    """A stage's result on a device, on the CPU."""

    # A view is made anew there: .to() would give it other strides.
    def move(t):
        if t is None or device == "cpu":
            return t
        reach = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
        whole = t.as_strided((max(reach, 0) if t.numel() else 0,), (1,))
        return whole.to(device).as_strided(t.shape, t.stride())

    return getattr(torch.ops.xgemm, stage)(move(a), move(b), move(c), **options).cpu()


def chain(a: Tensor, b: Tensor, c: Tensor | None = None, **options) -> Tensor:
    """The strict product on the CPU."""
    return xgemm_torch.sgemm(a, b, c, precision="ieee", **options)


def test_the_chain_is_one_of_fmaf():
    fmaf = ctypes.CDLL("libm.so.6").fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    a, b, c = problems.wide(5, 9), problems.wide(9, 67), problems.wide(5, 67)
    got = chain(a, b, c, alpha=1.25, beta=-0.75)
    for i in range(5):
        for j in range(67):
            acc = 0.0
            for k in range(9):
                acc = fmaf(a[i, k].item(), b[k, j].item(), acc)
            scaled = (torch.tensor(-0.75) * c[i, j]).item()
            assert got[i, j].item() == fmaf(1.25, acc, scaled)


def test_names_files_and_sources():
    stages = xgemm_torch.stages()
    files = sorted(f"{p.parent.name}/{p.name}" for p in STAGE_FILES.glob("*/*.cu"))
    assert [s.file for s in stages] == files
    rungs = [s.rung for s in stages if s.rung]
    assert len(set(rungs)) == len(rungs)
    for s in stages:
        assert s.file == (f"ladder/{s.rung:02d}_{s.name}.cu" if s.rung else f"shapes/{s.name}.cu")
        assert s.idea and s.source and s.tiles
        assert "\n" not in s.idea and len(s.idea) < 100


def test_stage_files_are_short():
    for path in STAGE_FILES.glob("*/*.cu"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 400, path.name
        starts = [i for i, line in enumerate(lines) if "__global__" in line]
        for start in starts:
            length = lines[start:].index("}") + 1
            assert length <= 80, f"{path.name}: a kernel of {length} lines"


@on_every_device
@on_every_stage
@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("shape", problems.RAGGED, ids=str)
def test_products(stage, shape, layout, device):
    a, b, flags = problems.operands(*shape, layout, data=problems.TELLING[stage])
    c = problems.wide(*shape[:2])
    options = flags | {"alpha": 1.7, "beta": -0.3}
    assert right(stage, run(stage, a, b, c, device, **options), a, b, c, **options)
    assert right(stage, run(stage, a, b, device=device, **flags), a, b, **flags)


ROWS = [(stage.name, row) for stage in xgemm_torch.stages() for row in range(len(stage.tiles))]


@on_every_device
@pytest.mark.parametrize("stage, row", ROWS)
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_products_of_every_row(stage, row, layout, device):
    """Every tile of a stage's table is right, also where another would be chosen.

    Small, of partial tiles, and whole: without an edge, and with slices for more than all buffers.
    """
    tile = next(s for s in xgemm_torch.stages() if s.name == stage).tiles[row]
    partial = (tile.BM + 1, tile.BN + 5, 2 * tile.BK + 3)
    whole = (tile.BM, tile.BN, tile.BK * (tile.buffers + 2))
    cases = [((33, 31, 17), "plain"), (partial, "plain"), (whole, "plain"), (whole, "offset")]
    with simt.configure(row=row):
        for shape, view in cases:
            data = problems.TELLING[stage]
            a, b, flags = problems.operands(*shape, layout, data=data, views=(view, view))
            c = problems.wide(*shape[:2])
            options = flags | {"alpha": 1.7, "beta": -0.3}
            assert right(stage, run(stage, a, b, c, device, **options), a, b, c, **options)


@on_every_device
@pytest.mark.parametrize("row", [row for stage, row in ROWS if stage == "outer"])
@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("k", [2, 5, 8, 9])
def test_strips_of_a_short_product(k, row, layout, device):
    """outer takes strips of rows where they are enough for half of the multiprocessors."""
    a, b, flags = problems.operands(150, 530, k, layout, data="wide")
    c = problems.wide(150, 530)
    options = flags | {"alpha": 1.7, "beta": -0.3}
    with simt.configure(row=row, sm_count=1):
        assert right("outer", run("outer", a, b, c, device, **options), a, b, c, **options)
        assert right("outer", run("outer", a, b, device=device, **flags), a, b, **flags)


@on_every_device
@on_every_stage
def test_a_row_that_is_not_there(stage, device):
    a, b, _ = problems.operands(3, 4, 5)
    many = sum(name == stage for name, _ in ROWS)
    with simt.configure(row=many), pytest.raises(ValueError, match=f"{stage}: its tile table has"):
        run(stage, a, b, device=device)
    assert right(stage, run(stage, a, b, device=device), a, b)


@on_every_device
@on_every_stage
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_integers_are_exact(stage, layout, device):
    a, b, flags = problems.operands(66, 70, 300, layout, data="integers")
    exact = problems.exact(a, b, **flags)
    assert torch.equal(run(stage, a, b, device=device, **flags).double(), exact)


@on_every_device
@on_every_stage
@given(
    shape=st.tuples(*[st.integers(1, 70)] * 3),
    layout=st.sampled_from(problems.LAYOUTS),
    views=st.tuples(*[st.sampled_from(sorted(problems.VIEWS))] * 2),
    batch=st.tuples(*[st.sampled_from([None, 1, 3])] * 2),
    alpha=st.sampled_from([1.0, -2.0, 0.3]),
    beta=st.sampled_from([None, 0.0, 1.0, 0.7]),
    c_shape=st.sampled_from(["mn", "n", "m1", "11"]),
)
def test_any_view(stage, device, shape, layout, views, batch, alpha, beta, c_shape):
    m, n, k = shape
    a, b, flags = problems.operands(m, n, k, layout, batch=batch, views=views)
    options, c = flags | {"alpha": alpha}, None
    if beta is not None:
        options["beta"] = beta
        c = problems.normal(*{"mn": (m, n), "n": (n,), "m1": (m, 1), "11": (1, 1)}[c_shape])
    assert right(stage, run(stage, a, b, c, device, **options), a, b, c, **options)


COPIES = ["cp_async_pipelined", "tma_specialized", "split_k", "tma_split_k", "whole_k"]


def with_copies(call):
    """What a call gives, and whether it launches the kernel of csrc/xgemm/aligned_copy.h."""
    _C.simt_forget_sites()
    result = call()
    sites = simt.sites("launch wait")
    return result, any(site.startswith("aligned.h:") for site in sites)


@pytest.mark.parametrize("stage", [name for name in COPIES if name in problems.STAGES])
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_aligned_copies(stage, layout):
    """Operands that are not aligned are copied where that is worth it: the bits stay the same.

    On one multiprocessor a 132nd of the work that an H200 needs for it is enough.
    """
    cases = [
        ((301, 307, 69), ("plain", "plain"), None, True),  # rows of odd length
        ((304, 308, 68), ("offset", "offset"), None, True),
        ((304, 308, 84), ("plain", "offset"), None, True),  # one of them alone
        ((233, 229, 37), ("padded", "plain"), (3, None), True),  # a batch, which shares b
        ((304, 308, 68), ("plain", "plain"), None, False),
        ((304, 308, 68), ("spaced", "spaced"), None, False),
        ((301, 307, 13), ("plain", "plain"), None, False),  # too little work
    ]
    for shape, views, batch, wanted in cases:
        a, b, flags = problems.operands(
            *shape, layout, data="wide", views=views, batch=batch or (None, None)
        )
        c = problems.wide(*shape[:2])
        options = flags | {"alpha": 1.7, "beta": -0.3}
        with simt.configure(row=0, sm_count=1, split_k_size=32):
            got, made = with_copies(lambda: run(stage, a, b, c, **options))  # noqa: B023
            assert made == wanted, (shape, views)
            assert right(stage, got, a, b, c, **options)


@on_every_device
@on_every_stage
def test_expanded_operands(stage, device):
    a = problems.normal(1, 40).expand(50, 40)
    b = problems.normal(40, 1).expand(40, 33)
    assert right(stage, run(stage, a, b, device=device), a, b)
    one = torch.tensor(0.5)
    a, b = one.expand(5, 1000), one.expand(1000, 3)
    assert same_bits(run(stage, a, b, device=device), torch.full((5, 3), 250.0))


@on_every_device
@on_every_stage
def test_sliding_windows(stage, device):
    """A Hankel operand: rows that overlap in memory."""
    a = problems.normal(90).as_strided((40, 51), (1, 1))
    b = problems.normal(51, 20)
    assert right(stage, run(stage, a, b, device=device), a, b)


@on_every_device
@on_every_stage
def test_beta_zero_reads_no_c(stage, device):
    a, b, _ = problems.operands(33, 35, 9)
    c = torch.full((33, 35), math.nan)
    assert right(stage, run(stage, a, b, c, device, beta=0.0), a, b)


@on_every_device
@on_every_stage
@pytest.mark.parametrize("shape", problems.EMPTY, ids=str)
def test_empty(stage, shape, device):
    m, n, k = shape
    a, b = torch.randn(m, k), torch.randn(k, n)
    c = torch.randn(m, n)
    assert torch.equal(run(stage, a, b, device=device), torch.zeros(m, n))
    want = 0.5 * c if k == 0 else torch.empty(m, n)
    assert torch.equal(run(stage, a, b, c, device, beta=0.5), want)
    batched = run(stage, a[None].expand(0, m, k), b, device=device)
    assert batched.shape == (0, m, n)


@on_every_device
@on_every_stage
@pytest.mark.parametrize("k", [1, 3, 8, 9, 17])
def test_padding_keeps_negative_zero(stage, k, device):
    """A product that underflows to -0 stays -0 through the padding of the last slice."""
    a, b = torch.full((3, k), 1e-30), torch.full((k, 3), -1e-30)
    got = run(stage, a, b, device=device)
    assert same_bits(got, torch.full((3, 3), -0.0))


@on_every_device
@on_every_stage
def test_specials(stage, device):
    a, b, _ = problems.operands(40, 36, 19)
    a[3, 5], a[7, 2], b[4, 9], b[11, 20] = math.inf, math.nan, -math.inf, 3.4e38
    a[9, 11], a[20] = 3.4e38, 1e-42  # overflows with b[11, 20]; a row of subnormals
    assert right(stage, run(stage, a, b, device=device), a, b)


@on_every_device
@on_every_stage
def test_edges_do_not_leak(stage, device):
    """What a clamped or padded load brings in must not reach a stored element."""
    room_a, room_b = torch.full((60, 50), math.nan), torch.full((50, 60), math.inf)
    a, b = (
        room_a[7:40, 5:24].copy_(torch.randn(33, 19)),
        room_b[3:22, 9:46].copy_(torch.randn(19, 37)),
    )
    assert right(stage, run(stage, a, b, device=device), a.clone(), b.clone())


@on_every_device
@on_every_stage
@pytest.mark.parametrize("data", problems.DATA)
def test_error_bound(stage, data, device):
    """At most (K + 2) u of |A| |B| from float64: what a chain of K roundings can lose."""
    a, b, _ = problems.operands(40, 40, 200, data=data)
    error = (run(stage, a, b, device=device).double() - problems.exact(a, b)).abs()
    assert bool((error <= 202 * U * (a.abs().double() @ b.abs().double())).all())


@on_every_device
@on_every_stage
def test_runs_are_equal(stage, device):
    a, b, _ = problems.operands(70, 66, 50)
    first = run(stage, a, b, device=device)
    assert all(same_bits(first, run(stage, a, b, device=device)) for _ in range(3))


@on_every_stage
@pytest.mark.large_memory
def test_offsets_beyond_32_bits(stage):
    """Rows 2^30 floats apart: 12 GiB of addresses, of which some pages are touched."""
    room = torch.empty(3 * 2**30)
    a = room.as_strided((3, 20), (2**30, 1), 5).copy_(torch.randn(3, 20))
    b = room.as_strided((20, 3), (3, 2**30), 100_000).copy_(torch.randn(20, 3))
    out = torch.empty(2**31 + 10).as_strided((3, 3), (2**30, 1))
    got = run(stage, a, b)
    assert right(stage, got, a.clone(), b.clone())
    xgemm_torch.sgemm(a, b, kernel=stage, out=out)
    assert same_bits(out, got)


@on_every_stage
@pytest.mark.gpu
@pytest.mark.large_memory
def test_results_beyond_32_bits_on_a_gpu(stage):
    """More than 2^31 elements in D, in A and in the offset between batches."""
    m, n, k = 65600, 32800, 3
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    d = torch.full((m, n), math.nan, device="cuda")
    xgemm_torch.sgemm(a, b, kernel=stage, out=d)
    rows = torch.tensor([0, 1, 32799, 65472, m - 1])
    assert right(stage, d[rows.cuda()], a.cpu()[rows], b)
    assert not bool(d[::97].isnan().any())
    # The same array as a wide operand: 5 rows of it are 2^31 elements apart in no layout's int.
    x = torch.randn(4, m, device="cuda")
    product = getattr(torch.ops.xgemm, stage)(x, d[:, -7:])
    assert right(stage, product[:1], x[:1], d[:, -7:])


@on_every_stage
@pytest.mark.gpu
def test_more_batches_than_a_grid_axis_holds(stage):
    a, b = torch.randn(70_001, 2, 3, device="cuda"), torch.randn(3, 5, device="cuda")
    got = getattr(torch.ops.xgemm, stage)(a, b)
    assert right(stage, got, a, b)


def products_without_a_break(stage, operands, step=lambda: None, other=None):
    """Products of what launches before them write, into what launches before them read.

    step() comes after each. What they multiply is written on stream `other`, if there is one.
    """
    here, results = torch.cuda.current_stream(), []
    for first_a, first_b in operands:
        a, b, d = first_a.clone(), first_b.clone(), first_a @ first_b
        for i in range(1, 9):
            if other:
                other.wait_stream(here)
            with torch.cuda.stream(other or here):
                torch.mul(first_a, i, out=a), step()
                torch.add(first_b, i, out=b), step()
            here.wait_stream(other or here)
            xgemm_torch.sgemm(a, b, kernel=stage, out=d), step()
            results += [d.clone(), xgemm_torch.sgemm(d, b, kernel=stage, trans_b=True)]
            step()
            a.fill_(math.nan), b.fill_(math.nan), d.fill_(math.nan)
    return results


@on_every_stage
@pytest.mark.gpu
@pytest.mark.parametrize("way", ["stream", "two streams", "graph"])
def test_products_wait_for_what_is_before_them(stage, way):
    """Blocks may be there before the launches before them are over."""
    sizes = [(1, 300, 700), (8, 700, 260), (70, 132, 300), (200, 260, 24)]
    operands = [(problems.normal(m, k).cuda(), problems.normal(k, n).cuda()) for m, n, k in sizes]
    wanted = products_without_a_break(stage, operands, step=torch.cuda.synchronize)
    if way == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = products_without_a_break(stage, operands)
        graph.replay(), graph.replay()
    else:
        other = torch.cuda.Stream() if way == "two streams" else None
        got = products_without_a_break(stage, operands, other=other)
    torch.cuda.synchronize()
    assert all(same_bits(x, y) for x, y in zip(got, wanted, strict=True))


@on_every_stage
@pytest.mark.gpu
def test_gpu_has_the_emulators_bits(stage):
    """Random problems: views, layouts, batches, alpha, beta, and any row of the tile table.

    200 of them; 50 where the emulator computes tensor cores bit by bit.
    """
    generator = torch.Generator().manual_seed(1)
    rows = [row for name, row in ROWS if name == stage]

    def pick(items):
        return items[int(torch.randint(len(items), (), generator=generator))]

    strict = stage in problems.STRICT
    for _ in range(200 if strict else 50):
        m, n, k = (int(x) for x in torch.randint(1, 150, (3,), generator=generator))
        if not strict:
            k *= 3
        data = "wide" if strict else pick(["normal", "uniform", "normal", "wide"])
        views = (pick(sorted(problems.VIEWS)), pick(sorted(problems.VIEWS)))
        a, b, flags = problems.operands(
            m, n, k, pick(problems.LAYOUTS), batch=(pick([None, 2]), None), views=views, data=data
        )
        options = flags | {"alpha": pick([1.0, 0.37]), "beta": pick([0.0, 1.0, -0.6])}
        c = problems.normal(m, n)
        with simt.configure(row=pick(rows)) as settings:
            host = run(stage, a, b, c, **options)
            got = run(stage, a, b, c, "cuda", **options)
        assert same_bits(got, host), (m, n, k, views, options, settings["row"])


def test_explain_is_what_the_registry_says():
    """The choice is a legal stage of least predicted time."""
    for shape in [(1, 1, 1), (64, 64, 4096), (1000, 3, 7), (4096, 4096, 4096), (5, 5, 0)]:
        m, n, k = shape
        answer = json.loads(xgemm_torch._C.explain(m, n, k, 1, k, 1, True, n, 1, True, 90, 132))
        rows = {(c["kernel"], c["row"]): c for c in answer["candidates"]}
        assert list(rows) == ROWS
        times = {at: c["predicted_us"] for at, c in rows.items() if c["legal"]}
        problem = contenders.Problem("", m, n, k)
        all_rows = contenders.rows_of(xgemm_torch.stages())
        kept = {
            row.stage
            for row in all_rows
            if row.auto and contenders.keeps(row, problem, strict=False)
        }
        assert kept == {kernel for kernel, _ in times}
        best = min(time for time in times.values() if time is not None)
        assert times[answer["kernel"], answer["row"]] == best


@pytest.mark.parametrize("sm", ptxas.LIMITS)
def test_rows_that_a_device_has_no_room_for_are_not_chosen(sm):
    room = ptxas.LIMITS[sm].smem_of_block
    stages = {stage.name: stage for stage in xgemm_torch.stages()}
    for n in (64, 1024, 4096):
        answer = json.loads(xgemm_torch._C.explain(n, n, n, 1, n, 1, True, n, 1, True, sm, 100))
        for c in answer["candidates"]:
            stage = stages[c["kernel"]]
            tile = stage.tiles[c["row"]]
            runs_there = stage.min_sm <= sm <= (stage.max_sm or sm)
            assert c["able"] == (runs_there and tile.smem <= room), (c, room)
            if runs_there and not c["able"]:
                assert f"{tile.smem // 1024} KiB of shared memory" in c["why"]
            # By its name a stage runs a row that fits, too.
            assert tile.smem <= room or not c["by_name"] or not runs_there
        assert stages[answer["kernel"]].tiles[answer["row"]].smem <= room


def test_every_stage_says_its_idea_on_its_first_line():
    for path in STAGE_FILES.glob("*/*.cu"):
        assert re.match(r"// .{20,}", path.read_text().splitlines()[0]), path.name
