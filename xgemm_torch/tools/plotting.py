"""Pictures of results. matplotlib is imported on use and draws without a display."""

from __future__ import annotations

import colorsys
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

INK, QUIET, GRID = "#20262e", "#7a8591", "#e4e8ec"
BLUE, ORANGE, GREEN, GREY, RED = "#2a6fb0", "#e07a1f", "#3b9a5f", "#b9c1c9", "#c0392b"
# Behind a text that lies on lines.
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 2}
# By whether a stage is strict.
PROMISES = {
    True: (BLUE, "strict: chains of FP32 multiply-adds"),
    False: (GREEN, "FP32 accuracy: tensor cores, or sums in another order"),
}
COLORS = {"stock": BLUE, "converted": ORANGE}
LABELS = {"stock": "stock nn.Linear", "converted": "xgemm_torch"}


def require(path: Path | None = None) -> None:
    """Raise now, before what is to be drawn is measured, what drawing into ``path`` would raise.

    Raises:
        ModuleNotFoundError: there is no matplotlib.
        FileNotFoundError: no such folder.
        ValueError: no kind of picture ends so.
        OSError: the file, or one in its folder, cannot be opened for writing.
    """
    kinds = new_figure(1, 1).canvas.get_supported_filetypes()
    if path is None:
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    if path.suffix[1:] not in kinds:
        raise ValueError(f"{path}: a picture must end in .{', .'.join(sorted(kinds))}")
    is_new = not os.path.lexists(path)
    try:
        # Permissions alone do not say it: not of root, nor of file systems that take no files. A
        # pipe that nobody reads is not waited for.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666))
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror}") from error
    if is_new:
        path.unlink()


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of its own, not pyplot's: no global state, no window, no backend to choose."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Save a figure; a PNG has a palette, which takes a third of the bytes and looks the same."""
    if path.suffix != ".png":
        figure.savefig(path)
        return
    from PIL.Image import open as opened  # matplotlib needs Pillow, too

    figure.savefig(drawn := io.BytesIO(), format="png")
    with opened(drawn) as image:
        flat(image).save(path, optimize=True)


def flat(image: Image) -> Image:
    """Give an image with a palette; colours of many pixels, paper and lines, stay what they are."""
    from PIL.Image import Dither, Quantize

    return image.convert("RGB").quantize(256, method=Quantize.MEDIANCUT, dither=Dither.NONE)


def _rgb(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color[1:]))


def distinct(count: int) -> list[str]:
    """Give so many colours for lines, each unlike the others and those that have a meaning.

    Beyond five the next is that of a grid of hues and lightnesses which is farthest, in RGB, from
    its nearest among those taken.
    """
    chosen = [ORANGE, GREEN, "#8e5bb5", "#b8860b", "#3aa6b9"]
    grid = [
        "#" + bytes(round(255 * x) for x in colorsys.hls_to_rgb(hue / 24, light, 0.8)).hex()
        for hue in range(24)
        for light in (0.3, 0.5, 0.7)
    ]
    while len(chosen) < min(count, len(grid)):
        taken = [_rgb(color) for color in (*chosen, INK, GREY, RED, BLUE, "#ffffff")]
        chosen.append(max(grid, key=lambda x: min(math.dist(_rgb(x), y) for y in taken)))
    return [chosen[i % len(chosen)] for i in range(count)]


def dress(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """Give axes the title, names and grid that all charts here have."""
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, fontweight="bold", pad=8)
    axes.set_xlabel(x, color=QUIET, fontsize=9)
    axes.set_ylabel(y, color=QUIET, fontsize=9)
    axes.tick_params(colors=QUIET, labelsize=8.5, length=0)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)


def _smooth(values: Sequence[float], reach: int) -> list[float]:
    """Mean of each value with up to ``reach`` neighbours on either side."""
    return [
        sum(part) / len(part)
        for i in range(len(values))
        for part in [values[max(0, i - reach) : i + reach + 1]]
    ]


