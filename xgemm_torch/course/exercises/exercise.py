"""An exercise as one file: the learner's text, the model solution and wrong ones, told apart.

The file is C++ that compiles to the model solution. It begins with lines ``//! key: value``, which
a learner does not get; ``//!   ...``, indented, goes on with the line before:

=============  ====================================================================================
title          one line
kind           ``fill`` (a hole), ``predict`` (questions) or ``bug`` (a planted fault)
stage          the stage of the ladder that does the same, if there is one
cases          problems, as `Case.parse` reads them; `GENERAL` where they are left out
budget         as `Budget.parse` reads it; any number of them
barriers       ``NUMBER; why``: the most lines with __syncthreads() that may run
hint           any number of them, each says more than the one before
ask NAME       a question of a ``predict``
truth NAME     its answer, an expression in the terms of `truth`
wrong NAME     ``VALUE; what it overlooks``: a wrong answer; any number of them
because NAME   what is said beside a right answer
=============  ====================================================================================

The comment behind them is the exercise's text. In the code ``#if GIVEN``, ``#if WRONG_1``, ...,
``#elif``, ``#else`` and ``#endif`` tell variants apart, each with the failure that it must have and
the reason: ``#elif WRONG_2  // race: no barrier before the next slice is stored``. What is behind
``#else`` is the solution's.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
KINDS = {
    "fill": "fill the hole",
    "predict": "predict",
    "bug": "find the bug",
}
GIVEN, SOLUTION = "GIVEN", "SOLUTION"
# Sizes of 1, primes, K = 0, partial and whole tiles, all layouts, lines with gaps, an epilogue, and
# data with infinities and NaN.
GENERAL = (
    "33x65x17 1x1x1 64x64x32 5x7x0 37x41x13/TN+3 47x31x19/NT 61x29x100/TT+1 33x34x35*2,0.5 "
    "17x19x23*-1.5,0 17x19x23!special"
)

_HOLE = "// ---- your code ----"
_META = re.compile(r"//! ?(?P<key>[a-z]+)(?: (?P<name>\w+))?: (?P<value>.*)")
_VARIANT = re.compile(r"#(?:el)?if (?P<name>GIVEN|WRONG_\d)(?:\s+// (?P<fails>\w+): (?P<why>.*))?$")


class BrokenExercise(ValueError):
    """An exercise's file is not written as this module says."""


@dataclass(frozen=True)
class Case:
    """A problem that a learner's kernel has to get right."""

    m: int
    n: int
    k: int
    layout: str = "NN"
    gap: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    data: str = "normal"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read ``MxNxK[/LAYOUT][+GAP][*ALPHA,BETA][!DATA]``; grade.cpp says what they are."""
        match = re.fullmatch(
            r"(\d+)x(\d+)x(\d+)(?:/([NT]{2}))?(?:\+(\d+))?"
            r"(?:\*(-?[\d.]+),(-?[\d.]+))?(?:!(\w+))?",
            text,
        )
        if not match:
            raise BrokenExercise(
                f"{text!r} is no problem: MxNxK[/LAYOUT][+GAP][*ALPHA,BETA][!DATA]"
            )
        m, n, k, layout, gap, alpha, beta, data = match.groups()
        return cls(
            int(m), int(n), int(k), layout or "NN", int(gap or 0),
            float(alpha or 1), float(beta or 0), data or "normal",
        )  # fmt: skip

    @property
    def words(self) -> str:
        """The problem as problem.h reads it."""
        return (
            f"{self.m} {self.n} {self.k} {self.layout} {self.gap} {self.alpha} {self.beta} "
            f"{self.data}"
        )

    def command(self, order: str, seed: int) -> str:
        """Give the line that has grade.cpp run it."""
        return f"case {self.words} {order} {seed}"

    def __str__(self) -> str:
        """Say it in words."""
        words = [f"M = {self.m}, N = {self.n}, K = {self.k}"]
        transposed = [v for v, c in zip("AB", self.layout, strict=True) if c == "T"]
        if transposed:
            words.append(f"{' and '.join(transposed)} transposed")
        if self.gap:
            words.append(f"{self.gap} floats between lines")
        if (self.alpha, self.beta) != (1, 0):
            words.append(f"alpha = {self.alpha:g}, beta = {self.beta:g}")
        if self.data != "normal":
            words.append(f"{self.data} data")
        return ", ".join(words)


@dataclass(frozen=True)
class Budget:
    """The most that a kernel may ask of memory in one problem."""

    problem: str
    quantity: str
    field: str
    most: float
    why: str

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``MxNxK[/LAYOUT]: QUANTITY.FIELD <= NUMBER; why``, in the terms of `Counts`."""
        match = re.fullmatch(
            r"(\d+x\d+x\d+(?:/[NT]{2})?): "
            r"((?:shared|global)_(?:load|store))\.(\w+) <= ([\d.]+); (.*)",
            text,
        )
        if not match:
            raise BrokenExercise(f"{text!r} is no budget: MxNxK: QUANTITY.FIELD <= NUMBER; why")
        problem, quantity, field, most, why = match.groups()
        return cls(problem, quantity, field, float(most), why)


