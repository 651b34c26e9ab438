"""Where the stages come from: every kernel of five published ladders, and the operator it is here.

Two kinds of figures stand beside a kernel. ``measured`` is what its own program reached on the one
H200 of the marks, in their run beside cuBLAS (`marks.CUBLAS`): TFLOP/s by size, NN. ``published``
is what its authors report from their own GPU, with the cuBLAS of their run beside it. A source that
is lecture or tutorial text, not a program, has neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..registry import Stage


@dataclass(frozen=True)
class System:
    """A published ladder.

    Attributes:
        title: what the pages call it.
        author: who wrote it, as far as it says.
        url: where it is, or "" where no address is known.
        note: what else helps to find its kernels.
    """

    title: str
    author: str = ""
    url: str = ""
    note: str = ""


SYSTEMS = {
    "X": System(
        "xGeMM, the 0Mean1Sigma series",
        "tgautam03",
        "https://github.com/tgautam03/xGeMM",
        "explained at https://0mean1sigma.com/xgemm/",
    ),
    "T": System(
        "TutorialsPoint's CUDA tutorial",
        "Tutorials Point",
        "https://www.tutorialspoint.com/cuda/index.htm",
    ),
    "S": System(
        "the SGEMM ladder, naive to v9",
        "Yujia Zhai",
        "https://github.com/yzhaiustc/Optimizing-SGEMM-on-NVIDIA-Turing-GPUs",
        "the programs are its kernels 1 to 11: naive is kernel 1, v1 to v8 are 2 to 9, v9 is 10 as "
        "its code is and 11 as its text has it",
    ),
    "L": System(
        "the lecture on GPU matmuls",
        note="slides, of which no address is known here; register tiles, shared memory and "
        "cooperative fetching are also in the lecture on GPU acceleration at "
        "https://dlsyscourse.org/lectures/",
    ),
    "C": System("the CUDA Tutorial notes", note="no address is known here"),
}
# On which GPU a system's published figures were taken, as far as it says.
PUBLISHED_ON = {"X": "its author's GPU, which the repository does not name", "S": "a Turing GPU"}


@dataclass(frozen=True)
class Published:
    """What the authors report: TFLOP/s at size cubed, and of cuBLAS in the same series."""

    size: int
    tflops: float
    cublas: float


@dataclass(frozen=True)
class Kernel:
    """One kernel of a source system.

    Attributes:
        system: a key of `SYSTEMS`.
        kernel: what the system calls it.
        stage: the operator here that has its technique.
        cited: how the stage's ``source`` names it.
        measured: TFLOP/s by size on the H200 of the marks; empty where no program exists to run.
        published: the authors' own figure, or None.
    """

    system: str
    kernel: str
    stage: str
    cited: str
    measured: dict[int, float] = field(default_factory=dict)
    published: Published | None = None

    def cited_by(self, source: str) -> bool:
        """Say whether a stage's ``source``, as in "S v7, L v3 + fetching", names this kernel."""
        return self.cited in re.split(r"\s*[,+]\s*", source)


def _h200(*tflops: float | None) -> dict[int, float]:
    """Figures at 1024, 2048, 4096 and 8192 cubed."""
    sizes = (1024, 2048, 4096, 8192)
    return {size: t for size, t in zip(sizes, tflops, strict=True) if t is not None}


_X_CUBLAS = {4096: 26.50}
_S_CUBLAS = {2048: 6.41, 4096: 8.64}


def _x(tflops: float) -> Published:
    return Published(4096, tflops, _X_CUBLAS[4096])


def _s(size: int, tflops: float) -> Published:
    return Published(size, tflops, _S_CUBLAS[size])


