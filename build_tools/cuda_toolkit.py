"""Finding a CUDA toolkit: nvcc, the headers beside it and the static runtime.

The places, in order: ``$CUDA_HOME``, ``$CUDA_PATH``, ``nvcc`` on the PATH, ``/usr/local/cuda*``,
and NVIDIA's PyPI wheels in the site-packages of the running Python (``nvidia/cu13/bin/nvcc``). An
nvcc is asked itself where its toolkit is, since on the PATH it may be a link or a script that calls
the real one elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .settings import BuildError

_OLDEST = (12, 0)  # the first nvcc with C++20 and sm_90a

# One release of the compiler as wheels: the driver, its middle end, its headers, the runtime, and
# CUDA's C++ headers, which those of the half-precision types include.
WHEELS = tuple(
    f"nvidia-{part}==13.0.*"
    for part in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-runtime", "cuda-cccl")
)
# The disassembler came to PyPI later; it reads what older compilers wrote. For tests only.
DISASSEMBLER_WHEELS = ("nvidia-cuda-cuobjdump==13.2.*", "nvidia-cuda-nvdisasm==13.2.*")


@dataclass(frozen=True)
class Toolkit:
    """A usable CUDA toolkit.

    Attributes:
        nvcc: Path of the compiler.
        root: Directory above ``bin``.
        version: ``"13.0"``.
        static_runtime: Path of ``libcudart_static.a``.
        found: Where the search met it, in words.
    """

    nvcc: Path
    root: Path
    version: str
    static_runtime: Path
    found: str


@dataclass(frozen=True)
class Search:
    """What a search came to: a toolkit, or the reasons why there is none."""

    toolkit: Toolkit | None
    rejected: tuple[str, ...]

    @property
    def why_not(self) -> str:
        """One sentence, for the case that no toolkit was found."""
        if not self.rejected:
            return "no nvcc in $CUDA_HOME, the PATH, /usr/local/cuda* or Python's packages"
        return "no usable nvcc: " + "; ".join(self.rejected)


def find(
    environ: Mapping[str, str] = os.environ,
    system: Path = Path("/usr/local"),
    site: Path | None = None,
    machine: str = os.uname().machine,
    runtime: str = "",
) -> Search:
    """Looks for a toolkit in the places above; `system` and `site` stand in for two of them.

    Its static runtime is that of `machine`, or the file `runtime`.
    """
    rejected: list[str] = []
    for nvcc, found in _candidates(environ, system, site):
        toolkit = _inspect(nvcc, found, environ, machine, runtime)
        if isinstance(toolkit, Toolkit):
            return Search(toolkit, tuple(rejected))
        rejected.append(toolkit)
    return Search(None, tuple(rejected))


def _candidates(
    environ: Mapping[str, str], system: Path, site: Path | None
) -> Iterator[tuple[Path, str]]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(variable):
            yield Path(environ[variable], "bin", "nvcc"), f"${variable}"
    on_path = shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path), "the PATH"
    for root in sorted(system.glob("cuda*"), key=_by_version, reverse=True):
        if (root / "bin" / "nvcc").exists():
            yield root / "bin" / "nvcc", str(root)
    packages = site or Path(sysconfig.get_paths()["purelib"])
    for root in sorted(packages.glob("nvidia/cu*"), key=_by_version, reverse=True):
        if (root / "bin" / "nvcc").exists():
            yield root / "bin" / "nvcc", "Python's packages"


def _by_version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _inspect(
    nvcc: Path, found: str, environ: Mapping[str, str], machine: str, given: str
) -> Toolkit | str:
    """The toolkit of an nvcc, or why it cannot be used."""
    if not nvcc.exists():
        return f"{nvcc} (from {found}) does not exist"
    nvcc = nvcc.resolve()
    env = {**environ, "LC_ALL": "C"}
    try:
        dryrun = _output([nvcc, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull], env)
        version = re.search(r"release (\d+)\.(\d+)", _output([nvcc, "--version"], env))
    except OSError as error:
        return f"{nvcc} does not run ({error.strerror})"
    top = re.search(r"^#\$ TOP=(.+)$", dryrun, re.MULTILINE)
    if not version or not top:
        return f"{nvcc} does not run"
    if (int(version[1]), int(version[2])) < _OLDEST:
        return f"{nvcc} is of CUDA {version[1]}.{version[2]}, {_OLDEST[0]}.{_OLDEST[1]} is needed"
    root = Path(top[1].strip()).resolve()
    if (root / "bin" / "nvcc").exists():
        nvcc = root / "bin" / "nvcc"
    places = [Path(given)] if given else _libraries(root, machine)
    runtime = next((path for path in places if path.exists()), None)
    if runtime is None:
        return f"{given or root} holds no libcudart_static.a" + _of_another(machine)
    return Toolkit(nvcc, root, f"{version[1]}.{version[2]}", runtime, found)


def _libraries(root: Path, machine: str) -> Iterator[Path]:
    system = f"/usr/lib/{machine}-linux-gnu"  # where Debian's own package puts it
    targets = f"targets/{'sbsa' if machine == 'aarch64' else machine}-linux/lib"
    own = (root / "lib64", root / "lib") if machine == os.uname().machine else ()
    for place in (*own, root / targets, Path(system)):
        yield place / "libcudart_static.a"


def _of_another(machine: str) -> str:
    """What to do about the runtime of a processor that is not this one's, in words."""
    own = machine == os.uname().machine
    return "" if own else f" for {machine}; XGEMM_CUDART can name one, as `make wheel` does"


