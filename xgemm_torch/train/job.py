"""The whole job: stock run, converted run, measurements, report. Each part can be resumed.

A run directory holds ``config.json`` (what was asked for), ``files.txt`` (the text's files),
``checkpoint.pt`` (all that is needed to go on) and, at the end, ``summary.json``, ``curves.png``
and ``sample.txt``.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from torch import nn
from tqdm import tqdm

from ..tools import environment
from . import checkpoint, measure, report
from .config import RUNS, Config
from .data import Corpus, load
from .loop import Trainer

PROMPT = b"\tdef __init__(self"
SAMPLE_BYTES = 400
# What a checkpoint holds besides its format; what it holds of a run under way; of one that is done.
STATE = {
    "part": str, "finished": dict, "current": (dict, type(None)), "fingerprint": str,
    "environment": dict,
}  # fmt: skip
CURRENT = {"step", "model", "optimizer", "rng", "cuda_rng", "data", "losses", "step_ms"}
FINISHED = {"losses", "step_ms", "validation", "sample", "shares"}


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
        self.state: dict[str, Any] = {"part": "stock", "finished": {}, "current": None}

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

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
        checkpoint.write_text(self.folder / "files.txt", "\n".join(lines) + "\n")
        self.state["fingerprint"] = self.corpus.fingerprint
        self.state["environment"] = environment.summary(self.config.device)
        # The settings come last: a folder that has them is a run that can be resumed.
        checkpoint.write_text(path, self.config.to_json())

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
        done = len(saved["current"]["losses"]) if saved["current"] else 0
        self.console.print(f"resuming: {saved['part']}, {done} of {self.config.steps} steps done")

    def _save(self) -> None:
        checkpoint.save(self._checkpoint, self.state)

    def run(self) -> dict[str, Any]:
        """Do what is left; returns the summary. Raises Interrupted after a saved stop."""
        self._introduce()
        devices = [torch.cuda.current_device()] if self.config.device == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            trainer = None
            for name in RUNS:
                if self.state["part"] == name:
                    del trainer  # two models of the largest size need not fit side by side
                    trainer = self._train(name)
                    self.state["part"] = RUNS[1] if name == RUNS[0] else "report"
                    self._save()
            if trainer is None:
                trainer = self._trainer(RUNS[1])
            return self._finish(trainer)

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
            f"{config.seed}: stock nn.Linear, then xgemm_torch.convert(model, "
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
        if self.state["current"] is not None:
            try:
                trainer.restore(self.state["current"])
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
                words = " ".join(f"{type(error).__name__}: {error}".split())
                raise ValueError(
                    f"train: {self._checkpoint} does not fit this run: {words}"
                ) from error
        return trainer

    def _train(self, name: str) -> Trainer:
        trainer, config = self._trainer(name), self.config

        bar = tqdm(
            total=config.steps, initial=trainer.step, desc=f"{name:>9}", unit="step",
            mininterval=0.2 if sys.stderr.isatty() else 10.0, dynamic_ncols=True,
        )  # fmt: skip

        def show() -> None:
            trainer.read()
            if not trainer.losses:  # asked to stop before the first step
                return
            rate = report.tokens_per_second(config, trainer.step_ms[-20:])
            bar.set_postfix_str(f"loss {trainer.losses[-1]:.3f}, {rate}", refresh=False)
            bar.update(trainer.step - bar.n)

        def save() -> None:
            self.state["current"] = trainer.state()
            self._save()

        counts = name == RUNS[1] and measure.may_recompute(config)
        counting = trainer.counting() if counts else nullcontext()
        with bar, counting, _stop_requests() as stop:
            while not stop and trainer.step < config.steps:
                trainer.advance()
                saving = trainer.step % self.checkpoint_every == 0
                if saving or trainer.due(self.checkpoint_every):
                    show()
                if saving:
                    save()
            if stop:  # at whatever step it was asked for: what is saved is where the run stands
                show()
                save()
                raise Interrupted(f"stopped after step {trainer.step} of the {name} run")
        sample = trainer.model.generate(PROMPT, SAMPLE_BYTES, window=config.seq, seed=config.seed)
        self.state["finished"][name] = {
            "losses": list(trainer.losses),
            "step_ms": list(trainer.step_ms),
            "recomputed": list(trainer.recomputed),
            "validation": trainer.validate(self.corpus),
            "sample": report.printable(sample),
            "shares": None,
        }
        # The stock model is done with once its time is profiled; the converted one stays.
        if name == RUNS[0]:
            self.state["finished"][name]["shares"] = measure.time_shares(trainer)
            self.state["current"] = None
        else:
            self.state["current"] = trainer.state()
        return trainer

    def _finish(self, trainer: Trainer) -> dict[str, Any]:
        config, finished = self.config, self.state["finished"]
        layers = [asdict(row) for row in trainer.prepared]
        summary: dict[str, Any] = {
            "config": json.loads(config.to_json()),
            "parameters": config.shape.parameters(),
            "environment": self.state["environment"],
            "text": self.corpus.facts(),
            "runs": {name: dict(finished[name]) for name in RUNS},
            "products": measure.products(trainer.model, config),
            "layers": layers,
        }
        summary["runs"]["converted"]["shares"] = measure.time_shares(trainer)
        summary["interleaved_ms"] = measure.interleaved(trainer)
        summary["check"] = measure.check_bits(config, self.corpus)
        report.complete(summary)
        path = self.folder / "summary.json"
        checkpoint.write_text(path, json.dumps(summary, indent=2) + "\n")
        checkpoint.write_text(self.folder / "sample.txt", finished["converted"]["sample"] + "\n")
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
    parts = (*RUNS, "report")
    if state["part"] not in parts:
        return "part"
    done = [state["finished"].get(name) for name in parts[: parts.index(state["part"])]]
    if not all(isinstance(run, dict) and run.keys() >= FINISHED for run in done):
        return "finished"
    current = state["current"]
    fits = state["part"] != "report" if current is None else current.keys() >= CURRENT
    return "" if fits else "current"


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
