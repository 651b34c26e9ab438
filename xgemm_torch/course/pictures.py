"""Pictures of a stage's schedule, drawn from a trace of it: tile, banks, timeline."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..tools.plotting import BLUE, GREEN, GREY, GRID, INK, ORANGE, QUIET, RED, new_figure, save
from . import limb_pictures, svg
from .anatomy import BANKS, WARP, Anatomy, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Neighbouring warps differ; the ninth has the colour of the first.
WARPS = ("#8fb8de", "#f4b183", "#a9d18e", "#d9a5d3", "#ffd966", "#9fd5d1", "#e6a0a0", "#bfbfbf")
PURPLE = "#7d5ba6"
# Rows of 32 words of a shared array that are shown; a larger one goes on in the same way.
BANK_ROWS = 24
TITLES = {
    "tile": "Who owns which element of D, and who loads which of A and B",
    "banks": "How the slices lie in the banks, and what a warp asks of them",
    "timeline": "What happens between which barriers",
}
GUIDE = (
    "- **Tile.** D is at the bottom right, A's slice to its left with the same rows, B's above it "
    "with the same columns. A colour is a warp, and its lanes go from light to dark. In D an "
    "element has the colour of the thread that computes it; in a slice, of the one that loads it. "
    "Where a stage has no slices, A and B show "
    "what one load instruction of one warp touches. Black is one thread: its results, and the "
    "elements that it loads.",
    "- **Banks.** A row of a map is 32 words of shared memory, one in each bank; darker is later "
    "in K, white is padding. Black are the words that one pass of a warp's worst read asks for: in "
    "different columns they come at once, in one column one after the other. The bars beside it "
    "count the words of such a pass in each bank, line by line of the source; red is a conflict.",
    "- **Timeline.** A column is the time between two barriers, a row is a slice of K. Orange: its "
    "elements are loaded from gmem into registers; purple: their `cp.async` is issued; green: they "
    "are stored to shared memory; blue: they are read from there. What stands in the same column "
    "can overlap.",
    *limb_pictures.GUIDE,
)


def available(drawn: Anatomy) -> list[tuple[str, str]]:
    """Names and titles of the pictures that a stage has."""
    names = ["tile", "banks", "timeline"] if drawn.staged else ["tile"]
    return [*limb_pictures.available(drawn), *((name, TITLES[name]) for name in names)]


def draw(drawn: Anatomy, name: str, path: Path) -> None:
    """Draw one picture into ``path``, an SVG or, by its suffix, a PNG."""
    titles = dict(available(drawn))
    mine = {"tile": _tile, "banks": _banks, "timeline": _timeline}
    made = mine[name](drawn) if name in mine else limb_pictures.draw(drawn, name)
    inch = 1 / made.get_figheight()
    made.text(0.012, 1 - 0.1 * inch, drawn.stage.numbered, fontsize=11,
              fontweight="bold", color=INK, va="top")  # fmt: skip
    made.text(0.012, 1 - 0.32 * inch, titles[name], fontsize=8.5, color=QUIET, va="top")
    from matplotlib import rc_context

    # Text stays text, names come from a fixed salt and no date is written: the same picture is the
    # same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "xgemm", "font.family": "sans-serif"}):
        if path.suffix == ".svg":
            written = io.StringIO()
            made.savefig(written, format="svg", metadata={"Date": None})
            path.write_text(svg.slim(written.getvalue(), drawn.digest()), encoding="utf-8")
        else:
            save(made, path)


def shows(drawn: Anatomy, name: str) -> str:
    """Digest what a picture shows: who has seen one has seen all others of the same digest.

    It goes by owners of elements (tile), by the slices of each stretch (timeline), by the bytes,
    the banks and the conflicts of each kind of access (banks), by the numbers of limbs and of slots
    (limbs, ring); not by names, lines of the source, or the depth of a slice.
    """
    tile = drawn.tile
    shown: list[object] = [name]
    if name == "tile":
        loaded = len(drawn.loads) or len(drawn.copies)
        shown += [drawn.threads, drawn.owner, drawn.staged]
        shown += [_loaders(drawn, operand)[0] for operand in "AB" if loaded]
    elif name == "banks":
        strips = _strips(_by_line(drawn))
        shown += sorted(
            {(what, size, int(n.max()), int((n > 0).sum())) for _, what, size, n in strips}
        )
    elif name == "timeline":
        shown += [drawn.phases, _events(drawn)]
    else:
        shown += [drawn.limbs, (tile.buffers, tile.BK) if name == limb_pictures.RING else ()]
    found = hashlib.sha256()
    for part in shown:
        if isinstance(part, np.ndarray):
            part = (part.shape, part.astype(np.int64).tobytes())
        found.update(repr(part).encode())
    return found.hexdigest()[:16]


def _colors(values: np.ndarray) -> np.ndarray:
    """RGB of each element's warp, darker by lane; where there is no thread (-1), nearly white."""
    from matplotlib.colors import to_rgb

    palette = np.array([to_rgb(color) for color in WARPS] + [to_rgb("#f4f6f8")])
    colors = palette[np.where(values < 0, len(WARPS), values // WARP % len(WARPS))]
    lane = np.where(values < 0, 0, values % WARP)
    return colors * (1 - 0.3 * lane / (WARP - 1))[..., None]


def _frame(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=8.5, color=INK, loc="left", pad=4)
    axes.tick_params(colors=QUIET, labelsize=7, length=2)
    for side in axes.spines.values():
        side.set_color(GRID)


def _grid_image(axes: Axes, owner: np.ndarray, chosen: np.ndarray, title: str) -> None:
    """An element is a cell; those of ``chosen`` (a mask) are black."""
    colors = _colors(owner)
    colors[chosen] = 0.08
    rows, columns = owner.shape
    axes.imshow(colors, interpolation="none", aspect="auto", extent=(0, columns, rows, 0))
    for at, lines in ((axes.set_xticks, columns), (axes.set_yticks, rows)):
        at(sorted({0, lines // 2, lines}))
    _frame(axes, title)


def _loaders(drawn: Anatomy, operand: str) -> tuple[np.ndarray, str]:
    """Who loads each element of the first slice, and what to call it.

    Of a stage without slices: the elements that one load of the chosen thread's warp touches.
    """
    moved = drawn.loads.of(operand) if len(drawn.loads) else drawn.copies.of(operand)
    shape = (drawn.rows, drawn.depth) if operand == "A" else (drawn.depth, drawn.columns)
    owner = np.full(shape, -1, dtype=np.int64)
    moved = moved[(moved.i < shape[0]) & (moved.j < shape[1])]
    if drawn.limbs:
        # The first limbs, which are copied first, and the second element of each word.
        moved = moved[::-1]
        owner[moved.i, moved.j] = moved.thread
        across = (0, 1) if operand == "A" else (1, 0)
        owner[moved.i + across[0], moved.j + across[1]] = moved.thread
        return owner, f"{operand}, the first limbs of a slice"
    if drawn.staged:
        owner[moved.i, moved.j] = moved.thread
        return owner, f"{operand}, a slice"
    mine = moved[moved.thread == drawn.chosen]
    request = moved[moved.request == mine.request[0]]
    owner[request.i, request.j] = request.thread
    return owner, f"{operand}, one load of a warp"


def _tile(drawn: Anatomy) -> Figure:
    made = new_figure(7.2, 6.6)
    across = made.add_gridspec(
        2, 2, width_ratios=(1, 3.2), height_ratios=(1, 3.2), left=0.075, right=0.97, top=0.88,
        bottom=0.06, wspace=0.16, hspace=0.16,
    )  # fmt: skip
    # What TMA brings no thread loads.
    loaded = len(drawn.loads) or len(drawn.copies)
    panels = (("A", across[1, 0]), ("B", across[0, 1])) if loaded else ()
    for operand, cell in panels:
        owner, title = _loaders(drawn, operand)
        chosen = owner == drawn.chosen
        if not drawn.staged:
            mine = drawn.loads.of(operand)
            mine = mine[(mine.thread == drawn.chosen) & (mine.i < len(owner))]
            mine = mine[mine.j < owner.shape[1]]
            chosen[mine.i, mine.j] = True
        _grid_image(made.add_subplot(cell), owner, chosen, title)
    cell = across[1, 1] if loaded else across[:, 1]
    _grid_image(made.add_subplot(cell), drawn.owner, drawn.owner == drawn.chosen, "D")
    told = (f"{drawn.threads} threads", f"{-(-drawn.threads // WARP)} warps",
            f"{drawn.rows} x {drawn.columns}", f"black: thread {drawn.chosen}")  # fmt: skip
    made.text(0.03, 0.87, "\n".join(told), fontsize=8, color=QUIET, va="top")
    return made


def _fullest(words: Words) -> Words:
    """The pass of all requests in ``words`` that has most different words in one bank.

    A pass is of 32 lanes for accesses of 4 bytes, of 16 for 8, of 8 for 16.
    """
    # What one warp asks of a place others ask elsewhere: the first is enough.
    words = words[words.thread < WARP]
    request = words.request.astype(np.int64)
    lane = request * WARP + words.thread
    _, which, each = np.unique(lane, return_inverse=True, return_counts=True)
    passes = request * 4 + words.thread // (WARP // each[which])
    different = np.unique(np.stack([passes, words.word]), axis=1)
    in_bank, ways = np.unique(different[0] * BANKS + different[1] % BANKS, return_counts=True)
    return words[passes == in_bank[ways.argmax()] // BANKS]


def _in_banks(words: Words) -> np.ndarray:
    """Count the different words in each bank."""
    return np.bincount(np.unique(words.word) % BANKS, minlength=BANKS)


def _by_line(drawn: Anatomy) -> list[tuple[str, str, Words]]:
    """Each source line's shared accesses: place, "load" or "store", words."""
    names = np.array(drawn.places)
    found = []
    for kind, words in (("store", drawn.stores), ("copy", drawn.copies), ("read", drawn.reads)):
        lines = names[words.place] if len(words) else np.array([], dtype=str)
        for line in sorted(set(lines.tolist()), key=lambda at: int(at.rpartition(":")[2])):
            at_line = words[lines == line]
            found += [(line, f"{kind} {operand}", part) for operand in "AB"
                      if len(part := at_line.of(operand))]  # fmt: skip
    return found


def _strips(
    lines: Sequence[tuple[str, str, Words]],
) -> Iterator[tuple[str, str, int, np.ndarray]]:
    """Of each line its fullest pass: bytes a lane, and the words in each bank."""
    for line, what, words in lines:
        part = _fullest(words)
        yield line, what, 4 * len(part) // max(1, len(np.unique(part.thread))), _in_banks(part)


def _banks(drawn: Anatomy) -> Figure:
    lines = _by_line(drawn)
    made = new_figure(9.0, max(4.4, 1.0 + 0.62 * len(lines)))
    height = made.get_figheight()
    top = 1 - 0.85 / height
    maps = made.add_gridspec(2, 1, left=0.055, right=0.42, top=top, bottom=0.06, hspace=0.32)
    for number, operand in enumerate("AB"):
        _bank_map(made.add_subplot(maps[number]), drawn, operand)
    strips = made.add_gridspec(len(lines), 1, left=0.5, right=0.985, top=top, bottom=0.06,
                               hspace=1.0)  # fmt: skip
    for number, (line, what, size, in_banks) in enumerate(_strips(lines)):
        axes = made.add_subplot(strips[number])
        ways = int(in_banks.max())
        asked = np.flatnonzero(in_banks)
        axes.bar(asked, in_banks[asked], width=0.82, color=RED if ways > 1 else BLUE)
        axes.set_xlim(-0.6, BANKS - 0.4)
        axes.set_ylim(0, max(2, ways))
        axes.set_xticks([])
        axes.set_yticks([ways])
        verdict = "no conflict" if ways == 1 else f"{ways} ways"
        _frame(axes, f"{line}: {what}, {size} bytes a lane: {verdict}")
    return made


def _slice_in_banks(drawn: Anatomy, operand: str) -> tuple[int, np.ndarray, np.ndarray]:
    """The first row that is shown, the k of each word, -1 for none, and the words of a read."""
    written = drawn.stores.of(operand) if len(drawn.stores) else drawn.copies.of(operand)
    first = int(written.word.min()) // BANKS
    rows = min(BANK_ROWS, int(written.word.max()) // BANKS - first + 1)
    k_of = np.full((rows, BANKS), -1)
    shown = written[(written.word // BANKS < first + rows)]
    # The earliest content of each word: the first slice's. Writing in reverse leaves it on top.
    shown = shown[np.argsort(shown.phase, kind="stable")[::-1]]
    k = (shown.j if operand == "A" else shown.i) % drawn.depth
    k_of[shown.word // BANKS - first, shown.word % BANKS] = k
    words = np.unique(_fullest(drawn.reads.of(operand)).word)
    return first, k_of, words[(words // BANKS >= first) & (words // BANKS < first + rows)]


def _bank_map(axes: Axes, drawn: Anatomy, operand: str) -> None:
    from matplotlib.colors import to_rgb

    first, k_of, words = _slice_in_banks(drawn, operand)
    rows = len(k_of)
    base = np.array(to_rgb(ORANGE if operand == "A" else GREEN))
    strength = np.where(k_of < 0, 0.0, 0.18 + 0.6 * k_of / max(1, drawn.depth - 1))[..., None]
    colors = 1 - strength * (1 - base)
    axes.imshow(colors, interpolation="none", aspect="auto",
                extent=(0, BANKS, first + rows, first))  # fmt: skip
    axes.plot(words % BANKS + 0.5, words // BANKS + 0.5, "s", color="black", markersize=3)
    axes.set_xticks([0, 8, 16, 24, 31], ["0", "8", "16", "24", "bank 31"])
    _frame(axes, f"{operand}'s slice in shared memory, 32 words a row")


def _events(drawn: Anatomy) -> list[tuple[str, dict[int, list[int]], str]]:
    """What happens to slices: its name, the slices by stretch between barriers, its colour."""
    parts = (
        ("gmem to registers", drawn.loads, ORANGE),
        ("cp.async issued", drawn.copies, PURPLE),
        ("stored to shared memory", drawn.stores, GREEN),
        ("read from shared memory", drawn.reads, BLUE),
    )
    return [(label, drawn.slices(words), color) for label, words, color in parts if len(words)]


def _timeline(drawn: Anatomy) -> Figure:
    from matplotlib.patches import Rectangle

    present = _events(drawn)
    slices = 1 + max(max(rows) for _, found, _ in present for rows in found.values())
    phases = drawn.phases
    made = new_figure(max(6.0, 1.6 + 0.42 * phases), 1.6 + 0.36 * slices)
    height = made.get_figheight()
    axes = made.add_axes((0.1, 0.5 / height, 0.88, (height - 1.35) / height))
    band = 1 / len(present)
    for number, (label, found, color) in enumerate(present):
        for phase, rows in found.items():
            for row in rows:
                axes.add_patch(Rectangle((phase + 0.06, row + 0.08 + 0.84 * band * number), 0.88,
                                         0.84 * band, color=color, linewidth=0))  # fmt: skip
        axes.plot([], [], "s", color=color, label=label)
    for phase in range(1, phases):
        axes.axvline(phase, color=INK, linewidth=0.7)
    axes.set_xlim(0, phases)
    axes.set_ylim(slices, 0)
    axes.set_xticks([phase + 0.5 for phase in range(phases)], range(phases))
    axes.set_yticks([row + 0.5 for row in range(slices)], range(slices))
    axes.set_ylabel(f"slice of K ({drawn.depth} each)", fontsize=8, color=QUIET)
    axes.set_xlabel("barriers passed", fontsize=8, color=QUIET)
    axes.grid(True, axis="y", color=GREY, linewidth=0.3)
    _frame(axes, "")
    made.legend(frameon=False, fontsize=8, ncols=len(present), labelcolor=INK, loc="upper left",
                bbox_to_anchor=(0.0, 1 - 0.46 / height), handletextpad=0.1,
                columnspacing=1.2)  # fmt: skip
    return made
