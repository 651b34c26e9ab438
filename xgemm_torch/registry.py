"""The ladder's stages and attention's kernels as Python sees them: what the compiled module has."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, fields
from typing import Any

import torch

from . import _C

DECLARED: dict[str, Any] = json.loads(_C.operators())
"""The operators' schemas, whether the compiled module has defined them, and in which namespace."""
NAMESPACE: str = DECLARED["namespace"]
"""Of ``torch.ops``: "xgemm", but for a kernel of the Hugging Face Hub, which has its own."""
OPERATORS: Any = getattr(torch.ops, NAMESPACE)
"""``torch.ops.xgemm``, however that is called here."""


@dataclass(frozen=True)
class Tile:
    """One row of a stage's tile table.

    Attributes:
        BM, BN, BK: the block's tile, in elements of the result's rows and columns and of K.
        WM, WN: a warp's part of it, in elements; 0 where warps have none.
        TM, TN: a thread's part of it, in elements.
        threads: threads of a block that hold results.
        width: floats that one access to global memory moves.
        buffers: slices of the operands in shared memory at once; 0 where there are none.
        min_blocks: blocks that must fit on a multiprocessor (the kernel's launch bound).
        producers: threads of a block that hold none, and fetch; see also `by_tma`.
        cluster: blocks that share what they fetch of the second operand; 1 where each has its own.
        group: rows of tiles that are walked together, to stay in the L2 cache.
        element_bytes: of an operand's element as it is multiplied, all its limbs.
        smem: shared memory of a block, in bytes.
        rate: measured TFLOP/s on a large problem, which the choice rests on where a row is not in
            the table of measured problems; 0 for none.
    """

    BM: int
    BN: int
    BK: int
    WM: int
    WN: int
    TM: int
    TN: int
    threads: int
    width: int
    buffers: int
    min_blocks: int
    producers: int
    cluster: int
    group: int
    element_bytes: int
    smem: int
    rate: float

    @property
    def by_tma(self) -> bool:
        """Whether the producers do nothing but fetch, by TMA: of others some split."""
        return self.producers > 0 and self.width > 1

    @property
    def team(self) -> str:
        """A block's threads in words: those that hold results, then those that fetch, "256+128"."""
        return f"{self.threads}+{self.producers}" if self.producers else f"{self.threads}"

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Tile:
        """From a row of the compiled module, which may tell more than this class keeps."""
        return cls(**{f.name: row[f.name] for f in fields(cls)})


@dataclass(frozen=True)
class Stage:
    """One stage of the ladder, which is also the operator ``torch.ops.xgemm.<name>``.

    Attributes:
        name: the operator's name and the value for ``kernel=``.
        rung: its number on the ladder; 0 for one that is for problems of some shapes, and no rung.
        idea: what is new in it, in a few words.
        source: the published kernels that it comes from, as in "S v7, X 06": a letter is a key of
            `xgemm_torch.course.sources.SYSTEMS`, behind it stands the kernel's name there, and
            `xgemm_torch.course.sources.of_stage` tells more of each; "this project" for none.
        file: its source file under ``csrc/xgemm/stages``.
        min_sm: the least compute capability, as in 80 or 90; 0 for any.
        max_sm: the last compute capability; 0 for any.
        strict: whether its bits are those of the chain of fused multiply-adds in the order of k.
        split_k: whether it makes several such chains of an element where `split_k_size` says so.
        matches_single_chain_overflow: ... and, for ``precision="fp32"``, keeps them finite
            just where one chain is.
        teams: whether a team of threads shares an element's k, as many as the problem's sizes say.
        auto_choice: whether "auto" considers it; stages that others were faster than everywhere run
            when they are asked for by their name.
        cuda: whether this build has its CUDA flavour (the emulator is always there).
        tiles: its tile table.
        packs: whether ``xgemm_torch.prepack`` spares it work.
        takes_half_a: whether it reads an ``a`` of 16-bit floats as it is (`mixed_linear`).
        takes_groups: whether it multiplies groups whose ends the device knows (`grouped_mm`).
        batch_invariant: whether it can make a row of the result with bits that rest on no other row
            (``invariant="batch"`` with ``precision="fp32"``).
        unit_rows: rows of the units of its results, each as wide as its tile, that it certifies
            and, where one is uncertain, makes anew (`count_recomputed`); 0 where there are none.
    """

    name: str
    rung: int
    idea: str
    source: str
    file: str
    min_sm: int
    max_sm: int
    strict: bool
    cuda: bool
    tiles: tuple[Tile, ...]
    packs: bool = False
    takes_groups: bool = False
    takes_half_a: bool = False
    batch_invariant: bool = False
    split_k: bool = False
    matches_single_chain_overflow: bool = False
    teams: bool = False
    auto_choice: bool = True
    unit_rows: int = 0

    @property
    def numbered(self) -> str:
        """Its name, behind its rung where it has one: "5 smem_tiled", "gemv"."""
        return f"{self.rung} {self.name}" if self.rung else self.name


