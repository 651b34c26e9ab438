"""What ``import xgemm_torch`` gives: its names, its modules, and what their docstrings say."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import xgemm_torch
from build_tools.settings import ROOT
from xgemm_torch import simt

FUNCTIONS = {
    name: function
    for module in (xgemm_torch, simt)
    for name, function in vars(module).items()
    if inspect.isfunction(function)
    and not name.startswith("_")
    and function.__module__.startswith("xgemm_torch")
}


def test_all_names_are_there():
    for name in xgemm_torch.__all__:
        assert hasattr(xgemm_torch, name)
    assert isinstance(xgemm_torch.explain(0, 1, 1), xgemm_torch.Explanation)
    assert {"Explanation", "Candidate"} <= set(xgemm_torch.__all__)


def test_rooms_come_when_they_are_asked_for():
    code = (
        "import sys, xgemm_torch\n"
        "rooms = [m for m in sys.modules if m.startswith('xgemm_torch.') and m.count('.') > 1]\n"
        "assert not rooms, rooms\n"
        "assert set(xgemm_torch.SUBMODULES) <= set(dir(xgemm_torch))\n"
        "for name in xgemm_torch.SUBMODULES:\n"
        "    assert getattr(xgemm_torch, name).__name__ == 'xgemm_torch.' + name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="module 'xgemm_torch' has no attribute 'nonsense'"):
        _ = xgemm_torch.nonsense


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_say_what_is_returned(name):
    """All of a function with arguments: what it takes, what it returns."""
    function = FUNCTIONS[name]
    assert function.__doc__
    if inspect.signature(function).parameters:
        for section in ("Args:", "Returns:"):
            assert section in function.__doc__, f"{name} has no {section}"
