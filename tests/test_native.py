"""The kernels as C++ programs without Python: plain, under ASan with UBSan, and under TSan."""

import functools
import json
import platform
import shutil

import pytest

from build_tools import library, native, settings
from build_tools.settings import ROOT
from xgemm_torch import _C

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.skipif(platform.system() != "Linux", reason="the sanitizers' options are Linux's"),
]


@functools.cache
def built(name):
    """The plan by which a program has been built."""
    plan = library.make_plan(settings.read())
    with library.lock(plan):
        library.write(plan)
        native.build(plan, name)
    return plan


def test_there_is_a_program():
    assert list(ROOT.glob("tests/native/*.cpp"))


@pytest.mark.parametrize("name", native.SANITIZERS)
def test_program(name):
    done = native.run(built(name), name)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "ThreadSanitizer" not in done.stdout and "ERROR: AddressSanitizer" not in done.stdout
    assert "runtime error" not in done.stdout
    print(done.stdout)


# What ends a probe under a sanitizer: its report, or the emulator's own error; "" for nothing.
RIGHT = {name: "" for name, faulty in json.loads(_C.simt_probes()) if not faulty}
OURS = dict.fromkeys(
    (
        "lane_never_comes",
        "different_masks",
        "shuffle_from_no_lane",
        "missing_empty_wait",
        "too_many_bytes",
        "early_release",
        "missing_last_cluster_sync",
        "mma_of_31_lanes",
    ),
    "xgemm simt:",
)
RACES = (
    "race",
    "race_of_writers",
    "missing_wait",
    "wait_one_short",
    "missing_syncwarp",
    "shuffle_orders_nothing",
    "vote_orders_nothing",
    "syncwarp_between_warps",
    "syncwarp_of_halves",
    "store_before_the_warp_has_read",
)
PROBES = {
    "asan": {
        **RIGHT,
        **OURS,
        "smem_out_of_bounds": "AddressSanitizer",
        "misaligned": "xgemm simt:",
    },
    "tsan": {**RIGHT, **OURS, **dict.fromkeys(RACES, "ThreadSanitizer")},
}


@pytest.mark.parametrize("name, fault", [(n, f) for n, faults in PROBES.items() for f in faults])
def test_the_sanitizers_see_planted_faults(name, fault):
    done = native.run(built(name), name, ["probe", fault])
    end = PROBES[name][fault]
    assert (done.returncode != 0) == bool(end), done.stdout[-4000:]
    assert end in done.stdout and (end or not done.stdout), done.stdout[-4000:]