def training(summary: dict[str, Any], path: Path) -> None:
    """Draw a training job's losses, their difference, step times and GEMM shares into a PNG."""
    config, runs = summary["config"], summary["runs"]
    figure = new_figure(11, 6.6)
    grid = figure.add_gridspec(
        2, 2, width_ratios=(1.55, 1), height_ratios=(1.5, 1), hspace=0.42, wspace=0.25,
        left=0.07, right=0.975, top=0.865, bottom=0.085,
    )  # fmt: skip
    _losses(figure.add_subplot(grid[0, 0]), runs)
    _difference(figure.add_subplot(grid[1, 0]), summary)
    _step_times(figure.add_subplot(grid[0, 1]), summary)
    _shares(figure.add_subplot(grid[1, 1]), runs)
    figure.text(
        0.07, 0.955, f"Training a GPT ({config['size']}) twice from one seed: FP32, "
        f"{summary['environment']['device']}",
        fontsize=13, color=INK, fontweight="bold", va="center",
    )  # fmt: skip
    figure.text(
        0.07, 0.92, f"{summary['parameters']:,} parameters, {config['steps']} steps of "
        f"{config['batch']} x {config['seq']} bytes; text: the Python standard library; converted "
        f"with kernel={config['kernel']!r}, precision={config['precision']!r}",
        fontsize=9, color=QUIET, va="center",
    )  # fmt: skip
    save(figure, path)


def _losses(axes: Axes, runs: dict[str, Any]) -> None:
    styles = {"stock": {"linewidth": 3.6, "alpha": 0.55}, "converted": {"linewidth": 1.3}}
    for name, run in runs.items():
        losses = run["losses"]
        steps = range(1, len(losses) + 1)
        smooth = _smooth(losses, len(losses) // 100)
        if name == "stock":
            axes.plot(steps, losses, color=GREY, linewidth=0.5, label="each step (stock)")
        axes.plot(steps, smooth, color=COLORS[name], label=LABELS[name], **styles[name])
        axes.plot([len(losses)], [run["validation"]], "o", color=COLORS[name], markersize=5,
                  markerfacecolor="none" if name == "stock" else COLORS[name], clip_on=False,
                  label="validation" if name == "converted" else None)  # fmt: skip
    dress(axes, "Loss", "step", "nats a byte")
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)


def _difference(axes: Axes, summary: dict[str, Any]) -> None:
    pairs = zip(*(run["losses"] for run in summary["runs"].values()), strict=True)
    gaps = [abs(one - other) for one, other in pairs]
    dress(axes, "Difference of the two curves", "step", "|difference|, nats")
    shown = [(step, gap) for step, gap in enumerate(gaps, 1) if gap > 0]
    axes.set_xlim(0, len(gaps) + 1)
    if not shown:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "none: every loss is equal in every bit", transform=axes.transAxes,
                  ha="center", va="center", color=GREEN, fontsize=11)  # fmt: skip
        return
    axes.semilogy(*zip(*shown, strict=True), ".", color=ORANGE, markersize=2.5)
    largest = summary["difference"]
    axes.annotate(
        f"largest {largest['largest']:.1e}", (largest["largest_at_step"], largest["largest"]),
        xytext=(-4, 4), textcoords="offset points", fontsize=8.5, color=INK, ha="right",
    )  # fmt: skip
    axes.minorticks_off()
    axes.margins(y=0.15)


def _step_times(axes: Axes, summary: dict[str, Any]) -> None:
    runs = summary["runs"]
    top = 2.2 * max((run["median_step_ms"] or 0.0) for run in runs.values())
    beyond = 0
    for name, run in runs.items():
        timed = [(step, ms) for step, ms in enumerate(run["step_ms"], 1) if ms is not None]
        if not timed:
            continue
        axes.plot(*zip(*timed, strict=True), ".", color=COLORS[name], markersize=2.5, alpha=0.45)
        axes.axhline(run["median_step_ms"], color=COLORS[name], linewidth=1.4,
                     label=f"{LABELS[name]}: {run['median_step_ms']:.1f} ms")  # fmt: skip
        beyond += sum(ms > top for _, ms in timed)
    dress(axes, "Time of a step, with median", "step", "ms")
    if top:
        # A step that the machine interrupted must not squeeze all others into a line.
        axes.set_ylim(0, top)
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="lower left")
    if beyond:
        axes.text(0.99, 0.97, f"{beyond} slower steps lie above", transform=axes.transAxes,
                  ha="right", va="top", fontsize=8, color=QUIET,
                  bbox=PAPER)  # fmt: skip


