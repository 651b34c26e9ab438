"""All that is measured, suite by suite, into one folder of records: ``xgemm bench``.

A suite is a script of this folder, which runs in a process of its own. It writes into
``unfinished/``; what is whole is then moved to ``NAME.json`` in one step, so that a suite that was
interrupted leaves no half record. A record that is finished, and of the same sources, GPU and
torch, is not measured again. What a suite prints is in ``logs/NAME.txt``.
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import records

if TYPE_CHECKING:
    from xgemm_torch.tools.console import Fitted

ROOT = Path(__file__).resolve().parents[1]
UNFINISHED, LOGS = "unfinished", "logs"
# A record with other ones of these is of something else.
SAME = ("sources", "device", "torch")
# Seconds between two looks at a process, and for it to end when it is told to.
POLL, PATIENCE = 0.2, 10.0
# Of the examples, on a CPU in their small sizes.
EXAMPLES_SECONDS, SMALL_SECONDS = 345.0, 45.0
# What pytest-benchmark's extra_info says of a benchmark, beside its time.
OF_BENCH = (
    "ratio", "tflops", "torch_mm_tflops", "error_u", "allowed_u", "cache", "note", "timer",
)  # fmt: skip

Limit = float | None


@dataclass(frozen=True)
class Suite:
    """What one process measures.

    Attributes:
        name: the record's, without its suffix.
        what: in a few words.
        arguments: of Python, for a file, seconds at most, and whether there is a GPU.
        seconds: about how long it takes on an H100; on a CPU, where it runs there.
        on_cpu: that many seconds; 0 where it needs a GPU.
        resumes: whether it goes on where its file stops.
        shortens: whether it takes the seconds that it is given, and does not go on.
        wrap: makes the record of what the process has left, where the process does not: given
            its file and its standard output.
    """

    name: str
    what: str
    arguments: Callable[[Path, Limit, bool], list[str]]
    seconds: float
    on_cpu: float = 0.0
    resumes: bool = False
    shortens: bool = False
    wrap: Callable[[Path, Path], dict[str, Any]] | None = None


def _limit(seconds: Limit) -> list[str]:
    return [] if seconds is None else ["--seconds", f"{seconds:g}"]


def _survey(*how: str) -> Callable[[Path, Limit, bool], list[str]]:
    return lambda file, seconds, gpu: [
        "benchmarks/survey.py", *how, "--auto", "--json", str(file), *_limit(seconds)
    ]  # fmt: skip


def _script(name: str, *how: str, timed: bool = False) -> Callable[[Path, Limit, bool], list[str]]:
    return lambda file, seconds, gpu: [
        f"benchmarks/{name}.py", *how, "--json", str(file), *(_limit(seconds) if timed else [])
    ]  # fmt: skip


def _examples(file: Path, seconds: Limit, gpu: bool) -> list[str]:
    most = EXAMPLES_SECONDS if gpu else SMALL_SECONDS
    return _script("run_examples", timed=True)(file, min(most, seconds or most), gpu)


def _pytest(name: str) -> Callable[[Path, Limit, bool], list[str]]:
    return lambda file, seconds, gpu: [
        "-m", "pytest", f"benchmarks/{name}.py", "-q", "-p", "no:cacheprovider",
        f"--benchmark-json={file}",
    ]  # fmt: skip


def of_stdout(_: Path, printed: Path) -> dict[str, Any]:
    """The JSON that a command prints."""
    return dict(json.loads(printed.read_text(encoding="utf-8")))


def of_pytest(file: Path, _: Path) -> dict[str, Any]:
    """The benchmarks of pytest-benchmark's JSON: microseconds, and what it was compared with."""
    found = json.loads(file.read_text(encoding="utf-8"))["benchmarks"]
    if not found:
        raise ValueError("no benchmark has run")
    clocks = [c for b in found if (c := b["extra_info"].get("clocks"))]
    return {
        "clocks": {
            name: {"p50": median(c[name]["p50"] for c in clocks)}
            for name in (clocks[0] if clocks else ())
        },
        "benches": {
            b["name"]: {
                "us": 1e6 * b["stats"]["median"], "iqr_us": 1e6 * b["stats"]["iqr"],
                "rounds": b["stats"]["rounds"],
                **{key: b["extra_info"][key] for key in OF_BENCH if key in b["extra_info"]},
            }
            for b in found
        },
    }  # fmt: skip


