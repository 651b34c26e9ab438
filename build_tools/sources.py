"""What there is to compile under csrc, and for which architectures each stage says it is."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from .archs import Arch, parse_directive
from .settings import BuildError

_DIRECTIVE = re.compile(r"^// arch:(.*)$")


@dataclass(frozen=True)
class Kernels:
    """A file of kernels and the architectures that it is for, if it says so.

    Its path is relative to the repository.
    """

    path: Path
    archs: tuple[Arch, ...]


@dataclass(frozen=True)
class Stage(Kernels):
    """A file of csrc/xgemm/stages: ladder/NN_name.cu, a rung, or shapes/name.cu, a specialist."""

    @property
    def stem(self) -> str:
        """``"05_smem_tiled"``, ``"gemv"``."""
        return self.path.stem

    @property
    def number(self) -> int:
        """``5``; 0 for a specialist."""
        return int(self.stem[:2]) if self.path.parent.name == "ladder" else 0

    @property
    def name(self) -> str:
        """``"smem_tiled"``."""
        return self.stem[3:] if self.number else self.stem

    @property
    def words(self) -> tuple[str, ...]:
        """By what it is asked for: its name, its file's stem, its number."""
        numbers = (str(self.number), f"{self.number:02d}") if self.number else ()
        return (self.name, self.stem, *numbers)


@dataclass(frozen=True)
class Sources:
    """The files of csrc but the binding, relative to the repository, by how they are compiled.

    Attributes:
        stages: Both flavours.
        fused: Both flavours, of kernels that are no stage of a product.
        probes: The emulator alone: the .cu files of csrc/emulator.
        cpp: g++.
        cuda: nvcc, in builds with CUDA.
    """

    stages: tuple[Stage, ...]
    fused: tuple[Kernels, ...]
    probes: tuple[Path, ...]
    cpp: tuple[Path, ...]
    cuda: tuple[Path, ...]

    @property
    def kernels(self) -> tuple[Path, ...]:
        """The files of both flavours."""
        return tuple(each.path for each in (*self.stages, *self.fused))


def find(root: Path, wanted: tuple[str, ...] = ()) -> Sources:
    """Lists the sources below `root`; `wanted` chooses stages by number, name or file stem.

    Raises:
        BuildError: A stage is wanted that there is not, or a file's name or directive is not right.
    """

    def glob(pattern: str) -> tuple[Path, ...]:
        return tuple(path.relative_to(root) for path in sorted(root.glob(f"csrc/{pattern}")))

    stages = tuple(_stage(root, path) for path in glob("xgemm/stages/**/*.cu"))
    return Sources(
        stages=_choose(stages, wanted),
        fused=tuple(Kernels(path, _archs(root, path)) for path in glob("xgemm/attention/*.cu")),
        probes=glob("emulator/*.cu"),
        cpp=glob("xgemm/*/*.cpp") + glob("emulator/*.cpp"),
        cuda=glob("xgemm/device/*.cu"),
    )


def _stage(root: Path, path: Path) -> Stage:
    track, name = path.parent.name, r"[a-z][a-z0-9_]*"
    if not re.fullmatch(rf"ladder/\d\d_{name}|shapes/{name}", f"{track}/{path.stem}"):
        raise BuildError(f"{path}: a stage's file is ladder/NN_name.cu or shapes/name.cu")
    return Stage(path, _archs(root, path))


def _archs(root: Path, path: Path) -> tuple[Arch, ...]:
    """What a file's directive says."""
    text = (root / path).read_text(encoding="utf-8")
    head = itertools.takewhile(lambda line: line.startswith("//"), text.splitlines())
    found = [match[1] for line in head if (match := _DIRECTIVE.match(line))]
    if len(found) > 1:
        raise BuildError(f"{path}: more than one '// arch:' line")
    return parse_directive(found[0], str(path)) if found else ()


def _choose(stages: tuple[Stage, ...], wanted: tuple[str, ...]) -> tuple[Stage, ...]:
    if not wanted:
        return stages
    chosen = []
    for word in wanted:
        hits = [s for s in stages if word in s.words]
        if not hits:
            there_are = ", ".join(stage.name for stage in stages)
            raise BuildError(f"XGEMM_STAGES names {word!r}; there are: {there_are}")
        chosen += hits
    return tuple(sorted(set(chosen), key=lambda stage: stage.path))
