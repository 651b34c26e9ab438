"""One of the two runs: the steps, their losses and times, and all that a checkpoint must hold."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..recomputed import Recomputed, count_recomputed
from .config import Config
from .data import Batches, Corpus
from .model import GPT

# The first steps of a process pay for lazy initialisation, allocator growth and cold caches.
WARM_UP = 3
# How many steps may be under way on a GPU before its losses are read back.
READ_EVERY = 10


class StepClock:
    """Times of steps in milliseconds: events on a GPU, so that nothing waits; a clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        """Measure steps on ``device``."""
        self.cuda = device.type == "cuda"
        self._open: list[tuple[Any, Any]] = []

    def mark(self) -> Any:
        """Note this moment of the device's own time."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def step(self, start: Any, end: Any) -> None:
        """Add the step between two marks."""
        self._open.append((start, end))

    def read(self) -> list[float]:
        """Give the times of the steps added since the last call; waits for the device."""
        pairs, self._open = self._open, []
        if not self.cuda:
            return [(end - start) * 1e3 for start, end in pairs]
        if pairs:
            pairs[-1][1].synchronize()
        return [start.elapsed_time(end) for start, end in pairs]


class Trainer:
    """A model, its optimizer, its place in the data, and the losses so far."""

    def __init__(
        self, config: Config, corpus: Corpus, prepare: Callable[[nn.Module], Iterable[Any]]
    ) -> None:
        """Make the model from the seed; ``prepare`` may change it before the optimizer is made."""
        self.config = config
        self.device = torch.device(config.device)
        self.model = GPT(config.shape, config.dropout).initialize(config.seed).to(self.device)
        self.prepared = prepare(self.model)
        text = corpus.train.to(self.device)
        self.batches = Batches(text, config.batch, config.seq, config.seed)
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True
        )
        self.clock = StepClock(self.device)
        self.losses: list[float] = []
        self.step_ms: list[float | None] = []
        # Of each step, how many units of products were made anew; None where nobody counts them.
        self.recomputed: list[int | None] = []
        self.count: Recomputed | None = None
        self.step = 0
        self._unread: list[torch.Tensor] = []
        self._snapshots: list[torch.Tensor] = []
        self._counted = 0
        self._since_start = 0
        torch.manual_seed(config.seed)
        self._random = self._random_state()

    def learning_rate(self, step: int) -> float:
        """Rise over the first twentieth, then half a cosine down to a tenth."""
        rise = max(1, self.config.steps // 20)
        if step < rise:
            return self.config.learning_rate * (step + 1) / rise
        done = (step - rise) / max(1, self.config.steps - rise)
        return self.config.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))

    def _random_state(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        cuda = self.clock.cuda
        return torch.get_rng_state(), torch.cuda.get_rng_state() if cuda else None

    @contextlib.contextmanager
    def _own_random(self) -> Iterator[None]:
        """Go on with this run's random numbers: between its steps the other run draws, too."""
        torch.set_rng_state(self._random[0])
        if self._random[1] is not None:
            torch.cuda.set_rng_state(self._random[1])
        yield
        self._random = self._random_state()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count units made anew, step by step, inside the ``with`` block."""
        with count_recomputed(self.device) as count:
            self.count, self._counted = count, 0
            try:
                yield
            finally:
                self.count = None

    def advance(self) -> None:
        """Do one optimizer step; its loss and time are read back by ``read``."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        ids, targets = self.batches.next()
        with self._own_random():
            start = self.clock.mark()
            loss = self.model.loss(ids, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.clock.step(start, self.clock.mark())
        self._unread.append(loss.detach())
        if self.count is not None:
            self._snapshots.append(self.count.snapshot())
        self.step += 1

    def read(self) -> None:
        """Wait for the steps under way and take their losses and times into the lists."""
        if not self._unread:
            return
        for ms in self.clock.read():
            self.step_ms.append(ms if self._since_start >= WARM_UP else None)
            self._since_start += 1
        losses = torch.stack(self._unread).tolist()
        self.losses.extend(losses)
        self.recomputed.extend(self._read_counts())
        self._unread, self._snapshots = [], []
        for step, loss in enumerate(losses, self.step - len(losses) + 1):
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"train: the loss of step {step} is {loss}; a smaller --lr may help"
                )

    def _read_counts(self) -> list[int | None]:
        """Of each unread step, the units that were made anew in it."""
        if not self._snapshots:
            return [None] * len(self._unread)
        found: list[int | None] = []
        for words in torch.cat(self._snapshots).tolist():
            found.append((words - self._counted) % 2**32)
            self._counted = words
        return found

    def due(self, every: int) -> bool:
        """Say whether losses must be read now: always on a CPU, where it costs nothing."""
        last = self.step == self.config.steps
        return not self.clock.cuda or last or self.step % READ_EVERY == 0 or self.step % every == 0

    @torch.no_grad()
    def validate(self, corpus: Corpus, batches: int = 16) -> float:
        """Mean loss in nats a byte on fixed windows of text that no step has seen."""
        text = corpus.validation.to(self.device)
        windows = Batches(text, self.config.batch, self.config.seq, seed=0)
        self.model.eval()
        losses = [self.model.loss(*windows.next()) for _ in range(batches)]
        self.model.train()
        return torch.stack(losses).mean().item()

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, and what it has shown so far."""
        self.read()
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self._random[0],
            "cuda_rng": self._random[1],
            "data": self.batches.state(),
            "losses": list(self.losses),
            "step_ms": list(self.step_ms),
            "recomputed": list(self.recomputed),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a ``state()``."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._random = state["rng"], state["cuda_rng"]
        self.batches.restore(state["data"])
        self.step = state["step"]
        self.losses, self.step_ms = list(state["losses"]), list(state["step_ms"])
        self.recomputed = list(state["recomputed"])
