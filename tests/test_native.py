"""The kernels as C++ programs without Python: plain, under ASan with UBSan, and under TSan."""

import platform
import shutil

import pytest

from build_tools import library, native, settings
from build_tools.settings import ROOT

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.skipif(platform.system() != "Linux", reason="the sanitizers' options are Linux's"),
]


@pytest.fixture(scope="module")
def plan():
    plan = library.make_plan(settings.read())
    with library.lock(plan):
        library.write(plan)
        yield plan


def test_there_is_a_program():
    assert list(ROOT.glob("tests/native/*.cpp"))


@pytest.mark.parametrize("name", native.SANITIZERS)
def test_program(plan, name):
    done = native.run(plan, name)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "ThreadSanitizer" not in done.stdout and "ERROR: AddressSanitizer" not in done.stdout
    assert "runtime error" not in done.stdout
    print(done.stdout)
