"""The emulator finds what is wrong with a kernel, and says where."""

from __future__ import annotations

import functools
import itertools
import re
import threading
from pathlib import Path
from typing import NamedTuple

import problems
import pytest
import torch

import xgemm_torch
from xgemm_torch import _C, simt

STAGE_FILES = Path(__file__).parent.parent / "csrc" / "xgemm" / "stages"
PROBES = sorted((STAGE_FILES.parents[1] / "emulator").glob("probes*.cu"))
PLACE = r"[\w.]+\.(cu|h):\d+"
CAUGHT = (
    "race on (shared|global) memory|uninitialised|unfinished (copy|wgmma)|overwritten|deadlock"
    "|mbarrier|divergent wgmma|unfenced|signals|too early"
    "|out of bounds: .* (another block|a block of the cluster)"
)

# What a planted fault's report must say. Every one names a file and a line.
FAULTS = {
    "race": "race on shared memory|uninitialised",  # by which thread comes first
    "race_of_writers": r"race on shared memory: .* writes at .* wrote at .* \(byte \d+ of S\)",
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
    "misaligned_vector": "misaligned: .* moves 16 bytes",
    "missing_wait": "unfinished copy: .* reads at .* has not waited for",
    "missing_commit": "unfinished copy: .* reads at .* has not waited for",
    "wait_one_short": "unfinished copy: .* reads at .* has not waited for",
    "overtaken_copy": "unfinished copy: .* writes at .* has not waited for",
    "copy_left_behind": "unfinished copy: .* ends without a wait for its cp.async at",
    "copy_out_of_bounds": "out of bounds: .* reads global memory outside every operand",
    "missing_barrier_after_wait": "race on shared memory|uninitialised",
    "arrival_before_the_copy": "unfinished copy: .* reads at .* has not waited for|race on shared",
    "arrival_without_wait": "unfinished copy: .* reads at .* has not waited for|uninitialised|race",
    "arrival_left_behind": "unfinished copy: the block ends without a wait for its cp.async at",
    "lane_outside_its_mask": "mask: .* __shfl_sync at .* with mask 0x0000ffff, which leaves out",
    "lane_never_comes": "deadlock: .* wait in __shfl_sync at .*; in warp 1 lane 5 waits at ",
    "lane_has_exited": "deadlock: .* wait in __shfl_down_sync at .*; in warp 0 lane 5 has exited",
    "different_masks": "different masks: .* 0xfffffff[df].* 0xfffffff[df]",
    "one_sided_mask": "deadlock: .*; in warp 0 lane 16 has exited, lane 17 .* and 12 more",
    "divergent_vote": f"divergent warp function: .* __any_sync at {PLACE} .* at {PLACE}",
    "divergent_syncwarp": f"divergent warp function: .* __syncwarp at {PLACE} .* at {PLACE}",
    "shuffle_from_outside_the_mask": "shuffle: .* __shfl_xor_sync at .* reads lane 16, which is",
    "shuffle_from_no_lane": "shuffle: thread \\(32, .* reads lane 8, which is not",
    "shuffle_of_odd_width": "shuffle: .* __shfl_up_sync at .* with width 24",
    "missing_syncwarp": "race on shared memory|uninitialised",
    "shuffle_orders_nothing": "race on shared memory",
    "vote_orders_nothing": "race on shared memory",
    "syncwarp_between_warps": "race on shared memory|uninitialised",
    "syncwarp_of_halves": "race on shared memory|uninitialised",
    "store_before_the_warp_has_read": "race on shared memory",
    "mbarrier_without_init": "mbarrier: a wait of .* where no mbarrier has been initialised",
    "mbarrier_init_unseen": "mbarrier: a wait .*(with no barrier after|no mbarrier has been init)",
    "missing_full_wait": "race on .* what TMA wrote|uninitialised|unfinished copy: .* TMA copies",
    "missing_empty_wait": "mbarrier: .* arrives at .* has had all its 1 arrivals|overwritten|race",
    "missing_expect": r"deadlock: .* parity 0 of an mbarrier \(phase 0 misses 1 of 1 arrivals",
    "too_few_bytes": "unfinished copy: .* what TMA copies by the call|race on .* TMA wrote",
    "too_many_bytes": "deadlock: .* misses 0 of 1 arrivals and 16 bytes",
    "wrong_parity": "deadlock: 128 of 160 threads wait for parity 0 of an mbarrier",
    "too_many_arrivals": "mbarrier|overwritten|deadlock: .* of an mbarrier",
    "too_few_arrivals": r"deadlock: .* \(phase 0 misses 1 of 2 arrivals and 0 bytes\)",
    "missing_wgmma_wait": f"unfinished wgmma: .* reads at .* an accumulator of its .* at {PLACE}",
    "missing_wgmma_commit": "unfinished wgmma: .* reads at .* an accumulator",
    "missing_wgmma_register_fence": "unfenced: .* has not called wgmma_fence before",
    "accumulators_read_after_their_fence": "unfenced: .* has used at .* not called wgmma_fence",
    "accumulators_written_after_their_fence": "unfenced: .* has used at .* not called wgmma_fence",
    "operand_written_after_its_fence": "unfenced: .* has used at .* not called wgmma_fence",
    "early_release": "overwritten: TMA at .* the wgmma at .*reads|race on .* several threads read",
    "wgmma_left_behind": "overwritten: TMA at .* writes what the wgmma at .* reads",
    "misaligned_box": "misaligned: the TMA .* is 128 past a multiple of 1024",
    "box_out_of_bounds": "out of bounds: the TMA of .* outside every array",
    "wrong_stride": r"wrong numbers: D\(0, 8\) is ",
    "wrong_step": r"wrong numbers: D\(0, 0\) is ",
    "divergent_wgmma_wait": "divergent wgmma: .* which waits at .* have given different",
    "missing_first_cluster_sync": "mbarrier: .* with no barrier after|no mbarrier initialised",
    "missing_last_cluster_sync": "mbarrier: .*(the block ends with no|a block .* has exited)",
    "cluster_missing_empty_wait": "mbarrier: .* arrives|overwritten|race on",
    "cluster_early_release": "overwritten|race on shared memory: .* several threads read",
    "short_mask": "deadlock: .* and 8192 bytes.*of block . of the cluster",
    "block_not_there": "out of bounds: the TMA of .* more blocks than the cluster's 2",
    "missing_named_barrier": "race on shared memory",
    "missing_cluster_sync": "race on global memory: .* (stored|read), with no barrier between",
    "peer_read_too_early": "race on .* of another block wrote|uninitialised: .* another's",
    "peer_gone": "out of bounds: .*(the block ends with no barrier|a block .* has exited)",
    "peer_uninitialised": "uninitialised: .* of the cluster reads another's shared memory",
    "peer_not_there": "a load: .* means block 2 at .*, the cluster has 2",
    "peer_out_of_bounds": "out of bounds: .* reads another's shared memory outside every array",
    "misaligned_ldmatrix": "misaligned: .* moves 16 bytes at an address that is 4 past",
    "mma_of_31_lanes": "deadlock: .* wait in ldmatrix at .* lane 3 has exited",
    "missing_signal": "deadlock: no block that must have begun .* wait for 5 signals of which 0 ",
    "missing_launch_wait": "too early: .* reads .* a launch before this one stores, and has not",
    "launch_wait_unseen": "too early: .* reads .* a launch before this one stores, and has not",
    "first_launch_without_wait": "too early: .* has not waited for the launch before, whatever",
    "early_signal": "too early: .* stores .* a launch before this one reads, and has not waited",
    "missing_signal_wait": "race on global memory: .* (stored|read), with no barrier between",
    "missing_barrier_before_signal": "race on global memory: .* (stored|read), with no barrier",
    "missing_barrier_after_signal_wait": "race on global memory: .* (stored|read), with no barrier",
    "wait_for_too_many_signals": "deadlock: no block .* wait for 6 signals of which 5 have come ",
    "wait_for_later_blocks": "deadlock: no block that must .*|signals: .* for what comes after it",
    "flag_not_cleared": "race on global memory: .* with no barrier between|deadlock: .* signals",
    "signals_in_any_order": "signals: a (signal|wait) .* in a launch whose blocks begin in any",
}


