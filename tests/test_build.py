"""The build: what it is asked, what it finds, and that an edit rebuilds no more than it must."""

import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import xgemm_torch
from build_tools import (
    archs,
    compiler,
    cuda_toolkit,
    environment,
    glibc,
    library,
    ninja_file,
    settings,
)  # fmt: skip
from build_tools import sources as sources_module
from build_tools import summary as summary_module
from build_tools.settings import ROOT, BuildError, Settings

NVCC = cuda_toolkit.find().toolkit


def codes(targets):
    return [arch.code for arch in targets]


# --- settings -------------------------------------------------------------------------------------


def test_settings_defaults():
    assert settings.read({}) == Settings("auto", (), "", settings.default_jobs(), False, "")
    assert settings.default_jobs() >= 1


def test_settings_are_read():
    asked = {
        "XGEMM_CUDA": "0",
        "XGEMM_STAGES": "5, naive",
        "TORCH_CUDA_ARCH_LIST": " 8.0 ",
        "XGEMM_LINE_INFO": "1",
        "XGEMM_GLIBC": "2.28",
        "MAX_JOBS": "3",
    }
    assert settings.read(asked) == Settings("0", ("5", "naive"), "8.0", 3, True, "2.28")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("XGEMM_CUDA", "yes"),
        ("XGEMM_LINE_INFO", "no"),
        ("MAX_JOBS", "0"),
        ("MAX_JOBS", "-1"),
        ("MAX_JOBS", "many"),
    ],
)
def test_settings_that_cannot_be(variable, value):
    with pytest.raises(BuildError, match=f"{variable} is '{value}'"):
        settings.read({variable: value})


def test_setup_says_what_is_wrong():
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT,
        env={**os.environ, "XGEMM_CUDA": "perhaps"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "xgemm_torch: XGEMM_CUDA is 'perhaps'; it can be auto, 0 or 1" in done.stderr
    assert "Traceback" not in done.stderr


# --- architectures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["sm_80", "sm_90a", "compute_90"]),
        ("8.0 9.0a 9.0+PTX", ["sm_80", "sm_90a", "compute_90"]),
        ("8.0;9.0a", ["sm_80", "sm_90a"]),
        ("8.0,8.6", ["sm_80", "sm_86"]),
        ("9.0+PTX", ["sm_90", "compute_90"]),
        ("9.0a+PTX", ["sm_90a", "compute_90a"]),
        ("9.0 9.0a", ["sm_90", "sm_90a"]),
        ("10.0 12.0f", ["sm_100", "sm_120f"]),
        ("8.0 8.0", ["sm_80"]),
        ("Ampere", ["sm_80", "sm_86"]),
        ("Ampere+PTX", ["sm_80", "sm_86", "compute_86"]),
        ("Hopper", ["sm_90a", "compute_90"]),
    ],
)
def test_arch_list(text, expected):
    assert codes(archs.parse(text)) == expected


@pytest.mark.parametrize(
    "text", ["90a", "sm_90", "9.0b", "native", "Pascal", "9", "9.0+SASS", "8.0 x", ";", "8,0"]
)
def test_arch_list_that_is_none(text):
    with pytest.raises(BuildError, match="TORCH_CUDA_ARCH_LIST"):
        archs.parse(text)


def test_arch_flags():
    flags = [arch.gencode for arch in archs.parse("9.0a 9.0+PTX")]
    assert flags == [
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_90,code=compute_90",
    ]
    assert [str(arch) for arch in archs.parse("")] == archs.DEFAULT.split()


@pytest.mark.parametrize(
    ("directive", "build", "expected"),
    [
        ("", "8.0 9.0a 9.0+PTX", ["sm_80", "sm_90a", "compute_90"]),
        ("sm_90a", "8.0 9.0a 9.0+PTX", ["sm_90a"]),
        ("sm_90a", "8.0 9.0", ["sm_90a"]),
        ("sm_90a", "8.0", []),
        ("sm_80 sm_90a", "8.0 9.0a", ["sm_80", "sm_90a"]),
        ("sm_80, sm_90a", "8.0", ["sm_80"]),
    ],
)
def test_stage_targets(directive, build, expected):
    only = archs.parse_directive(directive, "x.cu") if directive else ()
    assert codes(archs.for_stage(only, archs.parse(build))) == expected


