"""Problems that a user has tuned: the command, its file, and what auto makes of it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch

import xgemm_torch
from xgemm_torch import tuned
from xgemm_torch.__main__ import main
from xgemm_torch.tools import contenders, info, trials, tune
from xgemm_torch.tools.contenders import Problem, rows_of

ROOT = Path(xgemm_torch.__file__).resolve().parents[1]
ROWS = {row.key: row for row in rows_of(xgemm_torch.stages())}
H200 = tune.Gpu("NVIDIA H200", 90, 132, 141 << 30, 70 << 30, "driver 1.2, torch 3")
A100 = tune.Gpu("NVIDIA A100", 80, 108, 40 << 30, 20 << 30, "driver 1.2, torch 3")


@pytest.fixture(autouse=True)
def forget():
    """Each test begins and ends without tuned problems."""
    tuned.clear()
    yield
    tuned.clear()


class Bench:
    """An invented GPU: every row takes 10 us, but those that are told apart."""

    def __init__(self):
        self.gpu, self.calls, self.us, self.faults = H200, [], {}, []
        self.stop_at = None

    def time(self, p, rows, turn):
        if self.stop_at == len(self.calls):
            raise KeyboardInterrupt
        self.calls.append((p.label, [row.key for row in rows]))
        turn()
        return {row.key: self.us.get(row.key, 10.0) for row in rows} | {trials.TORCH_MM: 20.0}


@pytest.fixture
def bench(monkeypatch):
    bench = Bench()
    monkeypatch.setattr(tune, "gpu_at_hand", lambda: bench.gpu)
    monkeypatch.setattr(tune, "measure", bench.time)
    monkeypatch.setattr(trials, "check", lambda p, rows: bench.faults)
    return bench


@pytest.fixture
def file(tmp_path):
    return tmp_path / "folder" / "tuned.txt"


def explained(m=1000, n=600, k=500, *, batch=1, precision="fp32", layout="NN", gpu=H200):
    """Auto's choice, as the explanation has it."""
    trans_a, trans_b = (letter == "T" for letter in layout)
    from xgemm_torch.tools.explain_command import choose

    return choose(
        m, n, k, batch=batch, trans_a=trans_a, trans_b=trans_b, precision=precision, sm=gpu.sm,
        sm_count=gpu.sm_count, gpu=gpu.name,
    )  # fmt: skip


def chosen(**asked):
    """The key of the row that auto takes."""
    found = explained(**asked)
    return next(
        key for key, row in ROWS.items() if (row.stage, row.row) == (found["kernel"], found["row"])
    )


def record(times, *, m=1000, n=600, k=500, batch=1, layout="NN", precision="fp32", gpu=H200):
    p = Problem("", m, n, k, layout, batch)
    return tune.record_of(p, precision, gpu, 20.0, times)


# The command


