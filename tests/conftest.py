"""What all tests share: workers, skipping what the machine lacks, seeds, hypothesis's settings."""

from __future__ import annotations

import os
import re
from typing import Any

# The choices are this build's, not those that somebody has tuned here.
os.environ["XGEMM_TUNE_CACHE"] = ""

import pytest
import torch
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=30)
settings.register_profile("search", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Files of many minutes: a worker takes them first, so that all end together ...
_LONG = ("test_native.py", "test_simt.py", "test_emulated.py")
# ... and of these a test function at a time, or a program; of others the file, for the sake of what
# their tests share. These two need what comes to all sites, a minute's work.
_TOGETHER = {"test_all_sites_of_all_stages_are_run": "test_every_site_of_a_shared_kernel_is_needed"}
# These ask what is counted of all stages, which a process keeps: most of a minute's work.
_OF_COUNTS = ("test_anatomy.py", "test_cli.py", "test_ladder_pages.py", "test_race.py")


def _share(nodeid: str) -> str:
    """What a worker takes a test with."""
    path, _, test = nodeid.partition("::")
    function, _, parameters = test.partition("[")
    file = os.path.basename(path)
    if file == "test_native.py":
        return f"{file} {re.match('[a-z]*', parameters)[0]}"
    if file in _OF_COUNTS:
        return _OF_COUNTS[0]
    return _TOGETHER.get(function, function) if file in _LONG else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: a GPU is for one process at a time, or times mean nothing."""
    if torch.cuda.is_available():
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each worker
    return min(4, len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals tests out by `_share`, in the order in which they were collected."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _share(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


_LARGE = 8 * 2**30  # bytes, what the marker large_memory stands for


def _free_memory() -> int:
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _stages_elsewhere() -> dict[str, str]:
    """The stages made for other GPUs than the one here, each with the reason.

    One that the build has no CUDA kernel of is none of those: its tests on a GPU fail and say so.
    """
    if not torch.cuda.is_available():
        return {}
    import xgemm_torch
    from xgemm_torch.tools.info import runs_on

    major, minor = torch.cuda.get_device_capability()
    sm = 10 * major + minor
    return {
        stage.name: f"{stage.name} is made for sm_{stage.min_sm} "
        f"{f'to sm_{stage.max_sm}' if stage.max_sm else 'and later'}; this GPU is sm_{sm}"
        for stage in xgemm_torch.stages()
        if stage.cuda and not runs_on(vars(stage), sm)
    }


def _parameters(item: pytest.Item) -> list[str]:
    spec = getattr(item, "callspec", None)
    return [value for value in spec.params.values() if isinstance(value, str)] if spec else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and say why; for workers, put what takes long first."""
    if hasattr(config, "workerinput"):
        rank = {name: number for number, name in enumerate(_LONG)}
        items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    reasons = {}
    if devices < 1:
        reasons["gpu"] = "needs an NVIDIA GPU; torch sees none"
    if devices < 2:
        reasons["multi_gpu"] = f"needs two NVIDIA GPUs; torch sees {devices}"
    if _free_memory() < _LARGE:
        reasons["large_memory"] = "needs 8 GiB of free memory"
    elsewhere = _stages_elsewhere()
    for item in items:
        if "gpu" in item.keywords or "multi_gpu" in item.keywords:
            for name in elsewhere.keys() & set(_parameters(item)):
                item.add_marker(pytest.mark.skip(reason=elsewhere[name]))
        for marker, reason in reasons.items():
            if marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def small_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls of a test's size take attention's kernels."""
    from xgemm_torch import attention

    monkeypatch.setattr(attention, "_FEW_ROWS", 0)
    monkeypatch.setattr(attention, "_FEW_FLOPS", 0)


@pytest.fixture
def kernels_of_attention(monkeypatch: pytest.MonkeyPatch, small_attention: None) -> None:
    """Have calls on a CPU take them, too, where they run in the emulator."""
    from xgemm_torch import attention

    def has_kernels(device: torch.device) -> bool:
        return device.type in ("cpu", "cuda")

    has_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]
    monkeypatch.setattr(attention, "has_kernels", has_kernels)
