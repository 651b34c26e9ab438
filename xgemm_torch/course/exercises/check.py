"""Grading: what is wrong with a learner's file, in plain words, with the line it is at.

A fault is one of these kinds, which tests and wrong variants name:

==============  ===================================================================================
compile         g++ does not take the file
race            two threads' accesses that nothing orders
stray           an access outside the operands or arrays, or to C where beta is 0
misaligned      a vector at an address that is no multiple of its size
uninitialised   a read of shared memory that nobody has written
unfinished      a copy or product that was not waited for, or whose room is used too early
deadlock        threads that never meet, or meet at different barriers
mbarrier        arrivals, parities or initialisations that cannot be right
warp            lanes that do not meet in a shuffle or vote
bits            a result with other bits than were asked for
budget          more requests, wavefronts or sectors than are allowed
answer          a wrong prediction
crash, time     the program ended early, or not at all
==============  ===================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import measure, truth
from .exercise import Budget, Case, Exercise
from .measure import Counts
from .program import DoesNotCompile, Program, compiled

GOOD = "good"
# How the emulator's reports begin, and the kind of fault that is.
REPORTS = {
    "race on": "race",
    "out of bounds": "stray",
    "misaligned": "misaligned",
    "uninitialised": "uninitialised",
    "unfinished": "unfinished",
    "overwritten": "unfinished",
    "unfenced": "unfinished",
    "deadlock": "deadlock",
    "divergent barrier": "deadlock",
    "named barrier": "deadlock",
    "mbarrier": "mbarrier",
    "different masks": "warp",
    "divergent warp function": "warp",
    "divergent wgmma": "warp",
    "shuffle": "warp",
    "mask": "warp",
    "wgmma": "stray",
}
WORDS = {
    "compile": "The compiler does not take the file; its first error is the one to read.",
    "race": "Two threads touch the same place, one of them writes, and nothing says which comes "
    "first. It may work on a quiet day. A barrier between the two lines, a buffer of its own, or "
    "a wait for the right phase is missing.",
    "global": "Each element of D is to be stored by one thread: two have computed the same index.",
    "stray": "A GPU would read somebody else's memory here, or fault. Guard the edge: sizes are no "
    "multiples of the tile, and the last tile is a partial one. Far away from any operand it is "
    "rather an offset that is too large for its type.",
    "c": "Where beta is 0, C must not be read: it may be uninitialised, and 0 times a NaN is NaN. "
    "BLAS promises so.",
    "misaligned": "A vector of 16 bytes must begin at a multiple of 16 bytes: a row's length, or "
    "the place within it, is not one.",
    "uninitialised": "Shared memory holds whatever the block before has left. Either nobody stores "
    "this place (what edges leave out must be filled, too, with kPadA or kPadB), or the thread "
    "that does has not come so far: a barrier is missing, or a wait is for the wrong phase.",
    "unfinished": "An asynchronous copy or product goes on after the line that starts it. Whoever "
    "reads its result, or uses its operands' room again, must wait for it first.",
    "deadlock": "A barrier is for all threads of a block, at one line: no thread may leave before "
    "it, and no branch may go around it. Of an mbarrier: fewer arrive than it was made for, or "
    "somebody waits for a phase that is over, or yet to begin.",
    "mbarrier": "An mbarrier counts arrivals: its phase ends when as many have come as it was made "
    "for, and then the parity flips. Count who arrives, how often, and which parity is next.",
    "warp": "A warp's functions are for all lanes of their mask, at one line.",
    "budget": "The result is right. What is too much is what it asks of memory, and that is what "
    "the exercise is about.",
    "crash": "The emulator could not go on. Arrays of a thread together must stay below 64 KiB.",
    "time": "A loop that never ends?",
}


@dataclass
class Verdict:
    """What a check has found.

    Attributes:
        kind: ``"good"``, or the kind of the fault.
        what: what is wrong, in a sentence or a few.
        why: what such a fault means, and what helps.
        lines: the learner's lines that it speaks of, by number.
        passed: what was right, in the order in which it was asked.
        warning: the compiler's first, of the learner's file; mostly empty.
        printed: what the file's own printf has said, the first lines.
        slow: how far the speed on a GPU is under its mark; mostly empty.
        note: why the GPU was not asked, where there is one; mostly empty.
    """

    kind: str
    what: str = ""
    why: str = ""
    lines: dict[int, str] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    warning: str = ""
    printed: list[str] = field(default_factory=list)
    slow: str = ""
    note: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return self.kind == GOOD


def sentence(text: str) -> str:
    """Give a clause as a sentence."""
    end = "?" if text.endswith("?") else "."
    return text[:1].upper() + text[1:].rstrip(".?") + end


def _quoted(path: Path, text: str) -> dict[int, str]:
    """The lines of a file that a text speaks of, as "05_smem_tile.cu:31"."""
    numbers = dict.fromkeys(map(int, re.findall(rf"{re.escape(path.name)}:(\d+)", text)))
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {number: lines[number - 1] for number in numbers if 0 < number <= len(lines)}


def _report(answer: dict[str, Any], case: str, path: Path) -> Verdict:
    text = answer["text"].removeprefix("xgemm simt: ")
    kind = next((kind for begin, kind in REPORTS.items() if text.startswith(begin)), "crash")
    why = "c" if answer.get("reads_c") else kind
    if text.startswith("race on global memory"):
        why = "global"
    if why == "c":
        text = text.replace("outside every operand", "that is C's, while beta is 0")
    return Verdict(kind, f"{text} ({case})", WORDS[why], _quoted(path, text))


def _span(name: str, of: list[int]) -> str:
    return f"{name} {of[0]}" if of[0] == of[1] else f"{name}s {of[0]} to {of[1]}"


def bits(answer: dict[str, Any], case: Case) -> Verdict:
    """Say what is wrong with a result, of grade.cpp's answer."""
    wrong, all_of = answer["wrong"], answer["of"]
    what = (
        f"{wrong} of {all_of} elements of D are wrong, in {_span('row', answer['rows'])} and "
        f"{_span('column', answer['columns'])}. D({answer['i']}, {answer['j']}) is "
        f"{answer['got']}, and should be {answer['want']} ({case})."
    )
    if answer["unstored"] == wrong:
        what = what.replace(" are wrong,", " were never stored,")
        what = what.replace(f"is {answer['got']}, and should be", "should be")
        why = "Every element of D is some thread's: count the threads of the grid, and their tiles."
    elif answer["near"]:
        why = (
            "The products are there, but the last bits differ: they are added in another order "
            "than that of k, or by a * b + c, which rounds twice, in place of fmaf(a, b, c)."
        )
    elif wrong < all_of:
        why = "The elements that are right and those that are wrong differ in their tile or edge."
    else:
        why = "Follow one element by hand: which A(i, k) and B(k, j) does its thread multiply?"
    return Verdict("bits", what, why)


