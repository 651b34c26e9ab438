"""The code of a stage, the rung that it is best read against, and what changed between the two.

A stage's code is its file and the headers that hold its kernel. They are read from csrc, which a
checkout has and an installed package has not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from .registry import Stage

SOURCE = Path(__file__).resolve().parents[1] / "csrc" / "xgemm"

# The rung that a stage is best read against, where that is not the one below it, and why.
PREDECESSOR = {
    "naive": (None, ""),
    "smem_tiled": (
        "coalesced",
        "both have one result a thread, and shared memory is all that is new",
    ),
    "block_tile_1d": (
        "smem_tiled",
        "it follows it in its sources; rungs 6 to 10 are of another ladder",
    ),
    "vec4_64x64": (
        "micro_4x1_vec4",
        "it follows it in its source; rungs 11 to 13 are of other ladders",
    ),
    "vec4_128x128": ("block_tile_2d", "both compute 128 x 128 by 8 x 8 a thread; vectors are new"),
    "mma_fp16x3": ("cp_async_pipelined", "it has the same ring of slices, of other elements"),
    "split_k": ("cp_async_pipelined", "the main loop is the same"),
    "gemv": ("coalesced", "both read global memory without shared memory between"),
    "outer": ("block_tile_1d", "both keep an element of B in a register for a column of results"),
    "tma_split_k": ("tma_specialized", "the main loop is the same"),
    "tma_gemv": ("gemv", "both are for few rows, and warps have their own share of K"),
    "whole_k": ("cp_async_pipelined", "it has the same ring of slices, and as many on their way"),
    "short_k": ("outer", "both are for a short K, and have the same epilogue"),
    "dot": ("gemv", "both read the large operand once; here a team has an element, not a chain"),
}

# Headers that belong to a stage's code; the first has the main loop.
HEADERS = {
    "cp_async_pipelined": ("mainloop/multistage.h",),
    "tma_specialized": (
        "mainloop/warp_specialized.h",
        "mainloop/producer.h",
        "device/pipeline.h",
        "mainloop/stream_k_fixup.h",
    ),
    "mma_fp16x3": ("mainloop/emulated_mma.h", "mainloop/limb_ring.h"),
    "wgmma_fp16x3": ("mainloop/emulated_wgmma.h",),
    "wgmma_bf16x6": ("mainloop/emulated_wgmma.h",),
    "wgmma_narrow": (
        "mainloop/fused_emulated.h",
        "device/copy/tma_slice.h",
        "emulation/register_limbs.h",
        "mainloop/fused_split_k.h",
        "epilogue/cluster_reduce.h",
    ),
    "split_k": ("mainloop/multistage.h", "epilogue/split_k_chains.h", "epilogue/cluster_reduce.h"),
    "gemv": ("mainloop/gemv.h", "mainloop/gemv_plan.h", "epilogue/split_k_chains.h"),
    "tma_split_k": (
        "mainloop/warp_specialized.h",
        "mainloop/producer.h",
        "epilogue/split_k_chains.h",
    ),
    "tma_gemv": ("mainloop/gemv_tma.h", "mainloop/gemv_teams.h", "device/copy/tma_slice.h"),
    "whole_k": ("mainloop/small_tile.h",),
}


def predecessors(ladder: Sequence[Stage]) -> dict[str, Stage | None]:
    """Give the stage that each is read against: `PREDECESSOR`, else the rung below."""
    by_name = {stage.name: stage for stage in ladder}
    found: dict[str, Stage | None] = {}
    below: Stage | None = None
    for stage in ladder:
        named, _ = PREDECESSOR.get(stage.name, (below and below.name, ""))
        found[stage.name] = by_name.get(named, below) if named else None
        below = stage
    return found


def path_of(stage: Stage) -> Path:
    """Give the path of a stage's file."""
    return SOURCE / "stages" / Path(stage.file).name


def source_text(stage: Stage) -> str:
    """Read a stage's file."""
    return path_of(stage).read_text(encoding="utf-8")


def headers(stage: Stage) -> dict[str, str]:
    """Read the headers that hold a stage's kernel: their names and texts."""
    names = HEADERS.get(stage.name, ())
    return {name: (SOURCE / name).read_text(encoding="utf-8") for name in names}


def code(stage: Stage) -> list[str]:
    """Give the lines of a stage's code: its headers', then its file's."""
    return [line for text in (*headers(stage).values(), source_text(stage)) for line in body(text)]


def body(text: str) -> list[str]:
    """Give the lines of a stage's file, or a header, that a comparison is about.

    Without the head comment, the namespace (it has the stage's name) and the registration, which
    differ between any two stages.
    """
    text = re.sub(r"\A(//.*\n)+", "", text)
    text = re.sub(r"^static const Register<run> stage\(.*?\}\);\n", "", text, flags=re.S | re.M)
    text = re.sub(r"^(namespace|inline namespace|\}  // namespace).*\n", "", text, flags=re.M)
    text = re.sub(r"^\}  // (namespace )?XGEMM_FLAVOUR\n|^#pragma once\n", "", text, flags=re.M)
    return re.sub(r"\n{2,}", "\n\n", text.strip()).splitlines()


def difference(old: Stage, new: Stage) -> list[str]:
    """Give the unified diff of two stages' code, without its two lines of file names."""
    lines = difflib.unified_diff(code(old), code(new), n=2, lineterm="", fromfile="", tofile="")
    return [line.rstrip() for line in list(lines)[2:]]


def named(stage: Stage) -> str:
    """A stage's name and its files, as a diff's head has them."""
    return ", ".join((f"{stage.name}: stages/{path_of(stage).name}", *HEADERS.get(stage.name, ())))


def diff(names: Sequence[str], ladder: Sequence[Stage]) -> list[str]:
    """Give the unified diff of a stage's code against the rung it is read against, or another's.

    Args:
        names: the stage, and at most one more to compare it with.
        ladder: all stages.

    Raises:
        ValueError: a name is of no stage, there are more than two, the first rung stands alone, or
            there are no sources here.
    """
    by_name = {stage.name: stage for stage in ladder}
    if len(names) > 2:
        raise ValueError(f"ladder: a diff is of one stage or two, got {len(names)}")
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(by_name)}"
            raise ValueError(f"ladder: no stage {name}{hint}")
    new = by_name[names[0]]
    old = by_name[names[1]] if len(names) > 1 else predecessors(ladder)[new.name]
    if old is None:
        raise ValueError(f"ladder: {new.name} is the first rung; name a second stage")
    if not path_of(new).exists():
        raise ValueError(f"ladder: a diff needs the sources of a checkout; there is no {SOURCE}")
    return [f"--- {named(old)}", f"+++ {named(new)}", *difference(old, new)]
