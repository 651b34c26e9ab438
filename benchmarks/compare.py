"""Says whether a build is slower than another: exit code 1 where it is, with confidence.

    python benchmarks/compare.py ../old . --json compare.json         # two checkouts, both built
    python benchmarks/compare.py old/_C.abi3.so xgemm_torch/_C.abi3.so --problem 4096x4096x4096-NT
    python benchmarks/compare.py old-random.json new-random.json      # two records, anywhere

A is what was, B what is new. Each build is loaded by a process of its own; the two take turns in
random order on the same operands, each turn CUDA-graph replays on a GPU, calls on a CPU. paired.py
makes a ratio, B's time over A's, and an interval of them. B is slower where the whole interval is
above 1 + TOLERANCE, of a problem or of the geometric mean; what is slower is measured once more by
two new processes, for where a process's memory lies can cost per cents too, and counts if it is so
again. A path of a compiled module is loaded by this tree's Python. On a CPU "fp32" is ATen's BLAS,
"ieee" the library's own chain.

Of two records each problem's time over torch.mm's is compared. They have no turns in common, so
that only the geometric mean has an interval, by the scatter over problems.

Exit codes: 0 not slower, 1 slower, 2 wrong arguments or no result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(HERE)]

import paired  # noqa: E402
import provenance  # noqa: E402
import records  # noqa: E402
import report  # noqa: E402
import shapes  # noqa: E402

from xgemm_torch.tools.timing import LAYOUTS  # noqa: E402

# Squares, a layer's products with few rows and many, a long K, a short one.
PROBLEMS = (
    "square 1024 NN", "square 4096 NN", "square 4096 NT", "square 1023 NT",
    "linear 768-3072 rows 1 forward", "linear 768-3072 rows 64 forward",
    "linear 768-3072 rows 8192 forward", "linear 768-3072 rows 8192 grad_w",
    "linear 4096-14336 rows 8 forward", "skinny 256x256x65536", "4096x4096x64-TN",
)  # fmt: skip
ON_CPU = ("64x64x64-NN", "256x256x256-NT", "1x768x3072-NT")
PROBLEM = tuple[int, int, int, int, str]


class NoResult(Exception):
    """A build cannot be loaded, or cannot do what it is asked for."""


class Build:
    """A process with one build loaded."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """Start it."""
        # One thread: those of the build that has no turn would wait for work beside the other's.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "XGEMM_TUNE_CACHE": "",
                       "PYTHONPATH": str(importable(path, scratch))}  # fmt: skip
        self._path = path
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "build_worker.py")], env=environment, cwd=scratch,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.facts: dict[str, Any] = {}

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request and give the answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps({"do": do, **request}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except (BrokenPipeError, ValueError):  # the other end is gone, or closed
            line = ""
        if not line:
            raise NoResult(f"{self._path}: the process ended, code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise NoResult(f"{self._path}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def importable(path: Path, scratch: Path) -> Path:
    """Give the folder from which xgemm_torch is this build: a checkout, or this tree's Python."""
    if path.is_dir():
        if not (path / "xgemm_torch" / "__init__.py").exists():
            raise NoResult(f"{path}: no xgemm_torch in it")
        return path.resolve()
    folder = Path(tempfile.mkdtemp(dir=scratch))
    package = folder / "xgemm_torch"
    package.mkdir()
    for file in (ROOT / "xgemm_torch").iterdir():
        if not file.name.startswith(("_C.", "__pycache__")):
            (package / file.name).symlink_to(file)
    (package / "_C.abi3.so").symlink_to(path.resolve())
    return folder


def parsed(name: str) -> PROBLEM:
    """Give batch, m, n, k and layout of a label of shapes.py, or of ``[BATCHx]MxNxK[-LAYOUT]``."""
    for p in shapes.suite():
        if p.label == name:
            return p.batch, p.m, p.n, p.k, p.layout
    sizes, _, layout = name.partition("-")
    try:
        numbers = [int(x) for x in sizes.split("x")]
    except ValueError:
        numbers = []
    if len(numbers) not in (3, 4) or min(numbers) < 1 or (layout or "NN") not in LAYOUTS:
        raise ValueError(f"no problem {name!r}: MxNxK-NT, or what shapes.py lists")
    m, n, k = numbers[-3:]
    return (numbers[0] if len(numbers) == 4 else 1), m, n, k, layout or "NN"


