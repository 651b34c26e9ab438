"""A kernel of the Hugging Face Hub: the directory that the PyPI package ``kernels`` loads from.

Made of a wheel, and so of the same sources, objects and checks. ``build/<variant>`` of a repository
is a Python package: the runtime's modules as they are, ``hub/torch-ext/xgemm`` in place of the
package's own ``__init__.py``, the library, and ``metadata.json``. The library serves every torch
from 2.10 on by the stable ABI, so there is one variant for CUDA and one without, where users of a
CPU build of torch find it; the library in both is the same but for the operators' namespace.

Several versions of a kernel may be loaded in one process, so each has a namespace of its own in
``torch.ops``. It is called after a digest of all that is in the variant, and written into the copy
of the library, where the loader would have it compiled in (csrc/torch/namespace.cpp).
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import library, settings, wheel
from .settings import ROOT, BuildError

PROJECT = ROOT / "hub"
LIBRARY = "_C.abi3.so"
# A field of the library: these words, then the namespace, each with NULs up to its end.
WORDS, ROOM = b"xgemm_torch's operators are in:".ljust(40, b"\0"), 64
# Python's limited API as kernels have it, and the glibc of theirs and of torch's wheels.
PYTHON_ABI, MANYLINUX = "3.9", f"manylinux_{wheel.GLIBC.replace('.', '_')}"


@dataclass(frozen=True)
class Config:
    """What ``hub/build.toml`` says."""

    name: str
    version: int
    license: str
    repo_id: str
    torch: dict[str, str]
    """By backend, the first torch whose stable ABI is enough."""


@dataclass(frozen=True)
class Target:
    """What a library was built for.

    Attributes:
        machine: The processor, as ``uname -m`` calls it.
        cuda: The toolkit's version, as in ``"13.0"``, or an empty string without CUDA kernels.
        archs: GPUs, as TORCH_CUDA_ARCH_LIST has them.
    """

    machine: str
    cuda: str = ""
    archs: tuple[str, ...] = ()


def make(out: Path) -> list[Path]:
    """Builds a wheel, and makes its variants in ``out``, beside those of other processors.

    Raises:
        BuildError: A check of the wheel or of the library fails.
    """
    plan = library.make_plan(settings.read())
    cuda = plan.toolkit.version if plan.toolkit else ""
    target = Target(plan.compiler.machine, cuda, tuple(map(str, plan.archs)))
    with tempfile.TemporaryDirectory() as scratch:
        made = wheel.make(Path(scratch))
        with zipfile.ZipFile(made) as packed:
            packed.extractall(Path(scratch, "wheel"))
        package = Path(scratch, "wheel", "xgemm_torch")
        check_library(package / LIBRARY)
        return assemble(package, out, target)


def check_library(path: Path) -> None:
    """Asks ``kernel-abi-check`` whether the library loads where the Hub's kernels must."""
    try:
        from kernel_abi_check import ObjectFile
    except ImportError:
        raise BuildError("kernel-abi-check is not installed: pip install '.[test]'") from None
    file = ObjectFile(path)
    wrong = [*file.check_python_abi(PYTHON_ABI), *file.check_manylinux(MANYLINUX)]
    if wrong:
        raise BuildError(
            f"{path.name} needs more than {MANYLINUX} and Python {PYTHON_ABI}: {wrong}"
        )


def assemble(package: Path, out: Path, target: Target) -> list[Path]:
    """Makes the variants of a built package in ``out/build``, and the repository's own files.

    Args:
        package: The directory ``xgemm_torch``, its library in it.
        out: The repository; variants of other names stay.
        target: What the library was built for.

    Returns:
        The variants' directories.

    Raises:
        BuildError: The library has no field for the namespace, or there is no such library.
    """
    config = read_config()
    files = _sources(package)
    made = []
    for backend in ("cpu", "cuda") if target.cuda else ("cpu",):
        system = f"cu{target.cuda.replace('.', '')}" if backend == "cuda" else "cpu"
        abi = config.torch[backend].replace(".", "")
        variant = out / "build" / f"torch-stable-abi{abi}-{system}-{target.machine}-linux"
        archs = sorted(target.archs) if backend == "cuda" else []
        _write_variant(variant, dict(files), config, backend, archs)
        made.append(variant)
    _write_repository(out, config)
    return made


