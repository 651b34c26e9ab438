"""docs/ladder is what docs/make_ladder.py makes of today's stages, counts and results."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import xgemm_torch
from xgemm_torch.course import arithmetic, newcomer, stage_code
from xgemm_torch.course.exercises.exercise import exercises

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
STAGES = xgemm_torch.stages()
FILES = list((ROOT / "csrc" / "xgemm" / "stages").glob("*/*.cu"))

pytestmark = pytest.mark.skipif(
    len(STAGES) < len(FILES), reason="this build leaves stages out; the pages are of all"
)


@pytest.fixture(scope="module")
def maker():
    return importlib.import_module("make_ladder")


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
    (tmp_path / "images" / "07_smem_conflicted_1d-tile.svg").write_text("as rung 5's")
    assert maker.stale(mine, known)[-1] == "images/07_smem_conflicted_1d-tile.svg: on no page"
    maker.write(mine, known)
    assert maker.stale(mine, known) == []
    assert not (tmp_path / "docs" / "99_gone.md").exists()
    assert not (tmp_path / "images" / "07_smem_conflicted_1d-tile.svg").exists()


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


def test_links_to_a_section_find_it(pages):
    """As GitHub names headings: small letters, no marks but hyphens, blanks as hyphens."""
    checked = 0
    for path, text in pages.items():
        for target, section in re.findall(r"\]\(([^)#:]+\.md)#([^)]+)\)", text):
            at = path.parent / target
            there = pages.get(at) or at.read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)$", there, re.MULTILINE)
            names = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert section in names, (path.name, target, section)
            checked += 1
    assert checked > 40


# --- what a page teaches --------------------------------------------------------------------------

LINES = 150


# A new rung needs neither exercises nor formulas of its own.
OF_TODAY = {*newcomer.READING, *newcomer.MORE_EXERCISES} - {"gemv"}


def rungs():
    return [stage for stage in STAGES if stage.rung]


def test_pages_are_short(pages):
    for page, text in pages.items():
        assert len(text.splitlines()) <= LINES, page.name


def test_words_of_the_path_are_of_stages():
    assert {stage.name for stage in rungs()} >= OF_TODAY and len(OF_TODAY) >= 22


def test_the_path_is_ten_rungs_in_order(maker, pages):
    names = [stage.name for stage in STAGES if newcomer.step(stage)]
    assert names == [*newcomer.PATH] and len(names) == 10
    index = pages[maker.PAGES / "README.md"]
    for stage in rungs():
        text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
        step, after = newcomer.step(stage), newcomer.following(stage, STAGES)
        assert (f"**Step {step} of 10**" in text) == (step > 0)
        assert (f"| {step} | [{stage.rung} `{stage.name}`]" in index) == (step > 0)
        assert (f"| **{stage.rung}** | [`{stage.name}`]" in index) == (step > 0)
        if after:
            assert newcomer.step(after) and after.rung > stage.rung
            assert (
                f"Next on the path: [{after.rung} `{after.name}`]({maker.stem(after)}.md)" in text
            )
    assert newcomer.following(STAGES[0], STAGES).name == "coalesced"
    assert newcomer.following(next(s for s in STAGES if s.name == "wgmma_fp16x3"), STAGES) is None


def test_there_is_something_to_do_and_to_read_on_each_rung(maker, pages):
    known = {each.stem[3:] for each in exercises()}
    stages = {stage.name for stage in STAGES}
    for name, more in newcomer.MORE_EXERCISES.items():
        assert name in stages and set(more) <= known
    assert set(newcomer.READING) <= stages
    shown = set()
    for stage in STAGES:
        text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
        found = [int(n) for n in re.findall(r"`python -m xgemm_torch exercise (\d+)`", text)]
        assert found == [each.number for each in newcomer.exercises_of(stage)]
        if stage.name in OF_TODAY:
            assert len(found) == newcomer.MOST_EXERCISES == 3, stage.name
        if newcomer.following(stage, STAGES) or stage.name in newcomer.READING:
            section = text.partition("## Read next\n\n")[2].partition("\n\n")[0]
            assert 1 <= len(section.splitlines()) <= 3, stage.name
        shown |= set(found)
    assert shown == {each.number for each in exercises()}


@pytest.mark.parametrize("stage", rungs(), ids=lambda stage: stage.name)
def test_what_is_derived_by_hand_is_what_is_counted(maker, known, pages, stage):
    """For today's rungs; the page of a new one says so where its schedule is another."""
    told = known["counts"][stage.name]
    text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
    lines = arithmetic.of(known["anatomy"][stage.name])
    compared = [line for line in lines if line.key]
    for line in lines:
        assert f"- **{line.name}**: `{line.formula}`" in text
        assert line.numbers in text
    if stage.name in OF_TODAY and stage.strict and told["counted"]:
        assert {line.key for line in compared} >= {"loads_per_fma", "sectors", "flop_per_byte"}
        assert stage.tiles[0].buffers == 0 or any("shared" in line.key for line in compared)
        for line in compared:
            assert line.value == pytest.approx(told[line.key], rel=1e-6), line.name
        assert "asks for more or less" not in text


