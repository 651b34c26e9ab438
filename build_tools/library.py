"""The ninja file of csrc/xgemm: torch-free objects, each stage in two flavours.

===========================  =============================================================
csrc/xgemm/stages/NN_x.cu    g++ with the host SIMT flavour; nvcc, where there is one
csrc/xgemm/attention/*.cu    the same
csrc/emulator/*.cu           g++ with the host SIMT flavour
csrc/xgemm/*/*.cpp           g++
csrc/emulator/*.cpp          g++
csrc/xgemm/device/*.cu       nvcc, where there is one
===========================  =============================================================

Kernels of the emulator are compiled with ``-fsanitize=thread`` and never linked with it: the
library brings its own answers to the calls that the option puts at each load and store, and finds
races and stray accesses by them (csrc/emulator/watch.cpp).
"""

from __future__ import annotations

import fcntl
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import archs as archs_module
from . import compiler as compiler_module
from . import cuda_toolkit, glibc, native, ninja_file, ptxas, sources
from .archs import Arch
from .compiler import Compiler
from .cuda_toolkit import Toolkit
from .settings import ROOT, BuildError, Settings
from .sources import Sources

BUILD_DIR = Path("build", "xgemm")

# Torch's libraries that the module needs.
TORCH = ("libtorch.so", "libtorch_cpu.so", "libc10.so")

# Its initializer finds all stages registered: those of the objects before it have run.
LAST = "loaded"

WARNINGS = "-Wall -Wextra -Wno-unknown-pragmas -Wno-missing-field-initializers"
CPP = f"-std=c++20 -O2 -fPIC -fvisibility=hidden -Icsrc {WARNINGS}"
# Every kernel is a chain of fmaf calls: nothing may be contracted beyond them, and hardware FMA
# makes them fast. float4 accesses to float arrays are what CUDA sources do.
HOST_KERNEL = "-x c++ -g1 -ffp-contract=off -fno-strict-aliasing -DXGEMM_FLAVOUR=host"
# The emulator's short functions are called at each access of a kernel, and look up the running
# block, a thread's own variable, by a function of the loader's: without a jump through the PLT.
EMULATOR = "-O3 -fno-plt"
WATCHED = "-fsanitize=thread --param tsan-instrument-func-entry-exit=0"
CUDA_KERNEL = (
    "-std=c++20 --expt-relaxed-constexpr -O3 -Xptxas=-v,-warn-spills "
    "-DXGEMM_FLAVOUR=cuda -Xcompiler -fPIC,-fvisibility=hidden -Icsrc"
)
# Device code is 8 MB in place of 68 so (sm_90a). Drivers can undo it from 12.4 on; those that a
# toolkit from 13.0 on works with all can.
COMPRESS = " --compress-mode=size"
# Most of a compressed kernel would be its line table, which changes no instruction and which nobody
# but a profiler or compute-sanitizer reads.
LINE_INFO = " -lineinfo"


@dataclass(frozen=True)
class Plan:
    """What a build is going to do.

    Attributes:
        root: The repository; all paths are relative to it.
        build_dir: Where everything goes.
        settings: What was asked for.
        compiler: g++.
        toolkit: nvcc and company, or None in a build without CUDA.
        why_no_cuda: The reason for None, in words.
        archs: Targets of the stages that have no directive.
        sources: What there is.
        objects: The objects of the library, in link order; written by `write`.
        stubs: What an older glibc is linked for with; written by `write`.
    """

    root: Path
    build_dir: Path
    settings: Settings
    compiler: Compiler
    toolkit: Toolkit | None
    why_no_cuda: str
    archs: tuple[Arch, ...]
    sources: Sources
    objects: list[Path] = field(default_factory=list)
    stubs: list[Path] = field(default_factory=list)

    @property
    def torch_stubs(self) -> Path | None:
        """Where stand-ins of torch's libraries lie for another processor; None at home."""
        return self.root / self.build_dir / "torch" if self.compiler.crosses else None

    @property
    def ninja_file(self) -> Path:
        """The build.ninja, relative to the root."""
        return self.build_dir / "build.ninja"

    @property
    def include_dir(self) -> Path:
        """Where xgemm_build_info.h lies, relative to the root."""
        return self.build_dir / "include"

    def cuda_archs(self, stage: sources.Kernels) -> tuple[Arch, ...]:
        """The targets of a stage's CUDA flavour; none in a build without CUDA."""
        return archs_module.for_stage(stage.archs, self.archs) if self.toolkit else ()

    def machine_flags(self) -> str:
        """Flags for the processor: FMA has to be asked for on x86-64, others always have it."""
        return "-mfma" if self.compiler.machine in ("x86_64", "AMD64") else ""


