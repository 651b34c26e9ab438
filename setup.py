"""Builds xgemm_torch._C: the kernels of csrc/xgemm and their binding to torch in one library.

``python setup.py build_ext --inplace`` builds it into the tree, and compiles only what changed;
``pip install . --no-build-isolation`` installs it. These environment variables steer the build:

=====================  =========================================================================
XGEMM_CUDA             ``auto``: CUDA kernels where nvcc is found, whether or not there is a GPU
                       and whatever build of torch; ``1``: an error without nvcc; ``0``: none
XGEMM_STAGES           a comma list of stages to build, by number or name; all by default
TORCH_CUDA_ARCH_LIST   GPUs to compile for; ``8.0 9.0a 9.0+PTX`` by default
XGEMM_LINE_INFO        ``1``: kernels with line numbers, by which Nsight Compute shows a source
                       and compute-sanitizer names a line; the library grows by half
XGEMM_CUDART           CUDA's libcudart_static.a, by default the toolkit's own
XGEMM_GLIBC            the oldest glibc that the library must load with, as in ``2.28``; by
                       default this machine's. ``make wheel`` sets it
CUDA_HOME, CUDA_PATH   the CUDA toolkit; by default that of the nvcc on the PATH, else
                       /usr/local/cuda*, else NVIDIA's wheels in this Python
CXX                    g++ 11 or newer; one that compiles for another processor makes a library
                       for that one, without torch's of it being here
MAX_JOBS               compilers at once; by default one a core, as far as memory goes
=====================  =========================================================================

The kernels know nothing of torch: build_tools compiles them by a ninja file of their own, and torch
adds its part, csrc/torch, against LibTorch's stable ABI and Python's limited API. The result is one
library for every torch from 2.10 on and every Python from 3.10 on.
"""

import os
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from setuptools import setup
from setuptools.command.build_py import build_py
from torch.utils.cpp_extension import BuildExtension, CppExtension

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_tools import library, settings, summary  # noqa: E402

# Free-threaded Pythons have no limited API.
ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")


def unplaced():
    """Compiler flags that keep this machine's directories out of the module and its messages."""
    places = {sys.base_prefix: "python/", sys.prefix: "python/"}
    places |= {str(Path(torch.__file__).parent): "torch/", str(plan.root): ""}
    return [f"-ffile-prefix-map={place}/={name}" for place, name in places.items()]


@contextmanager
def quiet():
    """Holds back what is printed, since torch's builder prints every flag; shows it on failure."""
    sys.stdout.flush()
    terminal = os.dup(1)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 1)
        try:
            yield
        except BaseException:
            sys.stdout.flush()
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            sys.stdout.flush()
            os.dup2(terminal, 1)
            os.close(terminal)


def relative(paths):
    """Paths as setuptools wants them: relative to this file, with slashes."""
    return [path.as_posix() for path in paths]


class Python(build_py):
    """Copies the package, and what exercises are compiled with: the emulator and its headers."""

    def sources(self):
        """Files of csrc, but for stages, the binding and what nvcc alone takes."""
        for path in sorted(root.glob("csrc/**/*")):
            room = path.relative_to(root / "csrc").parts[:2]
            if path.suffix in (".h", ".cpp", ".inc") and not {"torch", "stages"} & {*room}:
                yield path

    def run(self):
        """Copies; a build into the tree finds csrc where it is."""
        super().run()
        if self.editable_mode:
            return
        for path in self.sources():
            to = Path(self.build_lib, "xgemm_torch", path.relative_to(root))
            self.mkpath(str(to.parent))
            self.copy_file(str(path), str(to))


class Build(BuildExtension):
    """Compiles csrc/xgemm, then lets torch's builder compile and link the rest."""

    def run(self):
        """Builds, and ends with the summary."""
        start = time.monotonic()
        with library.lock(plan):
            library.write(plan)
            library.compile_objects(plan)
            super().run()
        built = Path(self.get_ext_fullpath(self.extensions[0].name))
        where = built.relative_to(plan.root) if built.is_relative_to(plan.root) else built
        seconds = time.monotonic() - start
        print(summary.text(plan, where if built.exists() else None, torch.__version__, seconds))

    def build_extensions(self):
        """Links without the run path that some Pythons were built with: it is this machine's."""
        for linker in ("linker_so", "linker_so_cxx"):
            words = getattr(self.compiler, linker, None) or []
            words[:] = [word for word in words if not word.startswith("-Wl,-rpath")]
            if words and plan.compiler.crosses:
                words[0] = plan.compiler.path
        print("compiling csrc/torch and linking", flush=True)
        with quiet():
            super().build_extensions()

    def get_source_files(self):
        """Files for an sdist: the binding's; MANIFEST.in has the others."""
        return list(self.extensions[0].sources)


try:
    settings.require_python_headers()
    plan = library.make_plan(settings.read())
    with library.lock(plan):
        library.write(plan)
except settings.BuildError as error:
    sys.exit(f"xgemm_torch: {error}")

root = plan.root
extension = CppExtension(
    "xgemm_torch._C",
    sources=relative(path.relative_to(root) for path in sorted(root.glob("csrc/torch/*.cpp"))),
    depends=relative([*plan.objects, *(path.relative_to(root) for path in plan.stubs)]),
    include_dirs=[str(root / "csrc"), str(root / plan.include_dir)],
    extra_objects=relative(plan.objects),
    extra_compile_args=[
        "-std=c++20",
        "-O2",
        "-fvisibility=hidden",
        "-g1",
        *unplaced(),
        "-DTORCH_TARGET_VERSION=0x020a000000000000",
        f"-DXGEMM_WITH_CUDA={int(plan.toolkit is not None)}",
    ],
    extra_link_args=library.link_flags(plan),
    py_limited_api=ABI3,
)

options = {"bdist_wheel": {"py_limited_api": "cp310"}} if ABI3 else {}
if plan.compiler.crosses:
    machine = plan.compiler.machine
    options.setdefault("bdist_wheel", {})["plat_name"] = f"linux_{machine}"
    options["build"] = {"build_base": f"build/{machine}"}  # beside what is built for this one

setup(
    ext_modules=[extension],
    cmdclass={"build_ext": Build.with_options(use_ninja=True), "build_py": Python},
    options=options,
)
