"""What the CUDA compiler said of each kernel: registers, spills, shared memory, occupancy.

The build keeps ptxas's words beside each object (``NN_name.ptxas.txt``); here they become records
and a table. The occupancy is computed as CUDA's own cuda_occupancy.h does, so none of this needs a
GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

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
    def tile(self) -> int:
        """The row of the tile table that the kernel is for: its first integer template argument."""
        match = re.search(r"kernelILi(\d+)E", self.name)
        return int(match[1]) if match else 0

    @property
    def short_name(self) -> str:
        """``"kernel<0,true>"``: the template arguments, without namespaces and parameters."""
        match = re.search(r"\d+(kernel\w*?)I((?:L[ib]\d+E)+)E", self.name)
        if not match:
            return "kernel" if "6kernelE" in self.name else self.name
        arguments = re.findall(r"L([ib])(\d+)E", match[2])
        texts = [v if kind == "i" else ("false", "true")[int(v)] for kind, v in arguments]
        return f"{match[1]}<{','.join(texts)}>"


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
    """Reads all the stages' logs below a build directory, by file stem (``"05_smem_tiled"``)."""
    logs = sorted((build_dir / "obj" / "cuda").glob("[0-9][0-9]_*.ptxas.txt"))
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


def table(
    logs: Mapping[str, Iterable[Function]], tiles: Mapping[str, list[tuple[int, int]]]
) -> str:
    """The compile report.

    Args:
        logs: Functions by stage file, from `read`.
        tiles: For each stage file the tile table's rows, as (threads, min_blocks).
    """
    head = ("stage", "arch", "kernel", "regs", "smem", "local", "threads", "blocks/SM", "occupancy")
    rows = [head]
    for stem, functions in logs.items():
        for f in functions:
            if not f.entry or stem not in tiles:
                continue
            threads, _ = tiles[stem][f.tile]
            blocks = blocks_per_sm(f.sm, threads, f.registers, f.smem)
            limit = LIMITS[max(known for known in LIMITS if known <= f.sm)].threads
            row = (stem, f.arch, f.short_name, f.registers, f.smem, f.local_memory, threads, blocks)
            rows.append((*map(str, row), f"{100 * blocks * threads / limit:.0f} %"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{'<' if i < 3 else '>'}{width}}}" for i, width in enumerate(widths))
    lines = [form.format(*row) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
