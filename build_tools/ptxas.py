"""What the CUDA compiler said of each kernel: registers, spills, shared memory, occupancy.

The build keeps ptxas's words beside each object (``NN_name.ptxas.txt``); here they become records
and a table. The occupancy is computed as CUDA's own cuda_occupancy.h does, so none of this needs a
GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

REGISTER_FILE = 65536  # registers of an SM, in every architecture from 7.0 on


@dataclass(frozen=True)
class Limits:
    """An SM's limits: resident threads and blocks, shared memory in bytes (all, and a block's)."""

    threads: int
    blocks: int
    smem: int
    smem_of_block: int


# CUDA C++ Programming Guide, "Technical specifications per compute capability".
LIMITS = {
    75: Limits(1024, 16, 64 * 1024, 64 * 1024),
    80: Limits(2048, 32, 164 * 1024, 163 * 1024),
    86: Limits(1536, 16, 100 * 1024, 99 * 1024),
    87: Limits(1536, 16, 164 * 1024, 163 * 1024),
    89: Limits(1536, 24, 100 * 1024, 99 * 1024),
    90: Limits(2048, 32, 228 * 1024, 227 * 1024),
    100: Limits(2048, 32, 228 * 1024, 227 * 1024),
    103: Limits(2048, 32, 228 * 1024, 227 * 1024),
    120: Limits(1536, 24, 100 * 1024, 99 * 1024),
    121: Limits(1536, 24, 100 * 1024, 99 * 1024),
}


@dataclass(frozen=True)
class Function:
    """One function on one architecture; sizes in bytes.

    Attributes:
        name: Mangled.
        arch: ``"sm_90a"``.
        entry: Whether it is a kernel; else one that a kernel calls, and registers and smem are 0.
        registers: Of each thread.
        smem: Static shared memory.
        stack: Stack frame, which lies in local memory.
        spill_stores: Written to local memory for want of registers.
        spill_loads: Read back.
    """

    name: str
    arch: str
    entry: bool
    registers: int = 0
    smem: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0

    @property
    def sm(self) -> int:
        """``90`` for ``sm_90a``."""
        return int(re.sub(r"\D", "", self.arch))

    @property
    def local_memory(self) -> int:
        """Stack and spills together; 0 is what a fast kernel has."""
        return self.stack + self.spill_stores + self.spill_loads

    @property
    def kernel(self) -> str:
        """``"decompose_kernel"``: no namespaces, template arguments and parameters."""
        return _demangled(self.name)[0]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The template arguments, as in ``("fp16", "128", "true")``."""
        return _demangled(self.name)[1]

    @property
    def short_name(self) -> str:
        """``"kernel<0,true>"``: the template arguments, without namespaces and parameters."""
        return f"{self.kernel}<{','.join(self.arguments)}>" if self.arguments else self.kernel


HALVES = ("fp16", "bf16")  # xgemm::Half


def _demangled(name: str) -> tuple[str, tuple[str, ...]]:
    """The last name in a mangled one, and its template arguments.

    Those are integers, booleans, halves, and classes of our namespaces.
    """
    rest, last = re.sub("^_ZN?", "", name), name
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match[0])
        last, rest = rest[match.end() : end], rest[end:]
    found, rest = [], rest[1:] if rest.startswith("I") else ""
    while match := re.match(r"L(?:([ib])|N\w*?Half)E?(\d+)E|NS\d*_(\d+)", rest):
        kind, value, length = match.groups()
        rest = rest[match.end() :]
        if length:
            found.append(rest[: int(length)])
            rest = rest[int(length) + 1 :]
        else:
            texts = ("false", "true") if kind == "b" else HALVES
            found.append(value if kind == "i" else texts[int(value)])
    return last, tuple(found) if rest.startswith("E") else ()


class Tile(Protocol):
    """What is asked of a row of a tile table (xgemm_torch.registry.Tile)."""

    BM: int
    BN: int
    BK: int
    threads: int
    buffers: int
    min_blocks: int
    producers: int
    cluster: int
    smem: int


def row_of(f: Function, tiles: Sequence[Tile]) -> int | None:
    """The row of a tile table that a kernel is for; None for one that is for none of them.

    ``kernel`` has its row as its first template argument, where that is an integer. Those of
    ``wgmma_kernel`` are its tile's: the type of the limbs, BM, the blocks of a cluster, the buffers
    (emulated_wgmma.h); where its job is one of groups it helps. ``in_turn`` is for the row that has
    no slices (26_split_k.cu). Others help: they decompose operands, add up sums, or take over what
    a stage's own scheme cannot hold.
    """
    if f.kernel == "kernel":
        return int(f.arguments[0]) if f.arguments and f.arguments[0].isdigit() else 0
    if f.kernel == "in_turn":
        return next(row for row, tile in enumerate(tiles) if not tile.buffers)
    if f.kernel == "wgmma_kernel" and f.arguments[-1] == "WgmmaJob":
        half, rows, cluster, buffers = f.arguments[:-1]
        limbs = 2 + HALVES.index(half)
        for row, tile in enumerate(tiles):
            smem = tile.buffers * (tile.BM + tile.BN) * tile.BK * 2 * limbs
            same = (tile.BM, tile.cluster, tile.buffers) == (
                int(rows), int(cluster), int(buffers)
            )  # fmt: skip
            if same and tile.smem == smem:
                return row
    return None