# Kernels without a fault.
RIGHT = [
    "none",
    "zero_fill",
    "copies_that_arrive",
    "pipeline",
    "warp_exchange",
    "warp_copy",
    "warp_functions",
    "tma_product",
    "tma_product_narrow",
    "tma_product_cluster",
    "tma_dot_product",
    "warp_product",
    "register_product",
    "split_product",
    "peer_product",
    "signals",
    "dependent_launch",
    "launch_between",
]

# What makes a line a site, and of which kind.
CALLS = {
    "__syncthreads(": "barrier",
    "__syncwarp(": "warp barrier",
    "cp_async_commit(": "commit",
    "cp_async_wait<": "wait",
    "named_barrier(": "named barrier",
    "cluster_sync(": "cluster barrier",
    "mbarrier_expect(": "mbarrier expect",
    "mbarrier_arrive": "mbarrier arrival",
    "mbarrier_wait(": "mbarrier wait",
    "fence_for_wgmma(": "wgmma fence",
    "wgmma_fence(": "wgmma register fence",
    "wgmma_commit(": "wgmma commit",
    "wgmma_wait<": "wgmma wait",
    "signal(": "signal",
    "wait_for_signals(": "signal wait",
    "wait_for_launch_before(": "launch wait",
    "take_turn(": "launch wait",
}


