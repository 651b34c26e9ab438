"""`build_tools.wheel`: what is run, in which order, and what a failed check says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from build_tools import settings, wheel
from build_tools.settings import BuildError

BUILT = "xgemm_torch-0.1.0-cp310-abi3-linux_x86_64.whl"
TAGGED = "xgemm_torch-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl"


@pytest.fixture
def tools(monkeypatch):
    """Tools that leave files as the real ones do; what they were asked."""
    asked = []

    def run(*command):
        asked.append(command)
        for option, name in (("--dist-dir", BUILT), ("--wheel-dir", TAGGED)):
            if option in command:
                folder = Path(command[command.index(option) + 1])
                folder.mkdir()
                (folder / name).write_bytes(b"wheel")

    monkeypatch.setattr(wheel, "_run", run)
    return asked


def test_a_wheel_is_built_tagged_and_checked(tools, tmp_path):
    made = wheel.make(tmp_path / "dist")
    assert made == tmp_path / "dist" / TAGGED and made.read_bytes() == b"wheel"
    assert [command[1] for command in tools] == [
        "--quiet", "auditwheel", "twine", "check_wheel_contents"
    ]  # fmt: skip
    repair = tools[1]
    assert [x for x, y in zip(repair[1:], repair, strict=False) if y == "--exclude"] == [
        "libtorch*", "libc10*"
    ]  # fmt: skip
    assert repair[repair.index("--plat") + 1] == f"manylinux_2_28_{os.uname().machine}"
    assert repair[-1].endswith(BUILT)
    assert tools[2][-1].endswith(TAGGED) and tools[3][-1].endswith(TAGGED)


def test_a_wheel_that_is_too_large_is_not_left(tools, tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "LIMIT", 4)
    with pytest.raises(BuildError, match="has 5 bytes, over 4"):
        wheel.make(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_tool_that_fails_is_told_with_its_words():
    with pytest.raises(BuildError, match="(?s)-c raise SystemExit.* failed:.*no such thing"):
        wheel._run("-c", "raise SystemExit('no such thing')")


def test_a_wheels_library_is_linked_for_torchs_own_glibc():
    assert settings.read(wheel._environment()).glibc == wheel.GLIBC
