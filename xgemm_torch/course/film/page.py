"""The HTML of a film and of the list of films: one file each, which fetches nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from ...registry import Stage
from .data import Film

HERE = Path(__file__).parent
SCRIPTS = ("steps.js", "memory.js", "draw.js", "words.js", "controls.js")
SUMS = (
    ("requests", "requests to memory"),
    ("wavefronts", "wavefronts"),
    ("conflicts", "of them conflicts"),
    ("sectors", "sectors of gmem"),
    ("barriers", "arrivals of warps at barriers"),
    ("boxes", "boxes of TMA"),
    ("products", "tensor-core instructions of warps"),
)
NOT_SHOWN = (
    "Not shown: time, caches, registers, shuffles, __syncwarp, signals between blocks. Between two "
    "barriers any order of the warps is legal; here they take turns, an instruction each, and what "
    "is copied asynchronously lands some turns after it was asked for."
)


def name_of(stage: Stage) -> str:
    """The name of a film's file."""
    return f"{stage.rung:02d}_{stage.name}.html" if stage.rung else f"{stage.name}.html"


def _document(title: str, body: str) -> str:
    css = (HERE / "film.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n{body}"
        "</body>\n</html>\n"
    )


def _links(stage: Stage, others: Sequence[Stage]) -> str:
    names = [other.name for other in others]
    at = names.index(stage.name)
    parts = ['<a href="index.html">all films</a>']
    if at:
        other = others[at - 1]
        parts.insert(0, f'<a href="{name_of(other)}">← {other.numbered}</a>')
    if at + 1 < len(others):
        other = others[at + 1]
        parts.append(f'<a href="{name_of(other)}">{other.numbered} →</a>')
    return f"<nav>{' '.join(parts)}</nav>\n"


def _figure(operand: str, text: str) -> str:
    return (
        f'<figure><figcaption>{text}</figcaption><canvas id="gmem-{operand}" role="img" '
        f'aria-label="{operand} in global memory"></canvas></figure>'
    )


def _legend(*entries: tuple[str, str]) -> str:
    keys = "".join(f'<span><b style="{style}"></b>{text}</span>' for style, text in entries)
    return f'<div class="legend">{keys}</div>\n'


def _controls() -> str:
    buttons = (
        ("first", "|◀", "first step (Home)"),
        ("before", "◀◀", "barrier or wait before (Page Up)"),
        ("back", "◀", "step back (left arrow)"),
        ("play", "play", "play or pause (space)"),
        ("next", "▶", "step on (right arrow)"),
        ("barrier", "▶▶", "next barrier or wait (Page Down)"),
        ("last", "▶|", "last step (End)"),
    )
    made = "".join(
        f'<button id="{name}" type="button" title="{title}">{text}</button>'
        if name == "play"
        else f'<button id="{name}" type="button" title="{title}" aria-label="{title}">{text}'
        "</button>"
        for name, text, title in buttons
    )
    speeds = "".join(
        f'<option value="{n}"{" selected" if n == 8 else ""}>{n} steps/s</option>'
        for n in (1, 8, 40, 200)
    )
    return (
        f'<div class="controls"><div class="row">{made}'
        f'<label>speed <select id="speed">{speeds}</select></label>'
        '<label>follow <select id="only"><option value="">all warps</option></select></label>'
        '<span id="where"></span></div>\n'
        '<input id="slider" type="range" min="0" value="0" aria-label="time, in steps">\n'
        '<output id="what" aria-live="polite"></output></div>\n'
    )


def _gmem(m: int, n: int, k: int) -> str:
    """The panel of the matrices, as the product has them: B above D, A to its left."""
    legend = _legend(
        ("background:var(--now)", "touched now"),
        ("background:var(--bad)", "rest of its sectors"),
        ("background:var(--a);opacity:.5", "A loaded before"),
        ("background:var(--b);opacity:.5", "B loaded before"),
        ("background:var(--d);opacity:.4", "D: the stronger, the further in K its thread is"),
        ("background:var(--d)", "D stored"),
    )
    return f"""\
<section><h2>Global memory</h2>
<div class="matrices"><div class="corner">product of {m} x {n} x {k}</div>
{_figure("B", f"B, {k} x {n}")}
{_figure("A", f"A, {m} x {k}")}
{_figure("D", f"D, {m} x {n}")}</div>
{legend}<div id="workspace" hidden>
{_figure("W", "Workspace: limbs of A and B, or sums; 512 words a row")}</div>
</section>
"""


