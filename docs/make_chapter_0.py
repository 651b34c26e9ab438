"""Writes the figures and pictures of docs/chapter-0.md: small kernels, run and counted.

    python docs/make_chapter_0.py            # needs g++, and no GPU
    python docs/make_chapter_0.py --check    # writes nothing; exit code 1 when something is stale

A block of the page, ``<!-- figures: NAME -->`` to ``<!-- end -->``, has the lines that `BLOCKS`
makes: the kernels are those of docs/snippets, compiled and run by the emulator; limits are a
multiprocessor's; registers and speeds come from benchmarks/results.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import listings  # noqa: E402
from markdown_parts import table, tflops  # noqa: E402

from benchmarks import records  # noqa: E402
from build_tools import ptxas, results  # noqa: E402
from xgemm_torch.course import arithmetic, counts, marks, svg  # noqa: E402
from xgemm_torch.course.exercises.exercise import Case  # noqa: E402
from xgemm_torch.course.exercises.truth import GPU  # noqa: E402
from xgemm_torch.registry import Stage, stages  # noqa: E402
from xgemm_torch.tools import plotting  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = ROOT / "docs" / "chapter-0.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SIZE = 4096
KIB = 1024

# The tagged lines of the snippets: what is at a lane's index, and the index itself. Pictures are
# drawn from these; `check_indices` compares them with the counts.
LOADS: dict[str, tuple[str, Callable[[int], int]]] = {
    "neighbours": ("x[lane]", lambda lane: lane),
    "shared": ("x[lane / 4]", lambda lane: lane // 4),
    "second": ("x[2 * lane]", lambda lane: 2 * lane),
    "eighth": ("x[8 * lane]", lambda lane: 8 * lane),
}
READS: dict[str, tuple[str, Callable[[int], int]]] = {
    "row": ("S[36 * lane]", lambda lane: 36 * lane),
    "eight": ("S[8 * lane]", lambda lane: 8 * lane),
    "shared": ("S[lane / 2]", lambda lane: lane // 2),
}
# Whose limits the page works out.
OCCUPANCY = ("coalesced", "thread_tile_dot", "warp_tiled", "cp_async_pipelined")
# Whose place under the roofs it shows: of the path, those that are counted, the slow one left out.
ROOFLINE = (
    "naive",
    "coalesced",
    "smem_tiled",
    "block_tile_2d",
    "warp_tiled",
    "cp_async_pipelined",
)


def listing(name: str, said: dict[str, str] | None = None) -> list[str]:
    """A snippet as the page shows it; `said` stands in place of its tags."""
    lines = listings.snippets()[name].shown
    code = [re.sub(r" *// \(\w+\)$", "", line) for line in lines]
    width = max(len(c) for c, line in zip(code, lines, strict=True) if c != line)
    for at, line in enumerate(lines):
        tag = re.search(r"// \((\w+)\)$", line)
        if tag and said:
            code[at] = f"{code[at]:{width}}  // {said[tag[1]]}"
        elif tag:
            code[at] = line
    return ["```cpp", *code, "```"]


@functools.cache
def counted(name: str) -> dict[str, Any]:
    """What each tagged line of a snippet asks for, by tag: of the one kind that it asks."""
    snippet = listings.snippets()[name]
    told = snippet.counts()
    kind = "shared_load" if name == "machine_banks" else "global_load"
    return {tag: told.of(kind, snippet.places(tag)) for tag in snippet.tags}


def _some(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def warps() -> list[str]:
    """Requests of whole and of partial warps."""
    said = {
        tag: f"{asked.bytes // 4} threads: {_some(asked.requests, 'request')}, "
        f"{asked.bytes // 4 / asked.requests / 32:.0%} of their lanes at work"
        for tag, asked in counted("machine_warps").items()
    }
    return listing("machine_warps", said)


def sectors() -> list[str]:
    """Sectors of one request, by the lanes' addresses."""
    said = {}
    for tag, asked in counted("machine_sectors").items():
        used = len({LOADS[tag][1](lane) for lane in range(32)})
        said[tag] = f"{_some(asked.units, 'sector')}, {used / 8 / asked.units:.0%} of them used"
    return [
        *listing("machine_sectors", said),
        "![Sectors that a warp's load touches](images/chapter-0-sectors.svg)",
    ]


def banks() -> list[str]:
    """Wavefronts of one read, by the lanes' words."""
    said = {
        tag: _some(asked.units, "wavefront")
        + (f", {asked.units - asked.ideal} of them conflicts" if asked.units > asked.ideal else "")
        for tag, asked in counted("machine_banks").items()
    }
    return [
        *listing("machine_banks", said),
        "![Words that a warp's read asks of each bank](images/chapter-0-banks.svg)",
    ]


