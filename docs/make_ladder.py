"""Writes docs/ladder: a page for each stage, drawn and counted from the stage itself.

    python docs/make_ladder.py            # pages and pictures; needs no GPU and no nvcc
    python docs/make_ladder.py --check    # writes nothing; exit code 1 when a page is stale

Everything comes from where it is true: idea and source from the registry, counts and pictures from
a run of the stage's own source through the emulator, speed from the newest run in
benchmarks/results/h200 that has the stage. What ptxas said is kept in benchmarks/results, in
compile.json, which is written anew when this tree's build has all CUDA objects.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import teaching  # noqa: E402
import words  # noqa: E402
from markdown_parts import link, stem, table, tflops  # noqa: E402

from benchmarks import records, shapes  # noqa: E402
from build_tools import library, ptxas, results  # noqa: E402
from xgemm_torch import _C  # noqa: E402
from xgemm_torch.course import (  # noqa: E402
    anatomy,
    counts,
    marks,
    pictures,
    sources,
    stage_code,
)
from xgemm_torch.course.stage_code import code, head, headers, predecessors, source_text  # noqa: E402
from xgemm_torch.registry import Stage, stages  # noqa: E402
from xgemm_torch.tools import timing  # noqa: E402

PAGES = ROOT / "docs" / "ladder"
IMAGES = ROOT / "docs" / "images" / "ladder"
RESULTS = ROOT / "benchmarks" / "results"
COMPILED = RESULTS / "compile.json"
SELECTED = "*-select.json"  # in RESULTS / "h200": times of all rows of all stages by problem
ARCH = "sm_90a"
SIZES = (1024, 2048, 4096, 8192)
# Of a change of more lines a page shows the function that is to be read first.
LONGEST = 120
# A function of more lines is linked to, not shown.
LISTED = 45
# Problems that a stage's page shows, at most.
TELLING = 10


# --- what is known of a stage ---------------------------------------------------------------------


def code_lines(text: str) -> int:
    """Count the lines that hold more than a comment."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith("//") for line in lines)


def core(stage: Stage) -> tuple[str, int, list[str]]:
    """Give the function that is to be read first of a stage: its file, first line, and lines.

    From the comment before it to its closing brace; no lines where its head comment names none.
    """
    function, header = head(stage).first
    if not function:
        return "", 0, []
    file = header or stage.file
    text = headers(stage)[header] if header else source_text(stage)
    definition = re.search(
        r"(?:^ *//.*\n)*^( *)(?:template\b.*\n\1)?__(?:device|global)__[^;{}]*?"
        rf"\b{function}\((?:[^;{{}}]|\{{\}})*\{{\n(?:.*\n)*?\1\}}\n",
        text,
        re.MULTILINE,
    )
    if definition is None:
        raise LookupError(f"{stage.name}: no function {function} in {file}")
    first = text.count("\n", 0, definition.start()) + 1
    return file, first, definition[0].rstrip("\n").splitlines()


def fill(paragraph: str, known: dict[str, Any]) -> str:
    """Put the figures that a lesson's paragraph names in their places.

    ``{coalesced@4096}`` is a stage's TFLOP/s at a size, NN; ``{coalesced.sectors}`` what `counts`
    has of it, ``{coalesced.registers}`` and ``{coalesced.occupancy}`` what the compiler made of its
    first kernel.
    """

    def figure(found: re.Match[str]) -> str:
        name, size, what = found.groups()
        if size:
            return tflops(known["measured"][name]["cases"][int(size), "NN"][0])
        if what == "registers":
            return str(known["compiled"]["stages"][name][0]["registers"])
        if what == "occupancy":
            return f"{known['compiled']['stages'][name][0]['occupancy']:.0%}"
        return format(known["counts"][name][what], {k: form for _, k, form in counts.COLUMNS}[what])

    filled, places = re.subn(r"\{(\w+)(?:@(\d+)|\.(\w+))\}", figure, paragraph)
    return textwrap.fill(filled, 100, break_on_hyphens=False) if places else filled


