"""The demo: training, then a tour of what the emulator shows, and its page."""

from __future__ import annotations

import html
import json
import os
import re
from types import SimpleNamespace

import pytest
import torch

from xgemm_torch.__main__ import main
from xgemm_torch.course import ladder
from xgemm_torch.course.exercises import check
from xgemm_torch.course.exercises.program import CannotBuild
from xgemm_torch.demo import command, tour
from xgemm_torch.registry import stages
from xgemm_torch.tools import accuracy, console
from xgemm_torch.train import loop

TINY = ["demo", "--size", "tiny", "--steps", "6", "--device", "cpu"]
FEW = ("naive", "coalesced", "smem_conflicted", "warp_tiled")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the tour is for want of a GPU")


@pytest.fixture
def small(monkeypatch):
    """Stops at sizes that take a second; the exercise's verdicts are told, not found."""
    few = [stage for stage in stages() if stage.name in FEW]
    monkeypatch.setattr("xgemm_torch.course.race.stages", lambda: few)
    monkeypatch.setattr(tour, "COUNTED", (32, 32, 32))
    monkeypatch.setattr(tour, "ELEMENTS", 24)
    monkeypatch.setattr(tour, "DEPTHS", (16, 64))
    monkeypatch.setattr(tour, "OPERANDS", ("normal", "uniform"))


def told(monkeypatch, given="race", solution="good"):
    """Have the grader say these verdicts, in turn."""
    kinds = iter((given, solution))
    monkeypatch.setattr(check, "file", lambda exercise, path, *, say: check.Verdict(next(kinds)))