@contextmanager
def both(a: Path, b: Path, *, swapped: bool = False) -> Iterator[tuple[Build, Build]]:
    """Start both builds, A first or, swapped, B."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        builds = {}
        for path in ("b", "a") if swapped else ("a", "b"):
            builds[path] = Build(a if path == "a" else b, scratch)
            stack.callback(builds[path].close)
        for build in builds.values():
            build.facts = build.ask("hello")
        yield builds["a"], builds["b"]


def measure(
    a: Build, b: Build, problem: PROBLEM, chosen: argparse.Namespace, seed: int
) -> tuple[list[paired.Round], bool]:
    """Let both take turns at a problem; whether their results have the same bits, too."""
    request = {"problem": list(problem), "stage": chosen.stage, "precision": chosen.precision,
               "gpu": chosen.device == "cuda", "ms": chosen.sample_ms}  # fmt: skip
    ours = a.ask("prepare", calls=None, **request)
    theirs = b.ask("prepare", calls=ours["calls"], **request)
    for build in (a, b):
        build.ask("turn")
    found = []
    for a_first in paired.orders(chosen.rounds, seed):
        turns = {}
        for build in (a, b) if a_first else (b, a):
            turns[build] = build.ask("turn")["seconds"]
        found.append(paired.Round(turns[a], turns[b], a_first))
    return found, ours["bits"] == theirs["bits"]


def run(
    names: Sequence[str] | None, chosen: argparse.Namespace, *, swapped: bool = False
) -> tuple[dict[str, list[paired.Round]], dict[str, bool], dict[str, Any]]:
    """Measure problems by two new processes; rounds, equal bits, and what was loaded."""
    rounds, same = {}, {}
    with both(chosen.a, chosen.b, swapped=swapped) as (a, b):
        loaded = {"a": a.facts, "b": b.facts}
        if chosen.device is None:
            chosen.device = "cuda" if a.facts["gpu"] and b.facts["gpu"] else "cpu"
        if chosen.device == "cuda":
            a.ask("heat", seconds=1.0)
        if names is None:
            names = PROBLEMS if chosen.device == "cuda" else ON_CPU
        for number, name in enumerate(names):
            rounds[name], same[name] = measure(a, b, parsed(name), chosen, chosen.seed + number)
    return rounds, same, loaded


def shown(name: str, ratio: paired.Ratio, tolerance: float, times: str = "", more: str = "") -> str:
    """A line of the table."""
    interval = f"{ratio.low:.3f} .. {ratio.high:.3f}"
    verdict = ratio.verdict(tolerance)
    return f"{name:36} {times:>21}  {ratio.ratio:6.3f}  {interval:16}  {verdict}{more}"


def table(
    rounds: Mapping[str, Sequence[paired.Round]], same: Mapping[str, bool], tolerance: float
) -> dict[str, paired.Ratio]:
    """Judge rounds and print a line a problem."""
    found = paired.judge(rounds)
    for name, ratio in found.items():
        if name not in rounds:
            print(shown(name, ratio, tolerance))
            continue
        mine = rounds[name]
        times = " ".join(f"{1e6 * median(getattr(r, x) for r in mine):10.2f}" for x in "ab")
        print(shown(name, ratio, tolerance, times, "" if same[name] else "; other bits"))
    return found


def slower(found: Mapping[str, paired.Ratio], tolerance: float) -> list[str]:
    """Those that are slower."""
    return [name for name, ratio in found.items() if ratio.verdict(tolerance) == "slower"]


def compare_builds(chosen: argparse.Namespace) -> int:
    """Measure, judge, and measure once more what is slower."""
    for name in chosen.problem or ():
        parsed(name)
    start = time.monotonic()
    rounds, same, loaded = run(chosen.problem, chosen)
    print(f"{'problem':36} {'A, us':>10} {'B, us':>10}  {'B / A':>6}  {'interval':16}  verdict")
    found = table(rounds, same, chosen.tolerance)
    again: dict[str, paired.Ratio] = {}
    bad = slower(found, chosen.tolerance)
    if bad:
        print("\nonce more, by new processes:")
        some = list(rounds) if paired.MEAN in bad else bad
        repeated, _, _ = run(some, chosen, swapped=True)
        again = table(repeated, same, chosen.tolerance)
        bad = [name for name in bad if name in slower(again, chosen.tolerance)]
    unclear = [name for name in rounds if found[name].verdict(chosen.tolerance) == "not certain"]
    print(f"\n{said(bad, chosen.tolerance)}; {time.monotonic() - start:.0f} s")
    if unclear:
        print(f"{len(unclear)} of {len(rounds)} not certain: more --rounds make intervals shorter")
    if chosen.json:
        records.write(chosen.json, {
            "facts": provenance.facts(), "loaded": loaded, "device": chosen.device,
            "tolerance": chosen.tolerance, "seed": chosen.seed,
            "seconds": time.monotonic() - start, "slower": bad,
            "ratios": {name: asdict(ratio) for name, ratio in found.items()},
            "again": {name: asdict(ratio) for name, ratio in again.items()},
            "turns": {name: {"a_us": [r.a * 1e6 for r in mine], "b_us": [r.b * 1e6 for r in mine],
                             "a_first": [r.a_first for r in mine]}
                      for name, mine in rounds.items()},
        })  # fmt: skip
    return 1 if bad else 0


def said(bad: Sequence[str], tolerance: float) -> str:
    """The verdict in words."""
    if not bad:
        return f"B is not slower by over {tolerance:.0%}"
    return f"B is slower by over {tolerance:.0%}: {', '.join(bad)}"


def relative(record: report.Record) -> Iterable[tuple[str, str, float]]:
    """Give groups, problems and their time over torch.mm's, or over stock's."""
    content = record.content
    if record.form in ("auto", "rows"):
        for p in report.products(record):
            yield p.precision, f"{p.batch}x{p.m}x{p.n}x{p.k}-{p.layout}", 1 / p.ratio
    elif record.form == "data":
        for problem, cells in content["cells"].items():
            for kind, c in cells.items():
                yield "data", f"{problem} {kind}", c["us"] / c["torch_mm_us"]
    elif record.form == "stages":
        for case in content["cases"]:
            for name, t in case["times"].items():
                if t["share"] and name != "torch.mm":
                    yield "stages", f"{name} {case['size']} {case['layout']}", 1 / t["share"]
    elif record.form == "steps":
        for name, m in content["models"].items():
            yield "steps", name, m["ms"]["converted"] / m["ms"]["stock"]


def compare_records(chosen: argparse.Namespace) -> int:
    """Compare what both records have."""
    one, other = report.read([chosen.a, chosen.b])
    if not one.form or one.form != other.form:
        raise NoResult(f"{chosen.a} and {chosen.b} are not of one form")
    before = {(group, key): x for group, key, x in relative(one)}
    groups: dict[str, dict[str, float]] = {}
    for group, key, x in relative(other):
        if (group, key) in before:
            groups.setdefault(group, {})[key] = x / before[group, key]
    if not groups:
        raise NoResult(f"{chosen.a} and {chosen.b} have no problem in common")
    if one.gpu != other.gpu:
        print(f"note: A is of an {one.gpu}, B of an {other.gpu}")
    bad = []
    for group, ratios in groups.items():
        mean = paired.over_problems(list(ratios.values()))
        print(shown(f"{group}: {paired.MEAN}, {len(ratios)} problems", mean, chosen.tolerance))
        for key in sorted(ratios, key=lambda key: -ratios[key])[:5]:
            print(f"    {key:40} {ratios[key]:6.3f}")
        if mean.verdict(chosen.tolerance) == "slower":
            bad.append(group)
    print(f"\n{said(bad, chosen.tolerance)}")
    return 1 if bad else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("a", type=Path, help="a checkout, a compiled module or a record")
    parser.add_argument("b", type=Path, help="what is compared with it, of the same kind")
    parser.add_argument("--tolerance", type=float, default=0.03, help="0.03: slower by over 3%%")
    parser.add_argument("--problem", action="append", metavar="LABEL", help="MxNxK-NT, or a label")
    parser.add_argument("--precision", choices=("fp32", "ieee"), default="fp32")
    parser.add_argument("--stage", default="sgemm", help="the operator")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="a GPU where both builds see one")
    parser.add_argument("--rounds", type=int, default=200, help="turns of each build a problem")
    parser.add_argument("--sample-ms", type=float, default=3.0, help="length of a turn")
    parser.add_argument("--seed", type=int, default=0, help="of the orders of turns")
    parser.add_argument("--json", type=Path, help="where to keep ratios, turns and facts")
    chosen = parser.parse_args(arguments)
    of_records = [".json" in path.suffixes for path in (chosen.a, chosen.b)]
    for path in (chosen.a, chosen.b):
        if not path.exists():
            parser.error(f"{path}: not found")
    if len(set(of_records)) > 1:
        parser.error("a record is compared with a record, a build with a build")
    if chosen.rounds < 2 * paired.LEAST_BLOCKS:
        parser.error(f"--rounds: {2 * paired.LEAST_BLOCKS} at least")
    try:
        return compare_records(chosen) if all(of_records) else compare_builds(chosen)
    except (NoResult, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
