"""benchmarks/report.py: one file that needs nothing else, with the figures of the records."""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from statistics import geometric_mean

import page
import pytest
import report

ROOT = Path(__file__).parent.parent
PATHS = sorted(report.RESULTS.rglob("*.json*"))
# Elements that HTML lets end without a tag, and those that have no content.
OPEN = {"tr", "td", "th", "li", "p"}
VOID = {"meta", "link", "input", "br"}


class Parsed(HTMLParser):
    """Elements by tag, tables' cells by their names, and what is not nested as it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.wrong: list[str] = []
        self._open: list[str] = []
        self._table: list[list[str]] | None = None
        self._in_cell = False
        self.feed(text)
        self.close()
        self.wrong += [f"<{tag}> is left open" for tag in self._open]

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "table":
            self._table = self.tables[dict(attributes)["id"]] = []
        if tag == "tr":
            self._table.append([])
        if tag in ("td", "th"):
            self._table[-1].append("")
        self._in_cell = tag in ("td", "th") or (self._in_cell and tag == "span")
        if tag not in OPEN | VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag in OPEN:
            return
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        if self._in_cell:
            self._table[-1][-1] += data.strip()

    def rows(self, name: str) -> list[dict[str, str]]:
        """A table's rows by its headings; the second of a heading has a 2 behind it."""
        head, *body = self.tables[name]
        names = [h if head.index(h) == i else f"{h} 2" for i, h in enumerate(head)]
        return [dict(zip(names, cells, strict=True)) for cells in body]

    def texts(self, tag: str, attribute: str) -> list[str]:
        return [a[attribute] for t, a in self.elements if t == tag and attribute in a]


@pytest.fixture(scope="module")
def found():
    return report.read(PATHS)


@pytest.fixture(scope="module")
def text(found):
    return report.build(found)


@pytest.fixture(scope="module")
def parsed(text):
    return Parsed(text)


def test_it_is_well_formed(parsed):
    assert parsed.wrong == []
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for name, rows in parsed.tables.items():
        assert {len(cells) for cells in rows} == {len(rows[0])}, name


def test_it_fetches_nothing(text, parsed):
    for _, attributes in parsed.elements:
        for name in ("href", "src", "srcset", "action", "data", "xlink:href", "poster"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), attributes
    assert not re.search(r"https?:|url\(|@import|\bfetch\(|XMLHttpRequest|import\(", text)
    ids = {a["id"] for _, a in parsed.elements if "id" in a}
    assert {h[1:] for t in ("a", "use") for h in parsed.texts(t, "href")} <= ids


def test_it_is_small(text):
    assert len(text.encode()) < 1.5e6


def test_the_same_records_give_the_same_bytes(found, text):
    assert report.build(found) == text


def test_every_record_and_every_form_appears(found, parsed):
    assert [row["record"] for row in parsed.rows("t-records")] == [r.name for r in found]
    here = {record.form for record in found}
    assert here == set(report.FORMS)
    sections = set(parsed.texts("section", "id"))
    assert sections == {"records", "history"} | {
        name for name, _, _, forms in report.SECTIONS if here & set(forms)
    }


def test_each_record_says_where_and_how(found, parsed):
    for row, record in zip(parsed.rows("t-records"), found, strict=True):
        facts = record.content.get("facts")
        if facts:
            assert row["GPU"] == facts["device"] and row["commit"] == facts["commit"][:10]
            assert row["torch"] == facts["torch"] and row["command"] == facts["command"]


def test_charts_have_a_text_alternative_and_tables_a_caption(text, parsed):
    charts = [a for t, a in parsed.elements if t == "svg" and a["class"] == "chart"]
    assert len(charts) > 20
    assert all(a["role"] == "img" and len(a["aria-label"]) > 30 for a in charts)
    boxes = [a for t, a in parsed.elements if a.get("class") == "box"]
    assert len(boxes) == len(parsed.tables) == text.count("<caption>")
    assert all(a["tabindex"] == "0" and a["role"] == "region" for a in boxes)  # keys scroll them


