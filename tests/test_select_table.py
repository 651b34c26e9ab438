"""What ``auto`` chooses by: how it is measured, fitted and written, on an invented machine."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import xgemm_torch
from xgemm_torch.tools import trials
from xgemm_torch.tools.contenders import keeps, rows_of

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
SM_COUNT = 132
ROWS = rows_of(xgemm_torch.stages())
TEAMS = {stage.name for stage in xgemm_torch.stages() if stage.teams}
FACTS = {
    "device": "an invented machine", "date": "2000-01-01T00:00:00+00:00", "sm": "9.0",
    "driver": {"driver_version": "1.2"}, "torch": "0", "commit": "none", "command": "none",
    "multiprocessors": SM_COUNT,
}  # fmt: skip


@pytest.fixture
def model():
    import select_model

    return select_model


@pytest.fixture
def tool():
    import select_table

    return select_table


@pytest.fixture
def survey():
    import survey

    return survey


@pytest.fixture
def shapes():
    import shapes

    return shapes


def true_costs(model):
    """Costs of rows on the invented machine: a tile's work at its stated rate, memory, a launch."""
    words = [word for word, _ in model.TERMS]
    costs = torch.zeros(len(ROWS), len(words), dtype=torch.float64)
    for i, row in enumerate(ROWS):
        t = row.tile
        per_k = 2e3 * t.BM * t.BN * t.min_blocks / (max(t.rate, 1.0) * 1e6 / SM_COUNT)
        its = {
            "launch": 2.0 + i % 3, "waves": 0.1 * per_k, "waves depth": 0.3 * per_k,
            "busiest depth": 0.7 * per_k, "A along, odd": 0.2 * per_k, "B across, odd": per_k,
            "D": 1.5, "along": 1.2, "across": 1.4, "along, odd": 2.0, "across, odd": 2.5,
            "several chains": 1.0, "sums": 2.0,
        }  # fmt: skip
        for word, cost in its.items():
            costs[i, words.index(word)] = cost
    return costs


def truth(model, p, noise=0.0):
    """Microseconds by row."""
    us = model.estimate(model.terms_of(p, SM_COUNT)[None], true_costs(model))[0]
    wave = torch.tensor([math.sin(i * 7.0 + p.m + 3 * p.n + 5 * p.k) for i in range(len(ROWS))])
    return us * torch.exp(noise * wave)


def record_of(model, problems, noise=0.0):
    """A record as survey.py would leave it on the invented machine."""
    found = {}
    for p in problems:
        us = dict(zip([row.key for row in ROWS], truth(model, p, noise).tolist(), strict=True))
        us = {
            row.key: us[row.key]
            for row in ROWS
            if keeps(row, p, strict=True) or keeps(row, p, strict=False)
        }
        best = min(us.values())
        found[f"{p.batch}x{p.m}x{p.n}x{p.k} {p.layout}"] = {
            "label": p.label,
            "problem": [p.batch, p.m, p.n, p.k, p.layout],
            "torch_mm_us": 1.1 * best,
            "auto_us": {"fp32": best, "ieee": best},
            "auto": {"fp32": "", "ieee": ""},
            "us": {key: x for key, x in us.items() if x < 1.5 * best},
            "look_us": {key: x for key, x in us.items() if x < 3 * best},
        }
    return {"facts": FACTS, "rows": [row.key for row in ROWS], "problems": found, "wrong": []}


def some_problems(shapes):
    return [p for seed in (101, 102) for p in shapes.random_suite(seed, 60)]


def test_rows_have_names_of_their_own():
    assert len({row.key for row in ROWS}) == len(ROWS)


def test_random_problems(shapes):
    """The same for the same seed, in all layouts, within their bounds."""
    first, again = (list(shapes.random_suite(7, 300)) for _ in range(2))
    assert first == again != list(shapes.random_suite(8, 300))
    assert {p.layout for p in first} == set(shapes.LAYOUTS)
    assert all(2**12 <= p.m * p.n * p.k <= 2**36 for p in first)
    assert all(1 <= size <= 20000 for p in first for size in (p.m, p.n, p.k))
    several = list(shapes.extras(1, 4))
    assert {min(p.m, p.n) for p in several if p.label.startswith("row ")} == {1}
    assert {p.batch > 1 for p in several if p.label.startswith("batch ")} == {True}
    labels = [p.label for p in [*first, *several, *shapes.suite()]]
    assert len(set(labels)) == len(labels)