def test_it_measures_writes_and_says_what_it_found(bench, file, capsys):
    rival = tune.task_of(Problem("", 1000, 600, 500), H200, ["fp32"])
    before = rival.before["fp32"].key
    winner = next(row.key for row in rival.all_rows if row.key != before)
    bench.us = {winner: 5.0, before: 6.0}
    assert main(["tune", "1000", "600", "500", "--cache", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"1000 x 600 x 500 NN fp32: {tune.short(winner)} 5.0 us, 4.00 x torch.mm; " in said
    assert f"auto took {tune.short(before)} 6.0 us (+20.0%)" in said
    assert f"2 records in {file}" in said and "auto reads another file, or none" in said

    ((label, keys),) = bench.calls
    assert label == "1000 x 600 x 500 NN" and len(keys) == len(set(keys))
    fp32, ieee = tuned.read(file)
    assert (fp32.precision, ieee.precision) == ("fp32", "ieee")
    assert fp32.best == winner and fp32.torch_mm == 20.0 and set(fp32.times) <= set(keys)
    assert all(ROWS[key].strict for key in ieee.times)
    assert (fp32.gpu, fp32.sm, fp32.sm_count) == ("NVIDIA H200", 90, 132)
    assert fp32.made_with == "driver 1.2, torch 3" and fp32.rows == tune.library()
    assert tuned.load(file) == 2 and chosen() == winner


def test_only_rows_that_could_win_are_measured():
    p = Problem("", 4096, 4096, 4096)
    task = tune.task_of(p, H200, ["fp32", "ieee"])
    names = {row.stage for row in task.all_rows}
    assert "naive" not in names and "wgmma_fp16x3" in names and "tma_specialized" in names
    assert task.turns == tune.rounds_of(p) * (len(task.all_rows) + 1)
    for precision, rows in task.rows.items():
        assert task.before[precision] in rows
        assert all(row.strict for row in rows) or precision == "fp32"
    assert not any(row.stage.startswith(("wgmma", "tma")) for row in tune.task_of(
        p, A100, ["fp32"]).all_rows)  # fmt: skip


def test_rows_that_the_table_does_not_know_are_measured(monkeypatch):
    real = tune.explain_command.choose

    def with_a_new_row(*sizes, **options):
        found = real(*sizes, **options)
        for c in found["candidates"]:
            if c["kernel"] == "micro_4x1_vec4":
                c["basis"] = "rate"
        return found

    monkeypatch.setattr(tune.explain_command, "choose", with_a_new_row)
    task = tune.task_of(Problem("", 4096, 4096, 4096), H200, ["ieee"])
    assert "micro_4x1_vec4" in {row.stage for row in task.all_rows}


def test_it_goes_on_where_it_stopped(bench, file, capsys):
    command = ["tune", "64", "64", "64", "--layout", "NN", "NT", "TN", "--cache", str(file)]
    bench.stop_at = 2
    assert main(command) == tune.INTERRUPTED
    assert "interrupted" in capsys.readouterr().out
    assert [r.layout for r in tuned.read(file)] == ["NN", "NN", "NT", "NT"]
    assert os.listdir(file.parent) == [file.name]
    bench.stop_at = None
    assert main(command) == 0
    assert "2 of 3 problems are in the file already" in capsys.readouterr().out
    assert [label[-2:] for label, _ in bench.calls] == ["NN", "NT", "TN"]
    assert main(command) == 0 and len(bench.calls) == 3
    assert main([*command, "--force"]) == 0 and len(bench.calls) == 6
    assert len(tuned.read(file)) == 6


def test_an_interrupted_write_leaves_the_old_file(file, monkeypatch):
    tuned.add(file, [record({"a": 1.0})])
    before = file.read_text()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tuned.add(file, [record({"a": 2.0})])
    assert file.read_text() == before and os.listdir(file.parent) == [file.name]


def test_each_precision_is_a_record_of_its_own(bench, file):
    command = ["tune", "64", "64", "64", "--cache", str(file), "--precision"]
    assert main([*command, "ieee"]) == 0
    assert [r.precision for r in tuned.read(file)] == ["ieee"]
    assert main([*command, "both"]) == 0
    assert [r.precision for r in tuned.read(file)] == ["ieee", "fp32"]
    assert len(bench.calls) == 2


def test_other_gpus_and_other_libraries(bench, file, monkeypatch):
    command = ["tune", "64", "64", "64", "--cache", str(file)]
    assert main(command) == 0
    bench.gpu = A100
    assert main(command) == 0
    assert [r.gpu for r in tuned.read(file)] == [H200.name] * 2 + [A100.name] * 2
    # Measured with other tile tables, a problem is measured again; the other GPU's stay.
    monkeypatch.setattr(tune, "library", lambda: "0.2.0 other")
    assert main(command) == 0 and len(bench.calls) == 3
    assert [r.rows == "0.2.0 other" for r in tuned.read(file)] == [False] * 2 + [True] * 2
    assert len({tuned_record.key for tuned_record in tuned.read(file)}) == 4


def test_problems_from_a_file(bench, file, tmp_path):
    listed = tmp_path / "shapes.txt"
    listed.write_text("# mine\n64 32 16\n\n64 32 16 TN  # the other way\n64 32 16 NN\n")
    assert main(["tune", "8", "9", "10", "--file", str(listed), "--cache", str(file)]) == 0
    assert [label for label, _ in bench.calls] == [
        "8 x 9 x 10 NN", "64 x 32 x 16 NN", "64 x 32 x 16 TN",
    ]  # fmt: skip
    bench.calls.clear()
    more = ["tune", "1", "64", "15", "2", "3", "4", "--layout", "NN", "TN", "--cache", str(file)]
    assert main(more) == 0
    # One row of A lies the same way in both layouts.
    assert [label for label, _ in bench.calls] == [
        "1 x 64 x 15 NN", "2 x 3 x 4 NN", "2 x 3 x 4 TN",
    ]  # fmt: skip


def test_batches(bench, file, tmp_path):
    listed = tmp_path / "shapes.txt"
    listed.write_text("64 32 16\n64 32 16 TN 5\n64 32 16 7\n")
    command = ["tune", "8", "9", "10", "--batch", "1", "16", "--cache", str(file)]
    assert main([*command, "--file", str(listed)]) == 0
    assert [label for label, _ in bench.calls] == [
        "8 x 9 x 10 NN", "8 x 9 x 10 NN, batch 16", "64 x 32 x 16 NN", "64 x 32 x 16 NN, batch 16",
        "64 x 32 x 16 TN, batch 5", "64 x 32 x 16 NN, batch 7",
    ]  # fmt: skip
    assert [r.batch for r in tuned.read(file)] == [1, 1, 16, 16, 1, 1, 16, 16, 5, 5, 7, 7]
    assert main(command) == 0 and len(bench.calls) == 6  # what is there stays


def test_time_may_run_out(bench, file, capsys):
    command = ["tune", "8", "9", "10", "8", "9", "11", "--cache", str(file)]
    assert main([*command, "--seconds", "-1"]) == tune.TIME_IS_UP
    assert "time is up: 2 problems are left" in capsys.readouterr().out
    assert tuned.read(file) == []


def test_a_row_with_wrong_bits_is_left_out(bench, file, capsys):
    task = tune.task_of(Problem("", 1000, 600, 500), H200, ["ieee"])
    key = task.before["ieee"].key
    bench.faults = [trials.Fault(key, f"this: {key} has not the bits of the CPU's chain")]
    bench.us = {key: 1.0}
    assert main(["tune", "1000", "600", "500", "--cache", str(file)]) == 1
    assert f"wrong, and left out: this: {key} has not the bits" in capsys.readouterr().out
    assert all(key not in r.times for r in tuned.read(file))
    assert all(key not in keys for _, keys in bench.calls)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "no problem is given"),
        (["1", "2"], "a problem has three sizes, M N K, got 1 2"),
        (["1", "2", "0"], "sizes must be at least 1, got 1 x 2 x 0"),
        (["1", "2", "3", "--batch", "0"], "sizes must be at least 1, got 1 x 2 x 3 NN, batch 0"),
        (["--file", "no_such_file"], "no_such_file cannot be read: No such file"),
        (["--file", "wrong.txt"], "wrong.txt, line 2: a line is M N K"),
        (["1", "2", "3", "--cache", "wrong.txt"], "wrong.txt, line 1: not a file of tuned"),
        (["1", "2", "3", "--cache", "wrong.txt/x"], "wrong.txt/x cannot be written: "),
        (["1", "2", "3"], "XGEMM_TUNE_CACHE is empty"),
        (["100000", "100000", "100000", "--cache", "x"], "NVIDIA H200 has "),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments, text, bench, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.txt").write_text("1 2 3\n1 2 3 QQ\n")
    assert main(["tune", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert (tmp_path / "wrong.txt").read_text() == "1 2 3\n1 2 3 QQ\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_needs_a_gpu(file, capsys):
    assert main(["tune", "1", "2", "3", "--cache", str(file)]) == 2
    assert "there is no GPU that torch can use" in capsys.readouterr().err


# The file


def test_what_is_written_is_read_again(file):
    records = [
        record({"a row, of 3": 1.25, "b": 1234567.0}),
        record({"c": 0.125}, precision="ieee", gpu=A100, layout="TT", batch=12),
    ]
    tuned.add(file, records)
    assert [dataclasses.replace(r) for r in tuned.read(file)] == [
        dataclasses.replace(records[0], times={"a row, of 3": 1.25, "b": 1234570.0}), records[1],
    ]  # fmt: skip
    tuned.add(file, tuned.read(file))
    assert len(tuned.read(file)) == 2
    assert tuned.read(file.with_name("none")) == []


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XGEMM_TUNE_CACHE", "some/file")
    assert tuned.path() == Path("some/file")
    monkeypatch.setenv("XGEMM_TUNE_CACHE", "")
    assert tuned.path() is None
    with pytest.raises(ValueError, match="XGEMM_TUNE_CACHE is empty"):
        tuned.load()
    monkeypatch.delenv("XGEMM_TUNE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuned.path() == tmp_path / "xgemm_torch" / "tuned.txt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuned.path() == tmp_path / ".cache" / "xgemm_torch" / "tuned.txt"


def test_without_a_home_there_is_no_file(monkeypatch, capsys, bench):
    for name in ("XGEMM_TUNE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    why = "XGEMM_TUNE_CACHE, XDG_CACHE_HOME and HOME are not set"
    assert tuned.path() is None
    with pytest.raises(ValueError, match=f"tuned.load: {why}, so there is no file to load"):
        tuned.load()
    assert info._tuned_words(info._tuned([])) == f"no file is read: {why}"
    assert main(["tune", "1", "2", "3"]) == 2
    assert f"tune: {why}, so there is no file; --cache names one" in capsys.readouterr().err
    code = "import os, xgemm_torch\nassert 'HOME' not in os.environ\n" + WHY
    assert in_a_process(code, HOME=None, XDG_CACHE_HOME=None, XGEMM_TUNE_CACHE=None)


@pytest.fixture(params=["pipe", "zero", "folder", "huge"])
def endless(request, tmp_path):
    """What is no file of tuned problems and, opened or read to its end, hangs or fills memory."""
    path = tmp_path / "cache"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "zero":
        path.symlink_to("/dev/zero")
    elif request.param == "folder":
        path.mkdir()
    else:
        with open(path, "w") as text:
            text.truncate(1 << 40)
        return path, f"{path} cannot be read: it has {1 << 40} bytes, and at most 67108864 are read"
    return path, f"{path} cannot be read: it is not a regular file"


def test_what_has_no_end_is_not_read(endless):
    """Nor waited for: in a process, which a hang ends, of 16 GiB of addresses."""
    path, why = endless
    code = (
        "import resource, warnings, xgemm_torch\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    xgemm_torch.explain(1000, 600, 500)\n"
        "print(*[w.message for w in seen], sep='\\n')\n"
        "tuned = xgemm_torch.tuned\n"
        "path = tuned.path()\n"
        "for f in (tuned.load, lambda: tuned.read(path), lambda: tuned.add(path, [])):\n"
        "    try:\n"
        "        f()\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    said = in_a_process(code, XGEMM_TUNE_CACHE=str(path))
    assert said == [f"xgemm_torch chooses without the user's tuned problems: {why}", *[why] * 3]
    assert os.listdir(path.parent) == [path.name]


def test_a_name_that_is_not_utf8(tmp_path, capsys, bench, monkeypatch):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9/t\xff.txt"))
    shown = f"{tmp_path}/caf\\xe9/t\\xff.txt"
    monkeypatch.setenv("XGEMM_TUNE_CACHE", str(path))
    assert tuned.path() == path and tuned.shown(path) == shown
    assert tuned.read(path) == []
    with pytest.raises(ValueError) as fault:
        tuned.load()
    assert str(fault.value) == f"{shown} cannot be read: No such file or directory"
    assert main(["tune", "64", "64", "64"]) == 0
    said = capsys.readouterr().out
    assert f"2 records in {shown}\n" in said and "auto reads another file" not in said
    assert len(tuned.read(path)) == tuned.load() == 2
    assert info._tuned_words(info._tuned([])) == f"{shown}: 2 records"
    tuned.add(path, [fastest(key_of("naive"))])
    code = f"import xgemm_torch\n{WHY}"
    assert in_a_process(code, XGEMM_TUNE_CACHE=str(path))[0].startswith("tuned 1.0 us")
    path.write_text("else")
    wrong = f"{shown}, line 1: not a file of tuned problems"
    for reader in (tuned.load, lambda: tuned.read(path)):
        with pytest.raises(ValueError) as fault:
            reader()
        assert str(fault.value).startswith(wrong)
    warned = (
        "import warnings, xgemm_torch\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    xgemm_torch.explain(1000, 600, 500)\n"
        "print(seen[0].message)\n"
    )
    assert wrong in in_a_process(warned, XGEMM_TUNE_CACHE=str(path))[0]


def test_writers_at_the_same_time_lose_nothing(file):
    """Of four processes, each of two threads that add a record at a time."""
    code = (
        "import dataclasses, sys, threading\n"
        "from xgemm_torch import tuned\n"
        "file, first = sys.argv[1], int(sys.argv[2])\n"
        "seed = tuned.read(file)[0]\n"
        "def write(first):\n"
        "    for m in range(first, first + 10):\n"
        "        tuned.add(file, [dataclasses.replace(seed, m=m)])\n"
        "threads = [threading.Thread(target=write, args=(first + n,)) for n in (0, 10)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
    )
    tuned.add(file, [record({"a": 1.0}, m=1000)])
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, file, str(first)], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        for first in range(1, 81, 20)
    ]  # fmt: skip
    for writer in writers:
        errors = writer.communicate(timeout=120)[1]
        assert writer.returncode == 0 and not errors, errors
    assert sorted(r.m for r in tuned.read(file)) == [*range(1, 81), 1000]
    assert os.listdir(file.parent) == [file.name]


def test_info_says_which(monkeypatch, file, capsys):
    assert "XGEMM_TUNE_CACHE is empty" in info._tuned_words(info._tuned([]))
    monkeypatch.setenv("XGEMM_TUNE_CACHE", str(file))
    assert f"nothing yet in {file}" in info._tuned_words(info._tuned([]))
    tuned.add(file, [record({"a": 1.0}), record({"a": 1.0}, gpu=A100)])
    here = [{"name": "NVIDIA A100", "sm": 80, "multiprocessors": 108}]
    assert info._tuned_words(info._tuned(here)) == f"{file}: 2 records, 1 for GPU 0"
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tuned"]["records"] == 2
    file.write_text("else")
    assert "line 1: not a file" in info._tuned_words(info._tuned([]))


# What auto makes of it


def fastest(key, **about):
    return record({key: 1.0, "gone 8x8x8": 0.5}, **about)


def key_of(stage):
    return next(key for key, row in ROWS.items() if row.stage == stage)


def test_every_row_can_be_taken(file):
    """Its name here is its name there, in both layouts of what is special."""
    for key, row in ROWS.items():
        if row.split_k:
            continue
        tuned.add(file, [fastest(key)])
        tuned.load(file)
        assert chosen() == key
        assert explained()["why"].startswith("tuned 1.0 us on NVIDIA H200, 20")


def test_a_batch_is_found_again(file):
    tuned.add(file, [fastest(key_of("naive"), batch=12), fastest(key_of("coalesced"))])
    tuned.load(file)
    assert chosen(batch=12) == key_of("naive") and chosen() == key_of("coalesced")
    assert not explained(batch=13)["why"].startswith("tuned")


def test_a_stage_by_its_name_has_the_row_that_was_tuned(file):
    for key, row in ROWS.items():
        if row.stage != "cp_async_pipelined":
            continue
        tuned.add(file, [record({key_of("naive"): 1.0, key: 2.0}, precision="ieee")])
        tuned.load(file)
        by_name = [
            c["row"]
            for c in explained(precision="ieee")["candidates"]
            if c["kernel"] == row.stage and c["by_name"]
        ]
        assert by_name == [row.row]


@pytest.mark.parametrize("layout", contenders.LAYOUTS)
def test_the_check_looks_at_the_end_of_a_batch(layout, monkeypatch):
    p = Problem("", 9, 7, 70, layout, 3)
    rows = [ROWS[key_of(name)] for name in ("naive", "coalesced", "mma_fp16x3")]
    assert trials.check(p, rows, "cpu") == []
    right = trials.stage_call

    def wrong(row, layout):
        call = right(row, layout)

        def change(a, b):
            out = call(a, b)
            out[-1, -1, 3] *= 1 + (row.stage != "naive") * 2**-6
            return out

        return change

    monkeypatch.setattr(trials, "stage_call", wrong)
    assert {f.key for f in trials.check(p, rows, "cpu")} == {row.key for row in rows[1:]}


def test_the_check_knows_the_chains_of_a_batch():
    p = Problem("", 2, 3, 800, "NN", 16)
    share = xgemm_torch.split_k_size
    assert 0 < share(2, 3, 800) != share(2, 3, 800, 16) > 0
    rows = [row for row in ROWS.values() if row.split_k]
    assert rows and trials.check(p, rows, "cpu") == []


@pytest.mark.parametrize("layout", contenders.LAYOUTS)
@pytest.mark.parametrize("size", [(1000, 600, 500), (1, 600, 500), (1000, 1, 500), (33, 35, 1)])
def test_a_problem_is_found_again(size, layout, file):
    m, n, k = size
    tuned.add(file, [fastest(key_of("naive"), m=m, n=n, k=k, layout=layout)])
    tuned.load(file)
    assert chosen(m=m, n=n, k=k, layout=layout) == key_of("naive")


def test_nothing_else_is_changed(file):
    asked = {
        "another size": {"m": 1001}, "a batch": {"batch": 2}, "another layout": {"layout": "NT"},
        "another precision": {"precision": "ieee"}, "another GPU": {"gpu": A100},
        "another name": {"gpu": dataclasses.replace(H200, name="NVIDIA H100")},
    }  # fmt: skip
    before = {name: explained(**about) for name, about in asked.items()}
    plain = explained()
    tuned.add(file, [fastest(key_of("naive"))])
    tuned.load(file)
    assert chosen() == key_of("naive")
    assert {name: explained(**about) for name, about in asked.items()} == before
    tuned.clear()
    assert explained() == plain


def test_the_contract_is_kept_whatever_the_file_says(file):
    parts = [key for key, row in ROWS.items() if not row.strict]
    before = chosen(precision="ieee")
    tuned.add(file, [record(dict.fromkeys(parts, 1.0), precision="ieee")])
    tuned.load(file)
    assert chosen(precision="ieee") == before
    strict = key_of("coalesced")
    tuned.add(file, [record(dict.fromkeys(parts, 1.0) | {strict: 9.0}, precision="ieee")])
    tuned.load(file)
    assert chosen(precision="ieee") == strict
    splits = key_of("split_k")
    tuned.add(file, [record({splits: 1.0, strict: 9.0})])
    tuned.load(file)
    assert chosen() == strict


def test_rows_that_are_gone_are_passed_over(file):
    plain = explained()
    tuned.add(file, [record({"gone 8x8x8": 0.5})])
    tuned.load(file)
    assert explained() == plain


def test_what_explain_says(file, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    key = key_of("vec4_128x128")
    tuned.add(file, [record({key: 12.34, key_of("naive"): 100.0})])
    tuned.load(file)
    found = xgemm_torch.explain(1000, 600, 500)
    date = tuned.read(file)[0].date
    assert found.why.startswith(f"tuned 12.3 us on NVIDIA H200, {date}; next naive 32x32x1, 710.4%")
    assert sum(c.basis == "tuned" for c in found.candidates) == 2
    assert main(["explain", "1000", "600", "500", "--sm", "90", "--sm-count", "132"]) == 0
    assert "tuned 12.3 us on NVIDIA H200" in " ".join(capsys.readouterr().out.split())


def test_a_bad_file_is_refused_and_changes_nothing(file):
    tuned.add(file, [fastest(key_of("naive"))])
    tuned.load(file)
    file.write_text("else")
    with pytest.raises(ValueError, match="line 1: not a file of tuned problems"):
        tuned.load(file)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        tuned.load(file.with_name("none"))
    with pytest.raises(ValueError, match="line 1: not a file of tuned problems"):
        tuned.add(file, [])
    assert chosen() == key_of("naive") and file.read_text() == "else"


def in_a_process(code, **variables):
    """Runs code in a process of its own, without the variables that are None; what it printed."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
        env={name: value for name, value in environment.items() if value is not None},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


WHY = "print(xgemm_torch.explain(1000, 600, 500).why)\n"


def test_the_users_file_is_read_when_auto_is_first_asked(file):
    tuned.add(file, [fastest(key_of("naive"))])
    # Moved away after the import: the import has not read it. Put back after the first choice: it
    # is not read again.
    moves = (
        "import os, xgemm_torch\n"
        f"os.rename({str(file)!r}, {str(file) + '.away'!r})\n"
        f"{WHY}os.rename({str(file) + '.away'!r}, {str(file)!r})\n{WHY}"
        "print(xgemm_torch.tuned.load())\n" + WHY
    )
    first, second, count, last = in_a_process(moves, XGEMM_TUNE_CACHE=str(file))
    assert not first.startswith("tuned") and second == first
    assert count == "1" and last.startswith("tuned 1.0 us")
    code = f"import xgemm_torch\n{WHY}"
    assert in_a_process(code, XGEMM_TUNE_CACHE=str(file))[0].startswith("tuned 1.0 us")
    assert in_a_process(code, XGEMM_TUNE_CACHE="") == [first]
    cleared = f"import xgemm_torch\nxgemm_torch.tuned.clear()\n{WHY}"
    assert in_a_process(cleared, XGEMM_TUNE_CACHE=str(file)) == [first]


@pytest.mark.parametrize("filter_", ["always", "error"])
def test_a_bad_file_is_warned_of_once(filter_, file):
    file.parent.mkdir()
    file.write_text("else")
    code = (
        "import warnings, xgemm_torch\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        f"    warnings.simplefilter({filter_!r})\n"
        "    why = [xgemm_torch.explain(1000, 600, 500).why for _ in range(3)]\n"
        "print(*[str(w.message) for w in seen], sep='\\n')\n"
        "print(len(set(why)), why[0])\n"
    )
    warned, why = in_a_process(code, XGEMM_TUNE_CACHE=str(file))
    assert not why.startswith("1 tuned") and why.startswith("1 ")
    if filter_ == "always":
        assert warned == (
            "xgemm_torch chooses without the user's tuned problems: "
            f"{file}, line 1: not a file of tuned problems, "
            'which begins with "xgemm_torch tuned 1"'
        )


def test_threads_choose_while_others_load(file):
    keys = [key_of("naive"), key_of("coalesced")]
    files = [file.with_name(name) for name in "ab"]
    for key, path in zip(keys, files, strict=True):
        tuned.add(path, [fastest(key)])
    allowed, seen, stop = {*keys, chosen()}, set(), threading.Event()

    def choose():
        while not stop.is_set():
            seen.add(chosen())

    threads = [threading.Thread(target=choose) for _ in range(4)]
    for thread in threads:
        thread.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(100):
            for path in files:
                tuned.load(path)
            tuned.clear()
    stop.set()
    for thread in threads:
        thread.join()
    assert seen <= allowed and seen


RACE = """
#include <cstdio>
#include <thread>
#include "xgemm/dispatch/select.h"
#include "xgemm/dispatch/tuned_cache.h"
using namespace xgemm;
static const Tile kTile{.BM = 32, .BN = 32, .BK = 1, .buffers = 0};
static void one(const Gemm&, const Context&) {}
static void two(const Gemm&, const Context&) {}
static const Register<one> kOne{Flavour::cuda, {.name = "one", .rung = 1, .tiles = {kTile}}};
static const Register<two> kTwo{Flavour::cuda, {.name = "two", .rung = 2, .tiles = {kTile}}};
int main(int, char** files) {
  const Selector selector(stages(Flavour::cuda), Table{});
  const auto choose = [&] {
    Gemm g;
    g.m = 1000, g.n = 600, g.k = 500;
    g.a = {reinterpret_cast<const float*>(16), 500, 1, 0};
    g.b = {reinterpret_cast<const float*>(16), 600, 1, 0};
    int ones = 0;
    for (int i = 0; i < 2000; ++i) {
      const auto tuned = tuned_cache([](const std::string& text) { std::puts(text.c_str()); });
      const Device device{.sm = 90, .sm_count = 132};
      const TunedGpu* const gpu = tuned ? tuned->cuda.on(device, "NVIDIA H200") : nullptr;
      ones += selector.pick(g, device, true, kAnyWorkspace, gpu).stage->name == "one";
    }
    return ones;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(choose);
  for (int i = 0; i < 200; ++i) {
    load_tuned(files[1]);
    if (i % 3 == 0) clear_tuned();
  }
  for (std::thread& t : threads) t.join();
  load_tuned(files[1]);
  const int with = choose();
  clear_tuned();
  std::printf("%d %d\\n", with, choose());
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sanitizer's options")
def test_threads_under_the_sanitizer(file, tmp_path):
    """Four threads choose, the file being read by the first, while another loads and clears."""
    tuned.add(
        file, [fastest("one 32x32x1 0x0 1x1 0 buffers, 1 a multiprocessor", precision="ieee")]
    )
    (tmp_path / "main.cpp").write_text(RACE)
    (tmp_path / "table.inc").write_text("static const Table table{};")
    sources = (
        "core/stage.cpp", "dispatch/select.cpp", "dispatch/tuned.cpp", "dispatch/tuned_cache.cpp"
    )  # fmt: skip
    command = [
        "g++", "-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{ROOT / 'csrc'}",
        f'-DXGEMM_SELECT_TABLE="{tmp_path / "table.inc"}"', tmp_path / "main.cpp",
        *(ROOT / "csrc" / "xgemm" / source for source in sources), "-o", tmp_path / "race",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    # Its shadow memory has a fixed place, which some kernels' address randomization takes.
    done = subprocess.run(
        ["setarch", os.uname().machine, "-R", tmp_path / "race", file], capture_output=True,
        text=True, env={**os.environ, "XGEMM_TUNE_CACHE": str(file)}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "2000 0\n" and "ThreadSanitizer" not in done.stderr


# On a GPU


@pytest.mark.gpu
def test_a_small_problem_is_tuned_and_taken(file, capsys):
    m, n, k = 200, 136, 72
    arguments = ["tune", str(m), str(n), str(k), "--layout", "NT", "--cache", str(file)]
    assert main(arguments) == 0, capsys.readouterr().out
    records = {r.precision: r for r in tuned.read(file)}
    assert set(records) == {"fp32", "ieee"}
    # A row that is no one's choice without the file.
    slowest = {name: max(r.times, key=lambda row: r.times[row]) for name, r in records.items()}
    tuned.add(file, [
        dataclasses.replace(r, times={slowest[name]: 1.0}) for name, r in records.items()
    ])  # fmt: skip
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    tuned.load(file)
    for precision, key in slowest.items():
        found = xgemm_torch.explain(a, b, trans_b=True, precision=precision)
        assert (found.kernel, found.row) == (ROWS[key].stage, ROWS[key].row)
        assert found.why.startswith("tuned 1.0 us on")
        with xgemm_torch.simt.configure(row=found.row):
            want = xgemm_torch.sgemm(a, b, trans_b=True, kernel=found.kernel)
        got = xgemm_torch.sgemm(a, b, trans_b=True, precision=precision)
        assert torch.equal(got, want)


@pytest.mark.gpu
def test_the_operator_itself_reads_the_file(file):
    """It needs no Python on the way: not to read, nor to warn from a thread without its lock."""
    file.parent.mkdir()
    file.write_text("else")
    code = (
        "import warnings, torch, xgemm_torch\n"
        "a = torch.randn(64, 64, device='cuda')\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    for _ in range(3):\n"
        "        torch.ops.xgemm.sgemm(a, a)\n"
        "print(*[str(w.message) for w in seen if 'xgemm' in str(w.message)], sep='\\n')\n"
    )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    (warned,) = in_a_process(code, XGEMM_TUNE_CACHE=str(file), CUDA_VISIBLE_DEVICES=visible)
    assert f"{file}, line 1: not a file of tuned problems" in warned
