"""stages() and explain(): what they tell is what there is."""

from __future__ import annotations

import dataclasses
import itertools

import problems
import pytest
import torch

import xgemm_torch
from xgemm_torch.explain import memory
from xgemm_torch.tools import explain_command


def test_stages_are_the_operators():
    stages = xgemm_torch.stages()
    rungs = [s.rung for s in stages if s.rung]
    assert rungs == sorted(set(rungs)) == [s.rung for s in stages[: len(rungs)]]
    others = [s.name for s in stages[len(rungs) :]]
    assert others == sorted(others)
    for stage in stages:
        assert hasattr(torch.ops.xgemm, stage.name)
        assert stage.file.endswith(f"{stage.name}.cu")
        assert stage.idea
        assert stage.source
        assert stage.tiles
        for tile in stage.tiles:
            assert tile.threads == (tile.BM // tile.TM) * (tile.BN // tile.TN)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stages[0].name = "other"
    stages.clear()
    assert xgemm_torch.stages(), "the list is the caller's own"


def test_cpu_tensors():
    a, b = torch.ones(2, 30, 40), torch.ones(50, 40)
    found = xgemm_torch.explain(a, b, trans_b=True)
    assert (found.m, found.n, found.k, found.batch) == (30, 50, 40, 2)
    assert (found.kernel, found.device, found.tile) == ("aten", "cpu", None)
    assert str(found).splitlines() == [
        "2 times 30 x 50 x 40 (M x N x K) on cpu, precision fp32",
        "  kernel  aten: a CPU tensor; ATen's BLAS is the fastest way there",
    ]
    ieee = xgemm_torch.explain(a, b, trans_b=True, precision="ieee")
    assert ieee.kernel == "fmaf chain"
    for name in problems.STAGES:
        found = xgemm_torch.explain(a, b, trans_b=True, kernel=name)
        assert found.kernel == name
        assert "emulator" in found.why


@pytest.mark.parametrize("size", [(128, 128, 128), (4096, 4096, 4096), (1, 50000, 3)], ids=str)
def test_sizes(size, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = xgemm_torch.explain(*size)
    assert "an H200, assumed" in found.device
    assert found.kernel in problems.STAGES
    tables = {s.name: s.tiles for s in xgemm_torch.stages()}
    assert [(c.kernel, c.row, c.tile) for c in found.candidates] == [
        (name, row, tile) for name, tiles in tables.items() for row, tile in enumerate(tiles)
    ]
    chosen = next(c for c in found.candidates if (c.kernel, c.row) == (found.kernel, found.row))
    assert chosen.legal
    assert chosen.tile == found.tile
    assert all(c.basis in ("estimated", "rate") for c in found.candidates)
    assert [c.kernel for c in found.candidates if c.by_name] == problems.STAGES
    times = [c.predicted_us for c in found.candidates if c.legal and c.predicted_us is not None]
    assert chosen.predicted_us == min(times)
    assert found.blocks == -(-size[0] // found.tile.BM) * -(-size[1] // found.tile.BN)
    text = str(found)
    assert found.kernel in text
    assert f"{found.tile.BM}x{found.tile.BN}x{found.tile.BK} a block" in text
    assert len(text.splitlines()) == 6 + len(found.candidates)
    assert all(c.name in text for c in found.candidates)


@pytest.mark.parametrize("name", problems.STAGES)
def test_a_stage_asked_for(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = xgemm_torch.explain(1000, 900, 800, kernel=name)
    auto = xgemm_torch.explain(1000, 900, 800)
    assert found.kernel == name
    assert found.tile == next(s for s in xgemm_torch.stages() if s.name == name).tiles[found.row]
    if name == auto.kernel:
        assert found == auto
    else:
        assert found.why == f"asked for; auto would take {auto.kernel}"
        m, n = (900, 1000) if name in problems.SPLITS else (1000, 900)  # fewer rows than columns
        chains = -(-800 // xgemm_torch.split_k_size(m, n, 800)) if name in problems.SPLITS else 1
        assert found.blocks == -(-m // found.tile.BM) * -(-n // found.tile.BN) * chains
        assert found.blocks_per_sm == found.tile.min_blocks


@pytest.mark.parametrize("name", problems.STAGES)
@pytest.mark.parametrize("batch", [1, 3])
def test_scheme_and_workspace(name, batch):
    """Strict stages multiply the numbers themselves; others hold limbs of all of them, wgmma_narrow
    sums of each element of a tile and share of K, with a range."""
    a, b = torch.ones(batch, 60, 70), torch.ones(batch, 70, 50)
    found = xgemm_torch.explain(a, b, kernel=name)
    scheme = "ffma" if name in (*problems.STRICT, "dot") else name.rpartition("_")[2]
    if name == "wgmma_narrow":
        scheme = "bf16x6"
    assert found.scheme.startswith(f"{scheme}: ")
    assert f"{found.scheme}; {memory(found.workspace)} of workspace" in str(found)
    if name == "wgmma_narrow":
        # 60 rows are one tile's columns, D being turned; every slice of K is a share.
        stage = next(s for s in xgemm_torch.stages() if s.name == name)
        rooms = [
            4 * batch * -(-50 // t.BM) * -(-70 // t.BK) * (t.BM * t.BN + 1) for t in stage.tiles
        ]
        assert any(room <= found.workspace <= room + 2 * 1024 for room in rooms)
        return
    if scheme == "ffma":
        return
    least = 2 * {"fp16x3": 2, "bf16x6": 3}[scheme] * (a.numel() + b.numel())
    assert least <= found.workspace <= 4 * least + 2**17


def test_workspace_of_aligned_copies(monkeypatch):
    """Of operands that are not aligned and large enough, in rows of whole lines of 128 bytes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    copies = 2 * 1023 * 1024 * 4
    for name, per_chain in (
        ("cp_async_pipelined", 0),
        ("tma_split_k", 1023 * 1024 * 4),
        ("whole_k", 0),
    ):
        for layout in problems.LAYOUTS:
            flags = {"trans_a": layout[0] == "T", "trans_b": layout[1] == "T", "kernel": name}
            if name in problems.SPLITS:
                flags["precision"] = "ieee"
            chains = -(-1023 // (xgemm_torch.split_k_size(1023, 1023, 1023) or 1023))
            sums = chains * per_chain if chains > 1 else 0
            found = xgemm_torch.explain(1023, 1023, 1023, **flags)
            assert copies + sums <= found.workspace <= copies + sums + 3 * 1024
            assert xgemm_torch.explain(255, 255, 255, **flags).workspace < copies
        aligned = xgemm_torch.explain(1024, 1024, 1024, **flags).workspace
        assert aligned == (chains * 1024 * 1024 * 4 if sums else 0)
    poor = xgemm_torch.explain(1023, 1023, 1023, workspace=0, precision="ieee")
    assert poor.kernel in problems.STRICT and poor.workspace == 0


@pytest.mark.parametrize("name", problems.EMULATED)
def test_auto_without_memory_for_a_workspace(name, monkeypatch):
    """It takes the best of what the memory is enough for, at last a stage that needs none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    size = (4096, 4096, 4096)
    needed = xgemm_torch.explain(*size, kernel=name).workspace
    for room in (needed, max(needed - 1, 0), 0):
        found = xgemm_torch.explain(*size, workspace=room)
        assert found.workspace <= room
        for c in found.candidates:
            assert c.able == (c.workspace <= room)
            # Stages that make several chains are for precision="ieee" alone.
            mine = c.kernel not in problems.SPLITS and c.kernel in problems.AUTO
            assert c.legal == (c.able and mine)
            if not c.able and mine:
                assert c.why == (
                    f"needs {c.workspace} bytes of workspace, there is memory for {room}"
                )
    fit = [c for c in found.candidates if c.legal]
    best = min(fit, key=lambda c: c.predicted_us)
    assert (found.kernel, found.row) == (best.kernel, best.row)
    ieee = xgemm_torch.explain(*size, workspace=0, precision="ieee")
    assert ieee.kernel in problems.STRICT and ieee.workspace == 0
    assert xgemm_torch.explain(*size, workspace=2**60) == xgemm_torch.explain(*size)


def test_rungs_that_auto_does_not_consider(monkeypatch):
    """They can run, but are no candidates and have no time; what comes next is one that has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert set(problems.AUTO) < set(problems.STAGES)
    for precision in ("fp32", "ieee"):
        found = xgemm_torch.explain(4096, 4096, 4096, precision=precision)
        lines = str(found).splitlines()[-len(found.candidates) :]
        for c, line in zip(found.candidates, lines, strict=True):
            assert line.strip().startswith(c.name)
            if c.kernel in problems.AUTO or (precision == "ieee" and "bits" in c.why):
                continue
            assert c.able and not c.legal and c.known_us is None
            assert c.why == "is a rung that others are faster than everywhere"
            assert "us " not in line and c.why in line
        known = sorted((c.known_us, c.name) for c in found.candidates if c.known_us is not None)
        (least, first), (more, second) = known[:2]
        assert first.startswith(found.kernel)
        assert found.why.endswith(f"; next {second}, {100 * (more / least - 1):.1f}% more")
    # Nothing else runs before compute capability 80.
    old = explain_command.choose(500, 500, 500, sm=75, sm_count=72)
    assert old["kernel"] is not None


def test_rows_are_told_apart():
    found = xgemm_torch.explain(4096, 4096, 4096, kernel="wgmma_fp16x3")
    names = [c.name for c in found.candidates]
    assert len(set(names)) == len(names)
    assert "wgmma_fp16x3 128x128x32 in clusters of 2" in names
    assert "wgmma_fp16x3 128x128x32 without clusters" in names
    assert "tma_specialized 128x256x32" in names, "where there is one, that is enough"


def test_words_of_the_answer(monkeypatch):
    """Who fetches is counted beside who multiplies; no scheme is called as a precision is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = str(xgemm_torch.explain(4096, 4096, 4096, precision="ieee", kernel="tma_specialized"))
    assert " 256+128 threads, " in text and " KiB of shared memory" in text
    assert "ffma: fused multiply-adds; 16.5 MiB of workspace" in text
    assert "fp32" not in text
    assert [memory(n) for n in (0, 1023, 1024, 1536, 2**20, 210574336, 2**40)] == [
        "0 bytes", "1023 bytes", "1 KiB", "1.5 KiB", "1 MiB", "200.8 MiB", "1,024 GiB"
    ]  # fmt: skip


def test_empty_results_launch_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = xgemm_torch.explain(0, 4, 5)
    assert (found.kernel, found.tile, found.blocks) == ("none", None, 0)
    assert "nothing is launched" in str(found)
    for kernel in ("auto", *problems.STAGES):
        for m, n in ((0, 4), (4, 0), (0, 0)):
            found = xgemm_torch.explain(m, n, 5, kernel=kernel)
            assert (found.kernel, found.blocks, found.candidates) == ("none", 0, ())
            if kernel != "auto":  # the emulator
                same = xgemm_torch.explain(torch.ones(m, 5), torch.ones(5, n), kernel=kernel)
                assert (same.kernel, same.why) == ("none", found.why)


SIZES = (0, 1, 3, 129, 2**20, 2**31 + 1, 2**40, 2**58, 2**61 - 1, 2**62)


@pytest.mark.parametrize("batch", [0, 1, 7, 2**33])
@pytest.mark.parametrize("precision", ["fp32", "ieee"])
def test_any_size_has_an_answer_or_an_error(batch, precision):
    """And a plan of every row: nothing overflows, and nobody divides by nothing."""
    answers = 0
    for m, n, k in itertools.product(SIZES, SIZES, SIZES):
        try:
            found = explain_command.choose(
                m, n, k, batch=batch, precision=precision, sm=90, sm_count=132
            )
        except ValueError as error:
            assert "are 2^63 or more" in str(error)
            assert 4 * max(1, batch) * max(m * n, m * k, k * n) >= 2**63
            continue
        answers += 1
        assert (found["kernel"] is None) == (m * n * batch == 0 or k > 2**33), (m, n, k)
        for row in found["candidates"]:
            assert min(row["workspace"], row["blocks"], row["waves"]) >= 0
            assert row["able"] <= (k <= 2**33)
    assert answers > 50


@pytest.mark.parametrize("kernel", problems.STAGES)
def test_a_longer_k_than_stages_count_is_refused(kernel):
    """No memory is needed for that: strides may be 0."""
    a, b = torch.ones(1, 1).expand(1, 2**34), torch.ones(1, 1).expand(2**34, 1)
    with pytest.raises(ValueError, match=rf"{kernel}: takes K up to {2**33}, this is {2**34}"):
        xgemm_torch.sgemm(a, b, kernel=kernel)


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "text"),
    [
        ((1, 2), {}, TypeError, "two tensors or three sizes"),
        ((1, 2, 3.0), {}, TypeError, "two tensors or three sizes"),
        ((1, 2, True), {}, TypeError, "two tensors or three sizes"),
        ((torch.ones(2, 2), torch.ones(2, 2), 3), {}, TypeError, "two tensors or three sizes"),
        ((torch.ones(2, 2), 3), {}, TypeError, "b must be a tensor, got int"),
        ((-1, 2, 3), {}, ValueError, "sizes must not be negative, got -1 x 2 x 3"),
        ((1, 2, 3), {"workspace": -1}, ValueError, "workspace must not be negative, got -1"),
        ((1, 2, 3), {"kernel": "nope"}, ValueError, "explain: no kernel named 'nope'"),
        ((1, 2, 3), {"precision": "tf32"}, ValueError, "explain: precision must be"),
        ((torch.ones(2, 3), torch.ones(2, 3)), {}, ValueError, "explain: inner sizes differ"),
        ((torch.ones(2, 3).half(), torch.ones(3, 2)), {}, TypeError, "a must be float32"),
    ],
)
def test_wrong_arguments(args, kwargs, kind, text):
    with pytest.raises(kind, match=text):
        xgemm_torch.explain(*args, **kwargs)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_cuda_tensors(layout):
    a, b, flags = problems.operands(500, 600, 700, layout, device="cuda")
    found = xgemm_torch.explain(a, b, **flags)
    assert torch.cuda.get_device_properties(0).name in found.device
    assert found.kernel in problems.STAGES
    assert torch.equal(
        xgemm_torch.sgemm(a, b, **flags), xgemm_torch.sgemm(a, b, kernel=found.kernel, **flags)
    )