@pytest.mark.parametrize("text", ["90a", "sm_9", "", "sm_90x"])
def test_directive_that_is_none(text):
    with pytest.raises(BuildError, match="x.cu: '// arch:'"):
        archs.parse_directive(text, "x.cu")


# --- finding compilers ----------------------------------------------------------------------------


def fake_toolkit(root, version="13.0", library_dir="lib64", top=None):
    """A toolkit of one shell script that answers the two questions that nvcc is asked."""
    for folder in ("bin", library_dir):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / library_dir / "libcudart_static.a").touch()
    script(
        root / "bin" / "nvcc",
        f'case "$1" in\n--version) echo "release {version}, V{version}.1" ;;\n'
        f'--dryrun) echo "#\\$ TOP={top or root / "bin" / ".."}" >&2 ;;\nesac',
    )
    return root


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def search(tmp_path, **environ):
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir(exist_ok=True)
    path = {"PATH": str(nowhere), **environ}
    return cuda_toolkit.find(path, system=tmp_path / "system", site=tmp_path / "site")


def test_no_toolkit(tmp_path):
    found = search(tmp_path)
    assert found.toolkit is None
    assert found.why_not.startswith("no nvcc in $CUDA_HOME, the PATH")


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_toolkit_by_variable(tmp_path, variable):
    root = fake_toolkit(tmp_path / "cuda")
    toolkit = search(tmp_path, **{variable: str(root)}).toolkit
    assert toolkit.root == root
    assert toolkit.version == "13.0"
    assert toolkit.static_runtime == root / "lib64" / "libcudart_static.a"
    assert toolkit.found == f"${variable}"


def test_toolkit_behind_a_link(tmp_path):
    root = fake_toolkit(tmp_path / "cuda")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "nvcc").symlink_to(root / "bin" / "nvcc")
    assert search(tmp_path, PATH=str(tmp_path / "links")).toolkit.root == root


def test_toolkit_behind_a_script(tmp_path):
    root = fake_toolkit(tmp_path / "cuda")
    wrapper = script(tmp_path / "tools" / "nvcc", f'exec {root}/bin/nvcc "$@"')
    toolkit = search(tmp_path, PATH=str(wrapper.parent)).toolkit
    assert toolkit.root == root
    assert toolkit.nvcc == root / "bin" / "nvcc"


def test_toolkit_of_the_system_newest_first(tmp_path):
    for name in ("cuda-12.9", "cuda-13.0", "cuda-9.2"):
        fake_toolkit(tmp_path / "system" / name, name.removeprefix("cuda-"))
    assert search(tmp_path).toolkit.version == "13.0"


def test_toolkit_from_wheels(tmp_path):
    root = fake_toolkit(tmp_path / "site" / "nvidia" / "cu13", library_dir="lib")
    toolkit = search(tmp_path).toolkit
    assert toolkit.root == root
    assert toolkit.found == "Python's packages"


def test_unusable_toolkits_are_passed_over_and_named(tmp_path):
    old = fake_toolkit(tmp_path / "old", "11.8")
    bare = fake_toolkit(tmp_path / "bare")
    (bare / "lib64" / "libcudart_static.a").unlink()
    broken = script(tmp_path / "tools" / "nvcc", "exit 1")
    gone = {"CUDA_HOME": str(old), "CUDA_PATH": str(bare), "PATH": str(broken.parent)}
    found = search(tmp_path, **gone)
    assert found.toolkit is None
    assert "is of CUDA 11.8, 12.0 is needed" in found.why_not
    assert "holds no libcudart_static.a" in found.why_not
    assert f"{broken} does not run" in found.why_not
    good = fake_toolkit(tmp_path / "system" / "cuda")
    assert search(tmp_path, **gone).toolkit.root == good


def test_the_runtime_of_another_processor(tmp_path):
    """From the toolkit's folder of that one, or as it is given; its own is another's."""
    root = fake_toolkit(tmp_path / "cuda")
    how = {"environ": {"PATH": str(root / "bin")}, "system": tmp_path, "site": tmp_path}
    found = cuda_toolkit.find(**how, machine="other64")
    assert found.toolkit is None
    assert "libcudart_static.a for other64; XGEMM_CUDART can name one" in found.why_not
    given = tmp_path / "given.a"
    given.touch()
    found = cuda_toolkit.find(**how, machine="other64", runtime=str(given))
    assert found.toolkit.static_runtime == given
    folder = root / "targets" / "other64-linux" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcudart_static.a").touch()
    found = cuda_toolkit.find(**how, machine="other64")
    assert found.toolkit.static_runtime == folder / "libcudart_static.a"