def make_plan(settings: Settings, root: Path = ROOT, build_dir: Path = BUILD_DIR) -> Plan:
    """Looks around and decides. What is for another processor lies beside `build_dir`.

    Raises:
        BuildError: There is no g++; CUDA was asked for and there is no nvcc; a setting is wrong.
    """
    targets = archs_module.parse(settings.archs)
    compiler = compiler_module.find()
    if compiler.crosses:
        build_dir = build_dir.with_name(f"{build_dir.name}-{compiler.machine}")
    toolkit, why = None, "XGEMM_CUDA=0"
    if settings.cuda != "0":
        search = cuda_toolkit.find(machine=compiler.machine, runtime=settings.runtime)
        toolkit, why = search.toolkit, search.why_not
        if settings.cuda == "1" and toolkit is None:
            raise BuildError(f"XGEMM_CUDA=1, but there is {why}")
    return Plan(
        root=root,
        build_dir=build_dir,
        settings=settings,
        compiler=compiler,
        toolkit=toolkit,
        why_no_cuda="" if toolkit else why,
        archs=targets if toolkit else (),
        sources=sources.find(root, settings.stages),
    )


def write(plan: Plan) -> None:
    """Writes the ninja file and the header with the build's facts; fills `plan.objects`."""
    file = ninja_file.NinjaFile(plan.build_dir)
    cxx = shlex.quote(plan.compiler.path)
    # An object without its list of headers, as two builds of one tree may leave it, would stay as
    # it is whatever changes.
    compiles = f"{cxx} $flags -MD -MF $out.d -c $in -o $out && test -s $out.d"
    file.rule("cxx", compiles, "$label $in", depfile=True)
    obj = plan.build_dir / "obj"
    cpp = f"{CPP} {plan.machine_flags()}"
    kernel = f"{HOST_KERNEL} {WATCHED}"

    # What nvcc takes minutes for comes first, so that no core waits in the end.
    by_nvcc = _write_cuda(plan, file, obj / "cuda") if plan.toolkit else []
    made: dict[Path, Path] = {}
    for source in (*plan.sources.kernels, *plan.sources.probes):
        made[source] = obj / "host" / f"{source.stem}.o"
        file.build("cxx", made[source], [source], flags=f"{kernel} {cpp}", label="host")
    for source in plan.sources.cpp:
        made[source] = obj / "cpp" / f"{source.stem}.o"
        flags = f"{cpp} {EMULATOR}" if "emulator" in source.parts else cpp
        file.build("cxx", made[source], [source], flags=flags, label="c++ ")

    plan.objects[:] = sorted([*made.values(), *by_nvcc], key=lambda out: out.stem == LAST)

    file.phony("library", plan.objects)
    native.write(plan, file, cpp, HOST_KERNEL, made)
    file.default(["library"])
    file.write(plan.root / plan.ninja_file)
    ninja_file.write_if_changed(plan.root / plan.include_dir / "xgemm_build_info.h", facts(plan))
    if oldest := plan.settings.glibc:
        folder = plan.root / plan.build_dir / f"glibc-{oldest}"
        plan.stubs[:] = glibc.write(folder, oldest, plan.compiler)
    if plan.torch_stubs:
        glibc.stand_in(plan.torch_stubs, TORCH, plan.compiler)


