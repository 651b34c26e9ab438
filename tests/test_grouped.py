"""Products of groups: by the kernels that find the groups themselves, and group by group."""

from __future__ import annotations

import itertools
import re

import problems
import pytest
import torch
import torch.nn.functional as F
from problems import right, same_bits
from test_stages import on_every_device
from torch import Tensor

import xgemm_torch
from xgemm_torch import _C, grouped, simt
from xgemm_torch.tools.accuracy import errors

STAGES = [stage.name for stage in xgemm_torch.stages() if stage.takes_groups]
TEAMS = [stage.name for stage in xgemm_torch.stages() if stage.takes_groups and stage.teams]
OP = torch.ops.xgemm.grouped_mm
# By form: whether a, then b, has a matrix for each group.
FORMS = {"rows": (False, True), "columns": (True, False), "k": (False, False)}
# Of 150: some are empty, the first, the last, and one in the middle; tiles begin at any row.
ENDS = {
    "some empty": (150, [0, 70, 70, 149, 150, 150]),
    "one": (150, [150]),
    "many": (150, [4 * i for i in range(1, 38)]),
    "a rest": (150, [33, 97]),
    "nothing": (150, [0, 0]),
}

on_every_form = pytest.mark.parametrize("form", FORMS)
on_every_stage = pytest.mark.parametrize("stage", STAGES)
on_a_gpu = pytest.mark.gpu


def spans(ends: list[int], whole: int) -> list[tuple[int, int]]:
    """The groups that a product has, whatever the ends are."""
    cut = list(itertools.accumulate((min(max(x, 0), whole) for x in ends), max, initial=0))
    return list(itertools.pairwise(cut))


def operands(form: str, whole: int, ends: list[int], m=70, n=45, k=50, layout="NN", data="normal"):
    """a, b and offs; `whole` stands for the size that is cut."""
    size = {"rows": (whole, n, k), "columns": (m, whole, k), "k": (m, n, whole)}[form]
    batch = tuple(len(ends) if matrices else None for matrices in FORMS[form])
    a, b, flags = problems.operands(*size, layout, batch=batch, data=data)
    a, b = a.mT if flags["trans_a"] else a, b.mT if flags["trans_b"] else b
    return a, b, torch.tensor(ends, dtype=torch.int32)


def each(a: Tensor, b: Tensor, out: Tensor, ends: list[int]):
    """Of each group, its operands and its part of the result."""
    if a.dim() == b.dim() == 2:
        for (s, e), part in zip(spans(ends, a.shape[1]), out, strict=True):
            yield a[:, s:e], b[s:e], part
    elif a.dim() == 2:
        for (s, e), matrix in zip(spans(ends, a.shape[0]), b, strict=True):
            yield a[s:e], matrix, out[s:e]
    else:
        for (s, e), matrix in zip(spans(ends, b.shape[1]), a, strict=True):
            yield matrix, b[:, s:e], out[:, s:e]


def check(a: Tensor, b: Tensor, ends: list[int], out: Tensor, stage: str = "") -> None:
    """Each group's result is right, and what the stage gives of it alone.

    The latter where nobody cuts K: not on a GPU, nor what is recomputed, which is cut by how much
    of it there is; nor where groups are of K, of which teams are made for all.
    """
    if a.dim() == b.dim() and stage in TEAMS:
        stage = ""
    for left, matrix, part in each(a, b, out, ends):
        if part.numel():
            assert right("auto", part, left, matrix)
            if stage and not a.is_cuda:
                turned = a.dim() == 3
                x, y = (matrix.mT, left.mT) if turned else (left, matrix)
                alone = xgemm_torch.sgemm(x, y, kernel=stage)
                assert same_bits(part, alone.mT if turned else alone)


def test_a_stage_takes_groups():
    assert STAGES


