"""benchmarks/compare.py: a slowdown is found, noise is not; builds and records are told apart."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import compare
import gate
import paired
import pytest
import records

import xgemm_torch

ROOT = Path(__file__).parent.parent
RECORD = max((ROOT / "benchmarks" / "results").glob("*/*-random.json"))
TOLERANCE = 0.03


def turns(
    r, slowdown=0.0, noise=0.02, rounds=200, *, walk=0.002, ramp=0.05, second=0.01, tails=0.03
):
    """Rounds as on a GPU: noise of turns, clocks that drift, a second turn that costs more than
    a first, and now and then a turn during which something else ran."""
    found, drift = [], 0.0
    for number, a_first in enumerate(paired.orders(rounds, r.randrange(2**30))):
        seconds = {}
        for place, who in enumerate("ab" if a_first else "ba"):
            drift += r.gauss(0, walk)
            log = drift + ramp * number / rounds + second * place + r.gauss(0, noise)
            seconds[who] = 1e-3 * math.exp(log) * (1 + slowdown * (who == "b"))
            if r.random() < tails:
                seconds[who] *= 1 + r.expovariate(10)
        found.append(paired.Round(seconds["a"], seconds["b"], a_first))
    return found


def alarms(slowdowns, count=200, seed=1):
    """The share of simulated comparisons, noise of 1 to 3%, that call anything slower."""
    r = random.Random(seed)
    found = 0
    for _ in range(count):
        noise = r.uniform(0.01, 0.03)
        judged = paired.judge({f"p{i}": turns(r, s, noise) for i, s in enumerate(slowdowns)})
        found += bool(compare.slower(judged, TOLERANCE))
    return found / count


# Statistics


@pytest.mark.parametrize("slowdown", [0.0, TOLERANCE], ids=["as fast", "as slow as is tolerated"])
def test_noise_is_no_slowdown(slowdown):
    assert alarms([slowdown] * 3) <= 0.02


@pytest.mark.parametrize("others", [0.05, 0.0], ids=["everywhere", "in one of three problems"])
def test_a_slowdown_of_5_percent_is_found(others):
    assert alarms([0.05] + [others] * 2) >= 0.95


def test_a_ratio_is_the_true_one_and_its_interval_has_it():
    r = random.Random(2)
    inside = 0
    for _ in range(200):
        (ratio,) = paired.judge({"p": turns(r, 0.04, rounds=60)}, confidence=0.9).values()
        assert ratio.ratio == pytest.approx(1.04, abs=0.02)
        inside += ratio.low <= 1.04 <= ratio.high
    assert 0.74 <= inside / 200 <= 0.9  # 0.8: each end is beyond it in a tenth


def test_drift_and_order_cancel_in_a_block():
    """Exactly: a clock that falls by one factor a turn, a second turn that costs."""
    found = turns(random.Random(3), 0.05, noise=0, walk=0, ramp=0, second=0.2, tails=0)
    assert paired.blocks(found) == pytest.approx([math.log(1.05)] * 100)
    times = [1e-3 * 1.01**i for i in range(40)]
    steady = [
        paired.Round(
            *(times[2 * i : 2 * i + 2] if first else times[2 * i : 2 * i + 2][::-1]), first
        )
        for i, first in enumerate([True, False] * 10)
    ]
    assert paired.blocks(steady) == pytest.approx([0.0] * 10)


def test_orders_are_by_chance_and_balanced():
    found = paired.orders(200, 1)
    assert all(one != other for one, other in zip(found[::2], found[1::2], strict=True))
    assert 30 < sum(found[::2]) < 70 and found != paired.orders(200, 2)
    assert len(paired.orders(11)) == 12


def test_student():
    """Quantiles from tables."""
    for p, df, t in ((0.975, 1, 12.706), (0.975, 10, 2.2281), (0.999, 30, 3.3852)):
        assert paired.student(p, df) == pytest.approx(t, rel=1e-4)
    assert paired.student(0.99, math.inf) == pytest.approx(2.3263, rel=1e-4)


def test_verdicts():
    for low, high, verdict in ((1.04, 1.06, "slower"), (1.02, 1.06, "not certain"),
                               (0.99, 1.02, "same"), (0.8, 0.9, "faster"),
                               (0.9, 1.1, "not certain")):  # fmt: skip
        assert paired.Ratio(1.0, low, high).verdict(TOLERANCE) == verdict


def test_what_cannot_be_judged():
    with pytest.raises(ValueError, match="4 rounds: 10 at least"):
        paired.judge({"p": turns(random.Random(1), rounds=4)})
    with pytest.raises(ValueError, match="opposite orders"):
        paired.judge({"p": [paired.Round(1.0, 1.0, True)] * 20})
    equal = paired.judge({"p": [paired.Round(1.0, 1.0, i % 2 == 0) for i in range(20)]})
    assert equal["p"] == paired.Ratio(1.0, 1.0, 1.0)


# Builds

FAKE = """
import math, random, time, torch
r, now = random.Random({seconds}), [0.0]
time.perf_counter = lambda: now[0]
lib = torch.library.Library("xgemm", "DEF")
lib.define("sgemm(Tensor a, Tensor b, *, bool trans_a=False, bool trans_b=False, "
           "str precision='fp32') -> Tensor")