def test_missing_cuda_home_is_named(tmp_path):
    found = search(tmp_path, CUDA_HOME=str(tmp_path / "missing"))
    assert "(from $CUDA_HOME) does not exist" in found.why_not


def test_cuda_asked_for_and_not_to_be_had(monkeypatch):
    nothing = cuda_toolkit.Search(None, ())
    monkeypatch.setattr(cuda_toolkit, "find", lambda **_: nothing)
    with pytest.raises(BuildError, match="XGEMM_CUDA=1, but there is no nvcc"):
        library.make_plan(Settings(cuda="1"))
    plan = library.make_plan(Settings(cuda="auto"))
    assert plan.toolkit is None
    assert plan.why_no_cuda == nothing.why_not


def test_compiler():
    found = compiler.find()
    assert found.name.startswith("g++ ")
    assert found.machine == os.uname().machine and not found.crosses


@pytest.fixture
def cross(tmp_path, monkeypatch):
    """A g++ that says it compiles for another processor, and links as this one's does."""
    says = 'echo "g++ 12.2.0"; echo "Copyright (C) Free Software Foundation"'
    fake = script(
        tmp_path / "other64-linux-gnu-g++",
        f'case "$1" in\n--version) {says} ;;\n-dumpmachine) echo other64-linux-gnu ;;\n'
        f'*) exec {compiler.find().path} "$@" ;;\nesac',
    )
    monkeypatch.setenv("CXX", str(fake))
    return fake


def test_a_compiler_for_another_processor(cross):
    found = compiler.find()
    assert (found.path, found.machine, found.crosses) == (str(cross), "other64", True)
    assert Path(shutil.which(found.tool("objdump"))).name.endswith("objdump")


def test_a_build_for_another_processor(cross, tmp_path):
    """It lies by itself, and is linked with torch's libraries by their names alone."""
    plan = library.make_plan(Settings(cuda="0"), build_dir=tmp_path / "xgemm")
    assert plan.build_dir == tmp_path / "xgemm-other64"
    assert plan.machine_flags() == ""
    flags = library.link_flags(plan)
    assert f"-L{plan.torch_stubs}" in flags and "-static-libstdc++" in flags
    assert {"-ltorch", "-ltorch_cpu", "-lc10"} <= set(flags[: flags.index("-Wl,--as-needed")])
    glibc.stand_in(plan.torch_stubs, library.TORCH, plan.compiler)
    empty = tmp_path / "empty.so"
    made = [str(cross), "-shared", "-nostdlib", "-o", str(empty), *flags[:5]]
    subprocess.run(made, check=True, timeout=60)
    needs = subprocess.run(["readelf", "-d", empty], capture_output=True, text=True, check=True)
    assert all(f"[{name}]" in needs.stdout for name in library.TORCH)


def test_kernels_for_another_processor_have_the_toolkits_headers(cross, tmp_path):
    root = fake_toolkit(tmp_path / "cuda")
    toolkit = cuda_toolkit.Toolkit(root / "bin" / "nvcc", root, "13.0", root / "x.a", "here")
    plan = replace(library.make_plan(Settings(cuda="0")), toolkit=toolkit, archs=archs.parse(""))
    file = ninja_file.NinjaFile(plan.build_dir)
    library._write_cuda(plan, file, tmp_path)
    file.write(tmp_path / "build.ninja")
    text = (tmp_path / "build.ninja").read_text()
    assert f"-ccbin {cross}" in text and f" -I{root / 'include'}" in text


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("g++ (Debian) 9.4.0\nCopyright (C) Free Software Foundation", "version 11 or newer"),
        ("clang version 17.0.1", "is not g++"),
    ],
)
def test_compiler_that_will_not_do(tmp_path, says, message):
    fake = script(tmp_path / "cxx", f'echo "{says}"')
    with pytest.raises(BuildError, match=message):
        compiler.find({"CXX": str(fake), "PATH": os.environ["PATH"]})


def test_no_compiler(tmp_path):
    with pytest.raises(BuildError, match="no C[+][+] compiler"):
        compiler.find({"PATH": str(tmp_path)})


# --- sources --------------------------------------------------------------------------------------


