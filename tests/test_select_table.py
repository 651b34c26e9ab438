"""The table behind ``auto``: how it is measured, fitted and written, on an invented machine."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import xgemm_torch
from xgemm_torch import trials
from xgemm_torch.contenders import KINDS, is_measured, keeps, kind, rows_of, several
from xgemm_torch.registry import Stage, Tile
from xgemm_torch.trials import TORCH_MM

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
SM_COUNT = 132


@pytest.fixture(autouse=True)
def folder_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def model():
    import select_model

    return select_model


@pytest.fixture
def tool():
    import select_table

    return select_table


def tile(bm, bn, bk, tm, tn, *, buffers=1, min_blocks=1, rate=0.0):
    return Tile(
        BM=bm, BN=bn, BK=bk, WM=0, WN=0, TM=tm, TN=tn, threads=bm * bn // (tm * tn), width=1,
        buffers=buffers, min_blocks=min_blocks, producers=0, cluster=1, group=8,
        element_bytes=4, smem=0, rate=rate,
    )  # fmt: skip


def stage(name, rung, *tiles, strict=True, splits=False):
    return Stage(
        name=name, rung=rung, idea="", source="", file="", min_sm=0, max_sm=0, strict=strict,
        cuda=True, tiles=tiles, splits=splits,
    )  # fmt: skip


INVENTED = [
    stage("poor", 1, tile(32, 32, 1, 1, 1, buffers=0, min_blocks=2, rate=0.5)),
    stage("plain", 2, tile(64, 64, 16, 4, 4, min_blocks=4, rate=30.0)),
    stage(
        "rich", 3,
        tile(128, 128, 8, 8, 8, min_blocks=2, rate=47.0),
        tile(128, 256, 16, 8, 16, rate=52.0),
        tile(64, 32, 16, 4, 4, min_blocks=6, rate=26.0),
    ),
    stage("coarse", 4, tile(128, 128, 8, 8, 8, min_blocks=2, rate=90.0), strict=False),
    stage("cut", 5, tile(64, 64, 16, 4, 4, min_blocks=4, rate=70.0), splits=True),
]  # fmt: skip


def truth(row, p):
    """Microseconds on the invented machine, which is not quite what the model thinks."""
    t = row.tile
    blocks = math.ceil(math.ceil(p.m / t.BM) * math.ceil(p.n / t.BN) / SM_COUNT)
    rounds, left = divmod(blocks, t.min_blocks)
    per_sm = t.rate * 1e6 / 132 / (1.06 if p.layout == "NT" else 1.0)
    work = t.min_blocks * 2 * t.BM * t.BN * (p.k + 10 * t.BK) / per_sm
    compute = work * (rounds + (left / t.min_blocks) ** 0.75)
    return 2.5 + math.hypot(compute, 4 * (p.m * p.k + p.k * p.n + p.m * p.n) / 4e6)


def invented_record(tool, **changes):
    """A record as --measure would leave it on the invented machine."""
    import shapes

    rows = rows_of(INVENTED)
    facts = {
        "device": "an invented machine", "date": "2000-01-01T00:00:00+00:00", "sm": "9.0",
        "driver": {"driver_version": "1.2"}, "torch": "0", "commit": "none", "command": "none",
        "multiprocessors": SM_COUNT,
    }  # fmt: skip
    record = {"facts": facts, "rows": [row.key for row in rows], "problems": {}} | changes
    measured = []

    def timer(p, chosen):
        measured.append((p, [row.key for row in chosen]))
        return {row.key: truth(row, p) for row in chosen} | {TORCH_MM: 1.0}

    done = tool.measure(record, rows, list(shapes.suite()), timer, lambda: None, sm_count=SM_COUNT)
    assert done
    return record, rows, measured


def test_rows_have_names_of_their_own():
    for stages in (INVENTED, xgemm_torch.stages()):
        rows = rows_of(stages)
        assert len({row.key for row in rows}) == len(rows)
    assert [row.stage for row in rows_of(INVENTED)] == [
        "poor", "plain", *["rich"] * 3, "coarse", "cut"
    ]  # fmt: skip


@pytest.mark.parametrize("of", ["poor", "plain", "rich"])
def test_a_fit_finds_the_model_again(model, of):
    import shapes

    t = next(s for s in INVENTED if s.name == of).tiles[0]
    true = model.Fit(3.0, 50.0, 0.3, 0.2, 0.4, (200.0, 300.0, 400.0, 350.0))
    times = [(p, true.microseconds(t, p, SM_COUNT)) for p in shapes.suite()]
    found = model.fit(t, times, SM_COUNT)
    errors = [abs(found.microseconds(t, p, SM_COUNT) / us - 1) for p, us in times]
    assert sum(errors) / len(errors) < 0.02


def test_every_row_is_measured_and_few_everywhere(tool):
    _, rows, measured = invented_record(tool)
    anchors = measured[: len(tool.ANCHORS)]
    assert {p.label for p, _ in anchors} == set(tool.ANCHORS)
    for p, keys in anchors:
        assert keys == [row.key for row in rows if is_measured(row, p)]
    assert {several(p) for p, _ in anchors} == {False, True}
    assert {p.layout for p, _ in anchors} == {"NN", "NT", "TN", "TT"}
    others = measured[len(tool.ANCHORS) :]
    assert len({p.label for p, _ in measured}) == len(measured) == 254
    assert sum(len(keys) for _, keys in others) < 0.7 * len(rows) * len(others)


def test_what_is_left_out_is_not_the_best(tool):
    record, rows, _ = invented_record(tool)
    import shapes

    for p in shapes.suite():
        measured = record["problems"][p.label]["us"]
        for which in KINDS:
            its = [row for row in rows if kind(row) == which]
            if not all(is_measured(row, p) for row in its):
                assert not any(row.key in measured for row in its)
                continue
            found = min(measured[row.key] for row in its if row.key in measured)
            assert found <= 1.03 * min(truth(row, p) for row in its), p.label


def test_measuring_goes_on_where_it_stopped(tool):
    import shapes

    rows = rows_of(INVENTED)
    suite = list(shapes.suite())[:40]
    record, saved, calls = {"problems": {}}, [], []

    def timer(p, chosen):
        calls.append(p.label)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return {row.key: truth(row, p) for row in chosen} | {TORCH_MM: 7.0}

    def go(seconds=math.inf):
        return tool.measure(
            record, rows, suite, timer, lambda: saved.append(len(record["problems"])),
            sm_count=SM_COUNT, seconds=seconds,
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        go()
    assert saved == list(range(1, 8))
    assert not go(seconds=-1.0) and len(calls) == 8
    assert go() and len(record["problems"]) == 40
    assert sorted(calls) == sorted([p.label for p in suite] + [calls[7]])
    assert all(row["torch_mm_us"] == 7.0 for row in record["problems"].values())
    assert go() and len(calls) == 41


def test_the_largest_problems_get_few_turns(tool):
    import shapes

    rounds = {p.label: tool.settings_for(p) for p in shapes.suite()}
    assert rounds["square 16384 NN"][0] == 2 and rounds["square 16384 NN"][2] == 4
    assert rounds["square 128 NN"] == (5, 1.5, 10)


def test_the_choice_at_and_between_the_measured_problems(tool, model):
    record, rows, _ = invented_record(tool)
    estimator = model.Estimator(rows, tool.points_of(record), SM_COUNT)
    for strict in (True, False):
        at = model.losses(estimator, strict=strict, leave_one_out=False)
        assert max(loss for loss, _, _ in at) < 1e-6
        between = [
            loss for loss, _, _ in model.losses(estimator, strict=strict, leave_one_out=True)
        ]
        assert sum(between) / len(between) < 0.02 and max(between) < 0.5


PROGRAM = """
#include <cstdio>
#include "xgemm/chains.h"
#include "xgemm/select.h"
using namespace xgemm;
int main() {
  std::vector<Stage> all(STAGES);
  TILES
  const Selector selector(all);
  long long m, n, k;
  int ta, tb, sm, sms, strict;
  while (std::scanf("%lld %lld %lld %d %d %d %d %d", &m, &n, &k, &ta, &tb, &sm, &sms, &strict) ==
         8) {
    const auto* somewhere = reinterpret_cast<const float*>(16);
    Gemm g;
    g.m = m, g.n = n, g.k = k;
    g.a = {somewhere, ta ? 1 : k, ta ? m : 1, 0};
    g.b = {somewhere, tb ? 1 : n, tb ? k : 1, 0};
    g.share = chain_share(m, n, k, 1);
    const Choice c = selector.weigh(g, {.sm = sm, .sm_count = sms}, strict);
    const Pick p = selector.pick(g, {.sm = sm, .sm_count = sms}, strict);
    if (p.stage != c.pick.stage || p.row != c.pick.row) return 1;
    for (const Candidate& x : c.candidates) std::printf("%.9g ", x.microseconds);
    std::printf("%s\\n", c.why.c_str());
  }
}
"""


def compiled(table, rows, folder):
    """A program that chooses among ``rows`` by ``table``."""
    names = list(dict.fromkeys(row.stage for row in rows))
    lines = [f'all[{i}].name = "{name}";' for i, name in enumerate(names)]
    for row in rows:
        t = row.tile
        lines.append(f"all[{names.index(row.stage)}].strict = {str(row.strict).lower()};")
        lines.append(f"all[{names.index(row.stage)}].splits = {str(row.splits).lower()};")
        as_one = str(row.splits_as_one).lower()
        lines.append(f"all[{names.index(row.stage)}].splits_as_one = {as_one};")
        lines.append(
            f"all[{names.index(row.stage)}].tiles.push_back({{.BM = {t.BM}, .BN = {t.BN}, "
            f".BK = {t.BK}, .TM = {t.TM}, .TN = {t.TN}, .buffers = {t.buffers}, "
            f".min_blocks = {t.min_blocks}, .rate = {t.rate}f}});"
        )
    (folder / "table.inc").write_text(table)
    source = PROGRAM.replace("STAGES", str(len(names))).replace("TILES", "\n  ".join(lines))
    (folder / "main.cpp").write_text(source)
    flags = ["-std=c++20", "-O1", "-I", str(ROOT / "csrc")]
    flags.append(f'-DXGEMM_SELECT_TABLE="{folder / "table.inc"}"')
    sources = [
        folder / "main.cpp",
        *(ROOT / "csrc/xgemm" / f for f in ("select.cpp", "stage.cpp", "tuned.cpp")),
    ]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", folder / "choose"], check=True)
    return folder / "choose"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_what_is_written_is_what_is_chosen_by(tool, model, tmp_path):
    """The table compiles, and the library's estimates are this side's, row by row."""
    import shapes

    record, rows, _ = invented_record(tool)
    estimator = model.Estimator(rows, tool.points_of(record), SM_COUNT)
    program = compiled(tool.table(record, rows, estimator), rows, tmp_path)
    pick = random.Random(3)
    asked = list(shapes.suite())
    for _ in range(300):
        m, n, k = (round(2 ** pick.uniform(low, 14)) for low in (0, 3, 3))
        asked.append(shapes.Problem("random", m, n, k, pick.choice(shapes.LAYOUTS)))
    lines = [
        f"{p.m} {p.n} {p.k} {int(p.layout[0] == 'T')} {int(p.layout[1] == 'T')} 90 {SM_COUNT} "
        f"{strict}\n"
        for p in asked
        for strict in (0, 1)
    ]
    done = subprocess.run(
        [program], input="".join(lines), capture_output=True, text=True, check=True
    )
    answers = done.stdout.splitlines()
    assert len(answers) == 2 * len(asked)
    for i, answer in enumerate(answers):
        p, strict = asked[i // 2], bool(i % 2)
        found = [float(word) for word in answer.split()[: len(rows)]]
        of = estimator.estimate(p)
        want = [of[row.key] if keeps(row, p, strict=strict) else 0 for row in rows]
        assert found == pytest.approx(want, rel=5e-3), p
        if p.label == "random":
            assert "estimated" in answer
        else:
            assert "measured" in answer and "on an invented machine, 2000-01-01" in answer


def test_the_command_writes_and_reports(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(xgemm_torch, "stages", lambda: INVENTED)
    record, rows, _ = invented_record(tool)
    path, out = tmp_path / "record.json", tmp_path / "table.inc"
    path.write_text(json.dumps(record))
    assert tool.main(["--write", str(path), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.count("at the measured problems: 0.00% lost on average, at most 0.0%") == 2
    assert "against torch.mm: " in said and "254 problems, 7 rows" in said
    text = out.read_text()
    assert text.startswith("// Measured; written by") and "an invented machine, driver 1.2" in text
    assert len(re.findall(r"// square |// linear |// skinny ", text)) == 254

    # A stage that is gone is left out; a record of wrong bits is not taken.
    monkeypatch.setattr(xgemm_torch, "stages", lambda: INVENTED[1:])
    assert tool.main(["--write", str(path), "--out", str(out)]) == 0
    assert "no longer a row" in capsys.readouterr().out and "poor" not in out.read_text()
    path.write_text(json.dumps(record | {"wrong": ["square: poor has not the bits"]}))
    with pytest.raises(SystemExit, match="poor has not the bits"):
        tool.main(["--write", str(path), "--out", str(out)])


@pytest.mark.parametrize("x, text", [(3, "3.f"), (0.25, "0.25f"), (123456, "1.235e+05f")])
def test_numbers_are_floats_of_cpp(tool, x, text):
    assert tool.number(x) == text


def test_wrong_bits_are_noticed(monkeypatch):
    import shapes

    p = shapes.Problem("small", 33, 20, 9, "NT")
    rows = rows_of(xgemm_torch.stages())
    assert trials.check(p, rows, device="cpu") == []
    real = trials.stage_call

    def broken(row, layout):
        call = real(row, layout)
        return (lambda a, b: call(a, b) + 1e-6) if row is rows[1] else call

    monkeypatch.setattr(trials, "stage_call", broken)
    faults = trials.check(p, rows, device="cpu")
    assert len(faults) == 2
    assert all(fault.key == rows[1].key and fault.key in fault.text for fault in faults)


@pytest.mark.parametrize("size", [(1, 3, 64), (1, 2, 918)], ids=str)
def test_few_elements_are_no_false_alarm(size):
    """The chain's largest error of two or three is sometimes next to nothing."""
    import shapes

    p = shapes.Problem("tiny", *size, "NN")
    rows = [row for row in rows_of(xgemm_torch.stages()) if not row.strict]
    assert trials.check(p, rows, device="cpu") == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_measuring_needs_a_gpu(tool, tmp_path):
    with pytest.raises(SystemExit, match="needs a GPU"):
        tool.main(["--measure", str(tmp_path / "x.json")])


def test_the_table_of_this_build_knows_its_stages():
    """A measured table speaks of stages whose files there are; an empty one says that it is."""
    text = (ROOT / "csrc/xgemm/select_table.inc").read_text()
    named = re.findall(r'^    \{"(\w+)"', text, re.M)
    files = {path.stem.partition("_")[2] for path in (ROOT / "csrc/xgemm/stages").glob("*.cu")}
    assert set(named) <= files
    assert bool(named) != ("Nothing measured yet" in text)


@pytest.mark.gpu
def test_a_problem_on_a_gpu(tool):
    import shapes

    capability = torch.cuda.get_device_capability()
    sm = 10 * capability[0] + capability[1]
    able = [s for s in xgemm_torch.stages() if s.cuda and s.min_sm <= sm <= (s.max_sm or sm)]
    rows = rows_of(able)
    p = shapes.Problem("small", 300, 260, 100, "TN")
    assert trials.check(p, rows) == []
    times = tool.time_on_gpu(p, rows)
    assert set(times) == {TORCH_MM, *(row.key for row in rows)}
    assert all(0 < us < 1e5 for us in times.values())