def _shares(axes: Axes, runs: dict[str, Any]) -> None:
    parts = (
        ("GEMMs", "gemm_ms", BLUE),
        ("attention", "attention_ms", GREEN),
        ("the rest", None, GREY),
    )
    names = list(runs)
    for row, name in enumerate(names):
        shares, left = runs[name]["shares"], 0.0
        for label, key, color in parts:
            ms = shares[key] if key else shares["total_ms"] - left
            legend = label if row == 0 else None
            axes.barh(row, ms, left=left, color=color, height=0.56, label=legend)
            if ms > 0.08 * shares["total_ms"]:
                axes.text(left + ms / 2, row, f"{ms / shares['total_ms']:.0%}", ha="center",
                          va="center", color="white", fontsize=9, fontweight="bold")  # fmt: skip
            left += ms
    dress(axes, "Where a profiled step's time goes", "ms")
    axes.grid(False, axis="y")
    axes.set_yticks(range(len(names)), [LABELS[name] for name in names], color=INK)
    axes.invert_yaxis()
    axes.set_ylim(len(names) - 0.45, -0.95)
    axes.legend(frameon=False, fontsize=8.5, ncols=3, loc="upper left", labelcolor=INK)


def ladder(facts: dict[str, Any], path: Path) -> None:
    """Draw the stages as a ladder into a PNG: bars of speed on a GPU, checks without one."""
    rows = facts["stages"]
    figure = new_figure(11, 1.7 + 0.62 * len(rows))
    height = figure.get_figheight()
    axes = figure.add_axes((0.235, 0.62 / height, 0.735, (height - 1.75) / height))
    places = range(len(rows))
    if facts["gpu"]:
        _speeds(axes, facts)
        axes.set_xlabel("TFLOP/s", color=QUIET, fontsize=9)
        title = f"The ladder at {facts['size']}³, FP32"
        below = f"{facts['device']}; share of torch.mm; taken in turns, chip hot"
    else:
        _checks(axes, rows)
        title = "The ladder, checked on the host"
        below = (
            f"{facts['device']}; no GPU here, so there is no speed to show: each stage ran its own "
            "source through the emulator"
        )
    axes.set_yticks(places, [f"{row['name']}  {row['rung'] or '':>2}" for row in rows],
                    fontsize=10.5, color=INK)  # fmt: skip
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(length=0, labelcolor=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    left = 0.02
    figure.text(left, 1 - 0.38 / height, title, fontsize=14, fontweight="bold", color=INK,
                va="center")  # fmt: skip
    figure.text(left, 1 - 0.72 / height, below, fontsize=9, color=QUIET, va="center")
    save(figure, path)


def _speeds(axes: Axes, facts: dict[str, Any]) -> None:
    rows, reference = facts["stages"], facts["torch_mm_tflops"]
    top = max([reference, *(row["tflops"] or 0.0 for row in rows)])
    axes.axvline(reference, color=ORANGE, linewidth=1.4, zorder=1.5)
    axes.text(reference, -0.62, f"torch.mm {reference:.1f} ", color=ORANGE, fontsize=9,
              ha="center", va="bottom")  # fmt: skip
    for place, row in enumerate(rows):
        speed = row["tflops"]
        axes.barh(place - 0.1, speed or 0.0, height=0.46, color=PROMISES[row["strict"]][0])
        label = row["note"] or f"{speed:.1f}  ({row['share']:.0%})"
        axes.text((speed or 0.0) + top * 0.006, place - 0.1, label, va="center", fontsize=9.5,
                  color=INK, bbox={**PAPER, "pad": 1})  # fmt: skip
        axes.text(top * 0.004, place + 0.29, row["idea"], va="center", fontsize=7.5, color=QUIET,
                  bbox={**PAPER, "pad": 0.6})  # fmt: skip
    for color, text in PROMISES.values():
        axes.plot([], [], "s", color=color, markersize=7, label=text)
    axes.figure.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper right",
                       bbox_to_anchor=(0.98, 1 - 0.2 / axes.figure.get_figheight()))  # fmt: skip
    axes.set_xlim(0, top * 1.13)
    axes.grid(True, axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=8.5)


