"""Which kernel would run for a product, and why: ``explain``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from . import _C, _checks
from .ops import KERNELS, sgemm
from .recomputed import count_recomputed
from .registry import Tile, split_k_size, tile_name
from .types import Precision

_ASSUMED = (90, 132)  # compute capability and multiprocessors of an H100 or H200

# What a candidate's time rests on: the word for it in a table, and what that means.
BASES = {
    "tuned": ("tuned", "this problem on this GPU, measured by its user"),
    "estimated": ("estimated", "what its time is made of, at costs fitted to measurements"),
    "rate": ("rate", "the speed that the tile's row states, in whole waves of blocks"),
}


@dataclass(frozen=True)
class Candidate:
    """One row of one stage's tile table, considered.

    Attributes:
        kernel: the stage's name.
        row: which row of the stage's tile table.
        tile: that row.
        legal: whether "auto" may take it: it can run there, and keeps the precision's contract.
        able: whether it can run there, as it does where the stage is asked for by its name.
        why: why it is not legal; empty when it is.
        blocks: thread blocks in the grid; 0 when not able.
        waves: blocks over blocks that run at once; 0 when not able.
        predicted_us: its time in microseconds, or an estimate that is good for comparing rows; None
            where there is none.
        basis: what that time rests on: "tuned", this problem on this GPU, measured by its user
            (`xgemm_torch.tuned`); "estimated", the terms of its time (launches, waves of blocks,
            K, memory) at costs that were fitted to measurements of many problems; "rate", the speed
            that the tile's row states.
        by_name: whether this row runs when the stage is called by its name.
        scheme: how it makes a product of FP32 numbers, as in "fp16x3: ..." or "ffma: ...".
        workspace: bytes of workspace that it needs, from torch's allocator.
        units: how many units its result has that are certified and, where one is uncertain, made
            anew; None where the stage has none.
    """

    kernel: str
    row: int
    tile: Tile
    legal: bool
    able: bool
    why: str
    blocks: int
    waves: float
    predicted_us: float | None
    basis: str
    by_name: bool
    scheme: str
    workspace: int
    units: int | None

    @property
    def name(self) -> str:
        """The stage and its tile, as in "block_tile_2d 128x128x16"; no two are the same."""
        return f"{self.kernel} {tile_name(self.kernel, self.row)}"

    @property
    def known_us(self) -> float | None:
        """The time where "auto" may take the row; or None."""
        return self.predicted_us if self.legal else None


@dataclass(frozen=True)
class Explanation:
    """What would run, and why; ``str()`` gives it as text.

    Attributes:
        m, n, k, batch: the problem's sizes.
        device: where it would run, in words.
        precision: the contract asked for.
        kernel: the stage that would run, or "aten" for ATen's BLAS, "fmaf chain" for the native
            chain of fused multiply-adds of a CPU, "none" where nothing would.
        why: one sentence.
        row: which row of the stage's tile table; 0 where no stage runs.
        tile: that row; None where no stage runs.
        blocks: thread blocks in the grid; 0 where no stage runs.
        blocks_per_sm: of them, those that run at once on one multiprocessor.
        waves: blocks over blocks that run at once.
        scheme: how a product of FP32 numbers is made: "ffma: ..." of the numbers themselves,
            "fp16x3: ..." or "bf16x6: ..." of limbs of them; empty where no stage runs.
        workspace: bytes of workspace, from torch's allocator; where there is no memory for them
            "auto" takes a stage that needs none.
        candidates: all rows of all stages.
        units: how many units the result has: 64 rows by the columns of a tile (128, or 64), of each
            matrix; None where what runs certifies none.
        recomputed: how many of them were made anew; None where they were not counted.
        counted: whether they were asked for.
    """

    m: int
    n: int
    k: int
    batch: int
    device: str
    precision: Precision
    kernel: str
    why: str
    row: int
    tile: Tile | None
    blocks: int
    blocks_per_sm: int
    waves: float
    scheme: str
    workspace: int
    candidates: tuple[Candidate, ...]
    units: int | None = None
    recomputed: int | None = None
    counted: bool = False

    def __str__(self) -> str:
        """The explanation as some lines of text."""
        size = f"{self.m} x {self.n} x {self.k} (M x N x K)"
        if self.batch > 1:
            size = f"{self.batch} times {size}"
        lines = [
            f"{size} on {self.device}, precision {self.precision}",
            f"  kernel  {self.kernel}: {self.why}",
        ]
        if self.scheme:
            lines.append(f"  scheme  {self.scheme}; {memory(self.workspace)} of workspace")
        if self.tile is not None:
            t = self.tile
            lines += [
                f"  tile    {t.BM}x{t.BN}x{t.BK} a block, {t.TM}x{t.TN} a thread, "
                f"{t.team} threads, {memory(t.smem)} of shared memory",
                f"  grid    {self.blocks} blocks, {self.blocks_per_sm} at once on a "
                f"multiprocessor, {self.waves:.2f} waves",
            ]
        if self.counted:
            lines.append(f"  count   {self._count()}")
        if self.candidates:
            width = max(len(c.name) for c in self.candidates)
            lines.append(f"  {'stage and tile'.ljust(width)}  {'time':>10}  {'waves':>8}  basis")
            for c in self.candidates:
                time = f"{'-':>10}" if c.known_us is None else f"{c.known_us:>8.1f}us"
                waves = f"{c.waves:>8.2f}" if c.legal else f"{'-':>8}"
                basis = c.why or BASES[c.basis][0]
                lines.append(f"  {c.name.ljust(width)}  {time}  {waves}  {basis}")
        return "\n".join(lines)

    def _count(self) -> str:
        """What came of counting, in words."""
        if self.recomputed is not None:
            return f"{self.recomputed} of {self.units} units made anew"
        if self.kernel == "none":
            return "nothing ran"
        return f"{self.kernel} certifies no units, so none could be made anew"


def memory(size: int) -> str:
    """A number of bytes in words: what is large in KiB, MiB or GiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f}".removesuffix(".0") + f" {name}"
    return f"{size} bytes"


