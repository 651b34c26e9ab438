"""README and the pages beside it: figures are their records', code runs, links resolve."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import kinds
import pytest
import records
import shapes
import torch

import xgemm_torch
from xgemm_torch.__main__ import COMMANDS
from xgemm_torch.tools import accuracy
from xgemm_torch.tools.contenders import keeps, rows_of

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PROBLEMS = {p.label: p for p in shapes.suite()}
README = (ROOT / "README.md").read_text(encoding="utf-8")
MEASUREMENTS = "docs/measurements.md"
BY_HAND = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/guide.md", "docs/design.md"]
PAGES = [
    *BY_HAND,
    "docs/measurements.md",
    "docs/examples.md",
    "docs/course.md",
    "docs/chapter-0.md",
    "docs/ladder/README.md",
    "docs/adding-a-stage.md",
    "docs/glossary.md",
]
STAGES = {stage.name: stage for stage in xgemm_torch.stages()}
FILES = list((ROOT / "csrc" / "xgemm" / "stages").glob("*/*.cu"))
all_stages = pytest.mark.skipif(
    len(STAGES) < len(FILES), reason="this build leaves stages out; the pages are of all"
)


@cache
def newest(kind: str, folder: str = "*") -> dict[str, Any]:
    return records.read(max(RESULTS.glob(f"{folder}/*-{kind}.json"), key=lambda path: path.name))


def block(text: str, name: str) -> str:
    (found,) = re.findall(rf"<!-- figures: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    return found


def rows(text: str, name: str) -> list[list[str]]:
    """The cells of a block's table, without its head."""
    lines = [line[2:-2].split(" | ") for line in block(text, name).splitlines() if line[:1] == "|"]
    return lines[2:]


@cache
def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# --- the blocks are what the script makes ---------------------------------------------------------


@pytest.fixture(scope="module")
def maker():
    return importlib.import_module("make_readme")


@all_stages
def test_figures_and_chart_are_up_to_date(maker):
    assert maker.stale() == [], "run: python docs/make_readme.py"


@all_stages
@pytest.mark.parametrize("name", ["README.md", "measurements.md"])
def test_a_figure_that_is_changed_is_noticed(name, maker, tmp_path):
    text = next(path for path in maker.PAGES if path.name == name).read_text(encoding="utf-8")
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert maker.stale([tmp_path / name]) == []
    for figure in list(re.finditer(r"\d+\.\d+(?=x\))", text))[::7]:
        changed = text[: figure.start()] + "9.87" + text[figure.end() :]
        (tmp_path / name).write_text(changed, encoding="utf-8")
        assert maker.stale([tmp_path / name]) == [f"{name}: stale"]


def test_a_chart_of_other_figures_is_noticed(maker, tmp_path):
    data = maker.chart_data()
    assert maker.stale(pages=()) == []
    data["speed"]["fp32"][2] *= 1.01
    maker.draw(data, tmp_path / "other.svg")
    assert maker.stale((), tmp_path / "other.svg") == ["other.svg: stale"]
    assert maker.stale((), tmp_path / "none.svg") == ["none.svg: stale"]


def test_every_block_is_made_and_every_maker_is_used(maker):
    used = [name for path in maker.PAGES for _, name, _ in maker.BLOCK.findall(path.read_text())]
    assert sorted(used) == sorted(maker.BLOCKS)
    for path in maker.PAGES:
        assert path.read_text().count("<!-- figures:") == len(maker.BLOCK.findall(path.read_text()))


def test_other_libraries_without_a_record_and_with_one(maker, monkeypatch):
    monkeypatch.setattr(maker, "if_any", lambda kind: None)
    (line,) = maker.peer_table()
    assert line.startswith("No record yet")
    record = {
        "peers": {
            "ours": {"what": "sgemm", "version": "1.0+cu130", "absent": None},
            "theirs": {"what": "mm", "version": "2", "absent": None},
            "none": {"what": "dot", "version": None, "absent": "not installed"},
        },
        "products": {
            "square 1000": {
                "problem": [1, 1000, 1000, 1000, "NN"], "us": {"ours": 20.0},
                "errors": {"ours": {"rms": 0.0612}}, "failed": {"theirs": "no"},
            },
            "layer": {
                "problem": [1, 10, 1000, 1000, "NT"], "us": {"ours": 20.0, "theirs": 0.1},
                "errors": {"ours": {"rms": 5.0}, "theirs": {"rms": 171.2}}, "failed": {},
            },
        },
    }  # fmt: skip
    monkeypatch.setattr(maker, "if_any", lambda kind: record)
    assert maker.peer_table() == [
        "| library | call | 1000 | layer |",
        "| --- | --- | --- | --- |",
        "| ours | sgemm 1.0 | 100 / 0.061 | 1 / 5 |",
        "| theirs | mm 2 | failed | 200 / 171 |",
        "| none | dot | not installed | not installed |",
    ]


