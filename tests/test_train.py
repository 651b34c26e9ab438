"""The main job: its text, its model, its checkpoints (a process really is killed), its report."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import xgemm_torch
from xgemm_torch.__main__ import main
from xgemm_torch.tools import console
from xgemm_torch.train import checkpoint, config, data, job, loop, measure, model, report

TINY = ["--size", "tiny", "--device", "cpu"]


def tiny(**chosen):
    return config.make("tiny", "cpu", **chosen)


@pytest.fixture(scope="module")
def corpus():
    return data.load(size_cap=1 << 19)


# The text


def test_text_is_the_same_every_time_and_within_its_cap(corpus):
    again = data.load(size_cap=1 << 19)
    assert again.fingerprint == corpus.fingerprint
    assert torch.equal(again.train, corpus.train)
    assert len(corpus.train) + len(corpus.validation) <= (1 << 19) + len(corpus.files) + 64
    assert data.load(size_cap=1 << 18).fingerprint != corpus.fingerprint


def test_validation_files_are_not_trained_on(corpus):
    assert len(corpus.validation_files) >= 2
    assert not set(corpus.files) & set(corpus.validation_files)
    assert all(not data.SKIPPED & set(Path(name).parts) for name in corpus.files)


def test_text_of_a_folder(tmp_path):
    for number in range(20):
        (tmp_path / f"m{number}.py").write_text(f"def f():\n        return {number}  \n" * 600)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "t.py").write_text("never\n" * 100)
    (tmp_path / "notes.txt").write_text("never\n" * 100)
    text = data.load(tmp_path)
    assert len(text.files) == 18 and len(text.validation_files) == 2
    both = bytes(text.train.tolist()) + bytes(text.validation.tolist())
    assert b"never" not in both
    assert b"def f():\n\t\treturn " in both  # four spaces of indentation became a tab
    assert b"  " not in both


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="only 0 bytes"):
        data.load(tmp_path)


def test_batches_go_on_from_their_state(corpus):
    batches = data.Batches(corpus.train, 3, 16, seed=5)
    batches.next()
    state = batches.state()
    wanted = [batches.next() for _ in range(3)]
    other = data.Batches(corpus.train, 3, 16, seed=99)
    other.restore(state)
    for ids, targets in wanted:
        again, again_targets = other.next()
        assert torch.equal(ids, again) and torch.equal(targets, again_targets)
        assert torch.equal(ids[:, 1:], targets[:, :-1])
        assert ids.shape == (3, 16) and ids.dtype == torch.int64


def test_every_window_can_be_drawn_and_none_beyond_the_end():
    text = torch.arange(10, dtype=torch.uint8)
    batches = data.Batches(text, 64, 8, seed=0)
    starts = {int(start) for _ in range(4) for start in batches.next()[0][:, 0]}
    assert starts == {0, 1}
    with pytest.raises(ValueError, match="seq is 9"):
        data.Batches(text, 1, 9, seed=0)


# The model


@pytest.mark.parametrize("size", list(model.SHAPES))
def test_parameter_count(size):
    with torch.device("meta"):
        gpt = model.GPT(model.SHAPES[size])
    assert sum(p.numel() for p in gpt.parameters()) == model.SHAPES[size].parameters()


def test_gpt2_has_gpt2s_dimensions():
    assert model.SHAPES["gpt2"].parameters() == 124_439_808


def test_every_product_is_a_linear_and_the_head_stays_tied():
    gpt = model.GPT(model.SHAPES["tiny"]).initialize(0)
    rows = xgemm_torch.convert(gpt)
    assert len(rows.swapped) == 5 and not rows.skipped
    assert gpt.head.weight is gpt.tokens.weight


def test_initialization_depends_on_the_seed_alone():
    torch.manual_seed(1)
    one = model.GPT(model.SHAPES["tiny"]).initialize(7).state_dict()
    torch.manual_seed(2)
    other = model.GPT(model.SHAPES["tiny"]).initialize(7).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    different = model.GPT(model.SHAPES["tiny"]).initialize(8).state_dict()
    assert not torch.equal(one["head.weight"], different["head.weight"])


def test_no_position_sees_a_later_one():
    gpt = model.GPT(model.SHAPES["tiny"]).initialize(0)
    ids = torch.randint(0, 256, (1, 12))
    changed = ids.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 256
    one, other = gpt(ids), gpt(changed)
    assert torch.equal(one[:, :7], other[:, :7])
    assert not torch.equal(one[:, 7], other[:, 7])


def test_sample_repeats_and_goes_on_from_its_prompt():
    gpt = model.GPT(model.SHAPES["tiny"]).initialize(0)
    one = gpt.generate(b"def ", 40, window=16, seed=3)
    assert one == gpt.generate(b"def ", 40, window=16, seed=3)
    assert one.startswith(b"def ") and len(one) == 44
    assert one != gpt.generate(b"def ", 40, window=16, seed=4)
    assert gpt.training


# Settings


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"seq": 33}, "seq is 33, but tiny has a context of 32"),
        ({"dropout": 1.0}, "dropout must be in"),
        ({"learning_rate": 0.0}, "lr must be above 0 and finite, got 0.0"),
        ({"learning_rate": math.inf}, "lr must be above 0 and finite, got inf"),
        ({"learning_rate": math.nan}, "lr must be above 0 and finite, got nan"),
        ({"seed": -1}, "seed must be from 0"),
    ],
)
def test_bad_settings(chosen, message):
    with pytest.raises(ValueError, match=message):
        tiny(**chosen)


def test_settings_survive_their_file(tmp_path):
    settings = tiny(steps=7, dropout=0.25)
    path = tmp_path / "config.json"
    path.write_text(settings.to_json())
    assert config.Config.load(path) == settings
    assert settings.difference({"steps": 7}) == []
    assert settings.difference({"steps": 8}) == ["steps 8 (the run has 7)"]
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a job's settings"):
        config.Config.load(path)


# Checkpoints


def test_a_changed_bit_anywhere_is_found(tmp_path):
    path = tmp_path / "checkpoint.pt"
    state = {"current": {"w": torch.arange(300.0)}, "losses": [1.0, 2.0], "part": "stock"}
    checkpoint.save(path, state)
    good = path.read_bytes()
    assert torch.equal(checkpoint.load(path)["current"]["w"], state["current"]["w"])
    for at in range(0, len(good), 7):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=f"train: {path} cannot be read: ") as fault:
            checkpoint.load(path)
        assert "\n" not in str(fault.value)
    for length in range(0, len(good), 101):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError, match=f"train: {path} cannot be read: "):
            checkpoint.load(path)
    path.write_bytes(good)
    assert checkpoint.load(path)["part"] == "stock"


def test_a_checkpoint_without_its_sum_is_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"format": checkpoint.FORMAT, "runs": {}}, path)
    with pytest.raises(ValueError, match="the sum at its end is missing"):
        checkpoint.load(path)


def test_one_process_trains_in_a_folder(tmp_path, capsys):
    arguments = ["train", *TINY, "--steps", "2", "--no-plot", "--out", str(tmp_path)]
    with checkpoint.alone_in(tmp_path):
        assert main(arguments) == 2
    assert f"another process trains in {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "config.json").exists(), "nothing was begun"
    assert main(arguments) == 0
    with checkpoint.alone_in(tmp_path):
        assert main([*arguments, "--resume"]) == 2
    assert f"another process trains in {tmp_path}" in capsys.readouterr().err


def test_checkpoint_of_another_format_is_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    assert checkpoint.load(path) is None
    torch.save({"format": 99}, path)
    with pytest.raises(ValueError, match="has format 99"):
        checkpoint.load(path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match=f"{path} is no checkpoint: it holds a list"):
        checkpoint.load(path)
    for broken in (b"", path.read_bytes()[:100], b"no checkpoint at all"):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=f"{path} cannot be read"):
            checkpoint.load(path)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_restored_trainer_goes_on_bit_for_bit(corpus, dropout, tmp_path):
    settings = tiny(steps=12, dropout=dropout)
    whole = loop.Trainer(settings, corpus, lambda gpt: ())
    for _ in range(12):
        whole.advance()
    whole.read()
    first = loop.Trainer(settings, corpus, lambda gpt: ())
    for _ in range(5):
        first.advance()
    checkpoint.save(tmp_path / "c.pt", first.state())
    torch.manual_seed(123456)  # what happens between must not matter
    second = loop.Trainer(settings, corpus, lambda gpt: ())
    second.restore(checkpoint.load(tmp_path / "c.pt"))
    while second.step < 12:
        second.advance()
    second.read()
    assert second.losses == whole.losses
    for one, other in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert second.step_ms[:3] == [None] * 3 and None not in second.step_ms[3:5]


def test_a_loss_that_is_not_finite_stops_the_run(corpus):
    trainer = loop.Trainer(tiny(), corpus, lambda gpt: ())
    with torch.no_grad():
        trainer.model.norm.weight.fill_(float("nan"))
    trainer.advance()
    with pytest.raises(FloatingPointError, match="the loss of step 1 is nan"):
        trainer.read()


def test_learning_rate_rises_and_falls(corpus):
    trainer = loop.Trainer(tiny(steps=100), corpus, lambda gpt: ())
    rates = [trainer.learning_rate(step) for step in range(100)]
    top = rates.index(max(rates))
    assert max(rates) == trainer.config.learning_rate and top <= 5
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(0.1 * max(rates), rel=0.01)


# The whole job, in processes of its own


def command(folder, *more):
    return [
        sys.executable, "-m", "xgemm_torch", "train", *TINY, "--out", str(folder), "--no-plot",
        *more,
    ]  # fmt: skip


ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(
        [str(Path(xgemm_torch.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ),
}
LONG = ["--steps", "120", "--checkpoint-every", "10", "--dropout", "0.1"]


def start(*arguments):
    return subprocess.Popen(
        arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(*arguments):
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kill_when(process, folder, reached, number=signal.SIGKILL):
    """Send a signal as soon as the run's checkpoint satisfies ``reached``."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stdout.read()
        state = checkpoint.load(folder / "checkpoint.pt")
        if state is not None and reached(state):
            process.send_signal(number)
            output = process.communicate()[0]
            return state, output
        time.sleep(0.002)
    process.kill()
    raise AssertionError("the run did not get there in 90 s")


