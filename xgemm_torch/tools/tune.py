"""``python -m xgemm_torch tune M N K``: which row is fastest for a user's own problems, measured.

Each problem's rows that could win take turns with torch.mm, after a check of their bits. What was
measured goes into a file (`xgemm_torch.tuned`) by which ``auto`` chooses from then on.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import xgemm_torch

from .. import registry, tuned
from . import arguments, environment, explain_command, timing, trials
from .contenders import LAYOUTS, Problem, Row, place, rows_of

PRECISIONS = ("fp32", "ieee")
# A row that is estimated to take so many times the least is left out.
SLOW = 2.0
HEAT_SECONDS = 1.0
TIME_IS_UP, INTERRUPTED = 3, 130  # exit codes
Timer = Callable[[Problem, Sequence[Row], Callable[[], None]], Mapping[str, float]]
Check = Callable[[Problem, Sequence[Row]], list[trials.Fault]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the problems and where their times go."""
    parser.add_argument(
        "sizes", nargs="*", type=int, metavar="M N K", help="a problem's sizes; and the next's"
    )
    arguments.add_layout(parser, several=True)
    parser.add_argument(
        "--batch", nargs="+", type=int, default=[1], metavar="B",
        help="how many such products at once; several for each problem (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=[*PRECISIONS, "both"], default="both",
        help="the contract to choose for (default: both)",
    )  # fmt: skip
    parser.add_argument(
        "--file", type=Path, help="more problems, one a line: M N K [layout] [batch]"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="PATH",
        help="the file of times (default: $XGEMM_TUNE_CACHE, else ~/.cache/xgemm_torch/tuned.txt)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=math.inf,
        help="begin no problem after so many; the same command goes on later",
    )  # fmt: skip
    parser.add_argument(
        "--force", action="store_true", help="measure again what the file has already"
    )


@dataclass(frozen=True)
class Gpu:
    """The GPU at hand: its name, compute capability (as in 90), multiprocessors and memory.

    ``room`` is for a workspace, in bytes; ``made_with`` names driver and torch.
    """

    name: str
    sm: int
    sm_count: int
    memory: int
    room: int
    made_with: str


def gpu_at_hand() -> Gpu:
    """Describe the current GPU; ValueError where there is none, or torch.mm is not FP32 there."""
    if not torch.cuda.is_available():
        raise ValueError("tune: there is no GPU that torch can use, and only there times mean much")
    if (reason := environment.strict_reference()) is not None:
        raise ValueError(f"tune: torch.mm is not the FP32 yardstick here: {reason}")
    chip = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(
        chip.name, 10 * chip.major + chip.minor, chip.multi_processor_count, chip.total_memory,
        torch.cuda.mem_get_info()[0] // 2,
        f"driver {timing.driver().get('driver_version', 'unknown')}, torch {torch.__version__}",
    )  # fmt: skip


def problem(m: int, n: int, k: int, layout: str, batch: int = 1) -> Problem:
    """A problem with its label; ValueError for a size below 1."""
    label = f"{m} x {n} x {k} {layout}" + (f", batch {batch}" if batch != 1 else "")
    if min(m, n, k, batch) < 1:
        raise ValueError(f"tune: sizes must be at least 1, got {label}")
    return Problem(label, m, n, k, layout, batch)


def problems_of(options: argparse.Namespace) -> list[Problem]:
    """The problems that the command line names; ValueError where it makes no sense."""
    sizes = options.sizes
    if len(sizes) % 3:
        raise ValueError(f"tune: a problem has three sizes, M N K, got {' '.join(map(str, sizes))}")
    found = [
        problem(*sizes[i : i + 3], layout, batch)
        for i in range(0, len(sizes), 3)
        for layout in options.layout
        for batch in options.batch
    ]
    if options.file is not None:
        found += _read_problems(options.file, options.layout, options.batch)
    if not found:
        raise ValueError("tune: no problem is given: M N K, or --file")
    # Operands of one row or column may lie the same way in two layouts.
    once: dict[tuple[int, ...], Problem] = {}
    for p in found:
        once.setdefault((p.m, p.n, p.k, p.batch, *place(p)), p)
    return list(once.values())