def threads_of(tile: Tile) -> int:
    """Threads of a kernel's block: those with results, and those that fetch."""
    return tile.threads + tile.producers


# What ptxas must not say, for grep -E as well: that it made wgmma wait for each other or changed
# their order (C75xx; C7519 is harmless, it adds a fence), or that a kernel with wgmma spills, since
# what is still being added to would be stored and read back.
REFUSED = r"[(]C75(0[0-9]|1[0-8]|[2-9][0-9])[)]|spilled to local memory in function [^ ]*wgmma"


def refused(log: str) -> list[str]:
    """Lines of ptxas's that the build does not accept."""
    return [line for line in log.splitlines() if re.search(REFUSED, line)]


def parse(log: str) -> list[Function]:
    """Reads the output of ``nvcc -Xptxas=-v``: every function of every architecture in it."""
    found: list[Function] = []
    arch, kernel = "", ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            kernel, arch = match.groups()
        elif match := re.search(r"Function properties for (\S+)", line):
            found.append(Function(match[1], arch, entry=match[1] == kernel))
        elif match := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        ):
            stack, stores, loads = map(int, match.groups())
            found[-1] = replace(found[-1], stack=stack, spill_stores=stores, spill_loads=loads)
        elif match := re.search(r"Used (\d+) registers", line):
            smem = re.search(r"(\d+) bytes smem", line)
            index = next(i for i in reversed(range(len(found))) if found[i].entry)
            found[index] = replace(
                found[index], registers=int(match[1]), smem=int(smem[1]) if smem else 0
            )
    return found


def read(build_dir: Path) -> dict[str, list[Function]]:
    """Reads all the stages' logs below a build directory, by file stem: "05_smem_tiled", "gemv"."""
    logs = sorted((build_dir / "obj" / "cuda").glob("*.ptxas.txt"))
    return {
        log.name.removesuffix(".ptxas.txt"): parse(log.read_text(encoding="utf-8")) for log in logs
    }


def blocks_per_sm(sm: int, threads: int, registers: int, smem: int) -> int:
    """Blocks of a kernel that fit on one SM at once; 0 when not even one does.

    Args:
        sm: Compute capability times ten; an unknown one is taken for the next lower known.
        threads: Of a block.
        registers: Of a thread.
        smem: Static and dynamic shared memory of a block, in bytes.
    """
    limits = LIMITS[max(known for known in LIMITS if known <= sm)]
    if smem > limits.smem_of_block or registers > 255 or threads > 1024:
        return 0
    warps = -(-threads // 32)
    # A warp gets its registers by 256; each of the SM's four quarters has a file of its own, and a
    # block's warps are dealt out to them.
    registers_of_warp = -(-max(registers, 1) * 32 // 256) * 256
    warps_by_registers = REGISTER_FILE // 4 // registers_of_warp * 4
    reserved = 1024 if sm >= 80 else 0
    granule = 128 if sm >= 80 else 256
    smem_of_block = -(-(smem + reserved) // granule) * granule
    by_smem = limits.smem // smem_of_block if smem_of_block else limits.blocks
    return min(limits.blocks, limits.threads // (32 * warps), warps_by_registers // warps, by_smem)


def table(logs: Mapping[str, Iterable[Function]], tiles: Mapping[str, Sequence[Tile]]) -> str:
    """The compile report.

    Args:
        logs: Functions by stage file, from `read`.
        tiles: For each stage file its tile table. A kernel that is for no row has no occupancy.
    """
    head = ("stage", "arch", "kernel", "regs", "smem", "local", "threads", "blocks/SM", "occupancy")
    rows = [head]
    for stem, functions in logs.items():
        for f in functions:
            if not f.entry or stem not in tiles:
                continue
            row = (stem, f.arch, f.short_name, *map(str, (f.registers, f.smem, f.local_memory)))
            number, last = row_of(f, tiles[stem]), ("", "", "")
            if number is not None:
                tile = tiles[stem][number]
                threads = threads_of(tile)
                blocks = blocks_per_sm(f.sm, threads, f.registers, max(f.smem, tile.smem))
                limit = LIMITS[max(known for known in LIMITS if known <= f.sm)].threads
                last = (str(threads), str(blocks), f"{100 * blocks * threads / limit:.0f} %")
            rows.append((*row, *last))
    return aligned(rows, left=3)


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Rows of text in columns, the first row as their heads; `left` columns begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{'<' if i < left else '>'}{width}}}" for i, width in enumerate(widths))
    lines = [form.format(*row) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
