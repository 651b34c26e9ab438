"""The course's exercises: solutions pass, and wrong ones fail for the reason they should."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import build_tools.compiler
import xgemm_torch
from build_tools import library
from build_tools.settings import ROOT
from xgemm_torch.__main__ import main
from xgemm_torch.course.exercises import check, exercise, program, progress, truth
from xgemm_torch.course.exercises.exercise import GIVEN, SOLUTION, exercises

ALL = exercises()
STAGES = {stage.name for stage in xgemm_torch.stages()}
# Each variant of each exercise with a program, and the fault that it must have.
VARIANTS = [
    pytest.param(each, variant, fails, id=f"{each.stem}-{variant.lower()}")
    for each in ALL
    if each.kind != "predict"
    for variant, fails in [
        (SOLUTION, check.GOOD),
        *((name, fails) for name, (fails, _) in each.expected.items()),
    ]
]
QUESTIONS = [
    pytest.param(each, question, id=f"{each.stem}-{question.name}")
    for each in ALL
    for question in each.questions
]


@pytest.mark.parametrize(("each", "variant", "fails"), VARIANTS)
def test_a_variant_has_the_fault_that_it_names(each, variant, fails, tmp_path):
    path = tmp_path / each.file_name
    path.write_text(each.render(variant))
    verdict = check.file(each, path)
    assert verdict.kind == fails, verdict
    # What the emulator reports has a line of the learner's file.
    if fails not in (check.GOOD, "bits", "compile", "time", "crash"):
        assert verdict.lines, verdict


@pytest.mark.parametrize(("each", "question"), QUESTIONS)
def test_a_truth_is_computed_and_wrong_answers_are_not_it(each, question):
    right = truth.of(each, question)
    assert truth.same(truth.shown(right), right)
    for wrong, why in question.wrong:
        assert not truth.same(wrong, right), (wrong, right)
        assert why


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.stem)
def test_an_exercise_teaches(each):
    assert not each.stage or each.stage in STAGES
    assert len(each.hints) >= 2
    assert 8 <= len(each.text) <= 30
    assert all(len(line) <= 100 for line in each.render(SOLUTION).splitlines())
    if each.kind == "predict":
        assert sum(len(question.wrong) for question in each.questions) >= 3
        assert not each.expected
    else:
        assert {GIVEN, "WRONG_1", "WRONG_2", "WRONG_3"} <= set(each.expected)
        assert all(why and fails in check.WORDS or fails == "bits"
                   for fails, why in each.expected.values())  # fmt: skip
    # A learner's file says nothing of variants, and a bug's not where it is.
    for variant in (GIVEN, SOLUTION):
        assert not re.search(r"GIVEN|WRONG|^//!", each.render(variant), re.MULTILINE)
    assert ("your code" in each.render()) == (each.kind == "fill")


def test_numbers_are_each_one_exercises():
    numbers = [each.number for each in ALL]
    assert numbers == list(range(1, len(ALL) + 1))
    assert {each.kind for each in ALL} == set(exercise.KINDS)


# The command


@pytest.fixture
def xgemm(tmp_path, monkeypatch, capsys):
    """Runs a command in an empty directory; gives its exit code and all that it prints."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = main(["exercise", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


def solve(each, folder):
    (folder / each.file_name).write_text(each.render(SOLUTION))


FILL = next(each for each in ALL if each.kind == "fill")
PREDICT = next(each for each in ALL if each.kind == "predict" and not each.code)


def test_a_file_is_handed_out_and_never_lost(xgemm, tmp_path):
    path = tmp_path / "exercises" / FILL.file_name
    code, said = xgemm(FILL.number)
    assert code == 0 and path.read_text() == FILL.render() and "made" in said
    path.write_text("mine")
    code, said = xgemm(FILL.number)
    assert code == 0 and path.read_text() == "mine" and "left as it is" in said
    code, said = xgemm(FILL.stem, "--force")
    assert path.read_text() == FILL.render()
    assert path.with_name(f"{path.name}.old").read_text() == "mine"


def test_checks_are_graded_and_kept(xgemm, tmp_path):
    folder = tmp_path / "exercises"
    assert xgemm(FILL.number)[0] == 0
    code, said = xgemm(FILL.number, "--check")
    assert code == 1 and "WRONG" in said
    assert re.search(rf"exercises/{FILL.file_name}:\d+: ", said)
    assert "tried 1x" in xgemm()[1]
    solve(FILL, folder)
    code, said = xgemm(FILL.number, "--check")
    assert code == 0 and "is solved" in said and "right" in said
    assert f"1 of {len(ALL)} solved" in xgemm()[1]
    # Solved is solved, whatever is tried next.
    (folder / FILL.file_name).write_text(FILL.render())
    assert xgemm("--check")[0] == 1
    assert f"1 of {len(ALL)} solved" in xgemm()[1]


