"""``xgemm bench``: what is there is not measured again, and no half record is left."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import records
import suites
import torch

from xgemm_torch import __main__ as entry
from xgemm_torch.tools import checkout

ROOT = Path(__file__).parent.parent
HERE = {"sources": "s1", "device": "chip", "torch": "2", "date": "2026-01-01T00:00:00+00:00"}
# Counts its calls in the record; goes on with what is there.
CODE = """
import json, sys, pathlib
file = pathlib.Path(sys.argv[1])
before = json.loads(file.read_text()) if file.exists() else {"calls": 0}
now = {"facts": FACTS, "calls": before["calls"] + 1, "finished": FINISHED}
file.write_text(json.dumps(now))
print("measured", now["calls"])
END
"""
NO_GPU = not torch.cuda.is_available()


def suite(name="one", *, finished="True", end="", facts=HERE, **more):
    code = CODE.replace("FACTS", repr(facts)).replace("FINISHED", finished).replace("END", end)
    more = {"seconds": 1, "on_cpu": 1} | more
    return suites.Suite(name, "a stand-in", lambda file, s, gpu: ["-c", code, str(file)], **more)


@pytest.fixture(autouse=True)
def facts_of_no_machine(monkeypatch):
    monkeypatch.setattr(suites, "facts", lambda: HERE)


def run(folder, *some, here=HERE, **how):
    return suites.Run(folder, some, here, **how).all()


def calls(folder, name="one"):
    return records.read(folder / f"{name}.json")["calls"]


def left(folder):
    return sorted(p.name for p in (folder / suites.UNFINISHED).iterdir())


def test_what_is_there_is_not_measured_again(tmp_path):
    one = suite()
    assert [o.state for o in run(tmp_path, one)] == [suites.MEASURED]
    assert left(tmp_path) == [] and calls(tmp_path) == 1
    stamp = (tmp_path / "one.json").stat().st_mtime_ns
    assert [o.state for o in run(tmp_path, one)] == [suites.THERE]
    assert (tmp_path / "one.json").stat().st_mtime_ns == stamp
    assert [o.state for o in run(tmp_path, one, again=True)] == [suites.MEASURED]
    assert (tmp_path / "one.json").stat().st_mtime_ns > stamp
    assert (tmp_path / "logs" / "one.txt").read_text() == "measured 1\n"


@pytest.mark.parametrize("name", suites.SAME)
def test_a_record_of_something_else_is_measured_again(name, tmp_path):
    run(tmp_path, suite())
    other = {**HERE, name: "another"}
    made = suites.Run(tmp_path, [suite()], other)
    assert made.state(suite()) == ("", f"other {name}")
    assert [o.state for o in run(tmp_path, suite(facts=other), here=other)] == [suites.MEASURED]
    assert records.read(tmp_path / "one.json")["facts"][name] == "another"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"finished": true}', '{"calls": 1}'])
def test_what_is_no_record_is_measured(text, tmp_path):
    (tmp_path / "one.json").write_text(text)
    assert [o.state for o in run(tmp_path, suite())] == [suites.MEASURED]


def test_a_record_that_is_not_finished_is_none(tmp_path):
    run(tmp_path, suite())
    records.write(tmp_path / "one.json", records.read(tmp_path / "one.json") | {"finished": False})
    assert suites.Run(tmp_path, [suite()], HERE).state(suite()) == ("", "not finished")
    assert [o.state for o in run(tmp_path, suite())] == [suites.MEASURED]


@pytest.mark.parametrize("resumes", [False, True])
def test_a_suite_that_fails_leaves_no_record_and_the_others_run(resumes, tmp_path):
    bad = suite("bad", finished="False", end="raise ValueError('x')", resumes=resumes)
    outcomes = run(tmp_path, bad, suite())
    assert [o.state for o in outcomes] == [suites.FAILED, suites.MEASURED]
    assert outcomes[0].note == "exit code 1: see logs/bad.txt"
    assert "ValueError: x" in (tmp_path / "logs" / "bad.txt").read_text()
    assert not (tmp_path / "bad.json").exists()
    assert left(tmp_path) == (["bad.json"] if resumes else [])


def test_time_is_up_and_the_next_call_goes_on(tmp_path):
    first = suite(finished="False", end="sys.exit(3)", resumes=True)
    assert [o.state for o in run(tmp_path, first)] == [suites.UNWHOLE]
    assert not (tmp_path / "one.json").exists() and left(tmp_path) == ["one.json"]
    assert [o.state for o in run(tmp_path, suite(resumes=True))] == [suites.MEASURED]
    assert calls(tmp_path) == 2 and left(tmp_path) == []


def test_what_was_begun_with_other_sources_is_begun_anew(tmp_path):
    first = suite(finished="False", end="sys.exit(3)", resumes=True)
    run(tmp_path, first)
    other = {**HERE, "sources": "s2"}
    run(tmp_path, suite(facts=other, resumes=True), here=other)
    assert calls(tmp_path) == 1


def test_an_interrupt_ends_the_process_and_leaves_no_record(tmp_path, monkeypatch):
    slow = suite(finished="True", end="import time; time.sleep(60)")
    children = []
    real = suites.subprocess.Popen
    monkeypatch.setattr(
        suites.subprocess, "Popen", lambda *a, **k: children.append(real(*a, **k)) or children[-1]
    )

    def tick(seconds):
        if (tmp_path / suites.UNFINISHED / "one.json").exists():
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        suites.Run(tmp_path, [slow], HERE).measure(slow, tick)
    assert time.monotonic() - began < 30 and children[0].poll() is not None
    assert not (tmp_path / "one.json").exists()
    assert [o.state for o in run(tmp_path, suite())] == [suites.MEASURED]
    assert calls(tmp_path) == 1  # what was begun does not count


def test_something_wrong_that_was_measured_has_a_record(tmp_path):
    (outcome,) = run(tmp_path, suite(end="sys.exit(1)"))
    assert (outcome.state, outcome.note) == (suites.MEASURED, "exit code 1: see logs/one.txt")
    assert calls(tmp_path) == 1


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, "sources None in place of 's1', device None in place of 'chip', torch None in place "
             "of '2'"),
        ({**HERE, "sources": "s2"}, "sources 's2' in place of 's1'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", [{}, {"finished": "False", "end": "sys.exit(3)", "resumes": True}])
def test_a_record_that_would_be_measured_again_has_failed(facts, why, how, tmp_path):
    """As one whose facts are not where they are looked for, or whose sources have changed since."""
    (outcome,) = run(tmp_path, suite(facts=facts, **how))
    assert outcome.state == suites.FAILED
    assert outcome.note.endswith(f"the record has {why}: see unfinished/one.json")
    assert not (tmp_path / "one.json").exists() and left(tmp_path) == ["one.json"]
    assert [o.state for o in run(tmp_path, suite(**how))] == [
        suites.UNWHOLE if how else suites.MEASURED
    ]
    assert records.read(next(tmp_path.rglob("one.json")))["calls"] == 1  # it was begun anew


def test_without_a_gpu(tmp_path):
    needs = suite("needs", on_cpu=0)
    assert [o.state for o in run(tmp_path, needs, suite())] == [suites.NO_GPU, suites.MEASURED]
    gpu = {**HERE, "sm": "9.0"}
    assert [o.state for o in run(tmp_path, needs, here=gpu)] == [suites.MEASURED]


def test_what_a_command_prints_becomes_a_record(tmp_path):
    code = "import sys; print('{\"rows\": [1]}'); print('progress', file=sys.stderr); sys.exit(1)"
    one = suites.Suite(
        "one", "", lambda file, s, gpu: ["-c", code], 1, 1, wrap=suites.of_stdout
    )  # fmt: skip
    (outcome,) = run(tmp_path, one)
    found = records.read(tmp_path / "one.json")
    assert outcome.state == suites.MEASURED and "exit code 1" in outcome.note
    assert found["rows"] == [1] and found["finished"] and found["facts"]["sources"] == "s1"
    assert found["facts"]["command"].startswith("python -c")
    assert (tmp_path / "logs" / "one.txt").read_text() == "progress\n"
    assert left(tmp_path) == []


def test_benchmarks_of_pytest_become_a_record(tmp_path):
    stats = {"median": 2e-6, "iqr": 1e-7, "rounds": 7}
    clocks = {"sm_mhz": {"p5": 1900.0, "p50": 1980.0}}
    info = {"ratio": 1.5, "commit": "c", "clocks": clocks}
    bench = {"name": "bench_x[a]", "stats": stats, "extra_info": info}
    (tmp_path / "b.json").write_text(json.dumps({"benchmarks": [bench]}))
    assert suites.of_pytest(tmp_path / "b.json", tmp_path) == {
        "clocks": {"sm_mhz": {"p50": 1980.0}},
        "benches": {
            "bench_x[a]": {
                "us": pytest.approx(2), "iqr_us": pytest.approx(0.1), "rounds": 7, "ratio": 1.5,
            }
        }
    }  # fmt: skip
    (tmp_path / "b.json").write_text('{"benchmarks": []}')
    with pytest.raises(ValueError, match="no benchmark"):
        suites.of_pytest(tmp_path / "b.json", tmp_path)


# --- the suites themselves ------------------------------------------------------------------------


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU: it would measure")
@pytest.mark.parametrize("one", suites.SUITES, ids=lambda one: one.name)
def test_its_script_takes_its_arguments(one, tmp_path, capsys):
    """Each stops for want of a GPU, or is a command whose parser is asked."""
    for seconds in (None, 5.0):
        words = one.arguments(tmp_path / "x.json", seconds, True)
        if words[0] == "-m":
            assert words[1] in ("pytest", "xgemm_torch")
            assert words[1] == "xgemm_torch" or (ROOT / words[2]).is_file()
            continue
        assert (ROOT / words[0]).is_file()
        if one.on_cpu:
            continue
        script = importlib.import_module(Path(words[0]).stem)
        try:
            code = script.main(words[1:])
        except SystemExit as stop:
            code = stop.code
        assert code == 2 or "needs a GPU" in str(code)  # h200.py: 2
        assert "usage:" not in capsys.readouterr().err


@pytest.fixture
def nothing_to_measure(monkeypatch):
    """The suites' scripts do all but measure; each is told of its GPU what `HERE` says."""
    import attention
    import data
    import grouped
    import h200
    import invariant
    import mixed
    import peers
    import provenance
    import recording
    import run_examples
    import steps
    import survey

    from xgemm_torch.tools import timing

    chip = SimpleNamespace(name=HERE["device"], major=9, minor=0)
    for owner, name, stand_in in (
        (provenance, "facts", lambda: dict(HERE)),
        (recording, "require_yardstick", lambda *_, **__: None),
        (timing, "heat", lambda seconds: None),
        (torch.cuda, "get_device_properties", lambda index: chip),
        (torch.cuda, "Stream", lambda: None),
        (h200, "check", lambda *_: {}),
        (h200, "measure", lambda *_: {"times": {}}),
        (survey, "problems_of", lambda options: []),
        (survey.trials, "check", lambda *_: []),
        (data, "measure", lambda *_, **__: True),
        (data, "remarks", lambda record: []),
        (steps, "measure", lambda *_, **__: {}),
        (run_examples, "measure", lambda *_: {}),
        (grouped, "measured", lambda *_: {"products": {}}),
        (mixed, "measured", lambda *_: {}),
        (invariant, "measured", lambda *_: []),
        (attention, "measured", lambda *_, **__: {}),
        (attention.attention_page, "summary", lambda record: []),
        (peers, "load", lambda *_: ([], {})),
        (peers, "run", lambda *_, **__: True),
        *((script, "table", lambda record: "")
          for script in (data, steps, run_examples, grouped, invariant, mixed, attention, peers)),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, stand_in)