def _read_problems(path: Path, layouts: Sequence[str], batches: Sequence[int]) -> Iterator[Problem]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"tune: {tuned.shown(path)} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            m, n, k = map(int, words[:3])
            own_layout = [word for word in words[3:] if word in timing.LAYOUTS]
            own_batch = [int(word) for word in words[3:] if word not in timing.LAYOUTS]
            if len(own_layout) > 1 or len(own_batch) > 1:
                raise ValueError
        except ValueError:
            raise ValueError(
                f"tune: {path}, line {number}: a line is M N K, and behind it one of "
                f"{', '.join(timing.LAYOUTS)} or the size of a batch or both, got {line.strip()!r}"
            ) from None
        for layout in own_layout or layouts:
            for batch in own_batch or batches:
                yield problem(m, n, k, layout, batch)


def library() -> str:
    """Name the tile tables that were measured: the library's version, and a hash of their rows."""
    keys = "\n".join(sorted(row.key for row in rows_of(registry.stages())))
    return f"{xgemm_torch.__version__} {hashlib.sha256(keys.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Task:
    """A problem that is to be measured.

    ``rows`` are those that could win for a precision, by precision, and ``before`` is the one that
    ``auto`` takes so far.
    """

    problem: Problem
    rows: Mapping[str, list[Row]]
    before: Mapping[str, Row]

    @property
    def all_rows(self) -> list[Row]:
        """Every row once."""
        return list(dict.fromkeys(row for rows in self.rows.values() for row in rows))

    @property
    def turns(self) -> int:
        """How many all rows and torch.mm take."""
        return rounds_of(self.problem) * (len(self.all_rows) + 1)


def rounds_of(p: Problem) -> int:
    """How many turns a row gets: few where a product takes a tenth of a second."""
    milliseconds = 2 * p.batch * p.m * p.n * p.k / 45e9
    return 3 if milliseconds > 50 else 5 if milliseconds > 5 else 9


def task_of(p: Problem, gpu: Gpu, precisions: Sequence[str]) -> Task:
    """Find the rows that could win, by what ``auto`` expects of them; ValueError for no room."""
    needed = 2 * p.bytes
    if needed > gpu.memory:
        raise ValueError(
            f"tune: {p.label} takes {needed} bytes with operands to rotate, "
            f"{gpu.name} has {gpu.memory}"
        )
    cuda = [stage for stage in registry.stages() if stage.cuda]
    all_rows = {(row.stage, row.row): row for row in rows_of(cuda)}
    trans_a, trans_b = timing.LAYOUTS[p.layout]
    rows, before = {}, {}
    for precision in precisions:
        choice = explain_command.choose(
            p.m, p.n, p.k, batch=p.batch, trans_a=trans_a, trans_b=trans_b, precision=precision,
            workspace=gpu.room, sm=gpu.sm, sm_count=gpu.sm_count, gpu=gpu.name,
        )  # fmt: skip
        legal = [
            c for c in choice["candidates"] if c["legal"] and (c["kernel"], c["row"]) in all_rows
        ]
        if not legal:
            raise ValueError(f"tune: no stage of this build can take {p.label} for {precision}")
        before[precision] = all_rows[choice["kernel"], choice["row"]]
        limit = SLOW * min(c["predicted_us"] or math.inf for c in legal)
        rows[precision] = [
            row
            for c in legal
            if (row := all_rows[c["kernel"], c["row"]]) == before[precision]
            or c["basis"] == "rate"
            or (c["predicted_us"] or math.inf) <= limit
        ]
    return Task(p, rows, before)


def measure(p: Problem, rows: Sequence[Row], turn: Callable[[], None]) -> dict[str, float]:
    """Time rows and torch.mm on the current GPU, hot: microseconds by key."""
    timing.heat(HEAT_SECONDS)
    return trials.microseconds(p, rows, rounds=rounds_of(p), turn=turn)


def record_of(
    p: Problem, precision: str, gpu: Gpu, torch_mm: float, times: dict[str, float]
) -> tuned.Record:
    """What the file has of a problem; without times, what it has it under."""
    layout, wide = place(p)
    return tuned.Record(
        p.m, p.n, p.k, LAYOUTS[layout], wide, precision, gpu.name, gpu.sm, gpu.sm_count,
        datetime.datetime.now(datetime.timezone.utc).date().isoformat(), gpu.made_with, library(),
        torch_mm, times, p.batch,
    )  # fmt: skip


