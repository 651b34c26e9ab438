"""Products and communication in turns: functions, gradients and styles, on two ranks."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import overlapped
import pytest
import torch
from torch.distributed import _symmetric_memory

from build_tools.settings import ROOT
from xgemm_torch import async_tp


@pytest.fixture(scope="module")
def done():
    script = Path(__file__).with_name("overlapped.py")
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("check", overlapped.CHECKS)
def test_two_ranks(check, done):
    found = re.search(rf"^{check}: (\d+) checked", done.stdout, re.MULTILINE)
    assert found, done.stderr
    assert int(found[1]) > 3


def test_the_ranks_end_well(done):
    assert done.returncode == 0, done.stderr


def test_the_schedules_are_called_as_torchs_are():
    """Without a GPU they do not run; what stands in for them has their arguments' names."""
    consume, produce = map(inspect.signature, async_tp._pipelines())
    rows, call = torch.ones(2, 3), print
    bound = consume.bind(rows, call, rows, "group", True).arguments
    assert list(bound) == ["shard", "shard_consumer", "ag_out", "group_name", "ag_out_needed"]
    bound = produce.bind(call, rows, "group").arguments
    assert list(bound) == ["chunk_producer", "output", "group_name"]


def test_without_a_group():
    with pytest.raises(ValueError, match="there is no process group"):
        async_tp.all_gather_linear(torch.ones(2, 3), torch.ones(4, 3))


def test_torch_without_the_schedules(monkeypatch):
    monkeypatch.delattr(_symmetric_memory, "_pipelined_produce_and_all2all")
    assert async_tp._pipelines() is None


def test_the_benchmark(tmp_path):
    """On a CPU, small, without what overlaps; the record is shown as it was."""
    path, script = tmp_path / "async_tp.json", ROOT / "benchmarks" / "async_tp.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*torchrun, "--standalone", str(script), "--small", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [sys.executable, str(script), "--show", str(path)], capture_output=True, text=True
    )
    assert shown.returncode == 0 and shown.stdout == done.stdout, shown.stderr
    (case,) = json.loads(path.read_text())["cases"]
    for layer in case["layers"].values():
        assert set(layer["ms"]) == {"collective", "product", "in order"}
        assert 0 < layer["error_u"]["in order"] < 8