@on_every_device
@on_every_stage
@on_every_form
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_groups_have_what_they_have_alone(stage, form, ends, layout, device):
    whole, stops = ENDS[ends]
    a, b, offs = (t.to(device) for t in operands(form, whole, stops, layout=layout))
    out = OP(a, b, offs, kernel=stage)
    check(a, b, stops, out, stage)
    assert out.stride(-2) % 4 == 0 and out.stride(-1) == 1
    if form == "k":  # of no K, zeros
        for (s, e), part in zip(spans(stops, whole), out, strict=True):
            assert s < e or not part.any()


@on_every_device
@on_every_stage
@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_groups_of_few_k_lose_no_product(stage, layout, device):
    ends = [2, 18, 27, 29, 45]
    parts = [problems.one_product(70, 45, e - s) for s, e in spans(ends, 45)]
    a, b = torch.cat([x for x, _ in parts], 1), torch.cat([y for _, y in parts])
    a = a.mT.contiguous().mT if layout[0] == "T" else a
    b = b.mT.contiguous().mT if layout[1] == "T" else b
    out = OP(a.to(device), b.to(device), torch.tensor(ends, dtype=torch.int32, device=device),
             kernel=stage)  # fmt: skip
    for (x, y), part in zip(parts, out.cpu(), strict=True):
        assert errors(part, x, y).largest < 6


@on_every_device
@on_every_stage
@on_every_form
@pytest.mark.parametrize("data", ["wide", "nan", "inf", "one-hot", "zeros"])
def test_what_a_group_holds_reaches_no_other(stage, form, data, device):
    """What is made anew is; what is not finite, or alone in its row, is by the group."""
    whole, stops = 150, [20, 20, 90, 150]
    a, b, offs = operands(form, whole, stops, data="wide" if data == "wide" else "normal")
    a, b = a.clone(), b.clone()
    if data in ("nan", "inf"):
        x = float(data)
        (a[..., 5, 30] if form != "columns" else a[2, 5, 30]).fill_(x)
        (b[..., 30, 7] if form != "rows" else b[2, 30, 7]).fill_(-x)
    elif data == "one-hot":
        a = torch.where(
            torch.arange(a.shape[-1]) % 50 == torch.arange(a.shape[-2])[:, None] % 50, a, 0
        )
    elif data == "zeros":
        a[..., 10:60, :] = 0
    a, b, offs = a.to(device), b.to(device), offs.to(device)
    out = OP(a, b, offs, kernel=stage)
    check(a, b, stops, out)
    if data == "one-hot":
        for left, matrix, part in each(a, b, out, stops):
            if int((left != 0).sum(-1).max() if left.numel() else 2) <= 1:
                assert torch.equal(
                    part.double(), (left.double() @ matrix.double()).float().double()
                )


@on_every_device
@on_every_stage
@on_every_form
@pytest.mark.parametrize("larger", ["m", "n"])
def test_parts_have_the_bits_of_the_whole(stage, form, larger, device):
    """Limbs of many groups, rows or columns are made part by part."""
    sizes = {"m": {"m": 600, "n": 40}, "n": {"m": 40, "n": 600}}[larger]
    a, b, offs = (t.to(device) for t in operands(form, 150, [33, 33, 97, 149], **sizes))
    want = list(each(a, b, OP(a, b, offs, kernel=stage), offs.tolist()))
    with simt.configure(slab_bytes=1):
        got = list(each(a, b, OP(a, b, offs, kernel=stage), offs.tolist()))
    assert all(same_bits(x[2], y[2]) for x, y in zip(want, got, strict=True))


@on_every_device
@on_every_stage
@on_every_form
@pytest.mark.parametrize(
    "ends", [[90, 20, 60, 150], [-5, 40, 2**31 - 1, 7], [-(2**31), -1, 0, 5], [500, 600, 10, 150]]
)
def test_ends_that_do_not_ascend_are_cut_to_what_is_there(stage, form, ends, device):
    """Memory of nobody else is touched: on a CPU every access is watched."""
    a, b, offs = (t.to(device) for t in operands(form, 150, ends))
    check(a, b, ends, OP(a, b, offs, kernel=stage), stage)
    check(a, b, ends, xgemm_torch.grouped_mm(a, b, offs=offs))