def test_every_stage_file_is_found():
    found = sources_module.find(ROOT)
    files = sorted(ROOT.glob("csrc/xgemm/stages/*/*"))
    assert [ROOT / stage.path for stage in found.stages] == files


@pytest.mark.parametrize("word", ["05_smem_tiled", "smem_tiled", "5", "05"])
def test_choosing_stages(word):
    assert [stage.number for stage in sources_module.find(ROOT, (word,)).stages] == [5]


def test_choosing_a_stage_that_is_no_rung():
    (found,) = sources_module.find(ROOT, ("gemv",)).stages
    assert (found.name, found.number) == ("gemv", 0)
    with pytest.raises(BuildError, match="XGEMM_STAGES names '0'"):
        sources_module.find(ROOT, ("0",))


def test_choosing_a_stage_that_there_is_not():
    with pytest.raises(BuildError, match="XGEMM_STAGES names 'nope'; there are: naive, "):
        sources_module.find(ROOT, ("nope",))


# --- a small tree of its own ----------------------------------------------------------------------

STAGE = """// The idea of {name}.
{directive}#include "xgemm/core/common.h"
namespace xgemm::XGEMM_FLAVOUR::{name} {{
#ifdef __CUDACC__
__global__ void kernel(float* p) {{ p[threadIdx.x] = kOne; }}
#endif
float one() {{ return kOne; }}
}}
"""


class Tree:
    """A repository of two stages, one of them for Hopper alone, and one plain source."""

    def __init__(self, root, cuda):
        self.root = root
        self.cuda = cuda
        self.write("csrc/xgemm/core/common.h", "#pragma once\ninline constexpr float kOne = 1.f;\n")
        self.write("csrc/xgemm/stages/ladder/01_any.cu", STAGE.format(name="any", directive=""))
        hopper = STAGE.format(name="hopper", directive="// arch: sm_90a\n")
        self.write("csrc/xgemm/stages/ladder/02_hopper.cu", hopper)
        self.write(
            "csrc/xgemm/core/plain.cpp",
            '#include "xgemm/core/common.h"\nfloat two() { return 2; }\n',
        )
        self.plan = self.make()
        library.compile_objects(self.plan)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def make(self, **asked):
        plan = library.make_plan(Settings("1" if self.cuda else "0", **asked), self.root)
        library.write(plan)
        return plan

    def pending(self):
        """The objects that ninja would make now."""
        said = ninja_file.run(self.root, self.plan.ninja_file, dry=True)
        words = [line.split() for line in said.splitlines() if " -o " in line]
        return sorted(line[line.index("-o") + 1].partition("obj/")[2] for line in words)

    def touch(self, name):
        os.utime(self.root / name)


CUDA = pytest.param("cuda", marks=pytest.mark.skipif(NVCC is None, reason="there is no nvcc"))
cuda_only = pytest.mark.parametrize("tree", [CUDA], indirect=True)


@pytest.fixture(scope="module", params=["host", CUDA])
def tree(request, tmp_path_factory):
    return Tree(tmp_path_factory.mktemp("tree with a space"), request.param == "cuda")


def settle(tree):
    library.compile_objects(tree.plan)
    assert tree.pending() == []


def test_nothing_to_do_when_nothing_changed(tree):
    settle(tree)
    library.write(tree.make())
    assert tree.pending() == []
    assert all((tree.root / path).exists() for path in tree.plan.objects)


def test_an_edit_of_one_stage_rebuilds_that_stage(tree):
    settle(tree)
    tree.touch("csrc/xgemm/stages/ladder/02_hopper.cu")
    flavours = ["cuda", "host"] if tree.cuda else ["host"]
    assert tree.pending() == [f"{flavour}/02_hopper.o" for flavour in flavours]


def test_an_edit_of_a_header_rebuilds_what_includes_it(tree):
    settle(tree)
    tree.touch("csrc/xgemm/core/common.h")
    flavours = ["cuda", "host"] if tree.cuda else ["host"]
    stages = [f"{flavour}/{n}.o" for flavour in flavours for n in ("01_any", "02_hopper")]
    assert tree.pending() == sorted([*stages, "cpp/plain.o"])


@cuda_only
def test_the_flags_are_part_of_what_is_built(tree):
    settle(tree)
    before = tree.plan
    tree.plan = tree.make(archs="9.0a")
    # The stage for Hopper is compiled as before.
    assert tree.pending() == ["cuda/01_any.o"]
    tree.plan = before
    library.write(before)


