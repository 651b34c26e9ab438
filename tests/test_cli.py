"""The command line: info, ladder, explain, and what it says to wrong arguments."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import xgemm_torch
from xgemm_torch import ops
from xgemm_torch.__main__ import COMMANDS, main
from xgemm_torch.course import ladder, race, stage_code
from xgemm_torch.explain import memory
from xgemm_torch.tools import accuracy, environment, explain_command, info, plotting

NAMES = [stage.name for stage in xgemm_torch.stages()]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
NO_GPU = not torch.cuda.is_available()


def python(code, *, tail=(), stdout=subprocess.PIPE):
    """Run code, or ``-m`` arguments, in a process of its own; gives the finished process."""
    root = str(Path(xgemm_torch.__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    arguments = [sys.executable, "-c", code] if code else [sys.executable, *tail]
    variables = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        arguments, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, env=variables
    )


# The entry


def test_info_in_a_process_of_its_own():
    done = python(None, tail=["-m", "xgemm_torch", "info", "--json"])
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["torch"] == str(torch.__version__)
    assert facts["stages"] == NAMES
    assert facts["load_error"] is None


@pytest.mark.parametrize(
    ("build", "kernels"),
    [
        ({"cuda": True, "cuda_version": "13.0", "archs": "8.0 9.0a"},
         "CUDA 13.0 kernels for 8.0 9.0a"),
        ({"cuda": False}, "no CUDA kernels"),
        (None, "the compiled module does not load: undefined symbol"),
    ],
    ids=["cuda", "no cuda", "does not load"],
)  # fmt: skip
def test_version_in_a_line(build, kernels, capsys, monkeypatch):
    module = build and SimpleNamespace(build_info=lambda: json.dumps(build))
    monkeypatch.setattr(info, "_compiled", lambda: (module, "undefined symbol"))
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    number = f"xgemm_torch {xgemm_torch.__version__}, torch {torch.__version__}"
    assert capsys.readouterr().out == f"{number}, {kernels}\n"


def test_version_of_this_build():
    done = python(None, tail=["-m", "xgemm_torch", "--version"])
    assert done.returncode == 0, done.stderr
    archs = json.loads(xgemm_torch._C.build_info()).get("archs")
    assert done.stdout == info.version() + "\n"
    assert (archs or "no CUDA kernels") in done.stdout


def test_xgemm_is_the_same_command(capsys, monkeypatch):
    """What the console script calls gives the exit code, and goes by the name it was called by."""
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/xgemm", "explain", "1", "2"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2 and "usage: xgemm explain" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/xgemm", "explain", "8", "8", "8", "--json"])
    assert main() == 0 and json.loads(capsys.readouterr().out)["kernel"]
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/xgemm", "ladder", "--size", "0"])
    assert main() == 2


def layout_option(command):
    """The option as the command declares it."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"xgemm_torch.{COMMANDS[command][0]}").add_options(parser)
    return parser, next((a for a in parser._actions if "--layout" in a.option_strings), None)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_problems_layout_is_asked_for_in_one_way(command):
    parser, option = layout_option(command)
    if option is None:
        assert command in (
            "info",
            "train",
            "demo",
            "exercise",
            "film",
            "bench",
            "report",
        )  # fmt: skip - they take no problem
        return
    assert list(option.choices) == ["NN", "NT", "TN", "TT"]
    assert option.help.startswith(layout_option("explain")[1].help.split(" (default")[0])
    assert option.default == (["NN"] if option.nargs else "NN")
    assert not {"--trans-a", "--trans-b"} & set(parser._option_string_actions)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_layouts_of_explain(layout, capsys):
    """The strides that the selector is asked about are those of the tensors."""
    assert main(["explain", "300", "200", "100", "--layout", layout, "--json"]) == 0
    at = {"trans_a": layout[0] == "T", "trans_b": layout[1] == "T", "sm": 90, "sm_count": 132}
    want = explain_command.choose(300, 200, 100, **at)
    assert NO_GPU is False or json.loads(capsys.readouterr().out) == want


def test_layouts_of_accuracy(monkeypatch, capsys):
    """The same operands in other memory: the chain's errors are the same, and say which it is."""
    found = {}
    for layout in ("NN", "TT"):
        main(["accuracy", "--size", "9", "--k", "5", "--layout", layout, "--json"])
        found[layout] = json.loads(capsys.readouterr().out)
        assert found[layout]["layout"] == layout
    errors = [[row["errors"]["chain"] for row in facts["rows"]] for facts in found.values()]
    assert errors[0] == errors[1]
    strides = [accuracy.stored(torch.ones(3, 4), turned).stride() for turned in (False, True)]
    assert strides == [(4, 1), (1, 3)]


