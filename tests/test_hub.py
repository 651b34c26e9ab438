"""The kernel of the Hugging Face Hub: made of this tree, loaded, trained and told apart."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import hub_kernel
import pytest

import xgemm_torch
from build_tools import hub, wheel
from build_tools.settings import ROOT, BuildError

PACKAGE = ROOT / "xgemm_torch"
FACTS = json.loads(xgemm_torch._C.build_info())
TARGET = hub.Target(os.uname().machine, FACTS["cuda_version"], tuple(FACTS["archs"].split()))
PYTHONS = [p for p in os.environ.get("XGEMM_TEST_PYTHONS", "").split(":") if p]


def package(folder: Path, comment: str = "") -> Path:
    """A copy of the package's modules, of another version if a comment is added."""
    folder.mkdir()
    for path in (*PACKAGE.glob("*.py"), PACKAGE / hub.LIBRARY):
        shutil.copy(path, folder)
    with (folder / "types.py").open("a") as file:
        file.write(comment)
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    out = tmp_path_factory.mktemp("hub") / "xgemm"
    hub.assemble(PACKAGE, out, TARGET)
    return out


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """Another version of it, without CUDA."""
    folder = tmp_path_factory.mktemp("newer")
    made = package(folder / "xgemm_torch", "\n# Another version.\n")
    hub.assemble(made, folder / "out", hub.Target(TARGET.machine))
    return folder / "out"


def run(check: str, *paths: Path, python: str = sys.executable) -> None:
    script = Path(hub_kernel.__file__)
    environ = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [python, str(script), check, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{check}: ok\n")


def needs_kernels() -> None:
    pytest.importorskip("kernels", reason="there is no kernels; `make env` installs it")


@pytest.mark.parametrize("check", ["loaded", "kernelized"])
def test_kernels_loads_it(repository, check):
    needs_kernels()
    run(check, repository)


def test_versions_in_one_process(repository, newer):
    run("together", repository, newer)


def test_equal_builds_in_one_process(repository, tmp_path):
    needs_kernels()
    run("equal_files", repository, tmp_path / "links")


def test_the_package_of_its_name(repository):
    run("by_name", repository)


@pytest.mark.parametrize(
    "python",
    PYTHONS
    or [pytest.param("none", marks=pytest.mark.skip(reason="XGEMM_TEST_PYTHONS is not set"))],
)
def test_other_pythons_and_torches(repository, python):
    run("plain", repository, python=python)


def test_what_kernels_reads(repository):
    needs_kernels()
    from kernels._rust import Build, Digest, DigestAlgorithm, Metadata
    from kernels.variants import get_variants_local, parse_variant

    build = Build.open(repository)
    assert {str(backend) for backend in build.general.backends} == {"cpu", "cuda"}
    variants = get_variants_local(repository / "build")
    assert len(variants) == (2 if TARGET.cuda else 1)
    for path in (repository / "build").glob("*/metadata.json"):
        data = Metadata.read_from_file(path)
        variant = parse_variant(path.parent.name)
        backend = str(data.backend.backend_type)
        assert str(data.name) == "xgemm" and data.license == "MIT" and data.version == 0
        assert data.id == f"_xgemm_{backend}_{data.id[-8:]}" and data.id.isidentifier()
        assert variant.arch.backend.name == backend and variant.arch.platform == TARGET.machine
        assert (data.backend.archs or []) == (sorted(TARGET.archs) if backend == "cuda" else [])
        assert data.python_depends == []
        data.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, path.parent))


def test_it_says_what_the_package_is():
    config = hub.read_config()
    assert config.version == int(xgemm_torch.__version__.partition(".")[0])
    assert set(config.torch.values()) == {FACTS["torch_target"]}
    assert f'"torch>={FACTS["torch_target"]}"' in (ROOT / "pyproject.toml").read_text()
    assert set(hub.exported(hub.PROJECT / "torch-ext" / "xgemm" / "__init__.py")) - {
        "layers"
    } <= set(xgemm_torch.__all__)


def test_the_library_needs_no_newer_python(repository, monkeypatch):
    abi = pytest.importorskip(
        "kernel_abi_check", reason="there is no kernel-abi-check; `make env` installs it"
    )
    for path in repository.rglob("*.so"):
        assert abi.ObjectFile(path).check_python_abi(hub.PYTHON_ABI) == []
    monkeypatch.setattr(hub, "PYTHON_ABI", "2.0")
    with pytest.raises(BuildError, match="needs more than manylinux_2_28 and Python 2.0: .*Py"):
        hub.check_library(path)