SUITES = (
    Suite("stages", "every stage on squares in four layouts, bits and errors first",
          lambda file, seconds, gpu: ["benchmarks/h200.py", "--out", str(file)], 224),
    Suite("suite", "auto beside torch.mm: squares, layers, rows, columns, long ones, batches",
          _survey("--suite", "--extras"), 49, resumes=True),
    Suite("random", "auto beside torch.mm on random sizes",
          _survey("--seeds", "31", "32", "33", "--count", "134"), 24, resumes=True),
    Suite("data", "33 kinds of data in 18 problems: times and errors",
          _script("data", timed=True), 34, resumes=True),
    Suite("accuracy", "errors by depth on ten kinds of operands, beside the chain's and TF32's",
          lambda file, seconds, gpu: ["-m", "xgemm_torch", "accuracy", "--json"], 10, 15,
          wrap=of_stdout),
    Suite("steps", "training steps of six models: stock, TF32, converted, inside a patch",
          _script("steps"), 130),
    Suite("steps-compiled", "the same under torch.compile, five models",
          _script("steps", "--compile", "--models", "gpt2", "vit", "bert", "mlp", "pinn"), 210),
    Suite("grouped", "products of groups, as experts', beside torch's own", _script("grouped"), 15),
    Suite("mixed", "linear layers of bf16 activations and FP32 weights", _script("mixed"), 12),
    Suite("invariant", "ieee's layers without and with invariant=", _script("invariant"), 25),
    Suite("attention", "attention forward and backward beside torch's, with errors",
          _script("attention", timed=True), 45, resumes=True),
    Suite("examples", "the programs of examples/ in three ways, with their errors",
          _examples, EXAMPLES_SECONDS, 40, shortens=True),
    Suite("products", "products by pytest-benchmark: auto, stages, operands hot and cold",
          _pytest("bench_sgemm"), 73, 10, wrap=of_pytest),
    Suite("layers", "linear layers by pytest-benchmark, forward and with gradients",
          _pytest("bench_linear"), 14, 6, wrap=of_pytest),
    Suite("host", "the host's time of a call by pytest-benchmark",
          _pytest("bench_overhead"), 16, 6, wrap=of_pytest),
    Suite("peers", "beside Triton, JAX and CuPy where they are installed, with errors",
          _script("peers", timed=True), 96, 4, resumes=True),
)  # fmt: skip
NAMES = tuple(suite.name for suite in SUITES)


@dataclass
class Outcome:
    """What came of a suite: its state, seconds if it ran, and what there is to say."""

    suite: Suite
    state: str
    seconds: float | None = None
    note: str = ""


THERE, MEASURED, NO_GPU = "there", "measured", "needs a GPU"
UNWHOLE, FAILED = "not finished", "failed"


def environment() -> dict[str, str]:
    """Give the variables of a suite's process: the checkout is found, no pytest is around it."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    path = [str(ROOT), *filter(None, [outer.get("PYTHONPATH")])]
    return outer | {"PYTHONPATH": os.pathsep.join(path)}


def facts() -> dict[str, Any]:
    """Say where and how this machine measures; in a process of its own, so none holds the GPU."""
    told = subprocess.run(
        [sys.executable, "benchmarks/provenance.py"], cwd=ROOT, env=environment(),
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return dict(json.loads(told.stdout))


def outdated(record: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Why a record cannot stand for a measurement made now; "" where it can."""
    its = record.get("facts", {})
    other = [name for name in SAME if its.get(name) != here.get(name)]
    if other:
        return f"other {' and '.join(other)}"
    return "" if record.get("finished") else "not finished"


