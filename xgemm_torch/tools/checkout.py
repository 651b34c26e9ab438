"""What is in a source checkout and not in a wheel: the scripts of benchmarks/."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import xgemm_torch


def folder() -> Path:
    """Where benchmarks/ is, if this package is that of a checkout."""
    return Path(xgemm_torch.__file__).resolve().parents[1] / "benchmarks"


def script(name: str, *, who: str) -> ModuleType:
    """Import a script of benchmarks/.

    Args:
        name: of the script, without its suffix.
        who: the command that needs it, for the message.

    Raises:
        ValueError: this is no source checkout.
    """
    at = folder()
    if not (at / f"{name}.py").is_file():
        raise ValueError(
            f"{who} needs benchmarks/, which is in a source checkout: run it in one as "
            f"python -m xgemm_torch {who}"
        )
    if str(at) not in sys.path:
        sys.path.append(str(at))
    return importlib.import_module(name)