@dataclass(frozen=True)
class Question:
    """A question of a ``predict``.

    Attributes:
        name: what its answer is called.
        ask: the question.
        truth: the expression that is its answer.
        wrong: wrong answers, each with what it overlooks.
        because: what is said beside a right answer.
    """

    name: str
    ask: str
    truth: str
    wrong: tuple[tuple[str, str], ...]
    because: str


@dataclass(frozen=True)
class Exercise:
    """What a file of exercises/ holds; `expected` has for each variant its failure and why."""

    path: Path
    title: str
    kind: str
    stage: str
    cases: tuple[Case, ...]
    budgets: tuple[Budget, ...]
    barriers: tuple[int, str] | None
    hints: tuple[str, ...]
    questions: tuple[Question, ...]
    text: tuple[str, ...]
    code: tuple[str, ...]
    expected: dict[str, tuple[str, str]]

    @property
    def number(self) -> int:
        """``5``."""
        return int(self.path.stem[:2])

    @property
    def stem(self) -> str:
        """``"05_smem_tile"``, which is also what progress is kept under."""
        return self.path.stem

    @property
    def file_name(self) -> str:
        """Of the learner's file."""
        return self.path.name

    @property
    def wrong(self) -> tuple[str, ...]:
        """The wrong variants' names."""
        return tuple(sorted(name for name in self.expected if name != GIVEN))

    def render(self, variant: str = GIVEN) -> str:
        """Give a file: the learner's (`GIVEN`), the `SOLUTION`, or a wrong one."""
        lines = [f"// {self.number:02d}. {self.title} ({KINDS[self.kind]})", "//", *self.text]
        if self.kind == "predict":
            lines += self._questions()
        lines += ["", *_chosen(self.code, variant, mark=self.kind == "fill" and variant == GIVEN)]
        return "\n".join(lines) + "\n"

    def _questions(self) -> list[str]:
        lines = []
        for question in self.questions:
            lines.append("//")
            lines += [f"// {line}" for line in _wrapped(f"{question.name}: {question.ask}")]
            lines.append(f"// answer {question.name}: ?")
        return lines

    def answers_in(self, text: str) -> dict[str, str]:
        """Read the answers that a learner has written into the file; one left as ``?`` is none."""
        found = re.findall(r"^// answer (\w+):[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
        return {name: value for name, value in found if value not in ("", "?")}


def _wrapped(text: str, width: int = 96) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _chosen(code: tuple[str, ...], variant: str, *, mark: bool) -> list[str]:
    """Leave of each region the branch of one variant; `mark` shows where the holes are.

    Regions may lie in a branch of another one.
    """
    lines: list[str] = []
    inside: list[tuple[bool, bool]] = []  # of each region: whether its branch is taken, one was
    for line in code:
        match = _VARIANT.match(line)
        if match and line.startswith("#if"):
            taken = match["name"] == variant
            inside.append((taken, taken))
        elif inside and (match or line == "#else"):
            _, done = inside.pop()
            taken = not done and (not match or match["name"] == variant)
            inside.append((taken, done or taken))
        elif inside and line == "#endif":
            inside.pop()
            continue
        elif all(taken for taken, _ in inside):
            lines.append(line)
            continue
        else:
            continue
        if mark and match and all(taken for taken, _ in inside):
            lines.append(_HOLE)
    for at, line in enumerate(lines):
        if line == _HOLE:  # as far in as what follows
            below = lines[at + 1] if at + 1 < len(lines) else ""
            lines[at] = " " * (len(below) - len(below.lstrip())) + _HOLE
    return lines


def _numbered(code: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """The variants' failures, as the code's conditions name them."""
    found: dict[str, tuple[str, str]] = {}
    for line in code:
        match = _VARIANT.match(line)
        if match and match["fails"]:
            found[match["name"]] = (match["fails"], match["why"])
        elif match:
            found.setdefault(match["name"], ("", ""))
    return found


def parse(path: Path) -> Exercise:
    """Read an exercise's file.

    Raises:
        BrokenExercise: it is not written as this module says.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    meta: list[list[str]] = []
    at = 0
    while at < len(lines) and lines[at].startswith("//!"):
        if re.match(r"//!\s{3,}", lines[at]) and meta:
            meta[-1][2] += " " + lines[at][3:].strip()
        elif match := _META.fullmatch(lines[at]):
            meta.append([match["key"], match["name"] or "", match["value"]])
        else:
            raise BrokenExercise(f"{path.name}:{at + 1}: {lines[at]!r} is no '//! key: value'")
        at += 1
    while at < len(lines) and not lines[at].strip():
        at += 1
    start = at
    while at < len(lines) and lines[at].startswith("//"):
        at += 1
    text, code = tuple(lines[start:at]), tuple(lines[at:])
    while code and not code[0].strip():
        code = code[1:]

    def values(key: str, name: str | None = None) -> list[str]:
        return [v for k, n, v in meta if k == key and (name is None or n == name)]

    def one(key: str, default: str | None = None, name: str | None = None) -> str:
        found = values(key, name)
        if len(found) > 1 or (not found and default is None):
            raise BrokenExercise(f"{path.name}: it needs one '//! {key}', and has {len(found)}")
        return found[0] if found else default or ""

    kind = one("kind")
    if kind not in KINDS:
        raise BrokenExercise(f"{path.name}: its kind is {kind!r}; there are {', '.join(KINDS)}")
    most, _, why = one("barriers", "").partition("; ")
    if most and not (most.isdigit() and why):
        raise BrokenExercise(f"{path.name}: {most!r} is no number of barriers: NUMBER; why")
    barriers = (int(most), why) if most else None
    questions = []
    for key, name, ask in meta:
        if key == "ask":
            pairs = [value.partition("; ") for value in values("wrong", name)]
            questions.append(
                Question(
                    name, ask, one("truth", name=name),
                    tuple((value, why) for value, _, why in pairs), one("because", "", name),
                )
            )  # fmt: skip
    return Exercise(
        path=path,
        title=one("title"),
        kind=kind,
        stage=one("stage", ""),
        cases=tuple(Case.parse(word) for word in one("cases", GENERAL).split()),
        budgets=tuple(Budget.parse(value) for value in values("budget")),
        barriers=barriers,
        hints=tuple(values("hint")),
        questions=tuple(questions),
        text=text,
        code=code,
        expected=_numbered(code),
    )


@functools.cache
def exercises() -> tuple[Exercise, ...]:
    """Give all exercises, by number."""
    return tuple(parse(path) for path in sorted(FOLDER.glob("[0-9][0-9]_*.cu")))


def find(word: str) -> Exercise:
    """Find an exercise by its number, its name or its file's.

    Raises:
        ValueError: there is none.
    """
    import difflib

    stem = Path(word).stem
    for each in exercises():
        if stem in (str(each.number), f"{each.number:02d}", each.stem, each.stem[3:]):
            return each
    near = difflib.get_close_matches(stem, [each.stem[3:] for each in exercises()], 1)
    last = exercises()[-1].number
    hint = f"; did you mean {near[0]}?" if near else f"; there are 1 to {last}"
    raise ValueError(f"exercise: no exercise {word}{hint}")
