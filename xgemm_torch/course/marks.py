"""The marks: how fast the best known implementation of each technique is, beside cuBLAS.

TFLOP/s at 4096 and 8192 cubed, NN, random normal data, all measured in one run on one H200
(700 W, driver 580.159.04, torch 2.11.0+cu130, cuBLAS 13.1.0, 2026-11-21). A stage reaches its mark
when its share of cuBLAS, measured side by side, is at least the mark's share of that run's cuBLAS.

Stages whose products are made of several launches have goals in place of marks: how many times
torch.mm's speed the whole call is to reach, the split of the operands included.
"""

from __future__ import annotations

CUBLAS = {4096: 51.5, 8192: 51.5}

# The board's roofs: 132 multiprocessors at 1.98 GHz, each with 128 fused multiply-adds and 128
# bytes of L1 a cycle; a copy of 4 GiB, read and written. Of the peak FFMA loops reach 66.1.
H200_ROOFS = {"fp32_tflops": 66.9, "l1_tbs": 33.5, "memory_tbs": 4.26, "of": "an H200"}

# Stages without a published counterpart of their own, and sizes that nobody measured, are absent.
MARKS: dict[str, dict[int, float]] = {
    "naive": {4096: 0.5},
    "coalesced": {4096: 6.4, 8192: 5.9},
    "smem_tiled": {4096: 9.1, 8192: 9.2},
    "smem_conflicted": {4096: 1.7, 8192: 1.7},
    "smem_conflicted_1d": {4096: 1.7, 8192: 1.7},
    "smem_transposed": {4096: 5.1, 8192: 5.1},
    "micro_4x1": {4096: 9.0, 8192: 9.1},
    "micro_4x1_vec4": {4096: 10.2, 8192: 10.3},
    "block_tile_1d": {4096: 17.3, 8192: 17.3},
    "block_tile_2d": {4096: 31.8, 8192: 32.2},
    "block_tile_kmajor": {4096: 28.0, 8192: 28.0},
    "vec4_64x64": {4096: 29.9, 8192: 31.1},
    "vec4_128x128": {4096: 36.5, 8192: 36.4},
    "warp_tiled": {4096: 45.4, 8192: 47.1},
    "register_prefetch": {4096: 46.3, 8192: 46.9},
    "smem_double_buffered": {4096: 45.9, 8192: 46.5},
    "cp_async_pipelined": {4096: 51.7, 8192: 52.0},
    "tma_specialized": {4096: 57.0, 8192: 57.0},
    "mma_fp16x3": {4096: 85.5, 8192: 79.1},
}

# Multiples of torch.mm in the same run, NN, by size.
GOALS: dict[str, dict[int, float]] = {
    "wgmma_fp16x3": {1024: 3.5, 2048: 3.95, 4096: 4.15, 8192: 4.25},
    "wgmma_bf16x6": {4096: 2.05},
}


def share(stage: str, size: int) -> float | None:
    """The share of cuBLAS that ``stage`` must reach at ``size`` cubed, NN; None without a mark."""
    if stage in GOALS:
        return GOALS[stage].get(size)
    mark = MARKS.get(stage, {}).get(size)
    return None if mark is None else mark / CUBLAS[size]