def sites_in(path: Path, first: int = 1, last: int | None = None) -> dict[str, str]:
    """Every site that is written down in a file, "file.cu:LINE", and its kind."""
    lines = path.read_text().splitlines()[:last]
    return {
        f"{path.name}:{number}": kind
        for number, line in enumerate(lines, 1)
        if number >= first
        for call, kind in CALLS.items()
        if re.search(rf"(?<!\w){re.escape(call)}", line.split("//")[0])
    }


IN_STAGES = {
    site: kind
    for path in sorted(STAGE_FILES.glob("*/*.cu"))
    for site, kind in sites_in(path).items()
}
# Few problems take several launches.
SITES = {site: kind for site, kind in IN_STAGES.items() if kind != "launch wait"}

# Kernels that several stages share are in headers. An instruction's own header is none of those,
# nor is the one that declares what the emulator does; attention's have tests of their own.
HEADER_SITES = {
    site: kind
    for path in sorted(STAGE_FILES.parent.rglob("*.h"))
    if path.parent.name not in ("ptx", "attention") and path.name != "platform_host.h"
    for site, kind in sites_in(path).items()
} | {site: kind for site, kind in IN_STAGES.items() if kind == "launch wait"}


def sites_of_probe(function: str) -> dict[str, str]:
    """The sites of one function of the probes."""
    for path in PROBES:
        lines = path.read_text().splitlines()
        for first, line in enumerate(lines, 1):
            if re.match(rf"__.* void {function}\(", line):
                return sites_in(path, first, lines.index("}", first))
    raise ValueError(f"no probe has a function {function}")


FUNCTIONS = {
    "pipeline": "run_pipeline",
    "tma_product": "product",
    "tma_product_narrow": "product",
    "tma_product_cluster": "product",
    "tma_dot_product": "dot_product",
    "signals": "add_up",
    "dependent_launch": "add_cleared",
}


def comes_to(probe: str, site: str) -> bool:
    """Whether a right probe comes to a site: not to those that only a fault or a cluster has."""
    if not probe.startswith("tma_product"):
        return True
    file, number = site.split(":")
    line = (PROBES[0].parent / file).read_text().splitlines()[int(number) - 1]
    if re.search(r"if \([^!]*\bis\(Fault", line):
        return False
    cluster = probe.endswith("cluster")
    return cluster if "cluster_sync(" in line else not cluster or "__syncthreads(" not in line


RIGHT_SITES = [
    (probe, site)
    for probe in RIGHT
    if probe != "launch_between"  # it shows what needs no wait
    for site in sites_of_probe(FUNCTIONS.get(probe, probe))
    if comes_to(probe, site)
]


SHORT = 45  # of k: several slices of a stage without a ring, and a part of one


def size_of(stage: xgemm_torch.Stage) -> tuple[int, int]:
    """Results enough for several tiles; one, where a team of a cluster's threads is for few."""
    return (1, 1) if stage.name == "dot" else (70, 40)