def test_places_of_charts_are_on_their_paper(text):
    for numbers in re.findall(r'<path class="(?:line|dots|grid|level)[^"]*" d="([^"]*)"', text):
        assert not re.search("nan|inf", numbers)
    places = re.findall(r"<use href=#m\d x=(-?\d+) y=(-?\d+) />", text)
    assert all(0 <= int(x) <= page.WIDTH and 0 <= int(y) <= page.HEIGHT for x, y in places)


def test_problems_are_the_records(found, parsed):
    rows = parsed.rows("t-problems")
    shown = {}
    for r in rows:
        key = "x".join(r[c] for c in ("batch", "M", "N", "K")) + f" {r['layout']}"
        shown[r["record"], r["GPU"], key, r["precision"]] = r
    for record in report.of(found, "auto"):
        for key, p in record.content["problems"].items():
            for precision in report.PRECISIONS:
                name = report.told_apart(record, report.of(found, "auto"))
                row = shown[name, record.gpu, key, precision]
                assert float(row["torch.mm"]) == p["torch_mm_us"]
                assert float(row["ours"]) == p["auto_us"][precision]
                ratio = p["torch_mm_us"] / p["auto_us"][precision]
                assert float(row["ratio"]) == pytest.approx(ratio, rel=1e-3, abs=6e-4)
                assert p["auto"][precision].startswith(row["config"])


def test_classes_are_of_their_problems(found, parsed):
    record = next(r for r in found if r.series == "random")
    problems = record.content["problems"].values()
    rows = [r for r in parsed.rows("t-classes")
            if (r["record"], r["GPU"], r["by"]) == ("random", record.gpu, "auto")]  # fmt: skip
    for row in rows:
        ratios = []
        for p in problems:
            _, m, n, k, _ = p["problem"]
            shape = (
                "one row or column" if min(m, n) == 1
                else "few rows" if min(m, n) <= 64
                else "short K" if k <= 64
                else "large"
            )  # fmt: skip
            if row["class"] in ("all", shape):
                ratios.append(p["torch_mm_us"] / p["auto_us"][row["precision"]])
        assert int(row["problems"]) == len(ratios)
        assert row["geometric mean"] == f"{geometric_mean(ratios):.2f}x"
        assert row["behind"] == f"{sum(r < 0.98 for r in ratios) / len(ratios):.0%}"
    assert len(rows) == 10


def test_marks_are_rows_of_the_table(parsed, text):
    total = len(parsed.tables["t-problems"]) - 1
    at = 0
    for first, inside in re.findall(r'data-points="t-problems (\d+)"(.*?)</svg>', text, re.DOTALL):
        assert int(first) == at
        at += inside.count("<use ")
    assert at == total


def test_data_are_the_records(found, parsed):
    keys = ("GPU", "M", "N", "K", "layout", "kind")
    rows = {tuple(r[key] for key in keys): r for r in parsed.rows("t-data")}
    for number, record in enumerate(report.of(found, "data")):
        head, *lines = parsed.tables[f"h-time-{number}"]
        times = {line[0]: dict(zip(head[1:], line[1:], strict=True)) for line in lines}
        for problem, by_kind in record.content["cells"].items():
            sizes, _, layout = problem.partition("-")
            for kind, c in by_kind.items():
                row = rows[(record.gpu, *sizes.split("x"), layout, kind)]
                for shown, value in (
                    ("us", c["us"]), ("torch.mm", c["torch_mm_us"]), ("rms", c["errors"]["rms"]),
                    ("chain's largest", c["chain"]["largest"]),
                ):  # fmt: skip
                    assert float(row[shown]) == pytest.approx(value, rel=1e-3)
                assert (float(row["share of the limit"]) > 1) <= bool(c["broken"])
                ratio = c["us"] / c["normal_us"]
                assert float(times[kind][problem]) == pytest.approx(ratio, abs=6e-3)


