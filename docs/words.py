"""Words of the code that the pages of docs/ladder explain."""

from __future__ import annotations

# What the template arguments of the kernels say.
ARGUMENTS = {
    "kRow": "the row of the tile table, from 0",
    "kA": "whether A is walked along k",
    "kB": "whether B transposed is",
    "kShared": "whether tiles are cut along K",
    "kInCluster": "whether the chains of a tile meet in a cluster, which adds them up",
    "kAlongK": "whether lanes walk k",
    "kFinish": "who adds up a tile's sums: 0 the block that has all of K, 1 the blocks of a "
    "cluster, 2 another launch",
    "kDepth": "how many k are in registers at a time",
    "kWide": "whether D is stored in vectors",
    "kType": "the limbs' type",
    "BM": "rows of a block's tile",
    "kCluster": "blocks of a cluster",
    "kBuffers": "slots of the ring",
    "Job": "what a launch is given: a batch, or groups",
}

# Words of the code: what, its header, what it means.
WORDS = (
    (
        "`View`",
        "core/gemm.h",
        "an operand: a pointer and its strides, down a column, along a row, and from one matrix "
        "of a batch to the next. `g.a(i, k)` is an element, `transposed()` the same memory seen "
        "the other way",
    ),
    (
        "`Gemm`",
        "core/gemm.h",
        "the problem: sizes, the views of A, B, C and D, alpha, beta, activation; `at(z)` is one "
        "matrix of the batch, `store` the epilogue",
    ),
    (
        "`kPadA`, `kPadB`",
        "core/gemm.h",
        "what stands for elements outside A (-0) and B (+0): their product is -0, which changes "
        "no bit of a sum",
    ),
    (
        "`Tile`",
        "core/tile.h",
        "a block's tile of D, `BM` x `BN`, and its slices, `BK` deep; a warp's, `WM` x `WN`; a "
        "thread's, `TM` x `TN`; `buffers`: slices in shared memory at a time; `pad_a`, `pad_b`: "
        "floats that are added to a row against bank conflicts; `min_blocks`: blocks that must "
        "fit on a multiprocessor; `rate`: TFLOP/s at 4096",
    ),
    (
        "slice",
        "device/copy/gmem.h",
        "what a block has of A and B at a time: `BM` x `BK` and `BK` x `BN`; `slice_depth` is how "
        "much of K the slice at `k0` holds, less than `BK` at the end",
    ),
    (
        "`swizzled_tile`, `TileCoord`",
        "core/tile_scheduler.h",
        "which tile a block computes, as its first row and column: `group` rows of tiles are "
        "walked together, column by column, so that they share B in L2",
    ),
    (
        "`Loader`",
        "device/copy/gmem.h",
        "a thread's share of a slice: `fetch` loads it into registers, edges included, "
        "`store_rows` and `store_columns` put it into shared memory, row-major or K-major",
    ),
    (
        "`AsyncCopies`, `Ring`",
        "device/copy/cp_async.h",
        "the same by `cp.async`, past the registers; the slices in shared memory",
    ),
    (
        "`kA`, `kB`",
        "device/launch.h",
        "whether A, and B transposed, are contiguous along k; `launch_tiles_by_major` chooses the "
        "kernel of a template by them",
    ),
    (
        "fragment",
        "device/fragment.h",
        "a thread's part of one k of a slice; `load_fragment` reads it, `outer_product` "
        "multiplies two of them, `Order` says in which order",
    ),
    (
        "`XGEMM_SHARED`",
        "device/platform.h",
        "shared memory, which the emulator watches; `XGEMM_SHARED_DYNAMIC` where a launch "
        "says how much",
    ),
    (
        "`Context`",
        "core/stage.h",
        "what a launch needs beside the problem: the row of the tile table, the stream, the "
        "device, the workspace",
    ),
    (
        "`PipelineState`, `WorkTile`, job",
        "device/pipeline.h",
        "from rung 20 on: a slot of the ring and the parity of its barriers; a tile and the "
        "slices of it that a block computes; the list of work tiles",
    ),
)
