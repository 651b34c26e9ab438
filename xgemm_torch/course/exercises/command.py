"""``python -m xgemm_torch exercise``: lists exercises, hands one out, grades it, helps with it."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from ...tools.invocation import called
from . import check, gpu, truth
from .exercise import KINDS, SOLUTION, Exercise, exercises, find
from .progress import Progress, State

FOLDER = Path("exercises")
WIDTH = 100


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``exercise``."""
    parser.add_argument(
        "exercise", nargs="?", help="number or name; alone: make its file. Left out: list all"
    )
    do = parser.add_mutually_exclusive_group()
    do.add_argument("--check", action="store_true", help="grade your file; without a number all")
    do.add_argument("--hint", action="store_true", help="one more hint each time")
    do.add_argument("--solution", action="store_true", help="the model solution")
    do.add_argument(
        "--answer", nargs="+", metavar="ANSWER", help="to the questions of a prediction, in order"
    )
    parser.add_argument(
        "--no-gpu", action="store_true", help="check in the emulator alone, though there is a GPU"
    )
    parser.add_argument("--force", action="store_true", help="begin anew; the old file gets .old")
    parser.add_argument("--yes", action="store_true", help="the solution, though nothing was tried")
    parser.add_argument(
        "--dir", type=Path, help=f"where your files are (default: {FOLDER}, or here if it is that)"
    )


def run(options: argparse.Namespace) -> int:
    """Do what was asked; returns 1 where a check failed, else 0."""
    folder = options.dir or _folder()
    progress = Progress(folder)
    if progress.trouble:
        print(f"note: {progress.trouble}", file=sys.stderr)
    if options.exercise is None:
        if options.hint or options.solution or options.answer or options.force:
            raise ValueError("exercise: of which one? Give its number")
        if not options.check:
            return _list(progress)
        with gpu.Worker() as worker:
            return _check_all(folder, progress, None if options.no_gpu else worker)
    chosen = find(options.exercise)
    path = folder / chosen.file_name
    if options.check or options.answer:
        with gpu.Worker() as worker:
            on = None if options.no_gpu else worker
            return _check(chosen, path, progress, on, options.answer)
    if options.hint:
        return _hint(chosen, progress)
    if options.solution:
        return _solution(chosen, progress, yes=options.yes)
    return _hand_out(chosen, path, progress, force=options.force)


def _folder() -> Path:
    """Where files are: in ``exercises``, also for who stands in it."""
    return Path() if Path.cwd().name == FOLDER.name and not FOLDER.is_dir() else FOLDER


def _called(*words: object) -> str:
    return called("exercise", *words)


def _print(text: str, indent: str = "") -> None:
    """Prints paragraphs, each wrapped; further lines begin with `indent`."""
    for number, line in enumerate(text.splitlines()):
        print(
            textwrap.fill(
                line, WIDTH, initial_indent=indent if number else "", subsequent_indent=indent,
                break_long_words=False, break_on_hyphens=False,
            )
        )  # fmt: skip


def _save(progress: Progress) -> None:
    before = progress.trouble
    progress.save()
    if progress.trouble != before:
        print(f"note: {progress.trouble}", file=sys.stderr)


def _status(state: State) -> str:
    if state.solved:
        return "solved"
    if state.checks:
        return f"tried {state.checks}x: {state.last}"
    return ""


def _list(progress: Progress) -> int:
    rows = [
        (str(e.number), e.title, KINDS[e.kind], e.stage, _status(progress.of(e.stem)))
        for e in exercises()
    ]
    try:
        from ...tools.console import Column, Fitted, console
    except ModuleNotFoundError:  # without the extra "cli"
        for row in rows:
            print("{:>3}  {:52} {:13} {:22} {}".format(*row).rstrip())
    else:
        table = Fitted(
            "",
            [
                Column("#", right=True),
                Column("exercise", words=24),
                Column("what to do", spare=2),
                Column("stage of the ladder", spare=1),
                Column("progress", words=8),
            ],
        )
        for row in rows:
            table.add_row(*row)
        console().print(table)
    solved = sum(progress.of(e.stem).solved for e in exercises())
    print(f"\n{solved} of {len(rows)} solved. Begin one: {_called(1)}")
    return 0


def _hand_out(chosen: Exercise, path: Path, progress: Progress, *, force: bool) -> int:
    if path.exists() and not force:
        print(f"{path} is there already and is left as it is; --force begins anew.")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(path.with_name(f"{path.name}.old"))
        path.write_text(chosen.render(), encoding="utf-8")
        print(f"made {path}")
    print()
    for line in chosen.text:
        print(line.removeprefix("//").removeprefix(" "))
    for question in chosen.questions:
        print()
        _print(f"{question.name}: {question.ask}")
    print(f"\nThen: {_called(chosen.number)} --check    Stuck: --hint")
    return 0