@pytest.mark.parametrize(
    "one", [one for one in suites.SUITES if one.wrap is None], ids=lambda one: one.name
)
@pytest.mark.usefixtures("nothing_to_measure")
def test_the_record_that_its_script_writes_is_not_measured_again(one, tmp_path):
    file = tmp_path / f"{one.name}.json"
    path, *words = one.arguments(file, 5.0, True)
    script = importlib.import_module(Path(path).stem)
    if one.name == "stages":  # its main asks for a GPU by itself
        script.run(script.parse(words))
    else:
        assert script.main(words) == 0
    assert suites.outdated(suites.read(file), HERE) == ""
    assert suites.Run(tmp_path, [one], HERE).state(one)[0] == suites.THERE


def test_names_are_told_apart():
    assert len(set(suites.NAMES)) == len(suites.SUITES)
    assert all(one.seconds > 0 and one.what for one in suites.SUITES)
    assert {one.name for one in suites.SUITES if one.resumes} == {
        "suite", "random", "data", "attention", "peers",
    }  # fmt: skip


def test_seconds_shorten_what_takes_them(tmp_path):
    gpu = {**HERE, "sm": "9.0"}
    usual, short = (suites.Run(tmp_path, suites.SUITES, gpu, seconds=s) for s in (None, 12.0))
    for one in suites.SUITES:
        assert usual.expected(one) == one.seconds
        assert short.expected(one) == (min(one.seconds, 12) if "12" in short.command(one)
                                       else one.seconds)  # fmt: skip


