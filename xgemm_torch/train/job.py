"""The whole job: two runs that take turns step by step, measurements, report. It can be resumed.

A run directory holds ``config.json`` (what was asked for), ``files.txt`` (the text's files),
``checkpoint.pt`` (all that is needed to go on) and, at the end, ``summary.json``, ``curves.png``
and ``sample.txt``.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from torch import nn
from tqdm import tqdm

from ..tools import environment
from ..tools.files import write_text
from . import checkpoint, measure, report
from .config import RUNS, Config
from .data import Corpus, load
from .loop import Trainer

PROMPT = b"\tdef __init__(self"
SAMPLE_BYTES = 400
# What a checkpoint holds besides its format; and what it holds of each run.
STATE = {"runs": dict, "fingerprint": str, "environment": dict}
RUN = {
    "step", "model", "optimizer", "rng", "cuda_rng", "data", "losses", "step_ms", "recomputed",
}  # fmt: skip


class Interrupted(Exception):
    """The job was asked to stop and has saved its place."""


class Job:
    """One run directory and the state that goes through it."""

    def __init__(
        self, config: Config, folder: Path, *, checkpoint_every: int, plot: bool, console: Console
    ) -> None:
        """Read the text; the folder is not touched before ``start`` or ``resume``."""
        self.config, self.folder, self.console = config, folder, console
        self.checkpoint_every, self.plot = checkpoint_every, plot
        self.corpus: Corpus = load()
        self.state: dict[str, Any] = {"runs": {}}

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def _write(self, name: str, text: str) -> None:
        write_text(self.folder / name, text, who="train")

    def start(self) -> None:
        """Make the run directory; FileExistsError when it holds a run already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "config.json"
        if path.exists():
            raise FileExistsError(
                f"train: {self.folder} holds a run; go on with it by --resume, or name another "
                "folder with --out"
            )
        lines = [f"train {name}" for name in self.corpus.files]
        lines += [f"validation {name}" for name in self.corpus.validation_files]
        self._write("files.txt", "\n".join(lines) + "\n")
        self.state["fingerprint"] = self.corpus.fingerprint
        self.state["environment"] = environment.summary(self.config.device)
        # The settings come last: a folder that has them is a run that can be resumed.
        self._write(path.name, self.config.to_json())

    def resume(self) -> None:
        """Take up what the run directory holds; ValueError when the text is not the same."""
        here = environment.summary(self.config.device)
        saved = checkpoint.load(self._checkpoint)
        if saved is None:
            self.state["fingerprint"] = self.corpus.fingerprint
            self.state["environment"] = here
            self.console.print("no checkpoint yet: starting from the first step")
            return
        if key := _not_as_saved(saved):
            raise ValueError(
                f"train: {self._checkpoint} is of no run: its {key!r} is missing or wrong"
            )
        if saved["fingerprint"] != self.corpus.fingerprint:
            raise ValueError(
                "train: this Python's library is not the text that the run began with "
                f"({self.corpus.fingerprint} instead of {saved['fingerprint']})"
            )
        changed = [key for key, value in saved["environment"].items() if here.get(key) != value]
        if changed:
            self.console.print(
                f"[yellow]changed since the run began: {', '.join(changed)}; "
                "the last bits of the losses may differ[/]"
            )
        self.state = saved
        done = _steps_done({name: saved["runs"][name]["step"] for name in RUNS})
        self.console.print(f"resuming after {done}, of {self.config.steps}")

    def run(self) -> dict[str, Any]:
        """Do what is left; returns the summary. Raises Interrupted after a saved stop."""
        self._introduce()
        devices = [torch.cuda.current_device()] if self.config.device == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            trainers = {name: self._trainer(name) for name in RUNS}
            self._train(trainers)
            return self._finish(trainers)

    def _introduce(self) -> None:
        config, text = self.config, self.corpus.facts()
        shape = config.shape
        self.console.print(
            f"[bold]{config.size}[/]: {shape.parameters():,} parameters ({shape.layers} layers, "
            f"width {shape.width}, {shape.heads} heads, context {shape.context}, vocabulary "
            f"{shape.vocab}), FP32, on {environment.device_name(config.device)}\n"
            f"text: {text['files']} files of Python {text['python']}'s standard library, "
            f"{text['train_bytes']:,} bytes to train and {text['validation_bytes']:,} to validate "
            f"(listed in {self.folder / 'files.txt'})\n"
            f"{config.steps} steps of {config.batch} x {config.seq} bytes, twice from seed "
            f"{config.seed}, in turns: stock nn.Linear and xgemm_torch.convert(model, "
            f"kernel={config.kernel!r}, precision={config.precision!r})"
        )
        if shape.vocab > 256:
            self.console.print(
                f"The text is bytes, so {shape.vocab - 256:,} rows of the embedding are never "
                "looked up; every product has GPT-2's real size all the same."
            )
        for line in environment.tf32_warnings():
            self.console.print(f"[yellow]{line}[/]")

    def _trainer(self, name: str) -> Trainer:
        stock = name == RUNS[0]
        prepare: Callable[[nn.Module], Iterable[Any]] = (
            (lambda model: ()) if stock else measure.prepare(self.config)
        )
        trainer = Trainer(self.config, self.corpus, prepare)
        if saved := self.state["runs"].get(name):
            try:
                trainer.restore(saved)
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
                words = " ".join(f"{type(error).__name__}: {error}".split())
                raise ValueError(
                    f"train: {self._checkpoint} does not fit this run: {words}"
                ) from error
        return trainer

    def _train(self, trainers: dict[str, Trainer]) -> None:
        """Do the steps that are left. The run that has done fewer is next; of equals the stock one.

        What slows the machine down for longer than a step slows both runs, so their times can be
        compared. Both models stay in memory; activations are only one's at a time.
        """
        config = self.config
        stock, converted = trainers.values()
        bar = tqdm(
            total=2 * config.steps, initial=stock.step + converted.step, desc="in turns",
            unit="step", mininterval=0.2 if sys.stderr.isatty() else 10.0, dynamic_ncols=True,
        )  # fmt: skip

        def show() -> None:
            told = []
            for name, trainer in trainers.items():
                trainer.read()
                if trainer.losses:  # none when asked to stop before the first step
                    rate = report.tokens_per_second(config, trainer.step_ms[-20:])
                    told.append(f"{name} {trainer.losses[-1]:.3f}, {rate}")
            bar.set_postfix_str("; ".join(told), refresh=False)
            bar.update(stock.step + converted.step - bar.n)

        def save() -> None:
            self.state["runs"] = {name: trainer.state() for name, trainer in trainers.items()}
            checkpoint.save(self._checkpoint, self.state)

        with ExitStack() as stack:
            stack.enter_context(bar)
            if measure.may_recompute(config):
                stack.enter_context(converted.counting())
            stop = stack.enter_context(_stop_requests())
            while not stop and converted.step < config.steps:
                trainer = min(stock, converted, key=lambda each: each.step)
                trainer.advance()
                if trainer is stock:
                    continue
                saving = trainer.step % self.checkpoint_every == 0
                if saving or trainer.due(self.checkpoint_every):
                    show()
                if saving:
                    save()
            # At whatever step it was asked to stop: what is saved is where the runs stand.
            show()
            save()
            if stop:
                done = _steps_done({name: trainer.step for name, trainer in trainers.items()})
                raise Interrupted(f"stopped after {done}")

    def _run_facts(self, trainer: Trainer) -> dict[str, Any]:
        """What a summary tells of a finished run; profiling comes last, since it trains on."""
        config = self.config
        sample = trainer.model.generate(PROMPT, SAMPLE_BYTES, window=config.seq, seed=config.seed)
        return {
            "losses": list(trainer.losses),
            "step_ms": list(trainer.step_ms),
            "recomputed": list(trainer.recomputed),
            "validation": trainer.validate(self.corpus),
            "sample": report.printable(sample),
            "shares": measure.time_shares(trainer),
        }

    def _finish(self, trainers: dict[str, Trainer]) -> dict[str, Any]:
        config, converted = self.config, trainers["converted"]
        summary: dict[str, Any] = {
            "config": json.loads(config.to_json()),
            "parameters": config.shape.parameters(),
            "environment": self.state["environment"],
            "text": self.corpus.facts(),
            "runs": {name: self._run_facts(trainer) for name, trainer in trainers.items()},
            "products": measure.products(converted.model, config),
            "layers": [asdict(row) for row in converted.prepared],
            "check": measure.check_bits(config, self.corpus),
        }
        report.complete(summary)
        path = self.folder / "summary.json"
        self._write(path.name, json.dumps(summary, indent=2) + "\n")
        self._write("sample.txt", summary["runs"]["converted"]["sample"] + "\n")
        picture = None
        if self.plot:
            from ..tools import plotting

            picture = self.folder / "curves.png"
            plotting.training(summary, picture)
        report.show(summary, self.console)
        self.console.print(f"results: {path}" + (f", {picture}" if picture else ""))
        return summary


def _not_as_saved(state: dict[str, Any]) -> str:
    """Name what of a checkpoint is not as ``Job`` saves it; "" where all is."""
    for key, kind in STATE.items():
        if not isinstance(state.get(key), kind):
            return key
    fits = all(isinstance(run := state["runs"].get(n), dict) and run.keys() >= RUN for n in RUNS)
    return "" if fits else "runs"


def _steps_done(steps: dict[str, int]) -> str:
    return " and ".join(f"{done} steps of {name}" for name, done in steps.items())


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, so that a step under way ends before the job does."""
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    try:
        previous = {
            number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:  # not the main thread: signals go elsewhere
        yield requests
        return
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
