"""The Makefile's commands: ``python -m build_tools COMMAND``, as ``env``, ``wheel``, ``docs``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import cuda_toolkit, environment, hub, library, native, sass, settings, site, wheel


def main() -> int:
    """Runs one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m build_tools", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    env = commands.add_parser("env", help="make or complete a virtual environment")
    env.add_argument("venv", type=Path)
    env.add_argument("extras", nargs="*", help="test, lint, cli, wheel, docs")
    env.add_argument("--torch", default="", help="what to ask pip for; default $TORCH, or a choice")
    env.add_argument("--no-nvcc", action="store_true", help="do not look for nvcc")
    commands.add_parser("nvcc", help="find nvcc, or install it from PyPI into this Python")
    programs = commands.add_parser("native", help="build and run the C++ programs of tests/native")
    programs.add_argument("names", nargs="*", default=list(native.SANITIZERS))
    loops = commands.add_parser("sass", help="what the kernels' main loops are made of")
    loops.add_argument("--stage", default="", help="all the kernels of one stage, not all NN ones")
    loops.add_argument("--json", action="store_true")
    package = commands.add_parser("wheel", help="build, tag and check a wheel")
    package.add_argument("out", type=Path, nargs="?", default=Path("dist"))
    kernel = commands.add_parser("hub", help="a wheel as a kernel of the Hugging Face Hub")
    kernel.add_argument("out", type=Path, nargs="?", default=Path("dist", "hub"))
    pages = commands.add_parser("docs", help="the pages as a site")
    pages.add_argument("out", type=Path, nargs="?", default=Path("site"))
    arguments = parser.parse_args()
    try:
        if arguments.command == "env":
            torch = arguments.torch or environment.default_torch()
            environment.make(arguments.venv, arguments.extras, torch, not arguments.no_nvcc)
        elif arguments.command == "nvcc":
            cuda_toolkit.install()
        elif arguments.command == "sass":
            sass.main(arguments.stage, arguments.json)
        elif arguments.command == "wheel":
            made = wheel.make(arguments.out)
            print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
        elif arguments.command == "hub":
            for variant in hub.make(arguments.out):
                size = sum(path.stat().st_size for path in variant.rglob("*") if path.is_file())
                print(f"{variant}: {size / 1e6:.1f} MB")
        elif arguments.command == "docs":
            count = site.build(arguments.out)
            print(f"{arguments.out / 'index.html'}: {count} pages")
        else:
            return run_native(arguments.names)
    except settings.BuildError as error:
        print(f"build_tools: {error}", file=sys.stderr)
        return 1
    return 0


def run_native(names: list[str]) -> int:
    """Builds and runs the programs named; 1 when one of them failed."""
    plan = library.make_plan(settings.read())
    failed = []
    with library.lock(plan):
        library.write(plan)
        for name in names:
            native.build(plan, name)
            done = native.run(plan, name)
            verdict = "FAILED" if done.returncode else "ok"
            print(f"--- {name}: {verdict}\n{done.stdout}", end="", flush=True)
            failed += [name] if done.returncode else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
