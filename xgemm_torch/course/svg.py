"""Makes matplotlib's SVG small: the same picture in a fifth of the bytes.

Styles that repeat become classes, places are in tenths of a point and relative to the one before,
paths of one style become one, and groups that only name what they hold go.
"""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree as Xml

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
FONTS = "DejaVu Sans,Verdana,Arial,Helvetica,sans-serif"
# Attributes that are places; a matrix scales an image's pixels and keeps its digits.
PLACES = ("x", "y", "width", "height")
HREF = f"{{{XLINK}}}href"


def slim(text: str, description: str) -> str:
    """Give a picture that looks the same.

    Args:
        text: what matplotlib wrote, with text as text.
        description: what the picture says of itself, in place of the metadata.
    """
    Xml.register_namespace("", SVG)
    Xml.register_namespace("xlink", XLINK)
    root = Xml.fromstring(text)
    for element in [*root]:
        if _name(element) == "metadata" or _is_style(element):
            root.remove(element)
    _flatten(root)
    _expand_ticks(root)
    for element in root.iter():
        _round(element)
    _merge(root)
    for element in root.iter():
        if "d" in element.attrib:
            element.set("d", _relative(element.get("d", "")))
    _classes(root)
    root.insert(0, _described(description))
    root.tail = None
    return Xml.tostring(root, encoding="unicode") + "\n"


def _name(element: Xml.Element) -> str:
    return element.tag.rpartition("}")[2]


def _is_style(element: Xml.Element) -> bool:
    return _name(element) == "defs" and any(_name(child) == "style" for child in element)


def _described(description: str) -> Xml.Element:
    made = Xml.Element(f"{{{SVG}}}desc")
    made.text = description
    return made


def _flatten(parent: Xml.Element) -> None:
    """Put what groups without attributes but a name hold in their place."""
    children = []
    for child in parent:
        child.tail = None
        if _name(child) == "g":
            child.attrib.pop("id", None)
        _flatten(child)
        if _name(child) in ("g", "defs") and not len(child):
            continue
        children += [*child] if _name(child) == "g" and not child.attrib else [child]
    parent[:] = children
    if _name(parent) not in ("text", "tspan"):
        parent.text = None


def _expand_ticks(root: Xml.Element) -> None:
    """Make paths of marks that are used elsewhere: they are merged then, as others are."""
    marks = {}
    for parent in root.iter():
        for child in [*parent]:
            if _name(child) == "defs" and all(_name(x) == "path" for x in child):
                marks |= {f"#{x.get('id')}": x for x in child}
                parent.remove(child)
    for element in root.iter():
        mark = marks.get(element.get(HREF, ""))
        if _name(element) != "use" or mark is None:
            continue
        x, y = float(element.get("x", 0)), float(element.get("y", 0))
        style = element.get("style") or mark.get("style", "")
        clip = element.get("clip-path")
        element.tag = f"{{{SVG}}}path"
        element.attrib.clear()
        element.set("d", _moved(mark.get("d", ""), x, y))
        element.set("style", style)
        if clip:
            element.set("clip-path", clip)


def _commands(d: str) -> list[tuple[str, list[float]]]:
    """The commands of a path as matplotlib writes it: absolute, their arguments pairs."""
    found = re.findall(r"([MLQCzZ])([^MLQCzZ]*)", d)
    return [(command, [float(number) for number in numbers.split()]) for command, numbers in found]


def _moved(d: str, x: float, y: float) -> str:
    found = []
    for command, numbers in _commands(d):
        moved = (n + (y if i % 2 else x) for i, n in enumerate(numbers))
        found.append(f"{command} {' '.join(map(str, moved))} ")
    return "".join(found)


def _relative(d: str) -> str:
    """Write a path in tenths, each command relative to where the one before ended, rounded."""
    found = []
    at = start = (0, 0)
    for command, numbers in _commands(d):
        tenths = [round(10 * number) for number in numbers]
        if not tenths:
            found.append("z")
            at = start
            continue
        x, y = tenths[-2] - at[0], tenths[-1] - at[1]
        if command == "L" and not y:
            found.append(f"h{_tenths(x)}")
        elif command == "L" and not x:
            found.append(f"v{_tenths(y)}")
        else:
            steps = (n - at[i % 2] for i, n in enumerate(tenths))
            found.append(command.lower() + re.sub(" -", "-", " ".join(map(_tenths, steps))))
        at = tenths[-2], tenths[-1]
        if command == "M":
            start = at
    return "".join(found)


def _tenths(n: int) -> str:
    return f"{n / 10:.1f}".removesuffix(".0") if n else "0"


def _round(element: Xml.Element) -> None:
    for key in PLACES:
        if key in element.attrib and _name(element) not in ("svg", "image"):
            element.set(key, _places(element.attrib[key]))
    transform = element.get("transform", "")
    if re.match(r"rotate\(-?0 ", transform):
        del element.attrib["transform"]
    elif transform.startswith("rotate"):
        element.set("transform", _places(transform))
    if _name(element) == "image":
        element.attrib.pop("id", None)
        element.set(HREF, re.sub(r"\s", "", element.get(HREF, "")))
    if "style" in element.attrib:
        element.set("style", _style(element))


def _places(text: str) -> str:
    """Round the numbers of a text."""
    return re.sub(r"-?\d+\.?\d*(?:e-?\d+)?", lambda n: _tenths(round(10 * float(n[0]))), text)


def _style(element: Xml.Element) -> str:
    """A style in one spelling; without what is the default anyway."""
    style = re.sub(r"\s*([:;])\s*", r"\1", element.get("style", ""))
    parts = dict(part.split(":", 1) for part in style.split(";") if part)
    if _name(element) in ("text", "tspan"):
        parts["font-family"] = FONTS
    elif parts.get("stroke") is None:
        parts.pop("stroke-linejoin", None)
    return ";".join(f"{key}:{value}" for key, value in sorted(parts.items()))


def _merge(root: Xml.Element) -> None:
    """Make one path of neighbours of one style; text between them lies over both."""
    for parent in [*root.iter()]:
        children: list[Xml.Element] = []
        last: Xml.Element | None = None
        for child in parent:
            if last is not None and _alike(last, child):
                last.set("d", f"{last.get('d')} {child.get('d')}")
                continue
            children.append(child)
            if _name(child) != "text":
                last = child
        parent[:] = children


def _alike(one: Xml.Element, other: Xml.Element) -> bool:
    if _name(one) != "path" or _name(other) != "path" or "id" in one.attrib or "id" in other.attrib:
        return False
    rest = [{k: v for k, v in x.attrib.items() if k != "d"} for x in (one, other)]
    return rest[0] == rest[1] and "opacity" not in one.get("style", "")


def _classes(root: Xml.Element) -> None:
    """Give styles that elements have in common a name, in the order of their number."""
    count = Counter(element.get("style", "") for element in root.iter())
    count.pop("", None)
    names = {style: f"s{i}" for i, (style, n) in enumerate(count.most_common()) if n > 1}
    for element in root.iter():
        style = element.get("style", "")
        if style in names:
            del element.attrib["style"]
            element.set("class", names[style])
    sheet = Xml.Element(f"{{{SVG}}}style")
    sheet.text = "*{stroke-linejoin:round;stroke-linecap:butt}" + "".join(
        f".{name}{{{style}}}" for style, name in names.items()
    )
    root.insert(0, sheet)