_Layout = tuple[int, int, bool, int]  # strides of rows and columns, alignment, stride of the batch


@dataclass(frozen=True)
class _Asked:
    """What is asked for besides the problem."""

    kernel: str
    precision: Precision
    workspace: int | None


@overload
def explain(
    a: Tensor,
    b: Tensor,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    kernel: str = "auto",
    precision: Precision = "fp32",
    workspace: int | None = None,
    count: bool = False,
) -> Explanation: ...


@overload
def explain(
    a: int,
    b: int,
    k: int,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    kernel: str = "auto",
    precision: Precision = "fp32",
    workspace: int | None = None,
) -> Explanation: ...


def explain(
    a: Any,
    b: Any,
    k: int | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    kernel: str = "auto",
    precision: Precision = "fp32",
    workspace: int | None = None,
    count: bool = False,
) -> Explanation:
    """Say which kernel ``sgemm`` would run for these operands, and why.

    ``explain(a, b)`` takes tensors, of which only shapes, strides, alignment and device count.
    ``explain(M, N, K)`` takes sizes of contiguous operands on the current CUDA device; where there
    is none, on an H200. It runs nothing but what ``count=True`` asks for.

    Args:
        a: (M, K) or (batch, M, K), or the size M.
        b: (K, N) or (batch, K, N), or the size N.
        k: the size K, with sizes only.
        trans_a: ``a`` is stored transposed.
        trans_b: ``b`` is stored transposed.
        kernel: "auto" or a stage's name.
        precision: "fp32" or "ieee".
        workspace: choose as if there were memory for so many bytes of it; None: for any number.
        count: run the product of the tensors once, without autograd, where a stage that certifies
            its results takes it, and count the units of the result that are made anew
            (`count_recomputed`). Waits for the device. What other threads multiply there in the
            meantime is counted, too.

    Returns:
        What would run, why, and every row that was considered; ``str()`` gives it as text.

    Raises:
        TypeError: an operand is no dense float32 tensor.
        ValueError: sizes or names that do not fit; a negative size; operands of 2^63 bytes or more;
            with ``count``, also sizes or tensors without data in place of tensors, a
            ``workspace``, a stream that is being captured, and what ``sgemm`` refuses.
    """
    if count and workspace is not None:
        raise ValueError(
            "explain: count=True runs the product with the memory that there is, so workspace must "
            f"be None, got {workspace}"
        )
    if workspace is not None and workspace < 0:
        raise ValueError(f"explain: workspace must not be negative, got {workspace}")
    asked = _Asked(kernel, precision, workspace)
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if k is not None:
            raise TypeError("explain: takes two tensors or three sizes")
        if count and isinstance(a, Tensor) and isinstance(b, Tensor):
            _must_run(a, b)
        found = _of_tensors(a, b, trans_a, trans_b, asked)
        return _counted(found, a, b, trans_a, trans_b, asked) if count else found
    sizes: tuple[Any, Any, Any] = (a, b, k)
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise TypeError("explain: takes two tensors or three sizes")
    if count:
        raise ValueError(
            "explain: count=True runs the product and needs two tensors with data, got the sizes "
            f"{a} x {b} x {k}"
        )
    _checks.check_options("explain", KERNELS["sgemm"], kernel, precision)
    m, n, depth = sizes
    layout_a: _Layout = (1, m, True, 0) if trans_a else (depth, 1, True, 0)
    layout_b: _Layout = (1, depth, True, 0) if trans_b else (n, 1, True, 0)
    if torch.cuda.is_available():
        return _on_cuda(m, n, depth, 1, layout_a, layout_b, None, asked)
    return _on_cuda(m, n, depth, 1, layout_a, layout_b, _ASSUMED, asked)


