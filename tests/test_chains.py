"""The strict product in several chains: where K is cut, and that everybody cuts it there."""

import json
import math

import problems
import pytest
import torch

import xgemm_torch
from xgemm_torch import _C, simt

STAGES = {s.name: s for s in xgemm_torch.stages() if s.split_k}
ROWS = [(name, row) for name, stage in STAGES.items() for row in range(len(stage.tiles))]

# Bits rest on these: another length is another result for users, to be told in the changelog.
LENGTHS = {
    (1, 1, 1): 0,
    (4096, 4096, 4096): 0,
    (512, 512, 512): 0,
    (1, 4096, 4096): 192,
    (4096, 1, 4096): 192,
    (8, 768, 3072): 64,
    (64, 4096, 4096): 256,
    (768, 768, 8192): 1184,
    (1000, 1000, 1000): 256,
    (64, 64, 1048576): 1024,
    (1, 50257, 1024): 512,
    (16, 16, 639): 0,
    (16, 16, 640): 64,
}


def test_lengths_stay_what_they_are():
    assert {size: xgemm_torch.split_k_size(*size) for size in LENGTHS} == LENGTHS


@pytest.mark.parametrize("seed", range(3))
def test_any_size_has_a_length(seed):
    """A multiple of 32 below K, or none; the same for a problem and its transpose."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(2000):
        m, n, k, batch = (
            int(2 ** (high * torch.rand((), generator=generator).item()))
            for high in (20, 20, 24, 8)
        )
        share = xgemm_torch.split_k_size(m, n, k, batch)
        assert share == xgemm_torch.split_k_size(n, m, k, batch)
        assert share == 0 or (share % 32 == 0 and 32 < share < k), (m, n, k, batch)
    assert xgemm_torch.split_k_size(0, 5, 9000) == xgemm_torch.split_k_size(5, 5, 0) == 0
    assert xgemm_torch.split_k_size(1, 1, 2**40) > 0
    assert 0 < xgemm_torch.split_k_size(1, 1, 2**62) < 2**62
    assert xgemm_torch.split_k_size(2**40, 2**40, 2**62) == 0


@pytest.mark.parametrize("share", [1, 40, 50])
def test_a_share_holds_whole_slices(share):
    with (
        pytest.raises(ValueError, match=f"a multiple of 32, got {share}"),
        simt.configure(split_k_size=share),
    ):
        pass


def test_sizes_must_not_be_negative():
    with pytest.raises(ValueError, match="sizes must not be negative"):
        xgemm_torch.split_k_size(1, -2, 3)
    with (
        pytest.raises(ValueError, match="split_k_size must be -1 or more, got -2"),
        simt.configure(split_k_size=-2),
    ):
        pass


@pytest.mark.parametrize("share", [32, 64, 96, 128, 1024])
def test_the_cpu_adds_chains_in_order(share):
    """Against one chain for each cut, added one by one."""
    a, b, c = problems.wide(5, 100), problems.wide(100, 70), problems.wide(5, 70)
    with simt.configure(split_k_size=0):
        chains = [
            xgemm_torch.sgemm(a[:, k : k + share], b[k : k + share], precision="ieee")
            for k in range(0, 100, share)
        ]
    total = chains[0]
    for chain in chains[1:]:
        total = total + chain
    with simt.configure(split_k_size=share):
        got = xgemm_torch.sgemm(a, b, precision="ieee")
        scaled = xgemm_torch.sgemm(a, b, c, alpha=0.5, beta=2.0, precision="ieee")
    assert problems.same_bits(got, total)
    assert torch.equal(scaled, (2.0 * c.double() + 0.5 * total.double()).float())


def test_one_chain_or_several():
    """-0 stays -0, and K = 0 gives +0, with any number of chains."""
    a, b = torch.full((3, 96), -0.0), torch.ones(96, 4)
    for share in (0, 32, 64):
        with simt.configure(split_k_size=share):
            for kernel in ("auto", *STAGES):
                got = xgemm_torch.sgemm(a, b, kernel=kernel, precision="ieee")
                assert problems.same_bits(got, torch.zeros(3, 4)), (share, kernel)
                got = xgemm_torch.sgemm(a[:, :0], b[:0], kernel=kernel, precision="ieee")
                assert problems.same_bits(got, torch.zeros(3, 4)), (share, kernel)


SIZES = [(1, 70, 129), (4, 33, 64), (5, 65, 97), (18, 70, 161), (131, 3, 200), (70, 66, 100)]


@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("stage, row", ROWS)
def test_stages_make_the_cpus_chains(stage, row, layout):
    for m, n, k in SIZES:
        a, b, flags = problems.operands(m, n, k, layout, data="wide")
        c = problems.wide(m, n)
        options = flags | {"alpha": 1.7, "beta": -0.3, "activation": "relu"}
        for share in (32, 96):
            with simt.configure(split_k_size=share, row=row):
                got = xgemm_torch.sgemm(a, b, c, kernel=stage, **options)
                want = xgemm_torch.sgemm(a, b, c, precision="ieee", **options)
            assert problems.same_bits(got, want), (m, n, k, share)


def placed(rows: int, columns: int, offset: int, pitch: int) -> torch.Tensor:
    """A matrix `offset` floats past a boundary of 64 bytes; what is between its rows is NaN."""
    room = torch.full((offset + (rows - 1) * pitch + columns,), math.nan)
    assert room.data_ptr() % 64 == 0
    view = room.as_strided((rows, columns), (pitch, 1), offset)
    return view.copy_(problems.wide(rows, columns))


@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("row", range(len(STAGES["gemv"].tiles) if "gemv" in STAGES else 0))
def test_few_rows_at_any_place_in_memory(row, offset, layout):
    """Rows of both operands begin anywhere in a sector, all alike or each at its own place."""
    trans_a, trans_b = (letter == "T" for letter in layout)
    sizes = [(1, 37, 150), (2, 71, 129), (3, 130, 33), (4, 32, 7), (1, 64, 256), (67, 1, 95)]
    for number, (m, n, k) in enumerate(sizes):
        gap = (offset + number) % 8
        shapes = [(k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)]
        places = [offset, (5 * offset + number) % 8]
        a, b = (placed(*s, at, s[1] + gap) for s, at in zip(shapes, places, strict=True))
        flags = {"trans_a": trans_a, "trans_b": trans_b}
        for share in (0, 32, 96):
            with simt.configure(split_k_size=share, row=row):
                got = xgemm_torch.sgemm(a, b, kernel="gemv", **flags)
                want = xgemm_torch.sgemm(a, b, precision="ieee", **flags)
            assert problems.same_bits(got, want), (m, n, k, share)


@pytest.mark.parametrize("row", range(len(STAGES["gemv"].tiles) if "gemv" in STAGES else 0))
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_chains_of_few_rows_meet_anywhere(row, layout):
    """One or several chains a warp, in a block, in a cluster, in the workspace."""
    for k, share in ((500, 32), (1200, 32), (2100, 32), (9001, 32), (2600, 640), (6000, 640)):
        a, b, flags = problems.operands(1, 35, k, layout, data="wide")
        for sm_count in (1, 132):
            with simt.configure(split_k_size=share, row=row, sm_count=sm_count):
                got = xgemm_torch.sgemm(a, b, kernel="gemv", **flags)
                want = xgemm_torch.sgemm(a, b, precision="ieee", **flags)
            assert problems.same_bits(got, want), (k, share, sm_count)


@pytest.mark.parametrize("stage, row", ROWS)
def test_batches(stage, row):
    a, b = problems.wide(3, 5, 100), problems.wide(1, 100, 40)
    with simt.configure(split_k_size=32, row=row):
        got = xgemm_torch.sgemm(a, b, kernel=stage)
        assert problems.same_bits(got, xgemm_torch.sgemm(a, b, precision="ieee"))


@pytest.mark.parametrize("stage, row", ROWS)
def test_orders_of_threads_do_not_matter(stage, row):
    a, b = problems.wide(7, 170), problems.wide(170, 60)
    results = []
    for order in ("forward", "reverse", "random"):
        with simt.configure(split_k_size=64, row=row, order=order, seed=3):
            results.append(xgemm_torch.sgemm(a, b, kernel=stage))
    assert all(problems.same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("size", [(8, 768, 3072), (1, 4096, 4096), (64, 64, 100000)])
def test_ieee_takes_the_stages_that_split(size, monkeypatch):
    """On every GPU; "fp32" only up to four rows; without a workspace rows that need none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = xgemm_torch.explain(*size, precision="ieee")
    share = xgemm_torch.split_k_size(*size)
    assert found.kernel in STAGES
    assert f"{-(-size[2] // share)} chains of {share} along k" in found.scheme
    for candidate in xgemm_torch.explain(*size).candidates:
        if candidate.kernel in STAGES:
            assert candidate.legal == (
                STAGES[candidate.kernel].matches_single_chain_overflow and min(size) <= 4
            )
    poor = xgemm_torch.explain(*size, precision="ieee", workspace=0)
    assert poor.kernel in STAGES and poor.workspace == 0
    for sm, sm_count in ((80, 108), (86, 84), (90, 132), (100, 148)):
        m, n, k = size
        chosen = json.loads(
            _C.explain(m, n, k, 1, k, 1, True, n, 1, True, sm, sm_count, True, -1, 0, 0)
        )
        assert chosen["kernel"] in STAGES
    cpu = xgemm_torch.explain(torch.ones(2, 6000), torch.ones(6000, 3), precision="ieee")
    share = xgemm_torch.split_k_size(2, 3, 6000)
    assert f"{-(-6000 // share)} chains of {share} along k" in cpu.why