def fetch_runtime(version: str, machine: str, folder: Path) -> Path:
    """Fetches another processor's static runtime from NVIDIA's wheel on PyPI.

    Args:
        version: of the toolkit, ``"13.0"``.
        machine: the processor, ``"aarch64"``.
        folder: where to.

    Raises:
        BuildError: pip finds no such wheel, or it has no static runtime.
    """
    of_it = ["--no-deps", "--only-binary=:all:", "--platform", f"manylinux2014_{machine}"]
    if said := _pip("download", "--dest", str(folder), *of_it, f"nvidia-cuda-runtime=={version}.*"):
        raise BuildError(f"no CUDA runtime {version} for {machine} from PyPI: {said}")
    (wheel,) = folder.glob("nvidia_cuda_runtime-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if name.endswith("/libcudart_static.a"):
                return Path(packed.extract(name, folder))
    raise BuildError(f"{wheel.name} holds no libcudart_static.a")


def _output(command: list[str | Path], env: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(env)
    )
    return done.stdout


def find_disassembler(root: Path | None = None) -> Path | None:
    """Finds ``cuobjdump``: on the PATH, in the toolkit at `root`, or among Python's packages."""
    places = [Path(found)] if (found := shutil.which("cuobjdump")) else []
    if root:
        places.append(root / "bin" / "cuobjdump")
    for packages in {sysconfig.get_paths()[key] for key in ("purelib", "platlib")}:
        places += sorted(Path(packages).glob("nvidia/cu*/bin/cuobjdump"), reverse=True)
        places.append(Path(packages, "triton/backends/nvidia/bin/cuobjdump"))
    return next((path for path in places if _disassembles(path)), None)


def _disassembles(cuobjdump: Path) -> bool:
    """Whether both halves are there: cuobjdump calls the nvdisasm beside it, or on the PATH."""
    beside = cuobjdump.with_name("nvdisasm")
    return cuobjdump.exists() and (beside.exists() or shutil.which("nvdisasm") is not None)


def install() -> Search:
    """Makes sure of a toolkit as far as that can be: looks, and else tries PyPI's wheels.

    Prints what it does; a machine that cannot have the wheels is no error, the kernels then run in
    the emulator alone.
    """
    search = find()
    if search.toolkit:
        print(f"nvcc: {search.toolkit.nvcc} (CUDA {search.toolkit.version})")
    else:
        print(f"nvcc: {search.why_not}; installing NVIDIA's wheels (about 80 MB)", flush=True)
        if _pip_install(WHEELS):
            search = find()
        if search.toolkit:
            print(f"nvcc: {search.toolkit.nvcc} (CUDA {search.toolkit.version})")
        else:
            print("nvcc: not to be had; building the emulator alone, without CUDA kernels")
    if search.toolkit and find_disassembler(search.toolkit.root) is None:
        _pip_install(DISASSEMBLER_WHEELS)
    return search


def _pip_install(packages: tuple[str, ...]) -> bool:
    if said := _pip("install", *packages):
        print(f"pip: {said}")
    return not said


def _pip(command: str, *words: str) -> str:
    """What pip says last where it fails, else an empty string."""
    pip = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *words], capture_output=True, text=True)
    return (done.stderr.strip().splitlines() or ["failed"])[-1] if done.returncode else ""
