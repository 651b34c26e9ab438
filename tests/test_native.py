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


PROBES = {
    "asan": {"none": 0, "smem_out_of_bounds": 1, "misaligned": 1},
    "tsan": {"none": 0, "race": 1, "race_of_writers": 1, "missing_wait": 1},
}


@pytest.mark.parametrize("name, fault", [(n, f) for n, faults in PROBES.items() for f in faults])
def test_the_sanitizers_see_planted_faults(plan, name, fault):
    done = native.run(plan, name, ["probe", fault])
    assert (done.returncode != 0) == bool(PROBES[name][fault]), done.stdout[-4000:]
    if fault not in ("none", "misaligned"):
        assert "Sanitizer" in done.stdout