def test_a_ring_by_hand_is_the_shared_memory_of_the_tile(known):
    checked = 0
    for stage in rungs():
        for line in arithmetic.of(known["anatomy"][stage.name]):
            if line.name == "KiB of slices in the ring":
                tile = known["anatomy"][stage.name].tile
                assert 0 <= tile.smem - 1024 * line.value <= 0.05 * tile.smem  # padding
                checked += 1
    assert checked >= 5


def test_a_schedule_that_is_not_its_tiles_is_said(maker, known):
    """As of a new stage for which a formula does not hold."""
    stage = next(s for s in STAGES if s.name == "block_tile_2d")
    other = dict(known, counts=dict(known["counts"]))
    other["counts"]["block_tile_2d"] = dict(known["counts"]["block_tile_2d"], loads_per_fma=0.5)
    text = "\n".join(maker.teaching.counted_section(stage, None, other))
    assert (
        "| loads per multiply-add | 0.500 | 0.266, and its schedule asks for more or less |" in text
    )


def test_a_new_rung_needs_no_word_elsewhere(maker, known):
    old = next(s for s in STAGES if s.name == "warp_tiled")
    new = replace(old, name="my_stage", rung=40)
    drawn = replace(known["anatomy"]["warp_tiled"], stage=new)
    told = {"anatomy": {"my_stage": drawn}, "measured": {},
            "counts": dict(known["counts"], my_stage=known["counts"]["warp_tiled"])}  # fmt: skip
    ladder = [*STAGES, new]
    assert maker.teaching.path_line(new, ladder) == ["Beside [the path](README.md#the-path).", ""]
    text = "\n".join(maker.teaching.counted_section(new, old, told))
    assert "| gmem sectors | 2.0 | 2.0 | 2.0 |" in text and "more or less" not in text
    for section in (maker.teaching.exercises_section(new), maker.teaching.snippet_section(new)):
        assert section == []
    assert maker.teaching.next_section(new, ladder) == []
    assert maker.teaching.rung_cell(new) == "40"


def test_a_rung_that_is_measured_above_its_counts_says_why(maker, known, pages):
    for stage in rungs():
        told = known["counts"][stage.name]
        if not (stage.strict and told["counted"] and stage.name in known["measured"]):
            continue
        fp32, l1 = arithmetic.cycles(told)
        most = maker.marks.H200_ROOFS["fp32_tflops"] * min(1.0, fp32 / l1)
        measured = known["measured"][stage.name]["cases"][4096, "NN"][0]
        text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
        assert f"{most:.1f} TFLOP/s on an H200" in text and f"{measured:.1f} are measured" in text
        assert ("joined reads of the source" in text) == (measured > most)


def test_early_pages_have_the_idea_in_few_lines(maker, pages):
    for stage in STAGES:
        text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
        snippet = maker.teaching.listings.snippets().get(stage.name)
        assert ("## The idea in few lines" in text) == (snippet is not None)
        if snippet:
            assert "\n".join(snippet.shown) in text
            assert text.index("The idea in few lines") < text.index("## The schedule")
    shown = {s.name for s in STAGES} & set(maker.teaching.listings.snippets())
    assert shown >= {"naive", "coalesced", "smem_tiled", "block_tile_1d", "block_tile_2d"}


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
        facts = {"date": date, "device": "d", "torch": "t"}
        return json.dumps({"facts": facts, "marks": {}, "cases": cases})

    (tmp_path / "h200").mkdir()
    older = [case(**{"torch.mm": 50.0, "a": 10.0, "b": 5.0})]
    newer = [case(**{"torch.mm": 40.0, "a": 20.0})]
    (tmp_path / "h200" / "z.json").write_text(record("2026-01-01", older))
    (tmp_path / "h200" / "a.json").write_text(record("2026-02-01", newer))
    (tmp_path / "h200" / "other.json").write_text('{"ranks": 2, "cases": [{"name": "a layer"}]}')
    monkeypatch.setattr(maker, "RESULTS", tmp_path)
    found = maker.measured()
    assert found["a"]["cases"][4096, "NN"] == (20.0, 0.5)
    assert (found["a"]["run"], found["b"]["run"]) == ("a.json", "z.json")
    assert found["b"]["cases"][4096, "NN"] == (5.0, 0.1)