def depth(stage: xgemm_torch.Stage) -> int:
    """A K of several slices more than the stage has in flight, and a part of one."""
    return max(SHORT, *(tile.BK * (tile.buffers + 4) + 5 for tile in stage.tiles))


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"order": "bogus"}, ValueError, "no order named 'bogus'; there are: forward, reverse"),
        ({"order": 3}, TypeError, "order must be of type str, got int"),
        ({"skip": "here"}, ValueError, "skip is a place as in 'file.cu:42', or empty, got 'here'"),
        ({"skip": 7}, TypeError, "skip must be of type str, got int"),
        ({"seed": -1}, ValueError, "seed must be 0 or more, got -1"),
        ({"seed": 2**64}, ValueError, "seed must be 18446744073709551615 or less"),
        ({"seed": 1.5}, TypeError, "seed must be of type int, got float"),
        ({"row": -2}, ValueError, "row must be -1 or more, got -2"),
        ({"row": True}, TypeError, "row must be of type int, got bool"),
        ({"sm_count": 0}, ValueError, "sm_count must be 1 or more, got 0"),
        ({"split_k_size": -2}, ValueError, "split_k_size must be -1 or more, got -2"),
        ({"slab_bytes": 0}, ValueError, "slab_bytes must be -1 or positive, got 0"),
    ],
    ids=str,
)
def test_configure_refuses_at_the_call(wrong, kind, text):
    """Not only at the ``with`` that is missing from a bare call."""
    with pytest.raises(kind, match=text):
        simt.configure(**wrong)


def a_site() -> str:
    """A place where a kernel has waited."""
    _C.simt_probe("tma_product")
    sites = [site for site in simt.sites() if site.startswith("probes_hopper.cu:")]
    return min(sites, key=lambda site: int(site.split(":")[1]))


def test_configure_refuses_a_place_that_is_no_site():
    site = a_site()
    file, line = site.split(":")
    with simt.configure(skip=site):
        pass
    with pytest.raises(ValueError, match=f"no site at '{file}:1'; near it are {site}, {file}:"):
        simt.configure(skip=f"{file}:1")
    with pytest.raises(ValueError, match="no site at 'nope.cu:3'; nope.cu has not run .* " + file):
        simt.configure(skip="nope.cu:3")
    _C.simt_forget_sites()
    with simt.configure(skip=site):  # forgotten by sites() alone
        assert simt.sites() == []


def test_configure_lasts_as_long_as_its_block():
    def settings():
        with simt.configure() as now:
            return now

    before = settings()
    site = a_site()
    changed = simt.configure(order="reverse", seed=2**64 - 1, skip=site, row=2, split_k_size=0)
    assert settings() == before, "the call alone changes nothing"
    with changed as now:
        assert settings() == now
        assert (now["order"], now["seed"], now["skip"]) == ("reverse", 2**64 - 1, site)
        assert (now["row"], now["split_k_size"], now["sm_count"]) == (2, 0, before["sm_count"])
    assert settings() == before


def test_the_probes_are_those_of_this_file():
    import json

    told = dict(json.loads(_C.simt_probes()))
    assert told == dict.fromkeys(FAULTS, True) | dict.fromkeys(RIGHT, False)
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
@pytest.mark.parametrize("probe", RIGHT)
def test_a_right_kernel_is_let_pass(probe, order):
    for seed in range(3):
        with simt.configure(order=order, seed=seed):
            _C.simt_probe(probe)


@pytest.mark.parametrize("order", simt.ORDERS)
@pytest.mark.parametrize("probe, site", RIGHT_SITES)
def test_a_right_kernel_needs_all_its_sites(probe, site, order):
    _C.simt_probe(probe)
    with simt.configure(skip=site, order=order), pytest.raises(RuntimeError, match=CAUGHT):
        _C.simt_probe(probe)
    _C.simt_probe(probe)


# Of k, in a chain of the stages that make several.
SPLIT_K_SIZE = 32
# Of multiprocessors: few enough that a deep product is cut among clusters of two, too.
FEW = 4
# What operands hold.
WAYS_DATA = ("normal", "graded", "given")