# --- no figure stands elsewhere -------------------------------------------------------------------

# 2.5x, 12%, 3 us, 1.4 ms, 50 TFLOP/s, 4.0 times, 3.9 TB/s; sizes and architectures are no figures.
MEASURED = re.compile(
    r"\d(?:\.\d+)?x\b(?! ?\d)|\d ?%|\d ?(?:us|ms|µs|seconds|minutes)\b|\d ?[TG](?:FLOP|B)/s"
    r"|\d\.\d+ times(?! the chain's)|\b(?:twice|\d+ times) (?:as fast|the speed|cuBLAS)"
)


@pytest.mark.parametrize("name", [*BY_HAND, "docs/measurements.md", "docs/examples.md"])
def test_no_figure_is_typed_by_hand(name):
    prose = re.sub(r"<!-- figures: .*?<!-- end -->", "", page(name), flags=re.DOTALL)
    assert [found[0] for found in MEASURED.finditer(prose)] == []


@pytest.mark.parametrize(
    "text", ["is 2.5x faster", "98% of", "takes 5 us", "160 ms", "50 TFLOP/s", "at 4.0 times",
             "3.9 TB/s", "six minutes: 6 minutes", "twice as fast"],
)  # fmt: skip
def test_what_a_figure_is(text):
    assert MEASURED.search(text)


@pytest.mark.parametrize(
    "text", ["64 x 128 units", "sm_80", "K = 2048", "8 x 1024 tokens", "1.6 u"]
)
def test_what_is_no_figure(text):
    assert not MEASURED.search(text)


def test_readme_is_short():
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1600


def test_no_prose_counts_stages():
    """A stage that is new changes no word outside the blocks."""
    numbers = "\\d+|two|three|four|five|six|seven|eight|nine|ten|\\w+teen|twenty|\\w+ty-\\w+|thirty"
    for name in BY_HAND:
        prose = re.sub(r"<!-- figures: .*?<!-- end -->", "", page(name), flags=re.DOTALL)
        counted = re.findall(rf"\b(?:{numbers}) (?:strict )?(?:stages|rungs)\b", prose, re.I)
        assert not counted, (name, counted)


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_the_contract_is_what_is_tested(name):
    text = " ".join(page(name).split())
    said = re.search(
        r"root mean square of e is at most the chain's, or ([\d.]+) u; the largest \|e\| at most "
        r"([\d.]+) times the chain's, or ([\d.]+) u; \|mean of e\| at most the chain's, or "
        r"([\d.]+) u", text
    )  # fmt: skip
    limits = (accuracy.RMS_FLOOR, accuracy.LARGEST_LIMIT, accuracy.LARGEST_FLOOR,
              accuracy.MEAN_FLOOR)  # fmt: skip
    assert tuple(map(float, said.groups())) == limits


# --- figures, found again in the records ----------------------------------------------------------


def fastest(label: str, strict: bool) -> tuple[float, float]:
    """Microseconds of the fastest row that may be taken for a precision, and times cuBLAS."""
    found = newest("select")["problems"][label]
    able = [row for row in rows_of(xgemm_torch.stages()) if row.key in found["us"]]
    least = min(found["us"][r.key] for r in able if keeps(r, PROBLEMS[label], strict=strict))
    return least, found["torch_mm_us"] / least


def microseconds(text: str) -> float:
    value, unit = re.match(r"([\d.]+) (us|ms)", text).groups()
    return float(value) * (1000 if unit == "ms" else 1)