@functools.cache
def without() -> dict[str, str]:
    """What the emulator says of the barrier snippet without each barrier; "" where nothing."""
    snippet = listings.snippets()["machine_barrier"]
    run = Case.parse(snippet.said("problems")[0]).command("forward", 0)
    questions = [run, "skip -", run]
    for tag in snippet.tags:
        questions += [f"skip {snippet.places(tag)[0]}", run]
    answers = snippet.ask(questions)[2:]
    return dict(zip(("", *snippet.tags), (a.get("text", "") for a in answers[::2]), strict=True))


def barrier() -> list[str]:
    """What each barrier is for: the emulator's report without it."""
    told = without()
    if told[""]:
        raise ValueError(f"machine_barrier.cu: {told['']}")
    lines = [*listing("machine_barrier")]
    for tag in listings.snippets()["machine_barrier"].tags:
        text = told[tag].removeprefix("xgemm simt: ") or "nothing is reported"
        lines += [f"- Without the barrier `({tag})`: {text}."]
    return lines


@functools.cache
def compiled() -> dict[str, dict[str, Any]]:
    """What ptxas made of each stage's kernel for large problems, NN: of its fastest tile."""
    found = records.read(RESULTS / "compile.json")["stages"]
    by_name = {stage.name: stage for stage in stages()}
    return {
        name: next(k for k in found[name] if k["tile"] == counts.best_row(by_name[name]))
        for name in OCCUPANCY
    }


@functools.cache
def speeds() -> dict[str, float]:
    """TFLOP/s at `SIZE` cubed, NN, of the newest record that has a stage."""
    return {
        name: found["cases"][SIZE, "NN"][0]
        for name, found in results.measured(RESULTS / "h200").items()
        if (SIZE, "NN") in found["cases"]
    }


def link(name: str) -> str:
    """A stage, linked to its page."""
    (stage,) = (stage for stage in stages() if stage.name == name)
    return f"[{stage.rung} `{name}`](ladder/{Path(stage.file).stem}.md)"


def occupancy() -> list[str]:
    """Blocks that fit, limit by limit."""
    limits = ptxas.LIMITS[90]
    rows = []
    for name, k in compiled().items():
        of_warps = limits.threads // k["threads"]
        by_registers = ptxas.blocks_per_sm(90, k["threads"], k["registers"], 0)
        by_smem = limits.smem // (k["smem"] + KIB) if k["smem"] else limits.blocks
        fits = min(of_warps, by_registers, by_smem)
        if fits != k["blocks_per_sm"]:
            raise ValueError(f"{name}: {fits} blocks by hand, {k['blocks_per_sm']} on record")
        rows.append((
            link(name), k["threads"], k["registers"], f"{k['smem'] / KIB:.0f}", of_warps,
            by_registers, by_smem, f"**{fits}**", f"{fits * k['threads'] / limits.threads:.0%}",
            tflops(speeds()[name]),
        ))  # fmt: skip
    head = ("rung", "threads of a block", "registers of a thread", "shared memory, KiB",
            "blocks by threads", "by registers", "by shared memory", "fit", "occupancy",
            f"TFLOP/s at {SIZE}³")  # fmt: skip
    return [
        f"A multiprocessor of an H100 or H200 has room for {limits.blocks} blocks, "
        f"{limits.threads} threads, {ptxas.REGISTER_FILE} registers and {limits.smem // KIB} KiB "
        "of shared memory, of which each block takes 1 KiB more than it asks for.",
        "",
        *table(head, rows),
    ]


def latency() -> list[str]:
    """Bytes on the way, by Little's law, and what kernels have on the way."""
    bandwidth = marks.H200_ROOFS["memory_tbs"] * 1e12 / GPU.sms
    for_100_ns = bandwidth * 100e-9
    (ring,) = (s for s in stages() if s.name == "cp_async_pipelined")
    tile = ring.tiles[counts.best_row(ring)]
    slices = (tile.buffers - 1) * tile.BK * (tile.BM + tile.BN) * 4
    few = GPU.warps_per_sm // 4
    cases = (
        (f"{GPU.warps_per_sm} warps, one load of 4 bytes a lane each", GPU.warps_per_sm * 128),
        (f"{few} warps, four loads of 16 bytes a lane each", few * 4 * 512),
        (f"{link(ring.name)}: {tile.buffers - 1} slices of {tile.BK} x ({tile.BM} + {tile.BN}) "
         "floats by `cp.async`", slices),
    )  # fmt: skip
    rows = [(what, f"{n / KIB:.0f}", f"{100 * n / for_100_ns:.0f}") for what, n in cases]
    return [
        f"A copy runs at {marks.H200_ROOFS['memory_tbs']} TB/s on {marks.H200_ROOFS['of']}: "
        f"{bandwidth / 1e9:.0f} bytes a nanosecond for each of {GPU.sms} multiprocessors. For each "
        f"100 ns that a load takes, {for_100_ns / KIB:.1f} KiB must be on the way on each, all the "
        "time.",
        "",
        *table(
            ("on the way on one multiprocessor", "KiB", "fills the time of a load of, ns"), rows
        ),
    ]


