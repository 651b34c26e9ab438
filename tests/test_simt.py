"""The host flavour finds what is wrong with a kernel, and says where."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import problems
import pytest
import torch

import xgemm_torch
from xgemm_torch import _C, simt

STAGE_FILES = Path(__file__).parent.parent / "csrc" / "xgemm" / "stages"
PLACE = r"[\w.]+\.(cu|h):\d+"

# What a planted fault's report must say. Every one names a file and a line.
FAULTS = {
    "race": "race on shared memory|uninitialised",  # by which thread comes first
    "race_of_writers": "race on shared memory: .* writes at .* wrote at ",
    "deadlock": "deadlock: .*33 of 64 threads wait at .*31 of 64 threads have exited",
    "divergent_barrier": f"divergent barrier: 32 of 64 .* {PLACE}, 32 of 64 .* {PLACE}",
    "uninitialised": "uninitialised: .* reads shared memory that no thread has written",
    "smem_out_of_bounds": "out of bounds: .* writes shared memory outside every array",
    "dynamic_smem_too_small": "out of bounds: .* uses 512 bytes .* the launch gave 256",
    "gmem_out_of_bounds": "out of bounds: .* reads global memory outside every operand",
    "gmem_between_rows": "out of bounds: .* reads global memory outside every operand",
    "store_to_an_input": "out of bounds: .* writes global memory outside every operand",
    "two_blocks_one_tile": "race on global memory: .* of block [01] .* of block [01]",
    "misaligned": "misaligned: .* moves 16 bytes",
    "missing_wait": "race on shared memory",
    "missing_barrier_after_wait": "race on shared memory|uninitialised",
}


def barriers_in_source() -> list[str]:
    """Every barrier that is written down in a stage, as "file.cu:LINE"."""
    return [
        f"{path.name}:{number}"
        for path in sorted(STAGE_FILES.glob("*.cu"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "__syncthreads()" in line.split("//")[0]
    ]


BARRIERS = barriers_in_source()


def test_the_probes_are_those_of_this_file():
    import json

    assert set(json.loads(_C.simt_probes())) == {"none", *FAULTS}
    with pytest.raises(ValueError, match="no probe named 'nope'"):
        _C.simt_probe("nope")


@pytest.mark.parametrize("order", simt.ORDERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault, order):
    with simt.configure(order=order), pytest.raises(RuntimeError, match="xgemm simt:") as error:
        _C.simt_probe(fault)
    assert re.search(FAULTS[fault], str(error.value)), str(error.value)
    assert re.search(PLACE, str(error.value)), str(error.value)


@pytest.mark.parametrize("order", simt.ORDERS)
def test_a_right_kernel_is_let_pass(order):
    with simt.configure(order=order):
        _C.simt_probe("none")


def test_all_barriers_of_all_stages_are_run():
    a, b, _ = problems.operands(70, 40, 45)
    for stage in problems.STAGES:
        xgemm_torch.sgemm(a, b, kernel=stage)
    assert BARRIERS and set(BARRIERS) <= set(simt.barriers())


@pytest.mark.parametrize("order", simt.ORDERS)
@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("site", BARRIERS)
def test_every_barrier_is_needed(site, layout, order):
    """The mutation test: a stage without one of its barriers is caught, and the place named."""
    stage = site.split(":")[0].removesuffix(".cu").split("_", 1)[1]
    a, b, flags = problems.operands(70, 40, 45, layout)
    with simt.configure(skip_barrier=site, order=order):
        with pytest.raises(RuntimeError, match=r"race on shared memory|uninitialised") as error:
            xgemm_torch.sgemm(a, b, kernel=stage, **flags)
    assert site.split(":")[0] in str(error.value)
    xgemm_torch.sgemm(a, b, kernel=stage, **flags)  # and is right again with it


@pytest.mark.parametrize("stage", problems.STAGES)
def test_results_do_not_depend_on_the_order(stage):
    a, b, _ = problems.operands(70, 66, 40)
    want = xgemm_torch.sgemm(a, b, precision="ieee")
    for order in simt.ORDERS:
        for seed in range(3):
            with simt.configure(order=order, seed=seed):
                assert torch.equal(xgemm_torch.sgemm(a, b, kernel=stage), want)


def test_a_failed_launch_leaves_the_next_one_right():
    a, b, _ = problems.operands(33, 33, 33)
    want = xgemm_torch.sgemm(a, b, precision="ieee")
    for fault in FAULTS:
        with pytest.raises(RuntimeError):
            _C.simt_probe(fault)
        assert torch.equal(xgemm_torch.sgemm(a, b, kernel="smem_tiled"), want)


def test_two_threads_at_once():
    a, b, _ = problems.operands(50, 60, 40)
    want = xgemm_torch.sgemm(a, b, precision="ieee")
    results: list[torch.Tensor] = []

    def work() -> None:
        for stage in problems.STAGES:
            results.append(xgemm_torch.sgemm(a, b, kernel=stage))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 * len(problems.STAGES)
    assert all(torch.equal(result, want) for result in results)


def test_stages_hold_no_launch_syntax_and_no_cuda_of_their_own():
    """What only one flavour has belongs to simt.h and ptx.h."""
    for path in STAGE_FILES.glob("*.cu"):
        text = path.read_text()
        for word in ("<<<", "asm", "__CUDA_ARCH__", "__CUDACC__", "__shared__", "cuda_runtime"):
            assert word not in text, f"{path.name}: {word}"