def _sources(package: Path) -> dict[str, bytes]:
    """The files of every variant, by their paths in it, the library's namespace the package's."""
    if not (package / LIBRARY).exists():
        raise BuildError(f"there is no {package / LIBRARY}")
    own = PROJECT / "torch-ext" / read_config().name
    modules = {path.name: path for path in package.glob("*.py")}
    for name in ("__main__.py", "__init__.py"):
        del modules[name]
    ours = {path.name: path for path in own.glob("*.py")}
    if both := sorted(modules.keys() & ours.keys()):
        raise BuildError(f"{', '.join(both)}: in {own.relative_to(ROOT)} and in the package")
    found = {**modules, **ours, LIBRARY: package / LIBRARY}
    return {name: path.read_bytes() for name, path in sorted(found.items())}


def _write_variant(
    variant: Path, files: dict[str, bytes], config: Config, backend: str, archs: Sequence[str]
) -> None:
    module = config.name.replace("-", "_")
    files[f"{module}/__init__.py"] = (PROJECT / "compatible.py").read_bytes()
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name} {len(data)} ".encode() + data)
    identifier = f"_{module}_{backend}_{digest.hexdigest()[:8]}"
    files[LIBRARY] = with_namespace(files[LIBRARY], identifier)
    metadata = {
        "name": config.name,
        "id": identifier,
        "version": config.version,
        "license": config.license,
        "python-depends": [],
        "backend": {"type": backend, **({"archs": list(archs)} if archs else {})},
        "digest": {
            "algorithm": "sha256",
            "files": {
                name: base64.b64encode(hashlib.sha256(data).digest()).decode()
                for name, data in sorted(files.items())
            },
        },
    }
    _clear(variant)
    for name, data in files.items():
        path = variant / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")


def with_namespace(data: bytes, name: str) -> bytes:
    """A library's bytes with another namespace of its operators.

    Raises:
        BuildError: The library has no field for it, or the name is no identifier of its length.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or len(name) >= ROOM:
        raise BuildError(f"{name!r} is no name for a namespace")
    if data.count(WORDS) != 1:
        raise BuildError(f"{LIBRARY} has {data.count(WORDS)} fields for its operators' namespace")
    at = data.index(WORDS) + len(WORDS)
    return data[:at] + name.encode().ljust(ROOM, b"\0") + data[at + ROOM :]


def _clear(variant: Path) -> None:
    """Removes what an earlier call has left of a variant, and nothing else."""
    if not variant.exists():
        return
    if not (variant / "metadata.json").exists():
        raise BuildError(f"{variant} is there, and is no variant of a kernel")
    known = json.loads((variant / "metadata.json").read_text())["digest"]["files"]
    for name in (*known, "metadata.json"):
        (variant / name).unlink(missing_ok=True)


def _write_repository(out: Path, config: Config) -> None:
    """The files beside the variants; kernel-builder takes the card from ``build``."""
    text = card(out, config)
    (out / "README.md").write_text(text)
    (out / "build" / "CARD.md").write_text(text)
    for path in (PROJECT / "build.toml", ROOT / "LICENSE"):
        (out / path.name).write_bytes(path.read_bytes())


def card(out: Path, config: Config) -> str:
    """The repository's README, of the variants that are in it."""
    init = PROJECT / "torch-ext" / config.name / "__init__.py"
    layers = init.with_name("layers.py")
    rows = []
    for path in sorted(out.glob("build/*/metadata.json")):
        archs = json.loads(path.read_text())["backend"].get("archs", [])
        rows.append(f"| `{path.parent.name}` | {', '.join(archs) or 'none'} |")
    values = {
        "repo_id": config.repo_id,
        "version": str(config.version),
        "license": config.license,
        "torch": min(config.torch.values()),
        "layers": ", ".join(f"`{name}`" for name in exported(layers)),
        "functions": ", ".join(f"`{name}`" for name in exported(init) if name != "layers"),
        "variants": "\n".join(rows),
    }
    text = (PROJECT / "CARD.md").read_text()
    return re.sub(r"\{\{ ?(\w+) ?\}\}", lambda found: values[found[1]], text)


def exported(path: Path) -> list[str]:
    """What a module's ``__all__`` names."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise BuildError(f"{path} has no __all__")


def read_config() -> Config:
    """Reads ``hub/build.toml``."""
    try:
        import tomllib as toml
    except ImportError:  # Python 3.10
        from pip._vendor import tomli as toml
    data = toml.loads((PROJECT / "build.toml").read_text(encoding="utf-8"))
    general = data["general"]
    return Config(
        name=general["name"],
        version=general["version"],
        license=general["license"],
        repo_id=general["hub"]["repo-id"],
        torch=data["torch"]["stable-abi"],
    )
