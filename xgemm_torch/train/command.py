"""``python -m xgemm_torch train``: its options, and where a run lives."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .. import registry
from ..tools import plotting
from ..tools.console import console
from ..tools.invocation import called
from . import checkpoint
from . import config as configs
from .job import Interrupted, Job

RUNS_FOLDER = Path("runs")
SIZE = "nano"
# A training run of these would take days on the emulator, which checks every access.
EMULATOR_SIZES = ("tiny",)


def _by_size(setting: str) -> str:
    """A setting's default for each size, in words."""
    values = (f"{size} {getattr(each, setting):g}" for size, each in configs.DEFAULTS.items())
    return f"default: {', '.join(values)}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options. Those that shape the losses default to None: "as the size has it"."""
    stages = [stage.name for stage in registry.stages()]
    shape = parser.add_argument_group("what is trained")
    shape.add_argument(
        "--size",
        choices=list(configs.DEFAULTS),
        help="nano (default): 0.8M parameters; small: 10.8M; gpt2: GPT-2 124M's dimensions, "
        "vocabulary 50257, on bytes; tiny: for tests",
    )
    shape.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    shape.add_argument(
        "--steps", type=int, help=f"optimizer steps of each run; {_by_size('steps')}"
    )
    shape.add_argument("--batch", type=int, help=f"rows a step; {_by_size('batch')}")
    shape.add_argument("--seq", type=int, help=f"bytes a row; {_by_size('seq')}")
    shape.add_argument(
        "--lr", type=float, dest="learning_rate",
        help=f"peak learning rate; {_by_size('learning_rate')}",
    )  # fmt: skip
    shape.add_argument("--dropout", type=float, help="default: 0, so that the runs compare best")
    shape.add_argument("--seed", type=int, help="default: 1")
    kernels = parser.add_argument_group("how the converted run multiplies")
    kernels.add_argument(
        "--kernel", choices=["auto", *stages], metavar="STAGE",
        help=f"auto, or a stage's name as in {called('ladder')} (default: auto)",
    )  # fmt: skip
    kernels.add_argument("--precision", choices=("fp32", "ieee"), help="default: fp32")
    kernels.add_argument(
        "--check-kernel",
        choices=stages,
        metavar="STAGE",
        help="stage whose bits are checked on a tiny model at the end (default: vec4_128x128)",
    )
    place = parser.add_argument_group("where and how long")
    place.add_argument("--out", type=Path, help="run directory (default: a new one under runs/)")
    place.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in --out, or with the newest unfinished one under runs/; its "
        "settings hold",
    )
    place.add_argument(
        "--checkpoint-every", type=int, metavar="STEPS",
        help=f"steps between checkpoints; {_by_size('checkpoint_every')}",
    )  # fmt: skip
    place.add_argument("--no-plot", action="store_true", help="make no picture")


def _unfinished(folder: Path) -> bool:
    return (folder / "config.json").exists() and not (folder / "summary.json").exists()


def _device(options: argparse.Namespace) -> str:
    return options.device or ("cuda" if torch.cuda.is_available() else "cpu")


def folder_of(options: argparse.Namespace) -> Path:
    """Give the run directory that the options mean; ValueError where none is there to resume."""
    if options.out is not None:
        return options.out
    if options.resume:
        found = [path for path in RUNS_FOLDER.glob("*") if _unfinished(path)]
        if not found:
            raise ValueError(f"train: nothing to resume: no unfinished run under {RUNS_FOLDER}/")
        return max(found, key=lambda path: (path / "config.json").stat().st_mtime)
    name, number = f"{options.size or SIZE}-{_device(options)}", 1
    while (RUNS_FOLDER / f"{name}-{number}").exists():
        number += 1
    return RUNS_FOLDER / f"{name}-{number}"


def _reject_hopeless(config: configs.Config) -> None:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("train: --device cuda, but torch sees no CUDA GPU here")
    if config.device == "cpu" and config.kernel != "auto" and config.size not in EMULATOR_SIZES:
        raise ValueError(
            f"train: on a CPU {config.kernel} runs through the emulator, far too slow "
            f"to train {config.size}; use --size tiny, or --check-kernel {config.kernel}"
        )


def run(options: argparse.Namespace) -> int:
    """Train, or go on training; returns the process's exit code."""
    if not options.no_plot:
        plotting.require()
    out = console()
    chosen = {
        name: getattr(options, name)
        for name in (
            "size", "device", "steps", "batch", "seq", "learning_rate", "dropout", "seed",
            "kernel", "precision", "check_kernel",
        )
        if getattr(options, name) is not None
    }  # fmt: skip
    folder = folder_of(options)
    if options.resume:
        if not (folder / "config.json").exists():
            raise ValueError(f"train: nothing to resume in {folder}")
        config = configs.Config.load(folder / "config.json")
        if different := config.difference(chosen):
            raise ValueError(f"train: --resume keeps the run's settings: {', '.join(different)}")
    else:
        config = configs.make(
            **{**chosen, "size": options.size or SIZE, "device": _device(options)}
        )
    _reject_hopeless(config)
    every = options.checkpoint_every
    if every is None:
        every = configs.DEFAULTS[config.size].checkpoint_every
    if every < 1:
        raise ValueError(f"train: checkpoint-every must be at least 1, got {every}")
    job = Job(config, folder, checkpoint_every=every, plot=not options.no_plot, console=out)
    go_on = called(options.command, "--resume --out", folder)
    with checkpoint.alone_in(folder):
        if options.resume:
            job.resume()
        else:
            job.start()
        try:
            summary = job.run()
        except Interrupted as reason:
            out.print(f"{reason}; nothing is lost: {go_on}")
            return 130
        except OSError as error:  # as of a full disk
            raise OSError(f"{error}; what was saved before is as it was: {go_on}") from error
    return 0 if summary["check"]["equal"] else 1