def test_a_variant_is_the_runtime_and_nothing_else(repository):
    variant = hub_kernel.variant_of(repository)
    files = {path.relative_to(variant).as_posix() for path in variant.rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__main__.py"}
    assert files == modules | {"layers.py", "metadata.json", "xgemm/__init__.py", hub.LIBRARY}
    for name in modules - {"__init__.py"}:
        assert (variant / name).read_bytes() == (PACKAGE / name).read_bytes()


def test_modules_import_nothing_but_torch_and_python(repository):
    """As the Hub asks; transformers' Conv1D is found by its class alone."""
    for path in hub_kernel.variant_of(repository).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names.append(node.module)
            rooms = {name.partition(".")[0] for name in names}
            assert rooms <= {"torch", *sys.stdlib_module_names}, path.name


def test_no_module_spells_the_namespace():
    """Or two copies would meet in it: `registry.OPERATORS` and `NAMESPACE` are for it."""
    for path in PACKAGE.glob("*.py"):
        tree = ast.parse(path.read_text())
        spelt = [
            ast.unparse(node)
            for node in ast.walk(tree)
            if (isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.ops.xgemm")
            or (isinstance(node, ast.Constant) and re.match(r"xgemm(::|$)", str(node.value)))
        ]
        # The report of patch() has the word, which is no namespace.
        assert spelt == (["'xgemm'"] if path.name == "patch.py" else []), path.name


def test_the_name_depends_on_what_is_in_it(repository, newer, tmp_path):
    again = tmp_path / "again"
    hub.assemble(PACKAGE, again, TARGET)
    names = [hub_kernel.identifier(hub_kernel.variant_of(at)) for at in (repository, again, newer)]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("name", ["", "9lives", "a-b", "a.b", "x" * hub.ROOM, "schön"])
def test_names_that_no_namespace_has(name):
    with pytest.raises(BuildError, match="is no name for a namespace"):
        hub.with_namespace(hub.WORDS + b"xgemm".ljust(hub.ROOM, b"\0"), name)


def test_the_field_of_a_library():
    before, after = b"before", b"after"
    data = before + hub.WORDS + b"xgemm".ljust(hub.ROOM, b"\0") + after
    longest = "x" * (hub.ROOM - 1)
    assert hub.with_namespace(data, longest) == (
        before + hub.WORDS + longest.encode() + b"\0" + after
    )
    for count, wrong in ((0, before), (2, data + data)):
        with pytest.raises(BuildError, match=f"has {count} fields"):
            hub.with_namespace(wrong, "x")


def test_without_a_library(tmp_path):
    with pytest.raises(BuildError, match=r"there is no .*_C.abi3.so"):
        hub.assemble(tmp_path, tmp_path / "out", TARGET)


def test_what_an_older_call_left_goes_and_nothing_else(tmp_path):
    made = package(tmp_path / "xgemm_torch")
    (made / "old.py").write_text("")
    target, out = hub.Target(TARGET.machine), tmp_path / "out"
    (variant,) = hub.assemble(made, out, target)
    (variant / "mine.txt").write_text("")
    (made / "old.py").unlink()
    assert (variant / "old.py").exists()
    assert hub.assemble(made, out, target) == [variant]
    assert not (variant / "old.py").exists() and (variant / "mine.txt").exists()
    (variant / "metadata.json").unlink()
    with pytest.raises(BuildError, match="is there, and is no variant of a kernel"):
        hub.assemble(made, out, target)


def test_processors_lie_beside_each_other(tmp_path):
    out = tmp_path / "out"
    hub.assemble(PACKAGE, out, hub.Target("one"))
    hub.assemble(PACKAGE, out, hub.Target("other", "12.8", ("9.0a",)))
    names = sorted(path.name for path in (out / "build").iterdir() if path.is_dir())
    assert names == [
        "torch-stable-abi210-cpu-one-linux",
        "torch-stable-abi210-cpu-other-linux",
        "torch-stable-abi210-cu128-other-linux",
    ]
    rows = re.findall(r"^\| `(.+)` \| (.+) \|$", (out / "README.md").read_text(), re.MULTILINE)
    assert rows == list(zip(names, ("none", "none", "9.0a"), strict=True))


def test_it_is_made_of_a_wheel(tmp_path, monkeypatch):
    def make(folder):
        path = folder / "x.whl"
        with zipfile.ZipFile(path, "w") as packed:
            for file in (*PACKAGE.glob("*.py"), PACKAGE / hub.LIBRARY):
                packed.write(file, f"xgemm_torch/{file.name}")
        return path

    checked = []
    monkeypatch.setattr(wheel, "make", make)
    monkeypatch.setattr(hub, "check_library", checked.append)
    monkeypatch.setenv("XGEMM_CUDA", "0")
    (variant,) = hub.make(tmp_path / "out")
    assert [path.name for path in checked] == [hub.LIBRARY]
    assert hub_kernel.identifier(variant).startswith("_xgemm_cpu_")


def test_the_card(repository):
    """Its code runs, with the repository that lies here in place of the Hub's."""
    text = (repository / "README.md").read_text()
    assert text == (repository / "build" / "CARD.md").read_text()
    assert "{{" not in text and text.startswith("---\nlibrary_name: kernels\nlicense: mit\n")
    assert (repository / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    needs_kernels()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = "\n".join([hub_kernel.AS_ON_A_CPU, *blocks, "model(x).sum().backward()"])
    code, count = re.subn(
        r"LayerRepository\([^()]*\)",
        f'LocalLayerRepository(Path({str(repository)!r}), layer_name="Linear")',
        re.sub(r"\bLayerRepository,", "LocalLayerRepository,", code),
    )
    assert count == 1 and len(blocks) == 2
    environ = {**os.environ, "LOCAL_KERNELS": f"{hub.read_config().repo_id}={repository}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
