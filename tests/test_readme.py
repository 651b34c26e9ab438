"""What README says in figures is what the records that it names say."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest

import xgemm_torch
from xgemm_torch.contenders import keeps, rows_of

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))
import records  # noqa: E402
import shapes  # noqa: E402

PROBLEMS = {p.label: p for p in shapes.suite()}
README = (ROOT / "README.md").read_text()
STAGES = {stage.name: stage for stage in xgemm_torch.stages()}


@cache
def record() -> dict[tuple[int, str], dict[str, Any]]:
    """Times by size and layout, of the record that the ladder's table is of."""
    (name,) = set(re.findall(r"benchmarks/results/h200/[\w-]*-stages\.json", README))
    cases = records.read(ROOT / name)["cases"]
    return {(case["size"], case["layout"]): case["times"] for case in cases}


def cell(size: int, stage: str) -> str:
    """Speed and share as the table has them: times of cuBLAS for what runs on tensor cores."""
    time = record()[size, "NN"].get(stage)
    if time is None:
        return "-"
    speed = f"{time['tflops']:.1f}" if time["tflops"] < 60 else f"{time['tflops']:.0f}"
    share = f"{time['share']:.2f}x" if not STAGES[stage].strict else f"{time['share']:.0%}"
    return f"{speed} ({share})"


# A stage that is new stands there when it has been measured.
MEASURED = [name for name in STAGES if any(name in times for times in record().values())]


@pytest.mark.parametrize("stage", MEASURED)
def test_the_ladder(stage):
    (row,) = re.findall(rf"^\| (\d+) \| `{stage}` \| .* \| (.*) \| (.*) \|$", README, re.MULTILINE)
    assert row == (str(STAGES[stage].rung), cell(4096, stage), cell(8192, stage))


@pytest.mark.parametrize("stage", ["wgmma_fp16x3", "tma_specialized"])
def test_the_first_words(stage):
    """The least and the most over all layouts."""
    text = " ".join(README.split())
    if stage == "wgmma_fp16x3":
        said = re.search(
            r"at ([\d.]+) to ([\d.]+) times cuBLAS FP32 at 4096, ([\d.]+) to ([\d.]+) at 8192", text
        )
        groups = [[4096], [8192]]
    else:
        said = re.search(r"`tma_specialized` is at (\d+)% to (\d+)% of cuBLAS", text)
        groups = [[4096, 8192]]
    found = []
    for sizes in groups:
        shares = [t[stage]["share"] for (size, _), t in record().items() if size in sizes]
        found += [min(shares), max(shares)]
    form = "{:.1f}" if stage == "wgmma_fp16x3" else "{:.0%}"
    assert [form.format(x).rstrip("%") for x in found] == list(said.groups())


def test_how_many_strict_stages():
    count = sum(STAGES[name].strict for name in MEASURED)
    words = {23: "twenty-three", 24: "twenty-four", 25: "twenty-five"}
    assert f"{words[count]} strict stages" in README


def test_speeds_by_size():
    for layout, start in (("NN", "stands at"), ("NT", "in NN, at")):
        shares = [record()[s, layout]["wgmma_fp16x3"]["share"] for s in (1024, 2048, 4096, 8192)]
        x = [f"{share:.2f}x" for share in shares]
        assert f"{start} {x[0]}, {x[1]}, {x[2]} and {x[3]}" in " ".join(README.split())


def fastest(label: str, strict: bool) -> tuple[float, float]:
    """Microseconds of the fastest row that may be taken for a precision, and times cuBLAS."""
    found = select_record()[label]
    rows = [row for row in rows_of(xgemm_torch.stages()) if row.key in found["us"]]
    least = min(found["us"][r.key] for r in rows if keeps(r, PROBLEMS[label], strict=strict))
    return least, found["torch_mm_us"] / least


@cache
def select_record() -> dict[str, dict[str, Any]]:
    """What the table of few rows, and what is said of ``auto``, is of."""
    (name,) = set(re.findall(r"`([\w-]*-select\.json)`", README))
    return records.read(ROOT / "benchmarks/results/h200" / name)["problems"]


def test_few_rows():
    rows = re.findall(r"^\| (\d+) to (\d+) \| (\d+) \| (.*) \|$", README, re.MULTILINE)
    assert len(rows) == 12
    for inside, outside, count, cells in rows:
        want = []
        for strict in (True, False):
            for product in ("forward", "grad_x", "grad_w"):
                label = f"linear {inside}-{outside} rows {count} {product}"
                us, ratio = fastest(label, strict)
                want.append(f"{us:.3g} ({ratio:.2f}x)" if us < 100 else f"{us:.0f} ({ratio:.2f}x)")
        assert cells.split(" | ") == want


