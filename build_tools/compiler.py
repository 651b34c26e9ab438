"""The host's C++ compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from .settings import BuildError

_OLDEST = 11  # the first g++ with the C++20 that the sources use


@dataclass(frozen=True)
class Compiler:
    """A g++: its path, its version as ``"12.2.0"``, and the processor that it compiles for."""

    path: str
    version: str
    machine: str = os.uname().machine

    @property
    def name(self) -> str:
        """``"g++ 12.2.0"``."""
        return f"g++ {self.version}"

    @property
    def crosses(self) -> bool:
        """Whether what it compiles does not run here."""
        return self.machine != os.uname().machine

    def tool(self, name: str) -> str:
        """A program of binutils for the same processor."""
        return _said([self.path, f"-print-prog-name={name}"]).strip()


def find(environ: Mapping[str, str] = os.environ) -> Compiler:
    """Finds g++: $CXX, or ``g++`` on the PATH.

    Raises:
        BuildError: There is none, or it is too old, or it is another compiler.
    """
    wanted = environ.get("CXX", "").strip() or "g++"
    path = shutil.which(wanted, path=environ.get("PATH"))
    if path is None:
        raise BuildError(f"no C++ compiler: there is no {wanted!r}; on Debian: apt-get install g++")
    # Its own words would be translated where the locale is not English.
    text = _said([path, "--version"], {**environ, "LC_ALL": "C"})
    match = re.search(r"\b(\d+)\.(\d+)\.(\d+)\b", text.partition("\n")[0])
    if "clang" in text or "Free Software Foundation" not in text or not match:
        raise BuildError(f"{path} is not g++; set CXX to a g++ of version {_OLDEST} or newer")
    if int(match[1]) < _OLDEST:
        raise BuildError(f"{path} is g++ {match[0]}; version {_OLDEST} or newer is needed")
    machine = _said([path, "-dumpmachine"]).partition("-")[0].strip()
    return Compiler(path, match[0], machine or os.uname().machine)


def _said(command: list[str], environ: Mapping[str, str] = os.environ) -> str:
    return subprocess.run(command, capture_output=True, text=True, env=dict(environ)).stdout
