"""`build_tools.glibc`: what is linked for an older glibc needs it, and works on this machine."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import pytest

from build_tools import compiler, glibc, library
from build_tools.settings import BuildError, Settings

SOURCE = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <cmath>
#include <memory>

static void* add(void* x) { ++*static_cast<std::shared_ptr<int>*>(x)->get(); return nullptr; }

extern "C" double answer(double x) {
  auto count = std::make_shared<int>(0);
  std::shared_ptr<int> copy = count;  // asks libc whether there is one thread
  pthread_t thread;
  if (pthread_create(&thread, nullptr, add, &copy)) return -1;
  pthread_join(thread, nullptr);
  sem_t s;
  sem_init(&s, 0, 1);
  sem_wait(&s);
  sem_destroy(&s);
  return dlsym(RTLD_DEFAULT, "malloc") ? std::pow(x, 5.5) + expf(0) * *count : -2;
}
"""
pytestmark = pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("objdump")), reason="there is no g++ or no binutils"
)


def linked(folder, *stubs):
    """A library of `SOURCE`, linked with stubs."""
    (folder / "x.cpp").write_text(SOURCE)
    out = folder / "x.so"
    subprocess.run(
        ["g++", "-O1", "-fPIC", "-shared", str(folder / "x.cpp"), *map(str, stubs), "-o", str(out)],
        check=True, timeout=120,
    )  # fmt: skip
    return out


def needed(path):
    """By symbol, the version of glibc's that a library asks for."""
    said = subprocess.run(["objdump", "-T", str(path)], capture_output=True, text=True, check=True)
    found = re.findall(r"\*UND\*\s+[0-9a-f]+\s+\(?(?:GLIBC_([\d.]+))?\)?\s+(\S+)", said.stdout)
    return {name: version for version, name in found if version or name in ("pow", "expf")}


def test_what_is_linked_for_an_older_glibc_asks_for_no_newer_one(tmp_path):
    stubs = glibc.write(tmp_path / "stubs", "2.28", compiler.find())
    plain, older = needed(linked(tmp_path)), needed(linked(tmp_path, *stubs))
    assert set(older) == set(plain) - {"__libc_single_threaded"}
    assert max(map(glibc.numbers, older.values())) <= (2, 28)
    for name, version in plain.items():  # what was old enough is as it was
        if glibc.numbers(version) <= (2, 28):
            assert older[name] == version, name
    assert older["pthread_create"] != plain["pthread_create"] or not stubs
    answer = ctypes.CDLL(str(tmp_path / "x.so")).answer
    answer.restype, answer.argtypes = ctypes.c_double, [ctypes.c_double]
    assert answer(4.0) == 4.0**5.5 + 1


def test_stubs_are_made_once_and_only_where_they_are_needed(tmp_path):
    cxx = compiler.find()
    made = glibc.write(tmp_path, "2.28", cxx)
    times = [path.stat().st_mtime_ns for path in made]
    assert glibc.write(tmp_path, "2.28", cxx) == made
    assert [path.stat().st_mtime_ns for path in made] == times
    assert glibc.write(tmp_path, "9.0", cxx) == []


@pytest.mark.parametrize("text", ["2", "new", "2.28.", "glibc-2.28", "2,28"])
def test_a_version_that_is_none(tmp_path, text):
    with pytest.raises(BuildError, match=f"XGEMM_GLIBC is '{text}'"):
        glibc.write(tmp_path, text, compiler.find())


def test_the_library_is_linked_with_them(tmp_path):
    (tmp_path / "csrc/xgemm/stages/ladder").mkdir(parents=True)
    (tmp_path / "csrc/xgemm/stages/ladder/01_any.cu").write_text("// An idea.\n")
    plan = library.make_plan(Settings("0", glibc="2.28"), tmp_path)
    library.write(plan)
    flags = library.link_flags(plan)
    assert plan.stubs and set(map(str, plan.stubs)) <= set(flags)
    assert flags.index(str(plan.stubs[-1])) < flags.index("-ldl")
