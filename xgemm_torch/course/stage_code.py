"""The code of a stage, what its head comment tells, and what changed since another.

A stage's code is its file and the headers of main loops and epilogues that it includes. They are
read from csrc, which a checkout has and an installed package has not.

A stage's file begins with a comment: the idea, then a lesson, in Markdown, then tags, ``name:
value`` each:

- ``arch``: what it is compiled for alone (`build_tools`);
- ``against``: the stage that it is best read against, and behind ", as" why; the rung below where
  there is none;
- ``first``: the function to read first, and behind "in" its header, where it has its own;
- ``registers``: by tile, those of a thread that fetches or splits, and of one that multiplies,
  after they have been dealt out anew;
- ``origin``: where a technique that is in none of the published ladders is from.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..registry import Stage

SOURCE = Path(__file__).resolve().parents[2] / "csrc" / "xgemm"
# Of headers in these rooms a stage's code is made; what the others have, all stages share.
ROOMS = ("mainloop", "epilogue")
TAGS = ("arch", "against", "first", "registers", "origin")


@dataclass(frozen=True)
class Head:
    """What a stage's head comment tells: the idea, paragraphs of a lesson, and tags."""

    idea: str
    lesson: tuple[str, ...]
    tags: dict[str, str]

    @property
    def against(self) -> tuple[str, str]:
        """The stage that it is read against, and why; empty strings: the rung below."""
        name, _, why = self.tags.get("against", "").partition(", as ")
        return name, why

    @property
    def first(self) -> tuple[str, str]:
        """The function to read first, and its header; empty strings where there is none."""
        function, _, header = self.tags.get("first", "").partition(" in ")
        return function, header

    @property
    def registers(self) -> list[tuple[int, int] | None]:
        """Registers of a thread that fetches, and of one that multiplies, by tile."""
        found = []
        for each in filter(None, self.tags.get("registers", "").split(", ")):
            less, _, more = each.partition(" and ")
            found.append((int(less), int(more)) if more else None)
        return found


def parse_head(text: str) -> Head:
    """Read the comment with which a stage's file begins."""
    comment = re.match(r"(?://.*\n)*", text)[0]  # type: ignore[index]
    paragraphs = re.sub(r"^// ?", "", comment, flags=re.M).rstrip("\n").split("\n\n")
    tags: dict[str, str] = {}
    tag = rf"({'|'.join(TAGS)}): "
    if re.match(tag, paragraphs[-1]):
        joined = paragraphs.pop().replace("\n  ", " ")
        tags = dict(line.split(": ", 1) for line in joined.splitlines())
    idea, *lesson = paragraphs or [""]
    return Head(" ".join(idea.split()), tuple(lesson), tags)


def head(stage: Stage) -> Head:
    """Read a stage's head comment."""
    return parse_head(source_text(stage))


def predecessors(ladder: Sequence[Stage]) -> dict[str, Stage | None]:
    """Give the stage that each is read against: the one its file names, else the rung below."""
    by_name = {stage.name: stage for stage in ladder}
    found: dict[str, Stage | None] = {}
    below: Stage | None = None
    for stage in ladder:
        named, _ = head(stage).against
        found[stage.name] = by_name.get(named, below if stage.rung else None)
        below = stage
    return found


def path_of(stage: Stage) -> Path:
    """Give the path of a stage's file."""
    return SOURCE / "stages" / stage.file


def source_text(stage: Stage) -> str:
    """Read a stage's file."""
    return path_of(stage).read_text(encoding="utf-8")


def headers(stage: Stage) -> dict[str, str]:
    """Read the headers of `ROOMS` that a stage's file includes: their names and texts.

    First the one with the function to read first, then in the order in which they are met.
    """
    found: dict[str, str] = {}

    def follow(text: str) -> None:
        for name in re.findall(rf'^#include "xgemm/((?:{"|".join(ROOMS)})/.*)"', text, re.M):
            if name not in found:
                found[name] = (SOURCE / name).read_text(encoding="utf-8")
                follow(found[name])

    text = source_text(stage)
    follow(text)
    first = parse_head(text).first[1]
    return {name: found[name] for name in sorted(found, key=lambda name: name != first)}


def code(stage: Stage) -> list[str]:
    """Give the lines of a stage's code: its headers', then its file's."""
    return [line for text in (*headers(stage).values(), source_text(stage)) for line in body(text)]


def body(text: str) -> list[str]:
    """Give the lines of a stage's file, or a header, that a comparison is about.

    Without the head comment, the namespace (it has the stage's name) and the registration, which
    differ between any two stages.
    """
    text = re.sub(r"\A(//.*\n)+", "", text)
    text = re.sub(r"^static const Register<run> stage\(.*?\}\);\n", "", text, flags=re.S | re.M)
    text = re.sub(r"^(namespace|inline namespace|\}  // namespace).*\n", "", text, flags=re.M)
    text = re.sub(r"^\}  // (namespace )?XGEMM_FLAVOUR\n|^#pragma once\n", "", text, flags=re.M)
    return re.sub(r"\n{2,}", "\n\n", text.strip()).splitlines()


def difference(old: Stage, new: Stage) -> list[str]:
    """Give the unified diff of two stages' code, without its two lines of file names."""
    lines = difflib.unified_diff(code(old), code(new), n=2, lineterm="", fromfile="", tofile="")
    return [line.rstrip() for line in list(lines)[2:]]


def named(stage: Stage) -> str:
    """A stage's name and its files, as a diff's head has them."""
    return ", ".join((f"{stage.name}: stages/{stage.file}", *headers(stage)))


def diff(names: Sequence[str], ladder: Sequence[Stage]) -> list[str]:
    """Give the unified diff of a stage's code against the rung it is read against, or another's.

    Args:
        names: the stage, and at most one more to compare it with.
        ladder: all stages.

    Raises:
        ValueError: a name is of no stage, there are more than two, the first rung stands alone, or
            there are no sources here.
    """
    by_name = {stage.name: stage for stage in ladder}
    if len(names) > 2:
        raise ValueError(f"ladder: a diff is of one stage or two, got {len(names)}")
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(by_name)}"
            raise ValueError(f"ladder: no stage {name}{hint}")
    new = by_name[names[0]]
    if not path_of(new).exists():
        raise ValueError(f"ladder: a diff needs the sources of a checkout; there is no {SOURCE}")
    old = by_name[names[1]] if len(names) > 1 else predecessors(ladder)[new.name]
    if old is None:
        raise ValueError(f"ladder: {new.name} is read against none; name a second stage")
    return [f"--- {named(old)}", f"+++ {named(new)}", *difference(old, new)]
