"""What the pages of docs/ladder say beyond what the code tells of itself.

Figures do not belong here: the pages take them from the code and from measurements. Where a lesson
needs one, it names it: `{coalesced@4096}` is a stage's TFLOP/s at a size, NN; `{coalesced.sectors}`
what `counts` has of it, `{coalesced.registers}` and `{coalesced.occupancy}` what the compiler made
of its first kernel.
"""

from __future__ import annotations

# The function to read first, where a stage is not read from top to bottom, and its file: mostly the
# main loop.
CORES = {
    "cp_async_pipelined": ("mainloop/multistage.h", "multiply_pipelined"),
    "tma_specialized": ("mainloop/warp_specialized.h", "multiply_work_tiles"),
    "mma_fp16x3": ("mainloop/emulated_mma.h", "multiply_limbs"),
    "wgmma_fp16x3": ("mainloop/emulated_wgmma.h", "wgmma_kernel"),
    "wgmma_narrow": ("mainloop/fused_emulated.h", "multiply_slices"),
    "split_k": ("26_split_k.cu", "kernel"),
    "gemv": ("mainloop/gemv.h", "add"),
    "outer": ("28_outer.cu", "kernel"),
    "tma_split_k": ("29_tma_split_k.cu", "work_tile"),
    "tma_gemv": ("mainloop/gemv_tma.h", "multiply"),
    "whole_k": ("mainloop/small_tile.h", "multiply_whole_k"),
    "short_k": ("33_short_k.cu", "kernel"),
    "dot": ("34_dot.cu", "kernel"),
}

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
    "kType": "the parts' type",
    "BM": "rows of a block's tile",
    "kCluster": "blocks of a cluster",
    "kBuffers": "stages of the ring",
}

# Registers of a thread that fetches (or splits), and of one that multiplies, after they have been
# dealt out anew, by row of the tile table; None where they are not.
REGISTERS: dict[str, tuple[tuple[int, int] | None, ...]] = {
    "tma_specialized": ((88, 208), (80, 176)),
    "wgmma_fp16x3": ((40, 232), (40, 232), None),
    "wgmma_bf16x6": ((40, 232), (40, 232), None),
    "wgmma_narrow": ((64, 192), (64, 192), (64, 192), (64, 192)),
    "tma_split_k": ((88, 208), (80, 176)),
}