# --- the command ----------------------------------------------------------------------------------


def test_the_commands_exit_code_and_table(tmp_path, monkeypatch, capsys):
    some = [suite("good"), suite("late", finished="False", end="sys.exit(3)", resumes=True)]
    monkeypatch.setattr(suites, "SUITES", some)
    monkeypatch.setattr(suites, "NAMES", ("good", "late"))
    out = ["--out", str(tmp_path / "out")]
    assert entry.main(["bench", *out, "--list"]) == 0
    assert "no record" in capsys.readouterr().out and not (tmp_path / "out").exists()
    assert entry.main(["bench", *out, "--dry-run"]) == 0
    assert "# good: to measure\npython -c" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert entry.main(["bench", *out]) == 3
    said = capsys.readouterr().out
    assert "good.json" in said and suites.UNWHOLE in said
    assert f"report --records {tmp_path / 'out'} --out {tmp_path / 'out' / 'report.html'}" in said
    some[1] = suite("late", end="raise SystemExit(1)", finished="False")
    assert entry.main(["bench", *out]) == 1
    assert entry.main(["bench", *out, "good"]) == 0


def test_an_interrupted_command_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(run, one, tick):
        if one.name == "b" and "b" not in done:
            raise KeyboardInterrupt
        done.append(one.name)
        return measure(run, one, tick)

    measure, done = suites.Run.measure, []
    monkeypatch.setattr(suites.Run, "measure", interrupted)
    monkeypatch.setattr(suites, "SUITES", [suite(name) for name in "abc"])
    monkeypatch.setattr(suites, "NAMES", tuple("abc"))
    words = ["bench", "a", "b", "--out", str(tmp_path), "--seconds", "9"]
    assert entry.main(words) == 130 and done == ["a"]
    begin = f"interrupted; to go on: python -m xgemm_torch bench --out {tmp_path}"
    assert f"{begin} --seconds 9 a b\n" in capsys.readouterr().err
    assert entry.main(["bench", "--out", str(tmp_path), "--again"]) == 130
    assert f"{begin} --again b c\n" in capsys.readouterr().err
    done.append("b")
    assert entry.main(words) == 0 and done == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    "words, why",
    [
        (["bench", "nope"], "no suite 'nope': there are stages, suite"),
        (["bench", "--seconds", "0"], "seconds must be more than 0"),
        (["report", "--records", "/nowhere"], "no record in /nowhere"),
    ],
)
def test_wrong_arguments(words, why, capsys):
    assert entry.main(words) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "report"])
def test_an_installed_package_has_no_benchmarks(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkout, "folder", lambda: tmp_path / "benchmarks")
    assert entry.main([command]) == 2
    said = capsys.readouterr().err
    assert f"{command} needs benchmarks/, which is in a source checkout" in said
    assert said.count("\n") == 1


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU: it takes longer")
def test_a_suite_from_the_command_to_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.undo()  # this machine's facts
    out = tmp_path / "out"
    assert entry.main(["bench", "peers", "--out", str(out)]) == 0
    assert "measured" in capsys.readouterr().out
    record = records.read(out / "peers.json")
    assert record["finished"] and len(record["facts"]["sources"]) == 16
    assert entry.main(["bench", "peers", "--out", str(out)]) == 0
    assert "there" in capsys.readouterr().out
    page = out / "report.html"
    assert entry.main(["report", "--records", str(out), "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "Other libraries" in text and "triton bf16x6" in text