@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize(
    "stage, row",
    [(stage, row) for stage, row in ROWS if STAGES[stage].matches_single_chain_overflow],
)
def test_chains_as_finite_as_one(stage, row, layout):
    """For "fp32": inf and NaN as in one chain, and the chains' bits where that is sure."""
    m, n, k = 2, 70, 330
    a, b, flags = problems.operands(m, n, k, layout)
    stored = {"a": a.t() if flags["trans_a"] else a, "b": b.t() if flags["trans_b"] else b}

    def compare(sure: dict[int, bool]) -> None:
        with simt.configure(split_k_size=0):
            one = xgemm_torch.sgemm(a, b, precision="ieee", **flags)
        with simt.configure(split_k_size=64, row=row):
            got = xgemm_torch.sgemm(a, b, kernel=stage, **flags)
            several = xgemm_torch.sgemm(a, b, precision="ieee", **flags)
            strict = xgemm_torch.sgemm(a, b, kernel=stage, precision="ieee", **flags)
        assert torch.equal(got.isnan(), one.isnan())
        assert torch.equal(got.isinf(), one.isinf())
        assert torch.equal(got[got.isinf()], one[one.isinf()])
        assert problems.same_bits(strict, several)
        for j, is_sure in sure.items():
            assert problems.same_bits(got[:, j], (several if is_sure else one)[:, j]), j

    compare(dict.fromkeys(range(n), True))
    # The first chain's sum and the second's begin are too much together; the second's end is not.
    x, y = stored["a"], stored["b"]
    x[0], y[:, 5] = 1.0, 0.0
    y[0, 5], y[64, 5], y[65, 5] = 3e38, 2e38, -2e38
    compare({0: True, 1: True, 5: False, 13: True})
    with simt.configure(split_k_size=0):
        assert torch.isinf(xgemm_torch.sgemm(a, b, precision="ieee", **flags)[0, 5])
    with simt.configure(split_k_size=64):
        assert torch.isfinite(xgemm_torch.sgemm(a, b, precision="ieee", **flags)[0, 5])
    # What is not finite to begin with, and what only rounds far from there.
    y[100, 6], y[3, 7], y[200, 7], y[5, 8] = math.inf, math.inf, -math.inf, math.nan
    x[1, 300], y[150, 20] = -math.inf, math.inf
    # These add up in any number of chains. A lane that has column 5 may have its neighbours, too.
    compare({j: True for j in range(n) if j not in (4, 5, 6, 7, 37, 69)} | {5: False})


