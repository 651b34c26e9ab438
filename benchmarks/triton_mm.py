"""An FP32 product by Triton's ``tl.dot``, for peers.py: operands of any strides, autotuned.

A block of D a program, blocks in groups of `GROUP` rows of blocks so that both operands stay in the
L2 cache, K in steps that Triton pipelines through shared memory. What becomes of an FP32 operand is
``input_precision``'s affair: "tf32x3" multiplies by three TF32 products, "bf16x6" by six bf16 ones.
Needs the package triton, and a GPU or TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GROUP = 8
# Rows, columns and depth of a block, warps, slots of the pipeline. Larger blocks spill: limbs of
# both operands are in registers beside the accumulators.
TILES = (
    (128, 128, 32, 8, 3), (128, 128, 32, 8, 4), (128, 128, 64, 8, 2), (128, 256, 32, 8, 3),
    (64, 256, 32, 8, 3), (128, 64, 32, 8, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (64, 64, 32, 4, 4),
)  # fmt: skip
# Milliseconds for which a candidate is warmed up, and measured.
WARM_UP_MS, MEASURE_MS = 5, 20
# Offsets are 32-bit.
MOST_ELEMENTS = 2**31 - 1


def _measured(call: object, quantiles: object) -> object:
    from triton.testing import do_bench

    return do_bench(call, warmup=WARM_UP_MS, rep=MEASURE_MS, quantiles=quantiles)


@triton.autotune(
    configs=[
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=slots)
        for bm, bn, bk, warps, slots in TILES
    ],
    key=["m", "n", "k", "am", "ak", "bk_", "bn_", "PRECISION"],
    do_bench=_measured,
)
@triton.jit
def product_kernel(
    a, b, d, m, n, k, am, ak, bk_, bn_, dm,
    PRECISION: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """D = A B: strides of A are (am, ak), of B (bk_, bn_), of D (dm, 1)."""
    program = tl.program_id(0)
    across, down = tl.cdiv(n, BN), tl.cdiv(m, BM)
    in_group = GROUP * across
    first = program // in_group * GROUP
    rows_here = min(down - first, GROUP)
    i = first + program % in_group % rows_here
    j = program % in_group // rows_here

    rows, columns = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    # Beyond an edge an element that there is is read, and its result not stored.
    a_at = a + (rows % m)[:, None] * am + depth[None, :] * ak
    b_at = b + depth[:, None] * bk_ + (columns % n)[None, :] * bn_
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for done in range(0, k, BK):
        if EVEN_K:
            x, y = tl.load(a_at), tl.load(b_at)
        else:
            x = tl.load(a_at, mask=depth[None, :] < k - done, other=0.0)
            y = tl.load(b_at, mask=depth[:, None] < k - done, other=0.0)
        acc = tl.dot(x, y, acc, input_precision=PRECISION)
        a_at += BK * ak
        b_at += BK * bk_
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(d + rows[:, None] * dm + columns[None, :], acc, mask=inside)


def supported(precision: str) -> bool:
    """Whether this Triton has ``input_precision=precision`` for the current GPU."""
    if INTERPRETED:
        from triton.runtime.interpreter import InterpreterOptions

        return precision in InterpreterOptions().allowed_dot_input_precisions
    from triton.compiler.compiler import make_backend
    from triton.runtime.driver import driver

    options = make_backend(driver.active.get_current_target()).parse_options({})
    return precision in options.allowed_dot_input_precisions


def mm(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """Multiply (m, k) and (k, n) float32 matrices of any strides.

    Raises:
        ValueError: an operand has 2^31 elements or more.
    """
    (m, k), n = a.shape, b.shape[1]
    d = torch.empty(m, n, device=a.device)
    if max(a.numel(), b.numel(), d.numel()) > MOST_ELEMENTS:
        raise ValueError(f"triton_mm: {m} x {n} x {k} needs offsets of more than 32 bits")
    deepest = max(tile[2] for tile in TILES)

    def grid(tile: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, tile["BM"]) * triton.cdiv(n, tile["BN"]),)

    where = (a, b, d, m, n, k, *a.stride(), *b.stride(), d.stride(0))
    how = {"PRECISION": precision, "GROUP": GROUP, "EVEN_K": k % deepest == 0}
    if INTERPRETED:  # nothing is tuned without a GPU
        small = dict(zip(("BM", "BN", "BK"), TILES[-1], strict=False))
        product_kernel.fn[grid](*where, **how, **small)
    else:
        product_kernel[grid](*where, **how)
    return d
