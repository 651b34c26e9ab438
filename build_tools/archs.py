"""GPU architectures: the grammar of TORCH_CUDA_ARCH_LIST, the default list, nvcc's flags."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .settings import BuildError

# Ampere runs sm_80 code, Hopper its own, and everything later translates the PTX.
DEFAULT = "8.0 9.0a 9.0+PTX"

_FAMILIES = {
    "Turing": "7.5",
    "Ampere": "8.0 8.6",
    "Ada": "8.9",
    "Hopper": "9.0a 9.0+PTX",
    "Blackwell": "10.0 12.0+PTX",
}
_ENTRY = re.compile(r"(\d{1,2})\.(\d)([af]?)(\+PTX)?")
_DIRECTIVE = re.compile(r"sm_(\d{2,3})([af]?)")


@dataclass(frozen=True, order=True)
class Arch:
    """One target of nvcc.

    Attributes:
        sm: Compute capability times ten: 90 for Hopper.
        suffix: ``"a"`` for code that runs on this architecture alone, ``"f"`` for its family,
            ``""`` otherwise.
        ptx: Whether the target is PTX, for later GPUs to translate, rather than machine code.
    """

    sm: int
    suffix: str = ""
    ptx: bool = False

    def __str__(self) -> str:
        """The target as TORCH_CUDA_ARCH_LIST has it: ``9.0a``."""
        return f"{self.sm // 10}.{self.sm % 10}{self.suffix}{'+PTX' if self.ptx else ''}"

    @property
    def code(self) -> str:
        """The target as nvcc has it: ``sm_90a``, or ``compute_90`` for PTX."""
        return f"{'compute' if self.ptx else 'sm'}_{self.sm}{self.suffix}"

    @property
    def gencode(self) -> str:
        """The target as an argument of nvcc."""
        return f"-gencode=arch=compute_{self.sm}{self.suffix},code={self.code}"


def parse(text: str) -> tuple[Arch, ...]:
    """Parses a list such as ``"8.0 9.0a 9.0+PTX"`` or ``"8.0;9.0a"``; an empty one is the default.

    ``X+PTX`` is machine code for X and PTX beside it, save where X has a suffix and stands in the
    list without one (``9.0a 9.0+PTX``): then the machine code of ``9.0`` would never be used, and
    it is PTX alone.

    Raises:
        BuildError: An entry is none, with the entry and the grammar.
    """
    found: dict[Arch, None] = {}
    words = [w for item in re.split(r"[;,\s]+", text or DEFAULT) if item for w in _expand(item)]
    suffixed = {word.split("a")[0] for word in words if "a" in word}
    for word in words:
        match = _ENTRY.fullmatch(word)
        if not match:
            raise BuildError(
                f"TORCH_CUDA_ARCH_LIST holds {word!r}, which is no architecture; entries look like "
                f"8.0, 9.0a or 9.0+PTX, with spaces or semicolons between, or are one of "
                f"{', '.join(_FAMILIES)} (the default is {DEFAULT!r})"
            )
        major, minor, suffix, ptx = match.groups()
        sm = 10 * int(major) + int(minor)
        if not (ptx and f"{major}.{minor}" in suffixed and not suffix):
            found[Arch(sm, suffix)] = None
        if ptx:
            found[Arch(sm, suffix, ptx=True)] = None
    if not found:
        raise BuildError(f"TORCH_CUDA_ARCH_LIST names no architecture: {text!r}")
    return tuple(found)


def _expand(word: str) -> list[str]:
    name, _, ptx = word.partition("+")
    if name not in _FAMILIES:
        return [word]
    entries = _FAMILIES[name].split()
    if ptx == "PTX" and not entries[-1].endswith("+PTX"):
        entries[-1] += "+PTX"
    return entries


def parse_directive(text: str, where: str) -> tuple[Arch, ...]:
    """Parses a stage file's ``// arch: sm_80 sm_90a``; `text` is what follows the colon.

    Raises:
        BuildError: A word is no architecture; `where` names the file.
    """
    archs = []
    for word in text.replace(",", " ").split():
        match = _DIRECTIVE.fullmatch(word)
        if not match:
            raise BuildError(f"{where}: '// arch:' has {word!r}, which is not of the form sm_90a")
        archs.append(Arch(int(match[1]), match[2]))
    if not archs:
        raise BuildError(f"{where}: '// arch:' names no architecture")
    return tuple(archs)


def for_stage(directive: Iterable[Arch], build: Iterable[Arch]) -> tuple[Arch, ...]:
    """The targets of one stage: those of its directive whose GPUs the build is for, or them all.

    A build for 9.0 takes a stage for sm_90a: both mean Hopper. A stage that is left with no target
    has no CUDA flavour in this build.
    """
    build, directive = tuple(build), tuple(directive)
    if not directive:
        return build
    wanted = {arch.sm for arch in build}
    return tuple(arch for arch in directive if arch.sm in wanted)
