"""HTML and SVG of report.py: tables that sort and filter, charts with a text alternative.

Everything goes into one file: report.css and report.js are written into it, and nothing is
fetched. Charts are drawn here, so that they are there without JavaScript, in viewBoxes of `WIDTH`
so narrow that their texts can be read on a phone. Colours are classes of report.css, which has
them for light and dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT = 520, 330
# Of a chart's paper: left, right, top, bottom.
MARGIN = (62, 12, 10, 40)
# About as wide a letter of a chart's text is, at most, and a digit.
LETTER, DIGIT = 7.4, 8.5

Scale = Callable[[float], float]


def escape(text: object) -> str:
    """Text of HTML, in an attribute too."""
    return html.escape(str(text))


def num(x: float | None) -> str:
    """A figure with four significant digits, whole where it has more before the point."""
    if x is None:
        return "-"
    if not math.isfinite(x):
        return "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"
    if isinstance(x, int) or 1e4 <= abs(x) < 1e7:
        return f"{x:.0f}"
    return f"{x:.4g}"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: what it says.
        key: the name that a condition of the filter has for it.
        text: left-aligned words; else figures.
        choose: whether a list of its values stands above the table.
    """

    heading: str
    key: str
    text: bool = False
    choose: bool = False


def words(heading: str, key: str = "") -> Column:
    """A column of text."""
    return Column(heading, key or heading.replace(" ", "_"), text=True)


def choice(heading: str, key: str = "") -> Column:
    """A column of text of which a value can be chosen."""
    return Column(heading, key or heading.replace(" ", "_"), text=True, choose=True)


def figures(heading: str, key: str = "") -> Column:
    """A column of figures."""
    return Column(heading, key or heading.replace(" ", "_"))


def cell(value: object) -> str:
    """The text of a cell."""
    shown = num(value) if isinstance(value, (int, float)) or value is None else str(value)
    return escape(shown)


def table(
    name: str, caption: str, columns: Sequence[Column], rows: Iterable[Sequence[object]],
    *, filtered: bool = True,
) -> str:  # fmt: skip
    """A table in a box that scrolls; report.js gives it a filter and buttons that sort.

    Right and left are set by column, in a rule a table, so that cells have no attribute.
    """
    head = "".join(
        f'<th scope="col" data-key="{escape(c.key)}"{" data-choose" if c.choose else ""}>'
        f"{escape(c.heading)}</th>"
        for c in columns
    )
    left = ",".join(
        f"#{name} :is(td,th):nth-child({i})" for i, c in enumerate(columns, 1) if c.text
    )
    body = "\n".join(f"<tr><td>{'<td>'.join(map(cell, row))}" for row in rows)
    return (
        f"<style>{left}{{text-align:left}}</style>"
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table id="{name}"{" data-filter" if filtered else ""}>'
        f"<caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def heat(
    name: str, caption: str, columns: Sequence[str],
    rows: Iterable[tuple[str, Sequence[float | None]]], level: Callable[[float], str],
) -> str:  # fmt: skip
    """A heat map that is a table: figures in cells, and behind each the colour of its level."""
    head = "".join(f'<th scope="col"><span>{escape(c)}</span></th>' for c in columns)
    lines = []
    for title, values in rows:
        cells = "".join(
            f"<td class={level(v)}>{v:.2f}" if v is not None and math.isfinite(v) else "<td>-"
            for v in values
        )
        lines.append(f'<tr><th scope="row">{escape(title)}</th>{cells}')
    body = "\n".join(lines)
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table id="{name}" class="heat"><caption>{escape(caption)}</caption>'
        f"<thead><tr><td></td>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


