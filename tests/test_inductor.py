"""`xgemm_torch.inductor`: products that Inductor gives their memory, with eager mode's bits."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import problems
import pytest
import torch
from problems import same_bits
from test_stages import on_every_device
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

import xgemm_torch
from xgemm_torch import inductor
from xgemm_torch.ops import OPS

OUT, RETURNED = "torch.ops.xgemm.sgemm.out(", "torch.ops.xgemm.sgemm.default("


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    with config.patch(force_disable_caches=True):
        yield
    torch.compiler.reset()


def compiled(f, *args, **how):
    """What a compiled function gives, and the code that Inductor has made."""
    return run_and_get_code(lambda: torch.compile(f, fullgraph=True, **how)(*args))


sgemm = torch.ops.xgemm.sgemm
PRODUCTS = {
    "bias": (lambda a, b, c: xgemm_torch.linear(a, b.T, c) * 2, (5, 12), (12, 8), (8,)),
    "gelu": (lambda a, b: xgemm_torch.linear(a, b.T, activation="gelu") * 2, (5, 12), (12, 8)),
    "ieee": (lambda a, b: sgemm(a, b, alpha=0.5, precision="ieee") + 1, (5, 12), (12, 8)),
    "beta": (lambda a, b, c: sgemm(a, b, c, beta=0.5) + 1, (5, 12), (12, 8), (5, 8)),
    "batches": (lambda a, b: xgemm_torch.bmm(a, b) + 1, (3, 4, 5), (3, 5, 6)),
    "shared": (lambda a, b: xgemm_torch.matmul(a, b) + 1, (3, 4, 5), (5, 6)),
    "views": (lambda a, b: xgemm_torch.mm(a[1:].T, b[::2]).T.contiguous(), (9, 7), (16, 6)),
    "no K": (lambda a, b: xgemm_torch.mm(a, b) + 1, (5, 0), (0, 8)),
    "returned": (lambda a, b: xgemm_torch.mm(a, b), (5, 12), (12, 8)),
    "turned": (lambda a, b: xgemm_torch.mm(a, b).T, (5, 12), (12, 8)),
    "made": (lambda a, b: xgemm_torch.mm(a * 2 - 1, b + a.sum()), (5, 12), (12, 8)),
}


@on_every_device
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, dynamic, device):
    f, *shapes = PRODUCTS[name]
    args = [problems.integers(*shape, device=device) for shape in shapes]
    got, code = compiled(f, *args, dynamic=dynamic)
    assert same_bits(got, f(*args))
    assert OUT in code[0] and RETURNED not in code[0]


@on_every_device
def test_no_rows(device):
    a, b = torch.ones(0, 5, device=device), torch.ones(5, 8, device=device)
    got, _ = compiled(lambda a, b: xgemm_torch.mm(a, b) + 1, a, b, dynamic=True)
    assert got.shape == (0, 8)


@on_every_device
def test_rows_that_nobody_knows(device):
    """Sizes that depend on data."""
    x, w = problems.integers(6, 5, device=device), problems.integers(4, 5, device=device)
    mask = torch.tensor([1, 0, 1, 1, 0, 1], device=device).bool()

    def f(x, mask):
        return xgemm_torch.linear(x[mask], w) + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got, code = compiled(f, x, mask)
    assert same_bits(got, f(x, mask))
    assert OUT in code[0]


class Head(torch.nn.Module):
    """A classifier whose rows of logits Inductor pads, of as many classes as no vector divides."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2001, bias=False)

    def forward(self, x, target):
        logits = self.layer(x).flatten(0, -2)
        return torch.nn.functional.cross_entropy(logits, target.flatten())


@on_every_device
def test_a_gradient_of_logits_is_written_over_them(device):
    """As it is over stock's; without the lowering it takes as much memory again."""
    torch.manual_seed(0)
    model = Head().to(device)
    xgemm_torch.convert(model)
    x = torch.randn(4, 128, 32, device=device, requires_grad=True)
    target = torch.randint(2001, (4, 128), device=device)

    def step(call):
        loss = call(x, target)
        return loss.detach(), *torch.autograd.grad(loss, [x, model.layer.weight])

    with config.patch(disable_padding_cpu=False):
        got, code = run_and_get_code(lambda: step(torch.compile(model, fullgraph=True)))
    forward, backward = code
    logits = re.search(
        r"(\w+) = empty_strided_\w+\(\((?:4, 128|512), 2001\), \((\d+), 1\)", forward
    )
    assert logits and int(logits[2]) % 16 == 0, "padded rows"
    assert not re.search(r"empty_strided_\w+\(\((4, 128|512), 2001\)", backward)
    assert re.search(r"= sgemm\w*; del sgemm\w*  # reuse", backward)
    for mine, eager in zip(got, step(model), strict=True):
        torch.testing.assert_close(mine, eager)


