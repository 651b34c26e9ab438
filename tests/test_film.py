"""Films of the ladder: their data are what the emulator counts, for every stage."""

from __future__ import annotations

import dataclasses
import functools
import json
import re

import numpy as np
import pytest

from xgemm_torch import registry, simt
from xgemm_torch.__main__ import main
from xgemm_torch.course import stage_code
from xgemm_torch.course.film import command, data, page, requests, schedule

STAGES = {stage.name: stage for stage in registry.stages()}
LIMIT = 400_000  # bytes of a page
RINGS = ("tma_specialized", "tma_split_k", "tma_gemv", "wgmma_fp16x3", "wgmma_bf16x6")

pytestmark = pytest.mark.skipif(
    len(STAGES) < len(list(stage_code.SOURCE.glob("stages/*/*.cu"))),
    reason="this build leaves stages out; films are of all",
)


@functools.cache
def film(name: str) -> data.Film:
    """A stage's film; of a stage without one, it must be said of which, and then nothing is run."""
    try:
        return data.make(STAGES[name])
    except data.CannotFilm as why:
        assert name in str(why)
        pytest.skip(str(why))


def decoded(content: dict, number: int) -> tuple:
    """A step as the page reads it: kind, warp, lanes, places in both memories."""
    t = content["templates"][content["steps"]["t"][number]]
    lanes = [lane for lane in range(32) if t[2] >> lane & 1]
    ends = []
    for column, pattern in (("g", t[5]), ("s", t[6])):
        base = content["steps"][column][number]
        relative = content["patterns"][pattern] if pattern >= 0 else [-1] * len(lanes)
        ends.append([base + p if p >= 0 else -1 for p in relative])
    return content["kinds"][t[0]], content["steps"]["w"][number], lanes, *ends


@pytest.mark.parametrize("name", STAGES)
def test_a_film_asks_of_the_memories_what_the_emulator_counts(name):
    made = film(name)
    total = sum(map(made.counts, range(len(made.launches))), simt.Counts())
    blocks = max(np.prod(each.grid) for each in made.trace.launches)
    with simt.configure(row=made.row, sm_count=1 if name == "gemv" else None):
        for block in range(1, int(blocks)):  # of launches with more of them than the film has
            trace = simt.trace(
                name, *data.shape_of(made.stage, made.row), block=block, asynchronous=True
            )
            for launch in range(len(trace.launches)):
                warps = requests.programs(trace, launch)
                total = total + requests.count([each for warp in warps for each in warp])
        told = simt.traffic(name, *data.shape_of(made.stage, made.row))
    assert total == told.total


@pytest.mark.parametrize("name", STAGES)
def test_a_film_is_what_was_traced_in_an_order_that_barriers_allow(name):
    made = film(name)
    events = 0
    for program, launch in zip(made.launches, made.schedules, strict=True):
        assert launch.forced == 0
        seen = [step.request for step in launch.steps if step.request is not None]
        events += sum(len(each.lanes) for each in seen)
        for warp, mine in enumerate(program):  # each warp's own order is kept
            assert [each for each in seen if each.warp == warp] == mine
        # Nobody goes on before all have come to a barrier.
        arrivals = {}
        for each in seen:
            if each.kind == "barrier":
                arrivals[each.phase] = arrivals.get(each.phase, 0) + len(each.lanes)
        here = dict.fromkeys(arrivals, 0)
        for each in seen:
            assert all(here[p] == arrivals[p] for p in arrivals if p < each.phase)
            if each.kind == "barrier":
                here[each.phase] += len(each.lanes)
        # What TMA was asked for lands, and no mbarrier is left in the middle of a phase.
        boxes = [step.box for step in launch.steps if step.request is None and step.box >= 0]
        asked = [each.number for each in seen if each.kind == "tma"]
        assert sorted(boxes) == sorted(asked)
        last = {state[0]: state for step in launch.steps for state in step.changed}
        counts = {e.smem[0]: e.bytes for e in seen if e.kind == "mbarrier init"}
        assert all(size == 0 for _, _, _, size in last.values())
        if name in RINGS:
            assert all(last[at][2] == count for at, count in counts.items())
    assert events == len(made.trace)


