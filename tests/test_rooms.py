"""The rooms of csrc and of the package, and what each may include: floors, no circles."""

import ast
import re

import pytest

from build_tools.settings import ROOT

CSRC = ROOT / "csrc"

# From the ground up: a room includes itself and those named, and so never one above it.
ROOMS = {
    "core": set(),  # the contract between host and stages
    "device": {"core"},  # what a kernel says to the machine: PTX, copies, launches
    "dispatch": {"core"},  # which stage runs
    "reference": {"core"},  # precision="ieee" on a CPU
    "emulation": {"core", "device"},  # FP32 by limbs of 16 bits
    "attention": {"core", "device", "emulation"},  # kernels that are no product
    "epilogue": {"core", "device", "emulation"},
    "mainloop": {"core", "device", "emulation", "epilogue"},
    "stages": {"core", "device", "emulation", "epilogue", "mainloop"},
    "emulator": {"core", "device", "dispatch", "emulation"},  # runs any stage on a CPU
    "torch": {"core", "device", "dispatch", "emulation", "reference", "emulator"},
}
FILES = sorted(p for p in CSRC.rglob("*") if p.suffix in (".h", ".cpp", ".cu", ".inc"))


def room_of(path: str) -> str:
    """The room of a file, by its path below csrc."""
    return path.removeprefix("xgemm/").partition("/")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CSRC)))
def test_a_file_includes_its_own_room_and_those_below(path):
    room = room_of(path.relative_to(CSRC).as_posix())
    included = re.findall(r'^\s*#include "(\w+/[^"]+)"', path.read_text(), re.MULTILINE)
    assert {room_of(i) for i in included} <= {room, *ROOMS[room]}
    assert all((CSRC / i).exists() for i in included)


def test_every_file_is_in_a_room():
    assert {room_of(p.relative_to(CSRC).as_posix()) for p in FILES} == set(ROOMS)


def test_no_circle():
    above = set()
    for room, below in ROOMS.items():
        assert below <= above
        above.add(room)


def test_names_of_files_are_told_apart():
    """Objects, and places that the emulator tells, are named without their rooms."""
    names = [p.name for p in FILES]
    assert len(names) == len(set(names))
    stems = [
        p.stem for p in FILES if p.suffix == ".cpp" and room_of(str(p.relative_to(CSRC))) != "torch"
    ]
    assert len(stems) == len(set(stems))


# The package's rooms; "" is the runtime, which imports no other.
PACKAGE = ROOT / "xgemm_torch"
PYTHON_ROOMS = {
    "": set(),
    "tools": {""},
    "course": {"", "tools"},
    "train": {"", "tools"},
    # Trains, and then shows what the course has for a machine without a GPU: so neither of the two
    # needs to know the other.
    "demo": {"", "tools", "course", "train"},
}
COMMAND_LINE = "__main__.py"  # it imports the command that is asked for, by name
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != COMMAND_LINE)


def python_room(path) -> str:
    """The room of a module, by its path below the package."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def imported_modules(path):
    """The modules of the package that a module imports, anywhere in its code."""
    here = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[1:] for alias in node.names]
            yield from (n for n, a in zip(names, node.names, strict=True) if a.name[:5] == "xgemm")
        elif isinstance(node, ast.ImportFrom):
            base = list(here[: len(here) - node.level + 1]) if node.level else []
            module = (node.module or "").split(".") if node.module else []
            if not node.level:
                if module[:1] != ["xgemm_torch"]:
                    continue
                module = module[1:]
            yield from ([*base, *module, alias.name] for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_its_own_room_and_those_below(path):
    room = python_room(path)
    if path == PACKAGE / "__init__.py":  # names the rooms, for who checks types
        return
    rooms = {m[0] if m and m[0] in PYTHON_ROOMS else "" for m in imported_modules(path)}
    assert rooms <= {room, *PYTHON_ROOMS[room]}


def test_every_module_is_in_a_room():
    assert {python_room(p) for p in MODULES} == set(PYTHON_ROOMS)


def test_no_circle_of_modules():
    """Among the runtime's modules: none imports, when it is imported, one that imports it."""
    names = {p.stem: p for p in MODULES if python_room(p) == ""}
    needs = {}
    for name, path in names.items():
        tree = ast.parse(path.read_text())
        needs[name] = {
            part
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.level == 1
            for part in ([node.module] if node.module else [a.name for a in node.names])
            if part in names
        }
    while needs:
        ready = {name for name, below in needs.items() if not below & set(needs)}
        assert ready, f"circle among {sorted(needs)}"
        for name in ready:
            del needs[name]
