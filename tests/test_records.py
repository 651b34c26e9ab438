"""Records of benchmarks are read as they were measured, and the tree's are small."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import records

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
STORED = sorted(RESULTS.rglob("*.json*"))


def survey():
    """A record as survey.py measures it."""
    problems = {
        "1x3x4440x1936 TT": {
            "label": "random 1 0 3x4440x1936 TT",
            "problem": [1, 3, 4440, 1936, "TT"],
            "torch_mm_us": 40.09123456789,
            "auto_us": {"fp32": 15.87, "ieee": 17.7},
            "auto": {"fp32": "c", "ieee": "elsewhere"},
            "us": {"c": 16.0, "a": 1234.567890123},
            "look_us": {"d": 0.03123, "a": 1235.0, "b": 98765.4},
        },
        "2x8x8x8 NN": {
            "label": "small", "problem": [2, 8, 8, 8, "NN"], "torch_mm_us": 5.0,
            "auto_us": {"fp32": 1.0, "ieee": 2.0}, "auto": {"fp32": "a", "ieee": "b"},
            "us": {}, "look_us": {},
        },
    }  # fmt: skip
    return {"facts": {"device": "d"}, "rows": list("abcd"), "problems": problems, "wrong": []}


def test_a_survey_is_read_as_it_was_measured(tmp_path):
    record = survey()
    records.write(tmp_path / "x.json", record)
    found = records.read(tmp_path / "x.json")
    first = record["problems"]["1x3x4440x1936 TT"]
    first |= {"torch_mm_us": 40.0912, "us": {"c": 16.0, "a": 1234.57}}
    assert found == record
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_compressed_record(tmp_path):
    for name in ("x.json", "x.json.xz"):
        records.write(tmp_path / name, survey())
    assert records.read(tmp_path / "x.json.xz") == records.read(tmp_path / "x.json")
    assert (tmp_path / "x.json.xz").read_bytes()[:6] == b"\xfd7zXZ\0"
    assert records.stored_text(tmp_path / "x.json.xz") == (tmp_path / "x.json").read_text()


def test_each_problem_is_a_line_without_names(tmp_path):
    lines = records.text(survey()).splitlines()
    (line,) = [line for line in lines if "3x4440x1936" in line]
    assert line.startswith('["1x3x4440x1936 TT","random 1 0 3x4440x1936 TT",40.0912,')
    assert line.endswith("[15.87,17.7],[2,4],[1234.57,-1,16],[1235,98765.4,-1,0.03123]],")
    assert sum("elsewhere" in line for line in lines) == 1


def test_problems_named_by_their_label(tmp_path):
    """As the records that select_table.py once measured: no more than times."""
    record = {"rows": ["a", "b"], "problems": {"square": {"torch_mm_us": 2.5, "us": {"b": 3.25}}}}
    records.write(tmp_path / "x.json", record)
    assert records.read(tmp_path / "x.json") == record


def test_a_record_without_problems_yet(tmp_path):
    record = {"rows": ["a"], "problems": {}, "wrong": []}
    records.write(tmp_path / "x.json", record)
    assert records.read(tmp_path / "x.json") == record


def test_plain_json_is_read(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(survey(), indent=1))
    assert records.read(tmp_path / "x.json") == survey()


def test_a_key_that_does_not_say_the_sizes_is_refused():
    record = survey()
    record["problems"]["1x1x1x1 NN"] = record["problems"].pop("2x8x8x8 NN")
    with pytest.raises(ValueError, match="'1x1x1x1 NN'"):
        records.text(record)


def test_digits():
    loss = 10.928410530090332  # a float32
    stored = json.loads(records.text({"x": [1 / 3, loss, 1e-30 / 3, 7, True, math.inf, math.nan]}))
    x = stored["x"]
    assert x[:6] == [0.333333, 10.928411, 3.33333e-31, 7, True, math.inf] and math.isnan(x[6])


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_what_is_stored_has_this_form(path):
    assert records.stored_text(path) == records.text(records.read(path)), (
        f"run: python benchmarks/records.py {path.relative_to(ROOT)}"
    )


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_what_is_stored_says_where_and_how_it_was_measured(path):
    """Trainings from before they named their commit have an environment in place of facts."""
    record = records.read(path)
    if path.name == "compile.json" or ("facts" not in record and "runs" in record):
        return
    facts = record["facts"]
    assert {"device", "torch", "commit", "command"} <= set(facts)
    assert re.fullmatch(r"[0-9a-f]{7,40}\+?", facts["commit"])
    assert not {"date", "commit", "command"} & set(record)  # beside the facts