def test_the_terms_are_the_librarys(model, shapes):
    """A problem has as many terms as there are words for, each in one part of the time."""
    words = [word for word, _ in model.TERMS]
    assert len(set(words)) == len(words)
    assert {part for _, part in model.TERMS} == {"once", "work", "memory"}
    p = shapes.Problem("p", 300, 200, 1000, "NN")
    terms = model.terms_of(p, SM_COUNT)
    assert terms.shape == (len(ROWS), len(words))
    assert (terms[:, words.index("launch")] == 1).all()
    assert terms[:, words.index("D")].tolist() == pytest.approx([0.06] * len(ROWS))
    # 1024 of 128-wide tiles: twice as many multiprocessors, half the share of each.
    twice = model.terms_of(p, 2 * SM_COUNT)
    share = words.index("share")
    assert twice[:, share].tolist() == pytest.approx((terms[:, share] / 2).tolist())


def test_a_problem_and_its_transpose_are_one_for_stages_that_turn(model, shapes):
    words = [word for word, _ in model.TERMS]
    turned = words.index("D turned")
    for layout, other in (("NT", "NT"), ("NN", "TT"), ("TN", "TN")):
        few = model.terms_of(shapes.Problem("", 3, 512, 96, layout), SM_COUNT)
        many = model.terms_of(shapes.Problem("", 512, 3, 96, other), SM_COUNT)
        for i, row in enumerate(ROWS):
            if many[i, turned] == 0:
                assert row.stage not in ("gemv", "tma_gemv", "wgmma_narrow")
                continue
            same = [j for j in range(len(words)) if j not in (turned, words.index("D odd"))]
            assert few[i, same].tolist() == many[i, same].tolist(), row.key


def test_costs_are_found_again(model, tool, shapes):
    """By costs fitted to exact times nearly the best rows are chosen, of other problems, too."""
    found = list(record_of(model, some_problems(shapes))["problems"].values())
    m = model.Measured.of(found, ROWS, SM_COUNT)
    costs, known = model.fit(m, steps=250)
    others = [p for p in shapes.random_suite(5, 60)]
    new = model.Measured.of(list(record_of(model, others)["problems"].values()), ROWS, SM_COUNT)
    for precision in model.STRICT:
        for some in (m, new):
            worth = model.worth(some, model.estimates(some, costs, known), precision)
            assert float(worth.lost.log().mean()) < 0.03
            assert "problems: " in str(worth)
    # The best choices lose nothing.
    best = model.worth(m, m.us.nan_to_num(math.inf), "ieee")
    assert (best.lost == 1).all() and torch.equal(best.ratio, best.best)


def test_rows_that_auto_does_not_consider_have_no_costs(model, tool, shapes):
    found = list(record_of(model, some_problems(shapes))["problems"].values())
    m = model.Measured.of(found, ROWS, SM_COUNT)
    _, known = model.fit(m, steps=5)
    considered = {s.name for s in xgemm_torch.stages() if s.auto_choice}
    assert {row.stage for row, its in zip(ROWS, known.tolist(), strict=True) if its} <= considered
    for row, its in zip(ROWS, m.may["fp32"].any(0).tolist(), strict=True):
        assert not its or row.stage in considered


def test_seeds_are_left_out_as_a_whole(model, tool, shapes, monkeypatch):
    found = list(record_of(model, some_problems(shapes)[::4])["problems"].values())
    groups = [tool.group(x) for x in found]
    assert set(groups) == {"random 101", "random 102"}
    batch = {"label": "batch 2x3x4x5 NN", "problem": [2, 3, 4, 5, "NN"]}
    assert tool.group(batch) == tool.group(batch | {"label": "other"}) == "2x3x4x5"
    seen = []

    def fit(m, **options):
        seen.append({p.label.split()[1] for p in m.problems})
        return torch.ones(len(ROWS), len(model.TERMS)).double(), torch.ones(len(ROWS)).bool()

    monkeypatch.setattr(model, "fit", fit)
    m = model.Measured.of(found, ROWS, SM_COUNT)
    us = model.cross_validated(m, groups, 5)
    assert seen == [{"102"}, {"101"}] and bool(us.isfinite().all())


PROGRAM = """
#include <cstdio>
#include "xgemm/core/split_k.h"
#include "xgemm/dispatch/select.h"
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
    g.split_k_size = split_k_size(m, n, k, 1);
    const Choice c = selector.weigh(g, {.sm = sm, .sm_count = sms}, strict);
    const Pick p = selector.pick(g, {.sm = sm, .sm_count = sms}, strict);
    if (p.stage != c.pick.stage || p.row != c.pick.row) return 1;
    for (const Candidate& x : c.candidates) std::printf("%.9g ", x.microseconds);
    std::printf("%s\\n", c.why.c_str());
  }
}
"""


