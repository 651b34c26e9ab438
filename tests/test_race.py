"""``ladder --race`` and the counts behind it: by hand, in a terminal, a pipe, JSON, on a GPU."""

from __future__ import annotations

import io
import json

import pytest
import torch

import xgemm_torch
from xgemm_torch.__main__ import main
from xgemm_torch.course import counts, ladder, marks, race
from xgemm_torch.tools import environment, timing

STAGES = xgemm_torch.stages()
NAMES = [stage.name for stage in STAGES]
COUNTED = [stage.name for stage in STAGES if counts.is_counted(stage)]
NO_GPU = not torch.cuda.is_available()
without_gpu = pytest.mark.skipif(not NO_GPU, reason="with a GPU the race is of time")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(counts, "SHAPE", (128, 128, 32))
    return tmp_path


# Counts


def test_counts_of_stages_without_shared_memory():
    naive, coalesced = (counts.of(name, (64, 64, 16)) for name in ("naive", "coalesced"))
    for each in (naive, coalesced):
        assert each["loads_per_fma"] == 2 and each["shared_wavefronts"] == each["ways"] == 0
        assert each["lines"] == []
    # For 32 multiply-adds: 32 rows of A (a sector each) and one element of B; or one of A, and
    # 32 neighbours of B, four sectors.
    assert naive["sectors"] == pytest.approx(1000 * 33 / 32)
    assert coalesced["sectors"] == pytest.approx(1000 * 5 / 32)
    assert coalesced["sectors_per_request"] == 2.5
    assert coalesced["flop_per_byte"] == pytest.approx(2 * 32 / (5 * 32))
    assert coalesced["fma_per_transaction"] == pytest.approx(32 / 5)


def test_counts_of_a_stage_with_shared_memory():
    tiled = counts.of("smem_tiled", (64, 64, 64))
    # A warp's 32 multiply-adds: one broadcast of A, one row of B; and to fill the slices, two
    # stores of a word a thread for 32 multiply-adds a thread.
    assert tiled["shared_wavefronts"] == pytest.approx(1000 * (2 + 2 / 32) / 32)
    assert tiled["conflicts"] == 0 and tiled["ways"] == 1
    assert tiled["loads_per_fma"] == pytest.approx(2 + 2 / 32)
    assert tiled["sectors"] == pytest.approx(1000 * 2 * 4 / 32 / 32)


@pytest.mark.parametrize("stage", NAMES)
def test_counts_add_up(stage):
    for layout in timing.LAYOUTS:
        told = counts.of(stage, (128, 128, 32), layout)
        assert told["layout"] == layout and told["shape"] == [128, 128, 32]
        assert told["shared_ideal"] + told["conflicts"] == pytest.approx(told["shared_wavefronts"])
        fmas = 128 * 128 * 32
        by_line = sum(line["wavefronts"] for line in told["lines"]) / fmas * 1000
        assert by_line == pytest.approx(told["shared_wavefronts"])
        total = told["shared_wavefronts"] + told["sectors"]
        assert told["fma_per_transaction"] == pytest.approx(1000 / total)
        assert (told["ways"] > 1) == (told["conflicts"] > 0)


def test_counting_leaves_the_settings_alone():
    with xgemm_torch.simt.configure(seed=3) as before:
        counts.of.__wrapped__("naive", (32, 32, 4))
        with xgemm_torch.simt.configure() as after:
            assert after == before


# Without a GPU