def differences(record: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Name what of `SAME` a record has otherwise, with both values."""
    its = record.get("facts", {})
    return ", ".join(
        f"{name} {its.get(name)!r} in place of {here.get(name)!r}"
        for name in SAME
        if its.get(name) != here.get(name)
    )


def read(path: Path) -> dict[str, Any] | None:
    """Give a record, None where there is none that can be read."""
    try:
        found = records.read(path)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


class Run:
    """Suites into a folder."""

    def __init__(
        self, folder: Path, suites: Sequence[Suite], here: Mapping[str, Any], *,
        seconds: Limit = None, again: bool = False,
    ) -> None:  # fmt: skip
        """Make nothing yet.

        Args:
            folder: of the records.
            suites: in their order.
            here: `facts`.
            seconds: for which a suite that can stop, and go on, measures at most.
            again: whether records that are there are measured anew.
        """
        self.folder, self.suites, self.here = folder.resolve(), suites, here
        self.seconds, self.again, self.gpu = seconds, again, "sm" in here
        self.outcomes: list[Outcome] = []

    def record(self, suite: Suite) -> Path:
        """Where its record is when it is whole."""
        return self.folder / f"{suite.name}.json"

    def unfinished(self, suite: Suite) -> Path:
        """Where its process writes."""
        return self.folder / UNFINISHED / f"{suite.name}.json"

    def log(self, suite: Suite) -> Path:
        """What its process printed."""
        return self.folder / LOGS / f"{suite.name}.txt"

    def command(self, suite: Suite) -> list[str]:
        """Give what is run in the checkout's root."""
        arguments = suite.arguments(self.unfinished(suite), self.seconds, self.gpu)
        return [sys.executable, *arguments]

    def state(self, suite: Suite) -> tuple[str, str]:
        """Whether it is there, cannot be measured here, or is to be; and why."""
        found = read(self.record(suite))
        why = "no record" if found is None else outdated(found, self.here)
        if not why and not self.again:
            return THERE, str(found["facts"]["date"])[:16].replace("T", " ") if found else ""
        if not self.gpu and not suite.on_cpu:
            return NO_GPU, ""
        return "", why or "asked for again"

    def expected(self, suite: Suite) -> float:
        """About how many seconds it takes."""
        usual = suite.seconds if self.gpu else suite.on_cpu
        limited = suite.resumes or suite.shortens
        return min(usual, self.seconds or usual) if limited else usual

    def measure(self, suite: Suite, tick: Callable[[float], None]) -> Outcome:
        """Run a suite's process, and keep its record if that is whole; ``tick`` is told seconds."""
        file, log = self.unfinished(suite), self.log(suite)
        for path in (file, log):
            path.parent.mkdir(parents=True, exist_ok=True)
        printed = file.with_suffix(".stdout") if suite.wrap is of_stdout else log
        left = read(file)
        goes_on = suite.resumes and left is not None and not self.again
        if not goes_on or outdated(left or {}, self.here) not in ("", "not finished"):
            file.unlink(missing_ok=True)
        began = time.monotonic()
        with open(log, "wb") as output:
            if printed is log:
                code = self._watch(suite, output, output, began, tick)
            else:
                with open(printed, "wb") as out:
                    code = self._watch(suite, out, output, began, tick)
        seconds = time.monotonic() - began
        note = "" if code == 0 else f"exit code {code}: see {LOGS}/{log.name}"
        try:
            record = self._wrapped(suite, file, printed)
        except (OSError, ValueError, KeyError, TypeError) as error:
            file.unlink(missing_ok=True)
            return Outcome(suite, FAILED, seconds, note or f"no record: {error}")
        finally:
            if printed is not log:
                printed.unlink(missing_ok=True)
        if differs := differences(record, self.here):
            # The next call would measure it again, and so would each one after that.
            note = "; ".join([*filter(None, [note]), f"the record has {differs}"])
            return Outcome(suite, FAILED, seconds, f"{note}: see {UNFINISHED}/{file.name}")
        if not record.get("finished"):
            if code == 3:
                return Outcome(suite, UNWHOLE, seconds, "time was up: the next call goes on")
            if not suite.resumes:
                file.unlink(missing_ok=True)
            return Outcome(suite, FAILED, seconds, note or "the record is not finished")
        if suite.wrap is not None:
            records.write(file, record)
        os.replace(file, self.record(suite))
        return Outcome(suite, MEASURED, seconds, note)

    def _watch(
        self, suite: Suite, out: Any, error: Any, began: float, tick: Callable[[float], None]
    ) -> int:
        """Wait for the process; whatever ends the wait ends the process too."""
        child = subprocess.Popen(
            self.command(suite), cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
            stdout=out, stderr=error,
        )  # fmt: skip
        try:
            while True:
                try:
                    return child.wait(POLL)
                except subprocess.TimeoutExpired:
                    tick(time.monotonic() - began)
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()

    def _wrapped(self, suite: Suite, file: Path, printed: Path) -> dict[str, Any]:
        """Give the record of what the process left."""
        if suite.wrap is None:
            return dict(records.read(file))
        words = [w.replace(f"{file.parent}/", "") for w in self.command(suite)[1:]]
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        mine = {**self.here, "date": now, "command": shlex.join(["python", *words])}
        return {**suite.wrap(file, printed), "facts": mine, "finished": True}

    def left(self) -> list[str]:
        """Name the suites that nothing has come of."""
        return [suite.name for suite in self.suites[len(self.outcomes) :]]

    def all(self) -> list[Outcome]:
        """Measure what is not there, under one progress bar."""
        from tqdm import tqdm

        states = {suite.name: self.state(suite) for suite in self.suites}
        todo = [suite for suite in self.suites if not states[suite.name][0]]
        outcomes = self.outcomes = []
        total = sum(map(self.expected, todo))
        bar = tqdm(total=total, disable=None, bar_format="{desc} |{bar}| {elapsed}{postfix}")
        done = 0.0
        with bar:
            for suite in self.suites:
                state, why = states[suite.name]
                if state:
                    outcomes.append(Outcome(suite, state, note=why))
                    continue
                number, share = todo.index(suite) + 1, self.expected(suite)
                bar.set_description_str(f"{number}/{len(todo)} {suite.name}")

                def tick(seconds: float, share: float = share, done: float = done) -> None:
                    bar.n = done + min(seconds, 0.98 * share)
                    bar.set_postfix_str(f"about {_minutes(total - bar.n)} left")

                tick(0.0)
                outcomes.append(self.measure(suite, tick))
                done += share
                tqdm.write(_line(outcomes[-1]), file=sys.stderr)
        return outcomes


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{max(seconds, 0):.0f} s"


def _line(outcome: Outcome) -> str:
    note = f" ({outcome.note})" if outcome.note else ""
    return f"{outcome.suite.name}: {outcome.state}, {outcome.seconds or 0:.0f} s{note}"


def listing(run: Run) -> Fitted:
    """What there is to measure, and what is there."""
    from xgemm_torch.tools.console import Column, Fitted

    made = Fitted(
        f"Suites; records in {run.folder}",
        [
            Column("suite"), Column("what", words=24), Column("about, s", right=True),
            Column("here", words=12), Column("why", words=12, spare=1),
        ],
    )  # fmt: skip
    for suite in run.suites:
        state, why = run.state(suite)
        made.add_row(suite.name, suite.what, f"{run.expected(suite) or suite.seconds:.0f}",
                     state or "to measure", why)  # fmt: skip
    return made


def ending(run: Run, outcomes: Sequence[Outcome]) -> Fitted:
    """What came of each suite."""
    from xgemm_torch.tools.console import Column, Fitted

    made = Fitted(
        f"Records in {run.folder}",
        [
            Column("suite"), Column("state"), Column("seconds", right=True),
            Column("record"), Column("note", words=20),
        ],
    )  # fmt: skip
    for o in outcomes:
        whole = o.state in (THERE, MEASURED)
        made.add_row(
            o.suite.name, o.state, "-" if o.seconds is None else f"{o.seconds:.0f}",
            run.record(o.suite).name if whole else "-", o.note.replace("[", r"\["),
        )  # fmt: skip
    return made


def main(
    names: Sequence[str], folder: Path, *, seconds: Limit = None, again: bool = False,
    only_list: bool = False, dry_run: bool = False, report: str = "", command: str = "",
) -> int:  # fmt: skip
    """Measure suites; 0 well, 1 where one failed, 3 where time was up, 130 where interrupted.

    Args:
        names: of the suites; all where there are none.
        folder: of the records.
        seconds: as `Run` has it.
        again: as `Run` has it.
        only_list: list suites and records, measure nothing.
        dry_run: print the commands, measure nothing.
        report: the command that shows the records.
        command: the one that was given, without the suites.
    """
    from xgemm_torch.tools.console import console

    chosen = [suite for suite in SUITES if not names or suite.name in names]
    run = Run(folder, chosen, facts(), seconds=seconds, again=again)
    out = console()
    if only_list:
        out.print(listing(run))
        return 0
    if dry_run:
        for suite in chosen:
            state, _ = run.state(suite)
            print(f"# {suite.name}: {state or 'to measure'}")
            print(shlex.join(["python", *run.command(suite)[1:]]))
        return 0
    try:
        outcomes = run.all()
    except KeyboardInterrupt:
        # What is there does not count again, except where it is asked for.
        words = [command, *(["--again", *run.left()] if again else names)]
        print(f"interrupted; to go on: {' '.join(words)}", file=sys.stderr)
        return 130
    out.print(ending(run, outcomes))
    if any(o.state in (THERE, MEASURED) for o in outcomes):
        out.print(f"to see them: {report}", highlight=False, soft_wrap=True)
    states = {o.state for o in outcomes}
    return 1 if FAILED in states else 3 if UNWHOLE in states else 0
