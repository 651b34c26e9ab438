"""The rooms of csrc, and what each may include: floors, no circles."""

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