@dataclass(frozen=True)
class StageFault:
    """A stage that this build has not, for what is wrong with its file.

    Attributes:
        name: the operator's name that it would have.
        rung: its number on the ladder; 0 for none.
        flavour: "host" or "cuda", whichever of its two is left out.
        why: what is wrong.
    """

    name: str
    rung: int
    flavour: str
    why: str


@dataclass(frozen=True)
class AttentionKernels:
    """What attention's kernels take, and the GPUs that this build has them for.

    Attributes:
        largest_head: the columns of a head, at most.
        min_sm: the least compute capability, as in 90; 0 where the build has them for no GPU.
        max_sm: the last; 0 likewise.
    """

    largest_head: int
    min_sm: int
    max_sm: int


@functools.cache
def attention_kernels() -> AttentionKernels:
    """Those of this build; the emulator's take the same."""
    return AttentionKernels(**json.loads(_C.attention_kernels()))


def faults() -> list[StageFault]:
    """The stages that were left out when the module was loaded; none where all is well."""
    return [StageFault(**row) for row in json.loads(_C.stage_faults())]


def left_out() -> dict[str, str]:
    """Why there is no stage of a name, for the names that have only faulty ones."""
    names = {stage.name for stage in _stages()}
    return {fault.name: fault.why for fault in faults() if fault.name not in names}


@functools.cache
def _stages() -> tuple[Stage, ...]:
    rows = json.loads(_C.stages())
    return tuple(
        Stage(
            **{f.name: row[f.name] for f in fields(Stage) if f.name != "tiles"},
            tiles=tuple(Tile.from_row(tile) for tile in row["tiles"]),
        )
        for row in rows
    )


def tile_name(stage: str, row: int) -> str:
    """Name a row of a stage's tile table by its block tile, and by what else tells it apart."""
    tiles = next(each.tiles for each in _stages() if each.name == stage)
    plain = [f"{tile.BM}x{tile.BN}x{tile.BK}" for tile in tiles]
    if plain.count(plain[row]) == 1:
        return plain[row]
    cluster = tiles[row].cluster
    return plain[row] + (f" in clusters of {cluster}" if cluster > 1 else " without clusters")


def split_k_size(m: int, n: int, k: int, batch: int = 1) -> int:
    """Give the length of the chains of which ``precision="ieee"`` makes an element, along k.

    An element is the sum, in order, of chains of fused multiply-adds over so many k each. Problems
    with few results and a long k have several, since one would leave most of a GPU idle. How many
    depends on these sizes alone: the bits are the same on every machine.

    Args:
        m: rows of the result.
        n: its columns.
        k: products that an element adds up.
        batch: products in the call.

    Returns:
        The length; 0 where one chain goes over all of k.

    Raises:
        TypeError: a size that is no int.
        ValueError: a negative size.
        OverflowError: a size of 2^63 or more.
    """
    return _C.split_k_size(m, n, k, batch)


def stages() -> list[Stage]:
    """The stages of this build: the ladder, lowest rung first, then those for some shapes, by name.

    The list is the caller's own.

    One that could not be registered is left out: `faults` says why, as does
    ``python -m xgemm_torch info``.
    """
    return list(_stages())