def reach(stage: Stage) -> tuple[float, float, float]:
    """A stage's FLOP for a gmem byte, cycles of L1 for 1000 multiply-adds, and TFLOP/s at most."""
    told = counts.of(stage.name)
    fp32, l1 = arithmetic.cycles(told)
    return told["flop_per_byte"], l1, marks.H200_ROOFS["fp32_tflops"] * min(1.0, fp32 / l1)


def on_roofline() -> list[Stage]:
    """The rungs of `ROOFLINE`."""
    return [s for s in stages() if s.name in ROOFLINE]


def roofline() -> list[str]:
    """The roofs, and the path's rungs under them."""
    roofs = marks.H200_ROOFS
    rows = []
    for stage in on_roofline():
        flop, l1, most = reach(stage)
        rows.append((link(stage.name), f"{flop:.2f}", f"{l1:.1f}", tflops(most),
                     tflops(speeds()[stage.name])))  # fmt: skip
    fp32 = 1000 / arithmetic.FMA_A_CYCLE
    ridge = roofs["fp32_tflops"] / roofs["l1_tbs"]
    return [
        f"For 1000 multiply-adds a multiprocessor's FP32 units need 1000 / "
        f"{arithmetic.FMA_A_CYCLE} = {fp32:.1f} cycles, and L1 one cycle for each "
        f"{arithmetic.BYTES_A_CYCLE} bytes: a wavefront, or four sectors. The FP32 peak of "
        f"{roofs['of']} is {roofs['fp32_tflops']} TFLOP/s, L1 gives {roofs['l1_tbs']} TB/s; they "
        f"meet at {ridge:.1f} FLOP for a byte.",
        "",
        *table(("rung", "FLOP for a byte asked of gmem", f"cycles of L1 beside {fp32:.1f}",
                "TFLOP/s at most", f"measured, {SIZE}³"), rows),
        "",
        "![The path's rungs under the roofs](images/chapter-0-roofline.svg)",
    ]  # fmt: skip


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "warps": warps, "sectors": sectors, "banks": banks, "barrier": barrier,
    "occupancy": occupancy, "latency": latency, "roofline": roofline,
}  # fmt: skip


# --- pictures -------------------------------------------------------------------------------------


def drawn() -> dict[str, Any]:
    """What each picture shows."""
    lane = range(32)
    return {
        "sectors": {text: sorted({at(i) for i in lane}) for text, at in LOADS.values()},
        "banks": {
            text: [sum(w % 32 == bank for w in {at(i) for i in lane}) for bank in lane]
            for text, at in READS.values()
        },
        "roofline": {s.numbered: (*reach(s)[::2], speeds()[s.name]) for s in on_roofline()},
    }