def test_errors_by_depth_are_the_records(found, parsed):
    keys = ("GPU", "operands", "K", "scheme")
    rows = {tuple(r[key] for key in keys): r for r in parsed.rows("t-depths")}
    for record in report.of(found, "accuracy"):
        for row in record.content["rows"]:
            for scheme, e in row["errors"].items():
                shown = rows[record.gpu, row["distribution"], str(row["k"]), scheme]
                for term in ("rms", "largest", "mean"):
                    assert float(shown[term]) == pytest.approx(e[term], rel=1e-3, nan_ok=True)


def test_models_and_examples_are_the_records(found, parsed):
    rows = {(r["GPU"], r["mode"], r["model"]): r for r in parsed.rows("t-steps")}
    for record in report.of(found, "steps"):
        mode = "torch.compile" if record.content["compiled"] else "eager"
        for name, m in record.content["models"].items():
            row = rows[record.gpu, mode, name]
            values = {label: m["ms"][way] for way, label in report.WAYS.items()}
            values["recomputed"] = m["families_ms"]["recomputed"]
            values["losses off"] = m["largest_difference"]["converted"]
            for shown, value in values.items():
                assert float(row[shown]) == pytest.approx(value, rel=1e-3)
    ways = {(r["GPU"], r["example"], r["layers"]): r for r in parsed.rows("t-examples")}
    for record in report.of(found, "examples"):
        for name, e in record.content["examples"].items():
            for way, label in report.WAYS.items():
                shown = ways[record.gpu, name, label]["ms a step"]
                assert float(shown) == pytest.approx(e["ways"][way]["ms"], rel=1e-3)


def test_stages_are_the_records(found, parsed):
    keys = ("GPU", "stage", "size", "layout")
    rows = {tuple(r[key] for key in keys): r for r in parsed.rows("t-stages")}
    for record in report.of(found, "stages"):
        for case in record.content["cases"]:
            for name, t in case["times"].items():
                shown = rows[record.gpu, name, str(case["size"]), case["layout"]]
                assert float(shown["TFLOP/s"]) == pytest.approx(t["tflops"], rel=1e-3)


def test_exercises_are_the_records(found, parsed):
    rows = {row["exercise"]: row for row in parsed.rows("t-exercises")}
    for record in report.of(found, "exercises"):
        for name, entry in record.content["exercises"].items():
            assert (rows[name]["result"] == "right") == entry["ok"]
            if "share" in entry:
                assert float(rows[name]["of torch.mm"]) == pytest.approx(entry["share"], rel=1e-2)


def test_reach_is_the_records(found, parsed):
    rows = {row["model"]: row for row in parsed.rows("t-reach")}
    for record in report.of(found, "reach"):
        for name, entry in record.content["models"].items():
            for way in ("convert", "patch"):
                assert float(rows[name][way]) == pytest.approx(entry[way]["share"], rel=1e-3)
            worst = entry["errors"]["patch"]
            assert float(rows[name]["gradients, patch"]) == pytest.approx(worst[1], rel=1e-3)


def test_pairs_of_builds_are_the_records(found, parsed):
    rows = iter(parsed.rows("t-gate"))
    for record in report.of(found, "gate"):
        assert {p["kind"] for p in record.content["pairs"]} == {"planted", "equal"}
        for p in record.content["pairs"]:
            row = next(rows)
            mean, low, high = p["ratios"]["geometric mean"]
            assert float(row["mean"]) == pytest.approx(mean, rel=1e-3)
            assert row["interval"] == f"{low:.4f} .. {high:.4f}"
            assert row["verdict"] == ("slower" if p["slower"] else "not slower")
            single = [r for name, (r, _, _) in p["ratios"].items() if name != "geometric mean"]
            assert row["largest"].startswith(f"{max(single):.3f}: ")
            assert row["least"].startswith(f"{min(single):.3f}: ")
    assert next(rows, None) is None


def errors(rms):
    return {"rms": rms, "largest": 6 * rms, "mean": -rms / 9, "misplaced": 0}


