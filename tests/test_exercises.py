"""The course's exercises: solutions pass, and wrong ones fail for the reason they should."""

from __future__ import annotations

import re

import pytest

import xgemm_torch
from xgemm_torch.course import check, exercise, truth
from xgemm_torch.course.exercise import GIVEN, SOLUTION, exercises

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