def sgemm(a, b, trans_a=False, trans_b=False, precision="fp32"):
    now[0] += {seconds} * math.exp(r.gauss(0, 0.02))
    return a @ b + {off}
lib.impl("sgemm", sgemm, "CPU")
"""


@pytest.fixture
def fake(tmp_path):
    """A checkout whose product takes a given time by its own clock, with noise of 2%."""

    def made(name, seconds, off=0):
        (tmp_path / name / "xgemm_torch").mkdir(parents=True)
        text = FAKE.format(seconds=seconds, off=off)
        (tmp_path / name / "xgemm_torch" / "__init__.py").write_text(text)
        return str(tmp_path / name)

    return made


def test_a_planted_slowdown_fails(fake, tmp_path, capsys):
    a, b = fake("a", 1e-3), fake("b", 1.05e-3, off=1)
    arguments = [a, b, "--problem", "4x4x4", "--rounds", "200", "--sample-ms", "1"]
    assert compare.main([*arguments, "--device", "cpu", "--json", str(tmp_path / "c.json")]) == 1
    told = capsys.readouterr().out
    assert "once more" in told and "B is slower by over 3%: 4x4x4" in told and "other bits" in told
    record = records.read(tmp_path / "c.json")
    assert record["slower"] == ["4x4x4"] and record["loaded"]["b"]["package"].startswith(b)
    ratio, turn = record["ratios"]["4x4x4"], record["turns"]["4x4x4"]
    assert 1.03 < ratio["low"] < ratio["ratio"] < 1.06 and len(turn["a_us"]) == 200
    assert {*turn["a_first"]} == {True, False} and min(turn["a_us"]) > 900
    assert record["seed"] == 0 and record["seconds"] > 0


def test_one_build_is_as_fast_as_itself(capsys):
    module = xgemm_torch._C.__file__
    arguments = [module, str(ROOT), "--device", "cpu", "--precision", "ieee", "--rounds", "20"]
    assert compare.main([*arguments, "--problem", "24x16x32-TN", "--problem", "2x8x8x8"]) == 0
    told = capsys.readouterr().out
    assert "B is not slower by over 3%" in told and "other bits" not in told
    # On a busy machine one may look slower, and is then measured and told once more.
    first, _, _ = told.partition("once more")
    assert sum(line.startswith(("24x16x32-TN", "2x8x8x8", "geometric")) for line in
               first.splitlines()) == 3  # fmt: skip


def test_a_build_that_cannot_do_it(fake, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        compare.main([str(tmp_path), str(tmp_path), "--problem", "4x4x4"])
    assert "no xgemm_torch in it" in capsys.readouterr().err
    build = compare.Build(Path(fake("b", 1.0)), tmp_path)
    request = {"problem": [1, 4, 4, 4, "NN"], "precision": "fp32", "gpu": False, "ms": 1.0}
    with pytest.raises(compare.NoResult, match="AttributeError"):
        build.ask("prepare", stage="nope", calls=None, **request)
    assert build.ask("prepare", stage="sgemm", calls=7, **request)["calls"] == 7
    build.close()
    with pytest.raises(compare.NoResult, match="ended, code 0"):
        build.ask("turn")


# Records


def slowed(path, factor):
    """A record's copy in which every third problem takes so many times as long."""
    record = records.read(RECORD)
    for i, p in enumerate(record["problems"].values()):
        p["auto_us"]["fp32"] *= factor if i % 3 == 0 else 1
    records.write(path, record)
    return str(path)


