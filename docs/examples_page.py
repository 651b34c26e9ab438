"""The figures and the chart of docs/examples.md, from the record of benchmarks/run_examples.py."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from xgemm_torch.course import svg
from xgemm_torch.tools import plotting

WAYS = {"stock": "stock FP32", "tf32": "TF32", "converted": "converted"}
COLORS = {"stock": plotting.GREY, "tf32": plotting.ORANGE, "converted": plotting.GREEN}
NOTHING = ["Not measured yet."]

Table = Callable[[Sequence[str], Iterable[Sequence[object]]], list[str]]


def errors(entry: dict[str, Any]) -> dict[str, float]:
    """Give the median over seeds of each way's error."""
    return {way: median(entry["ways"][way]["errors"]) for way in WAYS}


def rows(record: dict[str, Any], table: Table) -> list[str]:
    """Times, memory and errors of each example."""
    found = []
    for name, entry in record["examples"].items():
        mine = entry["ways"]
        ms = {way: mine[way]["ms"] for way in WAYS}
        off = errors(entry)
        peak = mine["stock"]["peak_mib"]
        memory = f"{mine['converted']['peak_mib'] / peak:.2f}" if peak else "-"
        found.append((
            f"[{name}](../examples/{name}.py)", entry["steps"], f"{ms['stock']:.3g}",
            f"{ms['tf32']:.3g}",
            f"{ms['converted']:.3g} ({ms['stock'] / ms['converted']:.2f}x)", memory,
            entry["error_is"].replace("|", "\\|"), *(f"{off[way]:.3g}" for way in WAYS),
            f"{off['tf32'] / off['stock']:.2g}",
        ))  # fmt: skip
    head = ("example", "steps", "stock, ms", "TF32", "converted", "memory", "error",
            *WAYS.values(), "TF32's / stock's")  # fmt: skip
    return table(head, found)


def details(record: dict[str, Any]) -> list[str]:
    """The device, sizes, and what else an example counts."""
    lines = [f"On one {record['facts']['device']}:", ""]
    for name, entry in record["examples"].items():
        size = ", ".join(f"{key} {value}" for key, value in entry["size"].items() if key != "steps")
        text = f"- `{name}`: {size}; {entry['steps']} steps"
        if entry["cut"]:
            text += f" of {entry['size']['steps']}, when its time was over"
        seeds = len(entry["ways"]["stock"]["errors"])
        text += f", {seeds} seeds." if seeds > 1 else "."
        for what in entry["ways"]["stock"].get("details", {}):
            values = [entry["ways"][way]["details"][what] for way in WAYS]
            if len(set(values)) == 1:
                text += f" {what.capitalize()}: {values[0]:.3g}."
                continue
            said = ", ".join(
                f"{way} {value:.3g}" for way, value in zip(WAYS.values(), values, strict=True)
            )
            text += f" {what.capitalize()}: {said}."
        lines.append(text)
    return lines


def alternative(record: dict[str, Any]) -> str:
    """Say what the chart shows."""
    parts = []
    for name, entry in record["examples"].items():
        said = ", ".join(f"{WAYS[way]} {error:.2g}" for way, error in errors(entry).items())
        parts.append(f"{name}: {said}")
    return f"Error by seconds of training or solving, last errors: {'; '.join(parts)}."


def shown(record: dict[str, Any]) -> dict[str, Any]:
    """Give what the chart is drawn from."""
    return {
        "device": record["facts"]["device"],
        "examples": {
            name: {
                "error_is": entry["error_is"],
                "curves": {way: entry["ways"][way]["curve"] for way in WAYS},
            }
            for name, entry in record["examples"].items()
        },
    }


def draw(data: dict[str, Any], digest: str, path: Path) -> None:
    """Draw error by time, a panel an example, into an SVG, or by its suffix a PNG."""
    from matplotlib import rc_context
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullFormatter, NullLocator

    found = data["examples"]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "xgemm", "font.family": "sans-serif"}):
        lines = -(-len(found) // 3)
        made = plotting.new_figure(11, 0.9 + 2.5 * lines)
        top = 1 - 0.9 / (0.9 + 2.5 * lines)
        grid = made.add_gridspec(lines, 3, hspace=0.55, wspace=0.28, left=0.065, right=0.985,
                                 top=top, bottom=0.2 / lines)  # fmt: skip
        made.text(0.02, 1 - 0.35 * (1 - top), f"Error by seconds, an {data['device']}",
                  fontsize=13, fontweight="bold", color=plotting.INK)  # fmt: skip
        for i, (name, example) in enumerate(found.items()):
            axes = made.add_subplot(grid[i // 3, i % 3])
            plotting.dress(axes, name, "seconds", example["error_is"].split(",")[0])
            for way, curve in example["curves"].items():
                _, seconds, values = zip(*curve, strict=True)
                axes.plot(seconds, values, color=COLORS[way], linewidth=1.8)
            points = [error for c in example["curves"].values() for _, _, error in c]
            values = [error for error in points if math.isfinite(error)] or [1.0]
            if min(values) > 0 and max(values) > 10 * min(values):
                axes.set_yscale("log")
                axes.yaxis.set_minor_locator(NullLocator())
                axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlim(left=0)
            axes.yaxis.label.set_fontsize(7.5)
        made.legend([Line2D([], [], color=COLORS[way], linewidth=2.5) for way in WAYS],
                    list(WAYS.values()), ncols=3, loc="upper right", frameon=False, fontsize=9,
                    labelcolor=plotting.INK)  # fmt: skip
        if path.suffix != ".svg":
            plotting.save(made, path)
            return
        written = io.StringIO()
        made.savefig(written, format="svg", metadata={"Date": None})
        path.write_text(svg.slim(written.getvalue(), digest), encoding="utf-8")
