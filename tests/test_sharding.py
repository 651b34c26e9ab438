"""DTensors: products of sharded operands, and layers by tensor parallelism, on 2 and 4 ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import sharded

SAME_BITS = "same_bits_at_any_degree,same_bits_of_shards"


@pytest.mark.parametrize(
    "checks, ranks", [("placements", 2), ("training", 2), (SAME_BITS, 2), (SAME_BITS, 4)]
)
def test_ranks(checks, ranks):
    script = Path(__file__).with_name("sharded.py")
    done = subprocess.run(
        [sys.executable, str(script), checks, str(ranks)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for check in checks.split(","):
        found = re.search(rf"{check}: (\d+) checked", done.stdout)
        assert found and int(found[1]) > 3


def test_every_check_is_run():
    mark = next(m for m in test_ranks.pytestmark if m.name == "parametrize")
    assert {c for checks, _ in mark.args[1] for c in checks.split(",")} == set(sharded.CHECKS)


def test_dtensor_is_not_imported_with_the_package():
    code = "import sys, xgemm_torch; print('torch.distributed.tensor' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