def test_records(tmp_path, capsys):
    assert compare.main([str(RECORD), str(RECORD)]) == 0
    assert compare.main([str(RECORD), slowed(tmp_path / "new.json", 1.5)]) == 1
    told = capsys.readouterr().out
    assert "B is slower by over 3%: fp32" in told and " 1.500" in told
    assert compare.main([slowed(tmp_path / "old.json", 1.5), str(RECORD)]) == 0


def test_the_command_bench_is_a_gate(tmp_path, capsys):
    from xgemm_torch.__main__ import main

    assert main(["bench", "--compare", str(RECORD), str(RECORD)]) == 0
    assert main(["bench", "--compare", str(RECORD), slowed(tmp_path / "new.json", 1.5)]) == 1
    assert "B is slower by over 3%: fp32" in capsys.readouterr().out


def test_every_form_of_records_that_has_times_of_torch():
    for path in RECORD.parent.glob("*.json"):
        if re.search(r"-\d\d-\d\d-(random|data|steps|steps-compiled)\.json", path.name):
            assert compare.main([str(path), str(path)]) == 0, path


# The command line


def test_problems():
    assert compare.parsed("2x3x4x5-TN") == (2, 3, 4, 5, "TN")
    assert compare.parsed("3x4x5") == (1, 3, 4, 5, "NN")
    assert compare.parsed("square 1023 NT") == (1, 1023, 1023, 1023, "NT")
    for name in (*compare.PROBLEMS, *compare.ON_CPU):
        compare.parsed(name)
    for name in ("3x4", "3x4x0", "3x4x5-XX", "3x4xk", ""):
        with pytest.raises(ValueError, match="no problem"):
            compare.parsed(name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none", "none"], "not found"),
        ([str(RECORD), str(ROOT)], "a record is compared with a record"),
        ([str(ROOT), str(ROOT), "--rounds", "4"], "10 at least"),
        ([str(ROOT), str(ROOT), "--problem", "3x4"], "no problem"),
        ([str(RECORD), "ACCURACY"], "not of one form"),
    ],
)
def test_arguments(arguments, said, tmp_path, capsys):
    if arguments[-1] == "ACCURACY":
        (tmp_path / "x.json").write_text(json.dumps({"depths": [], "rows": []}))
        arguments = [arguments[0], str(tmp_path / "x.json")]
    with pytest.raises(SystemExit, match="2"):
        compare.main(arguments)
    assert said in capsys.readouterr().err


# Many pairs in one record


def compared(path, seed, slower=(), **facts):
    """What compare.py leaves of a pair, made up."""
    here = {"commit": "c" * 40, "sources": "s", "device": "chip", "torch": "2", "date": "today"}
    factor = 1.06 if slower else 1.001
    ratios = {
        name: {"ratio": factor, "low": factor - 0.001, "high": factor + 0.001}
        for name in ("square", paired.MEAN)
    }
    records.write(path, {
        "facts": {**here, **facts}, "tolerance": TOLERANCE, "seed": seed, "seconds": 25.0,
        "slower": list(slower), "ratios": ratios, "again": ratios if slower else {},
    })  # fmt: skip
    return str(path)


def test_pairs_become_one_record(tmp_path, capsys):
    planted = [compared(tmp_path / f"p{i}.json", i, ["square"]) for i in range(2)]
    equal = [compared(tmp_path / "e.json", 7)]
    arguments = [str(tmp_path / "gate.json"), "--what", "a barrier", "--planted", *planted]
    assert gate.main([*arguments, "--equal", *equal]) == 0
    assert capsys.readouterr().out == "planted: 2 of 2 slower\nequal: 0 of 1 slower\n"
    record = records.read(tmp_path / "gate.json")
    assert record["planted"] == "a barrier" and record["facts"]["device"] == "chip"
    assert [(p["kind"], p["seed"], p["slower"]) for p in record["pairs"]] == [
        ("planted", 0, ["square"]), ("planted", 1, ["square"]), ("equal", 7, []),
    ]  # fmt: skip
    assert record["pairs"][0]["again"]["square"] == [1.06, 1.059, 1.061]
    assert record["pairs"][2]["ratios"][paired.MEAN] == [1.001, 1.0, 1.002]
    other = compared(tmp_path / "o.json", 8, device="another")
    with pytest.raises(SystemExit, match="2"):
        gate.main([*arguments, "--equal", other])
    assert "more than one device" in capsys.readouterr().err