def test_import_and_the_entry_stay_light():
    done = python(
        "import sys, torch\n"
        "before = set(sys.modules)  # torch brings some of these itself where they are installed\n"
        "import xgemm_torch, xgemm_torch.__main__\n"
        "new = set(sys.modules) - before\n"
        "heavy = new & {'matplotlib', 'rich', 'tqdm', 'pynvml'}\n"
        "assert not heavy, heavy\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["explain", "1", "2"], ["explain", "1", "2", "x"],
                  ["train", "--size", "huge"], ["train", "--kernel", "nope"]],
)  # fmt: skip
def test_wrong_arguments_exit_with_2_and_a_usage_line(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: python -m xgemm_torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["train", "demo", "info", "ladder", "explain", "tune", "accuracy"]
)
def test_help_of_every_command(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"usage: python -m xgemm_torch {command}" in capsys.readouterr().out


def test_help_names_the_defaults_and_no_stage_twice(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert text.count("smem_conflicted_1d") == 0 and "--kernel STAGE" in text
    for default in (
        "optimizer steps of each run; default: tiny 20, nano 600, small 600, gpt2 100",
        "rows a step; default: tiny 2, nano 16, small 16, gpt2 8",
        "bytes a row; default: tiny 16, nano 64, small 256, gpt2 1024",
        "peak learning rate; default: tiny 0.003, nano 0.003, small 0.001, gpt2 0.0006",
        "steps between checkpoints; default: tiny 5, nano 50, small 50, gpt2 100",
    ):
        assert default in " ".join(text.split())
    with pytest.raises(SystemExit):
        main(["accuracy", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "depths of the products; 1 16 33 64 128 512 2048 8192 65536 on a GPU" in told


def test_a_missing_package_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgemm_torch.train.command", None)
    assert main(["train"]) == 2
    assert "pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "package", "missing"),
    [
        (["explain", "64", "64", "64"], "rich", ["rich", "tqdm", "matplotlib"]),
        (["ladder", "--size", "32"], "tqdm", ["rich", "tqdm", "matplotlib"]),
        (["ladder", "--size", "32", "--race"], "matplotlib", ["rich", "tqdm", "matplotlib"]),
        (["accuracy", "--size", "8", "--k", "2"], "tqdm", ["rich", "tqdm", "matplotlib"]),
        (["train"], "rich", ["rich", "tqdm", "matplotlib"]),
        (["train", "--size", "tiny"], "matplotlib", ["matplotlib"]),
    ],
    ids=lambda v: v if isinstance(v, str) else " ".join(v),
)
def test_packages_that_torch_does_not_bring(arguments, package, missing):
    done = python(
        "import sys\n"
        f"for name in {missing!r}: sys.modules[name] = None\n"
        f"sys.exit(__import__('xgemm_torch.__main__').__main__.main({arguments!r}))\n"
    )
    assert done.returncode == 2, done.stderr
    want = f"{arguments[0]} needs the package {package}: pip install {package}"
    assert done.stderr.strip().splitlines()[-1] == want


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["accuracy", "--png", "/no/such/folder/x.png"], "there is no folder /no/such/folder"),
        (["ladder", "--png", "x.foo"], "x.foo: a picture must end in ."),
        (["ladder", "--race", "--png", "/no/such/x.png"], "there is no folder /no/such"),
        # Also for root, who may write everywhere.
        (["ladder", "--png", "/proc/x.png"], "/proc/x.png cannot be written: "),
        (["ladder", "--race", "--png", "/proc/x.png"], "/proc/x.png cannot be written: "),
        (["accuracy", "--png", "/proc/x.png"], "/proc/x.png cannot be written: "),
    ],
    ids=lambda v: v if isinstance(v, str) else " ".join(v),
)
def test_a_place_for_no_picture_is_refused_before_anything_is_measured(
    arguments, text, capsys, monkeypatch
):
    for module in (accuracy, ladder, race):
        monkeypatch.setattr(module, "collect", lambda *args, **kwargs: pytest.fail("measured"))
    assert main(arguments) == 2
    assert text in capsys.readouterr().err


