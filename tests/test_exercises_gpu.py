"""Exercises on a GPU: what is compiled for it, how its answers are told, and marks."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import exercises as benchmark
import numpy as np
import pytest
import records
import torch

from build_tools import cuda_toolkit, library
from build_tools.settings import ROOT
from xgemm_torch.__main__ import main
from xgemm_torch.course import marks
from xgemm_torch.course.exercises import check, exercise, gpu, gpu_worker, program, speed
from xgemm_torch.course.exercises.exercise import SOLUTION, exercises, find

TOOLKIT = cuda_toolkit.find().toolkit
needs_nvcc = pytest.mark.skipif(TOOLKIT is None, reason="there is no nvcc")
TILE = find("smem_tile")
GOOD = {"kind": "good", "ran": 11, "left_out": 0}
SIZE = 4096
WORKER = gpu.Worker  # which a test may have replaced


# The compiler


@needs_nvcc
def test_nvcc_is_the_one_that_a_build_takes():
    """On the PATH it may be a script that calls the other."""
    said = [
        subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
        for tool in (gpu.nvcc(), TOOLKIT.nvcc)
    ]
    assert said[0] == said[1]


def test_nvcc_is_looked_for_where_a_build_looks(tmp_path, monkeypatch):
    places = [tmp_path / name / "bin" / "nvcc" for name in ("home", "path", "site/nvidia/cu13")]
    for place in places:
        place.parent.mkdir(parents=True)
        place.touch(mode=0o755)
    monkeypatch.setattr(gpu.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path / "site")})
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    assert [place for place in gpu._places() if tmp_path in place.parents] == places
    assert gpu.nvcc() == places[0]
    monkeypatch.setattr(gpu, "_places", lambda: iter(()))
    with pytest.raises(gpu.CannotAsk, match="no nvcc in"):
        gpu.nvcc()


def test_kernels_are_compiled_as_stages_are():
    assert set(gpu.KERNEL) <= set(library.CUDA_KERNEL.split())
    assert set(program.FMA) <= set(gpu.HOST.split(","))


def solution(each, folder):
    path = folder / each.file_name
    path.write_text(each.render(SOLUTION))
    return path


@needs_nvcc
@pytest.mark.parametrize("name", ["warp_reduction", "split_k", "mbarriers", "wgmma_descriptor"])
def test_a_solution_compiles_and_its_problems_are_compared(name, tmp_path):
    """The library of it, without its kernels: a right result is given to the comparison."""
    each = find(name)
    path = gpu.build(solution(each, tmp_path), tmp_path, 90)
    c = ctypes.CDLL(str(path))
    c.exercise_case.restype = ctypes.c_size_t
    c.exercise_room.restype = ctypes.c_void_p
    c.exercise_compare.restype = c.exercise_run.restype = ctypes.c_char_p
    size = c.exercise_case(exercise.Case(3, 5, 4, data="integers").words.encode())
    told = json.loads(c.exercise_compare())
    assert (told["kind"], told["unstored"], told["of"]) == ("bits", 15, 15)
    # Integers: any order of sums gives the same bits. Each operand has two pages.
    room = np.frombuffer((ctypes.c_char * size).from_address(c.exercise_room()), np.float32)
    a, b, d = (
        room[2048 * i :][:n].reshape(-1, w) for i, n, w in ((0, 12, 4), (1, 20, 5), (2, 15, 5))
    )
    room[4096:4111] = (a @ b).ravel()
    assert json.loads(c.exercise_compare()) == {"kind": "good"}
    d[1, 2] += 1
    told = json.loads(c.exercise_compare())
    assert (told["wrong"], told["i"], told["j"], told["unstored"]) == (1, 1, 2, 0)
    if not torch.cuda.is_available():
        c.exercise_place(ctypes.c_void_p(c.exercise_room()))
        assert c.exercise_run(90, 132, None, None, ctypes.c_size_t(0)).startswith(b"xgemm: ")


@needs_nvcc
def test_a_file_that_nvcc_does_not_take_is_a_fault(tmp_path):
    path = solution(TILE, tmp_path)
    text = path.read_text().replace("g.store(i, j, acc);", "g.store(i, j, acc); int x = y;")
    path.write_text(text)
    line = 1 + next(i for i, row in enumerate(text.splitlines()) if "= y;" in row)
    verdict = gpu.grade(TILE, path, check.Verdict(check.GOOD), gpu.Worker(["false"]), 90)
    assert verdict.kind == "compile" and list(verdict.lines) == [line]
    assert verdict.what.startswith(f"by nvcc, for sm_90: {path.name}:{line}: error:")
    # Shared memory that no block may have: the emulator takes it, and ptxas does not.
    path.write_text(TILE.render(SOLUTION).replace("float[T][T]", "float[80][T][T]", 1))
    verdict = gpu.grade(TILE, path, check.Verdict(check.GOOD), gpu.Worker(["false"]), 90)
    assert verdict.kind == "compile" and "error" in verdict.what


@needs_nvcc
def test_a_gpu_that_nvcc_does_not_know_is_no_fault(tmp_path):
    verdict = check.Verdict(check.GOOD)
    verdict = gpu.grade(TILE, solution(TILE, tmp_path), verdict, gpu.Worker(["false"]), 999)
    assert verdict.good and "not run on the GPU" in verdict.note and "sm_999a" in verdict.note


# The process that runs kernels, by stand-ins

ANSWERS = """
import json, sys, time
print(json.dumps({"kind": "ready", "device": "a stand-in"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    answer = json.loads(sys.argv[1])
    if answer.get("kind") == "crash": sys.exit(3)
    if answer.get("kind") == "time": time.sleep(60)
    if asked["product"] is None: answer.pop("us", None)
    print(json.dumps(answer), flush=True)
"""


def stand_in(answer):
    return WORKER([sys.executable, "-c", ANSWERS, json.dumps(answer)])


@pytest.fixture
def graded(tmp_path, monkeypatch):
    """Grades a solution with a stand-in's answer; nothing is compiled."""
    monkeypatch.setattr(gpu, "build", lambda path, folder, sm: folder / "x.so")

    def grade(answer, each=TILE, sm=90):
        with stand_in(answer) as worker:
            verdict = check.Verdict(check.GOOD, passed=["in the emulator"])
            return gpu.grade(each, tmp_path / each.file_name, verdict, worker, sm)

    return grade


def timed(share, us=1000.0):
    return {**GOOD, "us": us, "torch_mm_us": us * share}


def test_a_speed_is_told_beside_its_mark(graded):
    mark = speed.mark(TILE.stem)
    verdict = graded(timed(mark + 0.01))
    assert verdict.good and not verdict.slow and verdict.passed[0] == "in the emulator"
    assert verdict.passed[1] == "on a stand-in: 11 problems, bits"
    assert verdict.passed[2] == (
        f"{speed.percent(mark + 0.01)} of cuBLAS, the mark is {speed.percent(mark)}: "
        "137 TFLOP/s at 4096 x 4096 x 4096"
    )


def test_who_is_slower_has_solved_it_all_the_same(graded):
    verdict = graded(timed(0.01))
    assert verdict.good and len(verdict.passed) == 2
    mark = speed.percent(speed.mark(TILE.stem))
    assert verdict.slow.startswith(f"1% of cuBLAS, the mark is {mark}: 137 TFLOP/s at ")
    assert "solved all the same" in verdict.slow


def test_a_coarse_yardstick_is_told(graded):
    verdict = graded({**GOOD, "coarse": "TF32 is allowed"})
    assert verdict.good and verdict.note == "not timed: TF32 is allowed"


def test_an_exercise_without_a_mark_has_no_speed(graded):
    verdict = graded({**timed(0.5), "left_out": 2}, find("offsets"))
    assert verdict.good and not verdict.slow
    assert verdict.passed[1:] == ["on a stand-in: 11 problems, bits, 2 too large are left out"]


BITS = {
    "kind": "bits", "wrong": 1, "of": 9, "unstored": 0, "i": 1, "j": 2, "got": "1", "want": "2",
    "near": False, "rows": [1, 1], "columns": [2, 2], "case": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "kind", "part"),
    [
        (BITS, "bits", "on a stand-in: 1 of 9 elements of D are wrong, in row 1 and column 2."),
        ({"kind": "error", "text": "CUDA error: an illegal memory access was met", "case": 1},
         "stray", "illegal memory access was met (M = 1, N = 1, K = 1)"),
        ({"kind": "error", "text": "CUDA error: misaligned address", "case": None},
         "misaligned", "misaligned address"),
        ({"kind": "error", "text": "xgemm: launch: too many resources", "case": 0},
         "crash", "on a stand-in: launch: too many resources"),
        ({"kind": "error", "text": "the error at M", "wrong": True}, "bits", "the error at M"),
        ({"kind": "crash"}, "crash", "its process ended with code 3"),
        ({"kind": "time"}, "time", "did not end within 1 seconds"),
    ],
)  # fmt: skip
def test_a_fault_on_the_gpu_is_a_fault(graded, monkeypatch, answer, kind, part):
    monkeypatch.setattr(gpu, "RUNS", 1)
    verdict = graded(answer)
    assert verdict.kind == kind and part in verdict.what
    assert verdict.why == gpu.DIFFERS and verdict.passed == ["in the emulator"]


def test_after_a_fault_the_process_is_another(monkeypatch):
    with stand_in(GOOD) as worker:
        worker.ask({"product": None})
        first = worker._process.pid
        assert worker.ask({"product": None}) == GOOD and worker._process.pid == first
        worker._process.kill()
        assert worker.ask({"product": None})["kind"] == "crash"
        assert worker.ask({"product": None}) == GOOD and worker._process.pid != first


def test_what_a_machine_lacks_is_a_note(graded, monkeypatch):
    assert graded({"kind": "unable", "text": "no memory"}).note == "not run on the GPU: no memory"
    verdict = graded(GOOD, find("wgmma_descriptor"), 80)
    assert verdict.good and "written for sm_90, this GPU is sm_80" in verdict.note
    verdict = gpu.grade(
        TILE, ROOT / TILE.file_name, check.Verdict(check.GOOD), gpu.Worker(["false"]), 90
    )
    assert verdict.good and "does not begin: its process ended with code 1" in verdict.note
    bad = check.Verdict("race")
    assert gpu.grade(TILE, ROOT, bad, gpu.Worker(["false"]), 90) is bad and not bad.note


class Cases:
    """Stands in for a library on a GPU: problems by their words."""

    def __init__(self, path):
        if path == "none":
            raise OSError("cannot be opened")

    def case(self, words):
        if words == "fault":
            raise RuntimeError("CUDA error: misaligned address\nfor debugging consider ...")
        return {"good": {"kind": "good"}, "large": None, "wrong": {"kind": "bits"}}[words]


@pytest.mark.parametrize(
    ("library", "words", "told"),
    [
        ("x", "good large good", {"kind": "good", "ran": 2, "left_out": 1}),
        ("x", "good wrong fault", {"kind": "bits", "case": 1}),
        ("x", "fault", {"kind": "error", "text": "CUDA error: misaligned address", "case": 0}),
        ("none", "good", {"kind": "unable", "text": "cannot be opened"}),
    ],
)
def test_the_process_answers_with_the_first_fault(monkeypatch, library, words, told):
    monkeypatch.setattr(gpu_worker, "Kernels", Cases)
    request = {"library": library, "cases": words.split(), "product": None}
    assert gpu_worker.answer(request) == told


def test_a_fault_of_the_timed_product_is_no_problems(monkeypatch):
    def timed(kernels, *product):
        raise RuntimeError(f"a fault at {product}")

    monkeypatch.setattr(gpu_worker, "Kernels", Cases)
    monkeypatch.setattr(gpu_worker, "timed", timed)
    told = gpu_worker.answer({"library": "x", "cases": ["good"], "product": [1, 2, 3]})
    assert told == {"kind": "error", "text": "a fault at (1, 2, 3)", "case": None}


# The command


def test_the_command_tells_the_gpus_part(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    answer = timed(0.01)
    monkeypatch.setattr(gpu, "architecture", lambda: 90)
    monkeypatch.setattr(gpu, "build", lambda path, folder, sm: folder / "x.so")
    monkeypatch.setattr(gpu, "Worker", lambda: stand_in(answer))
    (tmp_path / "exercises").mkdir()
    solution(TILE, tmp_path / "exercises")

    def said(*words):
        code = main(["exercise", str(TILE.number), "--check", *words])
        return code, capsys.readouterr().out

    code, out = said()
    assert code == 0 and "  right  on a stand-in: 11 problems" in out
    assert "   slow  1% of cuBLAS" in out and f"Exercise {TILE.number} is solved." in out
    code, out = said("--no-gpu")
    assert code == 0 and "stand-in" not in out and "cuBLAS" not in out
    answer = BITS
    code, out = said()
    assert code == 1 and "  WRONG  bits: on a stand-in: 1 of 9" in out and "is solved" not in out
    assert main(["exercise", "--check", "--no-gpu"]) == 0
    assert main(["exercise", "--check"]) == 1
    capsys.readouterr()
    answer = {"kind": "unable", "text": "no memory"}
    code, out = said()
    assert code == 0 and "   note  not run on the GPU: no memory" in out
    monkeypatch.setattr(gpu, "architecture", lambda: None)
    code, out = said()
    assert code == 0 and "GPU" not in out


# Marks


def test_marks_are_of_exercises_that_have_a_speed():
    there = {each.stem: each for each in exercises()}
    for stem, what in speed.SPEEDS.items():
        assert there[stem].kind == "fill"
        assert what.like is None or SIZE in marks.MARKS[what.like]
        assert 0 < speed.mark(stem) <= 1
    assert speed.mark("21_buffer_race") is None and speed.mark("03_sectors") is None


@pytest.fixture
def marked(tmp_path, monkeypatch):
    """A file for marks in place of the package's."""
    monkeypatch.setattr(speed, "FILE", tmp_path / "marks.json")
    speed.measured.cache_clear()
    yield speed.FILE
    speed.measured.cache_clear()


def test_a_measured_solution_takes_the_place_of_a_stage(marked):
    assert speed.mark("06_smem_tile") == pytest.approx(0.5 * 9.1 / 51.5)
    assert speed.mark("23_shuffle") == 0.5
    marked.write_text('{"shares": {"06_smem_tile": 0.16}}')
    speed.measured.cache_clear()
    assert speed.mark("06_smem_tile") == pytest.approx(0.12)
    assert speed.mark("02_coalesced") == pytest.approx(0.5 * 6.4 / 51.5)


def test_the_packages_marks_are_those_of_a_record():
    if not speed.FILE.exists():
        pytest.skip("no solution has been measured yet")
    stored = json.loads(speed.FILE.read_text())
    record = records.read(benchmark.RESULTS / stored["record"])
    assert set(stored["shares"]) == set(speed.SPEEDS)
    for stem, share in stored["shares"].items():
        assert share == pytest.approx(record["exercises"][stem]["share"], abs=1e-4)


# The record


def test_solutions_are_measured_into_a_record(tmp_path, marked, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "build", lambda path, folder, sm: folder / path.name)
    with stand_in(timed(0.25, 2000.0)) as worker:
        record = benchmark.measure(worker, 90)
    programs = [each.stem for each in exercises() if each.kind != "predict"]
    assert list(record["exercises"]) == programs
    assert record["facts"]["device"] and record["facts"]["date"]
    assert {stem for stem, x in record["exercises"].items() if "share" in x} == set(speed.SPEEDS)
    found = record["exercises"]["06_smem_tile"]
    assert found["share"] == 0.25 and found["tflops"] == pytest.approx(2 * 4096**3 / 2e-3 / 1e12)
    path = tmp_path / "record.json"
    records.write(path, record)
    assert records.stored_text(path) == records.text(records.read(path))
    monkeypatch.setattr(sys, "argv", ["exercises.py", "--show", str(path), "--marks"])
    capsys.readouterr()
    assert benchmark.main() == 0
    said = capsys.readouterr().out
    assert "68.7 TFLOP/s at 4096x4096x4096,  25.0% of torch.mm" in said
    assert f"{len(speed.SPEEDS)} marks" in said
    speed.measured.cache_clear()
    assert speed.mark("06_smem_tile") == 0.75 * 0.25


def test_a_record_with_a_fault_gives_no_marks(tmp_path, marked, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "build", lambda path, folder, sm: folder / path.name)
    with stand_in(BITS) as worker:
        record = benchmark.measure(worker, 80)
    assert record["exercises"]["32_wgmma_descriptor"]["kind"] == "not run"
    path = tmp_path / "record.json"
    records.write(path, record)
    monkeypatch.setattr(sys, "argv", ["exercises.py", "--show", str(path), "--marks"])
    assert benchmark.main() == 1 and not marked.exists()
    assert "06_smem_tile" in capsys.readouterr().out


# On a GPU

ODD = """#include "exercise.h"
__global__ void kernel(const Gemm g) {
  %s
}
void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3(1), .block = dim3(32)}, context, g);
}
"""


@pytest.fixture(scope="module")
def worker():
    """One process for all tests."""
    with gpu.Worker() as one:
        yield one


def on_gpu(each, text, folder, worker):
    """Grades a file by the GPU alone; skips where the machine cannot."""
    path = folder / each.file_name
    path.write_text(text)
    verdict = gpu.grade(each, path, check.Verdict(check.GOOD), worker, gpu.architecture())
    if verdict.note:
        pytest.skip(verdict.note)
    return verdict


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["smem_tile", "offsets", "split_k", "limbs", "wgmma_wait"])
def test_a_solution_is_right_on_the_gpu(name, tmp_path, worker):
    each = find(name)
    verdict = on_gpu(each, each.render(SOLUTION), tmp_path, worker)
    assert verdict.good and "problems, bits" in verdict.passed[0], verdict
    assert (len(verdict.passed) == 2 and not verdict.slow) == (each.stem in speed.SPEEDS), verdict


@pytest.mark.gpu
def test_a_wrong_one_is_found_on_the_gpu(tmp_path, worker):
    for name in ("smem_tile", "block_tile_2d", "split_k"):
        each = find(name)
        for variant, (fails, _) in each.expected.items():
            if fails == "bits":
                assert on_gpu(each, each.render(variant), tmp_path, worker).kind == "bits", variant


@pytest.mark.gpu
def test_a_fault_ends_the_process_and_not_the_check(tmp_path, worker):
    line = "*reinterpret_cast<volatile float*>(uintptr_t{1} << 60) = 1.f;"
    assert on_gpu(TILE, ODD % line, tmp_path, worker).kind in ("stray", "crash")
    assert on_gpu(TILE, ODD % 'printf("{\\n");', tmp_path, worker).kind == "bits"
    assert on_gpu(TILE, TILE.render(SOLUTION), tmp_path, worker).good