def peers_record():
    """Two libraries on two problems; a third that fails on one, a fourth that is not there."""
    told = {
        name: {"what": name.upper(), "clock": "events", "version": "1.0", "absent": None}
        for name in ("xgemm fp32", "torch FP32", "jax bf16x6", "cupy FP32")
    }
    told["cupy FP32"] |= {"version": None, "absent": "not installed <b>"}
    products = {
        "square 1000": {
            "problem": [1, 1000, 1000, 1000, "NN"],
            "us": {"xgemm fp32": 20.0, "torch FP32": 50.0, "jax bf16x6": 40.0},
            "errors": {"xgemm fp32": errors(0.06), "torch FP32": errors(0.12),
                       "jax bf16x6": errors(0.0)},
            "failed": {},
        },
        "row": {
            "problem": [1, 1, 1000, 500, "NT"],
            "us": {"xgemm fp32": 5.0, "torch FP32": 5.5},
            "errors": {"xgemm fp32": errors(0.5), "torch FP32": errors(0.4)},
            "failed": {"jax bf16x6": "ValueError: no"},
        },
    }  # fmt: skip
    facts = {"device": "NVIDIA H100 80GB HBM3", "date": "2026-11-27T00:00:00+00:00"}
    return {"facts": facts, "peers": told, "products": products, "finished": True}


def test_other_libraries_are_the_records():
    record = report.Record("peers.json", peers_record())
    text = report.build([record, report.Record("2026-11-28-peers.json", peers_record())])
    parsed = Parsed(text)
    assert record.form == "peers" and parsed.wrong == []
    rows = parsed.rows("t-peers")
    assert len(rows) == 10
    (row,) = [r for r in rows[:5] if (r["problem"], r["peer"]) == ("square 1000", "xgemm fp32")]
    assert (row["us"], row["TFLOP/s"], row["ratio"], row["rms"]) == ("20", "100", "2.5", "0.06")
    missing = {(r["peer"], r["problem"]): r["why"] for r in parsed.rows("t-missing")}
    assert missing == {
        ("jax bf16x6", "row"): "ValueError: no", ("cupy FP32", "all"): "not installed <b>",
    }  # fmt: skip
    # A mark for each row, in the rows' order; one whose error is 0 stands on the paper, too.
    firsts = re.findall(r'data-points="t-peers (\d+)"(.*?)</svg>', text, re.DOTALL)
    assert [(int(first), inside.count("<use ")) for first, inside in firsts] == [(0, 5), (5, 5)]
    figures = {r["figure"]: r["value"] for r in parsed.rows("t-figures")}
    want = geometric_mean([2.5, 1.1])
    assert float(figures["xgemm fp32: geometric mean ratio to torch FP32"]) == pytest.approx(
        want, rel=1e-3
    )


def test_benchmarks_of_pytest_are_the_records():
    benches = {"bench_a[x]": {"us": 2.5, "iqr_us": 0.1, "rounds": 7, "ratio": 0.5},
               "bench_b": {"us": 9.0, "iqr_us": 0.2, "rounds": 3, "note": "emulator"}}  # fmt: skip
    parsed = Parsed(report.build([report.Record("host.json", {"benches": benches})]))
    rows = parsed.rows("t-benches")
    assert [(r["benchmark"], r["us"], r["ratio"], r["note"]) for r in rows] == [
        ("bench_a[x]", "2.5", "0.5", "-"), ("bench_b", "9", "-", "emulator"),
    ]  # fmt: skip


def test_a_form_that_is_not_known_is_listed():
    text = report.build([report.Record("mine.json", {"facts": {"device": "<GPU>"}, "x": [1]})])
    (row,) = Parsed(text).rows("t-records")
    assert row["form"] == "not shown below" and row["GPU"] == "<GPU>"


def test_a_part_of_a_record_is_shown(found):
    """As data.py --kinds one-inf gives it: no kind that people multiply."""
    record = report.of(found, "data")[0]
    problem, cells = next(iter(record.content["cells"].items()))
    part = {**record.content, "cells": {problem: {"one-inf": cells["one-inf"]}}}
    parsed = Parsed(report.build([report.Record("part.json", part)]))
    assert len(parsed.rows("t-data")) == 1 and parsed.rows("t-figures") == []