def test_speeds():
    """Four squares, six layers and a model, each with torch's time and both precisions'."""
    found = rows(README, "speeds")
    for name, reference, ieee, fp32 in found[:10]:
        square = re.fullmatch(r"(\d+) x \1 x \1", name)
        if square:
            label = f"square {square[1]} NN"
        else:
            label = "linear {}-{} rows {} forward".format(*re.findall(r"\d+", name))
        torch_us = newest("select")["problems"][label]["torch_mm_us"]
        assert microseconds(reference) == pytest.approx(torch_us, rel=0.005)
        for cell, strict in ((ieee, True), (fp32, False)):
            us, ratio = fastest(label, strict)
            assert microseconds(cell) == pytest.approx(us, rel=0.006)
            assert cell.endswith(f"({ratio:.2f}x)")
    (step,) = found[10:]
    ms = newest("steps")["models"]["gpt2"]["ms"]
    assert step[1] == f"{ms['stock']:.0f} ms" and step[2] == "not measured"
    assert step[3].startswith(f"{ms['patched']:.3g} ms ({ms['stock'] / ms['patched']:.2f}x)")


def test_the_first_words():
    text = " ".join(block(README, "gains").split())
    said = re.search(r"squares of (.*) run at (.*) times the speed", text)
    sizes, ratios = (re.findall(r"[\d.]+", part) for part in said.groups())
    assert [f"{fastest(f'square {size} NN', False)[1]:.1f}" for size in sizes] == ratios
    said = re.search(r"K = (\d+), .* is ([\d.]+); torch's is ([\d.]+), TF32's (\d+)\.", text)
    (row,) = (
        row["errors"]
        for row in newest("accuracy")["rows"]
        if (row["distribution"], str(row["k"])) == ("normal", said[1])
    )
    want = [f"{row[name]['rms']:.2f}" for name in ("sgemm", "torch.mm")]
    assert [said[2], said[3], said[4]] == [*want, f"{row['TF32']['rms']:.0f}"]


def test_a_training_step():
    text = " ".join(block(README, "gains").split())
    said = re.search(
        r"takes (\d+) ms in place of (\d+); TF32 takes (\d+), and its losses differ from FP32's by "
        r"([\d.e-]+) in 20 steps; ours by ([\d.e-]+)\.",
        text,
    )  # fmt: skip
    step = newest("steps")["models"]["gpt2"]
    assert said.group(1, 2, 3) == tuple(
        f"{step['ms'][way]:.0f}" for way in ("patched", "stock", "tf32")
    )
    assert len(step["losses"]["stock"]) == 20
    for part, way in ((said[4], "tf32"), (said[5], "patched")):
        assert part == f"{step['largest_difference'][way]:.0e}"
    said = re.search(r"network takes (\d+) ms, stock (\d+), TF32 (\d+)\.", text)
    pinn = newest("steps-compiled")["models"]["pinn"]["ms"]
    assert said.groups() == tuple(f"{pinn[way]:.0f}" for way in ("converted", "stock", "tf32"))
    ours, tf32 = newest("gpt2-200-steps"), newest("gpt2-200-steps-tf32")
    for (what, stock, converted, losses, _), record in zip(
        rows(page(MEASUREMENTS), "training"), (ours, tf32), strict=True
    ):
        ms = record["interleaved_ms"]
        assert (stock, converted) == (f"{ms['stock']:.0f} ms", f"{ms['converted']:.0f} ms"), what
        assert float(losses) == pytest.approx(record["difference"]["largest"], rel=0.05)


@cache
def runs() -> dict[tuple[int, str], dict[str, Any]]:
    """Times by size and layout, of the record that the ladder's tables are of."""
    cases = newest("stages", "h200")["cases"]
    return {(case["size"], case["layout"]): case["times"] for case in cases}


def cell(size: int, stage: str, layout: str = "NN") -> str:
    """Speed and share as the table has them: times of cuBLAS for what runs on tensor cores."""
    time = runs()[size, layout].get(stage)
    if time is None:
        return "-"
    speed = f"{time['tflops']:.1f}" if time["tflops"] < 60 else f"{time['tflops']:.0f}"
    share = f"{time['share']:.2f}x" if not STAGES[stage].strict else f"{time['share']:.0%}"
    return f"{speed} ({share})"


# A stage that is new stands there when it has been measured.
MEASURED_STAGES = [name for name in STAGES if any(name in times for times in runs().values())]


@pytest.mark.parametrize("stage", MEASURED_STAGES)
def test_the_ladder(stage):
    (row,) = (row for row in rows(page(MEASUREMENTS), "ladder-table") if row[1] == f"`{stage}`")
    at = STAGES[stage]
    assert row == [str(at.rung or ""), f"`{stage}`", at.idea, cell(4096, stage), cell(8192, stage)]


