"""What a prediction should have been: computed, from the emulator or from a formula, never stored.

An exercise's ``truth`` is a Python expression over `Facts` and these names:

- ``count("64x64x32")``: a `Counts`, ``.shared_load``, ``.global_load``, ...; ``at("TAG", KIND)`` is
  of the lines that a comment ``// (TAG)`` ends;
- ``needless()``: tags of the barriers without which nothing goes wrong, in any order of threads;
- ``value("1x1x64", "tenths")``: D(0, 0) of a problem;
- ``ulps(x, exact)``, ``blocks_per_sm(threads, registers, smem)``, ``ceil``, ``float32``;
- ``gpu``: an H200's figures, as `GPU` has them.
"""

from __future__ import annotations

import math
import re
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import measure
from .exercise import SOLUTION, Case, Exercise, Question
from .program import Program, compiled

if TYPE_CHECKING:
    from .check import Verdict

# Problems and seeds in which a barrier must be missed if it is needed at all.
PROBLEMS = ("33x65x40", "70x40x9")
SEEDS = range(4)


@dataclass(frozen=True)
class Gpu:
    """What bounds a kernel on one GPU."""

    sms: int = 132
    warps_per_sm: int = 64
    blocks_per_sm: int = 32
    registers_per_sm: int = 65536
    shared_per_sm: int = 228 * 1024
    shared_of_system: int = 1024  # that each block takes beside its own
    tflops: float = 66.9  # FP32: 132 multiprocessors, 128 FMA a cycle, 1.98 GHz
    memory_tbs: float = 4.8


GPU = Gpu()


def float32(x: float) -> float:
    """Round to the nearest float of 32 bits."""
    return struct.unpack("f", struct.pack("f", x))[0]


def ulps(x: float, exact: float | Fraction) -> float:
    """How far x is from what is exact, in units of the last place of a float as large as that."""
    exact = Fraction(exact)
    if exact == 0:
        return float(abs(Fraction(x)) / Fraction(2) ** -149)
    exponent = max(math.frexp(float(exact))[1] - 24, -149)
    return float(abs(Fraction(x) - exact) / Fraction(2) ** exponent)