def _counted(
    found: Explanation, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, asked: _Asked
) -> Explanation:
    """The same with the product run, where units of it may be made anew."""
    if found.units is None:
        return replace(found, counted=True)
    with count_recomputed(a.device) as count:
        sgemm(
            a.detach(), b.detach(), trans_a=trans_a, trans_b=trans_b, kernel=asked.kernel,
            precision=asked.precision,
        )  # fmt: skip
    return replace(found, counted=True, recomputed=count.units)


def _must_run(a: Tensor, b: Tensor) -> None:
    """Refuse operands whose product cannot be run, or not waited for."""
    for name, t in (("a", a), ("b", b)):
        if not _has_data(t):
            raise ValueError(
                "explain: count=True runs the product and needs two tensors with data, got for "
                f"{name} a {type(t).__name__} on {t.device} that has none"
            )
    if a.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError("explain: count=True waits for the device, and this stream is captured")


def _has_data(t: Tensor) -> bool:
    """Whether there is memory behind ``t``: behind meta tensors, fakes and wrappers is none."""
    if t.is_meta or isinstance(t, FakeTensor):
        return False
    try:
        t.data_ptr()
    except RuntimeError:
        return False
    return True


def _of_tensors(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, asked: _Asked) -> Explanation:
    kernel, precision = asked.kernel, asked.precision
    shape = _checks.check(
        _checks.own_words("explain"),
        KERNELS["sgemm"],
        a,
        b,
        trans_a=trans_a,
        trans_b=trans_b,
        precision=precision,
        kernel=kernel,
    )
    batch = shape[0] if len(shape) == 3 else 1
    left, right = a.mT if trans_a else a, b.mT if trans_b else b
    m, n, k = shape[-2], shape[-1], left.shape[-1]
    layout_a, layout_b = (
        (
            t.stride(-2),
            t.stride(-1),
            _aligned(t),
            t.stride(0) if t.dim() == 3 and t.shape[0] > 1 else 0,
        )
        for t in (left, right)
    )
    if a.device.type == "cuda":
        return _on_cuda(m, n, k, batch, layout_a, layout_b, a.device, asked)
    if kernel != "auto":
        name, why = kernel, "asked for; its CUDA source runs in the emulator, which is slow"
        found, candidates = _candidates(m, n, k, batch, layout_a, layout_b, 0, 0, asked)
        if not candidates:
            return _without_grid(m, n, k, batch, str(a.device), precision, "none", found["why"])
        runs = next(c for c in candidates if c.kernel == name and c.by_name)
        return _without_grid(
            m, n, k, batch, str(a.device), precision, name, why, runs.scheme, runs.workspace,
            units=runs.units,
        )  # fmt: skip
    if precision == "ieee":
        name, why = "fmaf chain", "a CPU tensor; the bits are those of every GPU"
        share = split_k_size(m, n, k, batch)
        if 0 < share < k:
            why += f"; {-(-k // share)} chains of {share} along k for each element"
    else:
        name, why = "aten", "a CPU tensor; ATen's BLAS is the fastest way there"
    return _without_grid(m, n, k, batch, str(a.device), precision, name, why)


def _aligned(t: Tensor) -> bool:
    """Whether every matrix of ``t`` begins at a multiple of 16 bytes."""
    start = 0 if t.is_meta else t.data_ptr()
    return start % 16 == 0 and (t.dim() == 2 or t.stride(0) % 4 == 0)