def test_code_in_cpp_calls_the_operator_that_returns():
    a, b = problems.integers(5, 12), problems.integers(12, 8)
    with config.patch(cpp_wrapper=True):
        got, code = compiled(lambda a, b: xgemm_torch.mm(a, b) + 1, a, b)
    assert same_bits(got, xgemm_torch.mm(a, b) + 1)
    assert OUT not in code[0]


def test_a_stage_by_name_returns_its_result():
    a, b = problems.integers(5, 12), problems.integers(12, 8)
    got, code = compiled(lambda a, b: torch.ops.xgemm.naive(a, b) + 1, a, b)
    assert same_bits(got, xgemm_torch.mm(a, b) + 1)
    assert "torch.ops.xgemm.naive.default(" in code[0]


ops = torch.ops.xgemm
NAMED = {
    "row sums": (lambda a, b, k: ops.sgemm_row_sums(a * 2, b, alpha=0.5, kernel=k), "naive"),
    "row sums of views": (
        lambda a, b, k: ops.sgemm_row_sums(a[1:].T, b[1:], trans_a=True, trans_b=True, kernel=k),
        "wgmma_fp16x3",
    ),
    "a layer's gradients": (
        lambda a, b, k: ops.linear_backward(a * 2, b, None, True, kernel=k)[1:],
        "wgmma_fp16x3",
    ),
    "a stage": (lambda a, b, k: ops.naive(a, b, kernel=k) + 1, "naive"),
    "limbs": (lambda a, b, k: (b + 1, ops.prepack(b + 1, kernel=k).float()), "wgmma_fp16x3"),
    "a product": (lambda a, b, k: sgemm(a, b, kernel=k) + 1, "naive"),
}


@on_every_device
@pytest.mark.parametrize(
    ("name", "how"),
    [(name, how) for name in NAMED for how in ("static", "dynamic")]
    + [("row sums", "cpp"), ("a stage", "cpp")],
)
def test_kernels_by_name(name, how, device):
    """Inductor's call of an operator has a parameter ``kernel`` itself."""
    f, stage = NAMED[name]
    dynamic, cpp = how == "dynamic", how == "cpp"
    a, b = problems.normal(12, 12, device=device), problems.normal(12, 12, device=device)
    with config.patch(cpp_wrapper=cpp):
        got, code = compiled(lambda a, b: f(a, b, stage), a, b, dynamic=dynamic)
    want = f(a, b, stage)
    got, want = (x if isinstance(x, tuple) else (x,) for x in (got, want))
    assert all(map(same_bits, got, want))
    assert cpp or f"kernel='{stage}'" in code[0]


def test_an_unknown_kernel_has_our_words():
    a = torch.ones(4, 4)
    for op in (ops.sgemm_row_sums, ops.naive):
        with pytest.raises(Exception, match="no kernel named 'nope'|'naive'.*got 'nope'"):
            compiled(lambda a, op=op: op(a, a, kernel="nope"), a)


def test_without_the_lowering_inductor_takes_what_is_returned(monkeypatch):
    """And a torch whose Inductor differs is a warning."""
    from torch._inductor import lowering

    monkeypatch.delitem(lowering.lowerings, OPS["sgemm"], raising=False)
    inductor._register.cache_clear()
    with monkeypatch.context() as patched:
        patched.delattr(lowering, "register_lowering")
        with pytest.warns(UserWarning, match="Inductor has changed"):
            assert not inductor._register()
    a, b = problems.integers(5, 12), problems.integers(12, 8)
    got, code = compiled(lambda a, b: xgemm_torch.mm(a, b) + 1, a, b)
    assert same_bits(got, xgemm_torch.mm(a, b) + 1)
    assert RETURNED in code[0]
    inductor._register.cache_clear()
    assert inductor._register()


def test_the_first_compile_of_a_process_has_the_lowering():
    """The package alone does not import Inductor."""
    code = """
import sys, torch, xgemm_torch
assert "torch._inductor.lowering" not in sys.modules
f = torch.compile(lambda a, b: xgemm_torch.mm(a, b) + 1)
f(torch.ones(5, 12), torch.ones(12, 8))
"""
    logged = {**os.environ, "TORCH_LOGS": "output_code", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=logged)
    assert done.returncode == 0 and OUT in done.stderr, done.stderr
