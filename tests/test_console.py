"""Tables on terminals of any width: nothing is cut, and names and figures are not broken."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

import xgemm_torch
from xgemm_torch.__main__ import main
from xgemm_torch.course import counts, ladder, race
from xgemm_torch.explain import candidates_of
from xgemm_torch.tools import accuracy, console, explain_command, info
from xgemm_torch.tools.console import Column, Fitted
from xgemm_torch.train import config, model, report

ROOT = Path(__file__).parent.parent
STAGES = xgemm_torch.stages()
FIGURES = {"shared_wavefronts": 4096.7, "conflicts": 1010.3, "sectors": 1031.3, "ways": 32,
           "loads_per_fma": 2.125, "sectors_per_request": 32.0, "flop_per_byte": 1024.25,
           "counted": True, "shape": [256, 256, 128], "layout": "NN"}  # fmt: skip


def printed(table, width):
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


def ladder_facts(gpu):
    rows = [ladder.describe(stage) for stage in STAGES]
    for number, row in enumerate(rows):
        row |= {"check": True, "tflops": 101.5 + number, "share": 2.15 + number, "mark": 4.25}
        row["counts"] = FIGURES
    rows[3] |= {"check": False, "tflops": None, "share": None, "mark": None}
    rows[3]["note"] = "no CUDA kernel in this build"
    return {"gpu": gpu, "device": "NVIDIA H200 NVL", "size": 16384, "layout": "NN", "stages": rows,
            "shape": (4096,) * 3, "torch_mm_tflops": 51.5}  # fmt: skip


def accuracy_facts():
    one = {"rms": 1912.3, "largest": 12345678.0, "mean": -0.000123456, "misplaced": 12345}
    methods = ("chain", "torch.mm", "TF32", *accuracy.under_contract("cpu"))
    rows = [
        {"distribution": name, "k": k, "errors": dict.fromkeys(methods, one), "broken": {},
         "recomputed": {"wgmma_fp16x3": 32768}, "units": {"wgmma_fp16x3": 32768}}
        for name in accuracy.DISTRIBUTIONS
        for k in (1, 65536)
    ]  # fmt: skip
    return {
        "size": 512, "layout": "NN", "device": "NVIDIA H200 NVL", "depths": [1, 65536], "rows": rows
    }  # fmt: skip


def candidates(**problem):
    rows = candidates_of(explain_command.choose(**problem, sm_count=132))
    chosen = min((row for row in rows if row.known_us is not None), key=lambda row: row.known_us)
    return explain_command.candidates_table(rows, chosen)


def products(kernel):
    layer = "blocks.*.attention.qkv"
    rows = [
        {"layer": layer, "count": 12, "product": product, "layout": "NT", "m": 8192, "n": 50257,
         "k": 3072, "kernel": kernel, "kernel_on_h200": "cp_async_pipelined"}
        for product in ("forward", "grad_x", "grad_w")
    ]  # fmt: skip
    return report._products_table({"products": rows})


def runs():
    run = {"first_loss": 10.8251, "final_loss": 2.3456, "validation": 2.4321, "losses": [1.0] * 600,
           "median_step_ms": 1234.56, "tokens_per_s": 123456.7,
           "shares": {"gemm_share": 0.75, "gemm_ms": 1000.25}}  # fmt: skip
    both = dict.fromkeys(config.RUNS, run)
    return report._runs_table({
        "runs": both,
        "recomputed": {"per_step": 123456.7, "steps": 590, "units": 1234567},
    })  # fmt: skip


def slowest(**problem):
    """Microseconds of the row that the choice would take last."""
    rows = candidates_of(explain_command.choose(**problem, sm_count=132))
    return f"{max(row.known_us for row in rows if row.known_us is not None):.1f}"


# Every command's table with the widest figures that come, and what must stand in it whole.
TABLES = {
    "accuracy": (
        lambda: accuracy.table(accuracy_facts()),
        ["1.91e+03", "1.23e+07", "-0.00012", "12345", "32768", "wgmma_fp16x3", "torch.mm", "65536"],
    ),
    "counts": (
        lambda: counts.table(ladder_facts(False)["stages"]),
        ["4096.7", "1010.3", "1031.3", "1024.25", *(s.name for s in STAGES)],
    ),
    "explain": (
        lambda: candidates(m=4096, n=4096, k=4096, sm=90),
        [slowest(m=4096, n=4096, k=4096, sm=90), "128x256x32", "in clusters of 2", "62.06",
         *(s.name for s in STAGES)],
    ),
    "explain a large one": (
        lambda: candidates(m=65536, n=65536, k=65536, batch=9, sm=80),
        ["128x256x32", *(s.name for s in STAGES)],
    ),
    "ladder": (
        lambda: ladder.table(ladder_facts(False)),
        ["bits right", "accurate", *(s.name for s in STAGES)],
    ),
    "ladder on a GPU": (
        lambda: ladder.table(ladder_facts(True)),
        ["122.5", "2315%", *(s.name for s in STAGES)],
    ),
    "race": (
        lambda: race.speed_table(ladder_facts(True)),
        ["122.5", "2315%", "425%", *(s.name for s in STAGES)],
    ),
    "products of a training on a CPU": (
        lambda: products("aten"),
        ["blocks.*.attention.qkv", "8192", "50257", "3072", "aten", "cp_async_pipelined"],
    ),
    "products of a training on a GPU": (
        lambda: products("smem_double_buffered"),
        ["blocks.*.attention.qkv", "8192", "50257", "3072", "smem_double_buffered"],
    ),
    "two trainings": (
        runs,
        ["10.8251", "1234.56 ms", "123,457", "1000.25 ms", "123,456.7 of 1,234,567"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("name", TABLES)
def test_no_table_cuts_anything(name, width):
    make, whole = TABLES[name]
    text = printed(make(), width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    words = text.replace("│", " ").split()
    for figure in whole:
        assert all(word in words for word in figure.split()), f"{figure} is broken"


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the ladder shows speed")
@pytest.mark.parametrize(
    "arguments",
    [["info", "--self-test"], ["explain", "4096", "4096", "4096"], ["ladder"],
     ["ladder", "--race"], ["accuracy", "--size", "8", "--k", "40"]],
    ids=" ".join,
)  # fmt: skip
def test_no_command_cuts_anything_at_80_columns(arguments, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "PIPE_WIDTH", 80)
    monkeypatch.setattr(counts, "SHAPE", (64, 64, 32))
    assert main(arguments) in (0, 1)  # how accurate so small a sample is, is chance
    text = capsys.readouterr().out
    assert "…" not in text
    path = str(info.collect()["compiled_module"])  # no line may have place for a path
    assert all(len(line) <= 80 or path in line for line in text.splitlines())


def test_products_of_the_largest_model_fit_beside_their_kernels_on_an_h200():
    """Where the machine's own are all ATen's, those on an H200 are what is to be seen."""
    with torch.device("meta"):
        names = [name for name, _ in model.GPT(model.SHAPES["gpt2"]).named_modules()]
    assert max(map(len, names)) < 26
    assert "cp_async_pipelined" in printed(products("aten"), 80)


def test_columns_are_spared_in_their_order_and_named():
    columns = [Column("name"), Column("a", spare=1), Column("b word", spare=2), Column("c")]
    table = Fitted("", columns)
    table.add_row("n" * 8, "a" * 8, "b" * 8, "c" * 8, style="bold", end_section=True)
    assert "left out" not in printed(table, 45) and "┃" in printed(table, 45)
    assert "┃" not in printed(table, 44) and "left out" not in printed(table, 44)
    assert "left out where it is narrow: b word" in " ".join(printed(table, 30).split())
    narrow = printed(table, 20)
    assert "left out where it is narrow: a, b word" in " ".join(narrow.split())
    assert "n" * 8 in narrow and "c" * 8 in narrow and "aa" not in narrow
    assert "…" not in printed(table, 7), "too narrow for anything, it breaks but does not cut"


def test_words_go_on_in_further_lines():
    table = Fitted("a title", [Column("#", right=True), Column("an idea", words=6)])
    table.add_row("1", "[bold]some words[/] to be\nread")
    lines = printed(table, 20).splitlines()
    assert lines[0] == "a title"
    cells = [line.split("│")[2].strip() for line in lines if line.startswith("│")]
    assert cells == ["some words", "to be", "read"]