def test_history_has_the_change_between_records(found):
    record = next(r for r in found if r.series == "random")
    past = []
    for day, factor in ((1, 2.0), (2, 1.25)):
        content = copy.deepcopy(dict(record.content))
        content["facts"]["date"] = f"2026-11-0{day}T00:00:00+00:00"
        for p in content["problems"].values():
            p["auto_us"]["fp32"] *= factor
        past.append(report.Record(f"2026-11-0{day}-random.json", content))
    parsed = Parsed(report.build([record], [*past, record]))
    what = "fp32: geometric mean ratio to torch.mm"
    rows = [r for r in parsed.rows("t-history") if r["figure"] == what]
    assert [r["change"] for r in rows] == ["-", "+60.0%", "+25.0%"]  # the record itself counts once
    drawn = [
        x
        for x in parsed.texts("svg", "aria-label")
        if x.startswith(f"random, {record.gpu}: {what}")
    ]
    assert len(drawn) == 1 and parsed.tables["t-problems"]


def test_older_records_are_in_git():
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    listed = subprocess.run(["git", "ls-tree", "-r", "--name-only", "HEAD", "."], text=True,
                            cwd=report.RESULTS, capture_output=True, check=True)  # fmt: skip
    names = {name for name in listed.stdout.split() if name.endswith(".json")} - {"compile.json"}
    past, _ = report.older()
    assert names <= {record.name for record in past}


def test_figures():
    shown = [page.num(x) for x in (None, math.nan, -math.inf, 12345.6, 0.98765, 3, 1e-9 / 3, 2e9)]
    assert shown == ["-", "nan", "-inf", "12346", "0.9877", "3", "3.333e-10", "2e+09"]


def test_axes():
    log = page.Axis(1, 1000, "", log=True)
    assert log.scale(0, 300)(100) == pytest.approx(200) and log.ticks()[0] == 1
    assert page.Axis(0, 10, "").ticks() == [0, 2, 4, 6, 8, 10]
    assert page.span([], "").low < page.span([], "").high
    assert page.span([math.nan, 0.0, 5.0], "", log=True).low == pytest.approx(5 / 1.15)


def test_command_line(tmp_path, capsys):
    path = next(path for path in PATHS if path.name.endswith("-steps.json"))
    report.main(["--html", str(tmp_path / "r.html"), str(path)])
    assert "1 records" in capsys.readouterr().out
    assert Parsed((tmp_path / "r.html").read_text(encoding="utf-8")).wrong == []
    with pytest.raises(SystemExit):
        report.main(["--html", str(tmp_path / "r.html"), str(tmp_path / "none.json")])


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run JavaScript")
def test_tables_sort_and_filter_and_marks_tell_their_rows():
    """On a table of K 9, 64, 1000 with ratios 1.5, none and 0.5; tests/data/report_dom.js."""
    files = [ROOT / "tests" / "data" / "report_dom.js", ROOT / "benchmarks" / "report.js"]
    run = subprocess.run(["node", *map(str, files)], capture_output=True, text=True, check=True)
    said = json.loads(run.stdout)
    assert [(words, shown) for words, shown, _, _ in said[:7]] == [
        ("", ["9", "64", "1000"]), ("nt k<=64", ["9"]), ("ratio<1", ["1000"]),
        ("layout=nn", ["64"]), ("NT", ["9", "1000"]), ("nothing", []), ("", ["9", "64", "1000"]),
    ]  # fmt: skip
    for _, shown, count, hidden in said[:7]:
        assert count == f"{len(shown)} of 3 rows"
        assert [k for k, off in zip(["9", "64", "1000"], hidden, strict=True) if not off] == shown
    assert said[7:12] == [
        ["ascending", ["9", "64", "1000"]], ["descending", ["1000", "64", "9"]],
        ["ascending", ["0.5x", "1.5x", "-"]], ["descending", ["1.5x", "0.5x", "-"]],
        ["ascending", ["NN", "NT", "NT"]],
    ]  # fmt: skip
    assert said[12] == ["layout NT, K 9, ratio 1.5x", ["1000"]]