def _on_gpu(
    chosen: Exercise, path: Path, verdict: check.Verdict, worker: gpu.Worker | None,
    say: Callable[[str], None],
) -> check.Verdict:  # fmt: skip
    """What the GPU says, too, where there is one and the emulator has found nothing."""
    if worker is None or not verdict.good or chosen.kind == "predict":
        return verdict
    sm = gpu.architecture()
    if sm is None:
        return verdict
    if not worker.device:
        say("and on the GPU: some seconds; --no-gpu leaves it out")
    return gpu.grade(chosen, path, verdict, worker, sm)


def _check(
    chosen: Exercise, path: Path, progress: Progress, worker: gpu.Worker | None = None,
    answers: list[str] | None = None,
) -> int:  # fmt: skip
    if not path.exists() and answers is None:
        raise ValueError(
            f"exercise: there is no {path}; {_called(chosen.number)} makes it, --dir says "
            "where yours are"
        )
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    if answers is not None:
        if chosen.kind != "predict":
            raise ValueError(f"exercise: {chosen.number} has no questions; --check grades its file")
        names = [question.name for question in chosen.questions]
        if len(answers) != len(names):
            raise ValueError(
                f"exercise: {chosen.number} asks for {len(names)} answers ({', '.join(names)}), "
                f"got {len(answers)}"
            )
        verdict = truth.check(chosen, dict(zip(names, answers, strict=True)), say)
    else:
        verdict = check.file(chosen, path, say=say)
        verdict = _on_gpu(chosen, path, verdict, worker, say)
    state = progress.of(chosen.stem)
    state.checks += 1
    state.failed += not verdict.good
    state.solved = state.solved or verdict.good
    state.last = verdict.kind
    for line in verdict.printed:
        print(f"printed  {line}")
    for line in verdict.passed:
        _print(f"  right  {line}", " " * 9)
    if verdict.slow:
        _print(f"   slow  {verdict.slow}", " " * 9)
    if verdict.note:
        _print(f"   note  {verdict.note}", " " * 9)
    if verdict.good:
        print(f"Exercise {chosen.number} is solved.")
        if chosen.stage:
            print(f"The stage of the ladder that does this is {chosen.stage}.")
        later = [e.number for e in exercises() if not progress.of(e.stem).solved]
        if later:
            following = min(later, key=lambda n: (n < chosen.number, n))
            print(f"Next: {_called(following)}")
    else:
        kind = "" if verdict.what.startswith(verdict.kind) else f"{verdict.kind}: "
        _print(f"  WRONG  {kind}{verdict.what}", " " * 9)
        for number, line in verdict.lines.items():
            print(f"         {path}:{number}: {line.strip()}")
        if verdict.why:
            print()
            _print(verdict.why)
        if verdict.warning:
            _print(f"The compiler warns: {verdict.warning}")
        print(f"\nA hint: {_called(chosen.number)} --hint")
    _save(progress)
    return 0 if verdict.good else 1


def _check_all(folder: Path, progress: Progress, worker: gpu.Worker | None) -> int:
    there = [each for each in exercises() if (folder / each.file_name).exists()]
    if not there:
        raise ValueError(f"exercise: {folder} has no exercise's file; {_called(1)} makes one")
    failed = 0
    for each in there:
        print(f"{each.number:02d}. {each.title}")
        failed |= _check(each, folder / each.file_name, progress, worker)
        print()
    return failed


def _hint(chosen: Exercise, progress: Progress) -> int:
    state = progress.of(chosen.stem)
    state.hints = min(state.hints + 1, len(chosen.hints))
    for number, hint in enumerate(chosen.hints[: state.hints], 1):
        _print(f"hint {number} of {len(chosen.hints)}: {hint}")
    if state.hints == len(chosen.hints):
        print(f"There is no further one; the solution: {_called(chosen.number)} --solution")
    _save(progress)
    return 0


def _solution(chosen: Exercise, progress: Progress, *, yes: bool) -> int:
    state = progress.of(chosen.stem)
    if not (yes or state.solved or state.failed):
        raise ValueError(
            f"exercise: nothing was tried yet: {_called(chosen.number)} --check first, or "
            "--solution --yes"
        )
    for question in chosen.questions:
        _print(f"{question.name}: {truth.shown(truth.of(chosen, question))}. {question.because}")
    if chosen.kind != "predict":
        print(chosen.render(SOLUTION), end="")
    return 0