def compiled(table, rows, folder):
    """A program that chooses among ``rows``, of stages that do not turn, by ``table``."""
    names = list(dict.fromkeys(row.stage for row in rows))
    lines = [f'all[{i}].name = "{name}";' for i, name in enumerate(names)]
    for row in rows:
        t, i = row.tile, names.index(row.stage)
        lines.append(f"all[{i}].strict = {str(row.strict).lower()};")
        lines.append(f"all[{i}].split_k = {str(row.split_k).lower()};")
        matches = str(row.matches_single_chain_overflow).lower()
        lines.append(f"all[{i}].matches_single_chain_overflow = {matches};")
        lines.append(f"all[{i}].teams = {str(row.stage in TEAMS).lower()};")
        lines.append(f"all[{i}].auto_choice = {str(row.auto).lower()};")
        lines.append(
            f"all[{i}].tiles.push_back({{.BM = {t.BM}, .BN = {t.BN}, .BK = {t.BK}, "
            f".WM = {t.WM}, .WN = {t.WN}, .TM = {t.TM}, .TN = {t.TN}, .buffers = {t.buffers}, "
            f".min_blocks = {t.min_blocks}, .cluster = {t.cluster}, .rate = {float(t.rate)}f}});"
        )
    (folder / "table.inc").write_text(table)
    source = PROGRAM.replace("STAGES", str(len(names))).replace("TILES", "\n  ".join(lines))
    (folder / "main.cpp").write_text(source)
    flags = ["-std=c++20", "-O1", "-I", str(ROOT / "csrc")]
    flags.append(f'-DXGEMM_SELECT_TABLE="{folder / "table.inc"}"')
    sources = [
        folder / "main.cpp",
        ROOT / "csrc/xgemm/core/stage.cpp",
        *(ROOT / "csrc/xgemm/dispatch" / f for f in ("select.cpp", "tuned.cpp")),
    ]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", folder / "choose"], check=True)
    return folder / "choose"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_what_is_written_is_what_is_chosen_by(tool, model, shapes, tmp_path):
    """The table compiles, and the library's times are this side's, row by row."""
    costs, known = true_costs(model), torch.tensor([row.auto for row in ROWS])
    program = compiled(tool.table(FACTS, ROWS, costs, known), ROWS, tmp_path)
    # Stages of this program do not turn: problems with no more rows than columns.
    asked = [p for p in [*shapes.suite(), *shapes.random_suite(3, 150)] if p.m <= p.n]
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
        found = [float(word) for word in answer.split()[: len(ROWS)]]
        of = truth(model, p).tolist()
        want = [
            us if row.auto and keeps(row, p, strict=strict) else 0
            for row, us in zip(ROWS, of, strict=True)
        ]
        assert found == pytest.approx(want, rel=5e-3), p
        assert "estimated" in answer and "on an invented machine, 2000-01-01" in answer