def test_who_stands_in_the_folder_needs_no_other(xgemm, tmp_path, monkeypatch):
    assert xgemm(FILL.number)[0] == 0
    monkeypatch.chdir(tmp_path / "exercises")
    solve(FILL, tmp_path / "exercises")
    assert xgemm(FILL.number, "--check")[0] == 0
    assert not (tmp_path / "exercises" / "exercises").exists()
    xgemm(FILL.number, "--dir", tmp_path / "other")
    assert (tmp_path / "other" / FILL.file_name).exists()


def test_hints_come_one_by_one(xgemm):
    for shown in range(1, len(FILL.hints) + 2):
        code, said = xgemm(FILL.number, "--hint")
        assert code == 0 and said.count("hint ") == min(shown, len(FILL.hints))
    assert "no further one" in said


def test_a_solution_comes_after_a_try_or_on_demand(xgemm):
    code, said = xgemm(FILL.number, "--solution")
    assert code == 2 and "--yes" in said
    code, said = xgemm(FILL.number, "--solution", "--yes")
    assert code == 0 and said == FILL.render(SOLUTION)
    xgemm(FILL.number)
    xgemm(FILL.number, "--check")
    assert xgemm(FILL.number, "--solution")[0] == 0
    code, said = xgemm(PREDICT.number, "--solution", "--yes")
    assert code == 0 and all(question.because[:20] in said for question in PREDICT.questions)


def test_answers_are_given_in_the_file_or_to_the_command(xgemm, tmp_path):
    right = [truth.shown(truth.of(PREDICT, question)) for question in PREDICT.questions]
    assert xgemm(PREDICT.number, "--answer", *right)[0] == 0
    code, said = xgemm(PREDICT.number, "--answer", *right[:-1])
    assert code == 2 and f"asks for {len(right)} answers" in said
    wrong, why = PREDICT.questions[0].wrong[0]
    code, said = xgemm(PREDICT.number, "--answer", wrong, *right[1:])
    assert code == 1 and why.split(";")[0][:40] in said and right[0] not in said.split("is not")[0]
    xgemm(PREDICT.number)
    code, said = xgemm(PREDICT.number, "--check")
    assert code == 1 and "no answer yet" in said
    path = tmp_path / "exercises" / PREDICT.file_name
    text = path.read_text()
    for answer in right:
        text = text.replace(": ?\n", f": {answer}\n", 1)
    path.write_text(text)
    assert xgemm(PREDICT.number, "--check")[0] == 0
    code, said = xgemm(FILL.number, "--answer", "1")
    assert code == 2 and "has no questions" in said


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nave_index"], "did you mean naive_index?"),
        (["99"], f"there are 1 to {len(ALL)}"),
        (["--hint"], "of which one?"),
        (["--check"], "has no exercise's file"),
        (["1", "--check"], "there is no exercises/"),
    ],
)
def test_wrong_arguments_are_named(xgemm, words, part):
    code, said = xgemm(*words)
    assert code == 2 and part in said


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"exercises": 1}', '{"exercises": {"a": {"checks": "x"}}}', "\xff\x00"]
)
def test_damaged_progress_is_set_aside(tmp_path, text):
    (tmp_path / progress.FILE).write_text(text, encoding="latin-1")
    kept = progress.Progress(tmp_path)
    assert "damaged" in kept.trouble and kept.of("x").checks == 0
    assert (tmp_path / "progress.damaged.json").read_text(encoding="latin-1") == text
    kept.of("x").solved = True
    kept.save()
    again = progress.Progress(tmp_path)
    assert again.trouble == "" and again.of("x").solved


def test_progress_that_cannot_be_kept_is_said(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("read-only")

    kept = progress.Progress(tmp_path)
    monkeypatch.setattr(progress.os, "replace", refuse)
    kept.save()
    words = f"exercise: {tmp_path / progress.FILE} cannot be written: read-only"
    assert kept.trouble == f"progress is not kept: {words}"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    kept = progress.Progress(tmp_path / "file" / "folder")
    kept.save()
    assert "progress is not" in kept.trouble


# Programs

KERNEL = """#include "exercise.h"
__global__ void kernel(const Gemm g) {
  %s
}
void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3(1), .block = dim3(32)}, context, g);
}
"""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("g.stor(0, 0, 1.f);", "compile"),
        ("for (volatile int i = 0;; ++i) {}", "time"),
        ("std::abort();", "crash"),
        ("if (threadIdx.x < 8) __syncthreads();", "deadlock"),
        ("const_cast<float&>(g.a(0, 0)) = 1.f;", "stray"),
        ("", "bits"),
    ],
)
def test_whatever_a_learner_writes_has_a_verdict(tmp_path, monkeypatch, line, kind):
    monkeypatch.setattr(program, "SECONDS", 2)
    path = tmp_path / FILL.file_name
    path.write_text(KERNEL % line)
    verdict = check.file(FILL, path)
    assert verdict.kind == kind, verdict
    assert verdict.what and verdict.why
    if kind in ("compile", "deadlock", "stray"):
        assert verdict.lines == {3: f"  {line}"}


