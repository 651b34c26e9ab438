"""What a record of attention.py says, for the terminal, for docs/measurements.md and the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

TORCH, OURS = "torch", "xgemm"
WAYS = (TORCH, OURS)
PASSES = ("forward", "backward")
TOGETHER = {"forward": ("forward",), "backward": ("backward",), "both": PASSES}
OUT, GRADIENTS = ("out",), ("dq", "dk", "dv")
RESULTS = {"forward": OUT, "backward": GRADIENTS}
RANDOM = "random"
# Times: of the GPU alone, and of a call that finds the GPU idle, with the host's part.
DEVICE, CALL = "device_ms", "call_ms"

HEAD = (
    "shape", "forward: torch", "ours", "backward: torch", "ours", "TFLOP/s", "one call",
    "error of out, u: torch's, ours", "of gradients",
)  # fmt: skip

Entry = Mapping[str, Any]


def gain(entry: Entry, passes: Sequence[str] = PASSES, clock: str = DEVICE) -> float:
    """How many times as fast as torch a pass is, or several together."""
    stock, mine = (sum(entry[p][clock][way] for p in passes) for way in WAYS)
    return stock / mine


def error(entry: Entry, way: str, names: Sequence[str]) -> float:
    """The largest root mean square error of some results, in u; NaN where one is."""
    found = [float(entry["errors"][way][name]["rms"]) for name in names]
    return math.nan if any(map(math.isnan, found)) else max(found)


def of(record: Mapping[str, Any], *, random: bool) -> dict[str, Entry]:
    """Give the cases of random shapes by their labels, or the others."""
    entries: Mapping[str, Entry] = record["attention"]
    return {name: e for name, e in entries.items() if (e["group"] == RANDOM) == random}


def spread(values: Iterable[float]) -> str:
    """Geometric mean, least and most."""
    found = list(values)
    return f"{geometric_mean(found):.2f}x ({min(found):.2f} to {max(found):.2f})"


def _with_gain(entry: Entry, which: str) -> str:
    return f"{entry[which][DEVICE][OURS]:.3g} ({gain(entry, (which,)):.2f}x)"


def _errors(entry: Entry, names: Sequence[str]) -> str:
    return ", ".join(f"{error(entry, way, names):.2g}" for way in WAYS)


def rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Give the table's lines, as `HEAD` names their cells: random shapes are one, the last."""
    lines = []
    for label, entry in of(record, random=False).items():
        cells = [label if entry["by"] == OURS else f"{label} (by {entry['by']})"]
        for which in PASSES:
            cells += [f"{entry[which][DEVICE][TORCH]:.3g}", _with_gain(entry, which)]
        speeds = (f"{entry[which]['tflops'][OURS]:.0f}" for which in PASSES)
        calls = (f"{gain(entry, (which,), CALL):.2f}x" for which in PASSES)
        cells += [
            ", ".join(speeds),
            ", ".join(calls),
            *(_errors(entry, n) for n in (OUT, GRADIENTS)),
        ]
        lines.append(tuple(cells))
    if some := list(of(record, random=True).values()):
        speeds = (geometric_mean(e[p]["tflops"][OURS] for e in some) for p in PASSES)
        calls = (geometric_mean(gain(e, (p,), CALL) for e in some) for p in PASSES)
        worst = (
            ", ".join(f"{max(error(e, way, names) for e in some):.2g}" for way in WAYS)
            for names in (OUT, GRADIENTS)
        )
        lines.append((
            f"{len(some)} random shapes",
            *(cell for p in PASSES for cell in ("-", spread(gain(e, (p,)) for e in some))),
            ", ".join(f"{x:.0f}" for x in speeds), ", ".join(f"{x:.2f}x" for x in calls), *worst,
        ))  # fmt: skip
    return lines


def summary(record: Mapping[str, Any]) -> list[str]:
    """Gains of forward, backward and both, of random shapes and of the others, in lines."""
    lines = []
    for random, what in ((False, "shapes of models"), (True, "random shapes")):
        some = of(record, random=random)
        if not some:
            continue
        said = ", ".join(
            f"{name} {spread(gain(e, passes) for e in some.values())}"
            for name, passes in TOGETHER.items()
        )
        slow = sum(gain(e) < 1 for e in some.values())
        lines.append(f"{len(some)} {what}: {said}; slower than torch: {slow}")
    return lines