@all_stages
def test_the_ladder_has_no_others():
    names = [row[1].strip("`") for row in rows(page(MEASUREMENTS), "ladder-table")]
    assert names == MEASURED_STAGES


def test_speeds_by_layout():
    """Of the fastest strict stage at 4096, NN, and of the fastest of all."""
    found = rows(page(MEASUREMENTS), "layouts")
    at = runs()[4096, "NN"]
    for group, strict in ((found[:4], True), (found[4:], False)):
        best = max(
            (name for name in at if name in STAGES and STAGES[name].strict == strict),
            key=lambda name: at[name]["tflops"],
        )
        assert [row[1] for row in group] == ["NN", "NT", "TN", "TT"]
        for name, layout, *cells in group:
            assert name == f"`{best}`"
            assert cells == [cell(size, best, layout) for size in (1024, 2048, 4096, 8192)]


def test_the_ladder_in_short():
    """Rungs in order, each faster than all below it, and no rung gained more that is left out."""
    lines = block(README, "ladder").splitlines()
    names = [re.match(r"- \[`(\w+)`\]", line)[1] for line in lines]
    assert len(lines) == 8
    times = runs()[4096, "NN"]
    gains, best = {}, 0.0
    for name, stage in STAGES.items():
        if name in times and times[name]["tflops"] > best:
            gains[name] = times[name]["tflops"] / best if best else float("inf")
            best = times[name]["tflops"]
        if name in names:
            assert cell(4096, name).replace(" ", " TFLOP/s ") in lines[names.index(name)]
            assert lines[names.index(name)].endswith(f": {stage.idea}")
    assert names == [name for name in gains if name in names]
    assert min(gains[name] for name in names) >= max(
        gain for name, gain in gains.items() if name not in names
    )


def test_few_rows():
    found = rows(page(MEASUREMENTS), "few-rows")
    assert len(found) == 12
    for layer, count, *cells in found:
        inside, outside = layer.split(" to ")
        want = []
        for strict in (True, False):
            for product in ("forward", "grad_x", "grad_w"):
                label = f"linear {inside}-{outside} rows {count} {product}"
                us, ratio = fastest(label, strict)
                want.append(f"{us:.3g} ({ratio:.2f}x)" if us < 100 else f"{us:.0f} ({ratio:.2f}x)")
        assert cells == want


def test_what_the_suite_comes_to():
    for precision, count, mean, behind, worst in rows(page(MEASUREMENTS), "suite"):
        strict = precision == '`"ieee"`'
        ratios = [fastest(label, strict)[1] for label in newest("select")["problems"]]
        assert int(count) == len(ratios) == len(PROBLEMS)
        assert mean == f"{geometric_mean(ratios):.2f}x" and worst == f"{min(ratios):.2f}x"
        assert int(behind) == sum(ratio < 0.98 for ratio in ratios)


def test_what_auto_comes_to():
    found = list(newest("random")["problems"].values())
    some = {
        "all": lambda p: True,
        "cuBLAS takes 10 us or more": lambda p: p["torch_mm_us"] >= 10,
        "one row or one column": lambda p: 1 in p["problem"][1:3],
    }
    table = rows(page(MEASUREMENTS), "random")
    assert len(table) == 2 * len(some)
    for precision, what, count, mean, behind, worst in table:
        ratios = [
            p["torch_mm_us"] / p["auto_us"][precision.strip('`"')] for p in found if some[what](p)
        ]
        assert int(count) == len(ratios) and mean == f"{geometric_mean(ratios):.2f}x"
        assert behind == f"{sum(r < 0.98 for r in ratios) / len(ratios):.0%}"
        assert worst == f"{min(ratios):.2f}x"


