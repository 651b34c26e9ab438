"""The table of a record of reach.py, for the terminal and for docs/measurements.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xgemm_torch.dispatch import in_words

HEAD = (
    "library", "model", "FLOP", "convert", "patch", "torch's own inside patch",
    "errors of outputs", "errors of gradients", "a step",
)  # fmt: skip
WAYS = ("stock", "convert", "patch")
# What an operator is called in the table, by a word of its name.
KINDS = {"attention": "attention", "convolution": "convolution", "rnn": "RNN layer"}
LEAST = 0.001
"""What has less of the FLOP is left out of what torch does."""


def percent(share: float) -> str:
    """Give a share; what is not all is not rounded to it."""
    return "100%" if share == 1 else f"{min(100 * share, 99.9):.3g}%"


def small(x: float) -> str:
    """Give an error in two digits."""
    return f"{x:.1e}".replace("e-0", "e-")


def left(patch: Mapping[str, Any]) -> str:
    """What torch did inside the patch, by kind, and its share of the FLOP."""
    by_kind: dict[str, int] = {}
    for product, flops in patch["left"].items():
        kind = next((kind for word, kind in KINDS.items() if word in product), product)
        by_kind[kind] = by_kind.get(kind, 0) + flops
    cells = [
        f"{kind} {percent(flops / patch['flops'])}"
        for kind, flops in sorted(by_kind.items(), key=lambda item: -item[1])
        if flops > LEAST * patch["flops"]
    ]
    if patch["unknown"]:
        cells.append(f"{patch['unknown']} calls of unknown FLOP")
    return ", ".join(cells) or "-"


def errors(entry: Mapping[str, Any], place: int) -> str:
    """Torch's own, convert's and patch's errors; place 0 is outputs, 1 gradients."""
    found = entry.get("errors")
    if not found:
        return "-"
    return " / ".join(small(found[way][place]) if way in found else "-" for way in WAYS)


def of_step(entry: Mapping[str, Any], way: str = "converted") -> float | None:
    """The share of FLOP that a way of steps.py reaches; None where a record has none.

    Where a library's model has no way "patched", its converted one is inside a patch.
    """
    if way not in entry["ms"]:
        return None
    convert, both = "convert", "convert and patch"
    apart = (both,) if way == "patched" else (convert,)
    names = apart if "patched" in entry["ms"] else (both, convert)
    ways = entry.get("reach", {})
    return next((ways[name]["share"] for name in names if name in ways), None)


def rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Give the table's lines, as `HEAD` names their cells; one that did not run says why."""
    lines = []
    for name, entry in record["models"].items():
        ran = {way: entry.get(way) or {} for way in ("convert", "patch")}
        flops = ran["patch"].get("flops")
        shares = [percent(way["share"]) if way.get("flops") else "-" for way in ran.values()]
        if "types" in entry and "share" in ran["convert"]:
            shares[0] += f" (types={entry['types']})"
        status = entry["status"]
        if "float64" in entry:
            status += f" (float64: {entry['float64']})"
        lines.append(
            (
                f"{entry['package']} {entry['version'] or ''}".strip(),
                name,
                in_words(flops).strip() if flops else "-",
                *shares,
                left(ran["patch"]) if flops else "-",
                errors(entry, 0),
                errors(entry, 1),
                status,
            )
        )
    return lines
