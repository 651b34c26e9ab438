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
    """A g++: its path, and its version as ``"12.2.0"``."""

    path: str
    version: str

    @property
    def name(self) -> str:
        """``"g++ 12.2.0"``."""
        return f"g++ {self.version}"


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
    text = subprocess.run(
        [path, "--version"], capture_output=True, text=True, env={**environ, "LC_ALL": "C"}
    ).stdout
    match = re.search(r"\b(\d+)\.(\d+)\.(\d+)\b", text.partition("\n")[0])
    if "clang" in text or "Free Software Foundation" not in text or not match:
        raise BuildError(f"{path} is not g++; set CXX to a g++ of version {_OLDEST} or newer")
    if int(match[1]) < _OLDEST:
        raise BuildError(f"{path} is g++ {match[0]}; version {_OLDEST} or newer is needed")
    return Compiler(path, match[0])
