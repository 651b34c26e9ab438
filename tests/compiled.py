"""What the CUDA compiler left of this build, for the tests that read it: logs, objects, stages."""

import functools
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import xgemm_torch
from build_tools import cuda_toolkit, library, ptxas, sass
from build_tools.settings import ROOT

BUILD = ROOT / library.BUILD_DIR
STAGES = xgemm_torch.stages()
BUILT = [stage for stage in STAGES if stage.cuda]
TOOLKIT = cuda_toolkit.find().toolkit
CUOBJDUMP = cuda_toolkit.find_disassembler(TOOLKIT.root if TOOLKIT else None)
LOGS = ptxas.read(BUILD)

needs_kernels = pytest.mark.skipif(not BUILT, reason="this build has no CUDA kernels (no nvcc)")
needs_logs = pytest.mark.skipif(
    not BUILT or not LOGS, reason="the CUDA objects are not in this tree's build directory"
)
needs_disassembler = pytest.mark.skipif(
    CUOBJDUMP is None, reason="there is no cuobjdump with an nvdisasm"
)
each_stage = pytest.mark.parametrize("stage", BUILT or [None], ids=lambda s: s and s.name)


def on_machine_code_of(stages):
    """Runs a test once for each of these stages, where their machine code can be read."""

    def on_each(test):
        each = pytest.mark.parametrize("stage", stages, ids=lambda s: s and s.name)
        for mark in (needs_kernels, needs_logs, needs_disassembler, each):
            test = mark(test)
        return test

    return on_each


on_machine_code = on_machine_code_of(BUILT or [None])


def stem(stage):
    return Path(stage.file).stem


def kernels(stage):
    return [f for f in LOGS[stem(stage)] if f.entry]


def kernels_of_rows(stage):
    """A stage's kernels that are for a row of its tile table, with that row."""
    rows = ((f, ptxas.row_of(f, stage.tiles)) for f in kernels(stage))
    return [(f, stage.tiles[row]) for f, row in rows if row is not None]


class Code(NamedTuple):
    """What is kept of a kernel's machine code; all of it would be much to hold."""

    opcodes: list[str]
    loop: sass.Loop | None


@functools.cache
def code(name, arch):
    """The kernels of an object on an architecture: {function: Code}."""
    entries = {f.name for f in LOGS[name] if f.entry}
    path = BUILD / "obj" / "cuda" / f"{name}.o"
    return {
        f.name: Code([sys.intern(i.opcode) for i in f.instructions], sass.main_loop(f.instructions))
        for f in sass.disassemble(CUOBJDUMP, path, arch)
        if f.name in entries
    }


def machine_code(name):
    """Instructions of an object: {(arch, function): [opcode, ...]}."""
    archs = {f.arch: None for f in LOGS[name] if f.entry}
    return {(a, function): c.opcodes for a in archs for function, c in code(name, a).items()}