def test_the_command_writes_and_reports(tool, model, shapes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(model, "STEPS", 20)
    path, out = tmp_path / "record.json", tmp_path / "table.inc"
    record = record_of(model, [*shapes.random_suite(101, 30), *list(shapes.suite())[::20]])
    gone = next(iter(record["problems"].values()))
    gone["us"]["gone 8x8x8"] = 1.0
    path.write_text(json.dumps(record))
    assert tool.main([str(path), "--out", str(out), "--folds", "2"]) == 0
    said = capsys.readouterr().out
    assert "no longer a row of this build, left out: gone 8x8x8" in said
    for title in ("the suite", "random problems", "random problems, by costs fitted without them"):
        assert f"{title}:\n  fp32: " in said
    assert "times the best, " in said and str(out) in said
    text = out.read_text()
    assert text.startswith("// Measured; written by") and "an invented machine, driver 1.2" in text
    assert "e+" not in re.sub(r"\d+e\+\d+", "", text) and "nan" not in text
    before = out.stat().st_mtime_ns
    assert tool.main([str(path), "--out", str(out), "--folds", "0", "--dry"]) == 0
    assert out.stat().st_mtime_ns == before

    path.write_text(json.dumps(record | {"wrong": ["square: poor has not the bits"]}))
    with pytest.raises(SystemExit, match="poor has not the bits"):
        tool.main([str(path), "--out", str(out)])


@pytest.mark.parametrize("x, text", [(3, "3"), (0.25, "0.25"), (123456, "1.235e+05"), (0, "0")])
def test_numbers_are_numbers_of_cpp(tool, x, text):
    assert tool.number(x) == text


class InventedMeasurer:
    """survey.py's, on the invented machine."""

    def __init__(self, p, model):
        self.p, self.us = p, dict(zip([r.key for r in ROWS], truth(model, p).tolist(), strict=True))
        layout = [(p.k, p.m) if p.layout[0] == "T" else (p.m, p.k)]
        layout.append((p.n, p.k) if p.layout[1] == "T" else (p.k, p.n))
        self.sets = [tuple(torch.empty(shape, device="meta") for shape in layout)]
        self.looked, self.captured = [], {}

    def look(self, contender):
        seconds = 1e-6 * next(
            (self.us[r.key] for r in ROWS if r.row == contender.row and r.stage == contender.stage),
            5.0,
        )
        self.looked.append(seconds)
        return seconds

    def capture(self, name, contender, seconds):
        self.captured[name] = seconds

    def sample(self, name):
        return self.captured[name]

    def turns(self, rounds, seed):
        return dict(self.captured)


def test_rows_near_the_best_take_turns(survey, model, shapes, monkeypatch):
    monkeypatch.setattr(survey, "Measurer", lambda p: InventedMeasurer(p, model))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    p = shapes.Problem("p", 500, 700, 900, "NT")
    found = survey.measure(p, ROWS)
    assert found["problem"] == [1, 500, 700, 900, "NT"] and found["torch_mm_us"] == 5.0
    looks = found["look_us"]
    for strict in (True, False):
        its = {r.key for r in ROWS if keeps(r, p, strict=strict)} & set(looks)
        best = min(looks[key] for key in its)
        assert best == pytest.approx(
            min(us for r, us in zip(ROWS, truth(model, p).tolist(), strict=True)
                if keeps(r, p, strict=strict)),
            rel=1e-3,
        )  # fmt: skip
        near = sorted(key for key in its if looks[key] <= 0.999 * survey.NEAR * best)
        assert len(set(near) & set(found["us"])) >= min(len(near), survey.MOST)
    assert len(looks) < len(ROWS), "the slowest are not looked at"


def test_the_report_names_the_worst(survey):
    def problem(label, ratio):
        return {
            "label": label, "torch_mm_us": 10.0 * ratio,
            "auto_us": dict.fromkeys(("fp32", "ieee"), 10.0),
            "auto": dict.fromkeys(("fp32", "ieee"), "a row"),
        }  # fmt: skip

    said = survey.report([problem("good", 2.0), problem("bad", 0.5)])
    assert said.count("2 problems, geometric mean 1.000 of torch.mm; below 0.98 50.0%") == 2
    assert said.index("bad") < said.index("good")


def test_wrong_bits_are_noticed(monkeypatch, shapes):
    p = shapes.Problem("small", 33, 20, 9, "NT")
    assert trials.check(p, ROWS, device="cpu") == []
    real = trials.stage_call

    def broken(row, layout):
        call = real(row, layout)
        return (lambda a, b: call(a, b) + 1e-6) if row is ROWS[1] else call

    monkeypatch.setattr(trials, "stage_call", broken)
    faults = trials.check(p, ROWS, device="cpu")
    assert len(faults) == 2
    assert all(fault.key == ROWS[1].key and fault.key in fault.text for fault in faults)


@pytest.mark.parametrize("size", [(1, 3, 64), (1, 2, 918)], ids=str)
def test_few_elements_are_no_false_alarm(size, shapes):
    """The chain's largest error of two or three is sometimes next to nothing."""
    p = shapes.Problem("tiny", *size, "NN")
    rows = [row for row in ROWS if not row.strict]
    assert trials.check(p, rows, device="cpu") == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_measuring_needs_a_gpu(survey, tmp_path):
    with pytest.raises(SystemExit, match="needs a GPU"):
        survey.main(["--json", str(tmp_path / "x.json"), "--suite"])


def test_the_table_of_this_build_knows_its_stages():
    """A measured table speaks of stages whose files there are; an empty one says that it is."""
    text = (ROOT / "csrc/xgemm/dispatch/select_table.inc").read_text()
    named = re.findall(r'^    \{"(\w+)"', text, re.M)
    stages = {path.stem for path in (ROOT / "csrc/xgemm/stages").glob("*/*.cu")}
    assert set(named) <= {re.sub(r"^\d+_", "", stage) for stage in stages}
    assert bool(named) != ("Nothing measured yet" in text)


@pytest.mark.gpu
def test_a_problem_on_a_gpu(survey, shapes):
    capability = torch.cuda.get_device_capability()
    sm = 10 * capability[0] + capability[1]
    able = [s for s in xgemm_torch.stages() if s.cuda and s.min_sm <= sm <= (s.max_sm or sm)]
    rows = rows_of(able)
    p = shapes.Problem("small", 300, 260, 100, "TN")
    assert trials.check(p, rows) == []
    with torch.cuda.stream(torch.cuda.Stream()):
        found = survey.measure(p, rows)
    assert 0 < found["torch_mm_us"] < 1e5 and set(found["us"]) <= {row.key for row in rows}
    assert all(0 < us < 1e5 for us in found["us"].values())