def _checks(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for place, row in enumerate(rows):
        right = "bits right" if row["strict"] else "accurate"
        color, word = (GREEN, right) if row["check"] else (RED, "WRONG")
        axes.plot([0.02], [place], "o", color=color, markersize=11)
        axes.text(0.05, place - 0.16, word, va="center", fontsize=9.5, color=color,
                  fontweight="bold")  # fmt: skip
        axes.text(0.15, place - 0.16, row["idea"], va="center", fontsize=9, color=INK)
        axes.text(0.05, place + 0.2, f"from {row['source']}; tile {row['tiles'][0]} threads",
                  va="center", fontsize=8, color=QUIET)  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def race(facts: dict[str, Any], path: Path) -> None:
    """Draw the end of a race into a PNG: shares of torch.mm, or counts, beside a roofline."""
    rows = [row for row in facts["stages"] if row["counts"]]
    figure = new_figure(13, 2.4 + 0.34 * len(rows))
    rows = [row for row in rows if row["counts"]["counted"]]
    height = figure.get_figheight()
    bottom, inner = 0.62 / height, (height - 1.75) / height
    _standing(figure.add_axes((0.155, bottom, 0.33, inner)), facts)
    _roofline(figure.add_axes((0.56, bottom, 0.42, inner)), facts, rows)
    what = "The race" if facts["gpu"] else "The race of counts"
    below = (
        "taken in turns, chip hot"
        if facts["gpu"]
        else "no GPU here: nothing was timed; each stage's own source was counted as it ran"
    )
    problem = " x ".join(map(str, facts["shape"])) + f" {facts['layout']}"
    figure.text(0.015, 1 - 0.36 / height, f"{what} at {problem}, FP32",
                fontsize=14, fontweight="bold", color=INK, va="center")  # fmt: skip
    figure.text(0.015, 1 - 0.68 / height, f"{facts['device']}; {below}", fontsize=9, color=QUIET,
                va="center")  # fmt: skip
    save(figure, path)


def _standing(axes: Axes, facts: dict[str, Any]) -> None:
    rows = facts["stages"]
    for place, row in enumerate(rows):
        if facts["gpu"]:
            axes.barh(place, row["share"] or 0.0, height=0.62, color=BLUE)
            text = row["note"] or f" {row['share']:.0%}"
            axes.text(row["share"] or 0.0, place, text, va="center", fontsize=8.5, color=INK)
            if row["mark"] is not None:
                axes.plot([row["mark"]] * 2, [place - 0.42, place + 0.42], color=ORANGE,
                          linewidth=2)  # fmt: skip
        else:
            if not row["counts"]["counted"]:
                axes.text(0.02, place, "TMA and wgmma: not counted", va="center", fontsize=7.5,
                          color=QUIET, transform=axes.get_yaxis_transform())  # fmt: skip
                continue
            # All wavefronts in red, then the ideal over them: what stays red are conflicts.
            parts = (("shared_wavefronts", RED, 0.17), ("shared_ideal", BLUE, 0.17),
                     ("sectors", ORANGE, -0.17))  # fmt: skip
            for part, color, above in parts:
                number = row["counts"][part]
                axes.barh(place - above, number, height=0.32, color=color)
                if number and part != "shared_ideal":
                    axes.text(number, place - above, f" {number:.1f}", va="center", fontsize=7.5,
                              color=INK)  # fmt: skip
    if facts["gpu"]:
        dress(axes, "Share of torch.mm")
        axes.axvline(1.0, color=INK, linewidth=0.8)
        axes.plot([], [], color=ORANGE, linewidth=2, label="mark, on an H200")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    else:
        dress(axes, "For 1000 multiply-adds, fewer is better")
        for label, color in (("shared wavefronts", BLUE), ("more by bank conflicts", RED),
                             ("gmem sectors", ORANGE)):  # fmt: skip
            axes.plot([], [], "s", color=color, label=label)
        axes.set_xscale("log")
    axes.margins(x=0.14)
    axes.set_yticks(range(len(rows)), [f"{row['name']}  {row['rung'] or '':>2}" for row in rows],
                    fontsize=9.5)  # fmt: skip
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="best")