def test_what_is_asked_of_a_place_leaves_it_as_it_was(tmp_path):
    plotting.require(tmp_path / "x.png")
    assert not list(tmp_path.iterdir())
    (tmp_path / "x.png").write_bytes(b"old")
    plotting.require(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes() == b"old"
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "folder.png"):
        with pytest.raises(OSError, match=f"{name} cannot be written"):
            plotting.require(tmp_path / name)


@pytest.mark.parametrize("count", [1, 5, 12, 20])
def test_colours_of_any_number_of_lines_are_distinct(count):
    colors = plotting.distinct(count)
    assert len(colors) == count
    meant = [plotting.INK, plotting.GREY, plotting.RED, plotting.BLUE]
    pairs = itertools.combinations([plotting._rgb(color) for color in (*colors, *meant)], 2)
    assert min(math.dist(*pair) for pair in pairs) > 40


@pytest.mark.skipif(not NO_GPU, reason="with a GPU any size is timed")
def test_a_ladder_for_hours_is_refused(capsys):
    assert main(["ladder", "--size", "4096"]) == 2
    assert "for hours beyond 256; got size 4096" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [(KeyboardInterrupt(), 130, "interrupted"), (OSError(28, "No space left"), 2, "No space left")],
)
def test_what_ends_a_command_is_told_in_a_line(error, code, text, capsys, monkeypatch):
    def collect():
        raise error

    monkeypatch.setattr(info, "collect", collect)
    assert main(["info"]) == code
    assert capsys.readouterr().err.splitlines()[-1].endswith(text)


@pytest.mark.parametrize("command", [["info", "--json"], ["explain", "8", "8", "8"]], ids=" ".join)
def test_a_reader_that_goes_ends_a_command_quietly(command):
    """Words of less than a pipe's buffer, and those that rich writes."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = python(None, tail=["-m", "xgemm_torch", *command], stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_info_without_rich():
    done = python(
        "import sys\n"
        "sys.modules['rich'] = None\n"
        "sys.exit(__import__('xgemm_torch.__main__').__main__.main(['info', '--self-test']))\n"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"torch: {torch.__version__}, CUDA" in done.stdout and lines[-1] == "OK"
    assert len([line for line in lines if line.startswith("OK ")]) == len(NAMES) * len(DEVICES)


# info


def test_info_as_text(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for word in ("torch", "build", "fp32_precision", NAMES[0], NAMES[-1]):
        assert word in text


def test_info_lists_what_each_gpu_can_run():
    facts = info.collect()
    assert len(facts["gpus"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    for gpu in facts["gpus"]:
        assert set(gpu["stages"]) <= set(NAMES)


def test_self_test_runs_every_stage_on_every_device(capsys):
    assert main(["info", "--self-test", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["self_test"]
    assert [(row["device"], row["stage"]) for row in rows] == [
        (device, name) for device in DEVICES for name in NAMES
    ]
    assert all(row["ok"] for row in rows)


@pytest.mark.parametrize("fault", ["one number", "an exception"])
def test_self_test_notices_a_wrong_stage(fault, capsys, monkeypatch):
    real, victim = ops.sgemm, NAMES[1]

    def broken(*args, **options):
        result = real(*args, **options)
        if options.get("kernel") == victim:
            if fault == "an exception":
                raise RuntimeError("xgemm simt: race on shared memory\nmore")
            result[3, 5] = torch.nextafter(result[3, 5], torch.tensor(1e9, device=result.device))
        return result

    monkeypatch.setattr(ops, "sgemm", broken)
    assert main(["info", "--self-test"]) == 1
    text = capsys.readouterr().out
    assert text.count("FAIL") == len(DEVICES) + 1
    wanted = "race on shared memory" if fault == "an exception" else "not the bits of the strict"
    assert wanted in text


def test_info_shows_why_the_module_does_not_load(capsys, monkeypatch):
    monkeypatch.setattr(info, "_compiled", lambda: (None, "undefined symbol: aoti_torch_x"))
    assert main(["info", "--self-test"]) == 1
    assert "undefined symbol: aoti_torch_x" in capsys.readouterr().out


def test_knobs_are_shown(capsys, monkeypatch):
    monkeypatch.setenv("XGEMM_STAGES", "naive")
    assert main(["info"]) == 0
    assert "XGEMM_STAGES=naive" in capsys.readouterr().out


def test_precision_state_is_read_and_never_throws():
    state = environment.fp32_state()
    assert "cuda.matmul" in state and not any("unreadable" in value for value in state.values())


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "cuda.matmul is 'tf32'"),
        ("torch.backends.fp32_precision = 'tf32'", "all is 'tf32'"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "'tf32'"),
        ("torch.set_float32_matmul_precision('high')", "'tf32'"),
    ],
)
def test_tf32_is_noticed_and_left_alone(setting, named):
    done = python(
        f"import torch\n{setting}\n"
        "import xgemm_torch\nfrom xgemm_torch.tools import environment\n"
        "before = environment.fp32_state()\n"
        "print(environment.tf32_warnings(), environment.strict_reference())\n"
        "assert environment.strict_reference() is not None\n"
        "assert environment.fp32_state() == before\n"
    )
    assert done.returncode == 0, done.stderr
    assert named in done.stdout


def test_without_tf32_there_is_no_warning(monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert environment.tf32_warnings() == [] and environment.strict_reference() is None
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert "NVIDIA_TF32_OVERRIDE" in environment.strict_reference()


# ladder


@pytest.mark.skipif(not NO_GPU, reason="with a GPU the ladder shows speed")
def test_ladder_without_a_gpu_checks_and_shows_no_speed(tmp_path, capsys):
    picture = tmp_path / "ladder.png"
    assert main(["ladder", "--json", "--png", str(picture)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in facts["stages"]] == NAMES
    assert all(row["check"] is True and row["tflops"] is None for row in facts["stages"])
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.gpu
def test_ladder_on_a_gpu_shows_speed(tmp_path, capsys):
    assert main(["ladder", "--json", "--size", "512", "--png", str(tmp_path / "l.png")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert all(row["tflops"] > 0 for row in facts["stages"] if row["cuda"])


@pytest.mark.skipif(not NO_GPU, reason="with a GPU the ladder shows speed")
def test_ladder_says_what_its_check_is_worth(capsys, monkeypatch):
    rows = [
        {"stage": name, "device": "cpu", "ok": name != NAMES[2], "detail": "some detail"}
        for name in NAMES
    ]
    monkeypatch.setattr(info, "self_test", lambda begins: rows)
    assert main(["ladder"]) == 1
    text = capsys.readouterr().out
    assert "not how fast it is" in " ".join(text.split())
    assert text.count("bits right") == sum(s.strict for s in xgemm_torch.stages()) - 1


@pytest.mark.skipif(not NO_GPU, reason="with a GPU the ladder shows speed")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_ladder_shows_how_far_it_is(options, capsys, monkeypatch):
    """On a terminal, while it checks and counts each stage; JSON is for no eyes."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    assert main(["ladder", "--size", "32", *options]) == 0
    seen = capsys.readouterr()
    assert ("%" in seen.err) == (not options)
    assert "checking" not in seen.out