def test_predecessors_go_down_the_ladder(maker):
    before = maker.predecessors(STAGES)
    assert before[STAGES[0].name] is None
    for stage in STAGES[1:]:
        # A specialist may be read against another.
        assert before[stage.name] is not stage
        assert not stage.rung or 0 < before[stage.name].rung < stage.rung


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_head_comment_has_an_idea_a_lesson_and_tags_that_hold(stage):
    head = stage_code.head(stage)
    assert head.idea and head.lesson
    assert set(head.tags) <= set(stage_code.TAGS)
    named, why = head.against
    names = [other.name for other in STAGES]
    if named or not stage.rung:
        assert named in names and why
        assert not stage.rung or named != names[names.index(stage.name) - 1]  # else needs no word
    assert (stage.max_sm > 0) == ("arch" in head.tags)
    assert all(paragraph == paragraph.strip() for paragraph in head.lesson)


def test_tags_of_a_head_comment():
    text = (
        "// An idea,\n// in two lines.\n//\n// A lesson.\n//\n// against: naive, as it is\n"
        "//   simple\n// first: f in mainloop/x.h\n// registers: 40 and 232, as launched\n\n// x\n"
    )
    head = stage_code.parse_head(text)
    assert (head.idea, head.lesson) == ("An idea, in two lines.", ("A lesson.",))
    assert head.against == ("naive", "it is simple")
    assert head.first == ("f", "mainloop/x.h")
    assert head.registers == [(40, 232), None]
    assert stage_code.parse_head("#include <x>\n") == stage_code.Head("", (), {})


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_figures_of_a_lesson_are_the_codes(maker, stage):
    """The others are filled in from counts and measurements."""
    for figure in re.findall(r"\d+\.\d+|\d+%", "\n".join(stage_code.head(stage).lesson)):
        assert figure in "\n".join(maker.code(stage)), figure


def test_a_lesson_is_filled_in(maker, known):
    record = known["measured"]["coalesced"]["cases"][4096, "NN"][0]
    text = "It has {coalesced@4096}, {coalesced.sectors}, {coalesced.occupancy}."
    told = known["counts"]["coalesced"]["sectors"]
    assert maker.fill(text, known) == f"It has {record:.1f}, {told:.1f}, 100%."
    with pytest.raises(KeyError):
        maker.fill("{nope@4096}", known)


def test_what_lessons_compare_is_so(known):
    measured = {name: found["cases"] for name, found in known["measured"].items()}
    speed = {s.name: measured.get(s.name, {}).get((4096, "NN"), (0,))[0] for s in STAGES}
    # thread_tile_dot: no more speed than the rung before. smem_tiled: rung 11 is the first above 4.
    assert speed["thread_tile_dot"] < speed["coalesced"]
    assert speed["smem_tiled"] < speed["thread_tile_outer"]
    above = [s.rung for s in STAGES if s.rung > 4 and speed[s.name] > speed["thread_tile_outer"]]
    assert min(above) == 11
    registers = {n: k[0]["registers"] for n, k in known["compiled"]["stages"].items()}
    assert registers["smem_conflicted"] == registers["smem_conflicted_1d"]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_the_legend_names_each_template_argument(maker, known, stage):
    kernels = known["compiled"]["stages"][stage.name]
    names = maker.template_arguments(stage, kernels)
    assert set(names) <= set(maker.words.ARGUMENTS)
    for kernel in kernels:
        if "<" in kernel["kernel"]:
            assert kernel["kernel"].count(",") + 1 == len(names)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_registers_that_are_dealt_out_are_those_of_the_launch(maker, known, stage):
    dealt = stage_code.head(stage).registers
    assert bool(dealt) == ("registers_up<" in "\n".join(maker.code(stage)))
    if not dealt:
        return
    assert len(dealt) == len(stage.tiles)
    for kernel in known["compiled"]["stages"][stage.name]:
        tile = stage.tiles[kernel["tile"]]
        if dealt[kernel["tile"]]:
            less, more = dealt[kernel["tile"]]
            shared = less * tile.producers + more * (kernel["threads"] - tile.producers)
            assert shared == kernel["registers"] * kernel["threads"]
            assert all(re.search(rf"\b{n}\b", "\n".join(maker.code(stage))) for n in (less, more))