@pytest.mark.parametrize("name", STAGES)
def test_the_page_has_every_step_and_its_line(name):
    made = film(name)
    content = json.loads(json.dumps(made.content))
    steps = [step for each in made.schedules for step in each.steps]
    assert len(content["steps"]["t"]) == len(steps)
    for number, step in enumerate(steps):
        each = step.request
        kind, warp, lanes, gmem, smem = decoded(content, number)
        if each is None:
            assert (kind, warp) == ("landing", step.warp)
            continue
        assert (kind, warp, lanes) == (each.kind, each.warp, each.lanes.tolist())
        assert (gmem, smem) == (each.gmem.tolist(), each.smem.tolist())
    lines = {file: len(text.splitlines()) for file, text in content["files"].items()}
    assert content["file"] in lines
    for place, (told, *frames) in zip(made.trace.places, content["places"], strict=True):
        assert place.at in (frames[0], frames[-1]) and place.via in ("", frames[-1])
        assert 0 <= told < len(frames)
        for frame in frames:
            file, _, line = frame.rpartition(":")
            assert 1 <= int(line) <= lines[file]


def test_a_line_of_the_main_loop_is_shown_where_a_header_has_it():
    """A copy of the ring: the loop asks for it, in a function of a header that the stage calls."""
    made = film("cp_async_pipelined")
    copies = {r.place for warp in made.launches[0] for r in warp if r.kind == "copy issue"}
    assert copies
    for place in copies:
        told, *frames = made.content["places"][place]
        assert frames[0].startswith("19_cp_async_pipelined.cu:")
        assert frames[told].startswith("multistage.h:") and told < len(frames) - 1


@pytest.mark.parametrize("name", STAGES)
def test_a_page_is_small_and_fetches_nothing(name):
    text = page.film(film(name), list(STAGES.values()))
    assert len(text.encode()) < LIMIT
    outside = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    assert not re.search(r"https?:|\bfetch\(|XMLHttpRequest|@import|url\(|import\(", outside)
    assert text.count("</script>") == 2


def test_a_conflict_is_in_the_film_of_the_stage_that_has_one():
    found = {name: film(name).counts(0) for name in ("smem_conflicted", "smem_transposed")}
    conflicted = found["smem_conflicted"].shared_load + found["smem_conflicted"].shared_store
    transposed = found["smem_transposed"].shared_load + found["smem_transposed"].shared_store
    assert conflicted.conflicts > 0 and conflicted.ways > 1
    assert transposed.conflicts < conflicted.conflicts


def test_boxes_of_tma_cover_the_operand():
    made = film("tma_specialized")
    assert {box.operand for box in made.trace.boxes} == {"B"}
    covered = set()
    for box in made.trace.boxes:
        assert box.base == 0 and box.element == 4 and box.stride[0] == 4 * made.trace.n
        columns, rows, _ = (range(at, at + n) for at, n in zip(box.at, box.box, strict=True))
        covered |= {(i, j) for i in rows for j in columns}
    assert covered == {(i, j) for i in range(made.trace.k) for j in range(made.trace.n)}


def test_wgmmas_multiply_what_the_scheme_asks_for():
    """Two limbs: three products; 16 deep each; a slice of both operands lies in a slot."""
    made = film("wgmma_fp16x3")
    mine = [r for w in made.launches[1] for r in w if r.kind == "wgmma"]
    warps = {each.warp for each in mine}
    of_one = [each for each in mine if each.warp == min(warps)]
    assert len(warps) == 4 and len(mine) == 4 * len(of_one)
    assert len(of_one) == 3 * made.trace.k // 16
    smem = sum(array.bytes for array in made.trace.launches[1].arrays)
    for product in made.trace.products:
        assert product.columns == made.trace.n
        assert 0 <= product.a < smem and 0 <= product.b < smem