def nvcc_rule(nvcc: str) -> str:
    """The command of ninja's rule: compiles, keeps what ptxas says, shows its warnings.

    Some of what it may say is an error.
    """
    return (
        f"{nvcc} $flags -MD -MF $out.d -c $in -o $out > $log 2>&1 || {{ cat $log; exit 1; }}; "
        "test -s $out.d || exit 1; "
        f"if grep -E {shlex.quote(ptxas.REFUSED)} $log; then rm -f $out; exit 1; fi; "
        'grep -i "warning" $log || true'
    )


def _write_cuda(plan: Plan, file: ninja_file.NinjaFile, obj: Path) -> list[Path]:
    assert plan.toolkit
    nvcc = f"{shlex.quote(str(plan.toolkit.nvcc))} -ccbin {shlex.quote(plan.compiler.path)}"
    file.rule("nvcc", nvcc_rule(nvcc), "cuda $in", depfile=True)
    compress = COMPRESS if float(plan.toolkit.version) >= 13 else ""
    line_info = LINE_INFO if plan.settings.line_info else ""
    # The toolkit's headers are the same for every processor; nvcc looks for those of its own name.
    headers = f" -I{plan.toolkit.root / 'include'}" if plan.compiler.crosses else ""
    units = [
        (each.path, plan.cuda_archs(each)) for each in (*plan.sources.stages, *plan.sources.fused)
    ]
    units += [(source, plan.archs) for source in plan.sources.cuda]
    made = []
    for source, targets in units:
        if not targets:
            continue
        out, log = obj / f"{source.stem}.o", obj / f"{source.stem}.ptxas.txt"
        gencode = " ".join(arch.gencode for arch in targets)
        flags = f"{CUDA_KERNEL}{line_info}{compress} {gencode}{headers}"
        file.build("nvcc", out, [source], also_makes=[log], flags=flags, log=str(log))
        made.append(out)
    return made


def facts(plan: Plan) -> str:
    """The text of xgemm_build_info.h."""
    values = {
        "CUDA_VERSION": plan.toolkit.version if plan.toolkit else "",
        "ARCHS": " ".join(map(str, plan.archs)),
        "COMPILER": plan.compiler.name,
    }
    lines = [f'#define XGEMM_BUILD_{name} "{value}"' for name, value in values.items()]
    return "// Written by the build.\n#pragma once\n\n" + "\n".join(lines) + "\n"


def compile_objects(plan: Plan) -> float:
    """Compiles what is out of date; returns the seconds it took."""
    start = time.monotonic()
    ninja_file.run(plan.root, plan.ninja_file, jobs=plan.settings.jobs)
    return time.monotonic() - start


def link_flags(plan: Plan) -> list[str]:
    """The linker's arguments beyond torch's own.

    libtorch is needed for its own sake: in a CUDA build of torch it is what brings in
    libtorch_cuda, where the weak symbols of csrc/torch are; a linker that drops what seems unused
    would drop it. The CUDA runtime is linked in, and like all else hidden, so that a library with
    kernels loads where there is no CUDA, and beside another CUDA runtime. Lines of the emulator's
    kernels, of which its reports speak, are kept small.
    """
    needed = ["-ltorch"]
    if plan.torch_stubs:  # which have no symbols for which they would be needed
        needed = [f"-L{plan.torch_stubs}", *(f"-l{name[3:-3]}" for name in TORCH)]
    flags = ["-Wl,--no-as-needed", *needed, "-Wl,--as-needed"]
    if plan.torch_stubs:  # torch's own have what an older libstdc++ has not
        flags.append("-static-libstdc++")
    flags.append("-Wl,--compress-debug-sections=zlib")
    if plan.toolkit:
        flags.append(str(plan.toolkit.static_runtime))
    flags += map(str, plan.stubs)  # before the libraries in whose place they are
    flags += ["-lrt", "-lpthread"] if plan.toolkit else []
    exports = plan.root / "build_tools" / "exports.map"
    return [*flags, "-ldl", f"-Wl,--version-script={exports}"]


@contextmanager
def lock(plan: Plan) -> Iterator[None]:
    """Keeps a second build of the same tree waiting until this one is done."""
    path = plan.root / plan.build_dir / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build of this tree", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