def test_a_command_shows_what_changed_and_no_page_does(maker, known, pages):
    shown = set()
    for stage in STAGES:
        text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
        before = known["before"][stage.name]
        assert "```diff" not in text
        command = f"```bash\npython -m xgemm_torch ladder --diff {stage.name}\n```"
        assert (command in text) == (before is not None)
        if "What to read first" in text:
            shown.add(stage.name)
            file, first, lines = maker.core(stage)
            assert f"What to read first, in `{file}`" in text
            assert lines[-1].strip() == "}"
            listed = "\n".join(lines) in text
            assert listed == (len(lines) <= maker.LISTED)
            assert listed or f"{file}#L{first}-L{first + len(lines) - 1})" in text
            code = re.sub(r"//.*", "", "\n".join(lines))
            assert code.count("{") == code.count("}")
    assert shown == {s.name for s in STAGES if stage_code.head(s).first[0]}


@pytest.mark.parametrize("name", [stage.name for stage in STAGES if not stage.rung])
def test_problems_of_a_page_are_of_the_record(maker, known, pages, name):
    (stage,) = (s for s in STAGES if s.name == name)
    problems = known["selected"]["problems"]
    new = not any(name in best for _, best in problems.values())
    text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
    section = text.partition("## The problems that it is for")[2].partition("## ")[0]
    rows = re.findall(
        r"^\| ([\w -]+) \| .* \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| .* \| .* \| (yes|no) \|$",
        section,
        re.MULTILINE,
    )
    assert bool(rows) != new and len(rows) <= maker.TELLING
    if new:
        assert "no run of all stages with it yet" in " ".join(section.split())
        return
    for label, mine, reference, ratio, first in rows:
        mm, best = problems[label]
        assert (mine, reference) == (f"{best[name]:.1f}", f"{mm:.1f}")
        assert ratio == f"{mm / best[name]:.2f}"
        assert (first == "yes") == (best[name] == min(best.values()))
    firsts = sum(name in best and best[name] == min(best.values()) for _, best in problems.values())
    assert f"of all in {firsts or 'none'}" in section


def test_a_picture_that_looks_like_an_earlier_ones_is_a_link(maker, known, pages):
    drawn = {path.name for path in maker.drawings(known)}
    linked = 0
    for stage in STAGES:
        text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
        for name, title, first in known["pictures"][stage.name]:
            file = f"{maker.stem(stage)}-{name}.svg"
            assert STAGES.index(first) <= STAGES.index(stage)
            assert (f"/{file})" in text) == (file in drawn) == (first is stage)
            if first is not stage:
                assert f"{title}: the picture is that of [`{first.name}`]" in text
                assert f"{maker.stem(first)}-{name}.svg" in drawn
                linked += 1
    assert linked > 20


def test_pictures_have_names_of_their_own(pages):
    said = [alt for text in pages.values() for alt in re.findall(r"!\[(.*?)\]\(", text)]
    assert said and len(said) == len(set(said))


def test_every_source_with_an_address_is_linked(maker, pages):
    index = pages[maker.PAGES / "README.md"]
    for system in maker.sources.SYSTEMS.values():
        assert maker.cite(system) in index
        assert system.author in index and system.note in index


def test_a_stage_without_a_published_kernel_says_whose_it_is(maker, pages):
    for stage in STAGES:
        if not maker.sources.of_stage(stage.name):
            text = pages[maker.PAGES / f"{maker.stem(stage)}.md"]
            assert "## Where it comes from\n\nThis project" in text


def test_head_comment_and_difference(maker, monkeypatch, tmp_path):
    old, new = (replace(STAGES[0], name=n, file=f"{n}.cu") for n in ("one", "two"))
    text = (
        "// The idea,\n// in two lines.\n#include <x>\n\nnamespace n::one {{\n\nint f() {{\n"
        "  return {};\n}}\n\n// why\nstatic const Register<run> stage(\n"
        "    kFlavour, {{.name = \"one\",\n     .rung = 1}});\n\n}}  // namespace n::one\n"
    )  # fmt: skip
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "one.cu").write_text(text.format(1))
    (tmp_path / "stages" / "two.cu").write_text(text.replace("one", "two").format(2))
    monkeypatch.setattr(stage_code, "SOURCE", tmp_path)
    assert stage_code.parse_head(text).idea == "The idea, in two lines."
    assert stage_code.difference(old, new) == [
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


def test_every_link_leads_to_a_file():
    for page in sorted((ROOT / "docs" / "ladder").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