def missing(p: Problem, gpu: Gpu, precisions: Sequence[str], file: Path) -> list[str]:
    """The precisions for which the file has no record of these tile tables."""
    there = {record.key: record.rows for record in tuned.read(file)}
    wanted = {precision: record_of(p, precision, gpu, 0.0, {}) for precision in precisions}
    return [name for name, record in wanted.items() if there.get(record.key) != record.rows]


def short(key: str) -> str:
    """Stage and block tile of a row's key."""
    return " ".join(key.split()[:2])


def verdict(p: Problem, record: tuned.Record, before: Row) -> str:
    """A line on what was found."""
    best, us = record.best, record.times[record.best]
    text = f"{p.label} {record.precision}: {short(best)} {us:.1f} us, "
    text += f"{record.torch_mm / us:.2f} x torch.mm; "
    if best == before.key:
        return text + "auto took the same"
    took = record.times.get(before.key)
    its = f" {took:.1f} us ({took / us - 1:+.1%})" if took is not None else ""
    return f"{text}auto took {short(before.key)}{its}"


def tune(
    tasks: Sequence[Task], gpu: Gpu, file: Path, *, timer: Timer, check: Check,
    seconds: float = math.inf,
) -> int:  # fmt: skip
    """Check and time each task, and write it into the file before the next; the exit code.

    A row with wrong bits is said to be so, and left out.
    """
    from tqdm import tqdm

    began, wrong = time.monotonic(), False
    with tqdm(total=sum(task.turns for task in tasks), unit="turn", disable=None) as bar:
        for number, task in enumerate(tasks):
            if time.monotonic() - began > seconds:
                bar.write(f"time is up: {len(tasks) - number} problems are left")
                return TIME_IS_UP
            p = task.problem
            bar.set_description(p.label)
            faults = check(p, task.all_rows)
            for fault in faults:
                bar.write(f"wrong, and left out: {fault.text}")
            wrong = wrong or bool(faults)
            out = {fault.key for fault in faults}
            good = [row for row in task.all_rows if row.key not in out]
            times = timer(p, good, lambda: bar.update())
            records = [
                record_of(
                    p, precision, gpu, times[trials.TORCH_MM],
                    {row.key: times[row.key] for row in rows if row.key not in out},
                )
                for precision, rows in task.rows.items()
                if any(row.key not in out for row in rows)
            ]  # fmt: skip
            tuned.add(file, records)
            for record in records:
                bar.write(verdict(p, record, task.before[record.precision]))
    return 1 if wrong else 0


def run(options: argparse.Namespace) -> int:
    """Tune what is missing.

    Returns 0 when all is there, 1 when a row's bits were wrong, 3 when time was up before, 130
    after Ctrl-C.
    """
    problems = problems_of(options)
    file = options.cache if options.cache is not None else tuned.path()
    if file is None:
        raise ValueError(f"tune: {tuned.why_no_path()}, so there is no file; --cache names one")
    precisions = PRECISIONS if options.precision == "both" else (options.precision,)
    gpu = gpu_at_hand()
    try:
        tuned.add(file, [])  # what cannot be written is no place for an hour's work
    except OSError as error:
        raise ValueError(
            f"tune: {tuned.shown(file)} cannot be written: {error.strerror}"
        ) from error
    tasks = []
    for p in problems:
        wanted = precisions if options.force else missing(p, gpu, precisions, file)
        if wanted:
            tasks.append(task_of(p, gpu, wanted))
    if len(tasks) < len(problems):
        there = len(problems) - len(tasks)
        print(f"{there} of {len(problems)} problems are in the file already; --force for again")
    try:
        code = tune(tasks, gpu, file, timer=measure, check=trials.check, seconds=options.seconds)
    except KeyboardInterrupt:
        print("interrupted; what was measured before is in the file")
        code = INTERRUPTED
    print(f"{len(tuned.read(file))} records in {tuned.shown(file)}")
    read = tuned.path()
    if read is None or file.absolute() != read.absolute():
        print("auto reads another file, or none: XGEMM_TUNE_CACHE or tuned.load() names this one")
    return code
