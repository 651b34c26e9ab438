"""Pictures of stages that multiply limbs: a float in limbs, and a ring of slices over time.

The limbs are those of a number, decomposed here as emulation/decompose.h does. The ring is not
traced: it is the order that mainloop/emulated_wgmma.h keeps, with the stage's own numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..tools.plotting import BLUE, GREEN, GREY, GRID, INK, ORANGE, QUIET, new_figure
from .anatomy import Anatomy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIMBS, RING = "limbs", "ring"
TITLES = {
    LIMBS: "A float in {limbs} limbs: the bits that each holds, by what they are worth",
    RING: "Slices over time: where they lie, and which sum their products go to",
}
GUIDE = (
    "- **Limbs.** A float, scaled so that its row's largest lies between 2^14 and 2^15, and the "
    "limbs that it is decomposed into, each with its sign; a cell is a bit, in the column of the "
    "power of two that it stands for. Each limb is what is left, rounded to nearest. The last row "
    "is what all of them leave out.",
    "- **Ring.** Time goes to the right, in instructions of the tensor cores; a row is a slot of "
    "the ring. Grey: a slice is on its way there; then the products of its first limbs (orange, "
    "`acc_hi`) and all others (blue, `acc_corr`). Below, `acc_hi` is added to `acc` (green) while "
    "the tensor cores make `acc_corr`. That order is the source's; how long a fetch takes is not "
    "known, and drawn as short as can be.",
)
NUMBER = math.pi
LAST = -9  # the power of two of its last bit, scaled
STEP_K = 16  # of K, that one instruction of the tensor cores takes


def available(drawn: Anatomy) -> list[tuple[str, str]]:
    """Names and titles of the pictures that a stage has."""
    if not drawn.limbs:
        return []
    # The ring is emulated_wgmma.h's, which has threads that only fetch.
    names = [LIMBS, RING] if drawn.tile.by_tma else [LIMBS]
    return [(name, TITLES[name].format(limbs=drawn.limbs)) for name in names]


def draw(drawn: Anatomy, name: str) -> Figure:
    """Draw one of them."""
    return {LIMBS: _limbs, RING: _ring}[name](drawn)


def decompose(x: float, limbs: int) -> list[float]:
    """Give the limbs of a float that lies between 2^14 and 2^15, each as what it stands for."""
    kind, scale = (torch.float16, 2.0**11) if limbs == 2 else (torch.bfloat16, 1.0)
    rest, found = torch.tensor(x, dtype=torch.float32), []
    for number in range(limbs):
        limb = rest.to(kind).float()
        found.append(limb.item() / scale**number)
        rest = (rest - limb) * scale
    return found


def bits(x: float, wide: int = 1) -> tuple[int, str]:
    """Give the exponent of the first bit of ``x``, which is not zero, and ``wide`` bits or more.

    The bits go as far as the last 1, and no further than those of the whole FP32 number.
    """
    fraction, exponent = math.frexp(abs(x))
    text = f"{int(math.ldexp(fraction, 60)):b}".rstrip("0")
    return exponent - 1, text.ljust(min(wide, exponent - LAST), "0")


def _limbs(drawn: Anatomy) -> Figure:
    x = torch.tensor(NUMBER, dtype=torch.float32).item()
    x = math.ldexp(x, 14 - math.frexp(x)[1] + 1)
    found = decompose(x, drawn.limbs)
    names = ["hi", "lo"] if drawn.limbs == 2 else [f"p{number}" for number in range(drawn.limbs)]
    kind, wide = ("fp16", 11) if drawn.limbs == 2 else ("bf16", 8)
    rows = [("t, FP32", x, GREY)]
    colors = (ORANGE, BLUE, GREEN)
    rows += [(f"{name}, {kind}", limb, color)
             for name, limb, color in zip(names, found, colors, strict=False)]  # fmt: skip
    rows.append(("t less these", x - sum(found), GREY))
    made = new_figure(8.4, 1.35 + 0.42 * len(rows))
    height = made.get_figheight()
    axes = made.add_axes((0.13, 0.42 / height, 0.85, (height - 1.15) / height))
    for row, (_, value, color) in enumerate(rows):
        if not value:
            axes.text(14, row, "0", ha="center", va="center", fontsize=8, color=QUIET)
            continue
        first, text = bits(value, wide if 0 < row < len(rows) - 1 else 1)
        axes.text(first + 1, row, "-" if value < 0 else "+", ha="center", va="center", fontsize=9,
                  color=INK)  # fmt: skip
        for place, bit in enumerate(text):
            axes.add_patch(_cell(first - place - 0.46, row - 0.36, 0.92, 0.72, color))
            axes.text(first - place, row, bit, ha="center", va="center", fontsize=8, color=INK)
    axes.set_xlim(15.8, LAST - 0.8)
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    ticks = range(14, LAST - 1, -4)
    axes.set_xticks(list(ticks), [f"$2^{{{power}}}$" for power in ticks])
    _frame(axes)
    return made


def _ring(drawn: Anatomy) -> Figure:
    tile, steps = drawn.tile, drawn.tile.BK // STEP_K
    main = steps
    rest = steps * (drawn.limbs * (drawn.limbs + 1) // 2 - 1)
    slices = tile.buffers + 3
    whole = main + rest
    made = new_figure(9.4, 1.6 + 0.3 * (tile.buffers + 1))
    height = made.get_figheight()
    axes = made.add_axes((0.1, 0.5 / height, 0.88, (height - 1.3) / height))
    for number in range(slices):
        row, start = number % tile.buffers, number * whole
        # A slot is free when the products of its slice are made, which is known when acc_hi of
        # the next slice is.
        free = (number - tile.buffers + 1) * whole + main if number >= tile.buffers else -whole
        axes.add_patch(_cell(free, row + 0.12, main, 0.76, GRID))
        for begin, length, color in ((start, main, ORANGE), (start + main, rest, BLUE)):
            axes.add_patch(_cell(begin, row + 0.12, length, 0.76, color))
            axes.text(begin + length / 2, row + 0.5, str(number), ha="center", va="center",
                      fontsize=7, color=INK)  # fmt: skip
        axes.add_patch(_cell(start + main, tile.buffers + 0.12, main, 0.76, GREEN))
    axes.set_xlim(-whole, slices * whole)
    axes.set_ylim(tile.buffers + 1, 0)
    axes.set_yticks([row + 0.5 for row in range(tile.buffers + 1)],
                    [*map(str, range(tile.buffers)), "acc +="])  # fmt: skip
    axes.set_xticks([number * whole for number in range(slices + 1)])
    axes.set_xlabel(f"instructions of the tensor cores, of {STEP_K} of K each", fontsize=8,
                    color=QUIET)  # fmt: skip
    axes.set_ylabel("slot of the ring", fontsize=8, color=QUIET)
    for label, color in (("on its way, by TMA", GRID), (f"acc_hi, {main} instructions", ORANGE),
                         (f"acc_corr, {rest}", BLUE), ("acc += acc_hi", GREEN)):  # fmt: skip
        axes.plot([], [], "s", color=color, label=label)
    _frame(axes)
    made.legend(frameon=False, fontsize=8, ncols=4, labelcolor=INK, loc="upper left",
                bbox_to_anchor=(0.0, 1 - 0.46 / height), handletextpad=0.1,
                columnspacing=1.2)  # fmt: skip
    return made


def _cell(x: float, y: float, width: float, height: float, color: str) -> object:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=color, edgecolor="white", linewidth=0.6,
                     alpha=0.75)  # fmt: skip


def _frame(axes: Axes) -> None:
    axes.tick_params(colors=QUIET, labelsize=8, length=2)
    for side in axes.spines.values():
        side.set_color(GRID)
