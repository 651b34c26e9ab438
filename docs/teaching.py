"""What a stage's page teaches beside pictures: the path, arithmetic, exercises, what is next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import listings
from markdown_parts import stem, table, tflops

from xgemm_torch.course import arithmetic, counts, marks, newcomer
from xgemm_torch.course.exercises.exercise import KINDS
from xgemm_torch.registry import Stage

SIZE = 4096
# By hand and counted are the same to so many digits; else the page says that they are not.
CLOSE = 1e-3
# Of `counts.COLUMNS`, what is only said where something is wrong.
LEFT_OUT = ("ways",)


def numbered_link(stage: Stage) -> str:
    """A link with the rung: ``[5 `smem_tiled`](05_smem_tiled.md)``."""
    return f"[{stage.rung} `{stage.name}`]({stem(stage)}.md)"


def rung_cell(stage: Stage) -> str:
    """A rung's number, bold where it is on the path."""
    return f"**{stage.rung}**" if newcomer.step(stage) else str(stage.rung)


def path_line(stage: Stage, ladder: Sequence[Stage]) -> list[str]:
    """Where a rung is on the path, and the next rung on it; nothing of what is no rung."""
    if not stage.rung:
        return []
    step, after = newcomer.step(stage), newcomer.following(stage, ladder)
    here = (
        f"**Step {step} of {len(newcomer.PATH)}** on [the path](README.md#the-path): "
        f"{newcomer.PATH[stage.name]}."
        if step
        else "Beside [the path](README.md#the-path)."
    )
    ahead = f" Next on the path: {numbered_link(after)}." if after else ""
    if step and not after:
        ahead = " It is the last one."
    return [here + ahead, ""]


def snippet_section(stage: Stage) -> list[str]:
    """The idea in few lines, NN alone, where docs/snippets has a kernel of the stage's name."""
    found = listings.snippets().get(stage.name)
    if found is None:
        return []
    return [
        "## The idea in few lines", "",
        f"NN alone, without alpha and beta ([`{found.path.name}`](../snippets/{found.path.name})); "
        "the emulator runs it, and its bits are those of the stage.",
        "", "```cpp", *found.shown, "```", "",
    ]  # fmt: skip


