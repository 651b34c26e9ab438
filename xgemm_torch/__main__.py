"""The command line: ``xgemm train | info | ladder | explain M N K | ...``.

The same as ``python -m xgemm_torch``, which needs no installation.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from .tools.invocation import called

COMMANDS = {
    "train": ("train.command", "train a small GPT, stock and converted, and compare the two"),
    "demo": (
        "demo.command",
        "train; without a GPU also the ladder's counts, errors beside TF32, a race: one page",
    ),
    "info": ("tools.info", "versions, build, GPUs, settings; --self-test runs every stage"),
    "ladder": (
        "course.ladder",
        "every stage: idea, source, needs, tiles, speed or check on this machine",
    ),
    "explain": (
        "tools.explain_command",
        "which kernel would run a product of M x N x K, and why",
    ),
    "tune": (
        "tools.tune",
        "measure which row is fastest for M x N x K; auto goes by that from then on",
    ),
    "accuracy": (
        "tools.accuracy",
        "errors beside the strict chain, TF32 and torch.mm, on all kinds of data",
    ),
    "bench": (
        "tools.bench",
        "in a checkout: every suite of benchmarks/, each into a record; goes on where it stopped",
    ),
    "report": (
        "tools.report",
        "in a checkout: one HTML file of all records: charts, tables, filters, history",
    ),
    "exercise": (
        "course.exercises.command",
        "the course: make an exercise's file, --check it in the emulator, --hint, --solution",
    ),
    "film": (
        "course.film.command",
        "each stage's run in the emulator as a page for a browser, step by step",
    ),
}


class _Version(argparse.Action):
    """Prints the version and what was built; only then is the compiled module asked."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print one line and end with exit code 0."""
        print(importlib.import_module(".tools.info", __package__).version())
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 well, 1 a check failed, 2 a wrong argument.

    130: it was interrupted; 141: who read its output has gone, as with ``| head``. ``tune``
    and ``bench`` have one more: 3, their time was up.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog=called(), description="FP32 matrix products for PyTorch.")
    parser.add_argument("--version", action=_Version, help="version, torch, GPUs built for")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {}
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        # Only the command that was asked for is imported: `info` must work where a plot cannot.
        if name in arguments[:1]:
            try:
                modules[name] = importlib.import_module(f".{module}", __package__)
            except ModuleNotFoundError as error:
                return _missing(name, error)
            modules[name].add_options(command)
    options = parser.parse_args(arguments)
    try:
        code = modules[options.command].run(options)
        sys.stdout.flush()  # here, where it can be told what fails
        return code
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise  # rich makes the one the other
        # What is not yet written must go somewhere when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as of a program that the signal ends
    except FloatingPointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:  # an argument, a file, a disk
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # as of a program that a signal ends
    except ModuleNotFoundError as error:
        return _missing(options.command, error)


def _missing(command: str, error: ModuleNotFoundError) -> int:
    package = (error.name or "").partition(".")[0]
    print(f"{command} needs the package {package}: pip install {package}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
