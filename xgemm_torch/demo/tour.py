"""What a machine without a GPU can show: kernels whose source runs in the emulator.

A stop prints its result, draws its picture into the run's directory, and gives a `Stop`; `page`
puts the stops on one HTML page there.
"""

from __future__ import annotations

import difflib
import html
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ..course import counts, race
from ..course.exercises import check
from ..course.exercises.exercise import GIVEN, SOLUTION, find
from ..course.exercises.program import CannotBuild
from ..tools import accuracy, plotting
from ..tools.console import console
from ..tools.files import write_text
from ..tools.invocation import called

# M, N, K of what is counted: half as deep as `counts.SHAPE`, in half the time. Of the rungs only
# mma_fp16x3 has other counts here, by up to 20%: its limbs are made once for an element.
COUNTED = (256, 256, 64)
# Rungs whose counts are printed; the picture has all stages.
RUNGS = (1, 2, 5, 6, 11, 12, 15, 16, 19, 21)
# M = N of the products whose errors are measured, and their K.
ELEMENTS = 48
DEPTHS = (16, 64, 256, 1024)
OPERANDS = ("normal", "uniform", "wide", "outlier")
METHODS = (accuracy.TF32, "mma_fp16x3", "wgmma_fp16x3", "wgmma_bf16x6")
EXERCISE = "buffer_race"
PAGE = "demo.html"
# A picture's letters can be read from 700 pixels on: in a narrower window it scrolls in its box.
STYLE = (
    ":root { color-scheme: light dark; --paper: #fff; --ink: #20262e; --code: #f3f5f7 } "
    "@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e3e7ea; "
    "--code: #20262c } } "
    "body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink); "
    "background: var(--paper); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere } "
    "h1 { font-size: 1.6rem } h2 { font-size: 1.25rem; margin-top: 2rem } "
    "figure { margin: 0; overflow-x: auto; background: #fff } "
    "img { display: block; width: 100%; min-width: 700px } "
    "pre { background: var(--code); padding: .8rem; overflow-x: auto; font-size: 13px }"
)


@dataclass
class Stop:
    """One part of the page.

    Attributes:
        title: its heading.
        text: paragraphs.
        picture: a file in the run's directory, or none.
        code: what is set as code, below the picture.
        good: whether all was as it must be.
    """

    title: str
    text: list[str]
    picture: str = ""
    code: list[str] = field(default_factory=list)
    good: bool = True


def training(folder: Path) -> Stop:
    """What the training job in ``folder`` came to, of its summary."""
    summary = json.loads((folder / "summary.json").read_text())
    step = summary["difference"]["first_nonzero_step"]
    ms = [summary["runs"][name]["median_step_ms"] for name in ("stock", "converted")]
    text = [
        "A small GPT, trained twice from one seed, a step of each run in turns. "
        + ("Every loss has the same bits." if step is None else f"Losses differ from step {step}.")
    ]
    if (summary["config"]["kernel"], summary["config"]["precision"]) == ("auto", "fp32"):
        text.append(
            "On a CPU auto is ATen's BLAS, so both runs multiply by the same code; what differs is "
            "the way of a call."
        )
    if None not in ms:
        text.append(f"Median step: {ms[0]:.1f} ms stock, {ms[1]:.1f} ms converted.")
    return Stop("Training, stock and converted", text, "curves.png")


def ladder(folder: Path, out: Console) -> Stop:
    """Count what every stage asks of the memories."""
    title = "The ladder: what a product asks of the memories"
    out.rule(title)
    facts = race.collect(None, "NN", quiet=False, counted=COUNTED)
    plotting.race(facts, folder / "counts.png")
    out.print(counts.table(row for row in facts["stages"] if row["rung"] in RUNGS))
    text = (
        "Each stage ran its own source in the emulator, which counted loads, sectors of global "
        "memory and bank conflicts. Fewer for a multiply-add is why a rung is faster than the one "
        "before it on a GPU; it is no time."
    )
    out.print(text)
    return Stop(title, [text, counts.LEGEND], "counts.png")