def compile_report() -> dict[str, Any]:
    """Read what ptxas says of each stage's kernels in this tree's build directory."""
    logs = ptxas.read(ROOT / library.BUILD_DIR)
    rows: dict[str, list[dict[str, Any]]] = {}
    for stage in stages():
        for f in logs.get(stem(stage), []):
            row = ptxas.row_of(f, stage.tiles)
            if f.entry and f.arch == ARCH and row is not None:
                tile = stage.tiles[row]
                smem, threads = max(f.smem, tile.smem), ptxas.threads_of(tile)
                blocks = ptxas.blocks_per_sm(f.sm, threads, f.registers, smem)
                rows.setdefault(stage.name, []).append(
                    {
                        "kernel": f.short_name, "tile": row, "threads": threads,
                        "registers": f.registers,
                        "smem": smem, "local": f.local_memory, "blocks_per_sm": blocks,
                        "occupancy": blocks * threads / ptxas.LIMITS[f.sm].threads,
                    }
                )  # fmt: skip
    nvcc = json.loads(_C.build_info()).get("cuda_version")
    return {"nvcc": nvcc, "arch": ARCH, "stages": rows}


def measured() -> dict[str, dict[str, Any]]:
    """Give for each stage, and torch.mm, the newest run that has it: its cases, date, device."""
    return results.measured(RESULTS / "h200")


def selected() -> dict[str, Any]:
    """Give the newest record of all rows by problem: its file's name, and each problem's times.

    ``problems`` has for a label torch.mm's microseconds, and those of each stage's fastest row.
    """
    path = max((RESULTS / "h200").glob(SELECTED))
    record = records.read(path)
    problems = {}
    for label, times in record["problems"].items():
        best: dict[str, float] = {}
        for row, us in times["us"].items():
            name = row.split()[0]
            best[name] = min(us, best.get(name, us))
        problems[label] = times["torch_mm_us"], best
    return {"file": path.name, "device": record["facts"]["device"], "problems": problems}


# --- Markdown -------------------------------------------------------------------------------------


def percent(value: float | None) -> str | None:
    """A share, or nothing."""
    return None if value is None else f"{value:.0%}"


def speed_section(
    stage: Stage, before: Stage | None, results: dict[str, dict[str, Any]]
) -> list[str]:
    """Measured speed by layout and size, against the rung before and the mark."""
    lines = ["## Speed", ""]
    facts = results.get(stage.name)
    if facts is None:
        return [*lines, "No run in `benchmarks/results/h200` has this stage yet.", ""]
    cases = facts["cases"]
    lines += [
        f"TFLOP/s and the share of `torch.mm` (cuBLAS FP32) in the same run, M = N = K; "
        f"{facts['device']}, torch {facts['torch']}, {facts['date']}, "
        f"`benchmarks/results/h200/{facts['run']}`.",
        "",
    ]
    rows: list[list[object]] = []
    for layout in timing.LAYOUTS:
        if any((size, layout) in cases for size in SIZES):
            cells = [cases.get((size, layout)) for size in SIZES]
            rows.append([layout, *(c and f"{tflops(c[0])} ({c[1]:.0%})" for c in cells)])
    if before is not None and before.name in results:
        old = results[before.name]["cases"]
        was = [old.get((size, "NN")) for size in SIZES]
        rows.append([f"`{before.name}`, NN", *(c and f"{tflops(c[0])} ({c[1]:.0%})" for c in was)])
    wanted = [marks.share(stage.name, size) for size in SIZES]
    if any(wanted):
        rows.append(["mark, NN", *map(percent, wanted)])
    lines += table(["layout", *map(str, SIZES)], rows) + [""]
    for size, share in zip(SIZES, wanted, strict=True):
        if share is not None and (size, "NN") in cases:
            reached = cases[size, "NN"][1]
            word = "reached" if reached >= share else "not reached"
            lines.append(f"- {size}: {reached:.1%} of cuBLAS, the mark is {share:.1%}: **{word}**.")
    return [*lines, ""] if lines[-1] else lines


