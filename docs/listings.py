"""Small kernels of docs/snippets: compiled for the emulator, run, counted, and shown on pages.

A file begins with lines ``//! key: value``. ``problems``: those in which its bits are right, NN,
``MxNxK``; ``count``: the one that it is counted in. A line that ``// (TAG)`` ends can be asked for
by its tag. What is shown is what stands between the includes and ``run``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xgemm_torch.course.exercises import measure
from xgemm_torch.course.exercises.exercise import Case
from xgemm_torch.course.exercises.program import compiled

FOLDER = Path(__file__).with_name("snippets")


@dataclass(frozen=True)
class Snippet:
    """One file."""

    path: Path

    @property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    def said(self, key: str) -> list[str]:
        """The words behind a key of its head; none where it has not that key."""
        found = re.search(rf"^//! {key}: (.*)$", self.text, re.MULTILINE)
        return found[1].split() if found else []

    @property
    def shown(self) -> list[str]:
        """The lines of its kernel, with the comment before."""
        _, _, rest = self.text.partition('#include "exercise.h"\n')
        return rest.partition("\nvoid run(")[0].strip("\n").splitlines()

    def places(self, tag: str) -> list[str]:
        """The lines that ``// (tag)`` ends, as the emulator names them."""
        return measure.tagged(self.text, self.path.name, tag)

    @property
    def tags(self) -> list[str]:
        """All tags, in the order of the lines."""
        return re.findall(r"// \((\w+)\)$", self.text, re.MULTILINE)

    def ask(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        """Compile it, and ask grade.cpp's questions."""
        with compiled(self.path) as program:
            return program.ask(lines)

    def counts(self) -> measure.Counts:
        """Count its problem."""
        (problem,) = self.said("count")
        (answer,) = self.ask([measure.question(problem)])
        return measure.Counts(answer["rows"], measure.fmas(problem))

    def checks(self, *before: str) -> list[dict[str, Any]]:
        """Run its problems, threads in order and shuffled; ``before``: questions to ask first."""
        runs = [
            Case.parse(problem).command(order, seed)
            for seed, problem in enumerate(self.said("problems"))
            for order in ("forward", "random")
        ]
        return self.ask([*before, *runs])


@functools.cache
def snippets() -> dict[str, Snippet]:
    """All of them, by name."""
    return {path.stem: Snippet(path) for path in sorted(FOLDER.glob("*.cu"))}
