"""docs/chapter-0.md and the kernels of docs/snippets: compiled, run, and as the page says."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import xgemm_torch
from xgemm_torch.course import anatomy
from xgemm_torch.course.exercises import measure

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "chapter-0.md"
STAGES = xgemm_torch.stages()
FILES = list((ROOT / "csrc" / "xgemm" / "stages").glob("*/*.cu"))
SNIPPETS = sorted(path.stem for path in (ROOT / "docs" / "snippets").glob("*.cu"))
all_stages = pytest.mark.skipif(
    len(STAGES) < len(FILES), reason="this build leaves stages out; the page shows some"
)


@pytest.fixture(scope="module")
def maker():
    return importlib.import_module("make_chapter_0")


@pytest.fixture(scope="module")
def listings(maker):
    return maker.listings


# --- the kernels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_is_right_to_the_bit_or_counted(listings, name):
    snippet = listings.snippets()[name]
    assert 5 <= len(snippet.shown) <= 24
    assert all(len(line) <= 100 for line in snippet.text.splitlines())
    if snippet.said("problems"):
        answers = snippet.checks()
        assert len(answers) == 2 * len(snippet.said("problems"))
        assert all(answer == {"kind": "good"} for answer in answers), answers
    else:
        assert snippet.counts().fmas > 0 and snippet.tags


@pytest.mark.parametrize(
    ("name", "text", "instead", "kind"),
    [
        ("naive", "B[k * N + column]", "B[column * K + k]", "bits"),
        ("smem_tiled", "    __syncthreads();  // all have read before", "    //", "error"),
        ("block_tile_2d", "fmaf(a[r], b[c], acc[r][c])", "acc[r][c] + a[r] * b[c]", "bits"),
        ("machine_barrier", "63 - j % 64", "j % 64", "bits"),
    ],
)  # fmt: skip
def test_a_snippet_that_is_wrong_is_noticed(listings, tmp_path, name, text, instead, kind):
    right = listings.snippets()[name]
    assert text in right.text
    path = tmp_path / right.path.name
    path.write_text(right.text.replace(text, instead))
    assert kind in {answer["kind"] for answer in listings.Snippet(path).checks()}


def test_a_tag_that_no_line_has_is_an_error(listings):
    with pytest.raises(LookupError, match=r"no line ends with // \(nowhere\)"):
        listings.snippets()["machine_banks"].places("nowhere")


# --- the page -------------------------------------------------------------------------------------


@all_stages
def test_the_page_and_its_pictures_are_up_to_date(maker):
    assert maker.stale() == [], "run: python docs/make_chapter_0.py"


@all_stages
def test_a_figure_or_picture_that_is_changed_is_noticed(maker, tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    path = tmp_path / PAGE.name
    for said in ("8 wavefronts, 7", "2 requests"):
        assert said in text
        path.write_text(text.replace(said, said.replace(said[0], "9", 1), 1), encoding="utf-8")
        assert maker.stale(path) == [f"{PAGE.name}: stale"]
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(maker, "IMAGES", tmp_path)
    assert maker.stale(path) == [f"chapter-0-{name}.svg: stale" for name in maker.drawn()]


def test_what_is_drawn_is_what_is_counted(maker, monkeypatch):
    maker.check_indices()
    monkeypatch.setitem(maker.LOADS, "second", ("x[2 * lane]", lambda lane: 3 * lane))
    with pytest.raises(ValueError, match="sectors are drawn"):
        maker.check_indices()
    monkeypatch.undo()
    monkeypatch.setitem(maker.READS, "row", ("S[36 * lane]", lambda lane: 33 * lane))
    with pytest.raises(ValueError, match="wavefronts are drawn"):
        maker.check_indices()


def test_indices_of_pictures_are_those_of_the_source(maker):
    for name, of in (("machine_sectors", maker.LOADS), ("machine_banks", maker.READS)):
        source = "\n".join(maker.listings.snippets()[name].shown)
        for tag, (text, _) in of.items():
            assert re.search(rf"{re.escape(text)};\s+// \({tag}\)", source), tag


def test_the_page_is_short_and_its_figures_are_generated(maker):
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    names = [name for _, name, _ in maker.BLOCK.findall(text)]
    assert names == [*maker.BLOCKS] and text.count("<!-- figures:") == len(names)
    prose = maker.BLOCK.sub("", text)
    assert not re.search(r"\d ?%|\d ?[TG](?:FLOP|B)/s|\d\.\d|\d sectors?,", prose)


def test_barriers_that_are_left_out_are_reported(maker):
    told = maker.without()
    assert told[""] == ""
    assert "uninitialised" in told["stored"] and "race on shared memory" in told["read"]


@all_stages
def test_occupancy_by_hand_is_that_of_the_record(maker):
    """`maker.occupancy` raises where it is not."""
    rows = [line for line in maker.occupancy() if line.startswith("| [")]
    assert len(rows) == len(maker.OCCUPANCY)
    for name, row in zip(maker.OCCUPANCY, rows, strict=True):
        assert f"| **{maker.compiled()[name]['blocks_per_sm']}** |" in row


@all_stages
def test_what_the_prose_says_of_rungs_is_so(maker):
    """Sectors of rungs 1 and 2; the fastest of the table of occupancy has the fewest threads."""
    found = {s.name: s for s in STAGES}
    lanes = {
        name: maker.arithmetic.lanes(anatomy.of(found[name])) for name in ("naive", "coalesced")
    }
    assert lanes["naive"].a == 32 and lanes["coalesced"].b == 4
    threads = {n: k["blocks_per_sm"] * k["threads"] for n, k in maker.compiled().items()}
    assert max(threads, key=lambda name: maker.speeds()[name]) == min(threads, key=threads.get)
    text = PAGE.read_text(encoding="utf-8")
    assert (
        "with 32 sectors and with 4 a load" in text
        and "the fastest of these has the fewest" in text
    )


@all_stages
def test_roofs_bound_by_arithmetic(maker):
    """Of a kernel by hand: 2 words, a wavefront each for 32 multiply-adds, and no gmem."""
    fp32, l1 = maker.arithmetic.cycles({"shared_wavefronts": 62.5, "sectors": 0.0})
    assert (fp32, l1) == (7.8125, 62.5)
    fp32, l1 = maker.arithmetic.cycles({"shared_wavefronts": 0.0, "sectors": 33 / 32 * 1000})
    assert l1 == pytest.approx(33 / 32 * 250)
    assert measure.fmas("2x3x4") == 24