def test_a_stage_of_one_capability_needs_that_only():
    needs = {row["name"]: ladder._needs(row) for row in map(ladder.describe, xgemm_torch.stages())}
    assert needs["naive"] == "any GPU" and needs["mma_fp16x3"] == "sm_80"
    assert needs["wgmma_fp16x3"] == "sm_90 only"
    assert ladder._needs({"min_sm": 80, "max_sm": 90}) == "sm_80 to sm_90"


def test_threads_that_fetch_are_counted_beside_those_that_multiply():
    row = ladder.describe(next(s for s in xgemm_torch.stages() if s.name == "tma_specialized"))
    assert row["tiles"] == ["128x256x32, 8x16, 256+128", "64x128x32, 8x8, 128+128"]


def test_ladder_of_a_gpu_as_a_picture(tmp_path):
    from xgemm_torch.tools import plotting

    rows = [ladder.describe(stage) for stage in xgemm_torch.stages()]
    for number, row in enumerate(rows):
        row["tflops"], row["share"] = 5.0 * number, number / 10
    rows[-1] |= {"tflops": None, "share": None, "note": "needs sm_90"}
    facts = {"gpu": True, "torch_mm_tflops": 51.5, "size": 4096, "device": "x", "stages": rows}
    plotting.ladder(facts, tmp_path / "l.png")
    assert (tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")
    # A palette: small, and paper and bars have the colours that they were given.
    from PIL import Image

    with Image.open(tmp_path / "l.png") as image:
        assert image.mode == "P"
        colors = {color for _, color in image.convert("RGB").getcolors()}
    assert {(255, 255, 255), tuple(bytes.fromhex(plotting.BLUE[1:]))} <= colors
    assert (tmp_path / "l.png").stat().st_size < 200_000


def test_the_ladder_tells_strict_stages_by_their_colour():
    """And what the line of torch.mm runs through stands on white."""
    from xgemm_torch.tools import plotting

    rows = [ladder.describe(stage) for stage in xgemm_torch.stages()]
    for row in rows:
        row["tflops"], row["share"] = 40.0, 0.8
    figure = plotting.new_figure(11, 20)
    axes = figure.add_axes((0.2, 0.1, 0.7, 0.8))
    facts = {"torch_mm_tflops": 51.5, "stages": rows}
    plotting._speeds(axes, facts)
    colors = {stage.strict: set() for stage in xgemm_torch.stages()}
    for bar, stage in zip(axes.patches, xgemm_torch.stages(), strict=True):
        colors[stage.strict].add(bar.get_facecolor())
    assert [len(each) for each in colors.values()] == [1, 1] and colors[True] != colors[False]
    (legend,) = figure.legends
    assert [text.get_text().partition(":")[0] for text in legend.get_texts()] == [
        "strict", "FP32 accuracy"
    ]  # fmt: skip
    for text in axes.texts:
        if not text.get_text().startswith("torch.mm"):
            assert text.get_bbox_patch().get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_ladder_shows_what_changed_in_the_code(capsys, monkeypatch):
    monkeypatch.setattr(ladder, "collect", lambda *args, **kwargs: pytest.fail("measured"))
    stages = {stage.name: stage for stage in xgemm_torch.stages()}
    assert main(["ladder", "--diff", "smem_tiled"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "--- coalesced: stages/ladder/02_coalesced.cu",
        "+++ smem_tiled: stages/ladder/05_smem_tiled.cu",
    ]  # fmt: skip
    # Neither coloured nor cut, nor wrapped.
    assert lines[2:] == stage_code.difference(stages["coalesced"], stages["smem_tiled"])
    assert main(["ladder", "--diff", "split_k", "tma_split_k"]) == 0
    first, second, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("--- tma_split_k: stages/shapes/tma_split_k.cu, epilogue/")
    assert second.startswith("+++ split_k: stages/shapes/split_k.cu, epilogue/")
    assert lines == stage_code.difference(stages["tma_split_k"], stages["split_k"])


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_but_the_first_has_a_diff(name):
    stages = xgemm_torch.stages()
    if name == NAMES[0]:
        with pytest.raises(ValueError, match="naive is read against none; name a second stage"):
            stage_code.diff([name], stages)
    else:
        old, new, *lines = stage_code.diff([name], stages)
        assert old.startswith("--- ") and new.startswith(f"+++ {name}: ")
        assert any(line.startswith("+") for line in lines)


def test_a_diff_is_coloured_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["ladder", "--diff", "smem_tiled"]) == 0
    text = capsys.readouterr().out
    assert "\x1b[32m+++ smem_tiled" in text and "\x1b[31m-constexpr int kAhead = 8;" in text
    assert max(map(len, text.splitlines())) > 90, "a line of code is not broken"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["smem_tild"], "no stage smem_tild; did you mean smem_tiled?"),
        (["?"], "no stage ?; there are naive, coalesced, "),
        (["naive", "coalesced", "gemv"], "a diff is of one stage or two, got 3"),
        (["gemv", "--race"], "--diff runs nothing; --race is of a run"),
    ],
)
def test_a_diff_of_no_stages(arguments, text, capsys):
    assert main(["ladder", "--diff", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_a_diff_without_a_checkout(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(stage_code, "SOURCE", tmp_path)
    assert main(["ladder", "--diff", "gemv"]) == 2
    assert f"needs the sources of a checkout; there is no {tmp_path}" in capsys.readouterr().err


def test_ladder_of_a_wrong_size(capsys):
    assert main(["ladder", "--size", "0"]) == 2
    assert "size must be at least 1" in capsys.readouterr().err


# explain


def test_explain_as_table(capsys):
    gpu = ["--sm", "90", "--sm-count", "132"]
    problem = ["explain", "4096", "1024", "768", "--layout", "NT", *gpu]
    assert main([*problem, "--all"]) == 0
    text = capsys.readouterr().out
    assert "4096 x 1024 x 768 (M x N x K), NT" in text
    assert "a GPU as asked for (sm_90, 132 multiprocessors)" in text
    assert all(name in text for name in NAMES)
    assert "--all" not in text


def test_explain_begins_with_the_answer(capsys):
    """Then come the best few rows, and what the words beside them mean."""
    problem = ["explain", "4096", "4096", "4096", "--sm", "90", "--sm-count", "132"]
    assert main(problem) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 30
    # Of two tiles that take the same time, the one that the table's digits say.
    tile = r"wgmma_fp16x3 128x128x32 (in clusters of 2|without clusters)"
    assert re.match(f"{tile}: estimated ", lines[1])
    assert "smem_conflicted" not in "".join(lines)
    rows = sum(len(stage.tiles) for stage in xgemm_torch.stages())
    assert lines[-1] == f"These are the best {explain_command.BEST} of {rows} rows; " + (
        "--all shows the others."
    )
    assert main([*problem, "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    slow = next(line for line in lines if "smem_conflicted" in line)
    assert [cell.strip() for cell in slow.split("│")][-3:-1] == ["-", "(1)"]
    assert "(1) is a rung that others are faster than everywhere" in lines
    # It runs there by its name, so it is auto alone that does not take it.
    assert next(line for line in lines if " split_k " in line).split()[1] == "no"
    assert "no, but with waves: runs if the stage is called by its name" in lines
    assert "(2) is for elements of several chains, or for few rows" in lines


def test_explain_says_which_gpu_it_assumes(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["explain", "64", "64", "64"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "on an H200, assumed (sm_90, 132 multiprocessors; there is no CUDA device)" in text


def test_explain_as_json(capsys):
    arguments = ["explain", "512", "512", "512", "--json", "--sm", "90", "--sm-count", "132"]
    assert main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {row["kernel"] for row in answer["candidates"]} == set(NAMES)
    chosen = next(row for row in answer["candidates"] if row["kernel"] == answer["kernel"])
    assert chosen["legal"]
    assert answer == explain_command.choose(512, 512, 512, sm=90, sm_count=132)
    assert main([*arguments, "--precision", "ieee"]) == 0
    strict = json.loads(capsys.readouterr().out)
    keeps = {stage.name: stage.strict for stage in xgemm_torch.stages()}
    assert keeps[strict["kernel"]]
    assert all(not row["legal"] for row in strict["candidates"] if not keeps[row["kernel"]])
    assert main([*arguments, "--workspace", "0"]) == 0
    poor = json.loads(capsys.readouterr().out)
    assert all(row["able"] == (row["workspace"] == 0) for row in poor["candidates"])
    assert main([*arguments, "--workspace", "-1"]) == 2
    assert "workspace must not be negative" in capsys.readouterr().err


def test_explain_says_how_and_with_what_memory(capsys):
    chosen = explain_command.choose(2048, 2048, 2048, sm=90, sm_count=132)
    row = next(
        row for row in chosen["candidates"]
        if (row["kernel"], row["row"]) == (chosen["kernel"], chosen["row"])
    )  # fmt: skip
    assert main(["explain", "2048", "2048", "2048", "--sm", "90", "--sm-count", "132"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"{row['scheme']}; {memory(row['workspace'])} of workspace" in text
    none = ["explain", "2048", "2048", "2048", "--sm", "90", "--all", "--workspace", "0"]
    assert main([*none, "--precision", "ieee"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "ffma: fused multiply-adds; 0 bytes of workspace" in text and "fp32" not in text
    assert main(none) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "MiB of workspace, there is memory for 0 bytes" in text


def test_explain_agrees_with_the_function():
    mine = explain_command.choose(300, 200, 100, sm=90, sm_count=132)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)  # so an H200 is assumed
        assert xgemm_torch.explain(300, 200, 100).kernel == mine["kernel"]


def test_explain_of_nothing(capsys):
    for sizes in (["0", "4", "4"], ["4", "4", "4", "--batch", "0"]):
        assert main(["explain", *sizes]) == 0
        text = capsys.readouterr().out
        assert "none: the result is empty, so nothing is launched" in text
        assert "stage" not in text, "a table of nothing"


def test_explain_refuses_negative_sizes(capsys):
    assert main(["explain", "--", "-1", "2", "3"]) == 2
    assert "must not be negative, got -1 x 2 x 3" in capsys.readouterr().err


def test_target_fills_in_what_is_not_given():
    assert explain_command.target(80, 108) == (80, 108)
    sm, count = explain_command.target(80, None)
    assert sm == 80 and count > 0
    if NO_GPU:
        assert explain_command.target(None, None) == (90, 132)