# --- charts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """An axis: its ends, what it says, and whether it is logarithmic."""

    low: float
    high: float
    label: str
    log: bool = False

    def scale(self, start: float, end: float) -> Scale:
        """Give the place of a value; what lies beyond an end is put there."""
        change = math.log10 if self.log else float
        low, high = change(self.low), change(self.high)
        step = (end - start) / (high - low)
        return lambda x: start + step * (change(min(max(x, self.low), self.high)) - low)

    def ticks(self) -> list[float]:
        """Give where lines of the grid are."""
        if not self.log:
            rough = (self.high - self.low) / 5
            unit = 10 ** math.floor(math.log10(rough))
            step = next(unit * s for s in (1, 2, 5, 10) if unit * s >= rough * 0.999)
            first = math.ceil(self.low / step - 1e-9)
            return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        parts = (1, 2, 5) if self.high / self.low < 200 else (1,)
        stride = -(-len(decades) // 8)
        found = [s * 10.0**d for d in decades if d % stride == 0 for s in parts]
        inside = [x for x in found if self.low * 0.999 <= x <= self.high * 1.001]
        return inside if len(inside) > 1 else Axis(self.low, self.high, "").ticks()


def span(values: Iterable[float], label: str, *, log: bool = False, least: float = 0) -> Axis:
    """Make an axis that has room for the finite values, of a logarithmic one those above 0."""
    some = [v for v in values if math.isfinite(v) and (v > least if log else True)]
    low, high = (min(some), max(some)) if some else (1.0, 2.0)
    if log:
        return Axis(low / 1.15, high * 1.15, label, log=True)
    gap = 0.05 * (high - low) or abs(high) or 1.0
    return Axis(low - gap, high + gap, label)


def short(x: float) -> str:
    """A tick's text."""
    if x and not 1e-3 <= abs(x) < 1e5:
        return f"{x:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{x:g}" if abs(x) < 1e4 else f"{x / 1e3:g}k"


def legend(entries: Iterable[tuple[str, int]]) -> str:
    """The names of series beside their marks."""
    items = "".join(
        f'<li><svg class="key" viewBox="-7 -7 14 14" aria-hidden="true">'
        f'<use href="#m{number}"/></svg>{escape(name)}</li>'
        for name, number in entries
    )
    return f'<ul class="legend">{items}</ul>'


def chart(
    title: str, alternative: str, x: Axis, y: Axis, draw: Callable[[Scale, Scale], str],
    *, series: Iterable[tuple[str, int]] = (), level: float | None = None, points: str = "",
    height: int = HEIGHT,
) -> str:  # fmt: skip
    """A figure: grid, ticks, names of axes, what ``draw`` puts on it, and its text alternative.

    ``level`` is a line across; ``points`` names the table whose rows the marks are, and the first.
    """
    left, right, top, bottom = MARGIN
    end, floor = WIDTH - right, height - bottom
    fx, fy = x.scale(left, end), y.scale(floor, top)
    grid = "".join(f"M{fx(t):.1f} {top}V{floor}" for t in x.ticks())
    grid += "".join(f"M{left} {fy(t):.1f}H{end}" for t in y.ticks())
    texts = "".join(
        f'<text x="{fx(t):.1f}" y="{floor + 15}" class="mid">{short(t)}</text>' for t in x.ticks()
    )
    texts += "".join(
        f'<text x="{left - 5}" y="{fy(t) + 4:.1f}" class="end">{short(t)}</text>' for t in y.ticks()
    )
    middle = (top + floor) / 2
    long = LETTER * len(y.label) > floor - top
    fit = f' textLength="{floor - top}" lengthAdjust="spacingAndGlyphs"' if long else ""
    texts += (
        f'<text x="{(left + end) / 2}" y="{height - 6}" class="mid">{escape(x.label)}</text>'
        f'<text transform="translate(12 {middle})rotate(-90)" class="mid"{fit}>{escape(y.label)}'
        "</text>"
    )
    line = "" if level is None else f'<path class="level" d="M{left} {fy(level):.1f}H{end}"/>'
    return figure(
        title, alternative, height,
        f'<path class="grid" d="{grid}"/>{line}{texts}{draw(fx, fy)}', series, points,
    )  # fmt: skip


def figure(
    title: str, alternative: str, height: int, inside: str,
    series: Iterable[tuple[str, int]] = (), points: str = "",
) -> str:  # fmt: skip
    """A drawing with caption, legend and text alternative."""
    joined = f' data-points="{escape(points)}"' if points else ""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{legend(series)}"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img"{joined} '
        f'aria-label="{escape(alternative)}">{inside}</svg></figure>\n'
    )


def marks(points: Iterable[tuple[float, float, int]]) -> str:
    """Marks at places of the paper, each of a series."""
    return "".join(f"<use href=#m{s} x={x:.0f} y={y:.0f} />" for x, y, s in points)