def check_indices() -> None:
    """See that what is drawn is what was counted.

    Raises:
        ValueError: it is not.
    """
    shown = drawn()
    for tag, (text, _) in LOADS.items():
        touched = len({word // 8 for word in shown["sectors"][text]})
        if touched != counted("machine_sectors")[tag].units:
            raise ValueError(f"{text}: {touched} sectors are drawn")
    for tag, (text, _) in READS.items():
        if max(shown["banks"][text]) != counted("machine_banks")[tag].units:
            raise ValueError(f"{text}: {max(shown['banks'][text])} wavefronts are drawn")


def _sectors(data: dict[str, list[int]]) -> Figure:
    height = 0.65 + 0.34 * len(data)
    made = plotting.new_figure(7.2, height)
    axes = made.add_axes((0.16, 0.5 / height, 0.82, 1 - 0.55 / height))
    most = 20  # sectors that are shown
    for row, (text, words) in enumerate(data.items()):
        for sector in range(most):
            inside = [w for w in words if w // 8 == sector]
            color = "#f6d5b5" if inside else "#f1f3f5"
            axes.broken_barh([(8 * sector + 0.15, 7.7)], (row + 0.15, 0.7), facecolors=color)
        shown = [(w, 1) for w in words if w < 8 * most]
        axes.broken_barh(shown, (row + 0.15, 0.7), facecolors=plotting.ORANGE)
        axes.text(-1.5, row + 0.5, text, ha="right", va="center", fontsize=8.5,
                  family="monospace", color=plotting.INK)  # fmt: skip
    axes.set_xlim(0, 8 * most)
    axes.set_ylim(len(data), 0)
    axes.set_yticks([])
    axes.set_xticks([0, 32, 64, 96, 128, 160])
    axes.set_xlabel("word of x; a box is a sector, dark what lanes ask for", fontsize=8)
    axes.tick_params(colors=plotting.QUIET, labelsize=7.5, length=2)
    for side in axes.spines.values():
        side.set_visible(False)
    return made


def _banks(data: dict[str, list[int]]) -> Figure:
    height = 0.65 + 0.5 * len(data)
    made = plotting.new_figure(7.2, height)
    rows = made.add_gridspec(
        len(data), 1, left=0.16, right=0.98, top=0.97, bottom=0.5 / height, hspace=0.4
    )
    for row, (text, words) in enumerate(data.items()):
        axes = made.add_subplot(rows[row])
        color = plotting.RED if max(words) > 1 else plotting.BLUE
        axes.bar(range(32), words, width=0.8, color=color)
        axes.set_ylim(0, 8)
        axes.set_xlim(-0.6, 31.6)
        axes.set_yticks([max(words)])
        axes.set_xticks([0, 8, 16, 24, 31] if row + 1 == len(data) else [])
        axes.text(-0.045, 0.5, text, ha="right", va="center", fontsize=8.5, family="monospace",
                  color=plotting.INK, transform=axes.transAxes)  # fmt: skip
        axes.tick_params(colors=plotting.QUIET, labelsize=7.5, length=2)
        for side in axes.spines.values():
            side.set_color(plotting.GRID)
    axes.set_xlabel("bank; height: different words that are asked of it", fontsize=8)
    return made


def _roofline(data: dict[str, tuple[float, float, float]]) -> Figure:
    roofs = marks.H200_ROOFS
    made = plotting.new_figure(7.2, 3.6)
    axes = made.add_axes((0.09, 0.14, 0.88, 0.82))
    low, high = 0.03, 200.0
    peak = roofs["fp32_tflops"]
    for name, speed in (("memory", roofs["memory_tbs"]), ("L1", roofs["l1_tbs"])):
        axes.plot([low, peak / speed], [low * speed, peak], color=plotting.GREY, linewidth=1.4)
        axes.text(low * 1.2, low * 2.4 * speed, f"{name}, {speed} TB/s", fontsize=8,
                  color=plotting.QUIET, bbox=plotting.PAPER)  # fmt: skip
    axes.plot([peak / roofs["l1_tbs"], high], [peak, peak], color=plotting.GREY, linewidth=1.4)
    axes.text(high / 1.2, peak * 1.3, f"FP32, {peak} TFLOP/s", fontsize=8, ha="right",
              color=plotting.QUIET)  # fmt: skip
    for name, (flop, _, measured) in data.items():
        axes.plot([flop], [measured], "o", color=plotting.BLUE, markersize=5)
        axes.annotate(name.split()[0], (flop, measured), (-6, -3), textcoords="offset points",
                      ha="right", fontsize=8, color=plotting.INK)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(0.1, 200)
    plotting.dress(axes, "", "FLOP for a byte asked of gmem; a number is a rung", "TFLOP/s")
    return made


DRAW: dict[str, Callable[[Any], Figure]] = {
    "sectors": _sectors, "banks": _banks, "roofline": _roofline,
}  # fmt: skip


def picture(name: str) -> Path:
    """Where a picture lies."""
    return IMAGES / f"chapter-0-{name}.svg"


def digest(data: Any) -> str:
    """What a picture says of itself."""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


def draw(name: str, data: Any, to: Path) -> None:
    """Draw one picture."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "xgemm", "font.family": "sans-serif"}):
        written = io.StringIO()
        DRAW[name](data).savefig(written, format="svg", metadata={"Date": None})
        to.write_text(svg.slim(written.getvalue(), digest(data)), encoding="utf-8")


# --- all together ---------------------------------------------------------------------------------


def filled(text: str) -> str:
    """Give a text with its blocks made anew."""

    def block(found: re.Match[str]) -> str:
        return found[1] + "".join(f"{line}\n" for line in BLOCKS[found[2]]()) + found[3]

    return BLOCK.sub(block, text)


def stale(page: Path = PAGE) -> list[str]:
    """Say what is not what it would be if made now: the page, pictures."""
    text = page.read_text(encoding="utf-8")
    wrong = [f"{page.name}: stale"] if filled(text) != text else []
    for name, data in drawn().items():
        at = picture(name)
        if not at.exists() or digest(data) not in at.read_text(encoding="utf-8"):
            wrong.append(f"{at.name}: stale")
    return wrong


def main() -> int:
    """Write, or check; returns 1 when something is stale under --check, else 0."""
    check_indices()
    if "--check" in sys.argv:
        for line in (wrong := stale()):
            print(line)
        return 1 if wrong else 0
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for name, data in drawn().items():
        draw(name, data, picture(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
