"""What a program asked of memory, in the words of budgets and predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .program import Program

FIELDS = ("requests", "bytes", "units", "ideal", "worst")
KINDS = ("shared_load", "shared_store", "global_load", "global_store")


@dataclass(frozen=True)
class Asked:
    """The requests of one kind: a request is one instruction of a warp.

    Attributes:
        requests: how many.
        bytes: what their lanes ask for.
        units: wavefronts of shared memory, sectors of 32 bytes of global memory.
        ideal: the fewest that such requests can take.
        worst: the most of a single pass through the banks, or of a single request for sectors.
        fmas: multiply-adds of the problem.
    """

    requests: int
    bytes: int
    units: int
    ideal: int
    worst: int
    fmas: int

    @property
    def conflicts(self) -> int:
        """Units that are more than the bytes need."""
        return self.units - self.ideal

    @property
    def per_request(self) -> float:
        """Wavefronts or sectors of a request."""
        return self.units / self.requests if self.requests else 0.0

    @property
    def words_per_fma(self) -> float:
        """Floats that threads ask for, for each multiply-add of the problem."""
        return self.bytes / 4 / self.fmas


@dataclass(frozen=True)
class Line:
    """The requests of one kind at one place, "05_smem_tile.cu:31"."""

    kind: str
    place: str
    asked: Asked


class Counts:
    """What one problem asked for, by kind and by line."""

    def __init__(self, rows: Sequence[dict[str, Any]], fmas: int) -> None:
        """`rows` are those of grade.cpp."""
        self.fmas = fmas
        self.lines = [
            Line(
                row["what"].replace(" ", "_"),
                row["at"],
                Asked(*(row[field] for field in FIELDS), fmas),
            )
            for row in rows
        ]

    def of(self, kind: str, places: Iterable[str] | None = None) -> Asked:
        """Add up one of `KINDS`, at some places alone where they are given."""
        wanted = None if places is None else set(places)
        each = [
            line.asked
            for line in self.lines
            if line.kind == kind and (wanted is None or line.place in wanted)
        ]
        return Asked(
            sum(a.requests for a in each), sum(a.bytes for a in each), sum(a.units for a in each),
            sum(a.ideal for a in each), max((a.worst for a in each), default=0), self.fmas,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Asked:
        """Give `of` a kind as an attribute: ``counts.shared_load``."""
        if name in KINDS:
            return self.of(name)
        raise AttributeError(name)


def question(problem: str) -> str:
    """Give grade.cpp's question of a problem, ``MxNxK[/LAYOUT]``."""
    sizes, _, layout = problem.partition("/")
    return f"count {sizes.replace('x', ' ')} {layout or 'NN'}"


def fmas(problem: str) -> int:
    """Multiply-adds of a problem, ``MxNxK[/LAYOUT]``."""
    m, n, k = map(int, problem.partition("/")[0].split("x"))
    return m * n * k


def count(program: Program, problem: str) -> Counts:
    """Count one problem of a program.

    Raises:
        ValueError: the program failed.
    """
    answer = program.ask([question(problem)])[-1]
    if answer["kind"] != "counts":
        raise ValueError(answer.get("text", answer["kind"]))
    return Counts(answer["rows"], fmas(problem))


def tagged(text: str, name: str, tag: str) -> list[str]:
    """The places, as the emulator names them, of the lines of a file that ``// (tag)`` ends.

    Raises:
        LookupError: there is none.
    """
    found = [
        f"{name}:{number}"
        for number, line in enumerate(text.splitlines(), 1)
        if line.endswith(f"// ({tag})")
    ]
    if not found:
        raise LookupError(f"{name}: no line ends with // ({tag})")
    return found