@on_every_device
@on_every_stage
@pytest.mark.parametrize(("form", "sizes"), [
    ("rows", {"whole": 0}), ("rows", {"n": 0}), ("rows", {"k": 0}), ("columns", {"m": 0}),
    ("columns", {"k": 0}), ("k", {"whole": 0}), ("k", {"m": 0}), ("rows", {"ends": []}),
    ("k", {"ends": []}),
])  # fmt: skip
def test_empty_operands(stage, form, sizes, device):
    whole, ends = sizes.pop("whole", 20), sizes.pop("ends", [3, 20])
    a, b, offs = (t.to(device) for t in operands(form, whole, ends, **sizes))
    for out in (OP(a, b, offs, kernel=stage), xgemm_torch.grouped_mm(a, b, offs=offs)):
        assert out.shape[-2:] == (a.shape[-2], b.shape[-1])
        check(a, b, [min(x, whole) for x in ends], out)
    sizes.update(whole=whole, ends=ends)  # parameters are shared by devices


@on_every_stage
def test_every_wait_is_needed(stage):
    """The mutation test of what is of groups alone."""
    cases = [operands(form, 150, [20, 90, 150]) for form in FORMS]

    def run() -> None:
        for a, b, offs in cases:
            OP(a, b, offs, kernel=stage)

    _C.simt_forget_sites()
    run()
    files = "grouped_wgmma.h:", "plan_groups.h:", "dot.cu:"
    sites = [site for site in simt.sites() if site.startswith(files)]
    assert sites
    for site in sites:
        file = re.escape(site.partition(":")[0])
        with simt.configure(skip=site), pytest.raises(RuntimeError, match=file):
            run()


@on_every_device
@on_every_form
def test_gradients(form, device):
    """Of the first and the second order, beside torch's of the same products in float64."""
    a, b, offs = (t.to(device) for t in operands(form, 60, [20, 20, 48, 60], m=12, n=8, k=16))
    ends = offs.tolist()

    def reference(x: Tensor, y: Tensor) -> Tensor:
        parts = [left @ matrix for left, matrix, _ in each(x, y, want_like, ends)]
        return torch.stack(parts) if form == "k" else torch.cat(parts, 0 if form == "rows" else 1)

    want_like = xgemm_torch.grouped_mm(a, b, offs=offs)

    def grads(product, x: Tensor, y: Tensor) -> list[Tensor]:
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        out = product(x, y)
        first = torch.autograd.grad(out.sin().sum(), (x, y), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, y))
        return [out, *first, *second]

    got = grads(lambda x, y: xgemm_torch.grouped_mm(x, y, offs=offs), a, b)
    want = grads(reference, a.double(), b.double())
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-3)


@on_every_form
@pytest.mark.parametrize("ends", [[20, 20, 90, 150], [90, 20, 60, 149], []])
def test_group_by_group_where_no_stage_takes_groups(form, ends):
    a, b, offs = operands(form, 150, ends)
    check(a, b, ends, grouped._by_group(a, b, offs))


@pytest.mark.parametrize("form", FORMS)
def test_it_compiles_and_keeps_torchs_rules(form):
    a, b, offs = operands(form, 60, [20, 48, 60], m=12, n=7, k=16)
    torch.library.opcheck(OP.default, (a.requires_grad_(), b.requires_grad_(), offs))
    call = torch.compile(
        lambda x, y, z: xgemm_torch.grouped_mm(x, y, offs=z).relu(),
        fullgraph=True,
        backend="aot_eager",
    )
    want = xgemm_torch.grouped_mm(a, b, offs=offs).relu()
    got = call(a, b, offs)
    assert same_bits(got.detach(), want.detach()) and got.stride() == want.stride()


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="not in this torch")
def test_it_is_torchs():
    a, b, offs = operands("rows", 24, [8, 24], n=12, k=16)
    want = F.grouped_mm(a, b, offs=offs)
    got = xgemm_torch.grouped_mm(a, b, offs=offs)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()