def _reach(stage: Stage, told: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """What the counts allow at most, beside what was measured."""
    fp32, l1 = arithmetic.cycles(told)
    peak = marks.H200_ROOFS["fp32_tflops"]
    most = peak * min(1.0, fp32 / l1)
    allows = (
        f"no more than {most / peak:.0%} of the FP32 peak, {tflops(most)} TFLOP/s"
        if l1 > fp32
        else f"the whole FP32 peak, {tflops(peak)} TFLOP/s"
    )
    text = (
        f"For 1000 multiply-adds a multiprocessor's FP32 units take {fp32:.1f} cycles, and L1 and "
        f"shared memory {l1:.1f} for what this source asks of them. That allows {allows} on "
        f"{marks.H200_ROOFS['of']} ([the roofline](../chapter-0.md#the-roofline))"
    )
    at = known["measured"].get(stage.name, {"cases": {}})["cases"].get((SIZE, "NN"))
    text += f"; {tflops(at[0])} are measured at {SIZE}." if at else "."
    if at and at[0] > most:
        text += " That is more: the compiler has joined reads of the source into wider ones."
    return [text, ""]


def _rows(
    before: Stage | None, stage: Stage, lines: Sequence[arithmetic.Line], told: dict[str, Any]
) -> list[list[str | None]]:
    """A row for each quantity: what is counted of both stages, and what is derived."""
    old = told[before.name] if before else None
    new = told[stage.name]
    hand = {line.name: line for line in lines}
    rows: list[list[str | None]] = []
    for heading, key, form in counts.COLUMNS:
        line = hand.get(heading)
        values = [each[key] if each["counted"] else None for each in (old, new) if each]
        if key in LEFT_OUT or not (line or values[-1] or (new["counted"] and any(values))):
            continue
        cells = ["not counted" if v is None else format(v, form) for v in values]
        derived = line and format(line.value, form)
        if line and line.key and abs(line.value - new[line.key]) > CLOSE * new[line.key]:
            derived = f"{derived}, and its schedule asks for more or less"
        elif line and line.key == "shared_ideal" and new["conflicts"]:
            derived = f"{derived}, and conflicts"
        elif line and not line.key and new["counted"]:
            derived = f"{derived} in the main loop"
        rows.append([heading, *cells, derived])
    return rows


def _line(line: arithmetic.Line) -> str:
    """A quantity's formula, its numbers and what it comes to."""
    value = f"{line.value:.4g}"
    parts = dict.fromkeys([f"`{line.formula}`", f"`{line.numbers}`"])
    parts.pop(f"`{value}`", None)
    note = f" {line.note}" if line.note else ""
    return f"- **{line.name}**: {' = '.join([*parts, value])}.{note}"


def counted_section(stage: Stage, before: Stage | None, known: dict[str, Any]) -> list[str]:
    """The arithmetic of a rung by hand, beside what the emulator counts before and after."""
    told = known["counts"][stage.name]
    lines = arithmetic.of(known["anatomy"][stage.name]) if stage.rung else []
    found = ["## By hand, and counted" if lines else "## What it asks of the memories", ""]
    found += map(_line, lines)
    if lines:
        found.append("")
    if not told["counted"]:
        found += [_uncounted(stage), ""]
    old = before and known["counts"][before.name]
    if told["counted"] or (lines and old and old["counted"]):
        rows = _rows(before, stage, lines, known["counts"])
        if not lines:
            rows = [row[:-1] for row in rows]
        names = [f"`{each.name}`" for each in (before, stage) if each]
        found += table(["for 1000 multiply-adds", *names, *(["by hand"] if lines else [])], rows)
        m, n, k = told["shape"]
        found += [
            "",
            f"Counted by the emulator over {m} x {n} x {k}, {told['layout']}, as the source is "
            "written; [the words](README.md#what-is-counted).",
            "",
        ]
    if told["counted"]:
        found += conflicts(told)
        if stage.strict and stage.rung:
            found += _reach(stage, told, known)
    return found


def _uncounted(stage: Stage) -> str:
    if stage.strict:
        return "Not counted: what lies as its slices do comes by TMA, and no thread asks for that."
    if not stage.tiles[0].by_tma:
        return "Not counted: wgmma reads the limbs, and no thread asks for that."
    return (
        "Not counted: TMA moves the limbs and wgmma reads them, and no thread asks for either. "
        "What threads ask for beside them is what the split of the operands needs."
    )


def conflicts(told: dict[str, Any]) -> list[str]:
    """The lines of the source that meet bank conflicts."""
    worse = [line for line in told["lines"] if line["wavefronts"] > line["ideal"]]
    if not worse:
        return []
    lines = ["Where banks conflict:", ""]
    lines += [
        f"- `{line['place']}`, {line['kind']}: {line['wavefronts']} wavefronts where "
        f"{line['ideal']} would do; the worst request meets {line['ways']} words in one bank."
        for line in worse
    ]
    return [*lines, ""]


def exercises_section(stage: Stage) -> list[str]:
    """What to do on this rung; nothing where no exercise fits."""
    found = newcomer.exercises_of(stage)
    if not found:
        return []
    lines = ["## Do it", ""]
    lines += [
        f"- [{each.number}. {each.title}](../course.md#the-exercises), {KINDS[each.kind]}: "
        f"`python -m xgemm_torch exercise {each.number}`"
        for each in found
    ]
    return [*lines, ""]


def next_section(stage: Stage, ladder: Sequence[Stage]) -> list[str]:
    """What to read next: on the path, and elsewhere."""
    after = newcomer.following(stage, ladder)
    lines = [f"- {numbered_link(after)}: {newcomer.PATH[after.name]}." if after else ""]
    lines += [f"- {text}." for text in newcomer.READING.get(stage.name, ())]
    lines = [line for line in lines if line]
    return ["## Read next", "", *lines, ""] if lines else []


def path_section(ladder: Sequence[Stage]) -> list[str]:
    """The path of a newcomer, for the ladder's own page."""
    rows = [
        (newcomer.step(stage), numbered_link(stage), newcomer.PATH[stage.name])
        for stage in ladder
        if newcomer.step(stage)
    ]
    return [
        "## The path", "",
        f"{newcomer.WHY} [Chapter 0](../chapter-0.md) comes before them.", "",
        *table(("step", "rung", "what it is for"), rows), "",
    ]  # fmt: skip