def line(points: Iterable[tuple[float, float]], series: int, *, dots: bool = False) -> str:
    """A line through places of the paper; with ``dots``, those alone."""
    places = [f"{x:.1f} {y:.1f}" for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not places:
        return ""
    path = "".join(f"M{p}h0" for p in places) if dots else "M" + "L".join(places)
    return f'<path class="{"dots" if dots else "line"} s{series}" d="{path}"/>'


def _room(names: Iterable[str]) -> int:
    """What the names of bars need."""

    def wide(name: str) -> float:
        return sum(DIGIT if letter.isdigit() else LETTER for letter in name)

    return math.ceil(10 + max(map(wide, names), default=0))


def bars(
    title: str, alternative: str, groups: Sequence[tuple[str, Sequence[tuple[float, int, str]]]],
    *, series: Iterable[tuple[str, int]] = (), thick: int = 14,
) -> str:  # fmt: skip
    """Horizontal bars from 0 in groups: a length, a series and a text each."""
    room = _room(name for name, _ in groups)
    most = max((v for _, each in groups for v, _, _ in each), default=1.0)
    wide, parts, at = WIDTH - room - 96, [], 4.0
    for name, each in groups:
        middle = at + len(each) * thick / 2 + 4
        parts.append(f'<text x="{room - 6}" y="{middle:.0f}" class="end">{escape(name)}</text>')
        for value, number, text in each:
            long = wide * value / most
            parts.append(
                f'<rect class="s{number}" x="{room}" y="{at:.0f}" width="{long:.1f}" '
                f'height="{thick - 2}"/><text x="{room + long + 4:.1f}" '
                f'y="{at + thick - 3:.0f}">{escape(text)}</text>'
            )
            at += thick
        at += 7
    return figure(title, alternative, math.ceil(at), "".join(parts), series)


def stacked(
    title: str, alternative: str, groups: Sequence[tuple[str, Sequence[tuple[float, int]], str]],
    *, series: Iterable[tuple[str, int]] = (), thick: int = 16,
) -> str:  # fmt: skip
    """Horizontal bars of parts, each of a series, with a text at their end."""
    room = _room(name for name, _, _ in groups)
    most = max((sum(v for v, _ in each) for _, each, _ in groups), default=1.0)
    wide, parts, at = WIDTH - room - 96, [], 4.0
    for name, each, text in groups:
        parts.append(f'<text x="{room - 6}" y="{at + 12:.0f}" class="end">{escape(name)}</text>')
        x = float(room)
        for value, number in each:
            long = wide * value / most
            parts.append(f'<rect class="s{number}" x="{x:.1f}" y="{at:.0f}" width="{long:.1f}" '
                         f'height="{thick}"/>')  # fmt: skip
            x += long
        parts.append(f'<text x="{x + 4:.1f}" y="{at + 12:.0f}">{escape(text)}</text>')
        at += thick + 7
    return figure(title, alternative, math.ceil(at), "".join(parts), series)


# The marks of the series; each has its colour.
SHAPES = (
    "M-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0Z", "M-3 2.6L0-3.2 3 2.6Z",
    "M-2.4-2.4H2.4V2.4H-2.4Z", "M0-3.4L3.4 0 0 3.4-3.4 0Z", "M-3-2.6L0 3.2 3-2.6Z",
    "M-3.4-1.2H3.4V1.2H-3.4Z", "M-1.2-3.4V3.4H1.2V-3.4Z", "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0Z",
)  # fmt: skip


def section(name: str, title: str, *parts: str) -> str:
    """A section with a heading that links lead to."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{"".join(parts)}</section>\n'


def charts(*parts: str) -> str:
    """Charts beside each other where there is room."""
    return f'<div class="charts">{"".join(parts)}</div>\n'


def note(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>\n"


def page(title: str, lead: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """The whole file: sections are a name, a title, and HTML."""
    links = "".join(f'<li><a href="#{name}">{escape(t)}</a></li>' for name, t, _ in sections)
    css = (HERE / "report.css").read_text(encoding="utf-8")
    js = (HERE / "report.js").read_text(encoding="utf-8")
    # The colour is the path's own: rules with an ancestor do not reach what <use> makes of it.
    defs = "".join(
        f'<path id="m{i}" class="s{i}" fill="currentColor" d="{d}"/>' for i, d in enumerate(SHAPES)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style></head>\n<body>\n"
        f'<svg class="none" aria-hidden="true"><defs>{defs}</defs></svg>\n'
        f"<header><h1>{escape(title)}</h1><p>{escape(lead)}</p>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n<main>\n'
        f"{''.join(section(*each) for each in sections)}</main>\n<script>\n{js}</script>\n"
        "</body></html>\n"
    )
