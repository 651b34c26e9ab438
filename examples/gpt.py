"""GPT-2 from scratch on text that every machine has: the sources of Python's standard library.

    python examples/gpt.py --way stock        # 124M parameters on a GPU, 8 x 1024 bytes a step
    python examples/gpt.py --way converted

The model is a plain GPT-2 of ``nn.Linear`` layers (``xgemm_torch/train/model.py``) and the tokens
are bytes. ``convert`` swaps the layers, head and tied embedding included; attention stays torch's.
The noise of drawing batches is far above that of TF32, so here TF32 is a fair choice where it is
allowed; FP32 is for who compares runs, or cannot have another kind of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import ways
from torch import Tensor

import xgemm_torch
from xgemm_torch.train.data import Batches, Corpus, load
from xgemm_torch.train.model import GPT, SHAPES

ERROR = "loss on unseen text, nats a byte,"


@dataclass(frozen=True)
class Size:
    """The model by its name, sequences of a step and bytes of each, bytes of text."""

    model: str
    batch: int
    length: int
    text: int
    rate: float
    steps: int


SIZES = {
    "small": Size("tiny", 8, 32, 1 << 19, 3e-3, 60),
    "full": Size("gpt2", 8, 1024, 4 << 20, 6e-4, 70),
}


@cache
def corpus(size: int) -> Corpus:
    """Read the text once."""
    return load(size_cap=size)


class Job:
    """The model under training."""

    def __init__(self, size: Size, way: str, seed: int, device: str) -> None:
        """Make text, model and optimizer."""
        text = corpus(size.text)
        self.batches = Batches(text.train.to(device), size.batch, size.length, seed)
        unseen = Batches(text.validation.to(device), size.batch, size.length, seed)
        self.unseen = [unseen.next() for _ in range(3)]
        self.model = GPT(SHAPES[size.model]).initialize(seed).to(device)
        if way == "converted":
            xgemm_torch.convert(self.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=size.rate, betas=(0.9, 0.95), fused=device == "cuda"
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, size.rate, size.steps)

    def step(self) -> Tensor:
        """Train on a batch."""
        loss = self.model.loss(*self.batches.next())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    @torch.no_grad()
    def error(self) -> float:
        """Give the mean loss of batches that were not trained on."""
        return float(torch.stack([self.model.loss(*batch) for batch in self.unseen]).mean())


if __name__ == "__main__":
    ways.main(Job, SIZES, ERROR)