@cuda_only
def test_line_numbers_are_built_where_they_are_asked_for(tree):
    settle(tree)
    before = tree.plan
    assert "-lineinfo" not in (tree.root / before.ninja_file).read_text()
    tree.plan = tree.make(line_info=True)
    assert tree.pending() == ["cuda/01_any.o", "cuda/02_hopper.o"]
    assert (tree.root / tree.plan.ninja_file).read_text().count(" -lineinfo ") == 2
    tree.plan = before
    library.write(before)


@cuda_only
def test_a_stage_is_compiled_for_its_own_architectures(tree):
    settle(tree)
    logs = {
        stem: (tree.root / tree.plan.build_dir / "obj/cuda" / f"{stem}.ptxas.txt").read_text()
        for stem in ("01_any", "02_hopper")
    }
    assert "for 'sm_80'" in logs["01_any"] and "for 'sm_90a'" in logs["01_any"]
    assert "for 'sm_80'" not in logs["02_hopper"] and "for 'sm_90a'" in logs["02_hopper"]


def test_a_stage_that_no_gpu_of_the_build_can_run_is_host_only(tree):
    plan = library.make_plan(Settings("auto" if tree.cuda else "0", archs="8.0"), tree.root)
    hopper = next(stage for stage in plan.sources.stages if stage.name == "hopper")
    assert plan.cuda_archs(hopper) == ()
    said = summary_module.text(plan, None, "2.13.0", 1.0)
    assert ("not for these GPUs, so host alone: hopper" in said) == tree.cuda


def test_objects_name_no_directory_of_this_machine(tree):
    settle(tree)
    for path in tree.plan.objects:
        assert str(tree.root).encode() not in (tree.root / path).read_bytes(), path


def test_a_compile_error_is_shown_and_ends_the_build(tree, capfd):
    settle(tree)
    path = tree.root / "csrc/xgemm/stages/ladder/01_any.cu"
    text = path.read_text()
    try:
        path.write_text(text + "\nthis is no C++;\n")
        with pytest.raises(BuildError, match="compiling csrc/xgemm failed"):
            library.compile_objects(tree.plan)
        said = capfd.readouterr()
        assert "01_any.cu" in said.out + said.err and "error" in said.out + said.err
    finally:
        path.write_text(text)


def test_facts_for_the_binding(tree):
    text = (tree.root / tree.plan.include_dir / "xgemm_build_info.h").read_text()
    assert f'#define XGEMM_BUILD_COMPILER "{compiler.find().name}"' in text
    if tree.cuda:
        assert f'#define XGEMM_BUILD_CUDA_VERSION "{NVCC.version}"' in text
        assert '#define XGEMM_BUILD_ARCHS "8.0 9.0a 9.0+PTX"' in text
    else:
        assert '#define XGEMM_BUILD_CUDA_VERSION ""' in text
        assert '#define XGEMM_BUILD_ARCHS ""' in text


def test_summary(tree):
    said = summary_module.text(tree.plan, None, "2.13.0+cpu", 61.2)
    assert len(said.splitlines()) < 24 and max(map(len, said.splitlines())) <= 100
    assert "any, hopper" in said and "61 s" in said and compiler.find().name in said
    if tree.cuda:
        # A long path may be broken over two lines.
        assert str(NVCC.nvcc) in "".join(said.split()) and "sm_80 sm_90a compute_90" in said
    else:
        assert "no kernels: XGEMM_CUDA=0" in said and "emulator alone" in said


def test_wrong_file_names_and_directives_are_named(tmp_path):
    stages = tmp_path / "csrc/xgemm/stages"
    for wrong in ("naive.cu", "ladder/naive.cu", "shapes/01_naive.cu", "others/naive.cu"):
        (stages / wrong).parent.mkdir(parents=True, exist_ok=True)
        (stages / wrong).write_text("")
        with pytest.raises(BuildError, match=r"a stage's file is ladder/NN_name.cu or shapes/name"):
            sources_module.find(tmp_path)
        (stages / wrong).unlink()
    (stages / "ladder/01_naive.cu").write_text("// An idea.\n// arch: sm_80\n// arch: sm_90a\n")
    with pytest.raises(BuildError, match="more than one '// arch:' line"):
        sources_module.find(tmp_path)


# --- environment and wheel ------------------------------------------------------------------------