def first_error(error: DoesNotCompile, path: Path) -> Verdict:
    """Say why a file does not compile, by the compiler's first error."""
    lines = [line for line in error.message.splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if " error:" in line or "undefined" in line), 0)
    text = "\n".join(
        line.replace(str(path.resolve()), path.name) for line in lines[first : first + 4]
    )
    return Verdict("compile", text, WORDS["compile"], _quoted(path, text))


def _warning(said: str, path: Path) -> str:
    found = re.search(rf"{re.escape(path.name)}:(\d+):\d+: warning: (.*)", said)
    return f"{path.name}:{found[1]}: {found[2]}" if found else ""


def check_budget(budget: Budget, counts: Counts, path: Path) -> Verdict:
    """Compare what a problem asks for with a budget."""
    asked = counts.of(budget.quantity)
    is_now = float(getattr(asked, budget.field))
    name = f"{budget.quantity.replace('_', ' ')}s, {budget.field.replace('_', ' ')}"
    if is_now <= budget.most:
        return Verdict(GOOD, f"{name}: {is_now:g}, of {budget.most:g} allowed")
    unit = "wavefronts" if budget.quantity.startswith("shared") else "sectors"
    worst = sorted(
        (
            line
            for line in counts.lines
            if line.kind == budget.quantity
            and (budget.field != "conflicts" or line.asked.conflicts)
        ),
        key=lambda line: -line.asked.units + line.asked.ideal,
    )
    told = [
        f"{line.place}: {line.asked.per_request:.3g} {unit} for a request, "
        f"{line.asked.ideal / line.asked.requests:.3g} at best"
        for line in worst[:3]
    ]
    why = sentence(budget.why)
    what = f"{name}: {is_now:g} where {budget.most:g} is the most ({budget.problem}). {why}"
    text = "\n".join([what, *told])
    return Verdict("budget", text, WORDS["budget"], _quoted(path, text))