def _roofline(axes: Axes, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Rungs' speed on a GPU, else only the place on the x axis, under the roofs of `race.roofs`.

    What a kernel asks for comes through L1, so that line bounds it; what caches do not hold comes
    from memory, as fast as a copy at best, so a point above the copy's line lives off them.
    """
    roofs = facts["roofs"]
    peak = roofs["fp32_tflops"]
    rows = [row for row in rows if row["rung"]]
    reach = [row["counts"]["flop_per_byte"] for row in rows]
    low, high = min(reach) / 3, 3 * max([*reach, (peak or 1.0) / roofs["memory_tbs"]])
    for name, speed in (("copy", roofs["memory_tbs"]), ("L1", roofs["l1_tbs"])):
        if speed:
            axes.plot([low, high], [low * speed, high * speed], color=GREY, linewidth=1.4)
            axes.text(low * 1.15, low * 2 * speed, f"{name} {speed:.1f} TB/s", color=QUIET,
                      fontsize=8.5, bbox=PAPER)  # fmt: skip
    floor = low * roofs["memory_tbs"]
    if peak:
        axes.axhline(peak, color=GREY, linewidth=1.4)
        axes.text(high / 1.15, peak * 1.1, f"FP32 peak {peak:.0f} TFLOP/s", color=QUIET,
                  fontsize=8.5, ha="right", bbox=PAPER)  # fmt: skip
    best = [row["tflops"] or 0.0 for row in rows]
    axes.set_ylim(floor, 2.5 * max([peak or facts.get("torch_mm_tflops", 1.0), *best]))
    if facts["gpu"]:
        axes.axhline(facts["torch_mm_tflops"], color=ORANGE, linewidth=1, linestyle="--")
        axes.text(low * 1.15, facts["torch_mm_tflops"] / 1.1, "torch.mm", color=ORANGE,
                  fontsize=8.5, va="top")  # fmt: skip
    together: dict[str, list[str]] = {}
    numbers = []
    for row, intensity in zip(rows, reach, strict=True):
        if row["tflops"] is not None:
            axes.plot([intensity], [row["tflops"]], "o", color=BLUE, markersize=5)
            numbers.append((str(row["rung"]), (intensity, row["tflops"])))
        elif not facts["gpu"]:
            axes.axvline(intensity, color=BLUE, linewidth=0.8, linestyle=":")
            together.setdefault(f"{intensity:.2g}", []).append(str(row["rung"]))
    title = "Roofline; a number is a rung"
    if not facts["gpu"]:
        title = f"Where each rung stands under the roofs of {roofs['of']}"
    dress(axes, title, "FLOP for a byte that the kernel asks of gmem", "TFLOP/s")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    _number(axes, numbers)
    _number_lines(axes, [(", ".join(rungs), float(at)) for at, rungs in together.items()], floor)


def _number(axes: Axes, points: Sequence[tuple[str, tuple[float, float]]]) -> None:
    """Write each point's text beside it, at the nearest place that is free of texts and points.

    The axes have their scales and limits by now.
    """
    inch = 72 / axes.figure.dpi  # of a pixel, in points of the typeface
    at = [axes.transData.transform(point) * inch for _, point in points]
    # Left, lower, right, upper edge of what is taken: points first, then texts.
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in at]
    places = [(dx, sign * (1 + 8 * away) - (8 if sign < 0 else 0)) for away in range(4)
              for dx in (4, -4) for sign in (-1, 1)]  # fmt: skip
    for (text, point), (x, y) in zip(points, at, strict=True):
        width = 5.2 * len(text)
        for dx, dy in places:
            left, low = x + (dx if dx > 0 else dx - width), y + dy
            box = (left, low, left + width, low + 8)
            if not any(_meet(box, other) for other in taken):
                break
        taken.append(box)
        axes.annotate(text, point, xytext=(box[0] - x, box[1] - y), textcoords="offset points",
                      fontsize=8, color=INK)  # fmt: skip


def _number_lines(axes: Axes, lines: Sequence[tuple[str, float]], floor: float) -> None:
    """Write each line's text upright beside its foot, or above texts of its neighbours there."""
    inch = 72 / axes.figure.dpi
    taken: list[tuple[float, ...]] = []
    for text, place in sorted(lines, key=lambda line: line[1]):
        x, y = axes.transData.transform((place, floor)) * inch
        left, low = x + 2, y + 16
        while any(_meet((left, low, left + 12, low + 5.5 * len(text)), box) for box in taken):
            low += 4
        taken.append((left, low, left + 12, low + 5.5 * len(text)))
        axes.annotate(text, (place, floor), xytext=(left - x, low - y), textcoords="offset points",
                      fontsize=8.5, color=INK, rotation=90, va="bottom",
                      bbox={**PAPER, "pad": 1})  # fmt: skip


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, lower, right, upper) have a place in common."""
    across = one[0] < other[2] and other[0] < one[2]
    return across and one[1] < other[3] and other[1] < one[3]


def accuracy(facts: dict[str, Any], path: Path) -> None:
    """Draw the errors of `accuracy.collect` into a PNG: a panel for each kind of operands."""
    names = list(dict.fromkeys(row["distribution"] for row in facts["rows"]))
    across = min(5, len(names))
    down = -(-len(names) // across)
    figure = new_figure(max(3 * across, 11), 1.6 + 2.7 * down)
    height = figure.get_figheight()
    grid = figure.add_gridspec(
        down, across, hspace=0.42, wspace=0.24,
        left=0.05, right=0.985, top=1 - 1.35 / height, bottom=0.55 / height,
    )  # fmt: skip
    panels = [figure.add_subplot(grid[divmod(i, across)]) for i in range(len(names))]
    for axes, name in zip(panels, names, strict=True):
        _errors(axes, [row for row in facts["rows"] if row["distribution"] == name])
        first = axes.get_subplotspec().is_first_col()
        dress(axes, name, "K", "error, u = 2^-24 of |A| |B|" if first else "")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(0.045, 1 - 0.78 / height),
                  ncols=len(labels), frameon=False, fontsize=9, labelcolor=INK)  # fmt: skip
    verdict = "no worse than the strict chain" if facts["kept"] else "WORSE than the contract"
    figure.text(0.05, 1 - 0.36 / height, f"Accuracy of FP32 products: {verdict}", fontsize=14,
                fontweight="bold", color=INK if facts["kept"] else RED, va="center")  # fmt: skip
    where = "" if facts["gpu"] else ", stages on the emulator"
    figure.text(
        0.05, 1 - 0.66 / height, f"{facts['device']}{where}; {facts['size']} x {facts['size']} "
        "elements each against float64; lines: root mean square, dots: largest",
        fontsize=9, color=QUIET, va="center",
    )  # fmt: skip
    save(figure, path)


def _errors(axes: Axes, rows: list[dict[str, Any]]) -> None:
    depths = [row["k"] for row in rows]
    # What is measured against lies below, and wider, so that what covers it is seen to.
    styles = {
        "chain": (GREY, 4.0),
        "TF32": (RED, 1.2),
        "torch.mm": (INK, 1.0),
        "sgemm": (BLUE, 2.2),
    }
    names = list(rows[0]["errors"])
    colors = iter(distinct(sum(name not in styles for name in names)))
    for name in names:
        color, width = styles.get(name) or (next(colors), 1.4)
        for term, look in (("rms", {"linewidth": width}), ("largest", {"linewidth": 0})):
            axes.plot(depths, [row["errors"][name][term] or None for row in rows], color=color,
                      marker="o" if term == "largest" else None, markersize=1.2 + width,
                      label=name if term == "rms" else None, **look)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