def test_a_trace_has_what_threads_start_only_when_asked():
    plain = simt.trace("tma_gemv", 1, 384, 64)
    more = simt.trace("tma_gemv", 1, 384, 64, asynchronous=True)
    first = simt.KINDS.index("tma")
    assert plain.boxes == plain.products == ()
    assert int(plain.column("kind").max()) < first <= int(more.column("kind").max())
    # Nothing of it goes where a plain trace has other events.
    kept = more.table[more.column("kind") < first]
    columns = [simt.COLUMNS.index(name) for name in simt.COLUMNS if name != "place"]
    assert kept[:, columns].equal(plain.table[:, columns])
    announced = more.where(kind="mbarrier arrival").column("bytes").sum()
    assert announced == more.where(kind="tma").column("bytes").sum() > 0


def test_lanes_that_part_are_put_into_one_order():
    arrays = [np.array(x) for x in ([1, 2, 3, 9], [2, 3, 4, 9], [2, 4, 9])]
    merged = requests._merged(arrays)
    assert sorted(merged) == [1, 2, 3, 4, 9]
    for lane in arrays:
        assert sorted(lane.tolist(), key=merged.index) == lane.tolist()
    assert sorted(requests._merged([np.array([1, 2]), np.array([2, 1])])) == [1, 2]  # a circle


def test_warps_that_wait_for_what_does_not_come_are_told():
    made = film("tma_gemv")
    program = [[r for r in warp if r.kind != "tma"] for warp in made.launches[0]]
    assert schedule.replay(program, made.trace, 0).forced > 0


@pytest.mark.parametrize(("kind", "after"), [("barrier", 1), ("named barrier", 0)])
def test_a_warp_waits_for_one_that_comes_late(kind, after):
    """Of two warps one has five loads before the barrier, the other one."""
    none = np.full(32, -1)

    def request(kind, warp, phase=0):
        lanes, number = np.arange(32), 1 if kind == "named barrier" else -1
        return requests.Request(kind, warp, 0, phase, lanes, 64, "", none, none, number)

    program = [
        [*(request("shared load", warp) for _ in range(loads)), request(kind, warp),
         request("shared store", warp, after)]
        for warp, loads in enumerate((1, 5))
    ]  # fmt: skip
    made = schedule.replay(program, film("naive").trace, 0)
    kinds = [step.request.kind for step in made.steps]
    assert made.forced == 0 and len(kinds) == 10
    assert kinds.index("shared store") > len(kinds) - 1 - kinds[::-1].index(kind)


def test_a_stage_in_clusters_alone_says_why_it_has_no_film():
    stage = STAGES["wgmma_fp16x3"]
    alone = dataclasses.replace(stage, tiles=tuple(t for t in stage.tiles if t.cluster > 1))
    with pytest.raises(data.CannotFilm, match="wgmma_fp16x3 is made by a cluster of blocks"):
        data.make(alone)
    text = page.index([(STAGES["naive"], 5)], [(alone, "film: none of wgmma_fp16x3")])
    assert "film: none of wgmma_fp16x3" in text


def test_without_sources_it_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(stage_code, "SOURCE", tmp_path)
    assert main(["film", "naive", "--out", str(tmp_path / "out")]) == 2
    assert "needs the sources of a checkout" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_writes_what_was_asked_for(tmp_path, capsys):
    assert main(["film", "2", "gemv", "--out", str(tmp_path)]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "02_coalesced.html", "gemv.html", "index.html",
    ]  # fmt: skip
    assert "open it in a browser" in capsys.readouterr().out
    index = (tmp_path / "index.html").read_text()
    assert re.findall(r'href="(\w+\.html)"', index) == ["02_coalesced.html", "gemv.html"]
    assert 'href="gemv.html"' in (tmp_path / "02_coalesced.html").read_text()


def test_a_stage_that_there_is_not(capsys):
    assert main(["film", "coalesce"]) == 2
    assert "no stage coalesce; did you mean coalesced?" in capsys.readouterr().err
    assert [s.name for s in command.chosen([], registry.stages())] == list(STAGES)