# Where a stage that is in none of the published ladders has its technique from.
ORIGINS = {
    "cp_async_pipelined": "This project, after what CUTLASS does on sm_80 and later: a main loop "
    "of several stages of `cp.async`.",
    "tma_specialized": "This project. Warps that only fetch and persistent blocks are also in "
    "CUTLASS's kernels for sm_90; tiles that are cut along K are the idea of Stream-K "
    "(Osama et al., [arXiv:2301.03598](https://arxiv.org/abs/2301.03598)), here without changing "
    "a chain.",
    "mma_fp16x3": "This project. Two fp16 limbs and sums that leave the tensor cores early are "
    "Ootomo's and Yokota's ([arXiv:2203.03341](https://arxiv.org/abs/2203.03341)).",
    "wgmma_fp16x3": "This project, with rung 21's parts and sums.",
    "wgmma_bf16x6": "This project. Three bf16 limbs are from Henry, Tang and Heinecke "
    "([arXiv:1904.06376](https://arxiv.org/abs/1904.06376)).",
    "wgmma_narrow": "This project.",
    "split_k": "This project. To cut K is an old technique; that the cut depends on the problem "
    "alone, so that bits do not change, is this stage's.",
    "gemv": "This project.",
    "outer": "This project.",
    "tma_split_k": "This project: rungs 20 and 26 together.",
    "tma_gemv": "This project.",
    "whole_k": "This project.",
    "short_k": "This project.",
    "dot": "This project. cuBLAS, too, has a warp or more for each element of such products.",
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
        "shared memory, which the host flavour watches; `XGEMM_SHARED_DYNAMIC` where a launch "
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

# Stages that exist for problems which a table of squares does not show.
SPECIAL = (
    "wgmma_narrow",
    "split_k",
    "gemv",
    "outer",
    "tma_split_k",
    "tma_gemv",
    "whole_k",
    "short_k",
    "dot",
)

LESSONS = {
    "naive": """\
Each thread walks a row of A and a column of B and keeps one sum. The mistake is in who sits beside
whom: the 32 lanes of a warp stand in 32 different rows, so one load of A asks for 32 places that
are a whole row apart, and each place costs a sector of 32 bytes of which 4 are used. Look at
*sectors per request* below, then at the next rung, where the roles of two indices change.""",
    "coalesced": """\
The lanes of a warp now stand side by side in one row of C. They all need the same element of A,
which is one broadcast, and 32 neighbours of B, which are four full sectors. Every multiply-add
still needs two loads from global memory, and what keeps the kernel moving is the cache, not the
code.

Two smaller things changed, too. A thread asks for eight elements of A and eight of B before it
multiplies them, so that sixteen loads are under way at a time: 6.5 TFLOP/s at 4096, where a loop of
single products, which the compiler unrolls, gives 5.6. And `.group = 1` has the blocks go through D
row of tiles by row of tiles; other stages take groups of rows, to find their slices of A in L2.""",
    "thread_tile_dot": """\
A thread takes a square of results instead of one. It computes them dot product by dot product, so
an element of A is read once and serves a row of products, while B is read again for every row.
Reuse in a register is the first way to need fewer loads; the order of the loops decides how much of
it there is.

Fewer loads, {thread_tile_dot.loads_per_fma} for a multiply-add after {coalesced.loads_per_fma}, and
yet no more speed: {thread_tile_dot@2048} TFLOP/s after {coalesced@2048} at 2048, and
{thread_tile_dot@4096} after {coalesced@4096} at 4096. The sectors that the caches are asked for
hardly change, {thread_tile_dot.sectors} after {coalesced.sectors}, since a thread walks along K
four times, once for each of its rows, and reads its columns of B each time. With
{thread_tile_dot.registers} registers a thread, {thread_tile_dot.occupancy} of the threads that a
multiprocessor has room for are there, and the batches of loads of rung 2 are gone: fewer loads are
under way, so it counts how long one takes. B has 16 MiB at 2048 and stays in an H200's 50 MB of L2
between the walks. At 4096 it has 64 MiB, and most of it comes from memory again. (That is what the
counts and sizes suggest; no profiler has been asked.)""",
    "thread_tile_outer": """\
The same square, the loops exchanged: for each k the thread reads a short column of A and a short
row of B, and every pair of them makes a product. V + V loads now serve V x V multiply-adds. All
fast kernels from here on are this outer product; what changes is where its operands come from.""",
    "smem_tiled": """\
A block's threads need the same rows of A and columns of B. They load a slice of each together,
once, and then read it from shared memory as often as they like. Two barriers frame a slice: nobody
reads before all have stored, nobody overwrites before all have read. Global memory is no longer
what limits it. Two reads of shared memory for each multiply-add are.

After rung 4 that is a step down, from {thread_tile_outer@4096} to {smem_tiled@4096} TFLOP/s at
4096. The two are branches: rung 4 reuses what is in registers, this one what is in shared memory,
and it begins where rung 2 was, with one result a thread. So {smem_tiled.loads_per_fma} words are
loaded for a multiply-add, where rung 4 loads {thread_tile_outer.loads_per_fma}; that most of them
come from shared memory and not from a cache brings the sectors for 1000 of them down to
{smem_tiled.sectors}, but it saves no instruction. Rung 11, with eight results a thread from shared
memory, is the first to be faster than rung 4.""",
    "smem_conflicted": """\
Shared memory has 32 banks, four bytes wide: the word at address w lies in bank w mod 32. Here B's
slice lies column by column with a stride of 32, so the 32 lanes of a warp, side by side in a row,
all ask one bank and are served one after the other, when they store and when they read. The picture
of the banks shows one column as high as the warp is wide. Slow on purpose.""",
    "smem_conflicted_1d": """\
Threads are numbered in one dimension and compute their row and column themselves. In its source's
ladder that is said to save a register; here both kernels have {smem_conflicted_1d.registers}. It
moves no datum. The banks are what limits the kernel, and they see the same addresses: an
optimization away from the bottleneck.""",
    "smem_transposed": """\
Only the way in which a slice lies in shared memory changes: A's is turned on its way in, and all
reads are free of conflicts. The store that turns it still meets one bank; it happens once for a
whole slice of reads, which is why it is the smaller evil, and padding a row would end it.""",
    "micro_4x1": """\
Four results a thread. Each element of one operand, once in a register, serves four products, so the
reads of shared memory for a multiply-add fall from two towards one. A quarter of the threads do the
same work.

Three things of the code are new since the rung before, and stay. A `Loader` (`gmem.h`) is a
thread's share of a slice: `fetch` loads it into registers and knows the operand's edges,
`store_rows` and `store_columns` put it into shared memory. The template's two booleans say which
way each operand is contiguous, so that lanes load neighbours in all four layouts; the launch
chooses one of the four kernels. And the rows of a slice are padded by four floats again, as in rung
5; rungs 6 to 8 do without, to show the banks. What is turned on its way in then does not meet one
bank, and reads of 16 bytes stay aligned.""",
    "micro_4x1_vec4": """\
The data are the same and so are the products, but four neighbours move as one access of 16 bytes:
fewer instructions for the same bytes. A request for 512 bytes takes four wavefronts at best, so
vectors save issue slots, not the bandwidth of the banks.""",
    "block_tile_1d": """\
A larger block tile with a flat slice, and eight results a thread down a column: the element of B
stays in a register while eight of A pass. Larger tiles also ask less of global memory, because a
slice that is loaded once serves more results.""",
    "block_tile_2d": """\
A square of 8 x 8 results in registers, fed by fragments of 8 + 8: the outer product of rung 4 with
its operands in shared memory. For the first time the multiply-adds far outnumber the loads.""",
    "block_tile_kmajor": """\
Both slices lie K-major, so that what is read together for one k lies together, and one loop fills
both: element t of a slice is the business of thread t mod the number of threads, whichever operand
it is. A's fragment is eight neighbours now. The source still reads them one by one, and the counts
below, which are of the source, are those of the rung before; but the compiler joins them. For each
k the machine code has two reads of 16 bytes (`LDS.128`); where A lay row by row it could only join
two neighbours along k, eight reads of 8 bytes for every two k. B's fragment, whose elements are as
far apart as a row of threads is wide, stays at eight reads of 4.""",
    "vec4_64x64": """\
Vectors everywhere: global loads, shared stores where the layout allows, reads of fragments, stores
of C. The tile is small, so more blocks exist and small problems fill the GPU; each thread has fewer
products to hide its loads behind.""",
    "vec4_128x128": """\
Both at once: the large tile and its 8 x 8 results a thread, and 16-byte accesses everywhere. A
thread's results lie in four groups of 4 x 4, so that neighbouring lanes read neighbouring
vectors.""",
    "warp_tiled": """\
A warp gets a compact rectangle of the tile instead of long rows, so that for one k its lanes need
fewer different words of A and B together. How the lanes lie in it matters as much: a read of 16
bytes serves half a warp at once only if neighbouring lanes, or lanes two apart, want the same 16
bytes. So lane i and i ^ 1 stand in one column here, and the wavefronts of a read fall to two.""",
    "register_prefetch": """\
While a slice is multiplied the next one is already on its way from global memory into registers,
and the fragments of the next k are read while those of this one are used. In the timeline the
loads run one slice ahead of the reads. There is still one shared buffer, so still two barriers.""",
    "smem_double_buffered": """\
With a second buffer the next slice can be stored while this one is still read, so one of the two
barriers goes. The timeline shows stores and reads side by side in one phase: of different slices,
in different buffers.""",
    "cp_async_pipelined": """\
`cp.async` copies from global to shared memory without a stop in a register. Several slices are on
their way at once; a wait says how many may still be missing. The timeline shows how far ahead the
copies run: that distance, times the time of a slice, is the latency that is hidden. The copies of a
slice are dealt out over the products of an earlier one, and the loop that does so has no edge in
it: slices with an edge have a loop of their own.""",
    "tma_specialized": """\
What is left to gain is in the instructions that are not multiply-adds: each takes the place of one.
So the block is divided. One warpgroup only fetches; it gives most of its registers to the others,
which only multiply, and find room for larger thread tiles. The two meet at mbarriers, a pair for
each stage of the ring: `full` ends a phase when all copies of a slice have landed, `empty` when all
readers are done with it. Nobody waits for the whole block, and a fetch may be slow as long as the
ring is long enough.

An operand that lies as its slices do, contiguous along m or n, is one box of TMA: a single thread
asks for a slice of it. One that is contiguous along k must be transposed on its way, which TMA
cannot do to floats; there `cp.async` still copies them one by one, and arrives at the mbarrier by
itself when they have landed. A block stays when its tile is done and takes the next, whose first
slices are fetched while the last one's results are stored.

Then the epilogue is what is left of instructions that are not multiply-adds. It has much to ask:
of edges, of vectors, of C, of an activation. Asked once for all of a thread's results, it costs a
store and four multiplications for each four of them. Asked for each four, it costs as much as the
products where K is short, and can be measured even where it is long.

What is outside the operands, TMA fills with +0. That keeps the bits of the chain where B is padded,
but not where A is: a ragged last slice of A comes by `cp.async`, and is padded with -0.

Tiles seldom make whole rounds: 512 tiles on 132 multiprocessors are three rounds and 116 tiles, and
the fourth round leaves 16 of them idle. So the last two rounds are shared out evenly along K, and
most blocks get the end of one tile and the beginning of the next. A chain cannot be made in two
halves that are added, its bits would change; but it can be handed over like a baton. The beginning
is made first, its accumulators go to a workspace as they are, and the block that has the end comes
to it last and goes on where the other stopped. By then they are there: hardly anyone waits.""",
    "mma_fp16x3": """\
Tensor cores multiply 16-bit floats many times faster than FMA units multiply FP32, and they add up
in FP32. So a float is written as the sum of two fp16 numbers: `hi` is the float rounded to fp16,
`lo` is what that left, times two to the eleventh, so that it does not fall below what fp16 can
hold. Of the four products of parts three matter, since lo times lo is below FP32's last bit.

fp16 has a short range of exponents. Every row of A and every column of B is therefore scaled first,
by a power of two that brings its largest element to the top of that range, which costs no bit; the
epilogue takes the scales back out. A launch before the product does all this, once, and writes the
parts to a workspace; what is multiplied is read from there.

Tensor cores truncate where FP32 arithmetic rounds, always toward zero, and over a long sum that
adds up. So no long sum is left to them. P, the products hi x hi of one slice, is a short sum and is
added to C by an ordinary FP32 addition, which rounds to nearest. Q, the two products with a `lo`,
is two thousand times smaller, and so are its errors: it may run on for a whole segment of K.

Of elements far smaller than their row's largest, two fp16 limbs cut off the last bits. Whether that
matters is asked of the result: what was cut off are roundings, whose sum is known from the norms of
the row and the column, and where it may show beside the result's own magnitude, the unit of 64 rows
that the result is in is not stored but marked. A launch behind the product makes marked units anew
by FP32 operations; mostly there are none, and it ends at once.""",
    "wgmma_fp16x3": """\
The parts and the three sums stay; the machine around them is Hopper's. A warpgroup, four warps,
starts a product of 64 rows by 128 columns with one instruction, `wgmma`, which reads both operands
from shared memory and works on while the warps do other things. TMA brings whole boxes of a tensor
there, at one thread's word. A fetching warpgroup and the multiplying ones meet at mbarriers only:
`full` counts the bytes that have landed, `empty` the readers that are done. Nobody waits for the
whole block.

The three sums are what lets the tensor cores never wait, too. While Q's products run, P's are done,
and the warps add P to C; by the time the next slice is there, P is free again. It is the reason for
the order in the code: P first, one wait that lets Q go on, the additions, then the slice *before*
goes back to the ring. The picture of the ring shows who has a slice when.

In a cluster of two blocks, one below the other, each fetches half of B's slice and TMA delivers it
to both. The compiler must take part: where it sees too few registers, or a sum touched while wgmma
may still add to it, it makes every wgmma wait for the last, without a word but a note in its log.
The build reads that note and fails.

The certificate of each result is that of rung 21, and so are the units that are made anew. The
host asks nothing and waits for nothing, so a CUDA graph can hold it all.""",
    "wgmma_bf16x6": """\
A bf16 number has FP32's range of exponents and eight bits. Three of them hold all the bits of a
float, wherever it lies in its row, so there is next to nothing that the parts cannot give. The
price is in the products: of nine, the six matter that are not below FP32's last bit, twice as many
as with two fp16 limbs. The kernel is the same, with other numbers in its scheme: a rung for those
who want no exceptions.""",
    "wgmma_narrow": """\
Splitting in a launch of its own pays where an element serves hundreds of products. In a narrow
product it serves few: there the split would read, write and read again what is needed once. So here
each thread reads a small patch of FP32 elements into registers and splits them into three bf16
parts there. wgmma takes one operand from registers, so the longer one stays where it is; the
shorter one goes back to shared memory, swizzled as wgmma wants it, by warps that do nothing else.
What an ordinary store wrote wgmma may not read at once: the tensor cores see shared memory through
another path, so a fence comes before the barrier. While the products of a slice are made, the next
is split, and the sums of the largest parts are promoted while those of the others run.

How the elements come matters most. When threads asked for them, by loads and by `cp.async`, a slice
took as long with no product made at all, but a third less with one of the two operands alone. So
neither memory nor the tensor cores were the limit, but how much of what its threads ask for a
multiprocessor keeps on its way. What TMA fetches does not count there: one thread asks for boxes,
five slices ahead, and a slice of both operands takes no longer than one of them alone did. What TMA
cannot take, because it is not aligned, still comes by `cp.async`, float by float, and slower.

There are too few tiles in such a product for a whole GPU, so K is shared out. The blocks that share
a tile are a cluster: they leave their sums in shared memory, where the slices were, meet, and each
reads the others' of its part of the tile, adds and stores it, all in one launch. What comes from
another block takes a while: all of it is asked for before any is added. Products so deep that eight
blocks are too few for a tile take more blocks, which make no cluster, and a second launch. Either
way the sums are added in one order.

Three bf16 limbs need no scale, so nothing has to be known of a row before it is read. What they
cannot hold, elements near the ends of FP32's range, a thread notices while it splits, for five
instructions a pair. Only where a block's operands have such a range are its sums looked at, each by
its magnitude, and where some are uncertain, the block makes those of its slice of K anew by FP32
multiply-adds. An infinity or a NaN adds up right from any number of slices. Only where finite
elements are so large that their sums may overflow on the way is a tile made by single chains:
sums of magnitudes along K say whether they may.

Six products of bf16 limbs leave three out, which shows where a row of A or a column of B has one
nonzero: its results are to be exact. So whoever splits a slice also notes where nonzeros are, and
stops at a row's second, which most data have in the first slice. What has one nonzero at most in a
block's share of K gives products of FP32 elements, read once more from memory.""",
    "split_k": """\
The main loop is that of cp_async_pipelined, to the letter; only the grid is another. A product with
few results and a long K has few tiles: most of a GPU looks on while some multiprocessors walk along
K. Here K is cut into shares, and each share of each tile is a block of its own. It makes a chain of
fused multiply-adds of its share and leaves it in the workspace; a second launch adds an element's
chains up in order and takes them through the epilogue. Where the blocks of a tile can be a cluster
and no multiprocessor has more of them for it, they need neither: the chains stay in shared memory,
where the slices were, and each block adds up its part of the tile.

That changes bits, so it must not depend on anything but the problem: the length of a share comes
from M, N, K and the batch alone, is the same for every tile of the table, on every GPU and on the
CPU, and `explain` says it. Shorter chains round less often one after the other, so the sum is more
accurate than one chain, not less.

The last row of the table is for the day when there is no memory for a workspace: one thread makes
an element's chains one after another and adds them as it goes, with the same bits, slowly.""",
    "gemv": """\
A matrix-vector product reads each element of the matrix once and multiplies it once: shared memory
has nothing to share, and whoever reads at the speed of memory has won. Warps work on their own
here, without a barrier of the block, each on its columns' share of K.

Where columns lie side by side, a lane takes one of them or four and asks for 32 or 64 rows at a
time, past shared memory; of A each lane has every 32nd element and tells the others. Where columns
lie along k, neighbouring lanes would have to read places far apart; so a warp copies 32 columns by
32 k with cp.async, eight lanes side by side along a column, and each lane then reads its own column
back, 16 bytes at a time. The order of those 16 bytes is another in each of 8 rows, so that eight
lanes that read at once meet 32 different banks. Slices are on their way while one is multiplied.

Columns that are an odd number of floats long begin anywhere in a sector of 32 bytes, and 4-byte
copies, which fit anywhere, take four times the requests. A lane's slices of its column therefore
begin where the sectors do, up to seven k before the chain's: aligned copies bring whole sectors,
each once, and a column's shift is in the place of A at which its lane reads. What is before or past
the chain is padding, -0 of A and +0 of B, which leaves every bit of the sum.

The chains are split_k's: same lengths, same order, same bits. The blocks that have an element's
chains are a cluster, read each other's shared memory and add the chains up in order, in the same
launch; only where there are over twice as many chains as warps in a cluster do they go through a
workspace. Blocks have as many warps as their chains ask for, so that few columns are still spread
over all multiprocessors.

Sums of several chains may overflow elsewhere than a single chain does. For `precision="fp32"`,
which promises infinity just where the chain has it, each chain also keeps the largest magnitudes it
has met. Where their product, times K, might be out of range, the chain leaves NaN, and whoever adds
up makes that element again as one chain. That costs nothing: the memory is what is waited for.""",
    "outer": """\
With a K of 1 a product is an outer product: each element is one multiplication, and all there is to
do is to write D. The gradient of a weight for one row of data is just that, and the tiled stages
write it at half the speed of memory. They load, wait, multiply, and store at the end of a block,
with two or three blocks to a multiprocessor; and each of their stores goes through an epilogue that
asks, for each row, whether there is a C, an activation, an edge.

Here blocks are small and many, B's few rows stay in a thread's registers, a block's slice of A is
read once, and the epilogue asks its questions once for all of a thread's rows. What then remains is
four multiplications and a 16-byte store. With a K of 1 it is as quick as filling D with zeros.""",
    "tma_split_k": """\
split_k's chains, tma_specialized's machine. A chain of a tile is a work tile like any other: a
tile, its first slice and its last. So the persistent grid, the ring and the warps that only fetch
stay as they are, and what changes is the list of work tiles: all tiles of the first chain, then
those of the second. The large tile does more products for each word it reads from shared memory,
and where K is cut there are work tiles enough for it.

A work tile's accumulators go to the workspace, through the same epilogue as results go to D, and
the second launch is split_k's. The bits are, too: who makes a chain does not matter to it.""",
    "tma_gemv": """\
Eight rows are too many for gemv, whose lanes would need eight sums for each of their columns and
ask for the same of A again and again, and too few for a tile: a block of split_k waits for memory
at every slice, together. Here, as in gemv, each warp is on its own. It has 32 columns, a share of
K, and in shared memory two slices of both operands, 32 deep, which TMA fills: one lane asks for a
box, all lanes multiply the other slice, and no warp waits for another. What a thread asks for
itself is limited by how much of it a multiprocessor keeps on its way; boxes are not, so two slices
are enough. More of them make large products slower, as memory is then asked for too many places at
a time.

Slices lie as they came, so the lanes of a warp are dealt out over rows and columns in the order in
which their reads meet no bank twice: with eight rows a lane has four columns by two rows, and each
value that it reads serves two or four products.

The chains are split_k's again, bit for bit. All chains of a group of columns belong to one block of
up to twelve warps, if the groups are enough to give every multiprocessor work: then they meet at a
barrier of the block, which costs next to nothing. Else they meet in a cluster of two, four or eight
blocks. Other numbers leave multiprocessors empty, and blocks that wait for a place cost as much as
all the others together.""",
    "whole_k": """\
A product of 128 x 128 x 128 is eight tiles of rung 19's smallest row: sixteen warps, on a machine
with 528 schedulers, and each of them waits for memory, for a barrier, for its last product, with
nobody to take its place. Nothing there is short of anything but time. So tiles are small, 16 x 16
with two results a thread, until every scheduler has a warp; what a block reads twice for it comes
from a cache.

What a thread waits for is then all there is. A block asks for the first four slices of K, 64 deep,
before it waits for the first: up to a K of 256 that is everything, and memory is waited for once.
Slices lie in shared memory as the operand lies outside, so every copy has 16 bytes, and none is
turned over on its way, which costs a copy for each float. A fragment is four of k: along k one
vector of each of the thread's rows, else four short reads. It is read while the one before is
multiplied; to read further ahead made it slower.

With so few results a thread, reads of shared memory bound what is left: a float for each of 32
lanes in a cycle, TM + TN of them for TM * TN products. From a side of 640 on a larger tile is
worth more than another warp, and rung 19 has it.

A batch of small matrices is the opposite: there are warps enough, each has a slice or two to
multiply, and then it waits for its block's end and the next one's first slice. Two of the tiles are
for that: a warp has 32 x 32 results, 8 x 4 a thread, or two warps 64 x 64, 8 x 8 a thread, which
read three eighths and a quarter of a float for a product where 2 x 4 reads three quarters. As many
blocks as fit at a time walk over the batch, and the ring of slices runs on from matrix to matrix:
the next one's are on their way while this one is multiplied and stored.""",
    "short_k": """\
With K = 16 an element of D is 16 products, and everything else that is done for it weighs as much:
its share of the copies, of the addresses, of the epilogue's choices. cuBLAS's kernels for such
problems execute half the instructions of this ladder's rungs, at the same issue rate, and that is
their lead. So this rung counts instructions. Copies go past the registers, 4 or 16 bytes at a time,
from wherever operands begin: no launch before makes aligned rows of them. They come in runs without
an address between, since ptxas sets every run of asynchronous copies apart with three instructions;
where rows lie along K, the four copies of a row and a chunk differ by a constant. Padding is for
the last four of K alone.

A chunk is 32 deep, and a block has room for two: one is on its way while the other is multiplied.
With one chunk of 64, a K of 100 waited twice for all of its copies, and 3442 x 250 x 117 took an
eighth longer (H100). What remains beside cuBLAS at such sizes is how few blocks there are: 108
tiles of 128 x 64 on 132 multiprocessors.

Where D's rows cannot be stored in vectors, a thread's four columns lie apart, so that neighbouring
lanes write neighbouring floats: four in a row for each thread would write each sector four times in
parts. The epilogue asks once whether rows are whole, and a column's address is a constant away from
the row's.""",
    "dot": """\
A product with one column is as many dot products as A has rows, and a chain that is longer than a
few hundred k keeps one thread waiting for itself. If only FP32 accuracy is promised and not the
bits of the chain, an element can have a team: 8 lanes where K is short, a warp, a block, or a
cluster of eight blocks where rows are few and long. Lane t multiplies k = t, t + T, t + 2T and so
on, so that a warp reads 128 bytes that lie together, from any offset, and 16 loads of each operand
are on their way before the first product. Sums meet by shuffles, in the block's shared memory, then
in the cluster's; a tree rounds less than the chain does.

What a tree may not do is to overflow where the chain would not, or the other way round. Each
thread also sums magnitudes. Where that sum is far from the end of FP32's range, no order of the
products can reach it. An infinity stays one in whatever order: then finite operands alone are
counted again. What is left, finite products that come near the largest float, is made as one chain
by one thread.""",
}