def test_what_a_kernel_prints_is_shown(tmp_path):
    path = tmp_path / FILL.file_name
    path.write_text(KERNEL % 'if (threadIdx.x < 2) printf("{lane %d}", threadIdx.x);')
    verdict = check.file(FILL, path)
    assert verdict.kind == "bits"
    assert verdict.printed[0] == "{lane 0}{lane 1}"
    path.write_text(KERNEL % 'printf("%d\\n", threadIdx.x);')
    assert check.file(FILL, path).printed == [str(lane) for lane in range(program.PRINTED)]


def test_a_file_without_run_is_told_so(tmp_path):
    path = tmp_path / FILL.file_name
    path.write_text('#include "exercise.h"\n')
    verdict = check.file(FILL, path)
    assert verdict.kind == "compile" and "run(" in verdict.what


def test_what_a_machine_lacks_is_named(xgemm, tmp_path, monkeypatch):
    xgemm(FILL.number)
    monkeypatch.setenv("XGEMM_CSRC", str(tmp_path))
    code, said = xgemm(FILL.number, "--check")
    assert code == 2 and "XGEMM_CSRC" in said and str(tmp_path) in said
    monkeypatch.delenv("XGEMM_CSRC")
    monkeypatch.setenv("CXX", "no-such-g++")
    code, said = xgemm(FILL.number, "--check")
    assert code == 2 and "there is no no-such-g++" in said


def test_kernels_are_compiled_as_stages_are():
    asked = {*library.HOST_KERNEL.split(), *library.WATCHED.split()}
    assert asked <= {*program.KERNEL}
    assert program.OLDEST == build_tools.compiler._OLDEST


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("//! kind: fill\n", "one '//! title', and has 0"),
        ("//! title: x\n//! kind: guess\n", "its kind is 'guess'"),
        ("//! title x\n", "is no '//! key: value'"),
        ("//! title: x\n//! kind: fill\n//! cases: 3x3\n", "'3x3' is no problem"),
        ("//! title: x\n//! kind: fill\n//! budget: 1x1x1: shared <= 3; y\n", "is no budget"),
        ("//! title: x\n//! kind: predict\n//! ask a: b\n", "one '//! truth', and has 0"),
    ],
)
def test_a_broken_exercise_is_named(tmp_path, text, part):
    path = tmp_path / "01_x.cu"
    path.write_text(text)
    with pytest.raises(exercise.BrokenExercise, match=re.escape(part)):
        exercise.parse(path)


def test_regions_may_lie_in_regions(tmp_path):
    path = tmp_path / "07_x.cu"
    path.write_text(
        "//! title: x\n//! kind: fill\n// Text.\n\na\n"
        "#if GIVEN  // bits: why\n  b\n#else\nc\n#if WRONG_1  // race: why\nd\n#else\ne\n#endif\n"
        "f\n#endif\n#if X\ng\n#endif\n"
    )
    made = exercise.parse(path)
    rest = ["#if X", "g", "#endif"]
    for variant, lines in {
        GIVEN: ["a", "  // ---- your code ----", "  b", *rest],
        SOLUTION: ["a", "c", "e", "f", *rest],
        "WRONG_1": ["a", "c", "d", "f", *rest],
    }.items():
        assert made.render(variant).splitlines()[4:] == lines
    assert made.expected == {GIVEN: ("bits", "why"), "WRONG_1": ("race", "why")}


@pytest.mark.parametrize(
    ("given", "right", "is_same"),
    [
        ("4", 4, True), ("4.0", 4, True), ("5", 4, False), ("1/3", 1 / 3, True),
        ("13.9", 13.94, True), ("13", 13.94, False), ("48,5", 48.5, True), ("97 %", 97.0, True),
        ("last, FIRST", "first last", True), ("first", "first last", False), ("x", 4, False),
        ("0", 0.0, True), ("1/0", 4, False),
    ],
)  # fmt: skip
def test_answers_are_compared_by_what_they_mean(given, right, is_same):
    assert truth.same(given, right) is is_same


def test_the_page_lists_all_exercises():
    done = subprocess.run(
        [sys.executable, "docs/make_course.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_places_are_told_in_a_folder_with_blanks(tmp_path):
    folder = tmp_path / "my files"
    folder.mkdir()
    path = folder / FILL.file_name
    path.write_text(FILL.render())
    assert check.file(FILL, path).lines
    path.write_text("int x = y;\n")
    assert check.file(FILL, path).what.startswith(f"{FILL.file_name}:1:9: error:")
