"""The library and the sources keep to their borders: what is linked, included and exported."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import xgemm_torch
from build_tools.settings import ROOT

MODULE = Path(xgemm_torch._C.__file__)
CSRC = ROOT / "csrc"
TORCH_FREE = sorted(
    p
    for room in ("xgemm", "emulator")
    for p in (CSRC / room).rglob("*")
    if p.suffix in (".h", ".cpp", ".cu")
)
BINDING = sorted(p for p in (CSRC / "torch").rglob("*") if p.suffix in (".h", ".cpp"))

binutils = pytest.mark.skipif(
    not all(map(shutil.which, ("nm", "readelf"))), reason="there is no nm and readelf"
)

# The shim of LibTorch's stable ABI, Python's limited API, and the libraries of every Linux.
ALLOWED = re.compile(
    r"aoti_torch_\w+|torch_\w+"
    r"|_?Py_?[A-Z]\w*"
    r"|_Z(?:NK?[RO]?St|TVN10__cxxabiv|TI|TV|TH|Tv|S)\w*|_Zd[la]\w*|_Zn[wa]\w*"
    r"|__cxa_\w+|__gxx_\w+|_Unwind_\w+|_ITM_\w+|__gmon_start__|__tls_get_addr"
)
# In libtorch_cuda alone, which a CPU build of torch does not have.
CUDA_SHIM = re.compile(r"aoti_torch_\w*cuda\w*|torch_\w*cuda\w*")
NEEDED = re.compile(
    r"lib(c10|torch|torch_cpu|stdc\+\+|m|gcc_s|c|dl|rt|pthread)\.so[.\d]*|ld-linux-.*\.so[.\d]*"
)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def undefined():
    """Undefined dynamic symbols as (type, name, version)."""
    rows = []
    for line in output("nm", "-D", "--undefined-only", str(MODULE)).splitlines():
        kind, name = line.split()[-2:]
        name, _, version = name.partition("@")
        rows.append((kind, name, version.lstrip("@")))
    return rows


@binutils
def test_undefined_symbols_are_stable_ones():
    stray = [
        name
        for _, name, version in undefined()
        # Whatever has a version is of the C and C++ libraries of the system.
        if not re.match(r"GLIBC|GCC|CXXABI", version) and not ALLOWED.fullmatch(name)
    ]
    assert not stray


@binutils
def test_symbols_of_libtorch_cuda_are_weak():
    shims = [(kind, name) for kind, name, _ in undefined() if CUDA_SHIM.fullmatch(name)]
    # The enumeration of device types is in every build of torch.
    shims = [(kind, name) for kind, name in shims if name != "aoti_torch_device_type_cuda"]
    assert [name for kind, name in shims if kind != "w"] == []
    assert bool(shims) == json.loads(xgemm_torch._C.build_info())["cuda"]


@binutils
def test_symbols_of_python_are_weak():
    """A program without Python loads the library; csrc/torch/module.cpp lists them."""
    kinds = {name: kind for kind, name, _ in undefined() if re.match("_?Py", name)}
    assert kinds and {name for name, kind in kinds.items() if kind != "w"} == set()


@binutils
def test_only_the_modules_entry_is_exported():
    defined = output("nm", "-D", "--defined-only", str(MODULE)).splitlines()
    names = {line.split()[-1].partition("@")[0] for line in defined}
    assert names == {"PyInit__C"}


@binutils
def test_needed_libraries():
    dynamic = output("readelf", "-d", str(MODULE))
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert [name for name in needed if not NEEDED.fullmatch(name)] == []
    assert {"libtorch.so", "libtorch_cpu.so"} <= set(needed)
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


def test_no_directory_of_the_building_machine():
    data = MODULE.read_bytes()
    for place in {str(ROOT), str(Path.home()), str(Path(shutil.__file__).parent)} - {"/", "/usr"}:
        found = data.find(place.encode() + b"/")
        assert found < 0, data[found : found + 120]


def test_sources_are_named_relative_to_the_tree():
    data = MODULE.read_bytes()
    assert b"csrc/xgemm/stages" in data


@pytest.mark.parametrize("path", TORCH_FREE, ids=lambda path: path.name)
def test_the_kernel_layer_is_torch_free(path):
    includes = re.findall(r'^\s*#\s*include\s*[<"](.+?)[>"]', path.read_text(), re.MULTILINE)
    foreign = [i for i in includes if re.match(r"(torch|ATen|c10|caffe2|Python|pybind11)\b", i)]
    assert not foreign


@pytest.mark.parametrize("path", BINDING, ids=lambda path: path.name)
def test_the_binding_has_no_kernel_and_only_stable_headers(path):
    text = path.read_text()
    assert "__global__" not in text and "<<<" not in text
    includes = re.findall(r'^\s*#\s*include\s*[<"](.+?)[>"]', text, re.MULTILINE)
    unstable = [
        i
        for i in includes
        if re.match(r"(torch|ATen|c10)/", i)
        and not re.match(r"torch/(csrc/stable|headeronly|csrc/inductor/aoti_torch)/", i)
    ]
    assert not unstable


ASSEMBLY = [*(CSRC / "xgemm" / "device" / "ptx").glob("*.h"), CSRC / "xgemm" / "device" / "half.h"]
"""The files that are for it: one instruction, one function. The emulator's fibers have some."""


@pytest.mark.parametrize(
    "path",
    [p for p in TORCH_FREE if p not in ASSEMBLY and p.parent.name != "emulator"],
    ids=lambda path: path.name,
)
def test_assembly_has_its_place(path):
    assert not re.search(r"\b(asm|__asm__|__asm)\b", code_of(path.read_text()))


def test_comments_are_told_from_code():
    text = 'int a; // asm here\n/* asm\n asm */ int b; const char* s = "// asm";'
    assert code_of(text) == "int a; \n int b; const char* s = ;"


def code_of(text):
    """C++ without comments and string literals."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", text, flags=re.DOTALL)