def _smem() -> str:
    """The panel of the banks."""
    legend = _legend(
        ("background:var(--now)", "touched now"),
        ("background:var(--bad)", "one more word in its bank: a conflict"),
        ("background:var(--a)", "holds A"),
        ("background:var(--b)", "holds B"),
        ("background:var(--w)", "holds limbs"),
        ("background:var(--other)", "else"),
    )
    return f"""\
<section id="shared"><h2>Shared memory: 32 banks, a row is 128 bytes</h2>
<canvas id="banks" role="img" aria-label="different words of the request in each bank"></canvas>
<div class="tall" id="holder" tabindex="0" role="region" aria-label="shared memory">
<canvas id="smem" role="img" aria-label="shared memory"></canvas></div>
{legend}<p class="quiet">Faint: on its way. Paler: read since it was written. Bars: different words
in a bank.</p>
</section>
"""


def _table(name: str, *heads: str) -> str:
    """A table that draw.js fills."""
    row = "".join(f"<th>{head}</th>" for head in heads)
    return (
        f'<div class="scroll"><table><thead><tr>{row}</tr></thead>'
        f'<tbody id="{name}"></tbody></table></div>'
    )


def _state() -> str:
    """The panels of the source, the threads, the ring, mbarriers and sums."""
    sums = "".join(f'<tr><td>{text}</td><td id="sum-{name}"></td></tr>' for name, text in SUMS)
    slots = _table("slots", "slot", "slice of K", "on its way", "there", "read")
    bars = _table("mbarriers", "at byte", "phases ended", "arrivals to come", "bytes to come")
    return f"""\
<section><h2>Source: <span id="source-name"></span></h2>
<div class="source" id="source" tabindex="0" role="region" aria-label="the source"></div>
<p class="quiet" id="calls"></p></section>
<section id="called" hidden><h2>In <span id="header-name"></span></h2>
<div class="source header" id="header" tabindex="0" role="region" aria-label="the header"></div>
</section>
<section><h2>Threads: a row is a warp, with its part of its program that is done</h2>
<canvas id="threads" role="img" aria-label="warps and lanes"></canvas></section>
<section id="ring" hidden><h2>Slots of the ring</h2>{slots}</section>
<section id="bars" hidden><h2>mbarriers</h2>{bars}</section>
<section><h2>Of this launch so far</h2><table><tbody>{sums}</tbody></table></section>
"""


def film(made: Film, others: Sequence[Stage]) -> str:
    """A film's page.

    Args:
        made: the film.
        others: all stages with a film, in order, this one among them.
    """
    stage, tile = made.stage, made.tile
    m, n, k = made.trace.m, made.trace.n, made.trace.k
    of_k = f", slices of K {tile.BK} deep" if tile.buffers else ""
    data = json.dumps(made.content, separators=(",", ":")).replace("</", "<\\/")
    code = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    body = f"""\
{_links(stage, others)}
<h1>{f"Rung {stage.rung}: " if stage.rung else ""}{stage.name}</h1>
<p>{html.escape(stage.idea)}</p>
<p class="quiet">Block 0 of each launch of a product of {m} x {n} x {k}, NN, run by the stage's own
source in the emulator: tile {tile.BM} x {tile.BN}, {tile.team} threads{of_k}, the smallest of its
table. {NOT_SHOWN}</p>
{_controls()}
<div class="panels">
<div>
{_gmem(m, n, k)}{_smem()}</div>
<div>
{_state()}</div>
</div>
<script type="application/json" id="film">{data}</script>
<script>
{code}</script>
"""
    return _document(f"{stage.numbered}: a film", body)


def index(films: Sequence[tuple[Stage, int]], left_out: Sequence[tuple[Stage, str]]) -> str:
    """The list of films.

    Args:
        films: stages, and the number of steps of each.
        left_out: stages without a film, and why.
    """
    rows = "".join(
        f'<tr><td class="n">{stage.rung or ""}</td><td><a href="{name_of(stage)}">{stage.name}</a>'
        f'</td><td>{html.escape(stage.idea)}</td><td class="n">{steps}</td></tr>\n'
        for stage, steps in films
    )
    missing = "".join(f"<p>{html.escape(why)}</p>\n" for _, why in left_out)
    body = f"""\
<h1>Films of the ladder</h1>
<p>What a block of each stage does, step by step, as its own source did it in the emulator: source
lines, threads, elements and sectors of global memory, banks of shared memory, slots, barriers.</p>
<div class="scroll"><table class="index">
<thead><tr><th>#</th><th>stage</th><th>the one idea</th><th>steps</th></tr></thead>
<tbody>
{rows}</tbody></table></div>
{missing}<p class="quiet">{NOT_SHOWN}</p>
"""
    return _document("Films of the ladder", body)