def test_torch_can_be_chosen():
    assert environment.default_torch({"TORCH": "torch==2.10.0"}) == "torch==2.10.0"
    assert environment.default_torch({}) in (environment.CPU_TORCH, environment.GPU_TORCH)


@pytest.mark.parametrize("extra", ["test", "lint", "cli", "wheel", "docs"])
def test_extras_are_read(extra):
    assert environment.extra_packages(Path(sys.executable), extra)


def project() -> dict:
    """pyproject.toml, read by pip's own parser where Python has none."""
    try:
        import tomllib
    except ImportError:
        from pip._vendor import tomli as tomllib
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_licence_is_an_expression_that_setuptools_reads(tmp_path):
    """PEP 639: setuptools reads one from version 77 on, and then wants no classifier beside it."""
    known = project()
    assert known["project"]["license"] == "MIT"
    assert all((ROOT / name).exists() for name in known["project"]["license-files"])
    assert not any("License" in name for name in known["project"]["classifiers"])
    least = [int(w[12:]) for w in known["build-system"]["requires"] if w.startswith("setuptools>=")]
    assert least == [77] and f"setuptools>={least[0]}" in environment._BUILD_NEEDS
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    shutil.copytree(ROOT / "xgemm_torch", tmp_path / "xgemm_torch",
                    ignore=shutil.ignore_patterns("*.so", "__pycache__"))  # fmt: skip
    code = "import setuptools; setuptools.setup()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "--quiet", "egg_info"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    facts = (tmp_path / "xgemm_torch.egg-info" / "PKG-INFO").read_text(encoding="utf-8")
    assert "License-Expression: MIT\n" in facts and "License-File: LICENSE\n" in facts
    entry = (tmp_path / "xgemm_torch.egg-info" / "entry_points.txt").read_text(encoding="utf-8")
    assert "xgemm = xgemm_torch.__main__:main" in entry


def test_the_console_script_is_there_to_call():
    module, _, function = project()["project"]["scripts"]["xgemm"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_a_citation_names_this_version():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    known = project()["project"]
    assert "cff-version: 1.2.0" in lines
    assert f"version: {known['version']}" in lines and f"license: {known['license']}" in lines
    assert f'  - name: "{known["authors"][0]["name"]}"' in lines
    assert known["version"] == xgemm_torch.__version__


def test_an_sdist_holds_what_its_tests_read():
    """Besides what setuptools takes by itself: MANIFEST.in names it."""
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    included = {word for line in lines if line.startswith("include ") for word in line.split()[1:]}
    grafted = {line.split()[1] for line in lines if line.startswith("graft ")}
    pages = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff"}
    assert pages <= included
    assert all((ROOT / name).is_file() for name in included)
    assert {"csrc", "build_tools", "tests", "benchmarks", "docs"} <= grafted
    assert all((ROOT / name).is_dir() for name in grafted)


@pytest.mark.slow
def test_wheel(tmp_path):
    pytest.importorskip("setuptools", minversion="70.1")
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-cp310-abi3-linux_" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"xgemm_torch/_C.abi3.so", "xgemm_torch/py.typed", "xgemm_torch/__init__.py"} <= names
    assert any(name.endswith("LICENSE") for name in names)
    with zipfile.ZipFile(wheel) as file:
        of = {name.rpartition("/")[2]: name for name in names if ".dist-info/" in name}
        assert "xgemm = xgemm_torch.__main__:main" in file.read(of["entry_points.txt"]).decode()
        assert "License-Expression: MIT" in file.read(of["METADATA"]).decode()
    assert not any(name.startswith(("tests/", "build_tools/", "csrc/")) for name in names)
    # What `xgemm exercise` compiles with, and no stage's source.
    exercises = {path.name for path in ROOT.glob("xgemm_torch/course/exercises/*.cu")}
    assert {f"xgemm_torch/course/exercises/{name}" for name in exercises} <= names
    headers = {"emulator/simt_control.h", "emulator/watch.cpp", "xgemm/device/ptx/wgmma.h"}
    assert {f"xgemm_torch/csrc/{name}" for name in headers} <= names
    assert not any("/stages/" in name for name in names)


def test_missing_python_headers_are_named(tmp_path):
    settings.require_python_headers()
    with pytest.raises(BuildError, match=f"there is no {tmp_path}/Python.h; .* python3-dev"):
        settings.require_python_headers(str(tmp_path))