@no_gpu
def test_a_demo_trains_and_makes_a_page(small, monkeypatch, tmp_path, capsys):
    told(monkeypatch)
    assert main([*TINY, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == f"page: {tmp_path / tour.PAGE}"
    assert said.index("Two runs, one seed") < said.index("No GPU here") < said.index("Exercise 21")
    page = (tmp_path / tour.PAGE).read_text()
    pictures = re.findall(r'<img src="([^"]+)"', page)
    assert pictures == ["curves.png", "counts.png", "accuracy.png"]
    for name in pictures:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert "All stages keep the contract." in page and "ATen's BLAS" in html.unescape(page)


@no_gpu
@pytest.mark.parametrize("verdicts", [("good", "good"), ("stray", "good"), ("race", "bits")])
def test_an_exercise_that_does_not_do_as_it_says_is_told(
    verdicts, small, monkeypatch, tmp_path, capsys
):
    told(monkeypatch, *verdicts)
    stop = tour.exercise(tmp_path, console.console())
    assert not stop.good
    monkeypatch.setattr(tour, "training", lambda folder: tour.Stop("t", []))
    monkeypatch.setattr(tour, "ladder", lambda folder, out: tour.Stop("l", []))
    monkeypatch.setattr(tour, "errors", lambda folder, out: tour.Stop("e", []))
    monkeypatch.setattr(tour, "exercise", lambda folder, out: stop)
    assert tour.run(tmp_path) == 1
    assert "not as it must be: Exercise 21" in capsys.readouterr().out
    assert (tmp_path / tour.PAGE).exists()


def test_the_race_is_named_by_file_and_line_and_the_solution_passes(tmp_path, capsys):
    """By the grader itself; the emulator is compiled once for all of a user's exercises."""
    stop = tour.exercise(tmp_path, console.console())
    assert stop.good
    given, solution, changed = stop.code
    assert re.match(
        r"given: race on shared memory: thread \(.*\) reads at 21_buffer_race.cu:\d+", given
    )
    for place, line in re.findall(r"^21_buffer_race.cu:(\d+): (.*)$", given, re.MULTILINE):
        text = (tmp_path / "exercise" / "given" / "21_buffer_race.cu").read_text().splitlines()
        assert text[int(place) - 1].strip() == line
    assert solution.startswith("solution: right: 10 problems")
    assert "+    __syncthreads();" in changed and "-    __syncthreads();" in changed
    assert "given: race on shared memory" in capsys.readouterr().out


def test_without_a_compiler_the_exercise_is_left_out(monkeypatch, tmp_path, capsys):
    def none(*_, **__):
        raise CannotBuild("there is no g++ here")

    monkeypatch.setattr(check, "file", none)
    stop = tour.exercise(tmp_path, console.console())
    assert stop.good and stop.text == ["Left out: there is no g++ here"] and not stop.code
    assert "there is no g++ here" in capsys.readouterr().out


def test_counts_of_the_rungs(small, tmp_path, capsys):
    stop = tour.ladder(tmp_path, console.console())
    said = capsys.readouterr().out
    assert all(name in said for name in FEW) and stop.picture == "counts.png"
    assert {ladder.describe(s)["rung"] for s in stages() if s.name in FEW} <= set(tour.RUNGS)


def test_errors_are_those_of_the_methods_that_were_asked_for(small, tmp_path, monkeypatch):
    facts = accuracy.collect(24, (16,), names=("uniform",), methods=tour.METHODS, quiet=True)
    (row,) = facts["rows"]
    built = {stage.name for stage in stages()}
    assert set(row["errors"]) == {"chain", "TF32", *(set(tour.METHODS) & built)}
    assert row["errors"]["TF32"]["rms"] > 50 * row["errors"]["chain"]["rms"]
    whole = accuracy.measure("uniform", 16, size=24)
    assert {name: whole["errors"][name] for name in row["errors"]} == row["errors"]
    monkeypatch.setattr(accuracy, "broken", lambda found, chain: {"rms": "2 > 1"})
    assert not tour.errors(tmp_path, console.console()).good


def test_a_page_escapes_what_it_shows():
    page = tour.page([tour.Stop("a < b", ["x & y"], code=["if (i < n) a[i] = '&';"])])
    assert "<h2>a &lt; b</h2>" in page and "x &amp; y" in page and "i &lt; n" in page
    assert "<img" not in page


@pytest.mark.parametrize("why", ["a GPU", "no pictures"])
def test_no_tour_where_there_is_a_gpu_or_no_pictures_are_wanted(why, monkeypatch, tmp_path):
    monkeypatch.setattr(tour, "run", lambda folder: pytest.fail("a tour was made"))
    monkeypatch.setattr(command.train, "run", lambda options: 0)
    fake = SimpleNamespace(is_available=lambda: why == "a GPU")
    monkeypatch.setattr(command, "torch", SimpleNamespace(cuda=fake))
    wanted = ["--no-plot"] if why == "no pictures" else []
    assert main([*TINY, "--out", str(tmp_path), *wanted]) == 0


def test_a_failed_training_has_no_tour_and_its_exit_code(monkeypatch, tmp_path):
    monkeypatch.setattr(tour, "run", lambda folder: pytest.fail("a tour was made"))
    monkeypatch.setattr(command.train, "run", lambda options: 130)
    assert main([*TINY, "--out", str(tmp_path)]) == 130


@pytest.mark.parametrize("chosen", [{}, {"kernel": "naive"}, {"precision": "ieee"}])
def test_equal_losses_are_put_down_to_aten_by_auto_alone(chosen, tmp_path):
    settings = {"kernel": "auto", "precision": "fp32", **chosen}
    run = {"median_step_ms": None}
    summary = {"config": settings, "difference": {"first_nonzero_step": 4},
               "runs": {"stock": run, "converted": run}}  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    text = " ".join(tour.training(tmp_path).text)
    assert "Losses differ from step 4." in text and ("ATen" in text) == (not chosen)


@no_gpu
def test_an_interrupted_demo_says_how_to_go_on_and_does(monkeypatch, tmp_path, capsys):
    toured = []
    monkeypatch.setattr(tour, "run", lambda folder: toured.append(folder) or 0)
    plain = loop.Trainer.advance

    def asked(trainer):
        plain(trainer)
        if trainer.step == 3 and not trainer.prepared:
            os.kill(os.getpid(), 15)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "advance", asked)
        assert main([*TINY, "--out", str(tmp_path)]) == 130
    said = " ".join(capsys.readouterr().out.split())
    assert "stopped after 3 steps of stock and 2 steps of converted; nothing is lost" in said
    assert "python -m xgemm_torch demo --resume --out" in said and not toured
    assert main(["demo", "--resume", "--out", str(tmp_path)]) == 0
    assert toured == [tmp_path]
    runs = json.loads((tmp_path / "summary.json").read_text())["runs"]
    assert [len(run["losses"]) for run in runs.values()] == [6, 6]


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [([], command.STEPS_ON_CPU), (["--steps", "7"], 7), (["--size", "tiny"], None),
     (["--resume"], None), (["--no-plot"], None), (["--steps", "0"], 0)],
)  # fmt: skip
def test_steps_of_a_demo_on_a_cpu(wanted, steps, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(tour, "run", lambda folder: 0)
    monkeypatch.setattr(command.train, "run", lambda options: asked.append(options.steps) or 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["demo", "--out", str(tmp_path), *wanted]) == 0
    assert asked == [steps]


def test_a_demo_without_a_folder_tours_the_run_that_it_made(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    toured = []
    monkeypatch.setattr(tour, "run", lambda folder: toured.append(folder) or 0)
    monkeypatch.setattr(command.train, "run", lambda options: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "runs" / "tiny-cpu-1").mkdir(parents=True)
    assert main(TINY) == 0
    assert [str(folder) for folder in toured] == ["runs/tiny-cpu-2"]