KERNELS = (
    Kernel("X", "01 naive", "naive", "X 01", _h200(0.5, 0.5, 0.5, None), _x(0.30)),
    Kernel("X", "02 coalesced", "coalesced", "X 02", _h200(6.1, 6.2, 6.3, 5.8), _x(2.00)),
    Kernel("X", "03 tiled", "smem_tiled", "X 03", _h200(8.4, 9.0, 8.6, 8.6), _x(2.66)),
    Kernel("X", "04 coarse 1d", "block_tile_1d", "X 04", _h200(16.2, 16.8, 16.6, 16.4), _x(8.76)),
    Kernel("X", "05 coarse 2d", "block_tile_2d", "X 05", _h200(9.6, 26.9, 27.5, 27.7), _x(14.17)),
    Kernel("X", "06 coarse 2d, vectorized", "vec4_128x128", "X 06",
           _h200(10.7, 33.9, 34.0, 34.3), _x(18.30)),
    Kernel("T", "untiled", "coalesced", "T untiled"),
    Kernel("T", "tiled", "smem_tiled", "T"),
    Kernel("S", "naive", "coalesced", "S naive", _h200(6.2, 6.4, 6.0, 5.6), _s(2048, 1.06)),
    Kernel("S", "v1", "smem_conflicted", "S v1", _h200(1.7, 1.7, 1.7, 1.7), _s(2048, 0.31)),
    Kernel("S", "v2", "smem_conflicted_1d", "S v2", _h200(1.7, 1.7, 1.7, 1.7), _s(2048, 0.31)),
    Kernel("S", "v3", "smem_transposed", "S v3", _h200(4.9, 5.1, 5.1, 5.1), _s(2048, 0.75)),
    Kernel("S", "v4", "micro_4x1", "S v4", _h200(8.6, 8.8, 9.0, 9.1), _s(4096, 1.65)),
    Kernel("S", "v5", "micro_4x1_vec4", "S v5", _h200(9.7, 9.9, 10.2, 10.3), _s(4096, 2.04)),
    Kernel("S", "v6", "vec4_64x64", "S v6", _h200(21.8, 28.6, 29.9, 30.7), _s(4096, 5.49)),
    Kernel("S", "v7", "vec4_128x128", "S v7", _h200(12.2, 35.5, 36.5, 36.4), _s(4096, 7.18)),
    Kernel("S", "v8", "warp_tiled", "S v8", _h200(13.2, 42.3, 45.4, 47.1), _s(4096, 9.11)),
    Kernel("S", "v9, as its code is", "register_prefetch", "S v9 (code)",
           _h200(17.7, 45.2, 46.3, 46.9), _s(4096, 8.85)),
    Kernel("S", "v9, as its text has it", "smem_double_buffered", "S v9 (prose)",
           _h200(18.9, 44.7, 45.9, 46.5), _s(4096, 9.75)),
    Kernel("L", "GPU Matmul v1", "naive", "L v1"),
    Kernel("L", "GPU Matmul v1.5", "thread_tile_dot", "L v1.5"),
    Kernel("L", "GPU Matmul v2", "thread_tile_outer", "L v2"),
    Kernel("L", "GPU Matmul v3", "block_tile_kmajor", "L v3"),
    Kernel("L", "cooperative fetching", "block_tile_kmajor", "cooperative fetching"),
    Kernel("C", "1, tiled", "smem_tiled", "C 1"),
    Kernel("C", "2, 1d tiles a thread", "block_tile_1d", "C 2"),
)  # fmt: skip


def of_stage(stage: str) -> list[Kernel]:
    """Give the published kernels that became this operator."""
    return [kernel for kernel in KERNELS if kernel.stage == stage]


def missing(stages: Iterable[Stage]) -> list[str]:
    """Say which published kernel has no operator among these stages, or one that does not name it.

    Returns a line for each: empty when every kernel is there and is cited.
    """
    by_name = {stage.name: stage for stage in stages}
    lines = []
    for kernel in KERNELS:
        stage = by_name.get(kernel.stage)
        if stage is None:
            lines.append(f"{kernel.system} {kernel.kernel}: no stage {kernel.stage}")
        elif not kernel.cited_by(stage.source):
            lines.append(
                f"{kernel.system} {kernel.kernel}: {stage.name} names {stage.source!r}, not "
                f"{kernel.cited!r}"
            )
    return lines
