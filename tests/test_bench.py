"""The benchmark suite: its shapes, its marks, what it records, and that it notices wrong bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import xgemm_torch
from xgemm_torch.course import marks
from xgemm_torch.tools import accuracy, environment, timing

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks"
NAMES = [stage.name for stage in xgemm_torch.stages()]
OTHERS = [stage.name for stage in xgemm_torch.stages() if not stage.strict]


# Shapes and marks


def test_suite_has_every_problem_once():
    import shapes

    problems = list(shapes.suite())
    assert len(problems) == 17 * 4 + 10 * 6 * 3 + 6
    assert len({problem.label for problem in problems}) == len(problems)
    assert all(min(p.m, p.n, p.k) > 0 and p.layout in timing.LAYOUTS for p in problems)


def test_a_layers_three_products_do_the_same_work():
    import shapes

    products = list(shapes.linear_products())
    for forward, grad_x, grad_w in zip(*[iter(products)] * 3, strict=True):
        rows, outside, inside = forward.m, forward.n, forward.k
        assert (grad_x.m, grad_x.n, grad_x.k) == (rows, inside, outside)
        assert (grad_w.m, grad_w.n, grad_w.k) == (outside, inside, rows)
        assert [p.layout for p in (forward, grad_x, grad_w)] == ["NT", "NN", "TN"]


def test_bytes_of_a_problem():
    import shapes

    assert shapes.Problem("x", 2, 3, 5).bytes == 4 * (10 + 15 + 6)


def test_marks_are_of_the_sizes_that_cublas_was_measured_at():
    for name, by_size in marks.MARKS.items():
        assert by_size and set(by_size) <= set(marks.CUBLAS), name
        assert all(mark > 0 for mark in by_size.values()), name


def test_goals_are_multiples_and_no_marks():
    for name, by_size in marks.GOALS.items():
        assert name not in marks.MARKS and all(2 < goal < 5 for goal in by_size.values())


def test_share_of_a_mark():
    assert marks.share("wgmma_fp16x3", 2048) == 3.95 and marks.share("wgmma_bf16x6", 2048) is None
    assert marks.share("vec4_128x128", 4096) == pytest.approx(36.5 / 51.5)
    assert marks.share("vec4_128x128", 1024) is None
    assert marks.share("naive", 8192) is None
    assert marks.share("nope", 4096) is None


# Operands, calls, errors


@pytest.mark.parametrize("layout", list(timing.LAYOUTS))
def test_operands_and_calls_of_a_layout(layout):
    sets = timing.operands(5, 6, 7, layout, device="cpu", rotate=False)
    a, b = sets[0]
    trans_a, trans_b = timing.LAYOUTS[layout]
    assert a.shape == ((7, 5) if trans_a else (5, 7))
    assert b.shape == ((6, 7) if trans_b else (7, 6))
    wanted = (a.T if trans_a else a) @ (b.T if trans_b else b)
    torch.testing.assert_close(timing.torch_mm(layout)(a, b), wanted)
    torch.testing.assert_close(timing.stage_call("sgemm", layout)(a, b), wanted)


def test_rotating_operands_exceed_a_cache_and_differ():
    sets = timing.operands(1024, 1024, 1024, "NN", device="cpu")
    size = sum(4 * (a.numel() + b.numel()) for a, b in sets)
    assert len(sets) >= 2 and size >= timing.ROTATION_BYTES
    assert not torch.equal(sets[0][0], sets[1][0])


@pytest.mark.parametrize("layout", list(timing.LAYOUTS))
def test_error_against_float64(layout):
    a, b = timing.operands(33, 17, 65, layout, device="cpu", rotate=False)[0]
    result = xgemm_torch.sgemm(
        a, b, trans_a=timing.LAYOUTS[layout][0], trans_b=timing.LAYOUTS[layout][1],
        precision="ieee",
    )  # fmt: skip
    error = timing.float64_error(result, a, b, layout)
    assert 0 < error["error_u"] <= error["allowed_u"] < 66
    result[3, 4] += 1e-3
    error = timing.float64_error(result, a, b, layout)
    assert error["error_u"] > error["allowed_u"]
    result[3, 4] = float("nan")
    error = timing.float64_error(result, a, b, layout)
    assert not error["error_u"] <= error["allowed_u"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_clocks_without_a_gpu_are_empty():
    with timing.Clocks() as clocks:
        pass
    assert clocks.summary() == {}


def test_clocks_summary_is_of_the_stretch_since_the_mark():
    clocks = timing.Clocks()
    clocks._rows = [(100.0, 1.0, 30.0)] * 5
    clocks.mark()
    clocks._rows += [(float(mhz), 2.0, 40.0) for mhz in range(1000, 1101)]
    spread = clocks.summary()["sm_mhz"]
    assert spread == {"p5": 1005.0, "p50": 1050.0, "p95": 1095.0, "max": 1100.0}


@pytest.mark.gpu
def test_turns_on_a_gpu():
    sets = timing.operands(256, 256, 256, "NN")
    contenders = {"torch.mm": timing.torch_mm("NN"), "sgemm": timing.stage_call("sgemm", "NN")}
    samples = timing.interleaved(contenders, sets, rounds={"torch.mm": 3, "sgemm": 2})
    assert [len(times) for times in samples.values()] == [3, 2]
    assert all(0 < t < 0.1 for times in samples.values() for t in times)


# h200.py


def test_h200_needs_a_gpu(monkeypatch, capsys):
    import h200

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert h200.main([]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err


def test_h200_refuses_a_coarser_yardstick(monkeypatch, capsys):
    import h200

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(environment, "strict_reference", lambda: "cuda.matmul is 'tf32'")
    assert h200.main([]) == 2
    assert "cuda.matmul is 'tf32'" in capsys.readouterr().err


def test_h200_leaves_out_only_what_is_long_and_has_no_mark():
    import h200

    assert not h200.too_long("naive", 4096, "NT", h200.LONG_SECONDS)
    assert h200.too_long("naive", 8192, "NN", 2 * h200.LONG_SECONDS)  # no mark at 8192
    assert not h200.too_long("smem_conflicted", 8192, "NN", 2 * h200.LONG_SECONDS)
    assert h200.too_long("smem_conflicted", 8192, "NT", 2 * h200.LONG_SECONDS)


def test_h200_expects_from_the_nearest_smaller_size_of_the_layout():
    import h200

    cases = [
        {"size": 1024, "layout": "NN", "times": {"naive": {"median_s": 1.0}}},
        {"size": 2048, "layout": "NN", "times": {"naive": {"median_s": 3.0}}},
        {"size": 2048, "layout": "NT", "times": {"naive": {"median_s": 5.0}}},
    ]
    assert h200.expect({"cases": cases}, 4096, "NN") == {"naive": 24.0}
    assert h200.expect({"cases": cases}, 2048, "NN") == {"naive": 8.0}
    assert h200.expect({"cases": cases}, 1024, "NN") == {}
    assert h200.expect({"cases": cases}, 4096, "TN") == {}


@pytest.mark.parametrize("layout", list(timing.LAYOUTS))
def test_h200_check_finds_all_stages_equal(layout):
    import h200

    verdict = h200.check(NAMES, 24, layout, device="cpu")
    assert verdict["wrong"] == [] and verdict["bits_equal"] and verdict["chain_on_cpu"]
    assert list(verdict["errors"]) == ["chain", *OTHERS]


@pytest.mark.parametrize("victim", [0, 2])
def test_h200_check_notices_one_wrong_bit(victim, monkeypatch):
    import h200

    real = timing.stage_call

    def broken(name, layout):
        def call(a, b):
            result = real(name, layout)(a, b)
            if name == NAMES[victim]:
                result[0, 1] = torch.nextafter(result[0, 1], torch.tensor(9e9))
            return result

        return call

    monkeypatch.setattr(timing, "stage_call", broken)
    verdict = h200.check(NAMES[:3], 20, "NN", device="cpu")
    assert not verdict["bits_equal"]
    if victim:
        assert verdict["wrong"] == [f"{NAMES[victim]}: not the bits of {NAMES[0]}"]
    else:
        assert verdict["wrong"][0] == f"{NAMES[0]}: not the bits of the CPU's chain"
        assert len(verdict["wrong"]) == 3


@pytest.mark.parametrize("fault", ["coarse", "one element", "not a number"])
def test_h200_check_notices_an_inaccurate_stage(fault, monkeypatch):
    import h200

    real, victim = timing.stage_call, OTHERS[-1]

    def broken(name, layout):
        def call(a, b):
            result = real(name, layout)(a, b)
            if name == victim and fault == "coarse":
                return real(name, layout)(accuracy.tf32(a), accuracy.tf32(b))
            if name == victim:
                result[3, 5] = float("nan") if fault == "not a number" else result[3, 5] + 1e-4
            return result

        return call

    monkeypatch.setattr(timing, "stage_call", broken)
    verdict = h200.check([NAMES[0], *OTHERS], 24, "TN", device="cpu")
    assert verdict["bits_equal"]  # of the strict ones
    assert verdict["wrong"] and all(line.startswith(f"{victim}: ") for line in verdict["wrong"])
    if fault == "not a number":
        assert verdict["wrong"] == [f"{victim}: 1 elements, the chain's are 0"]


def test_h200_check_of_stages_that_are_not_strict_alone():
    import h200

    verdict = h200.check(OTHERS[:1], 24, "NN", device="cpu")
    assert verdict["wrong"] == [] and "error_u" not in verdict
    assert "errors of " + OTHERS[0] in "\n".join(h200.right([verdict]))


def record(share):
    """What a run on a GPU leaves behind, made up."""
    spread = {"p5": 1900.0, "p50": 1950.0, "p95": 1980.0, "max": 1980.0}
    cases = []
    for size in (1024, 4096):
        for layout in ("NN", "NT"):
            times = {
                "torch.mm": {"tflops": 50.0, "share": 1.0},
                "vec4_128x128": {"tflops": 50.0 * share, "share": share},
            }
            if size == 1024:
                times["naive"] = {"tflops": 0.5, "share": 0.01}
            check = {"wrong": [], "error_u": 5.5}
            clocks = {"sm_mhz": spread, "power_w": {**spread, "max": 500.0}}
            cases.append(
                {"size": size, "layout": layout, "times": times, "check": check, "clocks": clocks}
            )
    return {
        "facts": {"device": "a GPU", "torch": "2.x", "date": "today", "commit": "abc"},
        "cases": cases, "seconds": 9.0,
    }  # fmt: skip


@pytest.mark.parametrize(("share", "word"), [(0.71, "reached"), (0.70, "MISSED")])
def test_h200_table_and_verdicts(share, word):
    import h200

    text = h200.table(record(share))
    assert f"vec4_128x128       {100 * share:.0f}" in text
    assert f"wanted 70.9%: {word}" in text
    assert text.count("mark ") == 1
    assert "bits: equal among strict stages" in text
    assert "SM clock 1950 to 1950 MHz, up to 500 W" in text
    naive = next(line for line in text.splitlines() if line.startswith("naive"))
    assert naive.split("|")[1].split() == ["-", "-"]


def test_h200_verdict_of_wrong_bits():
    import h200

    made_up = record(0.8)
    made_up["cases"][1]["check"]["wrong"] = ["naive: not the bits of coalesced"]
    assert "results: WRONG in 1 places: naive" in h200.table(made_up)
    for case in made_up["cases"]:
        del case["check"]
    assert "results: not checked" in h200.table(made_up)


# The pytest-benchmark suite


def test_the_suite_runs_and_records_what_a_figure_needs(tmp_path):
    pytest.importorskip("pytest_benchmark")
    path = tmp_path / "bench.json"
    on_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # In a worker of pytest-xdist the benchmarks would be switched off.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(FOLDER), "-q", "-p", "no:cacheprovider",
         f"--benchmark-json={path}", "-k", "256 or naive or ops.sgemm"],
        capture_output=True, text=True, timeout=300, cwd=ROOT,
        env=variables | {"PYTHONPATH": on_path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(path.read_text())["benchmarks"]}
    for row in rows.values():
        info = row["extra_info"]
        assert {"commit", "device", "torch", "timer", "clocks", "fp32_precision"} <= set(info)
        assert row["stats"]["median"] > 0
    products = [row["extra_info"] for row in rows.values() if "tflops" in row["extra_info"]]
    assert products
    for info in products:
        assert info["ratio"] > 0 and info["torch_mm_tflops"] > 0
        assert 0 < info["error_u"] <= info["allowed_u"]
        assert info["cache"].startswith(("cold", "hot"))
    if not torch.cuda.is_available():
        info = rows["bench_stage_on_host[naive]"]["extra_info"]
        assert "no performance" in info["note"]
        assert "tflops" not in info and "ratio" not in info
        assert "are no performance" in done.stdout


# Chosen rows on chosen problems


def test_rows_and_problems_go_by_their_names():
    import rows

    found = rows.named_row("wgmma_fp16x3:2")
    assert (found.stage, found.row, found.tile.BM) == ("wgmma_fp16x3", 2, 64)
    problem = rows.named_problem("linear 768-3072 rows 8 grad_w")
    assert (problem.m, problem.n, problem.k, problem.layout) == (3072, 768, 8, "TN")


@pytest.mark.parametrize(
    "name, known", [("gemv:9", "gemv:0, gemv:1"), ("gemv", "gemv:0"), ("nothing:0", "naive")]
)
def test_an_unknown_row_is_told_what_there_is(name, known):
    import rows

    with pytest.raises(ValueError, match=f"no row '{name}'.*{known}"):
        rows.named_row(name)


def test_an_unknown_problem_is_an_error(capsys):
    import rows

    with pytest.raises(SystemExit):
        rows.main(["gemv:0", "--problem", "square 3 NN"])
    assert "no problem 'square 3 NN'" in capsys.readouterr().err


# What operands hold


@pytest.fixture
def kinds():
    import kinds

    return kinds


def small(kinds, layout="NN", m=24, n=20, k=40):
    return kinds.Problem(f"{m}x{n}x{k}-{layout}", m, n, k, layout)


def test_kinds_and_problems_are_many_and_named_once(kinds):
    assert len(kinds.KINDS) >= 22 and len(kinds.PROBLEMS) >= 14
    assert len({p.label for p in kinds.PROBLEMS}) == len(kinds.PROBLEMS)
    realistic = [name for name, kind in kinds.KINDS.items() if kind.realistic]
    assert realistic == list(kinds.KINDS)[: len(realistic)] and 10 < len(realistic) < 30


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_of_every_kind(kinds, layout):
    p = small(kinds, layout)
    for name in kinds.KINDS:
        a, b = kinds.operands(name, p, "cpu")
        assert a.shape == ((p.k, p.m) if layout[0] == "T" else (p.m, p.k)), name
        assert b.shape == ((p.n, p.k) if layout[1] == "T" else (p.k, p.n)), name
        assert a.dtype == b.dtype == torch.float32 and a.is_contiguous() and b.is_contiguous()
        bad = int((~a.isfinite()).sum()), int((~b.isfinite()).sum())
        expected = {"one-nan": 1, "one-inf": 1, "all-nan": a.numel()}.get(name, 0)
        assert bad == (expected, 0), name
        again = kinds.operands(name, p, "cpu")
        assert torch.equal(a.nan_to_num(), again[0].nan_to_num()) and torch.equal(b, again[1])


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (7, 2, 1), (3, 30, 5), (30, 3, 64)])
def test_kinds_of_narrow_problems(kinds, m, n, k):
    for name in kinds.KINDS:
        for layout in ("NN", "TN"):
            a, b = kinds.operands(name, small(kinds, layout, m, n, k), "cpu")
            assert a.numel() == m * k and b.numel() == k * n


def test_what_kinds_guarantee_of_their_data(kinds):
    p = small(kinds, m=64, n=48, k=80)
    of = {name: kinds.operands(name, p, "cpu") for name in kinds.KINDS}
    assert ((of["one-hot"][0] != 0).sum(1) == 1).all()
    assert ((of["permutation"][0] != 0).sum(1) == 1).all()
    assert ((of["identity"][1] != 0).sum(0) == 1).all()
    assert (of["zero-rows"][1][:, 1::2] == 0).all() and (of["zero-rows"][0][3::8] == 0).all()
    assert of["lower-triangle"][0].triu(17).count_nonzero() == 0
    assert (of["upper-triangle"][0] * of["lower-triangle"][0]).count_nonzero() < 64 * 3
    assert of["cross-entropy"][0].sum(1).abs().max() < 1e-6
    assert of["softmax"][0].sum(1) == pytest.approx(torch.ones(64))
    assert of["subnormal"][0].abs().max() < torch.finfo(torch.float32).tiny
    assert of["tanh-second"][0].abs().max() < 1e-7
    assert (of["zeros-95"][0] == 0).float().mean() == pytest.approx(0.95, abs=0.02)


def test_the_cross_entropy_gradient_of_a_weight_has_its_samples_along_k(kinds):
    a, _ = kinds.operands("cross-entropy", small(kinds, "TN"), "cpu")  # stored (k, m)
    assert a.sum(1).abs().max() < 1e-6


@pytest.mark.parametrize("layout", ["NN", "TN"])
def test_data_check_of_a_right_product(kinds, layout):
    import data

    for name in kinds.KINDS:
        p = small(kinds, layout)
        found = data.check(p, "sgemm", *kinds.operands(name, p, "cpu"))
        assert found["misplaced"] == found["inexact"] == 0, name
        assert found["selections"] >= {"permutation": p.m, "identity": p.n}.get(name, 0), name
        assert not found["broken"], name


@pytest.mark.parametrize(
    "name, value, term",
    [
        ("normal", 1e-3, "largest"), ("normal", float("nan"), "misplaced"),
        ("one-inf", 0.0, "misplaced"), ("permutation", 1e-6, "inexact"),
        ("identity", 1e-6, "inexact"),
    ],
)  # fmt: skip
def test_data_check_notices_one_wrong_element(kinds, monkeypatch, name, value, term):
    import data

    p = small(kinds)
    real = timing.stage_call

    def wrong(stage, layout):
        def call(a, b):
            result = real(stage, layout)(a, b)
            row = p.m // 2 if name == "one-inf" else 0
            result[row, 1] = value if name == "one-inf" else result[row, 1] + value
            return result

        return call

    monkeypatch.setattr(timing, "stage_call", wrong)
    assert term in data.check(p, "sgemm", *kinds.operands(name, p, "cpu"))["broken"]


def test_data_baseline_has_operands_of_its_own(kinds, monkeypatch):
    """A graph reads addresses: normal data must be there still when cells have come and gone."""
    import gc
    import weakref

    import data

    class FakeTurn:
        """Takes as many microseconds as its operands add up to; knows only where they lie."""

        def __init__(self, call, sets, sample_ms):
            self.operands = [weakref.ref(operand) for pair in sets for operand in pair]

        def sample(self):
            gc.collect()
            found = [operand() for operand in self.operands]
            assert all(operand is not None for operand in found)
            return 1e-6 * sum(float(operand.abs().sum()) for operand in found)

    def on_cpu(*sizes, seed):
        return real(*sizes, seed=seed, device="cpu", rotate=False)

    real = timing.operands
    monkeypatch.setattr(timing, "Turn", FakeTurn)
    monkeypatch.setattr(timing, "operands", on_cpu)
    p = small(kinds)
    time_cell = data.GpuTimer(p, "sgemm")
    a, b = on_cpu(p.m, p.n, p.k, p.layout, seed=3)[0]
    one, other = time_cell(a, b), time_cell(100 * a, 100 * b)
    assert one.normal_us == other.normal_us > 0
    assert other.us == pytest.approx(100 * one.us) and other.torch_mm_us == other.us


def data_record(kinds, names, problems, times=(10.0, 5.0, 20.0)):
    import data

    record = {
        "facts": {"device": "a GPU", "torch": "2.x", "date": "2026-11-24"}, "stage": "sgemm",
        "cells": {},
    }  # fmt: skip
    timed, saved = [], []

    def timer(p, stage):
        timed.append(p.label)
        return lambda a, b: data.Times(*times)

    def run(seconds=float("inf")):
        return data.measure(
            record, problems, names, "sgemm", timer, lambda: saved.append(1), device="cpu",
            seconds=seconds, quiet=True,
        )  # fmt: skip

    return record, timed, saved, run


def test_data_measures_what_the_record_lacks(kinds):
    problems, names = [small(kinds), small(kinds, "TN")], ["normal", "one-hot"]
    record, timed, saved, run = data_record(kinds, names, problems)
    assert not run(seconds=-1) and not record["cells"]
    assert run() and len(saved) == 4 and timed == [p.label for p in problems]
    assert json.loads(json.dumps(record["cells"])) == record["cells"]
    del record["cells"][problems[1].label]["one-hot"]
    assert run() and len(saved) == 5 and timed[2:] == [problems[1].label]


def test_data_table_remarks_and_picture(kinds, monkeypatch, tmp_path, capsys):
    import data

    problems, names = [small(kinds), small(kinds, "TN")], ["normal", "one-hot", "graded"]
    monkeypatch.setattr(kinds, "PROBLEMS", problems)
    record, _, _, run = data_record(kinds, names, problems)
    assert run()
    record["cells"][problems[0].label]["graded"]["broken"] = {"rms": "9 > 1.25"}
    path, picture = tmp_path / "data.json", tmp_path / "data.png"
    path.write_text(json.dumps(record))
    assert data.main(["--show", str(path), "--png", str(picture)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "24x20x40-NN graded: rms 9 > 1.25" in text
    assert "24x20x40-TN one-hot: 10 us, 2 x normal's time, 2 x torch.mm" in text
    assert "4 realistic cells: 4 over 1.1 x normal's time" in text
    assert picture.stat().st_size > 1000
    del record["cells"][problems[0].label]["graded"]
    path.write_text(json.dumps(record))
    assert data.main(["--show", str(path)]) == 0


def test_data_chooses_kinds_and_problems(kinds, capsys):
    import data

    with pytest.raises(SystemExit):
        data.main(["--show", "x.json", "--problems", "3x3x3"])
    assert "no such problem" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        data.main(["--show", "x.json", "--kinds", "nothing"])
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_data_needs_a_gpu(tmp_path):
    import data

    with pytest.raises(SystemExit, match="needs a GPU"):
        data.main(["--json", str(tmp_path / "data.json")])


@pytest.mark.gpu
def test_data_on_a_gpu(kinds, tmp_path):
    import data

    path = tmp_path / "data.json"
    arguments = ["--json", str(path), "--kinds", "one-hot", "one-nan", "--problems", "1024x1024"]
    assert data.main(arguments) in (0, 1)
    cells = json.loads(path.read_text())["cells"]["1024x1024x1024-NN"]
    assert all(cell["us"] > 0 and cell["torch_mm_us"] > 0 for cell in cells.values())
