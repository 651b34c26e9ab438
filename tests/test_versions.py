"""The one library in other Pythons and other torches: it loads there and computes the same bits.

``XGEMM_TEST_PYTHONS`` is a colon list of interpreters, each with a torch of its own.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from build_tools.settings import ROOT

PYTHONS = [p for p in os.environ.get("XGEMM_TEST_PYTHONS", "").split(":") if p]

# Runs in the other interpreter, which needs neither pytest nor numpy. Integers up to 4 make every
# product exact, so the bits must not depend on which BLAS is there.
PROGRAM = """
import hashlib, json, sys
import torch
import xgemm_torch

def integers(*shape):
    return torch.randint(-4, 5, shape, generator=generator).float()

generator = torch.Generator().manual_seed(1)
digest = hashlib.sha256()
checked = []
for stage in ["sgemm", *(s.name for s in xgemm_torch.stages())]:
    op = getattr(torch.ops.xgemm, stage)
    for m, n, k in [(1, 1, 1), (33, 17, 40), (64, 64, 32), (0, 3, 2), (3, 2, 0)]:
        a, b, c = integers(m, k), integers(n, k), integers(m, n)
        got = op(a, b, c, alpha=2.0, beta=-1.0, trans_b=True)
        assert torch.equal(got, 2 * (a @ b.T) - c), (stage, m, n, k)
        digest.update(repr(got.tolist()).encode())
    checked.append(stage)
a = integers(5, 6).requires_grad_()
b = integers(6, 7).requires_grad_()
xgemm_torch.sgemm(a, b).sum().backward()
assert torch.equal(a.grad, b.detach().sum(1).expand(5, 6))
assert torch.equal(b.grad, a.detach().sum(0)[:, None].expand(6, 7))
layer = xgemm_torch.nn.Linear(6, 3)
x = torch.randn(4, 6, generator=generator)
torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
try:
    xgemm_torch.sgemm(torch.ones(3, 4), torch.ones(5, 6))
except ValueError as error:
    assert "inner sizes differ" in str(error)
else:
    raise AssertionError("no error")
assert not torch.cuda.is_initialized()
print(json.dumps({
    "python": sys.version.split()[0],
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "module": xgemm_torch._C.__file__,
    "checked": checked,
    "digest": digest.hexdigest(),
}))
"""


@functools.cache
def run(python):
    """What a Python tells, which is asked once; a CUDA build of torch takes seconds to load."""
    done = subprocess.run(
        [python, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{python}:\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def here():
    return run(sys.executable)


def test_this_environment(here):
    assert Path(here["module"]).name.startswith("_C.")
    assert len(here["checked"]) > 1


@pytest.mark.parametrize(
    "python",
    PYTHONS
    or [pytest.param("none", marks=pytest.mark.skip(reason="XGEMM_TEST_PYTHONS is not set"))],
)
def test_other_environments(python, here):
    other = run(python)
    print(f"Python {other['python']}, torch {other['torch']}, its CUDA {other['cuda']}")
    assert same_file(other["module"], here["module"])
    assert other["checked"] == here["checked"]
    assert other["digest"] == here["digest"]


@pytest.mark.skipif(not PYTHONS, reason="XGEMM_TEST_PYTHONS is not set")
def test_the_environments_are_different_ones(here):
    seen = [(run(p)["python"], run(p)["torch"]) for p in PYTHONS]
    assert len(set(seen)) == len(seen)
    assert any(pair != (here["python"], here["torch"]) for pair in seen)


def same_file(one, other):
    digests = [hashlib.sha256(Path(p).read_bytes()).digest() for p in (one, other)]
    return digests[0] == digests[1]
