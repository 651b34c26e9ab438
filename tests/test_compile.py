"""What the CUDA compiler made of each stage: no spills, the occupancy claimed, vector instructions.

Reads the words of ptxas that the build keeps, and the objects themselves; needs no GPU.
"""

import re
import subprocess
from types import SimpleNamespace

import pytest
from compiled import (
    BUILT,
    LOGS,
    TOOLKIT,
    each_stage,
    kernels,
    kernels_of_rows,
    machine_code,
    needs_kernels,
    needs_logs,
    on_machine_code,
    on_machine_code_of,
    stem,
)

from build_tools import library, ptxas
from build_tools.settings import ROOT

# --- the parser and the occupancy -----------------------------------------------------------------

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN5xgemm4cuda1x6kernelILi1ELb0EEEvNS_4GemmE' for 'sm_80'
ptxas info    : Function properties for _ZN5xgemm4cuda1x6kernelILi1ELb0EEEvNS_4GemmE
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 127 registers, used 1 barriers, 8448 bytes smem, 528 bytes cmem[0]
ptxas info    : Compile time = 39.702 ms
ptxas info    : Function properties for _ZN5xgemm8activateENS_3ActEf
    24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function '_ZN5xgemm4cuda1y6kernelENS_4GemmE' for 'sm_90a'