def blocks_per_sm(threads: int, registers: int, smem: int = 0, gpu: Gpu = GPU) -> int:
    """How many blocks a multiprocessor holds at a time.

    Registers are dealt out to warps, 256 at a time; shared memory comes with `shared_of_system`
    more for each block.
    """
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // 256) * 256
    by_registers = gpu.registers_per_sm // of_warp // warps
    by_memory = gpu.shared_per_sm // (smem + gpu.shared_of_system)
    return min(gpu.blocks_per_sm, gpu.warps_per_sm // warps, by_registers, by_memory)


class Facts:
    """What a truth may ask of an exercise's own kernel; it is compiled when it is first asked."""

    def __init__(self, exercise: Exercise, say: Callable[[str], None]) -> None:
        """Facts of the exercise's solution."""
        self.exercise, self.say = exercise, say
        self.text = exercise.render(SOLUTION)

    def ask(self, lines: list[str]) -> list[dict[str, Any]]:
        """Ask the program."""
        with tempfile.TemporaryDirectory(prefix="xgemm_exercise-") as folder:
            path = Path(folder, self.exercise.file_name)
            path.write_text(self.text, encoding="utf-8")
            with compiled(path, self.say) as program:
                self.program: Program = program
                return program.ask(lines)

    def tagged(self, tag: str) -> list[str]:
        """The places of the lines that ``// (tag)`` ends."""
        return measure.tagged(self.text, self.exercise.file_name, tag)

    def count(self, problem: str) -> measure.Counts:
        """Count a problem."""
        answer = self.ask([measure.question(problem)])[-1]
        if answer["kind"] != "counts":
            raise ValueError(answer.get("text", answer["kind"]))
        return measure.Counts(answer["rows"], measure.fmas(problem))

    def at(self, tag: str, kind: str, problem: str = "64x64x32") -> measure.Asked:
        """What the tagged lines ask for."""
        return self.count(problem).of(kind, self.tagged(tag))

    def value(self, problem: str, data: str) -> float:
        """D(0, 0) of a problem."""
        answer = self.ask([f"values {problem.replace('x', ' ')} {data}"])[-1]
        if answer["kind"] != "values":
            raise ValueError(answer.get("text", answer["kind"]))
        return float.fromhex(answer["d"][0])

    def needless(self) -> str:
        """The tags of the barriers that can go, in order; "none" where each is needed."""
        cases = [
            Case.parse(problem).command(order, seed)
            for problem in PROBLEMS
            for seed in SEEDS
            for order in (("forward", "reverse", "random") if seed == 0 else ("random",))
        ]
        sites = self.ask([*cases, "sites"])[-1]["sites"]
        places = [place for kind, place in sites if kind == "barrier"]
        answers = self.ask([line for place in places for line in (f"skip {place}", *cases)])
        each = 1 + len(cases)
        tags = []
        for number, place in enumerate(places):
            if all(a["kind"] == "good" for a in answers[number * each : (number + 1) * each]):
                line = self.text.splitlines()[int(place.rpartition(":")[2]) - 1]
                match = re.search(r"// \((\w+)\)$", line)
                tags.append(match[1] if match else place)
        return " ".join(sorted(tags)) or "none"


def of(exercise: Exercise, question: Question, say: Callable[[str], None] = lambda _: None) -> Any:
    """Compute the answer to a question."""
    facts = Facts(exercise, say)
    names = {
        "count": facts.count, "at": facts.at, "value": facts.value, "needless": facts.needless,
        "ulps": ulps, "blocks_per_sm": blocks_per_sm, "ceil": math.ceil, "float32": float32,
        "gpu": GPU, "int": int, "min": min, "max": max, "round": round, "Fraction": Fraction,
    }  # fmt: skip
    # The expression is the package's own, of the exercise's file.
    return eval(question.truth, {"__builtins__": {}}, names)


def same(given: str, right: Any) -> bool:
    """Whether an answer is right: words in any order; numbers to 2%, whole ones exactly."""
    if isinstance(right, str):
        return sorted(re.split(r"[\s,]+", given.strip().lower())) == sorted(right.lower().split())
    try:
        number = float(Fraction(given.strip().rstrip("%").strip().replace(",", ".")))
    except (ValueError, ZeroDivisionError):
        return False
    if isinstance(right, int):
        return number == right
    return math.isclose(number, right, rel_tol=0.02)


def shown(right: Any) -> str:
    """Give a truth as a learner might write it."""
    return f"{right:.6g}" if isinstance(right, float) else str(right)


def check(
    exercise: Exercise, given: dict[str, str], say: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Grade the answers to a ``predict``; what is right is not said of a wrong one."""
    from .check import GOOD, Verdict, sentence

    passed: list[str] = []
    for question in exercise.questions:
        if question.name not in given:
            what = f"{question.name}: no answer yet. {question.ask}"
            why = f"Write it behind '// answer {question.name}:' in the file, or use --answer."
            return Verdict("answer", what, why, passed=passed)
    for question in exercise.questions:
        answer = given[question.name]
        if not same(answer, of(exercise, question, say)):
            slip = next(
                (why for value, why in question.wrong if same(answer, _as_truth(value))), ""
            )
            what = f"{question.name}: {answer} is not what was measured or computed."
            return Verdict("answer", what, sentence(slip or question.ask), passed=passed)
        passed.append(f"{question.name}: {answer}. {question.because}".strip())
    return Verdict(GOOD, passed=passed)


def _as_truth(value: str) -> Any:
    try:
        number = float(Fraction(value))
    except ValueError:
        return value
    return int(number) if number == int(number) else number
