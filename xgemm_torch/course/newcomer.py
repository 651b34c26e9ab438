"""The way of a newcomer up the ladder: ten rungs, what to do on each rung, what to read behind it.

A stage that is not named here is not on the path and has no reading of its own; a new one needs no
word here.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import Stage
from .exercises.exercise import Exercise, exercises

# Each has one mechanism that all later ones keep, or, of smem_conflicted, shows what goes wrong
# without; the other rungs are mistakes, branches and half steps. In the order of the ladder.
PATH = {
    "naive": "what a kernel is, and what loads of single elements cost",
    "coalesced": "the same loads with lanes side by side touch fewer sectors",
    "smem_tiled": "a block loads an element once for all its threads, between two barriers",
    "smem_conflicted": "what a wrong layout in shared memory costs",
    "block_tile_2d": "a square of results in registers needs fewer reads for a multiply-add",
    "vec4_128x128": "16 bytes a load take fewer instructions for the same bytes",
    "warp_tiled": "lanes that share rows and columns take fewer wavefronts",
    "cp_async_pipelined": "copies run ahead of products, which hides latency; one barrier a slice",
    "tma_specialized": "some warps fetch and others multiply, and mbarriers join them",
    "wgmma_fp16x3": "tensor cores, and FP32's accuracy from 16-bit limbs",
}
WHY = (
    "Ten rungs are enough to understand the last ones. Each adds one mechanism that all later ones "
    "keep; only the fourth is a mistake, which shows why layouts in shared memory matter. The "
    "others are more mistakes, branches and half steps; come back to them for their exercises."
)

# Exercises that no stage of its own has, or that fit a second rung: by rung, names.
MORE_EXERCISES = {
    "naive": ("epilogue", "beta_zero"),
    "coalesced": ("offsets",),
    "thread_tile_dot": ("occupancy", "loads_per_fma", "offsets"),
    "thread_tile_outer": ("loads_per_fma", "roofline", "occupancy"),
    "smem_conflicted": ("padding", "swizzle"),
    "smem_conflicted_1d": ("banks", "which_barrier", "padding"),
    "smem_transposed": ("swizzle", "banks"),
    "micro_4x1": ("block_tile_1d", "edge", "loads_per_fma"),
    "micro_4x1_vec4": ("vectors", "block_tile_1d", "banks"),
    "block_tile_1d": ("loads_per_fma", "edge"),
    "block_tile_2d": ("occupancy",),
    "block_tile_kmajor": ("padding", "loads_per_fma", "block_tile_2d"),
    "vec4_64x64": ("waves", "occupancy"),
    "vec4_128x128": ("vectors", "occupancy", "roofline"),
    "warp_tiled": ("banks", "swizzle"),
    "register_prefetch": ("double_buffer", "occupancy", "buffer_race"),
    "smem_double_buffered": ("which_barrier",),
    "cp_async_pipelined": ("double_buffer",),
    "tma_specialized": ("cp_async_ring",),
    "mma_fp16x3": ("roundings", "limbs", "cp_async_ring"),
    "wgmma_bf16x6": ("roundings", "wgmma_wait"),
    "gemv": ("warp_reduction",),
}
MOST_EXERCISES = 3

_BEST = "NVIDIA, CUDA C++ Best Practices Guide"
_GUIDE = "NVIDIA, CUDA C++ Programming Guide"
_PTX = "NVIDIA, PTX ISA"
_SCHEDULER = "[Design, the scheduler](../design.md#scheduler)"
_LIMBS = "[Design, FP32 by 16-bit limbs](../design.md#fp32-by-16-bit-limbs)"
# What to read behind a rung: a section of this project's pages, a paper or a vendor's document.
READING = {
    "naive": (f'{_GUIDE}, "Thread Hierarchy"',),
    "coalesced": (f'{_BEST}, "Coalesced Access to Global Memory"',),
    "thread_tile_dot": ('V. Volkov, "Better Performance at Lower Occupancy", GTC 2010',),
    "thread_tile_outer": ('V. Volkov, "Better Performance at Lower Occupancy", GTC 2010',),
    "smem_tiled": (f'{_GUIDE}, "Shared Memory", its matrix product',),
    "smem_conflicted": (f'{_BEST}, "Shared Memory and Memory Banks"',),
    "smem_conflicted_1d": (f'{_BEST}, "Shared Memory and Memory Banks"',),
    "smem_transposed": ('M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA 2013',),
    "micro_4x1_vec4": (
        'J. Luitjens, "Increase Performance with Vectorized Memory Access", NVIDIA 2013',
    ),
    "block_tile_1d": (
        'V. Volkov, J. Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra", SC 2008',
    ),
    "block_tile_2d": (
        'V. Volkov, J. Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra", SC 2008',
    ),
    "vec4_64x64": (
        'J. Luitjens, "Increase Performance with Vectorized Memory Access", NVIDIA 2013',
    ),
    "vec4_128x128": (
        'J. Luitjens, "Increase Performance with Vectorized Memory Access", NVIDIA 2013',
    ),
    "warp_tiled": ('A. Kerr and others, "CUTLASS: Fast Linear Algebra in CUDA C++", NVIDIA 2017',),
    "register_prefetch": ('CUTLASS, "Efficient GEMM in CUDA", its part on pipelining',),
    "smem_double_buffered": ('CUTLASS, "Efficient GEMM in CUDA", its part on pipelining',),
    "cp_async_pipelined": (f'{_GUIDE}, "Asynchronous Data Copies"',),
    "tma_specialized": (_SCHEDULER, f'{_PTX}, "mbarrier"'),
    "mma_fp16x3": (
        _LIMBS,
        'H. Ootomo, R. Yokota, "Recovering single precision accuracy from Tensor Cores while '
        'surpassing the FP32 theoretical peak performance", IJHPCA 2022',
    ),
    "wgmma_fp16x3": (
        _LIMBS,
        f'{_PTX}, "Asynchronous Warpgroup Level Matrix Instructions"',
    ),
    "wgmma_bf16x6": (
        'G. Henry, P. Tang, A. Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype '
        'for Higher-Precision Computations", ARITH 2019',
    ),
}


def step(stage: Stage) -> int:
    """Give a stage's number on the path, from 1; 0 where it is not on it."""
    return [*PATH].index(stage.name) + 1 if stage.name in PATH else 0


def following(stage: Stage, ladder: Sequence[Stage]) -> Stage | None:
    """Give the first rung of the path above a stage; None for the last, and for what is no rung."""
    above = (other for other in ladder if other.rung > stage.rung and other.name in PATH)
    return next(above, None) if stage.rung else None


def exercises_of(stage: Stage) -> list[Exercise]:
    """Give a stage's exercises, at most `MOST_EXERCISES`: its own, then those that fit it."""
    own = [each for each in exercises() if each.stage == stage.name]
    by_name = {each.stem[3:]: each for each in exercises()}
    more = [by_name[name] for name in MORE_EXERCISES.get(stage.name, ()) if name in by_name]
    found = {each.stem: each for each in [*own, *more]}
    return [*found.values()][:MOST_EXERCISES]
