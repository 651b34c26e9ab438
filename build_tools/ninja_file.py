"""Writing a ninja file and running ninja on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .settings import BuildError


def _path(path: Path | str) -> str:
    """A path as ninja's build lines need it."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _value(text: str) -> str:
    """The value of a variable."""
    return text.replace("$", "$$").replace("\n", " ")


class NinjaFile:
    """The text of a build.ninja, as it grows.

    Rules are given ready, with ninja's own ``$in``, ``$out`` and variables; all that edges add is
    escaped here. Paths are relative to the directory that ninja runs in.
    """

    def __init__(self, build_dir: Path) -> None:
        """Starts a file whose log is kept in `build_dir`."""
        self._lines = ["ninja_required_version = 1.8", f"builddir = {_path(build_dir)}"]

    def rule(
        self, name: str, command: str, description: str, depfile: bool = False, pool: str = ""
    ) -> None:
        """Adds a rule; with `depfile`, its command writes ``$out.d`` as compilers do."""
        self._lines += ["", f"rule {name}", f"  command = {command}"]
        self._lines.append(f"  description = {description}")
        if depfile:
            self._lines += ["  depfile = $out.d", "  deps = gcc"]
        if pool:
            self._lines.append(f"  pool = {pool}")

    def build(
        self,
        rule: str,
        out: Path | str,
        inputs: Iterable[Path | str],
        also_makes: Iterable[Path | str] = (),
        after: Iterable[Path | str] = (),
        **variables: str,
    ) -> None:
        """Adds an edge; `also_makes` are further outputs, `after` what a change of rebuilds it."""
        made = "".join(f" {_path(path)}" for path in also_makes)
        line = f"build {_path(out)}{' |' + made if made else ''}: {rule}"
        line += "".join(f" {_path(path)}" for path in inputs)
        implicit = "".join(f" {_path(path)}" for path in after)
        self._lines += ["", line + (f" |{implicit}" if implicit else "")]
        self._lines += [f"  {name} = {_value(value)}" for name, value in variables.items()]

    def phony(self, name: str, inputs: Iterable[Path | str]) -> None:
        """Adds a name for several targets."""
        self.build("phony", name, inputs)

    def default(self, targets: Iterable[Path | str]) -> None:
        """Says what ninja builds when it is not told."""
        self._lines += ["", "default " + " ".join(_path(target) for target in targets)]

    def write(self, path: Path) -> None:
        """Writes the file, unless it holds this text already."""
        write_if_changed(path, "\n".join(self._lines) + "\n")


def write_if_changed(path: Path, text: str) -> None:
    """Writes a file and leaves its time alone where its text is the same."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def find_ninja() -> str:
    """Path of ninja: the PyPI package's, or the one on the PATH.

    Raises:
        BuildError: There is none.
    """
    try:
        import ninja

        beside = Path(ninja.BIN_DIR, "ninja")
        if beside.exists():
            return str(beside)
    except ImportError:
        pass
    found = shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))
    if not found:
        raise BuildError("no ninja; pip install ninja")
    return found


def run(
    root: Path, ninja_file: Path, targets: Sequence[str] = (), jobs: int = 1, dry: bool = False
) -> str:
    """Runs ninja in `root`; its output goes to the terminal, or for a `dry` run is returned.

    Raises:
        BuildError: A command failed; what it said was printed above.
    """
    command = [find_ninja(), "-C", str(root), "-f", str(ninja_file), "-j", str(jobs)]
    # nvcc and g++ put the working directory into debug information; under this name it is the same
    # on every machine, and wherever a debugger runs it resolves to the sources.
    env = {**os.environ, "PWD": "/proc/self/cwd", "NINJA_STATUS": "[%f/%t %es] "}
    if dry:
        done = subprocess.run(
            [*command, "-n", "-v", *targets], capture_output=True, text=True, env=env
        )
        if done.returncode:
            raise BuildError(done.stdout + done.stderr)
        return done.stdout
    sys.stdout.flush()
    if subprocess.run([*command, *targets], env=env).returncode:
        raise BuildError("compiling csrc/xgemm failed; the compiler's words are above")
    return ""