def test_what_the_limits_say():
    text = " ".join(block(README, "limits").split())
    ratios = [
        (p["torch_mm_us"] / p["auto_us"]["fp32"], p["torch_mm_us"], p["problem"])
        for p in newest("random")["problems"].values()
    ]
    said = re.search(r"Of (\d+) problems .* by over 2% in (\d+)%; of the (\d+) that take cuBLAS "
                     r"(\d+) us or more, in (\d+)%\.", text)  # fmt: skip
    long = [ratio for ratio, us, _ in ratios if us >= int(said[4])]
    behind = [
        f"{100 * sum(r < 0.98 for r in part) / len(part):.0f}"
        for part in ([ratio for ratio, _, _ in ratios], long)
    ]
    assert said.group(1, 2, 3, 5) == (str(len(ratios)), behind[0], str(len(long)), behind[1])
    said = re.search(r"less than (\d+) us, it loses (\d+) of (\d+); the worst of all, (\S+) (\w+), "
                     r"runs at ([\d.]+) times", text)  # fmt: skip
    thin = [r for r, us, problem in ratios if us < int(said[1]) and 1 in problem[1:3]]
    worst, _, problem = min(ratios)
    assert said.group(2, 3) == (str(sum(r < 0.98 for r in thin)), str(len(thin)))
    assert said.group(4, 5) == ("x".join(map(str, problem[1:4])), problem[4])
    assert said[6] == f"{worst:.2f}"
    cells = [
        (cell["us"] / cell["normal_us"], problem, kind, cell)
        for problem, by_kind in newest("data")["cells"].items()
        for kind, cell in by_kind.items()
    ]
    said = re.search(
        r"take up to ([\d.]+) times what normal data take \(`([\w.-]+)`, (\S+)\), "
        r"others up to (\d+) times \(`([\w.-]+)`, (\S+)\); (\d+)% of",
        text,
    )
    usual = max(c[:3] for c in cells if kinds.KINDS[c[2]].realistic)
    other = max(c[:3] for c in cells)
    exotic = [c[3] for c in cells if not kinds.KINDS[c[2]].realistic]
    slower = sum(c["us"] > c["torch_mm_us"] for c in exotic) / len(exotic)
    assert said.groups() == (
        f"{usual[0]:.1f}", usual[2], usual[1], f"{other[0]:.0f}", other[2], other[1],
        f"{100 * slower:.0f}",
    )  # fmt: skip


def test_kinds_of_data_outside_the_contract_are_named():
    """README names each that breaks a term of it, and no other."""
    outside: dict[str, list[float]] = {}
    for by_kind in newest("data")["cells"].values():
        for kind, cell in by_kind.items():
            found, chain = (
                accuracy.Errors(**{"misplaced": 0, **cell[whose]}) for whose in ("errors", "chain")
            )
            if accuracy.broken(found, chain) or cell["misplaced"]:
                outside.setdefault(kind, []).append(found.rms)
    said = re.findall(r"\*\*`([\w.-]+)` is outside the contract\*\* .*?up to ([\d.]+) u",
                      " ".join(block(README, "limits").split()))  # fmt: skip
    assert said == [(kind, f"{max(rms):.2f}") for kind, rms in outside.items()]


def test_data_by_kind():
    cells = newest("data")["cells"]
    table = rows(page(MEASUREMENTS), "data")
    assert [row[0].strip("`") for row in table] == list(next(iter(cells.values())))
    for name, _, usual, slow, least, rms, largest in table:
        mine = [by_kind[name.strip("`")] for by_kind in cells.values()]
        assert slow.startswith(f"{max(c['us'] / c['normal_us'] for c in mine):.2f}x")
        assert least == f"{min(c['torch_mm_us'] / c['us'] for c in mine):.2f}x"
        assert rms == f"{max(c['errors']['rms'] for c in mine):.2f}"
        assert largest == f"{max(c['errors']['largest'] for c in mine):.2f}"
        assert (usual == "yes") == kinds.KINDS[name.strip("`")].realistic


def test_errors_by_depth():
    table = rows(page(MEASUREMENTS), "errors")
    record = {
        r["k"]: r["errors"] for r in newest("accuracy")["rows"] if r["distribution"] == "normal"
    }
    assert [int(row[0]) for row in table] == newest("accuracy")["depths"]
    for k, *cells in table:
        for text, name in zip(cells, ("chain", "torch.mm", "sgemm", "TF32"), strict=True):
            rms, largest = map(float, text.split(" / "))
            assert rms == pytest.approx(record[int(k)][name]["rms"], rel=0.006)
            assert largest == pytest.approx(record[int(k)][name]["largest"], rel=0.006)


@all_stages
def test_which_gpu_runs_what(maker):
    """The stages that the table names can run there; those that were timed are named so."""
    table = rows(README, "gpus")
    assert len(table) == len(maker.GPUS)
    for (gpu, _, fp32, ieee, measured), (_, chips, _) in zip(table, maker.GPUS, strict=True):
        for sm, _ in chips:
            assert f"sm_{sm}" in gpu
            for name in re.findall(r"`(\w+)`", fp32 + ieee):
                stage = STAGES[name]
                assert stage.min_sm <= sm <= (stage.max_sm or sm)
        for name in re.findall(r"`(\w+)`", ieee):
            assert STAGES[name].strict
        devices = {newest(kind)["facts"]["device"].split()[-1] for kind in ("select", "data")}
        assert (measured != "no") == any(device in gpu for device in devices)