def check_barriers(most: int, why: str, sites: list[list[str]], path: Path) -> Verdict:
    """Compare the lines at which threads of a block met with how many there may be."""
    places = sorted(place for kind, place in sites if kind == "barrier")
    if len(places) <= most:
        return Verdict(GOOD, f"lines with a barrier: {len(places)}, of {most} allowed")
    text = f"{len(places)} lines with a barrier where {most} suffice. {sentence(why)}"
    return Verdict("budget", text, WORDS["budget"], _quoted(path, " ".join(places)))


def _runs(exercise: Exercise) -> list[tuple[Case, str]]:
    """Each problem in the order of the threads' numbers, then shuffled."""
    return [
        (case, case.command(order, seed))
        for seed, case in enumerate(exercise.cases)
        for order in ("forward", "random")
    ]


def run(exercise: Exercise, program: Program, path: Path) -> Verdict:
    """Grade a program that was compiled from the file at `path`."""
    runs = _runs(exercise)
    questions = [line for _, line in runs]
    questions += [measure.question(budget.problem) for budget in exercise.budgets]
    questions.append("sites")
    answers = program.ask(questions)
    for (case, _), answer in zip(runs, answers, strict=False):
        if answer["kind"] == "bits":
            return bits(answer, case)
        if answer["kind"] == "error":
            return _report(answer, str(case), path)
        if answer["kind"] != GOOD:
            return Verdict(answer["kind"], f"{answer['text']} ({case})", WORDS[answer["kind"]])
    passed = [f"{len(exercise.cases)} problems, threads in order and shuffled: bits, no report"]
    for budget, answer in zip(exercise.budgets, answers[len(runs) :], strict=False):
        if answer["kind"] != "counts":
            text = answer.get("text", answer["kind"])
            return _report({**answer, "text": text}, budget.problem, path)
        counts = Counts(answer["rows"], measure.fmas(budget.problem))
        verdict = check_budget(budget, counts, path)
        if not verdict.good:
            verdict.passed = passed
            return verdict
        passed.append(verdict.what)
    if len(answers) < len(questions) or answers[-1]["kind"] != "sites":
        return Verdict("crash", "it ended before all was asked", WORDS["crash"])
    if exercise.barriers:
        verdict = check_barriers(*exercise.barriers, answers[-1]["sites"], path)
        if not verdict.good:
            verdict.passed = passed
            return verdict
        passed.append(verdict.what)
    return Verdict(GOOD, passed=passed)


def file(
    exercise: Exercise,
    path: Path,
    answers: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Grade a learner's file.

    Args:
        exercise: what it is of.
        path: the file.
        answers: to a ``predict``, by the questions' names; None: those that are in the file.
        say: is told what takes long.

    Returns:
        A verdict; of a ``predict`` the first wrong answer's.

    Raises:
        CannotBuild: this machine cannot compile it.
        OSError: there is no such file.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    if exercise.kind == "predict":
        given = exercise.answers_in(text) if answers is None else answers
        return truth.check(exercise, given, say)
    try:
        with compiled(path.resolve(), say) as program:
            verdict = run(exercise, program, path)
            verdict.warning = _warning(program.warnings, path)
            verdict.printed = program.printed
            return verdict
    except DoesNotCompile as error:
        return first_error(error, path)