class Way(NamedTuple):
    """A problem, the length of its chains, and on how many multiprocessors it runs."""

    k: int
    layout: str = "NN"
    batch: int | None = None
    split_k_size: int = SPLIT_K_SIZE
    size: tuple[int, int] = (70, 40)
    sm_count: int = FEW
    groups: str = ""  # "rows" or "k", where the product is of groups
    half_a: bool = False  # of bf16
    invariant: bool = False  # batch_invariant

    def run(self, stage: str, row: int, data: str = "normal", **settings: str) -> None:
        """The stage's product, on few multiprocessors."""
        if self.groups:
            return self.run_groups(stage, **settings)
        if self.half_a:
            return self.run_half_a(stage, data, **settings)
        a, b, flags = problems.operands(
            *self.size, self.k, self.layout, batch=(self.batch, None),
            data="normal" if data in ("graded", "given") else data,
        )  # fmt: skip
        if data == "given":  # every other row of A has one element
            a = a.clone()
            (a.mT if flags["trans_a"] else a)[..., ::2, 1:] = 0
        if data == "graded":  # A's k over 2^-60 to 2^60, B's the other way: parts lose all of it
            reach = 120 if stage == "wgmma_narrow" else 60
            size = torch.exp2(torch.linspace(-reach, reach, self.k))
            a = a * (size[:, None] if flags["trans_a"] else size)
            b = b / (size if flags["trans_b"] else size[:, None])
        if self.invariant and data == "given":  # and one result is lost
            a[..., 1, : self.k // 2] *= 2.0**-40
            (b.mT if flags["trans_b"] else b)[self.k // 2 :, 3] = 0
        with simt.configure(
            row=row, sm_count=self.sm_count, split_k_size=self.split_k_size, **settings
        ):
            if self.invariant:
                torch.ops.xgemm.sgemm(a, b, kernel=stage, batch_invariant=True, **flags)
            else:
                xgemm_torch.sgemm(a, b, kernel=stage, **flags)
        return None

    def run_groups(self, stage: str, **settings: str) -> None:
        """Its product of three groups, of which one is empty."""
        m, n = self.size
        offs = torch.tensor([20, 20, self.k], dtype=torch.int32)
        if self.groups == "k":
            a, b = problems.normal(m, self.k), problems.normal(self.k, n)
        else:
            a, b = problems.normal(self.k, m), problems.normal(len(offs), m, n)
        with simt.configure(sm_count=self.sm_count, **settings):
            torch.ops.xgemm.grouped_mm(a, b, offs, kernel=stage)

    def run_half_a(self, stage: str, data: str, **settings: str) -> None:
        """Its product of a bf16 A; what is recomputed reads a copy."""
        a, b = problems.normal(self.size[0], self.k), problems.normal(self.k, self.size[1])
        if data == "given":
            a[::2, 1:] = 0
        if data == "graded":
            size = torch.exp2(torch.linspace(-60, 60, self.k))
            a, b = a * size, b / size[:, None]
        with simt.configure(sm_count=self.sm_count, **settings):
            torch.ops.xgemm.mixed_mm(a.bfloat16(), b, kernel=stage)

    def fault(self, stage: str, row: int, data: str = "normal", **settings: str) -> str:
        """What is found wrong with it, or nothing."""
        try:
            self.run(stage, row, data, **settings)
        except RuntimeError as error:
            return str(error)
        return ""


# It is asked for where sites are looked for and after each mutation, and is the same for all.
fault_with_all_sites = functools.cache(Way.fault)


def ways(stage: xgemm_torch.Stage) -> list[Way]:
    """Those in which a stage comes to all its sites.

    K says in which way operands are split; with a batch, persistent blocks have more than a tile
    each, and share out the last or take two whole.
    """
    if stage.strict and any(t.producers for t in stage.tiles):
        return [Way(depth(stage)), Way(500, batch=FEW + 1)]
    if stage.name == "outer":
        return [Way(depth(stage)), Way(8)]  # slices of A; a strip of rows
    if stage.name == "dot":  # a cluster's threads for a result, and a warp's
        return [Way(9000, size=size_of(stage)), Way(300)]
    if stage.name in ("gemv", "tma_gemv"):
        # Several chains; one that is longer than the ring; more than meet in a cluster. With no
        # more blocks than multiprocessors they take turns with the launch before.
        return [Way(200), Way(300, split_k_size=256), Way(2240), Way(200, sm_count=132)]
    shallow = Way(depth(stage))
    if stage.name == "split_k":  # chains that meet in a cluster, and more than that
        return [shallow, Way(300)]
    if stage.name == "cp_async_pipelined":  # operands that are copied to aligned rows
        return [shallow, Way(69, size=(301, 307), sm_count=1)]
    if stage.strict:
        return [shallow]
    if stage.name == "wgmma_narrow":  # K cut, in slices longer than the ring, and in one
        return [shallow, Way(6000), Way(20, batch=2)]
    # More units than blocks that make them anew.
    many = (FEW + 1, 2 * FEW) if any(t.producers for t in stage.tiles) else (2 * FEW,)
    # So many slices, and a tile behind another, that tiles of D are staged.
    staged = [Way(544, batch=2 * FEW + 1)] if any(t.producers for t in stage.tiles) else []
    return [shallow, *(Way(shallow.k, "TN", batch) for batch in many), Way(1100), *staged]


@pytest.fixture(scope="session")
def came_to():
    """For each site the stages, rows of their tile tables, and ways that come to it."""
    found: dict[str, list[tuple[str, int, Way]]] = {}
    for stage in xgemm_torch.stages():
        of_groups = [Way(150, groups=kind) for kind in ("rows", "k") if stage.takes_groups]
        of_half_a = [Way(k, half_a=True) for k in (150, 1100) if stage.takes_half_a]
        alone = [
            Way(k, batch=batch, invariant=True)
            for k, batch in ((150, None), (1100, None), (150, 2 * FEW + 1))
            if stage.batch_invariant
        ]
        # By strips: of one block, and of a cluster.
        few_rows = [
            Way(k, "NT", size=(9, 40), invariant=True) for k in (300, 1100) if stage.batch_invariant
        ]
        for way in [*ways(stage), *of_groups, *of_half_a, *alone, *few_rows]:
            # With operands that parts cannot hold what makes units anew has work, too: more units
            # than blocks, and fewer. A strict stage does the same with all.
            odd = way.batch or way.k > 1000 or way.half_a or way.invariant
            kinds = WAYS_DATA if odd and not stage.strict else ("normal",)
            # Groups have a tile of their own, whatever the row: one without a cluster. Strips
            # have none.
            single = [row for row, tile in enumerate(stage.tiles) if tile.cluster == 1][:1]
            of_one = way.groups or way.half_a or way in few_rows
            rows = single if of_one else range(len(stage.tiles))
            for data, row in itertools.product(kinds, rows):
                _C.simt_forget_sites()
                assert not fault_with_all_sites(way, stage.name, row, data)
                for site in simt.sites():
                    came = found.setdefault(site, [])
                    if (here := (stage.name, row, way)) not in came:
                        came.append(here)
    return found


def test_all_sites_of_all_stages_are_run(came_to):
    # A function of ptx*.h that waits takes a simt::Site and hands it on: the line is the kernel's.
    assert set(came_to) == set(SITES | HEADER_SITES)
    assert {"barrier", "mbarrier wait", "wgmma wait"} <= set((SITES | HEADER_SITES).values())


def test_sites_have_kinds():
    _C.simt_forget_sites()
    assert simt.sites() == []
    _C.simt_probe("tma_product_cluster")
    assert sorted(sum((simt.sites(kind) for kind in simt.SITES), [])) == sorted(simt.sites())
    for kind in simt.SITES:
        lines = [int(site.split(":")[1]) for site in simt.sites(kind)]
        text = (PROBES[0].parent / "probes_hopper.cu").read_text().splitlines()
        calls = [call for call, its in CALLS.items() if its == kind]
        assert all(any(call in text[line - 1] for call in calls) for line in lines)
    assert len(simt.sites("cluster barrier")) == 2 and len(simt.sites("mbarrier wait")) == 2
    with pytest.raises(ValueError, match="no sites of kind 'nope'; there are: barrier, "):
        simt.sites("nope")


@pytest.mark.parametrize("order", simt.ORDERS)
@pytest.mark.parametrize("layout", problems.LAYOUTS)
@pytest.mark.parametrize("site", SITES)
def test_every_site_is_needed(site, layout, order):
    """The mutation test: a stage without one of its barriers, commits or waits is caught."""
    file = site.split(":")[0]
    stage = next(stage for stage in xgemm_torch.stages() if Path(stage.file).name == file)
    kinds = {SITES[s] for s in SITES if s.startswith(file)}
    if stage.name == "dot":
        k = 9000
    elif stage.split_k or "cluster barrier" in kinds:
        k = 300  # enough for a cluster of blocks to share
    else:
        k = depth(stage) if kinds & {"wait", "mbarrier wait"} else SHORT
    sizes = (*size_of(stage), k)
    rows = rows_with(site, stage, sizes, layout)
    if not rows:  # where whole operands are fetched, aligned
        sizes = tuple(4 * -(-size // 4) for size in sizes)
        rows = rows_with(site, stage, sizes, layout)
    a, b, flags = problems.operands(*sizes, layout, data=data_of(stage))
    some = ("split_k", "tma_gemv")  # rows of which do without a cluster
    assert rows and (len(rows) == len(stage.tiles) or stage.name in some)
    for row in rows:
        with simt.configure(skip=site, order=order, row=row, split_k_size=split_k_size_of(stage)):
            with pytest.raises(RuntimeError, match=CAUGHT) as error:
                xgemm_torch.sgemm(a, b, kernel=stage.name, **flags)
        # split_k's blocks read each other's shared memory in a header.
        header = stage.name == "split_k" and "cluster_reduce.h:" in str(error.value)
        assert file in str(error.value) or header


def data_of(stage: xgemm_torch.Stage) -> str:
    """Operands that come to all sites of its file: thresholds are of rows that lose something."""
    return "normal" if stage.strict else "wide"


def split_k_size_of(stage: xgemm_torch.Stage) -> int:
    """The length of its chains: eight blocks at most make a cluster."""
    return 2 * SPLIT_K_SIZE if stage.name == "split_k" else SPLIT_K_SIZE


def rows_with(
    site: str, stage: xgemm_torch.Stage, sizes: tuple[int, int, int], layout: str
) -> list[int]:
    """The rows of a stage that come to a site."""
    return [row for row, sites in enumerate(sites_of_rows(stage, sizes, layout)) if site in sites]


@functools.cache
def sites_of_rows(
    stage: xgemm_torch.Stage, sizes: tuple[int, int, int], layout: str
) -> list[list[str]]:
    """What each row of a stage comes to; they are run with all their sites, too.

    The row of split_k that does without a workspace has no block that waits for another.
    """
    a, b, flags = problems.operands(*sizes, layout, data=data_of(stage))
    found = []
    for row in range(len(stage.tiles)):
        _C.simt_forget_sites()
        with simt.configure(row=row, split_k_size=split_k_size_of(stage)):
            xgemm_torch.sgemm(a, b, kernel=stage.name, **flags)
        found.append(simt.sites())
    return found


@pytest.mark.parametrize(("site", "order"), zip(HEADER_SITES, itertools.cycle(simt.ORDERS)))
def test_every_site_of_a_shared_kernel_is_needed(site, order, came_to):
    """The same for those in headers and between launches, with every row of the first stage that
    comes to one. Sites take turns in orders: all in each would take minutes, and a stage's own
    sites are skipped in all of them.

    A way may come to a site and not need it: a block with one tile shares nothing with the next.
    What makes units anew needs them only where parts lose some, graded operands, or where single
    elements give results.
    """
    name = came_to[site][0][0]
    ways_of: dict[int, list[Way]] = {}
    for stage, row, way in came_to[site]:
        if stage == name:
            ways_of.setdefault(row, []).append(way)
    for row, all_ways in ways_of.items():
        for way, data in itertools.product(all_ways, WAYS_DATA):
            if fault := way.fault(name, row, data, skip=site, order=order):
                break
        assert fault, f"row {row} does without it"
        assert not fault_with_all_sites(way, name, row, data)
        assert re.search(CAUGHT, fault) and re.search(PLACE, fault), fault


@pytest.mark.parametrize("stage", problems.STAGES)
def test_results_do_not_depend_on_the_order(stage):
    a, b, _ = problems.operands(70, 66, 40)
    want = xgemm_torch.sgemm(a, b, kernel=stage)
    assert problems.right(stage, want, a, b)
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
    results: list[tuple[str, torch.Tensor]] = []

    def work() -> None:
        for stage in problems.STAGES:
            results.append((stage, xgemm_torch.sgemm(a, b, kernel=stage)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 * len(problems.STAGES)
    assert all(problems.right(stage, result, a, b) for stage, result in results)


def test_stages_hold_no_launch_syntax_and_no_cuda_of_their_own():
    """What only one flavour has belongs to platform.h and base.h."""
    for path in STAGE_FILES.glob("*/*.cu"):
        text = path.read_text()
        for word in ("<<<", "asm", "__CUDA_ARCH__", "__CUDACC__", "__shared__", "cuda_runtime"):
            assert word not in text, f"{path.name}: {word}"