def test_what_auto_comes_to():
    text = " ".join(README.split())
    for strict, mean, behind in (
        (False, r"stands at ([\d.]+) times", r"in (\d+) of the 254"),
        (True, r"at ([\d.]+) times with `\"ieee\"`", r"in (\d+) of them"),
    ):
        ratios = [fastest(label, strict)[1] for label in select_record()]
        assert len(ratios) == 254
        assert re.search(mean, text)[1] == f"{geometric_mean(ratios):.2f}"
        assert re.search(behind, text)[1] == str(sum(ratio < 0.98 for ratio in ratios))


def test_a_training_step():
    runs = {}
    for name in set(re.findall(r"`([\w-]*-gpt2-[\w-]*\.json)`", README)):
        summary = records.read(ROOT / "benchmarks/results/h200" / name)
        runs["tf32" in name] = summary
    assert len(runs) == 2
    text = " ".join(README.split())
    said = re.search(
        r"takes (\d+) ms with stock layers and (\d+) ms converted, .* differ by ([\d.e-]+) at most"
        r".* it takes (\d+) ms, and losses differ by ([\d.e-]+)\.", text
    )  # fmt: skip
    ms = runs[False]["interleaved_ms"]
    tf32 = runs[True]["interleaved_ms"]["stock"]
    assert said.group(1, 2, 4) == tuple(f"{x:.0f}" for x in (ms["stock"], ms["converted"], tf32))
    assert float(said[5]) == pytest.approx(runs[True]["difference"]["largest"], rel=0.05)
    assert float(said[3]) == pytest.approx(runs[False]["difference"]["largest"], rel=0.05)


@cache
def guide() -> str:
    return (ROOT / "docs" / "adding-a-stage.md").read_text()


@cache
def loops() -> list[tuple[str, str, str, str]]:
    """Of the guide's table of main loops: names, prediction, what was measured, their ratio."""
    row = r"^\| (`\w+`(?:, `\w+`)?).* \| ([\d., ]+) \| ([\d., ]+) \| ([\d., ]+) \|$"
    return re.findall(row, guide(), re.MULTILINE)


def test_speeds_beside_predictions_are_the_records():
    found = []
    for names, predicted, measured, ratios in loops():
        columns = [cells.split(", ") for cells in (predicted, measured, ratios)]
        for name, *told in zip(re.findall(r"`(\w+)`", names), *columns, strict=True):
            speed = record()[8192, "NN"][name]["tflops"]
            assert told[1] == f"{speed:.1f}", name
            # The prediction is rounded, too.
            assert float(told[2]) == pytest.approx(speed / float(told[0]), abs=0.0062), name
            found.append((float(told[2]), name))
    assert len(found) == 11 and found == sorted(found, reverse=True)


def test_what_the_guide_says_of_the_table():
    words = " ".join(guide().split())
    ratios = [float(ratio) for _, _, _, cells in loops() for ratio in cells.split(", ")]
    (within,) = re.findall(r"It holds within (\d+)% for three stages", words)
    assert 1 - min(ratios[:3]) <= int(within) / 100 < 1 - ratios[3]
    (below,) = re.findall(r"`cp_async_pipelined` is (\d+)% below it", words)
    (its,) = (r for names, _, _, r in loops() if names == "`cp_async_pipelined`")
    assert round(100 * (1 - float(its))) == int(below)
    speeds = {
        layout: times["smem_double_buffered"]["tflops"]
        for (size, layout), times in record().items()
        if size == 8192
    }
    turned = speeds.pop("TT")
    assert (
        f"measured {turned:.1f} against {min(speeds.values()):.1f} to {max(speeds.values()):.1f}"
        in words
    )


def test_the_guides_settings_are_held_by_a_with():
    """A bare call of a context manager sets nothing."""
    for before in re.findall(r"(.{5})xgemm_torch\.simt\.configure\(", guide()):
        assert before == "with "


def test_the_snippet_runs(capsys):
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)  # what a reader would paste
    assert names["c"].shape == (512, 256) and names["y"].shape == (8, 3072)
    assert "1 of 1" in str(names["report"])
    assert names["report"].rows[0] and "kernel" in capsys.readouterr().out