# --- the guide to a new stage ---------------------------------------------------------------------


@cache
def guide() -> str:
    return page("docs/adding-a-stage.md")


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
            speed = runs()[8192, "NN"][name]["tflops"]
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
        for (size, layout), times in runs().items()
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


# --- code and links -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_python_runs(name, capsys):
    snippets = re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)
    assert snippets
    every: list[dict[str, Any]] = [{} for _ in snippets]
    for snippet, names in zip(snippets, every, strict=True):
        exec(snippet, names)  # what a reader would paste
    first, *others = every
    assert first["c"].shape == (512, 256)
    assert isinstance(first["model"][0], xgemm_torch.nn.Linear) is False  # reverted
    for names in others:
        if "plan" in names:  # of tensor parallelism, here on one machine
            assert {names["model"][int(at)].invariant for at in names["plan"]} == {"tp"}
            continue
        field, at = names["field"], names["at"].requires_grad_()
        (slope,) = torch.autograd.grad(field(at).sum(), at, create_graph=True)
        (expected,) = torch.autograd.grad(slope[:, 0].sum(), at)
        torch.testing.assert_close(names["u_xx"][:, 0], expected[:, 0])
    said = capsys.readouterr().out
    assert "1 of 1" in said and "kernel" in said


def commands(text: str) -> list[list[str]]:
    """The lines of a page's bash blocks and of its inline code, as words without comments."""
    lines = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).splitlines()
    lines += re.findall(r"`((?:python -m xgemm_torch|xgemm|make) [^`]*)`", text)
    return [words for line in lines if (words := line.partition("#")[0].split())]


@pytest.mark.parametrize("name", PAGES)
def test_commands_exist(name, monkeypatch, capsys):
    """Commands parse, make has their targets, and scripts are there."""
    targets = set(re.findall(r"^([\w-]+):", page("Makefile"), re.MULTILINE))
    for words in commands(page(name)):
        if words[0] == "make":
            assert set(words[1:]) <= targets, words
        elif words[:3] == ["python", "-m", "xgemm_torch"] or words[0] == "xgemm":
            rest = words[3:] if words[0] == "python" else words[1:]
            if rest[0] in ("COMMAND", "--version"):
                continue
            known = importlib.import_module(f"xgemm_torch.{COMMANDS[rest[0]][0]}")
            monkeypatch.setattr(known, "run", lambda options: 0)
            sizes = {"M": "1", "N": "2", "K": "3"}
            arguments = [sizes.get(word, word) for word in rest]
            assert xgemm_torch.__main__.main(arguments) == 0, words
        elif words[0] == "python" and words[1] != "-m":
            assert (ROOT / words[1]).is_file(), words
        elif words[0].startswith("."):
            assert (ROOT / words[0]).is_file(), words
    capsys.readouterr()


def anchors(text: str) -> set[str]:
    """The places of a page that links may name, as GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", PAGES)
def test_links_resolve(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", page(name)):
        if re.match(r"https?:", target):
            continue
        path, _, place = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        assert not place or place in anchors(file.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("name", PAGES)
def test_files_that_are_named_exist(name):
    """Paths in code marks, from the root, from csrc/xgemm or from csrc."""
    csrc = ROOT / "csrc" / "xgemm"
    roots = [ROOT, ROOT / "csrc", csrc, csrc / "stages", ROOT / "xgemm_torch"]
    for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", page(name)):
        if re.search(r"NN_name|shapes/name|^dist/|result\.json|~", path):
            continue
        assert any((root / path).exists() for root in roots), path


def test_every_page_is_reached_from_readme():
    """Whatever README does not link, a page that it links does."""
    seen, todo = set(), ["README.md"]
    while todo:
        name = todo.pop()
        if name in seen or not name.endswith(".md"):
            continue
        seen.add(name)
        for target in re.findall(r"\]\(([^)#\s]+)", page(name)):
            if not target.startswith("http"):
                todo.append(str((ROOT / name).parent.joinpath(target).resolve().relative_to(ROOT)))
    assert set(PAGES) <= seen