def errors(folder: Path, out: Console) -> Stop:
    """Measure the errors of the schemes that split FP32 into limbs, beside TF32 and the chain."""
    title = "Errors: 16-bit limbs beside TF32 and one FP32 chain"
    out.rule(title)
    facts = accuracy.collect(ELEMENTS, DEPTHS, names=OPERANDS, methods=METHODS)
    plotting.accuracy(facts, folder / "accuracy.png")
    out.print(accuracy.table({**facts, "rows": [r for r in facts["rows"] if r["k"] == DEPTHS[-1]]}))
    text = (
        "chain is one sequential chain of FP32 multiply-adds. The stages multiply on tensor cores, "
        "emulated with their rounding. TF32 rounds the operands to 10 bits of fraction. "
        + ("All stages keep the contract." if facts["kept"] else "THE CONTRACT IS BROKEN.")
    )
    out.print(text)
    kinds = "; ".join(f"{name}: {accuracy.DISTRIBUTIONS[name].what}" for name in OPERANDS)
    return Stop(title, [text, f"{kinds}."], "accuracy.png", good=facts["kept"])


def exercise(folder: Path, out: Console) -> Stop:
    """Grade an exercise of the course as it is handed out, and then its solution."""
    chosen = find(EXERCISE)
    title = f"Exercise {chosen.number}: {chosen.title}"
    out.rule(title)
    stop = Stop(title, ["A kernel that is handed out with a race, and the same one mended."])
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    files = {}
    for variant in (GIVEN, SOLUTION):
        files[variant] = chosen.render(variant)
        path = folder / "exercise" / variant.lower() / chosen.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[variant], encoding="utf-8")
        try:
            verdict = check.file(chosen, path, say=say)
        except CannotBuild as error:  # no compiler here: nothing is shown, and nothing is wrong
            stop.text = [f"Left out: {error}"]
            out.print(stop.text[0], style="yellow", markup=False)
            return stop
        lines = [f"{path.name}:{n}: {line.strip()}" for n, line in sorted(verdict.lines.items())]
        said = verdict.what if not verdict.good else f"right: {'; '.join(verdict.passed)}"
        told = f"{variant.lower()}: {said}"
        stop.code.append("\n".join([told, *lines]))
        wanted = verdict.good if variant == SOLUTION else verdict.kind == chosen.expected[GIVEN][0]
        stop.good = stop.good and wanted
        style = "red" if variant == GIVEN or not wanted else "green"
        out.print(Text(told, style), *(Text(f"  {line}", "dim") for line in lines), sep="\n")
    given, solved = (text.splitlines() for text in files.values())
    changed = difflib.unified_diff(given, solved, "given", "solution", lineterm="", n=2)
    stop.code.append("\n".join(changed))
    return stop


def page(stops: list[Stop]) -> str:
    """Give the page of the stops, whose pictures lie beside it."""
    body = []
    for stop in stops:
        body.append(f"<h2>{html.escape(stop.title)}</h2>")
        body += [f"<p>{html.escape(text)}</p>" for text in stop.text]
        if stop.picture:
            name = html.escape(stop.title)
            body.append(
                f'<figure tabindex="0" role="group" aria-label="{name}">'
                f'<img src="{stop.picture}" alt="{name}"></figure>'
            )
        body += [f'<pre tabindex="0">{html.escape(code)}</pre>' for code in stop.code]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>xgemm_torch</title><style>{STYLE}</style></head><body>\n"
        "<h1>xgemm_torch on a machine without a GPU</h1>\n"
        + "\n".join(body)
        + f"\n<p>More: <code>{called('exercise')}</code> lists the course's exercises; "
        f"<code>{called('ladder --diff warp_tiled')}</code> shows what changed from one "
        "rung to the next.</p>\n</body></html>\n"
    )


def run(folder: Path) -> int:
    """Make the tour of a finished run and its page; returns 1 where something was not right."""
    out = console()
    out.print(
        "\nNo GPU here. What the kernels are is shown by the emulator, which runs their source on "
        "the CPU: counts, errors and a race, some 30 seconds."
    )
    stops = [training(folder), ladder(folder, out), errors(folder, out), exercise(folder, out)]
    write_text(folder / PAGE, page(stops), who="demo")
    for stop in stops:
        if not stop.good:
            out.print(f"[bold red]not as it must be: {stop.title}[/]")
    out.print(f"page: {folder / PAGE}", soft_wrap=True)
    return 0 if all(stop.good for stop in stops) else 1
