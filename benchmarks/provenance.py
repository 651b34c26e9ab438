"""Where and how a measurement was made: what every result has to carry.

``python benchmarks/provenance.py`` prints it for this machine.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

# `auto`, and stages called by name, are timed as they come, without what somebody has tuned here.
os.environ["XGEMM_TUNE_CACHE"] = ""

import xgemm_torch
from xgemm_torch.tools import environment, timing


def commit() -> str:
    """Name the commit of the work tree, with a + where files differ from it.

    Where the tree is no git checkout, the variable XGEMM_COMMIT may name it; else "unknown".
    """
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        answer = subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=True
        )
        return answer.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("XGEMM_COMMIT", "unknown")


@cache
def sources() -> str:
    """Name what is measured: the code of package, kernels, benchmarks and examples, as compiled.

    Unlike a commit it tells work trees with different changes apart, and needs no git.
    """
    root = Path(__file__).resolve().parents[1]
    found = hashlib.sha256()
    for folder in ("csrc", "xgemm_torch", "benchmarks", "examples"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".cpp", ".cu", ".inc", ".so"):
                found.update(path.relative_to(root).as_posix().encode())
                found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def command() -> str:
    """Give the command line that started this process, without the directories of one machine."""
    script = Path(sys.argv[0])
    start = (
        ["-m", script.parent.name]
        if script.name == "__main__.py"
        else [f"benchmarks/{script.name}"]
    )
    return shlex.join(["python", *start, *(re.sub(r"(^|=)/\S*/", r"\1", a) for a in sys.argv[1:])])


def facts() -> dict[str, Any]:
    """Say where and how this process measures, as JSON values."""
    here: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command(),
        "commit": commit(),
        "sources": sources(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "fp32_precision": environment.fp32_state(),
        "build": json.loads(xgemm_torch._C.build_info()),
    }
    if torch.cuda.is_available():
        chip = torch.cuda.get_device_properties(0)
        here |= {
            "device": chip.name,
            "sm": f"{chip.major}.{chip.minor}",
            "multiprocessors": chip.multi_processor_count,
            "driver": timing.driver(),
        }
    else:
        here["device"] = environment.device_name("cpu")
    return here


if __name__ == "__main__":
    print(json.dumps(facts()))
