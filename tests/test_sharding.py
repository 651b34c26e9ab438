"""DTensors: products of sharded operands, and layers by tensor parallelism, on two ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import sharded


@pytest.mark.parametrize("check", sharded.CHECKS)
def test_two_ranks(check):
    script = Path(__file__).with_name("sharded.py")
    done = subprocess.run(
        [sys.executable, str(script), check], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = re.search(rf"{check}: (\d+) checked", done.stdout)
    assert found and int(found[1]) > 3


def test_dtensor_is_not_imported_with_the_package():
    code = "import sys, xgemm_torch; print('torch.distributed.tensor' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