def steps_of(state):
    return [state["runs"][name]["step"] for name in config.RUNS]


def same_runs(one, other, steps):
    """Hold that two jobs gave the same bits, and all of ``steps`` steps."""
    one, other = (json.loads((f / "summary.json").read_text())["runs"] for f in (one, other))
    for run in config.RUNS:
        assert len(other[run]["losses"]) == len(other[run]["step_ms"]) == steps
        for told in ("losses", "validation", "sample"):
            assert other[run][told] == one[run][told]


def test_killed_and_resumed_gives_the_losses_of_an_uninterrupted_run(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish(*command(whole, *LONG))
    process = start(*command(cut, *LONG))
    state, _ = kill_when(process, cut, lambda s: steps_of(s) >= [50, 50])
    assert process.returncode == -signal.SIGKILL and len(set(steps_of(state))) == 1
    assert not (cut / "summary.json").exists()
    # A write that the kill cut short leaves a partial file, which must mean nothing.
    (cut / "checkpoint.pt.partial").write_bytes(b"half a checkpoint")
    output = finish(*command(cut, "--resume"))
    assert re.search(
        r"resuming after (\d+) steps of stock and \1 steps of converted, of 120", output
    )
    same_runs(whole, cut, 120)


def test_a_full_disk_is_a_line_and_what_was_saved_stays(tmp_path):
    """Files of at most 64 KiB stand for it: a checkpoint has more, all others have less."""
    folder = tmp_path / "run"
    arguments = ["--steps", "8", "--checkpoint-every", "3"]
    limited = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))\n"
        "from xgemm_torch.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    before = None
    for resume in (arguments, ["--resume"]):
        full = [sys.executable, "-c", limited, *command(folder, *resume)[3:]]
        done = subprocess.run(full, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.strip().splitlines()[-1] == (
            f"error: train: {folder}/checkpoint.pt cannot be written: File too large; what was "
            f"saved before is as it was: python -m xgemm_torch train --resume --out {folder}"
        )
        assert not list(folder.glob("*.partial"))
        if before is None:  # now with one of an interrupted run
            process = start(*command(tmp_path / "other", "--steps", "100000",
                                     "--checkpoint-every", "3"))  # fmt: skip
            kill_when(process, tmp_path / "other", steps_of)
            before = (tmp_path / "other" / "checkpoint.pt").read_bytes()
            (folder / "checkpoint.pt").write_bytes(before)
            (folder / "config.json").write_bytes((tmp_path / "other/config.json").read_bytes())
    assert (folder / "checkpoint.pt").read_bytes() == before


def test_a_damaged_checkpoint_is_a_line_and_stays(finished, tmp_path, capsys):
    damaged = bytearray((finished / "checkpoint.pt").read_bytes())
    damaged[len(damaged) // 2] ^= 1  # of a weight
    (tmp_path / "checkpoint.pt").write_bytes(damaged)
    (tmp_path / "config.json").write_text((finished / "config.json").read_text())
    assert main(["train", "--resume", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: train: {tmp_path}/checkpoint.pt cannot be read: its bytes are not those that were "
        "written (SHA-256)\n"
    )
    assert (tmp_path / "checkpoint.pt").read_bytes() == damaged


def test_asked_to_stop_it_saves_its_place_and_says_how_to_go_on(tmp_path):
    folder = tmp_path / "run"
    process = start(*command(folder, "--steps", "100000", "--checkpoint-every", "20"))
    _, output = kill_when(process, folder, steps_of, signal.SIGTERM)
    assert process.returncode == 130
    assert "nothing is lost" in output and "--resume" in output
    state = checkpoint.load(folder / "checkpoint.pt")
    stock, converted = steps_of(state)
    assert f"stopped after {stock} steps of stock and {converted} steps of converted;" in output
    assert converted >= 20 and stock - converted in (0, 1)
    assert [len(state["runs"][name]["losses"]) for name in config.RUNS] == [stock, converted]


@contextlib.contextmanager
def small_jobs(corpus):
    """Jobs of twelve steps, with dropout, so that each step draws random numbers."""
    check = {"kernel": "", "against": "", "model": "", "steps": 0, "numbers_compared": 0,
             "unequal": [], "equal": True}  # fmt: skip
    shares = {"total_ms": 4.0, "gemm_ms": 2.0, "attention_ms": 1.0, "gemm_share": 0.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "load", lambda: corpus)
        patch.setattr(job, "SAMPLE_BYTES", 8)
        patch.setattr(measure, "check_bits", lambda settings, corpus: check)
        patch.setattr(measure, "time_shares", lambda trainer: shares)
        settings, out = tiny(steps=12, dropout=0.1), console.console()
        yield lambda folder: job.Job(settings, folder, checkpoint_every=5, plot=False, console=out)


@pytest.fixture
def small_job(corpus):
    with small_jobs(corpus) as make:
        yield make


def stops_after(steps, monkeypatch, run, requests):
    """Run a job that finds requests to stop in a list: it stops there, and has saved all."""
    with monkeypatch.context() as patch:
        patch.setattr(job, "_stop_requests", lambda: contextlib.nullcontext(requests))
        run.start()
        told = "stopped after {} steps of stock and {} steps of converted".format(*steps)
        with pytest.raises(job.Interrupted, match=told):
            run.run()
    saved = checkpoint.load(run.folder / "checkpoint.pt")
    assert steps_of(saved) == list(steps)
    assert [len(saved["runs"][name]["losses"]) for name in config.RUNS] == list(steps)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("uncut")
    with small_jobs(corpus) as make:
        run = make(folder)
        run.start()
        run.run()
    return folder


@pytest.mark.parametrize("step", [1, 7, 12], ids=["first", "middle", "last"])
@pytest.mark.parametrize(
    ("name", "moment"),
    [("stock", "advance"), ("converted", "advance"), ("converted", "due"), ("stock", "read"),
     ("converted", "read")],
)  # fmt: skip
def test_a_request_to_stop_at_any_moment_of_a_step_loses_no_step(
    monkeypatch, tmp_path, small_job, name, moment, step
):
    """Within a step it stops behind it; where both losses are read, behind the turn."""
    requests: list[int] = []
    plain = getattr(loop.Trainer, moment)

    def asked(trainer, *arguments):
        run = "converted" if trainer.prepared else "stock"
        if (run, trainer.step) == (name, step - (moment == "advance")):
            requests.append(signal.SIGTERM)
        return plain(trainer, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, moment, asked)
        between = moment == "advance" and name == "stock"
        stops_after((step, step - between), monkeypatch, small_job(tmp_path), requests)


@pytest.mark.parametrize("steps", [(0, 0), (1, 0), (4, 4), (7, 6), (12, 11), (12, 12)], ids=str)
def test_a_stop_in_either_run_changes_no_bit_of_the_losses(
    monkeypatch, tmp_path, small_job, uncut, steps
):
    requests: list[int] = []
    plain = loop.Trainer.advance
    done = [0]

    def counted(trainer):
        plain(trainer)
        done[0] += 1
        if done[0] == sum(steps):
            requests.append(signal.SIGINT)

    if steps == (0, 0):
        requests.append(signal.SIGINT)
    monkeypatch.setattr(loop.Trainer, "advance", counted)
    stops_after(steps, monkeypatch, small_job(tmp_path), requests)
    again = small_job(tmp_path)
    again.resume()
    again.run()
    same_runs(uncut, tmp_path, 12)


def test_the_runs_take_turns_and_each_has_the_losses_that_it_has_alone(
    monkeypatch, tmp_path, small_job, uncut
):
    order = []
    plain = loop.Trainer.advance

    def noted(trainer):
        order.append("converted" if trainer.prepared else "stock")
        plain(trainer)

    run = small_job(tmp_path)
    run.start()
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "advance", noted)
        run.run()
    assert order == [*config.RUNS] * 12
    same_runs(uncut, tmp_path, 12)
    runs = json.loads((tmp_path / "summary.json").read_text())["runs"]
    for name, prepare in zip(
        config.RUNS, (lambda gpt: (), measure.prepare(run.config)), strict=True
    ):
        alone = loop.Trainer(run.config, run.corpus, prepare)
        for _ in range(12):
            alone.advance()
        alone.read()
        assert runs[name]["losses"] == alone.losses


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    with torch.random.fork_rng():
        before = torch.get_rng_state()
        code = main(["train", *TINY, "--steps", "60", "--out", str(folder)])
        assert torch.equal(torch.get_rng_state(), before)
    assert code == 0
    return folder


def test_summary_of_a_finished_job(finished):
    summary = json.loads((finished / "summary.json").read_text())
    for run in summary["runs"].values():
        assert len(run["losses"]) == len(run["step_ms"]) == 60
        assert run["final_loss"] < run["first_loss"] - 1.0
        assert run["median_step_ms"] > 0 and 0 < run["shares"]["gemm_share"] < 1
    stock, converted = (summary["runs"][name]["losses"] for name in config.RUNS)
    gap = max(abs(one - other) for one, other in zip(stock, converted, strict=True))
    assert summary["difference"]["largest"] == gap < 1e-3
    assert summary["interleaved_ms"] == {
        name: summary["runs"][name]["median_step_ms"] for name in config.RUNS
    }
    # By auto, which is ATen on a CPU, nothing runs that could be made anew: no word, and no zero.
    assert "recomputed" not in {*summary, *(key for run in summary["runs"].values() for key in run)}
    assert [row["swapped"] for row in summary["layers"]] == [True] * 5
    assert summary["check"]["equal"] and summary["check"]["kernel"] == "vec4_128x128"
    assert summary["check"]["numbers_compared"] > 40_000


def test_every_product_of_every_layer_is_named(finished):
    rows = json.loads((finished / "summary.json").read_text())["products"]
    assert len(rows) == 15
    names = {stage.name for stage in xgemm_torch.stages()}
    up = {row["product"]: row for row in rows if row["layer"] == "blocks.*.mlp.up"}
    sizes = {name: (row["m"], row["n"], row["k"], row["layout"]) for name, row in up.items()}
    assert sizes == {
        "forward": (32, 128, 32, "NT"), "grad_x": (32, 32, 128, "NN"), "grad_w": (128, 32, 32, "TN")
    }  # fmt: skip
    assert all(row["kernel_on_h200"] in names for row in rows)


def test_files_of_a_finished_job(finished):
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "sample.txt").read_text().startswith("    def __init__(self")
    listed = (finished / "files.txt").read_text().splitlines()
    assert sum(line.startswith("train ") for line in listed) > 100
    assert sum(line.startswith("validation ") for line in listed) > 10


def test_a_run_is_never_overwritten(finished, capsys):
    assert main(["train", *TINY, "--out", str(finished)]) == 2
    assert "holds a run" in capsys.readouterr().err


def test_resume_keeps_the_settings(finished, capsys):
    assert main(["train", "--resume", "--out", str(finished), "--steps", "61"]) == 2
    assert "steps 61 (the run has 60)" in capsys.readouterr().err


def test_nothing_to_resume(tmp_path, capsys, monkeypatch):
    assert main(["train", "--resume", "--out", str(tmp_path / "none")]) == 2
    assert "nothing to resume in" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume"]) == 2
    assert "no unfinished run" in capsys.readouterr().err


def test_another_text_is_not_resumed(finished, tmp_path, capsys, monkeypatch):
    state = checkpoint.load(finished / "checkpoint.pt")
    checkpoint.save(tmp_path / "checkpoint.pt", {**state, "fingerprint": "0" * 16})
    (tmp_path / "config.json").write_text((finished / "config.json").read_text())
    assert main(["train", "--resume", "--out", str(tmp_path)]) == 2
    assert "not the text that the run began with" in capsys.readouterr().err


def _without(*way):
    def change(state):
        *above, last = way
        for key in above:
            state = state[key]
        del state[last]

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_without("fingerprint"), "its 'fingerprint' is missing or wrong"),
        (_without("environment"), "its 'environment' is missing or wrong"),
        (_without("runs", "stock", "losses"), "its 'runs' is missing or wrong"),
        (_without("runs", "converted"), "its 'runs' is missing or wrong"),
        (lambda state: state.update(runs=[1]), "its 'runs' is missing or wrong"),
        (lambda state: state["runs"].update(stock=None), "its 'runs' is missing or wrong"),
        (
            _without("runs", "converted", "model", "norm.weight"),
            "does not fit this run: RuntimeError: Error.s. in loading state_dict for GPT: Missing",
        ),
        (
            _without("runs", "stock", "optimizer", "state"),
            "does not fit this run: KeyError: 'state'",
        ),
    ],
)
def test_a_checkpoint_that_lacks_something_is_told_in_a_line(
    finished, change, text, tmp_path, capsys
):
    state = checkpoint.load(finished / "checkpoint.pt")
    change(state)
    checkpoint.save(tmp_path / "checkpoint.pt", state)
    (tmp_path / "config.json").write_text((finished / "config.json").read_text())
    assert main(["train", "--resume", "--no-plot", "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: train: {tmp_path / 'checkpoint.pt'} ")
    assert re.search(text, line)


def test_a_run_that_diverges_is_told_in_a_line(tmp_path, capsys):
    arguments = ["--steps", "5", "--lr", "1e30", "--no-plot", "--out", str(tmp_path)]
    assert main(["train", *TINY, *arguments]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch("error: train: the loss of step . is nan; a smaller --lr may help", last)


def test_training_through_the_emulator_is_refused(tmp_path, capsys):
    arguments = ["train", "--size", "nano", "--kernel", "naive", "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    assert "--check-kernel naive" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu(tmp_path, capsys):
    assert main(["train", "--device", "cuda", "--out", str(tmp_path / "run")]) == 2
    assert "torch sees no CUDA GPU" in capsys.readouterr().err


# Measurements and report


def test_the_bit_check_notices_one_changed_number(corpus, monkeypatch):
    convert = xgemm_torch.convert

    def changed(gpt, **options):
        rows = convert(gpt, **{**options, "kernel": "auto"})
        if options["kernel"] != "auto":
            with torch.no_grad():
                gpt.blocks[0].mlp.up.bias[0] += 2.0**-20
        return rows

    monkeypatch.setattr(xgemm_torch, "convert", changed)
    verdict = measure.check_bits(tiny(), corpus, steps=1)
    assert not verdict["equal"]
    assert any("mlp" in name for name in verdict["unequal"])


@pytest.mark.parametrize(
    ("op", "gemm"),
    [("aten::mm", True), ("aten::addmm", True), ("xgemm::sgemm", True), ("xgemm::naive", True),
     ("aten::add", False), ("aten::linear", False), ("xgemm::attention_backward", False)],
)  # fmt: skip
def test_which_operators_are_gemms(op, gemm):
    assert measure.is_gemm(op) == gemm


def summary_of(stock, converted):
    shares = {"total_ms": 4.0, "gemm_ms": 2.0, "attention_ms": 1.0, "gemm_share": 0.5}
    runs = {
        name: {"losses": losses, "step_ms": [None, 2.0, 4.0], "validation": 1.0, "shares": shares,
               "sample": "x"}
        for name, losses in zip(config.RUNS, (stock, converted), strict=True)
    }  # fmt: skip
    summary = {
        "config": json.loads(tiny(steps=3).to_json()), "parameters": 5, "runs": runs,
        "environment": {"device": "a machine"},
    }  # fmt: skip
    report.complete(summary)
    return summary


def test_differences_and_speeds():
    summary = summary_of([3.0, 2.0, 1.0], [3.0, 2.5, 1.25])
    assert summary["difference"] == {
        "largest": 0.5, "largest_at_step": 2, "first_nonzero_step": 2, "mean": 0.25
    }  # fmt: skip
    assert summary["runs"]["stock"]["median_step_ms"] == 3.0
    assert summary["runs"]["stock"]["tokens_per_s"] == pytest.approx(32 / 3e-3)
    assert summary_of([3.0, 2.0, 1.0], [3.0, 2.0, 1.0])["difference"]["first_nonzero_step"] is None


@pytest.mark.parametrize("converted", [[3.0, 2.0, 1.0], [3.0, 2.5, 1.25]])
def test_picture_of_equal_and_of_different_curves(converted, tmp_path):
    from xgemm_torch.tools import plotting

    plotting.training(summary_of([3.0, 2.0, 1.0], converted), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_sample_is_fit_for_a_terminal():
    assert report.printable(b"a\x1b[31m\xff\n") == "a\ufffd[31m\ufffd\n"
    assert report.printable(b"\tx") == "    x"