def problems_section(stage: Stage, ladder: Sequence[Stage], known: dict[str, Any]) -> list[str]:
    """The problems for which a stage exists: those where it is the fastest, of all or of a kind."""
    if stage.rung:
        return []
    record = known["selected"]
    strict = {other.name for other in ladder if other.strict}
    tried, wins = [], []
    of_all = 0
    for label, (reference, best) in record["problems"].items():
        mine = best.get(stage.name)
        if mine is None:
            continue
        first = mine <= min(best.values())
        of_all += first
        tried.append((reference / mine, label, mine, reference, first))
        if first or (stage.strict and mine <= min(best[name] for name in strict & set(best))):
            wins.append(tried[-1])
    if not tried:
        return [
            "## The problems that it is for", "",
            "Large squares are not what it is for. `benchmarks/results/h200` has no run of all "
            "stages with it yet.", "",
        ]  # fmt: skip
    of_strict = f" of the strict stages in {len(wins)}," if stage.strict else ""
    found = (
        f"Of the {len(record['problems'])} problems of `benchmarks/shapes.py` it is the fastest"
        f"{of_strict} of all in {of_all or 'none'}"
    )
    # Every so manieth, from the best ratio to the worst, says more than the best ones alone.
    wins.sort(reverse=True)
    last = len(wins) - 1
    if not wins:
        shown = sorted(tried, reverse=True)[:TELLING]
        found += f"; {len(shown)} where it does best beside `torch.mm`:"
    elif last < TELLING:
        shown = wins
        found += ":"
    else:
        shown = [wins[i * last // (TELLING - 1)] for i in range(TELLING)]
        found += f"; {TELLING} of them, from the best ratio to the worst:"
    problems = {problem.label: problem for problem in shapes.suite()}
    rows = []
    for ratio, label, mine, reference, first in shown:
        p = problems[label]
        moved = 4 * (p.m * p.k + p.k * p.n + p.m * p.n)
        rows.append([
            label, f"{p.m} x {p.n} x {p.k}, {p.layout}", f"{mine:.1f}", f"{reference:.1f}",
            f"{ratio:.2f}", f"{moved / mine / 1e6:.2f}", tflops(2 * p.m * p.n * p.k / mine / 1e6),
            "yes" if first else "no",
        ])  # fmt: skip
    head = ("problem", "M x N x K", "us", "`torch.mm`, us", "times `torch.mm`", "TB/s", "TFLOP/s",
            "fastest of all")  # fmt: skip
    return [
        "## The problems that it is for", "", f"Large squares are not what it is for. {found}", "",
        *table(head, rows), "",
        f"A stage's fastest row, {record['device']}, `benchmarks/results/h200/{record['file']}`; "
        "TB/s: each operand and the result once.",
        "",
    ]  # fmt: skip


def cite(system: sources.System) -> str:
    """A published ladder's title, linked where its address is known."""
    return f"[{system.title}]({system.url})" if system.url else system.title


def sources_section(stage: Stage, results: dict[str, dict[str, Any]]) -> list[str]:
    """The published kernels, with their figures beside ours."""
    kernels = sources.of_stage(stage.name)
    lines = ["## Where it comes from", ""]
    if not kernels:
        origin = head(stage).tags.get("origin", f"{stage.source[:1].upper()}{stage.source[1:]}.")
        return [*lines, f"{origin} None of the five published ladders has it.", ""]
    ours = results.get(stage.name, {"cases": {}})["cases"]
    rows = []
    for k in kernels:
        cells = [f"{k.measured[size]:.1f}" if size in k.measured else None for size in SIZES]
        p = k.published
        told = p and f"{p.tflops:.2f} of cuBLAS's {p.cublas:.2f} at {p.size}"
        rows.append([f"{cite(sources.SYSTEMS[k.system])}: {k.kernel}", *cells, told])
    mine = [ours.get((size, "NN")) for size in SIZES]
    rows.append([f"**{stage.name}**, here", *(c and f"**{tflops(c[0])}**" for c in mine), None])
    lines += table(["kernel", *map(str, SIZES), "its authors' figure"], rows)
    return [
        *lines,
        "",
        "TFLOP/s, NN. The columns by size are of the kernel's own program on the H200 of the "
        "marks; its authors' figure is from their GPU. An empty cell: not measured, or there is no "
        "program.",
        "",
    ]


def template_arguments(stage: Stage, kernels: Sequence[dict[str, Any]]) -> list[str]:
    """Name the template arguments of a stage's kernel, in order; a plain one has none."""
    templates = [k["kernel"].partition("<")[0] for k in kernels if "<" in k["kernel"]]
    if not templates:
        return []
    declared = re.search(
        rf"template <([^<>]*)>[^;{{]*?__global__[^;{{]*?\b{templates[0]}\(", "\n".join(code(stage))
    )
    if declared is None:
        raise LookupError(f"{stage.name}: no template {templates[0]}")
    return [argument.split()[-1] for argument in declared[1].split(",")]


def registers_lines(stage: Stage, kernels: Sequence[dict[str, Any]]) -> list[str]:
    """Which of a block's threads hold no results, and how registers are dealt out among them."""
    threads = {k["tile"]: k["threads"] for k in kernels}
    dealt = head(stage).registers
    lines = []
    for row, tile in enumerate(stage.tiles):
        if not tile.producers or row not in threads:
            continue
        work = "fetch" if tile.by_tma else "fetch or split"
        said = (
            f"- {tile.BM} x {tile.BN} x {tile.BK}: of a block's {threads[row]} threads "
            f"{tile.producers} only {work}, {threads[row] - tile.producers} multiply"
        )
        shared = dealt[row] if dealt else None
        if shared:
            said += f"; the former go down to {shared[0]} registers, the latter up to {shared[1]}"
        lines.append(f"{said}.")
    if not lines:
        return []
    why = (
        " The registers above are those with which every thread of a block begins, all that ptxas "
        "reports. The kernel then deals them out anew (`setmaxnreg`)."
        if dealt
        else ""
    )
    return ["", f"Threads have different work.{why}", "", *dict.fromkeys(lines)]


def others(shown: dict[str, Any], kernels: Sequence[dict[str, Any]]) -> str:
    """What a stage's other kernels, of other tiles and layouts, are between."""
    rest = [k for k in kernels if k is not shown]
    registers = sorted(k["registers"] for k in rest)
    occupancy = sorted(k["occupancy"] for k in rest)

    def span(values: Sequence[Any], form: str) -> str:
        ends = dict.fromkeys(format(v, form) for v in (values[0], values[-1]))
        return " to ".join(ends)

    many = f"Its {len(rest)} others, for other layouts or tiles, have"
    return (
        f"{'Its other kernel has' if len(rest) == 1 else many} {span(registers, 'd')} registers "
        f"and {span(occupancy, '.0%')} occupancy."
    )


def compile_section(stage: Stage, compiled: dict[str, Any]) -> list[str]:
    """Registers, shared memory, occupancy."""
    lines = ["## What the compiler made of it", ""]
    kernels = compiled.get("stages", {}).get(stage.name)
    if not kernels:
        return [*lines, "`benchmarks/results/compile.json` does not have this stage yet.", ""]
    # That of large problems, NN, is shown; what the others differ in is said in a line.
    shown = next((k for k in kernels if k["tile"] == counts.best_row(stage)), kernels[0])
    tile = stage.tiles[shown["tile"]]
    rows = [[
        f"`{shown['kernel']}`", f"{tile.BM} x {tile.BN} x {tile.BK}", f"{tile.TM} x {tile.TN}",
        shown["threads"], shown["registers"], f"{shown['smem'] / 1024:.1f} KiB", shown["local"],
        shown["blocks_per_sm"], f"{shown['occupancy']:.0%}",
    ]]  # fmt: skip
    head = ("kernel", "block tile", "thread tile", "threads", "registers", "shared memory",
            "local memory, bytes", "blocks an SM", "occupancy")  # fmt: skip
    lines += table(head, rows)
    lines += ["", f"nvcc {compiled['nvcc']}, {compiled['arch']}."]
    if len(kernels) > 1:
        lines[-1] += f" {others(shown, kernels)}"
    if names := template_arguments(stage, kernels):
        said = "; ".join(f"`{name}`, {words.ARGUMENTS[name]}" for name in names)
        lines[-1] += f" The arguments in `<>`: {said}."
    lines += registers_lines(stage, kernels)
    return [*lines, ""]


def code_section(stage: Stage, before: Stage | None) -> list[str]:
    """The file, how much changed since the rung before, and the command that shows it."""
    text = source_text(stage)
    path = f"../../csrc/xgemm/stages/{stage.file}"
    lines = ["## The code", "", f"[`{stage.file}`]({path}), {code_lines(text)} lines"]
    told = [f"[`{name}`](../../csrc/xgemm/{name}) ({code_lines(header)} lines)"
            for name, header in headers(stage).items()]  # fmt: skip
    if told:
        lines[-1] += f", with {told[0]}, to be read first"
    if told[1:]:
        lines[-1] += f", and {', '.join(told[1:])}"
    if before is None:
        lines[-1] += "."
        return [*lines, "", "```cpp", *code(stage), "```", ""]
    changes = stage_code.difference(before, stage)
    added = sum(line.startswith("+") for line in changes)
    removed = sum(line.startswith("-") for line in changes)
    why = head(stage).against[1]
    lines[-1] += (
        f"; against {link(before)} ({code_lines(source_text(before))} lines) {added} lines came "
        f"and {removed} went. Head comment, namespace and registration are left out."
    )
    if why:
        lines[-1] += f" It is compared with {link(before)}: {why}."
    lines += ["", "What changed, line by line:", "", "```bash",
              f"python -m xgemm_torch ladder --diff {stage.name}", "```"]  # fmt: skip
    name, first, function = core(stage)
    if len(changes) > LONGEST and function:
        if len(function) <= LISTED:
            lines += ["", f"What to read first, in `{name}`:", "", "```cpp", *function, "```"]
        else:
            at = f"#L{first}-L{first + len(function) - 1}"
            path = name if (ROOT / "csrc/xgemm" / name).exists() else f"stages/{name}"
            lines += ["", f"What to read first, in `{name}`: [`{head(stage).first[0]}`]"
                      f"(../../csrc/xgemm/{path}{at}), {len(function)} lines."]  # fmt: skip
    return [*lines, ""]


def pictures_of(
    ladder: Sequence[Stage], schedules: dict[str, anatomy.Anatomy]
) -> dict[str, list[tuple[str, str, Stage]]]:
    """Give for each stage its pictures: name, title, and the first rung whose looks the same."""
    first: dict[str, Stage] = {}
    return {
        stage.name: [
            (name, title, first.setdefault(pictures.shows(drawn, name), stage))
            for name, title in pictures.available(drawn)
        ]
        for stage in ladder
        for drawn in [schedules[stage.name]]
    }


def picture_path(stage: Stage, name: str) -> Path:
    """Where a picture lies."""
    return IMAGES / f"{stem(stage)}-{name}.svg"


def picture_section(
    stage: Stage, drawn: anatomy.Anatomy, its: Sequence[tuple[str, str, Stage]]
) -> list[str]:
    """The pictures that no earlier page has, with a digest of what they show."""
    film = f"Step by step, in a browser: `python -m xgemm_torch film {stage.name}`."
    lines = ["## The schedule", "", drawn.caption(), "", film, ""]
    for name, title, first in its:
        said = f"{title[0].lower()}{title[1:]}"
        if first is stage:
            path = f"../images/ladder/{picture_path(stage, name).name}"
            lines += [f"![{stage.name}: {said}]({path})", ""]
        else:
            lines += [f"{title}: the picture is that of {link(first)}.", ""]
    return [*lines, f"<!-- drawn from schedule {drawn.digest()} -->", ""]


def stage_page(stage: Stage, ladder: Sequence[Stage], known: dict[str, Any]) -> str:
    """Give the text of one stage's page."""
    place = ladder.index(stage)
    before = known["before"][stage.name]
    ways = []
    if place:
        ways.append(f"[← {ladder[place - 1].numbered}]({stem(ladder[place - 1])}.md)")
    ways.append("[the ladder](README.md)")
    if place + 1 < len(ladder):
        ways.append(f"[{ladder[place + 1].numbered} →]({stem(ladder[place + 1])}.md)")
    lines = [
        f"# Rung {stage.rung}: `{stage.name}`" if stage.rung else f"# `{stage.name}`",
        "",
        " | ".join(ways),
        "",
        *teaching.path_line(stage, ladder),
        f"**{head(stage).idea}**",
        "",
    ]
    for paragraph in head(stage).lesson:
        lines += [fill(paragraph, known), ""]
    lines += teaching.snippet_section(stage)
    lines += picture_section(stage, known["anatomy"][stage.name], known["pictures"][stage.name])
    lines += teaching.counted_section(stage, before, known)
    lines += compile_section(stage, known["compiled"])
    lines += speed_section(stage, before, known["measured"])
    lines += problems_section(stage, ladder, known)
    lines += sources_section(stage, known["measured"])
    lines += code_section(stage, before)
    lines += teaching.exercises_section(stage)
    lines += teaching.next_section(stage, ladder)
    lines += [" | ".join(ways)]
    return "\n".join(lines) + "\n"


def system_line(key: str) -> str:
    """A published ladder in a line: title, author, what else is known."""
    system = sources.SYSTEMS[key]
    by = f", by {system.author}" if system.author else ""
    return f"- **{key}**: {cite(system)}{by}{'; ' if system.note else ''}{system.note}."


def index_page(ladder: Sequence[Stage], known: dict[str, Any]) -> str:
    """Give the text of README.md: all rungs, and the coverage of the sources."""
    rungs, specialists = [], []
    for stage in ladder:
        cases = known["measured"].get(stage.name, {"cases": {}})["cases"]
        c = known["counts"][stage.name]
        at = cases.get((4096, "NN"))
        loads, wavefronts, _, _, sectors, *_ = counts.cells(c)
        cells = [
            link(stage), stage.idea, loads, wavefronts, sectors,
            at and f"{tflops(at[0])} ({at[1]:.0%})", percent(marks.share(stage.name, 4096)),
        ]  # fmt: skip
        if stage.rung:
            rungs.append([teaching.rung_cell(stage), *cells])
        else:
            specialists.append(cells[:-1])
    heads = ("operator", "the one idea", "loads per multiply-add", "shared wavefronts per 1000",
             "gmem sectors per 1000", "TFLOP/s at 4096³ NN (of cuBLAS)")  # fmt: skip
    lines = [
        "# The ladder, rung by rung",
        "",
        "Each page is made from its stage: the pictures and the counts from a run of the stage's "
        "own source on a CPU, the speed from a run on an H200. Each says what a change of the code "
        "did since the rung before, or since the rung that it is best read against, named there. "
        "`python -m xgemm_torch ladder --diff STAGE` shows that change.",
        "",
        *teaching.path_section(ladder),
        "## All rungs",
        "",
        "The numbers of those on the path are bold.",
        "",
        *table(("rung", *heads, "mark"), rungs),
        "",
        "Not rungs, but for problems of some shapes, which their pages list:",
        "",
        *table(heads, specialists),
        "",
        "## What is counted",
        "",
        counts.LEGEND,
        "",
        "A mark is the share of cuBLAS that the best known implementation of the same technique "
        "reached, in a run of its own on one H200; for the last stages it is the goal of the whole "
        "call, the split of the operands included.",
        "",
        "`python -m xgemm_torch ladder` prints these counts, `python -m xgemm_torch ladder --race` "
        "lets all stages run side by side: for time on a GPU, for counts without one.",
        "",
        "## How to read the pictures",
        "",
        *pictures.GUIDE,
        "",
        "A picture stands on the page of the first rung that has it. Where a later one's looks the "
        "same, but for names, lines of the source and the depth of a slice, its page links there.",
        "",
        "## Words of the code",
        "",
        *table(("word", "header", "what it is"), (
            (word, f"[`{name}`](../../csrc/xgemm/{name})", what)
            for word, name, what in words.WORDS
        )),
        "",
        "[Adding a stage](../adding-a-stage.md) begins with a whole stage, a short one, and says "
        "what each must keep to.",
        "",
        "## The five sources, kernel by kernel",
        "",
        *map(system_line, sources.SYSTEMS),
        "",
    ]  # fmt: skip
    by_name = {stage.name: stage for stage in ladder}
    rows = []
    for k in sources.KERNELS:
        stage = by_name.get(k.stage)
        p = k.published
        cases = known["measured"].get(k.stage, {"cases": {}})["cases"]
        ours = cases.get((4096, "NN"))
        rows.append([
            k.system, k.kernel, link(stage) if stage else f"`{k.stage}`, missing",
            f"{p.tflops:.2f} / {p.cublas:.2f} at {p.size}" if p else None,
            f"{k.measured[4096]:.1f}" if k.measured else None, ours and tflops(ours[0]),
        ])  # fmt: skip
    lines += table(
        ("", "kernel", "operator here", "its authors' figure / their cuBLAS",
         "its program at 4096³ on an H200", "ours"), rows,
    )  # fmt: skip
    lines += [
        "",
        "TFLOP/s. Authors' figures: "
        + "; ".join(f"{key} on {text}" for key, text in sources.PUBLISHED_ON.items())
        + ". A kernel without figures is text or a lecture's slide, not a program to run.",
        "",
        "## Made by",
        "",
        "`python docs/make_ladder.py`: no GPU and no nvcc needed. `tests/test_ladder_pages.py` "
        "fails when a page is older than what it is made from.",
    ]
    return "\n".join(lines) + "\n"


# --- all together ---------------------------------------------------------------------------------


def gather() -> dict[str, Any]:
    """Run, count and read all that the pages need."""
    ladder = stages()
    schedules = {s.name: anatomy.of(s) for s in ladder}
    return {
        "before": predecessors(ladder),
        "counts": {s.name: counts.of(s.name) for s in ladder},
        "anatomy": schedules,
        "pictures": pictures_of(ladder, schedules),
        "compiled": records.read(COMPILED) if COMPILED.exists() else {},
        "measured": measured(),
        "selected": selected(),
    }


def texts(known: dict[str, Any]) -> dict[Path, str]:
    """Give every page's path and text."""
    ladder = stages()
    pages = {PAGES / f"{stem(stage)}.md": stage_page(stage, ladder, known) for stage in ladder}
    return {**pages, PAGES / "README.md": index_page(ladder, known)}


def drawings(known: dict[str, Any]) -> dict[Path, tuple[Stage, str]]:
    """Give the path of each picture that is drawn, and whose it is."""
    return {
        picture_path(stage, name): (stage, name)
        for stage in stages()
        for name, _, first in known["pictures"][stage.name]
        if first is stage
    }


def stale(pages: dict[Path, str], known: dict[str, Any]) -> list[str]:
    """Say which pages and pictures are not what they would be if made now."""
    wrong = [
        f"{path.relative_to(ROOT)}: stale"
        for path, text in pages.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    wrong += [
        f"{path.relative_to(ROOT)}: of no stage"
        for path in sorted(PAGES.glob("*.md"))
        if path not in pages
    ]
    drawn = drawings(known)
    for path, (stage, _) in drawn.items():
        digest = known["anatomy"][stage.name].digest()
        if not path.exists() or digest not in path.read_text(encoding="utf-8"):
            wrong.append(f"{path.relative_to(ROOT)}: stale")
    return wrong + [
        f"{path.relative_to(ROOT)}: on no page"
        for path in sorted(IMAGES.glob("*.svg"))
        if path not in drawn
    ]


def write(pages: dict[Path, str], known: dict[str, Any]) -> None:
    """Write pages and pictures; what belongs to no stage goes."""
    for folder in (PAGES, IMAGES):
        folder.mkdir(parents=True, exist_ok=True)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    drawn = drawings(known)
    for path, (stage, name) in drawn.items():
        pictures.draw(known["anatomy"][stage.name], name, path)
    for path in [*PAGES.glob("*.md"), *IMAGES.glob("*.svg")]:
        if path not in pages and path not in drawn:
            path.unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or check; returns 1 when something is stale under --check, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, say what is stale")
    options = parser.parse_args(arguments)
    if not options.check:
        report = compile_report()
        if {stage.name for stage in stages()} == set(report["stages"]):
            records.write(COMPILED, report)
    known = gather()
    pages = texts(known)
    if options.check:
        for line in (wrong := stale(pages, known)):
            print(line)
        return 1 if wrong else 0
    write(pages, known)
    print(f"{len(pages)} pages in {PAGES.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