def test_one_chain_keeps_them_away(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert xgemm_torch.explain(4096, 4096, 4096, precision="ieee").kernel not in STAGES


@pytest.mark.parametrize("size", [(3, 20, 700), (1, 33, 2000), (40, 30, 1300)])
def test_without_settings(size):
    """The lengths that users meet, through a stage's own source."""
    m, n, k = size
    assert xgemm_torch.split_k_size(m, n, k)
    a, b = problems.wide(m, k), problems.wide(k, n)
    want = xgemm_torch.sgemm(a, b, precision="ieee")
    for stage in STAGES:
        assert problems.same_bits(xgemm_torch.sgemm(a, b, kernel=stage), want)
    with simt.configure(split_k_size=0):
        assert not problems.same_bits(xgemm_torch.sgemm(a, b, precision="ieee"), want)


def test_gradients_are_cut_by_their_own_sizes():
    x = problems.normal(3, 700).requires_grad_()
    w = problems.normal(700, 5).requires_grad_()
    g = problems.normal(3, 5)
    xgemm_torch.sgemm(x, w, precision="ieee").backward(g)
    assert problems.same_bits(x.grad, xgemm_torch.sgemm(g, w, trans_b=True, precision="ieee"))
    assert problems.same_bits(w.grad, xgemm_torch.sgemm(x, g, trans_a=True, precision="ieee"))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize(
    "size",
    [(1, 4096, 4096), (3, 1001, 5000), (8, 768, 3072), (64, 768, 3072), (130, 190, 2050),
     (1000, 1000, 1000), (64, 64, 65536)],
)  # fmt: skip
def test_a_gpu_has_the_cpus_bits(size, layout):
    m, n, k = size
    a, b, flags = problems.operands(m, n, k, layout, data="wide")
    want = xgemm_torch.sgemm(a, b, precision="ieee", **flags)
    on_gpu = [t.cuda() for t in (a, b)]
    for kernel in ("auto", *STAGES):
        precision = "ieee" if kernel == "auto" else "fp32"
        for _ in range(2):
            got = xgemm_torch.sgemm(*on_gpu, kernel=kernel, precision=precision, **flags)
            assert problems.same_bits(got.cpu(), want), kernel
