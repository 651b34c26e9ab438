"""docs/ladder is what docs/make_ladder.py makes of today's stages, counts and results."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import xgemm_torch

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
STAGES = xgemm_torch.stages()
FILES = list((ROOT / "csrc" / "xgemm" / "stages").glob("*.cu"))

pytestmark = pytest.mark.skipif(
    len(STAGES) < len(FILES), reason="this build leaves stages out; the pages are of all"
)


@pytest.fixture(scope="module")
def maker():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("make_ladder")


@pytest.fixture(scope="module")
def known(maker):
    return maker.gather()


@pytest.fixture(scope="module")
def pages(maker, known):
    return maker.texts(known)


def test_pages_and_pictures_are_up_to_date(maker, known, pages):
    assert maker.stale(pages, known) == [], "run: python docs/make_ladder.py"


def test_there_is_a_page_for_each_stage_and_an_index(maker, pages):
    names = {path.name for path in pages}
    assert names == {f"{maker.stem(stage)}.md" for stage in STAGES} | {"README.md"}


@pytest.fixture
def quick_pictures(maker, monkeypatch):
    """Pictures that hold nothing but what they say of themselves."""
    monkeypatch.setattr(
        maker.pictures, "draw", lambda drawn, name, path: path.write_text(drawn.digest())
    )


def test_a_stale_page_or_picture_is_named(
    maker, known, pages, quick_pictures, monkeypatch, tmp_path
):
    monkeypatch.setattr(maker, "PAGES", tmp_path / "docs")
    monkeypatch.setattr(maker, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(maker, "ROOT", tmp_path)
    mine = {tmp_path / "docs" / path.name: text for path, text in pages.items()}
    maker.write(mine, known)
    assert maker.stale(mine, known) == []
    name = maker.stem(STAGES[0])
    (tmp_path / "docs" / f"{name}.md").write_text("old")
    (tmp_path / "docs" / "99_gone.md").write_text("of a stage that is gone")
    picture = tmp_path / "images" / f"{name}-tile.svg"
    picture.write_text(picture.read_text().replace(known["anatomy"][STAGES[0].name].digest(), "x"))
    assert maker.stale(mine, known) == [
        f"docs/{name}.md: stale", "docs/99_gone.md: of no stage", f"images/{name}-tile.svg: stale",
    ]  # fmt: skip
    maker.write(mine, known)
    assert maker.stale(mine, known) == []
    assert not (tmp_path / "docs" / "99_gone.md").exists()


def test_every_link_and_picture_exists(maker, pages):
    for path, text in pages.items():
        outside = re.sub(r"```.*?```", "", text, flags=re.S)
        targets = re.findall(r"\]\(([^)#]+)\)", outside)
        assert targets
        for target in targets:
            if not target.startswith("http"):
                assert (path.parent / target).resolve().exists(), (path.name, target)


def test_pages_link_to_their_neighbours(maker, pages):
    for before, after in zip(STAGES, STAGES[1:], strict=False):
        assert f"]({maker.stem(after)}.md)" in pages[maker.PAGES / f"{maker.stem(before)}.md"]
        assert f"]({maker.stem(before)}.md)" in pages[maker.PAGES / f"{maker.stem(after)}.md"]


def test_the_readme_links_to_the_course():
    assert "(docs/ladder/README.md)" in (ROOT / "README.md").read_text()


def test_a_page_says_what_the_results_say(maker, known, pages):
    record = maker.measured()
    assert record
    for name, found in record.items():
        run = json.loads((ROOT / "benchmarks/results/h200" / found["run"]).read_text())
        cases = {(c["size"], c["layout"]): c["times"][name] for c in run["cases"]
                 if name in c["times"]}  # fmt: skip
        assert found["cases"] == {
            key: (times["tflops"], pytest.approx(times["share"])) for key, times in cases.items()
        }
    for stage in STAGES:
        text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
        if stage.name in record:
            for speed, share in record[stage.name]["cases"].values():
                assert f"{speed:.1f} ({share:.0%})" in text
            assert record[stage.name]["run"] in text
        else:
            assert "No run in `benchmarks/results/h200` has this stage yet." in text


def test_the_newest_run_that_has_a_stage_counts(maker, monkeypatch, tmp_path):
    def case(**times):
        reference = times["torch.mm"]
        told = {n: {"tflops": t, "share": t / reference} for n, t in times.items()}
        return {"size": 4096, "layout": "NN", "times": told}

    def record(date, cases):
        return json.dumps({"date": date, "device": "d", "torch": "t", "cases": cases})

    (tmp_path / "h200").mkdir()
    older = [case(**{"torch.mm": 50.0, "a": 10.0, "b": 5.0})]
    newer = [case(**{"torch.mm": 40.0, "a": 20.0})]
    (tmp_path / "h200" / "z.json").write_text(record("2026-01-01", older))
    (tmp_path / "h200" / "a.json").write_text(record("2026-02-01", newer))
    (tmp_path / "h200" / "other.json").write_text('{"benchmarks": []}')
    monkeypatch.setattr(maker, "RESULTS", tmp_path)
    found = maker.measured()
    assert found["a"]["cases"][4096, "NN"] == (20.0, 0.5)
    assert (found["a"]["run"], found["b"]["run"]) == ("a.json", "z.json")
    assert found["b"]["cases"][4096, "NN"] == (5.0, 0.1)


def test_predecessors_go_down_the_ladder(maker):
    before = maker.predecessors(STAGES)
    rungs = {stage.name: stage.rung for stage in STAGES}
    for stage in STAGES:
        if before[stage.name] is None:
            assert stage.name == "naive"
        else:
            assert rungs[before[stage.name].name] < stage.rung


def test_what_is_said_by_hand_is_of_stages_of_the_ladder(maker):
    from xgemm_torch import marks

    # A rung that is planned has a mark already.
    known = {stage.name for stage in STAGES} | set(marks.MARKS)
    known |= {"thread_tile_dot", "thread_tile_outer"}
    assert set(maker.lessons.LESSONS) <= known
    for name, older in maker.lessons.PREDECESSOR.items():
        assert {name, older or name} <= known
    assert not re.search(r"\d\.\d|\d%", " ".join(maker.lessons.LESSONS.values()))


def test_head_comment_body_and_difference(maker, monkeypatch, tmp_path):
    old, new = (replace(STAGES[0], name=n, file=f"{n}.cu") for n in ("one", "two"))
    text = (
        "// The idea,\n// in two lines.\n#include <x>\n\nnamespace n::one {{\n\nint f() {{\n"
        "  return {};\n}}\n\n// why\nstatic const Register stage(\n    kFlavour, {{.name = \"one\","
        "\n     .run = run}});\n\n}}  // namespace n::one\n"
    )  # fmt: skip
    (tmp_path / "one.cu").write_text(text.format(1))
    (tmp_path / "two.cu").write_text(text.replace("one", "two").format(2))
    monkeypatch.setattr(maker, "STAGES", tmp_path)
    assert maker.head_comment(text) == "The idea, in two lines."
    assert maker.difference(old, new) == [
        "@@ -2,5 +2,5 @@", "", " int f() {", "-  return 1;", "+  return 2;", " }", "",
    ]  # fmt: skip
    assert maker.code_lines(text.format(1)) == 9


def test_compile_report_is_of_every_built_stage(maker, known):
    stages = known["compiled"].get("stages", {})
    assert set(stages) == {stage.name for stage in STAGES}
    for stage in STAGES:
        for kernel in stages[stage.name]:
            tile = stage.tiles[kernel["tile"]]
            assert kernel["registers"] * tile.threads * kernel["blocks_per_sm"] <= 65536
            assert kernel["blocks_per_sm"] >= tile.min_blocks and kernel["local"] == 0


def test_compile_report_agrees_with_this_builds_logs(maker, known):
    fresh = maker.compile_report()
    if fresh["nvcc"] != known["compiled"].get("nvcc") or set(fresh["stages"]) != {
        stage.name for stage in STAGES
    }:
        pytest.skip("this tree has no CUDA objects of that nvcc")
    assert fresh == known["compiled"]


def test_command_checks_and_writes(maker, known, quick_pictures, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(maker, "gather", lambda: known)
    assert maker.main(["--check"]) == 0
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(maker, "ROOT", tmp_path)
    monkeypatch.setattr(maker, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(maker, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(maker, "COMPILED", tmp_path / "compile.json")
    assert maker.main(["--check"]) == 1
    assert "pages/README.md: stale" in capsys.readouterr().out
    assert maker.main([]) == 0
    assert f"{len(STAGES) + 1} pages" in capsys.readouterr().out
    assert maker.main(["--check"]) == 0