def _without_grid(
    m: int, n: int, k: int, batch: int, device: str, precision: Precision, kernel: str, why: str,
    scheme: str = "", workspace: int = 0, candidates: tuple[Candidate, ...] = (),
    units: int | None = None,
) -> Explanation:  # fmt: skip
    return Explanation(
        m, n, k, batch, device, precision, kernel, why, 0, None, 0, 0, 0.0, scheme, workspace,
        candidates, units,
    )  # fmt: skip


def _candidates(
    m: int,
    n: int,
    k: int,
    batch: int,
    layout_a: _Layout,
    layout_b: _Layout,
    sm: int,
    sm_count: int,
    asked: _Asked,
    gpu: str = "",
) -> tuple[dict[str, Any], tuple[Candidate, ...]]:
    """What the selector says: its choice, and the candidates."""
    _checks.product_sizes("explain", m, n, k, batch)
    found = read(
        _C.explain(
            m, n, k, batch, *layout_a[:3], *layout_b[:3], sm, sm_count, asked.precision == "ieee",
            -1 if asked.workspace is None else asked.workspace, layout_a[3], layout_b[3],
            gpu,
        )
    )  # fmt: skip
    return found, candidates_of(found)


def read(answer: str) -> dict[str, Any]:
    """Read the selector's answer: its choice, why, and the candidates.

    What came next is said so that it is told apart and has a time that is known.
    """
    found = json.loads(answer)
    candidates = candidates_of(found)
    at = (found["kernel"], found["row"])
    chosen = next((c for c in candidates if (c.kernel, c.row) == at), None)
    if chosen is not None:
        found["why"] = found["why"].partition("; next ")[0] + _next(chosen, candidates)
    return found


def candidates_of(found: dict[str, Any]) -> tuple[Candidate, ...]:
    """The candidates of an answer that `read` gives."""
    return tuple(
        Candidate(**{**row, "tile": Tile.from_row(row["tile"])}) for row in found["candidates"]
    )


def _next(chosen: Candidate, candidates: tuple[Candidate, ...]) -> str:
    """What came next after the chosen one, of those whose times stand beside its own."""
    others = [
        (c.known_us, c.name)
        for c in candidates
        if c is not chosen
        and c.known_us is not None
        and (chosen.basis != "tuned" or c.basis == "tuned")
    ]
    if not others or not chosen.known_us:
        return ""
    us, name = min(others)
    return f"; next {name}, {100 * (us / chosen.known_us - 1):.1f}% more"


def _on_cuda(
    m: int,
    n: int,
    k: int,
    batch: int,
    layout_a: _Layout,
    layout_b: _Layout,
    device: torch.device | tuple[int, int] | None,
    asked: _Asked,
) -> Explanation:
    kernel, precision = asked.kernel, asked.precision
    if isinstance(device, tuple):
        sm, sm_count, gpu = *device, ""
        words = f"an H200, assumed (sm_{sm}, {sm_count} multiprocessors; there is no CUDA device)"
    else:
        chip = torch.cuda.get_device_properties(device)
        sm, sm_count, gpu = chip.major * 10 + chip.minor, chip.multi_processor_count, chip.name
        words = f"{chip.name} (sm_{sm}, {sm_count} multiprocessors)"
    found, candidates = _candidates(m, n, k, batch, layout_a, layout_b, sm, sm_count, asked, gpu)
    runs, at = None, (found["kernel"], found["row"])
    named = next((c for c in candidates if c.kernel == kernel and c.by_name), None)
    if named is not None and (named.kernel, named.row) != at:
        runs = named
        auto = "another tile of it" if found["kernel"] == kernel else found["kernel"]
        why = f"asked for; auto would take {auto}"
        if not runs.able:
            why = f"asked for, but it cannot take this: {runs.why}"
    elif found["kernel"] is not None:
        runs = next(c for c in candidates if (c.kernel, c.row) == at)
        why = found["why"]
    else:
        why = found["why"] or "no stage of this build can take this"
    if runs is None:
        return _without_grid(m, n, k, batch, words, precision, "none", why, candidates=candidates)
    return Explanation(
        m, n, k, batch, words, precision, runs.kernel, why, runs.row, runs.tile, runs.blocks,
        runs.tile.min_blocks, runs.waves, runs.scheme, runs.workspace, candidates, runs.units,
    )  # fmt: skip