A, B, OFFS = torch.ones(6, 4), torch.ones(2, 4, 3), torch.tensor([2, 6], dtype=torch.int32)


@pytest.mark.parametrize(("args", "error", "words"), [
    ((A.double(), B, OFFS), TypeError, "mat_a must be torch.float32, got torch.float64"),
    ((A, B.half(), OFFS), TypeError, "mat_b must be torch.float32, got torch.float16"),
    ((A, B, OFFS.long()), TypeError, "offs must be torch.int32, got torch.int64"),
    ((A, B, [2, 6]), TypeError, "offs must be a tensor, got list"),
    ((A.to_sparse(), B, OFFS), TypeError, "mat_a must be a dense (strided) tensor"),
    ((A, B, OFFS[None]), ValueError, "offs must have 1 dimension, got shape (1, 2)"),
    ((A, B, OFFS[:1]), ValueError, "offs has 1 ends for 2 matrices"),
    ((A, B[:, :3], OFFS), ValueError, "inner sizes differ: mat_a is (6, 4), mat_b is (2, 3, 3)"),
    ((A[0], B, OFFS), ValueError, "2 and 3, 3 and 2, or 2 and 2 dimensions"),
    ((B, B, OFFS), ValueError, "2 and 3, 3 and 2, or 2 and 2 dimensions"),
    ((A, B.to("meta"), OFFS), ValueError, "mat_a is on cpu, mat_b is on meta"),
])  # fmt: skip
def test_bad_input(args, error, words):
    a, b, offs = args
    with pytest.raises(error, match=re.escape(words)):
        xgemm_torch.grouped_mm(a, b, offs=offs)
    if isinstance(offs, Tensor):  # the operator by itself: C++ says it
        with pytest.raises((RuntimeError, TypeError, ValueError, NotImplementedError)):
            OP(a, b, offs)


def test_a_stage_that_takes_none_says_so():
    with pytest.raises(ValueError, match=f"naive takes no groups; stages that do: {STAGES[0]}"):
        OP(A, B, OFFS, kernel="naive")
    with pytest.raises(ValueError, match="no kernel named 'nope'"):
        OP(A, B, OFFS, kernel="nope")


def test_a_freed_storage_is_refused():
    a = torch.ones(6, 4)
    a.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="was it freed"):
        OP(a, B, OFFS)


@on_a_gpu
@on_every_form
def test_the_host_waits_for_nothing_and_a_graph_follows_the_ends(form):
    a, b, offs = (t.cuda() for t in operands(form, 150, [20, 90, 150]))
    xgemm_torch.grouped_mm(a, b, offs=offs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = xgemm_torch.grouped_mm(a, b, offs=offs)
    for ends in ([0, 150, 150], [149, 149, 150]):
        offs.copy_(torch.tensor(ends))
        graph.replay()
        assert same_bits(out, xgemm_torch.grouped_mm(a, b, offs=offs))


@on_a_gpu
@pytest.mark.parametrize("rows", [0, 5, 4096])
def test_patch_takes_groups_in_one(rows):
    a, b, offs = (t.cuda() for t in operands("rows", 4096, [rows, 4096], n=128, k=256))
    torch.ops.aten._grouped_mm(a, b, offs)
    with xgemm_torch.patch(min_flops=0) as p:
        torch.cuda.set_sync_debug_mode("error")
        try:
            got = torch.ops.aten._grouped_mm(a, b, offs)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert p.left == 0 and p.taken == 1
    assert same_bits(got, xgemm_torch.grouped_mm(a, b, offs=offs))