ptxas info    : Function properties for _ZN5xgemm4cuda1y6kernelENS_4GemmE
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
"""


def test_parser():
    first, callee, second = ptxas.parse(LOG)
    assert (first.arch, first.sm, first.entry, first.registers) == ("sm_80", 80, True, 127)
    assert (first.smem, first.stack, first.spill_stores, first.spill_loads) == (8448, 16, 8, 4)
    assert first.local_memory == 28
    assert (ptxas.row_of(first, TILES), first.short_name) == (1, "kernel<1,false>")
    assert (callee.entry, callee.stack, callee.arch) == (False, 24, "sm_80")
    assert (second.arch, second.sm, second.registers, second.smem) == ("sm_90a", 90, 32, 0)
    assert (ptxas.row_of(second, TILES), second.short_name) == (0, "kernel")


def tile(BM, buffers, cluster, limbs, threads):
    smem = buffers * (BM + 128) * 32 * 2 * limbs
    return SimpleNamespace(
        BM=BM, BN=128, BK=32, threads=threads, buffers=buffers, min_blocks=1, producers=128,
        cluster=cluster, smem=smem,
    )  # fmt: skip


TILES = [tile(128, 7, 2, 2, 256), tile(128, 7, 1, 2, 256), tile(64, 8, 1, 2, 128)]


@pytest.mark.parametrize(
    ("name", "short", "row"),
    [
        ("12wgmma_kernelILNS_4HalfE0ELi128ELi2ELi7ENS0_8WgmmaJobEEEvT3_",
         "wgmma_kernel<fp16,128,2,7,WgmmaJob>", 0),
        ("12wgmma_kernelILNS_4HalfE0ELi128ELi1ELi7ENS0_8WgmmaJobEEEvT3_",
         "wgmma_kernel<fp16,128,1,7,WgmmaJob>", 1),
        ("12wgmma_kernelILNS_4HalfE0ELi64ELi1ELi8ENS0_8WgmmaJobEEEvT3_",
         "wgmma_kernel<fp16,64,1,8,WgmmaJob>", 2),
        # The way out for operands of a wide range, groups, and helpers: none of a row.
        ("12wgmma_kernelILNS_4HalfE1ELi128ELi1ELi7ENS0_8WgmmaJobEEEvT3_",
         "wgmma_kernel<bf16,128,1,7,WgmmaJob>", None),
        ("12wgmma_kernelILNS_4HalfE0ELi128ELi1ELi7ENS0_10GroupedJobEEEvT3_",
         "wgmma_kernel<fp16,128,1,7,GroupedJob>", None),
        ("16decompose_kernelILNS_4HalfE0ELi256ELi4ELi32ELi8EEEvNS0_12DecomposeJobES3_NS0_5ClearE",
         "decompose_kernel<fp16,256,4,32,8>", None),
        ("12wgmma_fp16x35clearEPNS_7VerdictE", "clear", None),
        ("10mma_fp16x36kernelILi2EEEvNS1_3JobE", "kernel<2>", 2),
    ],
)  # fmt: skip
def test_kernels_of_stages_with_several(name, short, row):
    f = ptxas.Function(f"_ZN5xgemm4cuda{name}", "sm_90a", entry=True)
    assert f.short_name == short
    assert ptxas.row_of(f, TILES) == row
    if row is not None:
        assert ptxas.threads_of(TILES[row]) == TILES[row].threads + 128


# ptxas 13.0 on a loop that adds to wgmma's sums before their wait, on the same without a fence of
# its own, and on 64 values in 32 registers.
SERIALIZED = """\
ptxas info    : (C7519) warpgroup.arrive is injected in around line 53 by compiler to allow use of \
registers in GMMA in function '_Z12wgmma_kernelPfmmi'
ptxas info    : (C7517) warpgroup.wait is injected in around line 56 by compiler to allow use of \
registers defined by GMMA in function '_Z12wgmma_kernelPfmmi'
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to insufficient register resources for the wgmma \
pipeline in the function '_Z12wgmma_kernelPfmmi'
"""
SPILLED = """\
ptxas warning : Registers are spilled to local memory in function '{}', 428 bytes spill stores, \
428 bytes spill loads
"""


def test_serialized_wgmma_is_refused():
    arrive, wait, serialized = SERIALIZED.splitlines()
    assert ptxas.refused(SERIALIZED) == [wait, serialized]
    assert ptxas.refused(arrive) == ptxas.refused(LOG) == []
    # A spill is slow; of a sum that wgmma still adds to, it is wrong.
    assert ptxas.refused(SPILLED.format("_Z8spillingPKfPf")) == []
    assert ptxas.refused(SPILLED.format("_ZN5xgemm4cuda12wgmma_kernelILi1EEEvv"))


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        (SERIALIZED, False),
        (SERIALIZED.splitlines()[0], True),
        (SPILLED.format("_Z12wgmma_kernelPfmmi"), False),
        (SPILLED.format("_Z8spillingPKfPf"), True),
        (LOG, True),
    ],
)
def test_the_build_fails_on_what_is_refused(said, passes, tmp_path):
    # The build's own rule, with a compiler that says this and makes an object.
    (tmp_path / "said.txt").write_text(said)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\ncat {tmp_path / 'said.txt'}\ntouch x.o\necho x.o: x.cu > x.o.d\n")
    nvcc.chmod(0o755)
    command = library.nvcc_rule(str(nvcc))
    for name, value in {"flags": "", "out": "x.o", "in": "x.cu", "log": "x.txt"}.items():
        command = command.replace(f"${name}", value)
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) == passes == (tmp_path / "x.o").exists()
    for line in ptxas.refused(said):
        assert line in done.stdout
    if passes:  # and where the compiler leaves no list of headers
        nvcc.write_text("#!/bin/sh\ntouch x.o\n: > x.o.d\n")
        assert subprocess.run(["sh", "-c", command], cwd=tmp_path).returncode == 1


@pytest.mark.parametrize(
    ("sm", "threads", "registers", "smem", "blocks"),
    [
        (90, 256, 128, 8448, 2),  # 256 x 128 registers are half of the file
        (90, 256, 129, 8448, 1),
        (90, 256, 255, 0, 1),
        (90, 1024, 32, 9216, 2),  # 2048 threads
        (86, 1024, 32, 9216, 1),  # 1536 threads
        (90, 32, 16, 0, 32),  # 32 blocks
        (90, 128, 32, 227 * 1024, 1),
        (90, 128, 32, 227 * 1024 + 1, 0),
        (90, 128, 32, 113 * 1024, 2),  # with 1 KiB of each block reserved
        (90, 128, 32, 113 * 1024 + 1, 1),
        (80, 128, 32, 163 * 1024, 1),
        (90, 1024, 65, 0, 0),  # 1024 x 72 registers are more than there are
    ],
)
def test_occupancy(sm, threads, registers, smem, blocks):
    assert ptxas.blocks_per_sm(sm, threads, registers, smem) == blocks


PROGRAM = """
#include <cstddef>
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
  int major, minor, threads, registers, threads_sm, smem_sm, smem_block, reserved;
  while (scanf("%d %d %d %d %d %d %d %d", &major, &minor, &threads, &registers, &threads_sm,
               &smem_sm, &smem_block, &reserved) == 8) {
    int smem;
    if (scanf("%d", &smem) != 1) return 1;
    cudaOccDeviceProp device;
    device.computeMajor = major;
    device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = threads_sm;
    device.regsPerBlock = 65536;
    device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 * 1024;
    device.sharedMemPerMultiprocessor = smem_sm;
    device.numSms = 100;
    device.sharedMemPerBlockOptin = smem_block;
    device.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes function;
    function.maxThreadsPerBlock = 1024;
    function.numRegs = registers;
    function.sharedSizeBytes = 0;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = smem;
    cudaOccDeviceState state;
    cudaOccResult result;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads, smem))
      return 2;
    printf("%d\\n", result.activeBlocksPerMultiprocessor);
  }
}
"""


@pytest.mark.skipif(TOOLKIT is None, reason="there is no CUDA toolkit with cuda_occupancy.h")
def test_occupancy_agrees_with_cudas_own_header(tmp_path):
    (tmp_path / "main.cpp").write_text(PROGRAM)
    program = str(tmp_path / "occupancy")
    include = f"-I{TOOLKIT.root / 'include'}"
    compile_it = ["g++", "-w", include, str(tmp_path / "main.cpp"), "-o", program]
    subprocess.run(compile_it, check=True)
    cases = [
        (sm, threads, registers, smem)
        for sm in (75, 80, 86, 89, 90)
        for threads in (32, 64, 96, 128, 160, 256, 384, 512, 768, 1024)
        for registers in (1, 16, 24, 32, 33, 40, 64, 65, 80, 96, 127, 128, 168, 255)
        for smem in (0, 1, 1024, 8448, 16384, 33 * 1024, 48 * 1024, 64 * 1024)
    ]
    lines = []
    for sm, threads, registers, smem in cases:
        limits = ptxas.LIMITS[sm]
        machine = (limits.threads, limits.smem, limits.smem_of_block, 1024 if sm >= 80 else 0)
        lines.append(" ".join(map(str, (sm // 10, sm % 10, threads, registers, *machine, smem))))
    done = subprocess.run(
        [program], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    theirs = list(map(int, done.stdout.split()))
    ours = [ptxas.blocks_per_sm(*case) for case in cases]
    wrong = [(c, o, t) for c, o, t in zip(cases, ours, theirs, strict=True) if o != t]
    assert not wrong[:5]


# --- the stages -----------------------------------------------------------------------------------


@needs_kernels
@needs_logs
def test_every_stage_has_its_log_and_every_architecture():
    assert {stem(stage) for stage in BUILT} <= set(LOGS)
    for stage in BUILT:
        by_arch = {}
        for f in kernels(stage):
            by_arch.setdefault(f.arch, []).append(f.name)
        assert by_arch, stage.name
        # Every architecture has the same kernels.
        assert len({tuple(sorted(names)) for names in by_arch.values()}) == 1, stage.name


@needs_kernels
@needs_logs
@each_stage
def test_no_local_memory(stage):
    touched = [f for f in LOGS[stem(stage)] if f.local_memory]
    assert not touched, f"{stage.name}: stack or spills in {touched}"


@needs_kernels
@needs_logs
@each_stage
def test_registers_and_occupancy(stage):
    assert all(0 < f.registers <= 255 for f in kernels(stage))
    for f, tile in kernels_of_rows(stage):
        threads = ptxas.threads_of(tile)
        assert f.registers * threads * tile.min_blocks <= ptxas.REGISTER_FILE, f
        smem = max(f.smem, tile.smem)
        blocks = ptxas.blocks_per_sm(f.sm, threads, f.registers, smem)
        # The table's claim is of an H200. An SM with fewer threads or less shared memory holds what
        # these allow; registers take nothing away anywhere.
        room = ptxas.blocks_per_sm(f.sm, threads, 1, smem)
        claimed = tile.min_blocks if f.sm == 90 else min(tile.min_blocks, room)
        assert blocks >= claimed, f"{f}: {blocks} blocks an SM, {claimed} claimed"


@needs_kernels
@needs_logs
@each_stage
def test_every_row_has_its_kernel(stage):
    archs = {f.arch for f in kernels(stage)}
    found = {(f.arch, ptxas.row_of(f, stage.tiles)) for f in kernels(stage)}
    assert found >= {(arch, row) for arch in archs for row in range(len(stage.tiles))}


@needs_kernels
@needs_logs
@each_stage
def test_shared_memory_is_what_the_tile_says(stage):
    for f, tile in kernels_of_rows(stage):
        # A row too large for an architecture is not chosen there (test_stages.py); one that is
        # compiled for the H200 runs on it.
        assert tile.smem <= ptxas.LIMITS[90].smem_of_block, f
        # Static shared memory is the tile's and perhaps some barriers; a stage that asks for it at
        # the launch has none. Where no slices lie there, 4 sums of each thread may meet.
        more = 1024 if tile.buffers else 16 * tile.threads
        assert f.smem == 0 or tile.smem <= f.smem <= tile.smem + more, f


@needs_kernels
@needs_logs
def test_report():
    report = ptxas.table(LOGS, {stem(s): s.tiles for s in BUILT})
    (ROOT / "build" / "compile_report.txt").write_text(report + "\n")
    print(report)
    for stage in BUILT:
        named = [line for line in report.splitlines() if line.split()[:1] == [stem(stage)]]
        assert len(named) == len(kernels(stage))


# --- the machine code -----------------------------------------------------------------------------


@on_machine_code
def test_machine_code_is_there_for_every_kernel(stage):
    code = machine_code(stem(stage))
    assert {name for _, name in code} == {f.name for f in kernels(stage)}
    assert len(code) == len(kernels(stage))
    assert all(opcodes[-1] for opcodes in code.values())


@on_machine_code
def test_no_local_loads_or_stores(stage):
    for key, opcodes in machine_code(stem(stage)).items():
        assert not [op for op in opcodes if re.match(r"(LDL|STL)\b", op)], key


def count(opcodes, name):
    return sum(op == name or op.startswith(f"{name}.") for op in opcodes)


@on_machine_code
def test_the_product_is_fused_multiply_adds_and_unrolled(stage):
    tiles = {f.name: tile for f, tile in kernels_of_rows(stage)}
    assert tiles
    for (arch, name), opcodes in machine_code(stem(stage)).items():
        # A stage's other kernels add up chains, or clear flags.
        if stage.strict and name in tiles:
            assert count(opcodes, "FFMA") >= tiles[name].TM * tiles[name].TN, (arch, name)


def products(f):
    """Of a kernel with wgmma: products of limbs that are made."""
    if f.arguments[-1].endswith("MixedJob"):  # A has one limb
        return 2
    return {"fp16": 3, "bf16": 6}[f.arguments[0]]


@on_machine_code_of([stage for stage in BUILT if not stage.strict and stage.min_sm < 90])
def test_tensor_cores_make_the_products_of_limbs(stage):
    limbs = {f.name: (f, tile) for f, tile in kernels_of_rows(stage)}
    assert limbs
    for (arch, name), opcodes in machine_code(stem(stage)).items():
        if name not in limbs:
            continue
        if not limbs[name][1].buffers:
            # Numbers themselves, from registers: the rows of A by 4 columns, 4 of k.
            assert count(opcodes, "HMMA") == 0, (arch, name)
            assert count(opcodes, "FFMA") >= 16 * limbs[name][1].TM, (arch, name)
        elif limbs[name][0].kernel == "kernel":
            # A warp's fragments of 16 x 8, over the 32 of a slice, 16 at a time: each once.
            tile = limbs[name][1]
            fragments = tile.WM // 16 * (tile.WN // 8) * (tile.BK // 16)
            assert count(opcodes, "HMMA") == 3 * fragments, (arch, name)
            assert count(opcodes, "LDSM") > 0, (arch, name)


@on_machine_code
def test_wgmma_is_not_waited_for_but_where_the_source_says(stage):
    entries = {f.name: f for f in kernels(stage)}
    for (arch, name), opcodes in machine_code(stem(stage)).items():
        if stage.name == "wgmma_narrow" and entries[name].kernel == "kernel":
            # Two slices are in the loop, in registers of their own, and each may be the last. A
            # slice's products are asked for at once; it waits for those of the slice before, and
            # for its own, the largest first. No segment ends after an even one.
            assert count(opcodes, "HGMMA") == 4 * 2 * 6, (arch, name)
            assert count(opcodes, "WARPGROUP.ARRIVE") == 4, (arch, name)
            assert count(opcodes, "WARPGROUP.DEPBAR") == 4 * 3 - 1, (arch, name)
            continue
        if entries[name].kernel != "wgmma_kernel":
            assert count(opcodes, "HGMMA") == 0, (arch, name)
            continue
        # Both halves of a slice's 32, once; twelve waits for twelve products would be wgmma that
        # ptxas serialized. One wait is the loop's, one the end of a segment's.
        assert count(opcodes, "HGMMA") == 2 * products(entries[name]), (arch, name)
        assert count(opcodes, "WARPGROUP.ARRIVE") == 1, (arch, name)
        assert count(opcodes, "WARPGROUP.DEPBAR") == 2, (arch, name)
        # The sums of the loop and those of a segment's end, in 64 registers each.
        assert count(opcodes, "FADD") >= 64 and count(opcodes, "FFMA") >= 64, (arch, name)
        assert count(opcodes, "UTMALDG") > 0, (arch, name)


@on_machine_code_of([stage for stage in BUILT if stage.name.startswith("vec4_")])
def test_vector_stages_use_vector_instructions(stage):
    for arch in {arch for arch, _ in machine_code(stem(stage))}:
        opcodes = [
            op for (a, _), ops in machine_code(stem(stage)).items() if a == arch for op in ops
        ]
        assert any(re.match(r"LDG\.E\.128", op) for op in opcodes), arch
        assert any(re.match(r"STG\.E\.128", op) for op in opcodes), arch
    for key, opcodes in machine_code(stem(stage)).items():
        assert any(re.match(r"LDS(\.U)?\.128", op) for op in opcodes), key