@without_gpu
def test_race_of_counts_as_json(capsys, in_a_folder_of_its_own):
    assert main(["ladder", "--race", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gpu"] is False and facts["shape"] == [128, 128, 32]
    assert [row["name"] for row in facts["stages"]] == NAMES
    assert all(row["tflops"] is None and row["share"] is None for row in facts["stages"])
    assert all(row["counts"]["fma_per_transaction"] > 0 for row in facts["stages"])
    assert facts["png"] == "ladder-race-counts-128x128x32-NN.png"
    picture = in_a_folder_of_its_own / facts["png"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@without_gpu
def test_race_of_counts_in_a_pipe(capsys, in_a_folder_of_its_own):
    assert main(["ladder", "--race", "--size", "64", "--layout", "TN", "--png", "r.png"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    # What TMA moves is not counted, so whoever uses it is not in the race.
    assert [line.split()[0] for line in lines[: len(COUNTED)]] == COUNTED
    assert sum(line.endswith("FMA a transaction") for line in lines) == len(COUNTED)
    assert "nothing was timed" in text and "\x1b" not in text and "TFLOP" not in text
    assert "64 x 64 x 64, TN" in text
    assert (in_a_folder_of_its_own / "r.png").exists()


@without_gpu
def test_plain_ladder_shows_the_counts(capsys):
    assert main(["ladder", "--json", "--layout", "NT"]) == 0
    rows = json.loads(capsys.readouterr().out)["stages"]
    assert all(row["counts"]["layout"] == "NT" for row in rows)
    assert main(["ladder"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "What a product of 128 x 128 x 32, NN, asks for" in text
    assert "not how fast it is" in text and counts.LEGEND in text


@pytest.mark.parametrize("arguments", [["--size", "0"], ["--size", "-3"]])
def test_race_of_a_wrong_size(arguments, capsys):
    assert main(["ladder", "--race", *arguments]) == 2
    assert "size must be at least 1" in capsys.readouterr().err


def test_race_of_an_unknown_layout(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["ladder", "--race", "--layout", "XY"])
    assert stop.value.code == 2


def test_roofs_without_a_gpu_are_the_marks_board(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert race.roofs() == marks.H200_ROOFS


# Pictures


@pytest.mark.parametrize("timed", [True, False])
def test_no_number_of_a_roofline_lies_on_another(timed):
    from xgemm_torch.tools import plotting

    rows = [{**ladder.describe(stage), "counts": counts.of(stage.name)} for stage in STAGES]
    rows = [row for row in rows if row["counts"]["counted"] and row["rung"]]
    for number, row in enumerate(rows):
        # Pairs that lie on each other, and rows of near neighbours.
        row["tflops"] = 5.0 * 1.1 ** (number // 2) if timed else None
    figure = plotting.new_figure(13, 11)
    axes = figure.add_axes((0.56, 0.05, 0.42, 0.85))
    facts = {"gpu": timed, "torch_mm_tflops": 50.0, "roofs": marks.H200_ROOFS}
    plotting._roofline(axes, facts, rows)
    figure.canvas.draw()
    texts = [text for text in axes.texts if text.get_text()[0].isdigit()]
    rungs = [rung for text in texts for rung in text.get_text().split(", ")]
    assert sorted(rungs) == sorted(str(row["rung"]) for row in rows)
    extents = [text.get_window_extent() for text in texts]
    for number, one in enumerate(extents):
        for other in extents[:number]:
            assert not one.overlaps(other)
    assert any(text.get_text().startswith("copy 4.3 TB/s") for text in axes.texts)


# Boards


def test_bars_move_with_the_work_done():
    bars = race.Bars(["torch.mm", "one", "two"], "TFLOP/s")
    from rich.console import Console

    out = io.StringIO()
    bars.progress.live.console = Console(file=out, force_terminal=True, width=100)
    with bars:
        bars.show("one", 0.5, 10.0)
        bars.show("torch.mm", 1.0, 50.0)
        bars.show("two", 1.0, 25.0)
        tasks = {task.id: task for task in bars.progress.tasks}
        done = {name: tasks[number] for name, number in bars.tasks.items()}
    assert [done[name].completed for name in ("one", "torch.mm", "two")] == [5.0, 50.0, 25.0]
    assert {task.total for task in tasks.values()} == {50.0}
    assert "25.0 TFLOP/s" in out.getvalue() and "torch.mm" in out.getvalue()


def test_lines_come_when_a_contender_is_through(capsys):
    with race.Lines("TFLOP/s") as lines:
        lines.show("one", 0.9, 3.0)
        lines.show("two", 1.0, 4.0)
    assert capsys.readouterr().out.split() == ["two", "4.0", "TFLOP/s"]


@pytest.mark.parametrize(
    ("terminal", "quiet", "kind"),
    [(True, False, race.Bars), (False, False, race.Lines), (True, True, race.Board)],
)
def test_board_for_what_is_there(terminal, quiet, kind, monkeypatch):
    from rich.console import Console

    from xgemm_torch.tools import console

    monkeypatch.setattr(console, "console", lambda: Console(force_terminal=terminal))
    assert type(race.board(["a"], "x", quiet)) is kind


# On a GPU


class FakeClocks:
    """Clocks of a machine that has none."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def mark(self):
        pass

    def summary(self):
        return {"sm_mhz": {"p50": 1980.0}}


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose times are made up: stage number n takes 100 / (n + 1) ms, torch.mm 2 ms."""
    seen = {"layouts": [], "rounds": []}

    def interleaved(contenders, sets, *, rounds=9, after=None):
        seen["rounds"].append(rounds)
        samples = {name: [] for name in contenders}
        for number in range(1 if rounds == 1 else max(rounds.values())):
            for name in contenders:
                wanted = 1 if rounds == 1 else rounds[name]
                if number >= wanted:
                    continue
                place = 49 if name == "torch.mm" else NAMES.index(name)
                samples[name].append(0.1 / (place + 1))
                if after is not None:
                    after(name, samples[name], wanted)
        return samples

    def operands(m, n, k, layout):
        seen["layouts"].append(layout)
        return [(None, None)]

    def built(stage):
        return {**describe(stage), "cuda": True}

    describe = ladder.describe
    monkeypatch.setattr(ladder, "describe", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(environment, "device_name", lambda _: "NVIDIA Imaginary")
    monkeypatch.setattr(environment, "strict_reference", lambda: None)
    monkeypatch.setattr(timing, "Clocks", FakeClocks)
    monkeypatch.setattr(timing, "heat", lambda: None)
    monkeypatch.setattr(timing, "operands", operands)
    monkeypatch.setattr(timing, "interleaved", interleaved)
    monkeypatch.setattr(
        race, "roofs",
        lambda: {"fp32_tflops": 60.0, "l1_tbs": 30.0, "memory_tbs": 3.0, "of": "Imaginary"},
    )  # fmt: skip
    return seen


def test_race_on_a_gpu_as_json(gpu, capsys, in_a_folder_of_its_own):
    assert main(["ladder", "--race", "--json", "--layout", "TT"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gpu"] is True and facts["shape"] == [4096] * 3
    assert gpu["layouts"] == ["TT"] and gpu["rounds"][0] == 1
    for number, row in enumerate(facts["stages"]):
        assert row["share"] == pytest.approx((number + 1) / 50)
        assert row["tflops"] == pytest.approx(2 * 4096**3 / (0.1 / (number + 1)) / 1e12)
        assert row["mark"] is None  # marks are of NN
        assert row["counts"]["layout"] == "TT"
    assert (in_a_folder_of_its_own / "ladder-race-4096x4096x4096-TT.png").exists()


def test_race_on_a_gpu_as_text(gpu, capsys, in_a_folder_of_its_own):
    assert main(["ladder", "--race", "--png", "race.png"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    # Whoever has fewest rounds is through first; all are through once.
    through = [line.split()[0] for line in lines[: len(NAMES) + 1]]
    assert sorted(through) == sorted(["torch.mm", *NAMES])
    assert "NVIDIA Imaginary" in text and "mark, on an H200" in text
    naive = next(line for line in lines if "naive" in line and "│" in line)
    assert "2%" in naive and "1%" in naive  # its share, and its mark's
    assert (in_a_folder_of_its_own / "race.png").read_bytes().startswith(b"\x89PNG")


def test_a_stage_that_cannot_run_is_said_and_drawn(gpu, capsys, monkeypatch):
    def built(stage):
        return {**describe(stage), "min_sm": 120 if stage.name == NAMES[-1] else 0, "max_sm": 0}

    describe = ladder.describe
    monkeypatch.setattr(ladder, "describe", built)
    assert main(["ladder", "--race", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["stages"][-1]
    assert row["tflops"] is None and row["note"] == "needs sm_120"
    assert main(["ladder", "--race"]) == 0
    assert "needs sm_120" in capsys.readouterr().out


def test_ladder_on_a_gpu_takes_size_and_layout(gpu, capsys):
    assert main(["ladder", "--json", "--size", "512", "--layout", "NT"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["size"], facts["layout"], gpu["layouts"]) == (512, "NT", ["NT"])


@pytest.mark.gpu
def test_race_on_the_gpu_here(capsys):
    assert main(["ladder", "--race", "--json", "--size", "512"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert all(row["tflops"] > 0 for row in facts["stages"] if row["note"] is None)
    assert facts["roofs"]["memory_tbs"] > 0.05
    assert facts["roofs"]["fp32_tflops"] is None or facts["roofs"]["fp32_tflops"] > 1
